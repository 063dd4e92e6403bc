"""The folder is called `operator`: it must never be taken for the standard library's module."""

import operator
from pathlib import Path

import pdd_operator

MEMBER = Path(__file__).parents[2]


def test_the_standard_librarys_operator_is_intact() -> None:
    assert operator.add(1, 2) == 3
    assert not (MEMBER / "__init__.py").exists(), "operator/__init__.py would shadow the standard library's operator"


def test_the_package_is_found_under_its_own_name() -> None:
    assert Path(pdd_operator.__file__).is_relative_to(MEMBER / "src")
