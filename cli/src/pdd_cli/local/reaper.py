"""The last resort against left-over engines: a small process that outlives a `pdd` that was killed (kill -9, closed terminal, crash).

`python -m pdd_cli.local.reaper` reads its standard input, which only the `pdd` that started it holds open. One line each:

    +GROUP    a process group to end        -GROUP    it has ended
    >FOLDER   a folder to remove            <FOLDER   it is removed

When the input ends, whatever is still listed is ended and removed. Standard library only, so that it starts at once.
"""

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from pdd_cli.local.process_groups import end_groups

GRACE_SECONDS = 5.0


def left_over(lines: Iterable[str]) -> tuple[list[int], list[Path]]:
    """(process groups, folders) that were announced and not taken back."""
    groups: dict[int, None] = {}
    folders: dict[Path, None] = {}
    for line in lines:
        kind, what = line[:1], line[1:].rstrip("\n")
        if kind == "+":
            groups[int(what)] = None
        elif kind == "-":
            groups.pop(int(what), None)
        elif kind == ">":
            folders[Path(what)] = None
        elif kind == "<":
            folders.pop(Path(what), None)
    return list(groups), list(folders)


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # what ends its parent must not end it first
    groups, folders = left_over(sys.stdin)
    end_groups(groups, GRACE_SECONDS)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)  # nobody is left to be told


class Reaper:
    """The parent's end of it. Leaving its context closes it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pdd_cli.local.reaper"], stdin=subprocess.PIPE, start_new_session=True, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def watch_group(self, group: int) -> None:
        self._tell(f"+{group}")

    def forget_group(self, group: int) -> None:
        self._tell(f"-{group}")

    def watch_folder(self, folder: Path) -> None:
        self._tell(f">{folder}")

    def forget_folder(self, folder: Path) -> None:
        self._tell(f"<{folder}")

    def close(self) -> None:
        """End it; what is still listed is ended and removed first."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()

    def _tell(self, line: str) -> None:
        if self._process.stdin is not None and self._process.poll() is None:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()


if __name__ == "__main__":
    main()
