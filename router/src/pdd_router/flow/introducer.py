"""Sends introductions beside traffic: bounded, backing off, never waited for by a request (docs/protocol.md, section 1)."""

from __future__ import annotations

import asyncio
import functools
import uuid
from collections.abc import Callable

import structlog

from pdd_router.config import Introductions as IntroductionsConfig
from pdd_router.endpoints.engine import EngineView, Living
from pdd_router.endpoints.registry import Registry
from pdd_router.errors import LegError
from pdd_router.flow import kv_params
from pdd_router.flow.legs import introduction_body
from pdd_router.metrics import Metrics
from pdd_router.openai.request import Endpoint
from pdd_router.upstream import Upstream

_log = structlog.get_logger(__name__)


class Introducer:
    def __init__(
        self,
        registry: Registry,
        upstream: Upstream,
        config: IntroductionsConfig,
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self._registry = registry
        self._upstream = upstream
        self._config = config
        self._metrics = metrics
        self._clock = clock
        self._places = asyncio.Semaphore(config.concurrency)
        self._busy: dict[Living, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Until cancelled. Wakes when engines come and go, when an introduction ends and when one is due again."""
        try:
            while True:
                self._registry.changed.clear()
                self._start_due()
                await self._wait()
        finally:
            tasks = list(self._busy.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _start_due(self) -> None:
        views = self._registry.snapshot().engines
        by_living = {view.living: view for view in views}
        for reader, owners in self._registry.introductions.due(views, self._clock()).items():
            if reader not in self._busy:
                task = asyncio.create_task(
                    self._introduce(by_living[reader], [by_living[owner] for owner in owners]),
                    name=f"introduce to {reader.id.name}",
                )
                self._busy[reader] = task
                task.add_done_callback(functools.partial(self._done, reader))

    def _done(self, reader: Living, _: asyncio.Task[None]) -> None:
        self._busy.pop(reader, None)
        self._registry.changed.set()

    async def _wait(self) -> None:
        due = self._registry.introductions.next_due(self._registry.snapshot().engines, self._busy.keys())
        try:
            async with asyncio.timeout(None if due is None else max(0.0, due - self._clock())):
                await self._registry.changed.wait()
        except TimeoutError:
            return

    async def _introduce(self, reader: EngineView, owners: list[EngineView]) -> None:
        async with self._places:
            connected = await self._ask(reader, owners)
        asked = [owner.living for owner in owners]
        self._registry.introductions.record(reader.living, asked, connected, self._clock())
        failed = len(asked) - len(connected)
        self._metrics.introductions.labels("Connected").inc(len(connected))
        self._metrics.introductions.labels("Failed").inc(failed)
        _log.info(
            "Introduced engines",
            reader=reader.id.name,
            connected=[living.id.name for living in connected],
            failed=failed,
        )

    async def _ask(self, reader: EngineView, owners: list[EngineView]) -> list[Living]:
        state = self._registry.find(reader.id)
        if state is None or not state.models:
            return []
        body = introduction_body(min(state.models), kv_params.claim_params(owners, introduce=True))
        try:
            answer = await self._upstream.post_json(
                reader.engine,
                Endpoint.COMPLETIONS,
                body,
                request_id=f"introduce-{uuid.uuid4().hex}",
                timeout_seconds=self._config.timeout_seconds,
            )
        except LegError:
            return []
        receipt = kv_params.parse_receipt(answer.get(kv_params.KEY))
        if receipt is None or receipt.outcome != "Introduced":
            return []
        return [owner.living for owner in owners if owner.engine.claim in receipt.connected]
