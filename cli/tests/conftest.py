"""For every test of the command line: a real control plane, started when a test first asks for it; and `pdd` in this process."""

import sys
from collections.abc import Callable
from io import StringIO

import pytest
from ran import Done

from pdd_cli.__main__ import main

pytest_plugins = ["pdd_e2e.control_plane.fixtures"]

Pdd = Callable[..., Done]


@pytest.fixture
def pdd(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Pdd:
    """Runs `pdd ARGUMENTS` as the program does, with `stdin` as its standard input."""

    def run(*arguments: str, stdin: str = "") -> Done:
        monkeypatch.setattr(sys, "argv", ["pdd", *arguments])
        monkeypatch.setattr(sys, "stdin", StringIO(stdin))
        capsys.readouterr()
        code = main()
        said = capsys.readouterr()
        return Done(code, said.out, said.err)

    return run
