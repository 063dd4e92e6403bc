"""One step of a rollout at a time, case by case. What holds in any order is in tests/property."""

from __future__ import annotations

from typing import Any

import pytest

from pdd_operator.api.labels import Component
from pdd_operator.api.v1alpha1 import Autoscaling, Role, Strategy
from pdd_operator.observe.groups import GroupFacts, RoleFacts
from pdd_operator.observe.outcome import RolloutPlan
from pdd_operator.observe.rollout import Sizes, decide
from pdd_operator.render.inputs import Replicas

P, D = Component.PREFILL, Component.DECODE
CPU: dict[str, Any] = {"accelerator": {"type": "CPU"}}
SURGE, IN_PLACE = Strategy.SURGE, Strategy.IN_PLACE


def facts(size: int | None, ready: int, pods: int | None = None, *, settled: bool = True) -> RoleFacts:
    return RoleFacts(size, settled, ready if pods is None else pods, ready)


def group(
    name: str, prefill: RoleFacts, decode: RoleFacts | None = None, *, available: bool = False, created: str = ""
) -> GroupFacts:
    return GroupFacts(name, {P: prefill, D: decode or prefill}, created or name, available, True)


def fixed(prefill: int = 2, decode: int = 2) -> dict[Component, Sizes]:
    return {
        P: Sizes(Role.model_validate(CPU | {"replicas": prefill})),
        D: Sizes(Role.model_validate(CPU | {"replicas": decode})),
    }


def scaled(remembered: int = 0, low: int = 1, high: int = 8, replicas: int = 1) -> dict[Component, Sizes]:
    target = {"metric": "QueueWaitSeconds", "value": "1"}
    scaling = Autoscaling.model_validate({"minReplicas": low, "maxReplicas": high, "target": target})
    role = Role.model_validate(CPU | {"replicas": replicas, "autoscaling": scaling.model_dump(by_alias=True)})
    return {P: Sizes(role, remembered), D: Sizes(role, remembered)}


def kept(plan: RolloutPlan, *names: str) -> set[str]:
    return set(names) - plan.finished


def test_the_first_group_starts_at_full_size() -> None:
    for strategy in Strategy:
        plan = decide(strategy, "new", fixed(3, 1), ())
        assert plan == RolloutPlan(Replicas(3, 1), wanted={P: 3, D: 1})


def test_surge_keeps_the_old_group_whole_until_every_wanted_pod_is_ready() -> None:
    old = group("a", facts(2, 2), available=True)
    for new in (group("b", facts(2, 0)), group("b", facts(2, 1)), group("b", facts(2, 2), facts(2, 1))):
        plan = decide(SURGE, "b", fixed(), (old, new))
        assert (plan.replicas, plan.old_replicas, plan.finished) == (Replicas(2, 2), {}, frozenset())
    plan = decide(SURGE, "b", fixed(), (old, group("b", facts(2, 2))))
    assert (plan.available, plan.finished) == (True, {"a"})


def test_surge_drops_what_never_was_available_and_keeps_what_was() -> None:
    was, never = group("a", facts(2, 2), available=True), group("b", facts(2, 0))
    plan = decide(SURGE, "c", fixed(), (was, never, group("c", facts(2, 0))))
    assert kept(plan, "a", "b") == {"a"}


def test_surge_keeps_the_newest_that_was_available_even_while_it_is_down() -> None:
    down = group("a", facts(2, 0), available=True)
    assert kept(decide(SURGE, "c", fixed(), (down, group("b", facts(2, 0)))), "a", "b") == {"a"}
    both = (group("a", facts(2, 2), available=True), group("b", facts(2, 2), available=True))
    assert kept(decide(SURGE, "c", fixed(), both), "a", "b") == {"b"}


def test_surge_keeps_a_group_that_serves_more_than_the_one_that_was_available() -> None:
    down, serving = group("a", facts(2, 0), available=True), group("b", facts(2, 1))
    assert kept(decide(SURGE, "c", fixed(), (down, serving)), "a", "b") == {"a", "b"}


def test_surge_without_a_memory_goes_by_what_serves() -> None:
    assert kept(decide(SURGE, "c", fixed(), (group("a", facts(2, 2)), group("b", facts(2, 0)))), "a", "b") == {"a"}


def test_groups_that_never_served_go_at_once() -> None:
    for strategy in Strategy:
        plan = decide(strategy, "b", fixed(), (group("a", facts(2, 0)),))
        assert plan.finished == {"a"}


def test_going_back_makes_the_old_group_current_again() -> None:
    plan = decide(SURGE, "a", fixed(), (group("a", facts(2, 2), available=True), group("b", facts(2, 1))))
    assert (plan.available, plan.finished) == (True, {"b"})


