"""The decision, by cases."""

from dataclasses import replace
from typing import Any

import pytest

from pdd_router.config import Direction, Mechanism, OnPrefillFailure
from pdd_router.endpoints.engine import ClaimAddress, Engine, EngineId, EngineView, Living, Role, Snapshot
from pdd_router.policy.decide import Arm, Attempt, Plan, Policy, Refusal, RefusalReason, TurnFacts, Why, decide

POLICY = Policy(
    mechanism=Mechanism.CLAIM,
    direction=Direction.BIDIRECTIONAL,
    on_prefill_failure=OnPrefillFailure.RETRY,
    recompute_threshold_tokens=64,
    run_on_decode_below_tokens=256,
    max_owners=3,
    sticky_slack=4,
    max_concurrent_per_engine=16,
)
FRESH = TurnFacts(total_tokens=1000, held_tokens=0, is_conversation=False, holder=None, known=())


def view(name: str, *, group: str = "g", epoch: int = 1, **fields: Any) -> EngineView:
    role = Role.PREFILL if name.startswith("p") else Role.DECODE
    engine = Engine(EngineId(name, f"http://{name}"), role, group, ClaimAddress(name, 1))
    return EngineView(engine, epoch, **{"available": True, **fields})


def snapshot(*views: EngineView, introduced: bool = True) -> Snapshot:
    pairs = {(a.living, b.living) for a in views for b in views if a is not b} if introduced else set()
    return Snapshot(views, frozenset(pairs))


def follow_up(holder: EngineView, *others: EngineView, total: int = 1000, held: int = 600) -> TurnFacts:
    known = tuple(view.living for view in (holder, *others))
    return TurnFacts(total, held, True, holder.living, known)


def plan(result: Plan | Refusal) -> Plan:
    assert isinstance(result, Plan)
    return result


def names(views: Any) -> list[str]:
    return [view.id.name for view in views]


def test_fresh_turn_is_split_and_decode_asks_prefill() -> None:
    chosen = plan(decide(snapshot(view("p0"), view("d0")), FRESH, POLICY, Attempt()))
    assert (chosen.arm, chosen.why) == (Arm.PREFILL_DECODE, Why.SPLIT)
    assert names(chosen.prefill_owners) == []
    assert names(chosen.decode_owners) == ["p0"]


def test_follow_up_stays_on_its_decode_and_prefill_asks_it_first() -> None:
    p0, p1, d0, d1 = view("p0"), view("p1", in_flight_tokens=9000), view("d0", in_flight=3), view("d1")
    chosen = plan(decide(snapshot(p0, p1, d0, d1), follow_up(d0, p1), POLICY, Attempt()))
    assert chosen.decode == d0
    assert chosen.prefill == p0
    assert names(chosen.prefill_owners) == ["d0", "p1"]


@pytest.mark.parametrize(("load", "chosen"), [(4, "d0"), (5, "d1"), (16, "d1")])
def test_decode_is_left_when_its_load_is_too_far_above_the_idlest(load: int, chosen: str) -> None:
    d0 = view("d0", in_flight=load)
    result = plan(decide(snapshot(view("p0"), d0, view("d1")), follow_up(d0), POLICY, Attempt()))
    assert result.decode.id.name == chosen
    assert names(result.prefill_owners) == ["d0"], "it is still asked"


def test_what_decode_is_to_get_counts_as_its_load_and_takes_no_place() -> None:
    d0 = view("d0", expected=5)
    assert plan(decide(snapshot(view("p0"), d0, view("d1")), follow_up(d0), POLICY, Attempt())).decode.id.name == "d1"
    alone = view("d0", expected=POLICY.max_concurrent_per_engine)
    assert plan(decide(snapshot(view("p0"), alone), FRESH, POLICY, Attempt())).decode == alone


def test_warm_prefill_wins_until_it_is_busy() -> None:
    d0 = view("d0")
    for load, expected in ((0, "p1"), (50, "p1"), (100, "p0")):
        p0, p1 = view("p0"), view("p1", in_flight_tokens=load)
        result = plan(decide(snapshot(p0, p1, d0), follow_up(d0, p1), POLICY, Attempt()))
        assert result.prefill is not None
        assert result.prefill.id.name == expected


