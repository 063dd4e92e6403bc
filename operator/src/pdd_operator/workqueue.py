"""Which object is reconciled next: keyed, coalescing, at most one flight per key, with backoff and a cap on API calls per key.

``WorkQueue`` decides and has no thread, no task and no clock of its own; ``serve`` is the asyncio shell around it. Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pdd_operator.api.names import NamespacedName

_NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Pace:
    """``calls_per_second``: what a key may cost on average; ``burst_calls``: what it may cost at once before the average counts.

    ``backoff_seconds`` doubles with every failure in a row up to ``max_backoff_seconds``, with up to ``jitter`` of it added.
    """

    calls_per_second: float = 10.0
    burst_calls: float = 60.0
    backoff_seconds: float = 0.25
    max_backoff_seconds: float = 20.0
    jitter: float = 0.3


@dataclass(frozen=True, slots=True)
class Done:
    """``calls``: API calls that it took. ``again_seconds``: look again then, whatever happens until then; None: when something changes.

    ``gone``: the object is no more, nothing of it is remembered.
    """

    calls: int = 0
    again_seconds: float | None = None
    gone: bool = False


@dataclass(frozen=True, slots=True)
class Retry:
    """It failed. Not again before the backoff and ``at_least_seconds`` (the server's Retry-After) are over, whatever happens until then.

    ``progressed``: something was done before it failed, so the backoff begins anew.
    """

    calls: int = 0
    at_least_seconds: float = 0.0
    progressed: bool = False


@dataclass(slots=True)
class _Key:
    due: float = _NEVER
    """When somebody wants it to be looked at."""
    not_before: float = 0.0
    in_flight: bool = False
    started: float = 0.0
    failures: int = 0
    balance: float = 0.0
    balance_at: float = 0.0

    @property
    def ready_at(self) -> float:
        return _NEVER if self.due == _NEVER else max(self.due, self.not_before)


class WorkQueue:
    """``clock``: monotonic seconds; ``random``: 0 to 1; ``on_add``: called when something may have become due earlier."""

    def __init__(
        self,
        clock: Callable[[], float],
        random: Callable[[], float],
        pace: Pace | None = None,
        on_add: Callable[[], None] = lambda: None,
    ) -> None:
        self._clock = clock
        self._random = random
        self._pace = pace or Pace()
        self._on_add = on_add
        self._keys: dict[NamespacedName, _Key] = {}

    def add(self, key: NamespacedName, after_seconds: float = 0.0) -> None:
        """It should be looked at. Many of these before it is make one look; one during a look makes one more."""
        now = self._clock()
        entry = self._keys.get(key)
        if entry is None:
            entry = self._keys[key] = _Key(balance=self._pace.burst_calls, balance_at=now)
        entry.due = min(entry.due, now + after_seconds)
        self._on_add()

    def take(self) -> NamespacedName | None:
        """The key that has waited longest among those that may run now; it is in flight until ``done``."""
        now = self._clock()
        ready = [(entry.ready_at, key) for key, entry in self._keys.items() if not entry.in_flight]
        at, chosen = min(ready, default=(_NEVER, None))
        if chosen is None or at > now:
            return None
        entry = self._keys[chosen]
        entry.due, entry.in_flight, entry.started = _NEVER, True, now
        return chosen

    def done(self, key: NamespacedName, result: Done | Retry) -> None:
        now = self._clock()
        entry = self._keys[key]
        entry.in_flight = False
        not_before = now + self._pay(entry, result.calls, now)
        if isinstance(result, Retry):
            entry.failures = 1 if result.progressed else entry.failures + 1
            not_before = max(not_before, now + max(self._backoff(entry.failures), result.at_least_seconds))
            entry.due = min(entry.due, now)
        else:
            entry.failures = 0
            if result.again_seconds is not None:
                entry.due = min(entry.due, now + result.again_seconds)
            if result.gone and entry.due == _NEVER:
                del self._keys[key]
        entry.not_before = not_before
        self._on_add()

    def seconds_to_next(self) -> float | None:
        """Until ``take`` may return something; None while nothing waits."""
        at = min((entry.ready_at for entry in self._keys.values() if not entry.in_flight), default=_NEVER)
        return None if at == _NEVER else max(0.0, at - self._clock())

    @property
    def keys(self) -> tuple[NamespacedName, ...]:
        return tuple(self._keys)

    @property
    def depth(self) -> int:
        """Keys that may run now and do not."""
        now = self._clock()
        return sum(not entry.in_flight and entry.ready_at <= now for entry in self._keys.values())

    @property
    def oldest_seconds(self) -> float:
        """How long the worst key has waited since it might have run, or has been in flight."""
        now = self._clock()
        since = [entry.started if entry.in_flight else entry.ready_at for entry in self._keys.values()]
        return max((now - at for at in since if at <= now), default=0.0)

    def _pay(self, entry: _Key, calls: int, now: float) -> float:
        """Seconds until the key's balance of calls is no longer negative."""
        pace = self._pace
        entry.balance = min(pace.burst_calls, entry.balance + (now - entry.balance_at) * pace.calls_per_second) - float(
            calls
        )
        entry.balance_at = now
        return max(0.0, -entry.balance / pace.calls_per_second)

    def _backoff(self, failures: int) -> float:
        pace = self._pace
        seconds = min(pace.max_backoff_seconds, pace.backoff_seconds * 2.0 ** min(failures - 1, 30))
        return seconds * (1 + pace.jitter * self._random())


async def serve(
    queue: WorkQueue,
    wake: asyncio.Event,
    work: Callable[[NamespacedName], Awaitable[Done | Retry]],
    workers: int,
) -> None:
    """Runs ``work`` for what is due, ``workers`` at a time, until cancelled. ``wake`` must be set by the queue's ``on_add``.

    ``work`` must not raise: what it raises ends ``serve``. When cancelled, waits for what is in flight.
    """
    slots = asyncio.Semaphore(workers)

    async def run(key: NamespacedName) -> None:
        try:
            queue.done(key, await work(key))
        finally:
            slots.release()

    async with asyncio.TaskGroup() as flights:
        while True:
            await slots.acquire()
            flights.create_task(run(await _next_key(queue, wake)))


async def _next_key(queue: WorkQueue, wake: asyncio.Event) -> NamespacedName:
    while True:
        wake.clear()
        key = queue.take()
        if key is not None:
            return key
        try:
            async with asyncio.timeout(queue.seconds_to_next()):
                await wake.wait()
        except TimeoutError:
            continue
