"""One line of the doctor's report. Data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """``WARN``: it may work, or it is on its way, and somebody should know. ``FAIL``: it cannot work like this."""

    PASS = "Pass"  # noqa: S105  # no password
    WARN = "Warn"
    FAIL = "Fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """``seen``: what is there. ``todo``: what to do, "" where nothing is."""

    level: Level
    subject: str
    seen: str
    todo: str = ""


def passed(subject: str, seen: str) -> Finding:
    return Finding(Level.PASS, subject, seen)


def warned(subject: str, seen: str, todo: str) -> Finding:
    return Finding(Level.WARN, subject, seen, todo)


def failed(subject: str, seen: str, todo: str) -> Finding:
    return Finding(Level.FAIL, subject, seen, todo)