@pytest.mark.parametrize(("held", "why"), [(745, Why.HELD), (744, Why.SPLIT)])
def test_little_new_text_runs_on_the_holder(held: int, why: Why) -> None:
    d0 = view("d0")
    result = plan(decide(snapshot(view("p0"), d0), follow_up(d0, held=held), POLICY, Attempt()))
    assert result.why is why
    assert (result.prefill is None) == (why is Why.HELD)


def test_little_new_text_elsewhere_is_split_all_the_same() -> None:
    d0 = view("d0", available=False)
    result = plan(decide(snapshot(view("p0"), d0, view("d1")), follow_up(d0, held=990), POLICY, Attempt()))
    assert (result.decode.id.name, result.why) == ("d1", Why.SPLIT)


@pytest.mark.parametrize(("tokens", "why"), [(63, Why.SHORT), (64, Why.SPLIT)])
def test_short_prompt_is_not_split(tokens: int, why: Why) -> None:
    facts = replace(FRESH, total_tokens=tokens)
    assert plan(decide(snapshot(view("p0"), view("d0")), facts, POLICY, Attempt())).why is why


def test_only_one_revision_group() -> None:
    pa, pb, da, db = view("pa", group="a"), view("pb", group="b"), view("da", group="a"), view("db", group="b")
    result = plan(decide(snapshot(pa, pb, da, db), follow_up(db, pa), POLICY, Attempt()))
    assert (result.decode, result.prefill) == (db, pb)
    assert names(result.prefill_owners) == ["db"]
    alone = plan(decide(snapshot(pa, db), FRESH, POLICY, Attempt()))
    assert (alone.arm, alone.why) == (Arm.DECODE_ONLY, Why.NO_PREFILL)


def test_new_conversations_go_where_there_is_prefill() -> None:
    result = plan(
        decide(snapshot(view("pb", group="b"), view("da", group="a"), view("db", group="b")), FRESH, POLICY, Attempt())
    )
    assert result.decode.id.name == "db"


def test_nobody_is_named_who_is_not_introduced() -> None:
    p0, d0 = view("p0"), view("d0")
    result = plan(decide(snapshot(p0, d0, introduced=False), follow_up(d0), POLICY, Attempt()))
    assert (result.arm, result.why, result.decode_owners) == (Arm.DECODE_ONLY, Why.NOT_INTRODUCED, ())
    one_way = Snapshot((p0, d0), frozenset({(d0.living, p0.living)}))
    result = plan(decide(one_way, follow_up(d0), POLICY, Attempt()))
    assert names(result.decode_owners) == ["p0"]
    assert result.prefill_owners == ()


def test_another_life_is_another_engine() -> None:
    d0 = view("d0", epoch=2)
    facts = replace(follow_up(d0), holder=Living(d0.id, 1), known=(Living(d0.id, 1),))
    result = plan(decide(snapshot(view("p0"), d0, view("d1", in_flight=0)), facts, POLICY, Attempt()))
    assert result.prefill_owners == ()


def test_owners_are_few_and_never_the_reader() -> None:
    views = [view(f"p{at}") for at in range(6)] + [view("d0")]
    result = plan(decide(snapshot(*views), follow_up(views[-1], *views[:-1]), POLICY, Attempt()))
    assert result.prefill is not None
    assert len(result.prefill_owners) == 3
    assert result.prefill not in result.prefill_owners


def test_one_way_names_nobody_to_prefill() -> None:
    d0 = view("d0")
    policy = replace(POLICY, direction=Direction.PREFILL_TO_DECODE)
    result = plan(decide(snapshot(view("p0"), view("p1"), d0), follow_up(d0, view("p1")), policy, Attempt()))
    assert result.prefill_owners == ()
    assert len(result.decode_owners) == 1


def test_retain_names_nobody_and_needs_no_introduction() -> None:
    policy = replace(POLICY, mechanism=Mechanism.RETAIN)
    d0 = view("d0")
    result = plan(decide(snapshot(view("p0"), d0, introduced=False), follow_up(d0), policy, Attempt()))
    assert (result.arm, result.prefill_owners, result.decode_owners) == (Arm.PREFILL_DECODE, (), ())


