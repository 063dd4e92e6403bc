"""Which engines must be introduced to which, and which pairs are. Pure bookkeeping; ``introducer`` does the sending.

The first contact of two engines costs seconds, so an owner is named to a reader only after both are connected
(docs/protocol.md, section 1). A pair is of two lives: when either engine goes away, the pair is forgotten.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from pdd_router.config import Direction
from pdd_router.endpoints.engine import EngineView, Living, Role

MAX_OWNERS = 8  # of one message, as the protocol says

Pair = tuple[Living, Living]


@dataclass(slots=True)
class _Backoff:
    attempts: int = 0
    not_before: float = 0.0


@dataclass(slots=True)
class Introductions:
    """``introduced``: connected (reader, owner) pairs; what a snapshot shows to the decision functions."""

    direction: Direction
    retry_base_seconds: float
    retry_max_seconds: float
    introduced: set[Pair] = field(default_factory=set)
    _backoff: dict[Pair, _Backoff] = field(default_factory=dict)

    def wanted(self, views: Iterable[EngineView]) -> set[Pair]:
        """All pairs that traffic may need, among engines that are available and can be claimed from."""
        able = [view for view in views if view.available and view.engine.claim is not None]
        return {
            (reader.living, owner.living)
            for reader in able
            for owner in able
            if reader.id != owner.id and reader.engine.group == owner.engine.group and self._needed(reader, owner)
        }

    def _needed(self, reader: EngineView, owner: EngineView) -> bool:
        if self.direction is Direction.BIDIRECTIONAL:
            return True
        return reader.engine.role is Role.DECODE and owner.engine.role is Role.PREFILL

    def due(self, views: Iterable[EngineView], now: float) -> dict[Living, list[Living]]:
        """Owners to introduce to each reader now, at most MAX_OWNERS a reader."""
        batches: dict[Living, list[Living]] = {}
        for pair in sorted(self.wanted(views) - self.introduced, key=lambda pair: (pair[0].id, pair[1].id)):
            backoff = self._backoff.get(pair)
            if backoff is None or backoff.not_before <= now:
                owners = batches.setdefault(pair[0], [])
                if len(owners) < MAX_OWNERS:
                    owners.append(pair[1])
        return batches

    def next_due(self, views: Iterable[EngineView], busy: Container[Living]) -> float | None:
        """When the next pair that is backing off becomes due, but for readers being introduced; None where nothing is."""
        missing = self.wanted(views) - self.introduced
        times = (self._backoff[pair].not_before for pair in missing if pair in self._backoff and pair[0] not in busy)
        return min(times, default=None)

    def record(self, reader: Living, asked: Iterable[Living], connected: Iterable[Living], now: float) -> None:
        """The answer to one introduction; what is not in ``connected`` is tried again, later each time."""
        found = set(connected)
        for owner in asked:
            pair = (reader, owner)
            if owner in found:
                self.introduced.add(pair)
                self._backoff.pop(pair, None)
            else:
                backoff = self._backoff.setdefault(pair, _Backoff())
                delay = min(self.retry_max_seconds, self.retry_base_seconds * 2.0 ** min(backoff.attempts, 30))
                backoff.attempts += 1
                backoff.not_before = now + delay

    def forget_pair(self, reader: Living, owner: Living) -> None:
        """The reader said that it is not connected: introduce again."""
        self.introduced.discard((reader, owner))

    def keep_only(self, living: Iterable[Living]) -> None:
        """Drop what was known about any life that is over."""
        alive = set(living)
        self.introduced = {pair for pair in self.introduced if alive.issuperset(pair)}
        self._backoff = {pair: value for pair, value in self._backoff.items() if alive.issuperset(pair)}
