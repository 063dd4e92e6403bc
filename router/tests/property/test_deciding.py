"""The decision and the index over random fleets and histories."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pdd_router.config import Direction, Mechanism, OnPrefillFailure
from pdd_router.endpoints.breaker import Breaker, BreakerState
from pdd_router.endpoints.engine import ClaimAddress, Engine, EngineId, EngineView, Living, Role, Snapshot
from pdd_router.policy.chain import Chain, Link
from pdd_router.policy.conversations import Conversations, Handle, Served
from pdd_router.policy.decide import Arm, Attempt, Plan, Policy, TurnFacts, Why, decide


@st.composite
def views(draw: Any) -> tuple[EngineView, ...]:
    made = []
    for at in range(draw(st.integers(0, 6))):
        role = draw(st.sampled_from(list(Role)))
        engine = Engine(
            EngineId(f"e{at}", f"http://e{at}"), role, draw(st.sampled_from("ab")), ClaimAddress("h", at + 1)
        )
        made.append(
            EngineView(
                engine,
                draw(st.integers(1, 2)),
                draw(st.booleans()),
                draw(st.integers(0, 20)),
                draw(st.integers(0, 9999)),
                draw(st.integers(0, 9)),
            )
        )
    return tuple(made)


@st.composite
def cases(draw: Any) -> tuple[Snapshot, TurnFacts, Policy, Attempt]:
    engines = draw(views())
    pairs = [(a.living, b.living) for a in engines for b in engines if a is not b]
    introduced = frozenset(draw(st.sets(st.sampled_from(pairs)))) if pairs else frozenset()
    lives = [view.living for view in engines] + [Living(EngineId("gone", "http://gone"), 1)]
    total = draw(st.integers(0, 5000))
    facts = TurnFacts(
        total,
        draw(st.integers(0, total)),
        draw(st.booleans()),
        draw(st.none() | st.sampled_from(lives)),
        tuple(draw(st.lists(st.sampled_from(lives), max_size=5, unique=True))),
        draw(st.booleans()),
    )
    policy = Policy(
        draw(st.sampled_from(list(Mechanism))),
        draw(st.sampled_from(list(Direction))),
        draw(st.sampled_from(list(OnPrefillFailure))),
        draw(st.integers(0, 500)),
        draw(st.integers(0, 500)),
        draw(st.integers(1, 8)),
        draw(st.integers(0, 8)),
        draw(st.integers(1, 30)),
    )
    excluded = frozenset(draw(st.sets(st.sampled_from([life.id for life in lives]))))
    prefills = [view.living for view in engines if view.engine.role is Role.PREFILL] + lives[-1:]
    attempt = Attempt(excluded, draw(st.booleans()), draw(st.booleans()), draw(st.none() | st.sampled_from(prefills)))
    return Snapshot(engines, introduced), facts, policy, attempt


@settings(max_examples=250, deadline=None)
@given(cases())
def test_no_plan_breaks_a_rule(case: tuple[Snapshot, TurnFacts, Policy, Attempt]) -> None:
    snapshot, facts, policy, attempt = case
    result = decide(snapshot, facts, policy, attempt)
    assert result == decide(snapshot, facts, policy, attempt), "deterministic"
    able = [v for v in snapshot.by_role(Role.DECODE) if v.available and v.id not in attempt.excluded]
    able = [v for v in able if v.in_flight < policy.max_concurrent_per_engine]
    if not isinstance(result, Plan):
        assert not able or policy.on_prefill_failure is OnPrefillFailure.FAIL
        return
    assert result.decode in able
    for reader, owners in ((result.prefill, result.prefill_owners), (result.decode, result.decode_owners)):
        for owner in owners:
            assert reader is not None
            assert owner.engine.group == reader.engine.group
            assert (reader.living, owner.living) in snapshot.introduced, "only introduced pairs are named"
        assert len(owners) <= max(policy.max_owners, 1)
    if policy.mechanism is Mechanism.RETAIN:
        assert not result.prefill_owners + result.decode_owners
    if policy.direction is Direction.PREFILL_TO_DECODE:
        assert not result.prefill_owners
    assert (result.arm is Arm.PREFILL_DECODE) == (result.prefill is not None)
    if result.prefill is not None:
        assert result.prefill.engine.role is Role.PREFILL
        assert result.prefill.engine.group == result.decode.engine.group
        done = result.prefill.living == attempt.prefilled
        assert done or (result.prefill.available and result.prefill.id not in attempt.excluded)
    if not facts.splittable:
        assert result.why is Why.UNSPLITTABLE or result.prefill is not None


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["serve", "take", "wait"]), st.sampled_from("ab"), st.integers(0, 3), st.integers(0, 3)),
    max_size=60,
)


@given(OPERATIONS)
def test_no_handle_is_given_out_twice_or_across_tenants(operations: list[tuple[str, str, int, int]]) -> None:
    now = [0.0]
    index = Conversations(clock=lambda: now[0], ttl_seconds=5, max_entries=6)
    decode = Living(EngineId("d", "http://d"), 1)
    given_out: list[tuple[str, int, float]] = []
    number = 0
    for kind, tenant, which, length in operations:
        chain = Chain(tuple(Link(bytes([which, at]), at + 1, True) for at in range(length + 1)), length + 1)
        if kind == "wait":
            now[0] += which
        elif kind == "serve":
            number += 1
            entry = Served(decode, (), now[0], chain.chars)
            entry.handle = Handle({"tenant": tenant, "number": number, "born": now[0]}, decode, now[0] + 5)
            index.remember(tenant, f"id{which}", chain, entry)
        else:
            handle = index.take_handle(index.find(tenant, f"id{which}", chain), {decode})
            if handle is not None:
                assert handle["tenant"] == tenant
                assert now[0] - handle["born"] < 5
                given_out.append(handle["number"])
    assert len(given_out) == len(set(given_out))


@given(st.lists(st.tuples(st.sampled_from(["begin", "ok", "bad", "none", "wait"]), st.integers(0, 9)), max_size=80))
def test_half_open_admits_one_at_a_time_and_a_time_is_not_for_ever(steps: list[tuple[str, int]]) -> None:
    now = [0.0]
    breaker = Breaker(clock=lambda: now[0], may_eject=lambda: True, failures=2, base_seconds=5, max_seconds=20)
    running: list[tuple[int | None, float]] = []
    for kind, number in steps:
        if kind == "wait":
            now[0] += number
        elif kind == "begin":
            if breaker.admits:
                half_open = breaker.state is BreakerState.HALF_OPEN
                probe = breaker.begin()
                assert (probe is not None) is half_open
                assert probe is None or all(now[0] - began >= 5 for other, began in running if other is not None)
                running.append((probe, now[0]))
        elif running:
            probe, _ = running.pop(number % len(running))
            breaker.end(probe=probe, success={"ok": True, "bad": False, "none": None}[kind])
        if breaker.state is BreakerState.OPEN:
            assert not breaker.admits