@pytest.mark.parametrize(
    ("old", "new", "old_target", "new_target"),
    [
        (facts(3, 3), facts(0, 0), 2, 0),
        (facts(2, 2, pods=3), facts(0, 0), 2, 0),
        (facts(2, 2), facts(0, 0), 2, 1),
        (facts(2, 2), facts(1, 1), 1, 1),
        (facts(1, 1, pods=2), facts(1, 1), 1, 1),
        (facts(1, 1), facts(2, 2), None, 2),
        (facts(3, 2), facts(0, 0), 2, 0),
    ],
)
def test_in_place_one_pod_makes_room_at_a_time(
    old: RoleFacts, new: RoleFacts, old_target: int | None, new_target: int
) -> None:
    plan = decide(IN_PLACE, "b", fixed(3, 3), (group("a", old, available=True), group("b", new)))
    assert plan.replicas == Replicas(new_target, new_target)
    if old_target is None:
        assert plan.finished == {"a"}
    else:
        assert plan.old_replicas.get(("a", P), old.size) == old_target
        assert plan.finished == frozenset()


def test_in_place_one_engine_goes_before_its_successor_comes() -> None:
    old = group("a", facts(1, 1), available=True)
    plan = decide(IN_PLACE, "b", fixed(1, 1), (old, group("b", facts(0, 0))))
    assert (plan.replicas, plan.finished) == (Replicas(0, 0), {"a"})
    ending = GroupFacts("a", {P: facts(None, 0, pods=1), D: facts(None, 0)}, "", True, False)
    assert decide(IN_PLACE, "b", fixed(1, 1), (ending, group("b", facts(0, 0)))).replicas == Replicas(0, 1)


@pytest.mark.parametrize("there", [(), (group("b", facts(0, 0), facts(None, 0)),)], ids=["no set", "one set"])
def test_in_place_old_engines_stay_until_both_new_sets_are_there(there: tuple[GroupFacts, ...]) -> None:
    """A quota, a policy or a webhook may refuse them: then the old group serves on."""
    for size in (1, 3):
        plan = decide(IN_PLACE, "b", fixed(size, size), (group("a", facts(size, size), available=True), *there))
        assert (plan.old_replicas, plan.finished) == ({}, frozenset())
        assert plan.replicas == Replicas(0, 0)


def test_in_place_waits_for_a_controller_that_has_not_seen_its_set_shrink() -> None:
    old, new = group("a", facts(2, 2, settled=False), available=True), group("b", facts(0, 0))
    assert decide(IN_PLACE, "b", fixed(3, 3), (old, new)).replicas == Replicas(0, 0)


def test_in_place_the_better_of_two_old_groups_keeps_its_pods() -> None:
    groups = (group("a", facts(2, 2), available=True), group("b", facts(1, 1)), group("c", facts(0, 0)))
    plan = decide(IN_PLACE, "c", fixed(3, 3), groups)
    assert (kept(plan, "a", "b"), plan.old_replicas, plan.replicas) == ({"a"}, {}, Replicas(0, 0))


def test_in_place_after_surge_keeps_the_ready_pods_of_both_groups_in_reason() -> None:
    """Four pods where two are wanted, by a change of strategy in the middle: one pair at least stays."""
    old, new = group("a", facts(2, 2), available=True), group("b", facts(2, 1, pods=2))
    plan = decide(IN_PLACE, "b", fixed(), (old, new))
    assert plan.replicas == Replicas(1, 1)
    assert plan.finished == {"a"}, "the ready pair of the current group is within the budget"
    second = RoleFacts(2, True, 2, 1, (1,))  # the pod with the higher number is the ready one
    assert decide(IN_PLACE, "b", fixed(), (old, group("b", second))).replicas == Replicas(2, 2)


def test_in_place_a_smaller_size_meanwhile_leaves_what_is_ready_of_the_current_group() -> None:
    both = (group("a", facts(2, 2), available=True), group("b", facts(2, 2)))
    for wanted in (2, 3):
        plan = decide(IN_PLACE, "b", fixed(wanted, wanted), both)
        assert plan.replicas == Replicas(2, 2)
    assert decide(IN_PLACE, "b", fixed(2, 2), both).available


@pytest.mark.parametrize("size", [2, 3, 4])
def test_in_place_a_role_that_never_gets_ready_costs_one_pair(size: int) -> None:
    old, new = {P: size, D: size}, {P: 0, D: 0}
    for _ in range(20):
        groups = (
            group("a", facts(old[P], old[P]), facts(old[D], old[D]), available=True),
            group("b", facts(new[P], new[P]), facts(new[D], 0, pods=new[D])),
        )
        plan = decide(IN_PLACE, "b", fixed(size, size), groups)
        assert plan.finished == frozenset()
        old |= {part: target for (_, part), target in plan.old_replicas.items()}
        new = {P: plan.replicas.prefill or 0, D: plan.replicas.decode or 0}
        assert min(old.values()) >= size - 1


def test_surge_keeps_decode_engines_that_serve_alone() -> None:
    old = group("a", facts(1, 0, pods=1), facts(2, 2))
    plan = decide(SURGE, "b", fixed(1, 2), (old,))
    assert (kept(plan, "a"), plan.old_replicas) == ({"a"}, {})
    better = group("b", facts(1, 1), facts(2, 2))
    assert kept(decide(SURGE, "c", fixed(1, 2), (old, better)), "a", "b") == {"b"}


