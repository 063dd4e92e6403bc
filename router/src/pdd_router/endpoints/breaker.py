"""A passive circuit breaker for one engine. Pure but for its own state; the clock is given.

Closed → Open after failures in a row, for a time that doubles with every failed probe → HalfOpen, where exactly one
request at a time is let through; its outcome decides. One that takes longer than the shortest time out (a whole answer
may take half an hour) keeps no other from trying too: the first outcome decides. Must not know other engines: whether
ejecting is allowed at all (never more than half of a role) is asked of ``may_eject``.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum


class BreakerState(StrEnum):
    CLOSED = "Closed"
    OPEN = "Open"
    HALF_OPEN = "HalfOpen"


class Breaker:
    def __init__(
        self,
        *,
        clock: Callable[[], float],
        may_eject: Callable[[], bool],
        failures: int,
        base_seconds: float,
        max_seconds: float,
    ) -> None:
        self._clock = clock
        self._may_eject = may_eject
        self._threshold = failures
        self._base = base_seconds
        self._max = max_seconds
        self._failures = 0
        self._opened = 0
        self._open_until: float | None = None
        self._probes = 0
        self._probing: dict[int, float] = {}  # number → when it began
        self.suppressed = 0

    @property
    def state(self) -> BreakerState:
        if self._open_until is None:
            return BreakerState.CLOSED
        return BreakerState.OPEN if self._clock() < self._open_until else BreakerState.HALF_OPEN

    @property
    def ejected(self) -> bool:
        """Open or being probed: counts against the share of engines that may be out."""
        return self._open_until is not None

    @property
    def admits(self) -> bool:
        state, now = self.state, self._clock()
        return state is BreakerState.CLOSED or (
            state is BreakerState.HALF_OPEN and all(now - began >= self._base for began in self._probing.values())
        )

    @property
    def open_until(self) -> float:
        """On the clock; 0 where it is closed."""
        return self._open_until or 0.0

    def begin(self) -> int | None:
        """Take the right to send one request. The number of the half-open probe that it is, None where it is none.

        Raises RuntimeError where ``admits`` is False: the caller must not send.
        """
        if not self.admits:
            raise RuntimeError("the breaker does not admit a request")
        if self.state is BreakerState.HALF_OPEN:
            self._probes += 1
            self._probing[self._probes] = self._clock()
            return self._probes
        return None

    def end(self, *, probe: int | None, success: bool | None) -> None:
        """``success`` None: the request says nothing about the engine (client went away, engine was full)."""
        if probe is not None and self._probing.pop(probe, None) is None:
            return  # the engine was given another life meanwhile, or another probe has decided
        if success is None:
            return
        if success:
            # A request that began before the engine was ejected proves nothing about it now: only the probe closes.
            if probe is not None or not self.ejected:
                self.reset()
            return
        self._failures += 1
        if probe is not None:
            self._open()
        elif not self.ejected and self._failures >= self._threshold:
            if self._may_eject():
                self._open()
            else:
                self.suppressed += 1
                self._failures = 0

    def reset(self) -> None:
        self._failures = 0
        self._opened = 0
        self._open_until = None
        self._probing.clear()

    def _open(self) -> None:
        self._probing.clear()
        self._open_until = self._clock() + min(self._max, self._base * 2.0**self._opened)
        self._opened = min(self._opened + 1, 30)
