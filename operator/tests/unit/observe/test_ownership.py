"""Whose objects and pods are counted: never by labels alone, which may be copied or lost."""

from __future__ import annotations

from typing import Any

import pytest
from observed_world import (
    CURRENT,
    NAME,
    OLD,
    all_children,
    all_pods,
    config_map,
    deployment_object,
    observed,
    parsed,
    pod,
    stateful_set,
)
from rollout_world import strange_children, strange_pods

from pdd_operator.api.labels import Component
from pdd_operator.api.objects import Manifest
from pdd_operator.observe.groups import groups_of, pods_of, set_of
from pdd_operator.observe.observed import Observed
from pdd_operator.observe.outcome import ReconcileOutcome
from pdd_operator.observe.ownership import disowned_sets
from pdd_operator.observe.rollout import plan_rollout
from pdd_operator.observe.status import compute_status

IN_PLACE = {"rollout": {"strategy": "InPlace"}}
LISTED = {"groups": [{"revision": OLD, "wasAvailable": True}, {"revision": CURRENT, "wasAvailable": False}]}


def status_of(seen: Observed) -> dict[str, Any]:
    deployment = parsed(seen.deployment)
    plan = plan_rollout(deployment.spec, CURRENT, seen)
    return compute_status(seen, ReconcileOutcome(CURRENT, rollout=plan), deployment)


@pytest.mark.parametrize("spec", [{}, IN_PLACE])
def test_copies_and_strangers_change_neither_sizes_nor_status(spec: Any) -> None:
    ours = observed(deployment_object(spec), all_children(), all_pods())
    crowd = observed(
        deployment_object(spec),
        [*strange_children(CURRENT), *all_children()],
        [*strange_pods(CURRENT), *all_pods()],
    )
    assert groups_of(crowd) == groups_of(ours)
    assert status_of(crowd) == status_of(ours)
    plans = [plan_rollout(parsed(seen.deployment).spec, CURRENT, seen) for seen in (ours, crowd)]
    assert plans[0] == plans[1]
    assert (plans[0].replicas.prefill, plans[0].old_replicas, plans[0].finished) == (2, {}, frozenset())


@pytest.mark.parametrize("marks", [{}, {"pdserve.io/revision-group": CURRENT}, {"pdserve.io/role": "router"}])
def test_labels_that_were_lost_or_changed_change_nothing(marks: dict[str, str]) -> None:
    children = [*all_children(), *all_children(OLD)[:3]]
    seen = observed(deployment_object(status=LISTED), children, [*all_pods(ready=False), *all_pods(OLD)])
    before, facts = plan_rollout(parsed(seen.deployment).spec, CURRENT, seen), groups_of(seen)
    for item in [*children, *seen.pods[:4]]:
        if item["kind"] != "Deployment":
            item["metadata"]["labels"] = dict(marks)
    assert groups_of(seen) == facts
    assert plan_rollout(parsed(seen.deployment).spec, CURRENT, seen) == before


def test_pods_of_a_set_that_is_gone_are_counted_as_they_hold_hardware() -> None:
    orphan: Manifest = pod(Component.DECODE, 1)
    orphan["metadata"]["ownerReferences"] = []
    seen = observed(deployment_object(), [], [pod(Component.DECODE, 0), orphan])
    assert len(pods_of(seen, Component.DECODE, CURRENT)) == 2
    assert set_of(seen, Component.DECODE, CURRENT) is None
    (group,) = groups_of(seen)
    assert (group.roles[Component.DECODE].pods, group.roles[Component.DECODE].reach) == (2, 2)


def test_an_old_set_that_lost_its_owner_is_kept_and_named() -> None:
    lost = stateful_set(Component.DECODE, OLD)
    lost["metadata"]["ownerReferences"] = []
    children = [*all_children(), stateful_set(Component.PREFILL, OLD), lost, config_map(OLD)]
    seen = observed(deployment_object(status=LISTED), children, [*all_pods(), *all_pods(OLD)[:4]])
    assert [ref.name for ref in disowned_sets(seen)] == [f"{NAME}-decode-{OLD}"]
    assert plan_rollout(parsed(seen.deployment).spec, CURRENT, seen).finished == frozenset()
    found = next(one for one in status_of(seen)["conditions"] if one["type"] == "Reconciled")
    assert found["reason"] == "RollingOut"
    assert f"StatefulSet/{NAME}-decode-{OLD} lost its ownerReferences" in found["message"]
