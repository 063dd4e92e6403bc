"""What an engine is: identity, address, and one moment's view of it. Pure.

An engine is the same one only while name, URL and incarnation are; a replaced engine has none of the KV that the old
one had, so whatever was remembered of the old one must not be applied to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    PREFILL = "Prefill"
    DECODE = "Decode"


@dataclass(frozen=True, slots=True)
class ClaimAddress:
    host: str
    port: int


@dataclass(frozen=True, slots=True, order=True)
class EngineId:
    name: str
    url: str
    incarnation: str = ""


@dataclass(frozen=True, slots=True)
class Engine:
    """One line of the engines file, or one pod. ``claim`` is None for an engine that cannot be claimed from."""

    id: EngineId
    role: Role
    group: str
    claim: ClaimAddress | None


class Standing(StrEnum):
    """What whoever lists an engine says of it. Only a serving one gets requests; what runs on the others goes on, and
    they may be claimed from while they live."""

    SERVING = "Serving"
    NOT_READY = "NotReady"
    DRAINING = "Draining"


@dataclass(frozen=True, slots=True)
class Listed:
    engine: Engine
    standing: Standing = Standing.SERVING


@dataclass(frozen=True, slots=True)
class Living:
    """An engine's life: ``epoch`` grows each time the router sees it go away. Same Living, same process (as far as
    the router can tell), hence possibly the same KV."""

    id: EngineId
    epoch: int


@dataclass(frozen=True, slots=True)
class EngineView:
    """A snapshot of one engine for the decision functions.

    ``in_flight``: requests now on it from this router. ``expected``: those that will come to it once they are prefilled.
    ``in_flight_tokens``: estimated prompt tokens of both.
    ``available``: healthy, not ejected, listed as serving; may be given traffic now. ``last_used``: number of the use
    that began last (0: never), so that equals take turns.
    """

    engine: Engine
    epoch: int
    available: bool
    in_flight: int = 0
    expected: int = 0
    in_flight_tokens: int = 0
    last_used: int = 0

    @property
    def load(self) -> int:
        """Requests that it has or will have."""
        return self.in_flight + self.expected

    @property
    def id(self) -> EngineId:
        return self.engine.id

    @property
    def living(self) -> Living:
        return Living(self.engine.id, self.epoch)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All engines that serve one model. ``introduced``: (reader, owner) pairs that are connected."""

    engines: tuple[EngineView, ...]
    introduced: frozenset[tuple[Living, Living]] = frozenset()

    def find(self, living: Living | None) -> EngineView | None:
        """The engine if it still lives that life, else None."""
        return next((view for view in self.engines if view.living == living), None)

    def by_role(self, role: Role) -> tuple[EngineView, ...]:
        return tuple(view for view in self.engines if view.engine.role is role)