@pytest.mark.parametrize("strategy", Strategy)
def test_an_autoscaled_role_that_lost_its_set_keeps_size_and_autoscaler(strategy: Strategy) -> None:
    lost = group("a", facts(6, 6), facts(None, 6))
    for sizes in (scaled(remembered=6), scaled(remembered=2)):
        plan = decide(strategy, "a", sizes, (lost,))
        assert (plan.replicas.prefill, plan.replicas.decode) == (None, 6)
        assert plan.replicas.autoscaled_groups == {D: "a"}
    gone = decide(strategy, "a", scaled(remembered=6), (group("a", facts(6, 6), facts(None, 0)),))
    assert gone.replicas.decode == 6


def test_the_autoscaler_stays_with_the_group_that_serves_until_the_other_is_available() -> None:
    for size in (3, 5):
        old = group("a", facts(size, size), available=True)
        plan = decide(SURGE, "b", scaled(), (old, group("b", facts(3, 2, pods=3))))
        assert plan.replicas == Replicas(size, size, {P: "a", D: "a"}), "the new group follows what the autoscaler does"
    after = decide(SURGE, "b", scaled(), (old, group("b", facts(5, 5))))
    assert (after.replicas, after.finished) == (Replicas(None, None), {"a"})
    in_place = decide(IN_PLACE, "b", scaled(remembered=5), (old, group("b", facts(0, 0))), True)
    assert in_place.replicas.autoscaled_groups == {}, "an autoscaler would undo every step"


@pytest.mark.parametrize("strategy", Strategy)
def test_a_group_whose_set_is_nobody_s_is_neither_scaled_nor_finished(strategy: Strategy) -> None:
    lost = GroupFacts("a", {P: facts(None, 2), D: facts(None, 2)}, "", True, True, disowned=True)
    plan = decide(strategy, "b", fixed(), (lost, group("b", facts(2, 2))))
    assert (plan.old_replicas, plan.finished, plan.available) == ({}, frozenset(), True)


def test_of_more_pods_than_wanted_those_that_stay_must_be_ready() -> None:
    last = RoleFacts(3, True, 3, 2, (1, 2))
    plan = decide(SURGE, "b", fixed(), (group("a", facts(2, 2), available=True), group("b", last)))
    assert (plan.available, plan.finished) == (False, frozenset())


def test_none_wanted() -> None:
    for strategy in Strategy:
        before = decide(strategy, "b", fixed(0, 0), (group("a", facts(2, 2), available=True),))
        assert (before.available, before.replicas) == (False, Replicas(0, 0))
        after = decide(strategy, "b", fixed(0, 0), (group("a", facts(2, 2), available=True), group("b", facts(0, 0))))
        assert (after.available, after.finished) == (True, {"a"})


def test_an_autoscaler_owns_the_size_once_the_set_is_there() -> None:
    assert decide(SURGE, "a", scaled(replicas=3), ()).replicas == Replicas(3, 3)
    assert decide(SURGE, "a", scaled(low=4), ()).replicas == Replicas(4, 4)
    for strategy in Strategy:
        plan = decide(strategy, "a", scaled(), (group("a", facts(5, 5)),))
        assert (plan.replicas, plan.wanted, plan.available) == (Replicas(None, None), {P: 5, D: 5}, True)


def test_a_new_group_of_an_autoscaled_role_starts_as_large_as_the_old_one_within_bounds() -> None:
    old = group("a", facts(5, 5), available=True)
    assert decide(SURGE, "b", scaled(), (old,)).replicas == Replicas(5, 5, {P: "a", D: "a"})
    assert decide(SURGE, "b", scaled(high=4), (old,)).replicas == Replicas(4, 4, {P: "a", D: "a"})


def test_an_autoscaler_does_nothing_at_zero_so_the_operator_raises_it() -> None:
    assert decide(SURGE, "a", scaled(low=2), (group("a", facts(0, 0)),)).replicas == Replicas(2, 2)
    assert decide(IN_PLACE, "a", scaled(low=2), (group("a", facts(0, 0)),)).replicas == Replicas(2, 2)


def test_in_place_an_autoscaled_role_keeps_the_size_that_it_had_till_the_end() -> None:
    old, new = group("a", facts(2, 2), available=True), group("b", facts(1, 1))
    plan = decide(IN_PLACE, "b", scaled(remembered=4), (old, new), was_rolling=True)
    assert (plan.wanted, plan.replicas) == ({P: 4, D: 4}, Replicas(2, 2))
    last = decide(IN_PLACE, "b", scaled(remembered=4), (group("b", facts(3, 3)),), was_rolling=True)
    assert last.replicas == Replicas(4, 4)
    after = decide(IN_PLACE, "b", scaled(remembered=4), (group("b", facts(4, 4)),))
    assert after.replicas == Replicas(None, None)
