"""A function runs when a module has been imported, and nothing imports it before."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from pdd_connector.after_import import call_after_import


@pytest.fixture
def module_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name = "pdd_late_module"
    (tmp_path / f"{name}.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = list(sys.meta_path)
    yield name
    sys.meta_path[:] = before
    sys.modules.pop(name, None)


def test_action_runs_after_the_import_and_not_before(module_name: str) -> None:
    seen: list[int] = []
    call_after_import(module_name, lambda module: seen.append(module.value))
    assert module_name not in sys.modules and seen == []
    module = importlib.import_module(module_name)
    assert seen == [1]
    assert module.__loader__.get_source(module_name) == "value = 1\n"  # type: ignore[union-attr]  # that it is passed on is the test


def test_action_runs_at_once_where_the_module_is_imported(module_name: str) -> None:
    importlib.import_module(module_name)
    seen: list[ModuleType] = []
    call_after_import(module_name, seen.append)
    assert [module.__name__ for module in seen] == [module_name]


def test_asking_twice_runs_it_once(module_name: str) -> None:
    seen: list[ModuleType] = []
    call_after_import(module_name, seen.append)
    call_after_import(module_name, seen.append)
    importlib.import_module(module_name)
    assert len(seen) == 1


def test_other_modules_are_left_alone(module_name: str) -> None:
    seen: list[ModuleType] = []
    call_after_import("pdd_never_there", seen.append)
    importlib.import_module(module_name)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("pdd_never_there")
    assert seen == []
