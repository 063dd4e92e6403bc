"""All engines the router knows, with their health, load and breakers: mutable, on one event loop, no I/O.

Everything that decides gets an immutable ``Snapshot`` from here; everything that uses an engine holds a ``use`` of it,
so that no count can leak.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from pdd_router.config import Breaker as BreakerConfig
from pdd_router.config import Direction
from pdd_router.config import Introductions as IntroductionsConfig
from pdd_router.endpoints.breaker import Breaker
from pdd_router.endpoints.engine import (
    ClaimAddress,
    Engine,
    EngineId,
    EngineView,
    Listed,
    Living,
    Role,
    Snapshot,
    Standing,
)
from pdd_router.endpoints.introductions import Introductions
from pdd_router.endpoints.waiting import Waiting

_NEWS_SECONDS = 0.5
_COMING_SECONDS = 3.0
"""How long after it was first listed as serving an engine may still be met: a check of its health, and a bit."""


class NotAdmittedError(Exception):
    """The engine is gone, or its breaker lets nothing through at this moment."""


@dataclass(slots=True)
class EngineState:
    engine: Engine
    breaker: Breaker
    epoch: int = 0
    healthy: bool = False
    met: bool = False  # it was healthy once
    serving_since: float = 0.0  # on the clock
    failed_checks: int = 0
    standing: Standing = Standing.SERVING
    gone: bool = False  # not listed any more: forgotten when its last request has ended
    in_flight: int = 0
    expected: int = 0
    in_flight_tokens: int = 0
    last_used: int = 0
    answered_at: float = 0.0  # on the clock: when it last gave anything of any answer
    models: dict[str, dict[str, object]] = field(default_factory=dict)

    @property
    def accepting(self) -> bool:
        """May get new requests, as far as whoever lists it goes."""
        return self.standing is Standing.SERVING and not self.gone

    @property
    def draining(self) -> bool:
        return self.standing is Standing.DRAINING or self.gone

    def view(self) -> EngineView:
        return EngineView(
            engine=self.engine,
            epoch=self.epoch,
            available=self.healthy and self.accepting and self.breaker.admits,
            in_flight=self.in_flight,
            expected=self.expected,
            in_flight_tokens=self.in_flight_tokens,
            last_used=self.last_used,
        )


@dataclass(slots=True)
class Use:
    """One request on one engine. Set ``success`` before leaving; None says nothing about the engine."""

    state: EngineState
    clock: Callable[[], float]
    began: float
    probe: int | None
    success: bool | None = None

    def answers(self) -> None:
        """Something of an answer is there: the engine is at work, and a probe is over, however long the answer will be."""
        self.state.answered_at = self.clock()
        if self.probe is not None:
            self.state.breaker.end(probe=self.probe, success=True)
            self.probe = None

    @property
    def silent_seconds(self) -> float:
        """How long it has waited for an engine that has answered nobody meanwhile; else 0."""
        return self.clock() - self.began if self.state.answered_at < self.began else 0.0


class Registry:
    def __init__(
        self,
        *,
        clock: Callable[[], float],
        breaker: BreakerConfig,
        introductions: IntroductionsConfig,
        direction: Direction,
    ) -> None:
        self._clock = clock
        self._breaker_config = breaker
        self._states: dict[EngineId, EngineState] = {}
        self._next_epoch = 0
        self._uses = 0
        self.changed = asyncio.Event()  # lives or introductions changed
        self.listed = asyncio.Event()  # the list of engines changed
        self._news = asyncio.Event()  # another one each time that `changed` is set
        self.waiting = Waiting()  # for a decode engine that is not full
        self.introductions = Introductions(
            direction=direction,
            retry_base_seconds=introductions.retry_base_seconds,
            retry_max_seconds=introductions.retry_max_seconds,
        )

    # ---- what there is ----

    def replace(self, engines: Iterable[Engine]) -> None:
        """Follow the engines file: new ones wait for their first health check, missing ones finish what they have."""
        self.follow(Listed(engine) for engine in engines)

    def follow(self, listing: Iterable[Listed]) -> None:
        """All engines that there are now, each with its standing; the others are gone."""
        listed = {item.engine.id: item for item in listing}
        for key, item in listed.items():
            state = self._states.get(key)
            if state is None or state.engine != item.engine:
                state = self._states[key] = self._new_state(item.engine)
            if item.standing is Standing.SERVING and not state.accepting:
                state.serving_since = self._clock()
            state.standing = item.standing
            state.gone = False
        for key, state in list(self._states.items()):
            if key not in listed:
                state.gone = True
                if not state.in_flight:
                    del self._states[key]
        self.listed.set()
        self._settle()

    def _new_state(self, engine: Engine) -> EngineState:
        self._next_epoch += 1
        breaker = Breaker(
            clock=self._clock,
            may_eject=lambda: self._may_eject(engine.role),
            failures=self._breaker_config.failures,
            base_seconds=self._breaker_config.base_seconds,
            max_seconds=self._breaker_config.max_seconds,
        )
        return EngineState(engine=engine, breaker=breaker, epoch=self._next_epoch, gone=True)

    def _may_eject(self, role: Role) -> bool:
        peers = self._peers(role)
        out = sum(state.breaker.ejected for state in peers)
        return (out + 1) * 2 <= len(peers)

    def _peers(self, role: Role) -> list[EngineState]:
        """Of which half may be out: those that could serve."""
        states = self._states.values()
        return [state for state in states if state.engine.role is role and state.accepting and state.healthy]

    def _readmit(self) -> None:
        """Where peers go, or come back ejected, more than half of a role would be out: those that are out for the shortest come back."""
        for role in Role:
            peers = self._peers(role)
            ejected = sorted((one for one in peers if one.breaker.ejected), key=lambda one: one.breaker.open_until)
            for state in ejected[: max(0, len(ejected) - len(peers) // 2)]:
                state.breaker.reset()

    def states(self) -> tuple[EngineState, ...]:
        return tuple(self._states.values())

    def find(self, key: EngineId) -> EngineState | None:
        return self._states.get(key)

    def find_claim(self, address: ClaimAddress) -> EngineState | None:
        """Whose claim channel this is; the living one where an engine has replaced another at the same address."""
        found = [state for state in self._states.values() if state.engine.claim == address]
        return min(found, key=lambda state: (state.gone, not state.accepting, -state.epoch), default=None)

    def snapshot(self, model: str | None = None) -> Snapshot:
        """Engines that serve ``model`` (all of them with None), as they are now."""
        return Snapshot(
            engines=tuple(state.view() for state in self._states.values() if model is None or model in state.models),
            introduced=frozenset(self.introductions.introduced),
        )

    def is_coming(self, role: Role) -> bool:
        """Whether an engine has just been listed as serving and its health is not known yet: it will take requests in a moment."""
        now = self._clock()
        return any(
            state.engine.role is role
            and state.accepting
            and not state.met
            and now - state.serving_since < _COMING_SECONDS
            for state in self._states.values()
        )

    async def news(self) -> None:
        """Until the life of some engine has changed, or for a moment: for whoever waits for one that is coming."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), _NEWS_SECONDS)

    def models(self) -> dict[str, dict[str, object]]:
        """What can be asked for: models of decode engines that take requests, as the engines describe them."""
        found: dict[str, dict[str, object]] = {}
        for state in self._states.values():
            if state.engine.role is Role.DECODE and state.accepting and state.healthy:
                found.update(state.models)
        return found

    # ---- how it is ----

    def mark_healthy(self, key: EngineId, models: dict[str, dict[str, object]]) -> bool:
        """True where this is news."""
        state = self._states.get(key)
        if state is None:
            return False
        news = not state.healthy
        state.failed_checks = 0
        state.models = models
        state.healthy = state.met = True
        if news:
            self._settle()
        return news

    def mark_unhealthy(self, key: EngineId, unhealthy_after: int) -> bool:
        """One failed check; ``unhealthy_after`` in a row end this life of the engine. True where that is news."""
        state = self._states.get(key)
        if state is None:
            return False
        state.failed_checks += 1
        if not state.healthy or state.failed_checks < unhealthy_after:
            return False
        state.healthy = False
        self._next_epoch += 1
        state.epoch = self._next_epoch
        state.breaker.reset()
        self._settle()
        return True

    def forget_introduction(self, reader: Living, owner: Living) -> None:
        self.introductions.forget_pair(reader, owner)
        self.changed.set()

    def _settle(self) -> None:
        self._readmit()
        self.introductions.keep_only(state.view().living for state in self._states.values())
        self.changed.set()
        self._news.set()
        self._news = asyncio.Event()
        self.waiting.call_all()

    # ---- who uses it ----

    @contextmanager
    def use(self, key: EngineId, tokens: int) -> Iterator[Use]:
        """Count one request on an engine and let its breaker learn from it. Raises NotAdmittedError."""
        state = self._states.get(key)
        if state is None or not state.breaker.admits:
            raise NotAdmittedError
        use = Use(state, self._clock, self._clock(), state.breaker.begin())
        self._uses += 1
        state.last_used = self._uses
        state.in_flight += 1
        state.in_flight_tokens += tokens
        try:
            yield use
        finally:
            state.in_flight -= 1
            state.in_flight_tokens -= tokens
            state.breaker.end(probe=use.probe, success=use.success)
            if state.engine.role is Role.DECODE:
                self.waiting.call_next()
            if state.gone and not state.in_flight and self._states.get(key) is state:
                del self._states[key]
                self._settle()

    @contextmanager
    def expecting(self, key: EngineId, tokens: int) -> Iterator[None]:
        """Count one request that will come to an engine, so that not all that are prefilled at the same time go to the same one."""
        state = self._states.get(key)
        if state is None:
            yield
            return
        state.expected += 1
        state.in_flight_tokens += tokens
        try:
            yield
        finally:
            state.expected -= 1
            state.in_flight_tokens -= tokens
            # Who was called may have ended before decode. If it has not, it is counted before the next one decides.
            self.waiting.call_next()
