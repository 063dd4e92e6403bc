"""Waits for a child process to answer on HTTP, and notices at once when it ends instead."""

import asyncio
import re
from collections.abc import Awaitable, Callable

import aiohttp

from pdd_cli.errors import StartError
from pdd_cli.local.processes import ChildProcess
from pdd_cli.local.progress import Task

_POLL_SECONDS = 0.5
_LOG_PREFIX = re.compile(r"^.*\[[\w./]+:\d+\] ")  # process, level, time and place, as vLLM writes them

Probe = Callable[[], Awaitable[bool]]
Hint = Callable[[int, list[str]], str]


async def wait_until_ready(child: ChildProcess, probe: Probe, task: Task, timeout_seconds: float, hint: Hint) -> None:
    """Returns when `probe()` says so. A probe that cannot connect counts as not ready.

    Raises StartError with the end of the log and `hint(exit code, lines)` if the process ends first, or if time is up.
    """
    name = child.command.name
    ended = asyncio.ensure_future(child.wait())
    try:
        async with asyncio.timeout(timeout_seconds):
            while not await _says_so(probe):
                await asyncio.wait([ended], timeout=_POLL_SECONDS)
                if ended.done():
                    raise StartError(_ended_early(child, ended.result(), hint))
                task.note(_last_line(child))
    except TimeoutError:
        raise StartError(
            f"{name} was not ready after {timeout_seconds:.0f} s; the end of {child.command.log}:\n{_indented(child.last_lines())}"
        ) from None
    finally:
        ended.cancel()
        await asyncio.gather(ended, return_exceptions=True)  # it watches a descriptor, which must be closed now


def _ended_early(child: ChildProcess, code: int, hint: Hint) -> str:
    lines = child.last_lines()
    return (
        f"{child.command.name} ended with exit code {code} before it was ready: {hint(code, lines)}\n"
        f"The end of {child.command.log}:\n{_indented(lines)}"
    )


def _indented(lines: list[str]) -> str:
    return "\n".join(f"  {line}" for line in lines) or "  (empty)"


def _last_line(child: ChildProcess) -> str:
    lines = child.last_lines(1)
    return _LOG_PREFIX.sub("", lines[0]).strip() if lines else "loading"


async def _says_so(probe: Probe) -> bool:
    try:
        return await probe()
    except (aiohttp.ClientError, TimeoutError):
        return False  # not listening yet
