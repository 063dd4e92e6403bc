"""Rollouts in clusters that do everything in any order: what never happens on the way, and that they end.

Each guarantee has a control: the same world with the guard taken out must break it.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rollout_world import World

from pdd_operator.api.labels import ENGINE_COMPONENTS, Component
from pdd_operator.observe import rollout
from pdd_operator.observe.groups import RoleFacts

MANY = settings(max_examples=20, deadline=None)
ROUNDS_TO_END = 60
sizes = st.integers(min_value=0, max_value=3)
chances = st.integers(min_value=0, max_value=2**32)


def world(strategy: str, prefill: int, decode: int, autoscaled: bool = False) -> World:
    scaling = {
        "autoscaling": {"minReplicas": 1, "maxReplicas": 4, "target": {"metric": "QueueWaitSeconds", "value": "1"}}
    }
    more = scaling if autoscaled else {}
    return World(
        {
            "prefill": {"replicas": prefill, **more},
            "decode": {"replicas": decode, **more},
            "rollout": {"strategy": strategy},
        }
    )


def change(some: World) -> None:
    some.revision = f"{int(some.revision, 16) + 1:06x}"


def step(some: World, chance: random.Random) -> None:
    """Mostly the cluster; now and then a reconcile (which may die before it writes the status), seldom a change of the spec."""
    kind = chance.random()
    if kind < 0.3:
        some.reconcile(write_status=chance.random() < 0.8)
    elif kind < 0.33:
        change(some)
    else:
        some.random_step(chance)


def assert_ends(some: World) -> None:
    for _ in range(ROUNDS_TO_END):
        plan = some.reconcile()
        some.settle()
        if plan.available and some.groups() == {some.revision}:
            break
    some.reconcile()
    some.settle()
    plan = some.reconcile()
    assert plan.available
    assert (plan.old_replicas, plan.finished) == ({}, frozenset())
    assert some.groups() == {some.revision}
    for part, size in ((Component.PREFILL, plan.replicas.prefill), (Component.DECODE, plan.replicas.decode)):
        assert some.sets[some.revision, part].replicas == plan.wanted[part] == some.count(part)
        assert size in (None, plan.wanted[part])
    before = some.status
    some.write_status(some.plan())
    assert some.status == before


@MANY
@given(sizes, sizes, chances)
def test_surge_never_takes_away_a_ready_pair_before_the_current_group_is_available(
    prefill: int, decode: int, seed: int
) -> None:
    chance = random.Random(seed)
    some = world("Surge", prefill, decode)
    for _ in range(80):
        before, served = some.most_pairs(), some.groups() - {some.revision}
        plan = some.plan()
        if not plan.available:
            some.reconcile()
            assert some.most_pairs() >= before
            if before:
                assert some.groups() & served or some.pairs(some.revision) == before
        step(some, chance)
    assert_ends(some)


@MANY
@given(sizes, sizes, chances)
def test_in_place_never_has_more_pods_than_wanted(prefill: int, decode: int, seed: int) -> None:
    chance = random.Random(seed)
    some = world("InPlace", prefill, decode)
    for _ in range(80):
        step(some, chance)
        assert some.count(Component.PREFILL) <= prefill
        assert some.count(Component.DECODE) <= decode
    assert_ends(some)


SCALING = {"minReplicas": 1, "maxReplicas": 4, "target": {"metric": "QueueWaitSeconds", "value": "1"}}


def meddle(some: World, chance: random.Random) -> None:
    """What users and other controllers do: revisions there and back, strategies, sizes, autoscalers, labels."""
    kind = chance.choice(
        ("revision", "revision", "back", "strategy", "size", "scaling", "autoscaler", "labels", "stuck", "stuck")
    )
    part = chance.choice(ENGINE_COMPONENTS)
    if kind == "revision":
        change(some)
    elif kind == "back":
        some.revision = chance.choice(sorted(some.groups() | {some.revision}))
    elif kind == "strategy":
        some.change_spec({"rollout": {"strategy": chance.choice(("Surge", "InPlace"))}})
    elif kind == "size":
        some.change_spec({part.value: {"replicas": chance.randrange(4)}})
    elif kind == "scaling":
        some.change_spec({part.value: {"autoscaling": SCALING}})
    elif kind == "autoscaler" and some.sets:
        group = some.plan().replicas.autoscaled_groups.get(part)
        if group is not None and (group, part) in some.sets:
            some.scale(group, part, chance.randrange(1, 5))
    elif kind == "labels" and some.sets:
        some.unlabelled.add(chance.choice(sorted(some.sets)))
    elif kind == "stuck":
        some.stuck = {(some.revision, part)} if chance.random() < 0.7 else set()


def one_look(some: World) -> None:
    """What holds at every single look, whatever was done before."""
    plan, limits = some.plan(), {}
    for part, size in ((Component.PREFILL, plan.replicas.prefill), (Component.DECODE, plan.replicas.decode)):
        limits[part] = plan.wanted[part] if size is not None else 1000
    in_place = some.parsed.spec.rollout.strategy == "InPlace"
    service, pairs = some.best_service(limits), some.all_pairs()
    kept = {part: min(plan.wanted[part], some.kept(some.revision, part)) for part in ENGINE_COMPONENTS}
    ready = {part: some.kept(some.revision, part, plan.wanted[part]) for part in ENGINE_COMPONENTS}
    budget = max(0, min(plan.wanted.values()) - 1)
    before = {part: some.may_count(part) for part in ENGINE_COMPONENTS}
    some.strangers = True
    assert some.plan() == plan, "what is not ours changes nothing"
    some.strangers = False
    some.reconcile()
    if not in_place and not plan.available:
        assert some.best_service(limits) >= service
    if in_place:
        for part in ENGINE_COMPONENTS:
            assert some.may_count(part) <= max(plan.wanted[part], before[part])
            assert some.kept(some.revision, part) >= min(kept[part], ready[part])
        assert some.all_pairs() >= min(pairs, budget)


@pytest.mark.timeout(60)
@settings(max_examples=15, deadline=None)
@given(st.sampled_from(["Surge", "InPlace"]), st.integers(1, 3), st.integers(1, 3), chances)
def test_whatever_is_done_meanwhile_what_serves_goes_on_and_it_ends(
    strategy: str, prefill: int, decode: int, seed: int
) -> None:
    chance = random.Random(seed)
    some = world(strategy, prefill, decode)
    for _ in range(120):
        kind = chance.random()
        if kind < 0.35:
            one_look(some)
        elif kind < 0.42:
            meddle(some, chance)
        elif kind < 0.6:
            some.settle()
        else:
            some.random_step(chance)
    some.stuck = set()
    assert_ends(some)


@pytest.mark.parametrize("strategy", ["Surge", "InPlace"])
@MANY
@given(chances)
def test_autoscaled_roles_end_at_the_size_they_had(strategy: str, seed: int) -> None:
    chance = random.Random(seed)
    some = world(strategy, 2, 2, autoscaled=True)
    assert_ends(some)
    for part in ENGINE_COMPONENTS:
        some.scale(some.revision, part, 3)  # the autoscaler
    assert_ends(some)
    change(some)
    for _ in range(60):
        if chance.random() < 0.3:
            some.reconcile()
        else:
            some.random_step(chance)
    assert_ends(some)
    assert {some.sets[some.revision, part].replicas for part in ENGINE_COMPONENTS} == {3}
    assert some.plan().replicas.prefill is None


def _first_violation_in_place(seeds: range) -> bool:
    for seed in seeds:
        chance = random.Random(seed)
        some = world("InPlace", 2, 2)
        for _ in range(80):
            step(some, chance)
            if some.count(Component.PREFILL) > 2 or some.count(Component.DECODE) > 2:
                return True
    return False


def test_control_without_counting_ending_pods_in_place_has_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RoleFacts, "footprint", property(lambda role: max(role.ready, role.size)))
    assert _first_violation_in_place(range(40))


def _replace_a_pod(*, while_it_shrinks: bool) -> int:
    """Pods of a role wanted twice, after an old pod went before (or while) its set shrank, and its controller, unaware, made it again."""
    some = world("InPlace", 2, 2)
    assert_ends(some)
    change(some)
    some.reconcile()
    if while_it_shrinks:
        some.reconcile()
    del some.pods["000000", Component.PREFILL, 1]
    some.reconcile()
    some.sync(some.revision, Component.PREFILL)
    some.control(some.revision, Component.PREFILL)
    some.control("000000", Component.PREFILL)
    return some.count(Component.PREFILL)


@pytest.mark.parametrize("while_it_shrinks", [False, True])
def test_in_place_leaves_room_for_pods_that_an_old_set_may_make_again(while_it_shrinks: bool) -> None:
    assert _replace_a_pod(while_it_shrinks=while_it_shrinks) == 2


def test_control_without_counting_pods_to_come_there_is_one_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RoleFacts, "footprint", property(lambda role: role.pods))
    assert _replace_a_pod(while_it_shrinks=False) == 3


def test_control_without_waiting_for_the_controller_there_is_one_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    found = rollout.groups_of
    monkeypatch.setattr(rollout, "groups_of", lambda seen: tuple(_settled(group) for group in found(seen)))
    assert _replace_a_pod(while_it_shrinks=True) == 3


def _settled(group: rollout.GroupFacts) -> rollout.GroupFacts:
    return replace(group, roles={part: replace(role, settled=True) for part, role in group.roles.items()})


def test_control_the_same_seeds_hold_with_all_guards() -> None:
    assert not _first_violation_in_place(range(40))


def test_control_surge_that_forgets_the_old_group_loses_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    some = world("Surge", 2, 2)
    assert_ends(some)
    change(some)
    assert some.most_pairs() == 2
    some.reconcile()
    assert some.most_pairs() == 2
    monkeypatch.setattr(rollout, "_is_worth", lambda group: False)
    some.reconcile()
    assert some.most_pairs() == 0
