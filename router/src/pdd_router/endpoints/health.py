"""Active health checks: asks each engine for /health, and for its models when it comes up. I/O; no decisions beyond
counting. One slow engine must not delay the checks of the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import json

import structlog

from pdd_router.config import Health
from pdd_router.endpoints.engine import Engine, EngineId
from pdd_router.endpoints.registry import Registry
from pdd_router.errors import LegError
from pdd_router.upstream import Upstream

_log = structlog.get_logger(__name__)


class HealthChecks:
    def __init__(self, registry: Registry, upstream: Upstream, config: Health) -> None:
        self._registry = registry
        self._upstream = upstream
        self._config = config
        self._tasks: dict[EngineId, asyncio.Task[None]] = {}
        self._due: dict[EngineId, asyncio.Event] = {}
        self._accepting: set[EngineId] = set()

    async def run(self) -> None:
        """Until cancelled: one task for each engine that is listed."""
        try:
            while True:
                self._registry.listed.clear()
                self._follow_engines()
                await self._registry.listed.wait()
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _follow_engines(self) -> None:
        listed = {state.engine.id: state.engine for state in self._registry.states() if not state.gone}
        for key in self._tasks.keys() - listed.keys():
            self._tasks.pop(key).cancel()
            del self._due[key]
        for key in listed.keys() - self._tasks.keys():
            due = self._due[key] = asyncio.Event()
            self._tasks[key] = asyncio.create_task(self._check_for_ever(listed[key], due), name=f"health {key.name}")
        accepting = {state.engine.id for state in self._registry.states() if state.accepting}
        for key in accepting - self._accepting:
            self._due[key].set()  # who lists it sends requests its way: others may be told to go at this moment
        self._accepting = accepting

    async def _check_for_ever(self, engine: Engine, due: asyncio.Event) -> None:
        while True:
            due.clear()
            await self.check(engine)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(due.wait(), self._config.interval_seconds)

    async def check(self, engine: Engine) -> None:
        """Once."""
        try:
            models = await self._ask(engine)
        except LegError:
            models = None
        if models is None:
            if self._registry.mark_unhealthy(engine.id, self._config.unhealthy_after):
                self._say_lost(engine)
        elif self._registry.mark_healthy(engine.id, models):
            _log.info("Found engine healthy", engine=engine.id.name, role=engine.role, models=sorted(models))

    def _say_lost(self, engine: Engine) -> None:
        state = self._registry.find(engine.id)
        if state is not None and state.draining:  # it was told to go: nothing that anybody must look at
            _log.info("Left engine", engine=engine.id.name, role=engine.role)
        else:
            _log.warning("Lost engine", engine=engine.id.name, role=engine.role)

    async def _ask(self, engine: Engine) -> dict[str, dict[str, object]] | None:
        status, _ = await self._upstream.get(engine, "/health", self._config.timeout_seconds)
        if status != 200:
            return None
        state = self._registry.find(engine.id)
        if state is not None and state.healthy:
            return state.models
        status, raw = await self._upstream.get(engine, "/v1/models", self._config.timeout_seconds)
        return parse_models(raw) if status == 200 else None


def parse_models(raw: bytes) -> dict[str, dict[str, object]] | None:
    """OpenAI's model list by id; None where it is not one, or empty."""
    try:
        value = json.loads(raw)
    except ValueError:
        return None
    data = value.get("data") if isinstance(value, dict) else None
    cards = [card for card in data if isinstance(card, dict)] if isinstance(data, list) else []
    return {card["id"]: card for card in cards if isinstance(card.get("id"), str)} or None
