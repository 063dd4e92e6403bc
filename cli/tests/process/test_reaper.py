"""What happens to the children of a `pdd` that is killed without a chance to clean up."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

from pdd_cli.local.process_groups import living_members
from pdd_cli.local.reaper import Reaper, left_over
from pdd_cli.local.waiting import until

KILLED = """
    import os, signal, sys, time
    from pathlib import Path
    from pdd_cli.local.processes import ChildProcess, Command
    from pdd_cli.local.reaper import Reaper

    folder = Path(sys.argv[1])
    reaper = Reaper() if sys.argv[2] == "with" else None
    private = folder / "private"
    private.mkdir()
    if reaper:
        reaper.watch_folder(private)
    child = ChildProcess.start(Command("c", (sys.executable, "-c", "import time; time.sleep(60)"), folder / "c.log", os.environ), reaper)
    print(child.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def run_and_be_killed(tmp_path: Path, how: str) -> int:
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path), how], stdout=subprocess.PIPE, check=False
    )
    assert ended.returncode == -signal.SIGKILL
    return int(ended.stdout)


async def test_children_and_folders_of_a_killed_parent_go(tmp_path: Path) -> None:
    group = run_and_be_killed(tmp_path, "with")

    async def gone() -> bool:
        return not living_members(group) and not (tmp_path / "private").exists()

    assert await until(gone, 0.05, timeout_seconds=15)


async def test_control_without_a_reaper_they_stay(tmp_path: Path) -> None:
    group = run_and_be_killed(tmp_path, "without")
    try:
        await asyncio.sleep(1.0)
        assert living_members(group)
        assert (tmp_path / "private").exists()
    finally:
        os.killpg(group, signal.SIGKILL)


def test_left_over_is_what_was_not_taken_back() -> None:
    lines = ["+12\n", "+13\n", ">/a folder\n", ">/b\n", "-12\n", "</b\n", "-99\n"]
    assert left_over(lines) == ([13], [Path("/a folder")])


def test_closing_ends_the_reaper_itself() -> None:
    reaper = Reaper()
    assert living_members(reaper.pid)
    reaper.close()
    assert not living_members(reaper.pid)
