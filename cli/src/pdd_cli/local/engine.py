"""A running engine: started, waited for, restarted, asked for its metrics, its prefix cache emptied.

I/O only; what it is started with is decided in `engines`.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from pdd_cli.errors import LostEngineError, StillHeldError
from pdd_cli.local.engines import EngineSpec, engine_command, engine_environment, failure_hint
from pdd_cli.local.processes import ChildProcess, Command
from pdd_cli.local.progress import Progress
from pdd_cli.local.readiness import wait_until_ready
from pdd_cli.local.reaper import Reaper
from pdd_cli.local.waiting import until

_QUICK = aiohttp.ClientTimeout(total=10)
_EMPTY_RETRY_SECONDS = 0.2


class Engine:
    """One engine of a stack. `start` and `stop` may follow each other any number of times; ports and name stay."""

    def __init__(self, spec: EngineSpec, python: Path, logs: Path, claim_key: str, reaper: Reaper | None) -> None:
        self.spec = spec
        self.log = logs / f"{spec.name}.log"
        self._python = python
        self._claim_key = claim_key
        self._reaper = reaper
        self._child: ChildProcess | None = None

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def url(self) -> str:
        """http://127.0.0.1:PORT, without /v1."""
        return self.spec.url

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    def start(self) -> None:
        """Start the process; `wait_ready` says when it serves. Raises RuntimeError if it was started and not stopped."""
        if self._child is not None:
            raise RuntimeError(f"{self.name} is started already")
        environment = engine_environment(self.spec, os.environ, self._claim_key)
        command = Command(self.name, engine_command(self.spec, self._python), self.log, environment)
        self._child = ChildProcess.start(command, self._reaper)

    async def wait_ready(self, session: aiohttp.ClientSession, progress: Progress, timeout_seconds: float) -> None:
        """Returns when /health says 200. Raises StartError with the end of the log if the process ends first or time is up."""
        if self._child is None:
            raise RuntimeError(f"{self.name} is not started")
        with progress.task(f"Starting {self.name}") as task:
            await wait_until_ready(self._child, lambda: self._healthy(session), task, timeout_seconds, failure_hint)

    async def _healthy(self, session: aiohttp.ClientSession) -> bool:
        async with session.get(f"{self.url}/health", timeout=_QUICK) as answer:
            return answer.status == 200

    async def stop(self, grace_seconds: float = 15.0) -> None:
        """End it with everything it started. Nothing happens if it does not run."""
        child = self._child
        if child is not None:
            await child.stop(grace_seconds)
            self._child = None

    async def wait_end(self) -> int:
        """The exit code, when the process ends. Raises RuntimeError if it is not started."""
        if self._child is None:
            raise RuntimeError(f"{self.name} is not started")
        return await self._child.wait()

    async def empty_prefix_cache(self, session: aiohttp.ClientSession, timeout_seconds: float = 15.0) -> None:
        """Forget every cached block (needs the development API). Waits while blocks are held, as by a read that is going on.

        Raises LostEngineError, and StillHeldError if they are so after `timeout_seconds`.
        """
        if not await until(lambda: self._emptied(session), _EMPTY_RETRY_SECONDS, timeout_seconds):
            raise StillHeldError(
                f"{self.name} still holds blocks after {timeout_seconds:.0f} s: its prefix cache cannot be emptied"
            )

    async def _emptied(self, session: aiohttp.ClientSession) -> bool:
        with self._answering():
            async with session.post(f"{self.url}/reset_prefix_cache", timeout=_QUICK) as answer:
                answer.raise_for_status()
                return bool((await answer.json())["success"])

    async def metrics(self, session: aiohttp.ClientSession) -> dict[str, float]:
        """Every sample of /metrics, summed over labels, by sample name. Raises LostEngineError."""
        with self._answering():
            async with session.get(f"{self.url}/metrics", timeout=_QUICK) as answer:
                answer.raise_for_status()
                return sum_samples(await answer.text())

    @contextmanager
    def _answering(self) -> Iterator[None]:
        try:
            yield
        except (aiohttp.ClientError, TimeoutError) as problem:
            raise LostEngineError(f"{self.name} does not answer ({problem!r}); its log is {self.log}") from None


def sum_samples(exposition: str) -> dict[str, float]:
    """Prometheus text to {sample name: sum over all label sets}."""
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    return sums
