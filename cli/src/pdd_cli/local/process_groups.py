"""Reads /proc for the living members of a process group, and ends one. Standard library only: the reaper runs it too."""

import os
import signal
import time
from pathlib import Path

_POLL_SECONDS = 0.05


def living_members(group: int, proc: Path = Path("/proc")) -> list[int]:
    """Pids in process group `group` that still run. Zombies do not count: who should reap them may never do it (a container's pid 1)."""
    found = []
    for folder in proc.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            stat = (folder / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # ended while we looked
        state, _, its_group = stat.rpartition(")")[2].split()[:3]
        if int(its_group) == group and state not in "ZX":
            found.append(int(folder.name))
    return found


def send(group: int, number: signal.Signals) -> None:
    """Signal every member, if there is any left."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return  # the last member ended by itself


def end_groups(groups: list[int], grace_seconds: float) -> None:
    """SIGTERM to all, then SIGKILL to what is left after `grace_seconds`. Blocks until they are gone or unkillable (5 s more)."""
    for group in groups:
        send(group, signal.SIGTERM)
    _wait_for_end(groups, grace_seconds)
    for group in groups:
        if living_members(group):
            send(group, signal.SIGKILL)
    _wait_for_end(groups, 5.0)


def _wait_for_end(groups: list[int], timeout_seconds: float) -> None:
    deadline = time.monotonic() + timeout_seconds
    while any(living_members(group) for group in groups) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
