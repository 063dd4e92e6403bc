"""Progress on a terminal and without one."""

import asyncio
import re
from io import StringIO

import pytest
from rich.console import Console

from pdd_cli.terminal import TerminalProgress


def make(terminal: bool) -> tuple[TerminalProgress, StringIO]:
    out = StringIO()
    return TerminalProgress(Console(file=out, force_terminal=terminal, width=100, no_color=True)), out


@pytest.mark.parametrize("terminal", [False, True])
def test_says_what_ended_and_how(terminal: bool) -> None:
    progress, out = make(terminal)
    with progress.task("Doing one thing") as outer, progress.task("Doing another"):
        outer.note("half [way]")
    with pytest.raises(ValueError, match="no"), progress.task("Failing"):
        raise ValueError("no")
    with pytest.raises(asyncio.CancelledError), progress.task("Cut short"):
        raise asyncio.CancelledError
    text = re.sub(r"\x1b\[[\d?;]*[A-Za-z]", "", out.getvalue())  # without the terminal's own commands
    assert "✓ Doing one thing (" in text
    assert "✓ Doing another" in text
    assert "✗ Failing: failed after 0 s" in text
    assert "- Cut short: stopped" in text


def test_without_a_terminal_the_start_is_said_too() -> None:
    progress, out = make(terminal=False)
    with progress.task("Doing one thing"):
        assert out.getvalue() == "  Doing one thing ...\n"
