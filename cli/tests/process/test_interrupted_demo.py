"""`pdd demo` as a process, with stand-ins for engines, ended at various moments: nothing of it may be left."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pdd_cli.local.process_groups import living_members

Marked = Callable[[str], list[int]]

# Importing openai and matplotlib takes a second, and half a minute where everything else runs as well.
_PATIENCE_SECONDS = 90
pytestmark = pytest.mark.timeout(3 * _PATIENCE_SECONDS)


class Demo:
    """A running `pdd demo`."""

    def __init__(self, python: Path, mode: str) -> None:
        self.folder = python.parent
        self.temporary = self.folder / "tmp"
        self.temporary.mkdir()
        argv = [sys.executable, "-m", "pdd_cli", "demo", "--engine-python", str(python)]
        argv += ["--cache", str(self.folder / "cache"), "--out", str(self.folder / "out")]
        environment = os.environ | {"STAND_IN": mode, "TMPDIR": str(self.temporary)}
        self.log = self.folder / "demo.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(argv, env=environment, stdout=log, stderr=log, start_new_session=True)

    def until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not holds():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)

    def partial_models(self) -> list[Path]:
        return list((self.folder / "cache").glob("partial-*"))


MOMENTS = {"slow-convert": "converting", "never-ready": "engine"}


def run_until(python: Path, mode: str, marked: Marked) -> Demo:
    demo = Demo(python, mode)
    demo.until(lambda: bool(marked(MOMENTS[mode])))
    return demo


@pytest.mark.parametrize("mode", MOMENTS)
@pytest.mark.parametrize(
    ("numbers", "code"), [([signal.SIGINT], 130), ([signal.SIGINT, signal.SIGINT], 130), ([signal.SIGTERM], 143)]
)
def test_a_signal_leaves_nothing(
    stand_in: Path, marked: Marked, mode: str, numbers: list[signal.Signals], code: int
) -> None:
    demo = run_until(stand_in, mode, marked)
    for number in numbers:
        demo.process.send_signal(number)
        time.sleep(0.05)  # two presses of a key, not one
    assert demo.process.wait(timeout=_PATIENCE_SECONDS) == code, demo.log.read_text()
    assert not [pid for pid in marked(MOMENTS[mode]) if living_members(pid)]
    assert not list(demo.temporary.iterdir())
    assert not demo.partial_models()
    assert "Traceback" not in demo.log.read_text()


@pytest.mark.parametrize("mode", MOMENTS)
def test_even_a_killed_demo_leaves_nothing(stand_in: Path, marked: Marked, mode: str) -> None:
    demo = run_until(stand_in, mode, marked)
    demo.process.kill()
    demo.process.wait(timeout=_PATIENCE_SECONDS)
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while [pid for pid in marked(MOMENTS[mode]) if living_members(pid)] or list(demo.temporary.iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    while demo.partial_models():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_an_engine_that_dies_is_one_clear_message(stand_in: Path, marked: Marked) -> None:
    demo = Demo(stand_in, "dies")
    assert demo.process.wait(timeout=_PATIENCE_SECONDS) == 4
    text = demo.log.read_text()
    assert "before it was ready: another program took the port in the meantime: start again" in text
    assert "Traceback" not in text
    assert not [pid for pid in marked("engine") if living_members(pid)]
    assert not list(demo.temporary.iterdir())
