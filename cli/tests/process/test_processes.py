"""Child processes that behave badly: none of them may outlive `stop`."""

import asyncio
import os
import sys
import textwrap
from pathlib import Path

import pytest

from pdd_cli.errors import StartError
from pdd_cli.local.process_groups import living_members
from pdd_cli.local.processes import ChildProcess, Command, output_of
from pdd_cli.local.waiting import until

POLITE = "import time; print('up', flush=True); time.sleep(60)"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
PARENT_OF_DEAF = f"""
    import subprocess, sys, time
    subprocess.Popen([sys.executable, "-c", {DEAF!r}])
    time.sleep(60)
"""
ENDS_BEFORE_ITS_CHILD = f"""
    import subprocess, sys
    subprocess.Popen([sys.executable, "-c", {DEAF!r}])
"""


def start(tmp_path: Path, program: str) -> ChildProcess:
    argv = (sys.executable, "-c", textwrap.dedent(program))
    return ChildProcess.start(Command("child", argv, tmp_path / "child.log", os.environ))


async def until_it_says(child: ChildProcess, text: str) -> None:
    async def said() -> bool:
        return any(text in line for line in child.last_lines())

    assert await until(said, 0.02, timeout_seconds=20)


@pytest.mark.parametrize("program", [POLITE, DEAF, PARENT_OF_DEAF])
async def test_stop_ends_the_child_and_its_descendants(tmp_path: Path, program: str) -> None:
    child = start(tmp_path, program)
    await until_it_says(child, "up")
    assert living_members(child.pid)

    await child.stop(grace_seconds=0.3)

    assert not living_members(child.pid)
    assert child.exit_code is not None


async def test_stop_ends_a_grandchild_whose_parent_is_gone(tmp_path: Path) -> None:
    child = start(tmp_path, ENDS_BEFORE_ITS_CHILD)
    await until_it_says(child, "up")
    assert await child.wait() == 0
    assert living_members(child.pid), "the control: the grandchild does outlive its parent"

    await child.stop(grace_seconds=0.3)

    assert not living_members(child.pid)


async def test_a_polite_child_is_not_killed(tmp_path: Path) -> None:
    child = start(
        tmp_path,
        "import signal, sys, time; signal.signal(15, lambda *a: sys.exit(7)); print('up', flush=True); time.sleep(60)",
    )
    await until_it_says(child, "up")
    await child.stop(grace_seconds=10)
    assert child.exit_code == 7


async def test_stop_twice_is_harmless(tmp_path: Path) -> None:
    child = start(tmp_path, POLITE)
    await child.stop(grace_seconds=2)
    await child.stop(grace_seconds=2)
    assert child.exit_code is not None


async def test_wait_reports_the_end_while_others_go_on(tmp_path: Path) -> None:
    child = start(tmp_path, "import sys, time; time.sleep(0.2); sys.exit(3)")
    waiting = asyncio.ensure_future(child.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    assert await waiting == 3


async def test_last_lines_has_both_outputs(tmp_path: Path) -> None:
    child = start(tmp_path, "import sys; print('out', flush=True); print('err', file=sys.stderr)")
    await child.wait()
    assert child.last_lines() == ["out", "err"]


async def test_output_of_gives_what_was_printed() -> None:
    assert await output_of((sys.executable, "-c", "print(42)"), os.environ, 20) == "42\n"


async def test_output_of_says_why_it_failed() -> None:
    with pytest.raises(StartError, match="exit code 4:\n  no such thing"):
        await output_of(
            (sys.executable, "-c", "import sys; print('no such thing', file=sys.stderr); sys.exit(4)"), os.environ, 20
        )


async def test_output_of_ends_what_takes_too_long() -> None:
    with pytest.raises(StartError, match=r"within 0 s|within 1 s"):
        await output_of((sys.executable, "-c", "import time; time.sleep(60)"), os.environ, 0.5)
