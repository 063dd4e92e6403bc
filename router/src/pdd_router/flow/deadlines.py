"""Time limits of requests, on the loop's clock, that all end early where the router stops."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pdd_router.errors import DeadlineExceededError, RouterError, UnavailableError

_RETRY_AFTER_SECONDS = 1


class Deadlines:
    def __init__(self) -> None:
        self._stop = math.inf
        self._running: set[asyncio.Timeout] = set()

    def stop_at(self, when: float) -> None:
        """No request goes on beyond it."""
        self._stop = when
        for timeout in self._running:
            if not timeout.expired():
                timeout.reschedule(min(when, timeout.when() or when))

    @asynccontextmanager
    async def until(self, deadline: float) -> AsyncIterator[None]:
        """Raises TimeoutError."""
        async with asyncio.timeout_at(min(deadline, self._stop)) as timeout:
            self._running.add(timeout)
            try:
                yield
            finally:
                self._running.discard(timeout)

    def seconds_left(self, deadline: float) -> float:
        return min(deadline, self._stop) - asyncio.get_running_loop().time()

    def error(self, deadline: float) -> RouterError:
        """What the client is told where none are left."""
        if asyncio.get_running_loop().time() >= deadline:
            return DeadlineExceededError("The request took too long", code="deadline_exceeded")
        return UnavailableError(
            "The router is stopping", code="router_stopping", retry_after_seconds=_RETRY_AFTER_SECONDS
        )
