"""The event loop's side of discovery: takes what the watching thread reports, gives listings to the registry, counts.

A listing stays in force until the next one: that the API server is away takes nothing from the engines, whose health
checks go on. All state here is touched on the event loop alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Protocol

import structlog

from pdd_router.endpoints.registry import Registry
from pdd_router.metrics import DiscoveryMetrics
from pdd_router.pods.reading import NotListed, Ports
from pdd_router.pods.table import Listing, PodTable
from pdd_router.pods.watching import Failed, Heard, Pace, PodApi, PodWatch, Report, Trouble

_log = structlog.get_logger(__name__)
_EVENT_KINDS = frozenset({"ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"})
_JOIN_SECONDS = 2.0
_LOST = "Lost the API server; keeps the engines it knows"
_REFUSED = "The API server refuses to tell of pods, which its Role must allow; keeps the engines it knows"


class InterruptiblePodApi(PodApi, Protocol):
    def interrupt(self) -> None: ...

    def close(self) -> None: ...


class Discovery:
    """``listed``: the engines are known, be there any or none."""

    def __init__(self, registry: Registry, metrics: DiscoveryMetrics, clock: Callable[[], float]) -> None:
        self.listed = False
        self._registry = registry
        self._metrics = metrics
        self._clock = clock
        self._heard_at: float | None = None
        self._connected: bool | None = None
        self._complaint = ""
        self._faults: Mapping[str, NotListed] = {}

    @asynccontextmanager
    async def following(self, api: InterruptiblePodApi, ports: Ports, pace: Pace) -> AsyncIterator[None]:
        """Watch in a thread while inside; what was learned stays in the registry afterwards."""
        loop, stop = asyncio.get_running_loop(), threading.Event()

        def report(what: Report) -> None:
            with contextlib.suppress(
                RuntimeError
            ):  # the loop has ended before a thread that could not be stopped in time
                loop.call_soon_threadsafe(self.take, what)

        watch = PodWatch(
            api,
            PodTable(ports),
            pace=pace,
            report=report,
            stop=stop,
            clock=self._clock,
            chance=random.Random(),  # noqa: S311  # spreads retries, guards nothing
        )
        # A daemon: a request that never returns must not keep the process from ending.
        thread = threading.Thread(target=watch.run, name="discovery", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            api.interrupt()
            await asyncio.to_thread(thread.join, _JOIN_SECONDS)
            api.close()

    def take(self, report: Report) -> None:
        if isinstance(report, Heard):
            self._hear(report)
        elif isinstance(report, Failed):
            self._fail(report)
        else:
            self._apply(report)

    def refresh_gauges(self) -> None:
        self._metrics.age.set(math.inf if self._heard_at is None else self._clock() - self._heard_at)

    def _hear(self, heard: Heard) -> None:
        self._heard_at = self._clock()
        if heard.kind is not None:
            self._metrics.events.labels(heard.kind if heard.kind in _EVENT_KINDS else "Other").inc()
        if not self._connected:
            self._connected = True
            self._metrics.connected.set(1)
            _log.info("Hears the API server")

    def _fail(self, failed: Failed) -> None:
        self._metrics.errors.labels(failed.trouble).inc()
        if failed.trouble is Trouble.GONE:
            return  # it answered, and says to list again: the course of things after a quiet time
        complaint = _REFUSED if failed.trouble is Trouble.REFUSED else _LOST
        if self._connected is False and complaint == self._complaint:
            return
        self._connected, self._complaint = False, complaint
        self._metrics.connected.set(0)
        _log.warning(
            complaint, verb=failed.verb, reason=failed.trouble, retry_in_seconds=round(failed.retry_in_seconds, 2)
        )

    def _apply(self, listing: Listing) -> None:
        self.listed = True
        self._registry.follow(listing.engines)
        for name, reason in listing.faults.items() - self._faults.items():
            _log.warning("Ignored pod", pod=name, reason=reason)
        self._faults = listing.faults
        faults = list(listing.faults.values())
        for reason in NotListed:
            if reason.is_fault:
                self._metrics.ignored_pods.labels(reason).set(faults.count(reason))
