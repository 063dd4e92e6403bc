"""Signals at every moment of a run, the moments after its end included."""

import signal
import subprocess
import sys
import textwrap

import pytest

PROGRAM = """
    import asyncio, os, signal, sys
    from pdd_cli.interrupts import InterruptedBySignalError, run_interruptible

    def send(number=signal.SIGINT):
        os.kill(os.getpid(), number)

    async def main():
        try:
            if sys.argv[1] == "by-itself":
                return
            send(signal.Signals[sys.argv[2]])
            await asyncio.sleep(60)
        finally:
            send()  # the impatient second key
            await asyncio.sleep(0.05)
            print("cleaned up", flush=True)

    try:
        run_interruptible(main(), lambda: print("stopping", flush=True))
        code = 0
    except InterruptedBySignalError as interruption:
        code = interruption.exit_code
    send()  # the loop is closed, the process still ends what it began
    print("the end", flush=True)

    class Last:
        def __del__(self, kill=os.kill, pid=os.getpid()):
            kill(pid, 2)  # as late as it gets

    sys.last = Last()
    sys.exit(code)
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", textwrap.dedent(PROGRAM), *arguments]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_first_signal_cancels_and_later_ones_do_not_disturb(name: str, code: int) -> None:
    done = run("cut-short", name)
    assert done.stdout.split("\n") == ["stopping", "cleaned up", "the end", ""]
    assert done.returncode == code == 128 + signal.Signals[name]
    assert not done.stderr


def test_a_run_that_ended_by_itself_is_not_called_interrupted() -> None:
    done = run("by-itself")
    assert done.stdout.endswith("the end\n")
    assert done.returncode in (0, 130), "the signal came while it was ending"
    assert not done.stderr
