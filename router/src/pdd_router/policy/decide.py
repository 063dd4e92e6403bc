"""Which engines serve a turn and how: a pure function of a snapshot. No clock, no I/O, no chance.

Decode is chosen first, because that is where a conversation lives; prefill is optional and only ever from decode's own
revision group. Everything a failed attempt has taught comes in as ``Attempt``, so that trying again is deciding again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from pdd_router.config import Direction, Mechanism, OnPrefillFailure
from pdd_router.endpoints.engine import EngineId, EngineView, Living, Role, Snapshot

# Reading a held token costs about this share of computing it (proof.md: a warm turn against one computed afresh).
_READ_COST = 0.1


class Arm(StrEnum):
    PREFILL_DECODE = "PrefillDecode"
    DECODE_ONLY = "DecodeOnly"


class Why(StrEnum):
    """Why that arm; a metric label."""

    SPLIT = "Split"
    HELD = "Held"  # decode holds nearly all of it
    SHORT = "Short"  # shorter than what is worth reading
    UNSPLITTABLE = "Unsplittable"  # prompt log-probabilities, beams; several sequences with a single-use handle
    NO_PREFILL = "NoPrefill"  # no prefill engine to be had in decode's group
    NOT_INTRODUCED = "NotIntroduced"  # decode could not read from any of them yet
    PREFILL_FAILED = "PrefillFailed"


class RefusalReason(StrEnum):
    NO_DECODE = "NoDecode"
    DECODE_FULL = "DecodeFull"  # there is one, and in a while it will have a place
    NO_PREFILL = "NoPrefill"
    PREFILL_FAILED = "PrefillFailed"


@dataclass(frozen=True, slots=True)
class Policy:
    mechanism: Mechanism
    direction: Direction
    on_prefill_failure: OnPrefillFailure
    recompute_threshold_tokens: int
    run_on_decode_below_tokens: int
    max_owners: int
    sticky_slack: int
    max_concurrent_per_engine: int


@dataclass(frozen=True, slots=True)
class TurnFacts:
    """``total_tokens``/``held_tokens``: estimates. ``holder``: decode engine of this conversation's last turn.
    ``known``: lives that served a prefix of the prompt, the likeliest first. ``splittable``: may be served in two legs."""

    total_tokens: int
    held_tokens: int
    is_conversation: bool
    holder: Living | None
    known: tuple[Living, ...]
    splittable: bool = True

    @property
    def new_tokens(self) -> int:
        return max(0, self.total_tokens - self.held_tokens)


@dataclass(frozen=True, slots=True)
class Attempt:
    """What this request has tried already. ``prefilled``: an engine that has computed the prompt for this turn."""

    excluded: frozenset[EngineId] = frozenset()
    prefill_failed: bool = False
    give_up_prefill: bool = False
    prefilled: Living | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """``*_owners``: engines that the leg is told to ask first, the likeliest first."""

    arm: Arm
    why: Why
    decode: EngineView
    prefill: EngineView | None = None
    prefill_owners: tuple[EngineView, ...] = ()
    decode_owners: tuple[EngineView, ...] = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    reason: RefusalReason


def decide(snapshot: Snapshot, facts: TurnFacts, policy: Policy, attempt: Attempt) -> Plan | Refusal:
    decode = _choose_decode(snapshot, facts, policy, attempt)
    if decode is None:
        there = any(_usable(snapshot, Role.DECODE, attempt))
        return Refusal(RefusalReason.DECODE_FULL if there else RefusalReason.NO_DECODE)
    if attempt.prefilled is not None:
        done = _prefilled_for(snapshot, decode, attempt.prefilled, policy)
        if done is not None:
            return Plan(Arm.PREFILL_DECODE, Why.SPLIT, decode, done, decode_owners=_if_claim(policy, (done,)))
    alone = _why_alone(facts, policy, attempt, decode)
    if alone is not None:
        return _decode_only(snapshot, facts, policy, decode, alone)
    able = _able_prefills(snapshot, policy, attempt, decode)
    if not able:
        return _without_prefill(snapshot, facts, policy, attempt, decode)
    prefill = min(able, key=lambda view: _prefill_cost(view, snapshot, facts, policy, decode))
    return Plan(
        Arm.PREFILL_DECODE,
        Why.SPLIT,
        decode,
        prefill,
        prefill_owners=_owners(snapshot, facts, policy, prefill),
        decode_owners=_if_claim(policy, (prefill,)),
    )


def _choose_decode(snapshot: Snapshot, facts: TurnFacts, policy: Policy, attempt: Attempt) -> EngineView | None:
    able = _able(snapshot, Role.DECODE, policy, attempt)
    if not able:
        return None
    # A group that has prefill engines to pair with beats one that has none (a rollout is half done).
    paired = {view.engine.group for view in _able(snapshot, Role.PREFILL, policy, attempt)}
    sticky = _sticky(able, facts, policy)
    # Alone, the holder still does less than a pair that has nothing; but with Fail, alone means refused.
    if sticky is not None and (
        sticky.engine.group in paired or not paired or policy.on_prefill_failure is not OnPrefillFailure.FAIL
    ):
        return sticky
    return min(
        able,
        key=lambda view: (
            view.engine.group not in paired,
            view.in_flight_tokens,
            view.load,
            view.last_used,
            view.id,
        ),
    )


def _sticky(able: list[EngineView], facts: TurnFacts, policy: Policy) -> EngineView | None:
    """The decode engine that holds the conversation, while its load allows."""
    if not facts.is_conversation:
        return None
    idlest = min(view.load for view in able)
    sticky = next((view for view in able if view.living == facts.holder), None)
    return sticky if sticky is not None and sticky.load <= idlest + policy.sticky_slack else None


def _able(snapshot: Snapshot, role: Role, policy: Policy, attempt: Attempt) -> list[EngineView]:
    return [view for view in _usable(snapshot, role, attempt) if view.in_flight < policy.max_concurrent_per_engine]


def _usable(snapshot: Snapshot, role: Role, attempt: Attempt) -> Iterator[EngineView]:
    """Full or not."""
    return (view for view in snapshot.by_role(role) if view.available and view.id not in attempt.excluded)


def _prefilled_for(snapshot: Snapshot, decode: EngineView, prefilled: Living, policy: Policy) -> EngineView | None:
    """The engine that has prefilled already, where this decode can still read from it (Claim only: a handle is spent)."""
    done = snapshot.find(prefilled)
    if done is None or policy.mechanism is not Mechanism.CLAIM or done.engine.group != decode.engine.group:
        return None
    return done if (decode.living, done.living) in snapshot.introduced else None


def _why_alone(facts: TurnFacts, policy: Policy, attempt: Attempt, decode: EngineView) -> Why | None:
    if not facts.splittable:
        return Why.UNSPLITTABLE
    if attempt.give_up_prefill:
        return Why.PREFILL_FAILED
    if facts.total_tokens < policy.recompute_threshold_tokens:
        return Why.SHORT
    if decode.living == facts.holder and facts.new_tokens < policy.run_on_decode_below_tokens:
        return Why.HELD
    return None


def _able_prefills(snapshot: Snapshot, policy: Policy, attempt: Attempt, decode: EngineView) -> list[EngineView]:
    group = [
        view for view in _able(snapshot, Role.PREFILL, policy, attempt) if view.engine.group == decode.engine.group
    ]
    if policy.mechanism is Mechanism.RETAIN:
        return group
    return [view for view in group if (decode.living, view.living) in snapshot.introduced]


def _without_prefill(
    snapshot: Snapshot, facts: TurnFacts, policy: Policy, attempt: Attempt, decode: EngineView
) -> Plan | Refusal:
    group = [
        view for view in _able(snapshot, Role.PREFILL, policy, attempt) if view.engine.group == decode.engine.group
    ]
    up = Why.NOT_INTRODUCED if group else Why.NO_PREFILL
    why = Why.PREFILL_FAILED if attempt.prefill_failed else up
    # An engine that is up and not yet introduced is no failure of prefill: decode alone is the right way meanwhile.
    if policy.on_prefill_failure is OnPrefillFailure.FAIL and why is not Why.NOT_INTRODUCED:
        return Refusal(RefusalReason.PREFILL_FAILED if attempt.prefill_failed else RefusalReason.NO_PREFILL)
    return _decode_only(snapshot, facts, policy, decode, why)


def _decode_only(snapshot: Snapshot, facts: TurnFacts, policy: Policy, decode: EngineView, why: Why) -> Plan:
    asks = facts.splittable and why is not Why.SHORT and decode.living != facts.holder
    owners = _owners(snapshot, facts, policy, decode) if asks else ()
    return Plan(Arm.DECODE_ONLY, why, decode, decode_owners=owners)


def _prefill_cost(
    view: EngineView, snapshot: Snapshot, facts: TurnFacts, policy: Policy, decode: EngineView
) -> tuple[float, int, int, EngineId]:
    """What the turn costs there, in tokens of computing: what waits before it, then its own."""
    if view.living in facts.known:
        own = float(facts.new_tokens)
    elif _can_read(view, snapshot, facts, policy, decode):
        own = facts.new_tokens + _READ_COST * facts.held_tokens
    else:
        own = float(facts.total_tokens)
    return (view.in_flight_tokens + own, view.in_flight, view.last_used, view.id)


def _can_read(view: EngineView, snapshot: Snapshot, facts: TurnFacts, policy: Policy, decode: EngineView) -> bool:
    if policy.mechanism is Mechanism.CLAIM:
        return bool(_owners(snapshot, facts, policy, view))
    return policy.direction is Direction.BIDIRECTIONAL and decode.living == facts.holder


def _owners(snapshot: Snapshot, facts: TurnFacts, policy: Policy, reader: EngineView) -> tuple[EngineView, ...]:
    """Whom ``reader`` should ask for the history: decode engines before prefill engines, as they know more of it."""
    if policy.direction is Direction.PREFILL_TO_DECODE and reader.engine.role is Role.PREFILL:
        return ()
    known = [view for living in facts.known if (view := snapshot.find(living)) is not None]
    known.sort(key=lambda view: (view.living != facts.holder, view.engine.role is not Role.DECODE))
    found = [
        view
        for view in known
        if view.id != reader.id
        and view.engine.group == reader.engine.group
        and (reader.living, view.living) in snapshot.introduced
    ]
    return _if_claim(policy, found[: policy.max_owners])


def _if_claim(policy: Policy, owners: Iterable[EngineView]) -> tuple[EngineView, ...]:
    return tuple(owners) if policy.mechanism is Mechanism.CLAIM else ()
