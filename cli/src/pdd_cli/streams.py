"""Standard input and output as they may come: closed, full, a pipe whose reader left, or of an encoding that lacks our marks."""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper
from pathlib import Path

_READ, _WRITE = "r", "w"


def prepare() -> None:
    """What is closed becomes the null device, so that nothing that is opened later gets its number. What cannot be encoded is replaced."""
    for name, mode in (("stdin", _READ), ("stdout", _WRITE), ("stderr", _WRITE)):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115  # open until the end
        elif mode == _WRITE and isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


def flush() -> None:
    """Raises OSError where output is full or closed: better here than when the interpreter ends."""
    sys.stdout.flush()


def settle() -> None:
    """What is still in buffers and cannot be written goes to the null device: else the interpreter complains when it ends."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            with Path(os.devnull).open("wb") as null:
                os.dup2(null.fileno(), stream.fileno())
