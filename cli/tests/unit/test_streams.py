"""Standard input and output as a shell may leave them: no traceback, and an exit code that says it."""

import os
import shlex
import subprocess
import sys

import pytest
from rendering import ROOT

pytestmark = pytest.mark.timeout(120)
RENDER = ("render", "-f", str(ROOT / "docs" / "samples" / "cpu-sockets.yaml"))


def shell(arguments: tuple[str, ...], redirections: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    command = f"{shlex.join((sys.executable, '-m', 'pdd_cli', *arguments))} {redirections}"
    return subprocess.run(
        ["/bin/sh", "-c", command], capture_output=True, check=False, env=os.environ | environment, timeout=90
    )


@pytest.mark.parametrize(
    ("arguments", "redirections", "code", "says"),
    [
        (RENDER, "> /dev/full", 1, b"pdd: output cannot be written: No space left on device\n"),
        ((*RENDER, "--summary"), "> /dev/full", 1, b"pdd: output cannot be written: No space left on device\n"),
        (RENDER, "> /dev/full 2>&1", 1, b""),
        (RENDER, ">&-", 0, b""),
        ((*RENDER, "--summary"), ">&-", 0, b""),
        (("render", "-f", "-"), "<&-", 2, b"pdd: - must hold a PDDeployment, and has no object.\n"),
        (("render", "-f", "nowhere"), "2>&-", 2, b""),
        (("render", "-f", "nowhere"), "2> /dev/full", 2, b""),
    ],
)
def test_no_traceback(arguments: tuple[str, ...], redirections: str, code: int, says: bytes) -> None:
    done = shell(arguments, redirections)
    assert (done.returncode, done.stdout, done.stderr) == (code, b"", says)


def test_a_reader_that_has_enough() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pdd_cli", *RENDER], stdout=writer, stderr=subprocess.PIPE, check=False, timeout=90
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize("arguments", [("render", "--help"), (*RENDER, "--summary"), ("render", "-f", "näh")])
def test_an_encoding_that_lacks_our_marks(arguments: tuple[str, ...]) -> None:
    done = shell(arguments, "", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == (2 if "näh" in arguments else 0)
    assert b"Traceback" not in done.stderr
    assert (done.stdout + done.stderr).isascii()