@pytest.mark.parametrize(
    ("mode", "failed", "expected"),
    [
        (OnPrefillFailure.RETRY, True, Why.PREFILL_FAILED),
        (OnPrefillFailure.RETRY, False, Why.NO_PREFILL),
        (OnPrefillFailure.AGGREGATE, False, Why.NO_PREFILL),
        (OnPrefillFailure.FAIL, False, RefusalReason.NO_PREFILL),
        (OnPrefillFailure.FAIL, True, RefusalReason.PREFILL_FAILED),
    ],
)
def test_without_prefill(mode: OnPrefillFailure, failed: bool, expected: Any) -> None:
    p0 = view("p0")
    policy = replace(POLICY, on_prefill_failure=mode)
    attempt = Attempt(excluded=frozenset({p0.id}), prefill_failed=failed)
    result = decide(snapshot(p0, view("d0")), FRESH, policy, attempt)
    assert (result.why if isinstance(result, Plan) else result.reason) is expected


def test_prefill_that_has_done_its_work_is_kept_for_another_decode() -> None:
    p0, p1, d0, d1 = view("p0", in_flight_tokens=9999, available=False), view("p1"), view("d0"), view("d1")
    attempt = Attempt(excluded=frozenset({d0.id}), prefilled=p0.living)
    result = plan(decide(snapshot(p0, p1, d0, d1), FRESH, POLICY, attempt))
    assert (result.decode, result.prefill) == (d1, p0)
    retain = replace(POLICY, mechanism=Mechanism.RETAIN)
    result = plan(decide(snapshot(p0, p1, d0, d1), FRESH, retain, attempt))
    assert result.prefill == p1, "a handle is spent: prefill again"


def test_nothing_to_decode_on() -> None:
    for views in ((), (view("p0"),), (view("p0"), view("d0", available=False))):
        assert decide(snapshot(*views), FRESH, POLICY, Attempt()) == Refusal(RefusalReason.NO_DECODE)
    d0 = view("d0")
    tried = Attempt(excluded=frozenset({d0.id}))
    assert decide(snapshot(view("p0"), d0), FRESH, POLICY, tried) == Refusal(RefusalReason.NO_DECODE)


def test_full_is_not_the_same_as_not_there() -> None:
    full, out = view("d0", in_flight=16), view("d1", available=False)
    assert decide(snapshot(view("p0"), full, out), FRESH, POLICY, Attempt()) == Refusal(RefusalReason.DECODE_FULL)
    tried = Attempt(excluded=frozenset({full.id}))
    assert decide(snapshot(view("p0"), full, out), FRESH, POLICY, tried) == Refusal(RefusalReason.NO_DECODE)


def test_unsplittable_runs_alone_and_asks_nobody() -> None:
    d0 = view("d0")
    result = plan(decide(snapshot(view("p0"), d0), replace(follow_up(d0), splittable=False), POLICY, Attempt()))
    assert (result.why, result.decode_owners) == (Why.UNSPLITTABLE, ())


def test_decode_alone_asks_who_knows_the_history() -> None:
    p0, d0, d1 = view("p0"), view("d0", available=False), view("d1")
    result = plan(decide(snapshot(p0, d0, d1), follow_up(d0, p0), POLICY, Attempt(give_up_prefill=True)))
    assert (result.decode, names(result.decode_owners)) == (d1, ["d0", "p0"])


def test_conversation_leaves_a_group_without_prefill_only_where_alone_means_refused() -> None:
    da, pb, db = view("da", group="a"), view("pb", group="b"), view("db", group="b")
    for mode, expected in ((OnPrefillFailure.RETRY, "da"), (OnPrefillFailure.FAIL, "db")):
        result = plan(decide(snapshot(da, pb, db), follow_up(da), replace(POLICY, on_prefill_failure=mode), Attempt()))
        assert result.decode.id.name == expected
        assert result.prefill is None or result.prefill.engine.group == "b"
