"""Who may go in now: a bounded number at once, a bounded queue behind it, fair between tenants.

A free place goes to the waiting tenant that has the fewest requests inside, so one that floods the router waits behind
its own requests, not the others. And no tenant may have more than three of four places: answers may take half an hour.
Holds no request: only counts and futures, on one event loop.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pdd_router.errors import QueueFullError, UnavailableError
from pdd_router.tenancy import most_of

_RETRY_AFTER_SECONDS = 1


class Admission:
    def __init__(self, *, max_concurrent: int, max_queued: int, timeout_seconds: float) -> None:
        self._max_concurrent = max_concurrent
        self._max_queued = max_queued
        self._timeout = timeout_seconds
        self._inside: dict[str, int] = {}
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self.in_flight = 0
        self.queued = 0

    @asynccontextmanager
    async def place(self, tenant: str) -> AsyncIterator[None]:
        """Raises QueueFullError at once or UnavailableError after the queue's time limit."""
        # Where there is a free place, whoever waits has all that he may have.
        if self.in_flight < self._max_concurrent and self._may_enter(tenant):
            self._enter(tenant)
        else:
            await self._wait(tenant)
        try:
            yield
        finally:
            self._leave(tenant)

    async def _wait(self, tenant: str) -> None:
        self._make_room(tenant)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(future)
        self.queued += 1
        try:
            async with asyncio.timeout(self._timeout):
                await future
        except (TimeoutError, asyncio.CancelledError) as error:
            # The place may have been given in the very moment that the waiting ended: hand it on.
            if future.done() and not future.cancelled() and future.exception() is None:
                self._leave(tenant)
            if isinstance(error, TimeoutError):
                raise UnavailableError(
                    "No place became free in time", code="queue_timeout", retry_after_seconds=_RETRY_AFTER_SECONDS
                ) from None
            raise
        finally:
            self._forget(tenant, future)

    def _make_room(self, tenant: str) -> None:
        """A full queue refuses the tenant that fills it: the newcomer, or the newest of the one waiting most."""
        if self.queued < self._max_queued:
            return
        mine = len(self._waiting.get(tenant, ()))
        longest = max(self._waiting, key=lambda name: len(self._waiting[name]), default=None)
        full = QueueFullError(
            "Too many requests are waiting", code="queue_full", retry_after_seconds=_RETRY_AFTER_SECONDS
        )
        if longest is None or len(self._waiting[longest]) <= mine + 1:
            raise full
        victim = self._waiting[longest][-1]
        self._forget(longest, victim)
        if not victim.done():  # else it has left in this very moment
            victim.set_exception(full)

    def _forget(self, tenant: str, future: asyncio.Future[None]) -> None:
        queue = self._waiting.get(tenant)
        if queue is None or future not in queue:
            return
        queue.remove(future)
        self.queued -= 1
        if not queue:
            del self._waiting[tenant]

    def _may_enter(self, tenant: str) -> bool:
        return self._inside.get(tenant, 0) < most_of(self._max_concurrent, tenant)

    def _enter(self, tenant: str) -> None:
        self.in_flight += 1
        self._inside[tenant] = self._inside.get(tenant, 0) + 1

    def _leave(self, tenant: str) -> None:
        self.in_flight -= 1
        self._inside[tenant] -= 1
        if not self._inside[tenant]:
            del self._inside[tenant]
        while self.in_flight < self._max_concurrent and (waiting := [*filter(self._may_enter, self._waiting)]):
            # Of tenants with equally few inside, the one whose turn was longest ago (they rotate).
            following = min(waiting, key=lambda name: self._inside.get(name, 0))
            future = self._waiting[following][0]
            self._waiting.move_to_end(following)
            self._forget(following, future)
            if not future.done():
                self._enter(following)
                future.set_result(None)
