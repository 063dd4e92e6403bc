"""When the plugin starts and ends the control plane: in a pytest inside this one, with a class that only writes down what is done to it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Self

import pytest

from pdd_e2e.control_plane import fixtures
from pdd_e2e.control_plane.errors import ControlPlaneError

CONFTEST = 'pytest_plugins = ["pdd_e2e.control_plane.fixtures"]'
TESTS = """
import pytest
from pdd_e2e.control_plane import fixtures


@pytest.fixture
def tidy(control_plane):
    yield
    fixtures.LocalControlPlane.journal.append("tidied")


def test_without(): fixtures.LocalControlPlane.journal.append("without")
def test_with(tidy): fixtures.LocalControlPlane.journal.append("with")
def test_failing(tidy): assert False
def test_interrupted(tidy): raise KeyboardInterrupt
"""


class Recorded:
    """Stands where LocalControlPlane does."""

    journal: list[str]
    starts = True

    def __init__(self, *, say: object, crds: Sequence[Path]) -> None:
        self.keep_logs = False
        self.crds = crds

    def __enter__(self) -> Self:
        if not self.starts:
            raise ControlPlaneError("it does not start")
        self.journal.append("started with " + ",".join(path.name for path in self.crds))
        return self

    def __exit__(self, *error: object) -> None:
        self.journal.append(f"ended, logs kept: {self.keep_logs}")


class Inner:
    """Runs some of `TESTS`: the exit code and what was done."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self._pytester = pytester
        pytester.makeconftest(CONFTEST)
        pytester.makepyfile(test_inner=TESTS)
        pytester.makeini("[pytest]\ncontrol_plane_crds = widgets.yaml\naddopts = --strict-config\n")

    def run(self, *arguments: str) -> tuple[int, list[str]]:
        Recorded.journal = []
        options = ["-q", "-p", "no:randomly", "-p", "no:asyncio", "-p", "no:cacheprovider", *arguments]
        result = self._pytester.inline_run(*options, no_reraise_ctrlc=True)
        return int(result.ret), Recorded.journal


@pytest.fixture
def inner(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Inner:
    monkeypatch.setattr(fixtures, "LocalControlPlane", Recorded)
    return Inner(pytester)


def test_it_starts_before_the_first_test_and_ends_after_the_last_fixture(inner: Inner) -> None:
    code, journal = inner.run("-k", "without or with")
    assert code == 0
    assert journal == ["started with widgets.yaml", "without", "with", "tidied", "ended, logs kept: False"]


def test_it_does_not_start_for_tests_that_do_not_want_it(inner: Inner) -> None:
    assert inner.run("-k", "without") == (0, ["without"])
    assert inner.run("--collect-only") == (0, [])


def test_logs_are_kept_after_a_failure(inner: Inner) -> None:
    assert inner.run("-k", "failing") == (1, ["started with widgets.yaml", "tidied", "ended, logs kept: True"])


def test_an_interrupted_test_tidies_while_the_control_plane_is_there(inner: Inner) -> None:
    assert inner.run("-k", "interrupted") == (2, ["started with widgets.yaml", "tidied", "ended, logs kept: False"])


def test_a_start_that_fails_fails_only_those_that_want_it(inner: Inner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recorded, "starts", False)
    assert inner.run("-k", "without or with") == (1, ["without"])
