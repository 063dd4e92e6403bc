"""A child process in a process group of its own, with its output in a log file; ended by SIGTERM, then SIGKILL, with all its descendants.

It knows nothing of engines. It must never signal a process that it did not start.
"""

import asyncio
import os
import signal
import subprocess
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pdd_cli.errors import StartError
from pdd_cli.local.process_groups import living_members, send
from pdd_cli.local.reaper import Reaper
from pdd_cli.local.waiting import until

_POLL_SECONDS = 0.05
_KILLED_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Command:
    """What to start. `environment` is the whole environment of the child, `log` gets both its outputs."""

    name: str
    argv: tuple[str, ...]
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)


class ChildProcess:
    """One running child. Made by `start`; `stop` is safe to call at any time and more than once."""

    def __init__(self, command: Command, popen: "subprocess.Popen[bytes]", reaper: Reaper | None) -> None:
        self.command = command
        self._popen = popen
        self._reaper = reaper

    @classmethod
    def start(cls, command: Command, reaper: Reaper | None = None) -> "ChildProcess":
        """Start it now. Raises OSError if it cannot be executed."""
        command.log.parent.mkdir(parents=True, exist_ok=True)
        with command.log.open("ab") as log:
            popen = subprocess.Popen(  # noqa: S603  -- the caller's own command line, no shell
                command.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(command.environment),
                start_new_session=True,  # Ctrl-C in the terminal must reach us only: we end children in order
            )
        if reaper is not None:
            reaper.watch_group(popen.pid)
        return cls(command, popen, reaper)

    @property
    def pid(self) -> int:
        """Its process id, which is its group's id too."""
        return self._popen.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return self._popen.poll()

    async def wait(self) -> int:
        """Its exit code, as soon as there is one."""
        if self._popen.poll() is None:
            ended = asyncio.Event()
            loop = asyncio.get_running_loop()
            descriptor = os.pidfd_open(self.pid)
            loop.add_reader(descriptor, ended.set)
            try:
                await ended.wait()
            finally:
                loop.remove_reader(descriptor)
                os.close(descriptor)
        return self._popen.wait()

    async def stop(self, grace_seconds: float = 10.0) -> None:
        """End it and every descendant in its group; returns when none of them runs any more."""
        # The group is looked at even if the child itself has ended: its own children may not have.
        if await self._living():
            send(self.pid, signal.SIGTERM)
            if not await self._gone_within(grace_seconds):
                send(self.pid, signal.SIGKILL)
                await self._gone_within(_KILLED_SECONDS)
        await self.wait()
        if self._reaper is not None:
            self._reaper.forget_group(self.pid)

    async def _gone_within(self, timeout_seconds: float) -> bool:
        async def gone() -> bool:
            return not await self._living()

        return await until(gone, _POLL_SECONDS, timeout_seconds)

    async def _living(self) -> list[int]:
        self._popen.poll()  # reap it if it has ended
        return await asyncio.to_thread(living_members, self.pid)

    def last_lines(self, count: int = 20) -> list[str]:
        """The end of its log."""
        with self.command.log.open(encoding="utf-8", errors="replace") as log:
            return [line.rstrip("\n") for line in deque(log, maxlen=count)]


async def output_of(argv: tuple[str, ...], environment: Mapping[str, str], timeout_seconds: float) -> str:
    """What a short program prints. Raises StartError with the end of its error output if it fails or takes too long."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=dict(environment),
    )
    try:
        async with asyncio.timeout(timeout_seconds):
            out, err = await process.communicate()
    except TimeoutError:
        raise StartError(f"`{_named(argv)} ...` did not end within {timeout_seconds:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        tail = "\n  ".join(err.decode(errors="replace").strip().splitlines()[-8:])
        raise StartError(f"`{_named(argv)} ...` ended with exit code {process.returncode}:\n  {tail}")
    return out.decode()


def _named(argv: tuple[str, ...]) -> str:
    """The beginning, on one line: an argument may be a program."""
    return " ".join(argv[:4]).strip().partition("\n")[0].strip()
