"""Whatever reads, it is waited for until the deadline and no longer."""

import threading
from io import StringIO

import pytest
from rich.console import Console

from pdd_cli.cluster.deadline import read_within
from pdd_cli.errors import CliError, ClusterReadError


def console() -> Console:
    return Console(file=StringIO(), width=100)


def test_what_is_quick_is_returned_without_a_word() -> None:
    errors = console()
    assert read_within(errors, "Reading", 5, lambda: 7) == 7
    assert errors.file.getvalue() == ""  # type: ignore[attr-defined]  # it is the StringIO


def test_what_fails_fails_here() -> None:
    def fail() -> int:
        raise CliError("broken")

    with pytest.raises(CliError, match="broken"):
        read_within(console(), "Reading", 5, fail)


def test_what_hangs_is_left_behind() -> None:
    errors, end = console(), threading.Event()
    try:
        with pytest.raises(ClusterReadError, match=r"Reading: no answer within 1.05 s. Check --context"):
            read_within(errors, "Reading", 1.05, end.wait)
    finally:
        end.set()
    assert errors.file.getvalue() == "Reading ...\n"  # type: ignore[attr-defined]  # it is the StringIO
