"""Which engines served which prefix, per tenant: a bounded, ageing index on one event loop. The clock is given.

Every entry is a hint. A wrong one costs a question to an engine that answers "nothing"; no answer depends on it, except
that a retained handle is taken from here at most once (``Handle.take``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from pdd_router.endpoints.engine import Living
from pdd_router.policy.chain import Chain, Link
from pdd_router.policy.shelves import Shelves


class Handle:
    """Decode's retained blocks (mechanism Retain): good for one request, on no account for two."""

    __slots__ = ("_expires", "_params", "holder")

    def __init__(self, params: dict[str, object], holder: Living, expires: float) -> None:
        self._params: dict[str, object] | None = params
        self._expires = expires
        self.holder = holder

    @property
    def taken(self) -> bool:
        return self._params is None

    def take(self, now: float) -> dict[str, object] | None:
        """The object, the first time and before it expires; None ever after."""
        params, self._params = self._params, None
        return params if now < self._expires else None


@dataclass(slots=True)
class Served:
    """One turn: what served it and what it left behind. ``prefills``: those that served this conversation, the latest
    first. ``generated_chars``: size of decode's answer, known when it has ended. ``end``: the last link of its prompt."""

    decode: Living
    prefills: tuple[Living, ...]
    at: float
    chars: int
    generated_chars: int = 0
    handle: Handle | None = None
    end: bytes = b""


@dataclass(frozen=True, slots=True)
class Match:
    """What is known of a request's prompt. ``held_chars``: size of the part that ``turns[0].decode`` should hold.
    ``is_conversation``: a turn of this very conversation was seen, not only the same preamble. ``turns``: what served
    its prefixes, the longest first. ``continued``: those of them that this one goes on from, the only ones whose handles it
    may use. What only shares a beginning with a turn, be it a preamble or a fork's first turns, would take from that
    turn's own next one what holds all of it.
    """

    held_chars: int
    is_conversation: bool
    turns: tuple[Served, ...]
    continued: tuple[Served, ...]

    @property
    def holder(self) -> Living | None:
        return self.turns[0].decode if self.turns else None

    @property
    def prefills(self) -> tuple[Living, ...]:
        """Prefill engines that served any of it, the likeliest first."""
        return tuple(dict.fromkeys(living for served in self.turns for living in served.prefills))[:_MAX_PREFILLS]

    @property
    def handle(self) -> Handle | None:
        """A retained handle that nobody has taken yet, of the latest turn before this one that has one."""
        handles = (served.handle for served in self.continued)
        return next((handle for handle in handles if handle is not None and not handle.taken), None)

    @property
    def known(self) -> tuple[Living, ...]:
        """Every life that may hold some of it, the likeliest first."""
        return tuple(dict.fromkeys([*(served.decode for served in self.turns), *self.prefills]))


_MAX_PREFILLS = 4
_LAST_LINKS = 64


class Conversations:
    """``max_entries`` links in all and as many explicit ids; of whoever has most, the least recently used is forgotten."""

    def __init__(self, *, clock: Callable[[], float], ttl_seconds: float, max_entries: int) -> None:
        self._clock = clock
        self._ttl = ttl_seconds
        self._links: Shelves[bytes, Served] = Shelves(max_entries)
        self._ids: Shelves[str, Served] = Shelves(max_entries)

    def __len__(self) -> int:
        return len(self._links) + len(self._ids)

    def find(self, tenant: str, conversation_id: str | None, chain: Chain) -> Match:
        """By id first (that is what an id is for), then by the longest known prefix; both tell engines to ask."""
        known_by_id = self._fresh_id(tenant, conversation_id)
        named = [known_by_id] if known_by_id is not None else []
        along = self._along(tenant, chain)
        held, is_turn = 0, False
        if along:
            at, served = along[0]
            # Whoever is asked by the id need not be the one who holds the prefix.
            if known_by_id is None or known_by_id.decode == served.decode:
                held = _held_chars(chain, at, served)
            is_turn = chain.links[at].is_turn
        turns = _distinct([*named, *(served for _, served in along)])
        # Several may go by one id: whoever's whole prompt is here is more surely the turn before.
        continued = _distinct([*(served for at, served in along if served.end == chain.links[at].digest), *named])
        return Match(held, known_by_id is not None or is_turn, turns, continued)

    def remember(self, tenant: str, conversation_id: str | None, chain: Chain, served: Served) -> None:
        """Decode has begun to answer: it holds the prompt now."""
        # Those of which nobody will hear again, with their handles.
        self._links.forget(tenant, self._is_old)
        self._ids.forget(tenant, self._is_old)
        if chain.links:
            served.end = chain.links[-1].digest
        for link in _worth_keeping(chain.links):
            self._links.put(tenant, link.digest, served)
        if conversation_id is not None:
            self._ids.put(tenant, conversation_id, served)

    def take_handle(self, match: Match, living: Collection[Living]) -> dict[str, object] | None:
        """The retained handle of the turn before, if its holder still lives; nobody gets it again."""
        for served in match.continued:
            handle = served.handle
            if handle is None or handle.taken or handle.holder not in living:
                continue
            params = handle.take(self._clock())
            if params is not None:
                return params
        return None

    def _fresh_id(self, tenant: str, conversation_id: str | None) -> Served | None:
        served = self._ids.get(tenant, conversation_id) if conversation_id is not None else None
        return served if served is not None and not self._is_old(served) else None

    def _along(self, tenant: str, chain: Chain) -> list[tuple[int, Served]]:
        """Places of known links, the last first."""
        found = ((at, self._links.get(tenant, chain.links[at].digest)) for at in reversed(range(len(chain.links))))
        return [(at, served) for at, served in found if served is not None and not self._is_old(served)]

    def _is_old(self, served: Served) -> bool:
        return self._clock() - served.at >= self._ttl


def _worth_keeping(links: tuple[Link, ...]) -> Iterator[Link]:
    """The last ones, and before them ever fewer, at the same places in every prompt: of one that was edited long before its
    end, or shares only a long preamble, four fifths of the equal links are found at least. One request shall not fill the
    index: 4,096 messages are about a hundred links."""
    for place, link in enumerate(links, start=1):
        # Four places between one power of two and the next.
        if place > len(links) - _LAST_LINKS or place % (1 << max(place.bit_length() - 3, 0)) == 0:
            yield link


def _held_chars(chain: Chain, at: int, served: Served) -> int:
    """The known prefix and, where the model's own answer follows it, as much of that as it generated."""
    held = chain.links[at].chars
    following = chain.links[at + 1] if at + 1 < len(chain.links) else None
    if following is not None and following.by_assistant and served.chars == held:
        held += min(served.generated_chars, following.chars - held)
    return held


def _distinct(turns: list[Served]) -> tuple[Served, ...]:
    seen: dict[int, Served] = {}
    for served in turns:
        seen.setdefault(id(served), served)
    return tuple(seen.values())
