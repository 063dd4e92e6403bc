"""The whole status: what is in it, and that it changes with the cluster alone."""

from __future__ import annotations

import json
import random
import tomllib
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from observed_world import (
    CURRENT,
    NOW,
    OLD,
    OWNER,
    all_children,
    all_pods,
    config_map,
    deployment_object,
    observed,
    parsed,
    pod,
    stateful_set,
)

from pdd_operator import __version__
from pdd_operator.api.labels import Component
from pdd_operator.api.names import ObjectRef
from pdd_operator.api.objects import Manifest
from pdd_operator.observe.observed import Observed
from pdd_operator.observe.outcome import Failure, ReconcileOutcome
from pdd_operator.observe.rollout import plan_rollout
from pdd_operator.observe.status import compute_status


def status_of(seen: Observed, **outcome: Any) -> dict[str, Any]:
    deployment = parsed(seen.deployment)
    plan = plan_rollout(deployment.spec, CURRENT, seen)
    return compute_status(seen, ReconcileOutcome(CURRENT, rollout=plan, **outcome), deployment)


def truth(status: dict[str, Any], kind: str) -> str:
    return next(str(found["status"]) for found in status["conditions"] if found["type"] == kind)


def test_the_whole_of_a_deployment_that_is_well() -> None:
    status = status_of(observed(deployment_object(), all_children(), all_pods()))
    del status["conditions"]
    assert status == {
        "observedGeneration": 3,
        "revision": CURRENT,
        "endpoint": "http://glm-router.agents.svc:8000/v1",
        "prefill": {"replicas": 2, "readyReplicas": 2, "selector": "pdserve.io/deployment=glm,pdserve.io/role=prefill"},
        "decode": {"replicas": 2, "readyReplicas": 2, "selector": "pdserve.io/deployment=glm,pdserve.io/role=decode"},
        "router": {"replicas": 2, "readyReplicas": 2, "selector": "pdserve.io/deployment=glm,pdserve.io/role=router"},
        "versions": {
            "connector": "registry.example/connector:1",
            "engine": "registry.example/engine:1",
            "operator": __version__,
            "router": "registry.example/router:1",
        },
        "groups": [{"revision": CURRENT, "prefillReady": 2, "decodeReady": 2, "current": True, "wasAvailable": True}],
    }


def test_groups_are_told_oldest_first_and_remember_that_they_were_available() -> None:
    before = {"groups": [{"revision": OLD, "wasAvailable": True}, {"revision": "aaaaaa", "wasAvailable": False}]}
    children = [*all_children(), config_map(OLD, "2026-01-01T00:00:00Z"), config_map("aaaaaa", "2026-02-01T00:00:00Z")]
    status = status_of(observed(deployment_object(status=before), children, [pod(Component.DECODE, 0, OLD)]))
    told = [
        (group["revision"], group["decodeReady"], group["current"], group["wasAvailable"]) for group in status["groups"]
    ]
    assert told == [(OLD, 1, False, True), ("aaaaaa", 0, False, False), (CURRENT, 0, True, False)]


def test_a_group_that_was_available_stays_so_when_a_pod_fails() -> None:
    seen = observed(deployment_object(), all_children(), all_pods())
    broken = observed(deployment_object(status=status_of(seen)), all_children(), all_pods()[1:])
    assert status_of(broken)["groups"][0]["wasAvailable"] is True


def test_an_invalid_spec_leaves_endpoint_revision_and_sizes_as_they_were() -> None:
    before = status_of(observed(deployment_object(), all_children(), all_pods()))
    seen = observed(deployment_object(status=before), all_children(), all_pods())
    after = compute_status(seen, ReconcileOutcome(problems=(("spec.model", "must"),)), None)
    same = {key: value for key, value in before.items() if key != "conditions"}
    assert {key: value for key, value in after.items() if key != "conditions"} == same
    assert truth(after, "Ready") == "False"
    assert truth(after, "PrefillAvailable") == "True"


def test_an_invalid_spec_at_first_sight() -> None:
    seen = observed(deployment_object(), (), ())
    status = compute_status(seen, ReconcileOutcome(problems=(("spec.model", "must"),)), None)
    assert "revision" not in status
    assert "endpoint" not in status
    assert status["groups"] == []


def test_an_invalid_spec_without_a_status_is_told_from_the_objects() -> None:
    seen = observed(deployment_object(), [*all_children()[2:], stateful_set(Component.PREFILL, CURRENT, 5)], ())
    status = compute_status(seen, ReconcileOutcome(problems=(("spec.model", "must"),)), None)
    assert status["router"]["replicas"] == 2
    assert status["prefill"]["replicas"] == 0  # whose revision is the current one cannot be told


def test_time_alone_changes_nothing() -> None:
    pods = [*all_pods()[:3], pod(Component.DECODE, 1, ready=False), *all_pods()[4:]]
    status = status_of(observed(deployment_object(), all_children(), pods))
    for hours in (1, 24, 24 * 365):
        later = observed(deployment_object(status=status), all_children(), pods, now=NOW + timedelta(hours=hours))
        assert status_of(later) == status


def test_the_order_of_what_was_read_does_not_matter() -> None:
    children, pods = all_children(), [*all_pods(ready=False), *all_pods(OLD)]
    first = json.dumps(status_of(observed(deployment_object(), children, pods)))
    for seed in range(5):
        random.Random(seed).shuffle(children)
        random.Random(seed).shuffle(pods)
        assert json.dumps(status_of(observed(deployment_object(), children, pods))) == first


AVAILABLE = ("PrefillAvailable", "DecodeAvailable", "RouterAvailable", "TransportReady", "Ready")


@given(st.sets(st.integers(0, 5)), st.integers(0, 5))
def test_one_more_ready_pod_never_makes_it_worse(ready: set[int], more: int) -> None:
    order = {"False": 0, "Unknown": 1, "True": 2}

    def status(up: set[int]) -> dict[str, Any]:
        pods: list[Manifest] = [
            pod(component, ordinal, ready=2 * index + ordinal in up)
            for index, component in enumerate(Component)
            for ordinal in range(2)
        ]
        return status_of(observed(deployment_object(), all_children(), pods))

    before, after = status(ready), status(ready | {more})
    for kind in AVAILABLE:
        assert order[truth(after, kind)] >= order[truth(before, kind)]


@pytest.mark.parametrize("reason", ["InternalError", "ApplyFailed"])
def test_without_a_plan_sizes_stay_as_they_were(reason: str) -> None:
    before = status_of(observed(deployment_object(), all_children(), all_pods()))
    seen = observed(deployment_object(status=before), all_children(), all_pods())
    after = compute_status(seen, ReconcileOutcome(failures=(Failure(reason, "x"),)), parsed(seen.deployment))
    assert after["prefill"] == before["prefill"]
    assert after["revision"] == before["revision"]


def test_without_a_plan_the_spec_says_what_is_wanted() -> None:
    """Not zero, at first sight of an object that cannot be rendered: nobody scaled it to zero."""
    seen = observed(deployment_object(), (), ())
    status = compute_status(seen, ReconcileOutcome(failures=(Failure("InternalError", "x"),)), parsed(seen.deployment))
    assert [status[part]["replicas"] for part in ("prefill", "decode", "router")] == [2, 2, 2]
    found = next(one for one in status["conditions"] if one["type"] == "DecodeAvailable")
    assert found["reason"] != "ScaledToZero"


def test_an_autoscaler_that_does_not_act_is_told_of() -> None:
    name = "glm-decode"
    scaler: Manifest = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": name, "ownerReferences": [OWNER]},
        "status": {
            "conditions": [
                {
                    "type": "ScalingActive",
                    "status": "False",
                    "reason": "FailedGetPodsMetric",
                    "message": "no metrics API",
                }
            ]
        },
    }
    for pods in (all_pods(), all_pods(ready=False)):
        status = status_of(observed(deployment_object(), [*all_children(), scaler], pods))
        told = {one["type"]: one["message"] for one in status["conditions"]}
        assert (
            f"HorizontalPodAutoscaler {name} does not act (FailedGetPodsMetric): no metrics API"
            in told["DecodeAvailable"]
        )
        assert "HorizontalPodAutoscaler" not in told["PrefillAvailable"]
    scaler["status"]["conditions"][0]["status"] = "True"
    status = status_of(observed(deployment_object(), [*all_children(), scaler], all_pods()))
    assert not any("HorizontalPodAutoscaler" in one["message"] for one in status["conditions"])


def test_a_pod_template_that_waits_is_told_of() -> None:
    waits = ObjectRef("apps/v1", "StatefulSet", "glm-decode-c0ffee")
    status = status_of(observed(deployment_object(), all_children(), all_pods()), held=(waits,))
    found = next(one for one in status["conditions"] if one["type"] == "Reconciled")
    assert (found["status"], found["reason"]) == ("Unknown", "RollingOut")
    assert found["message"].startswith(f"{waits} gets its new pod template when")


def test_the_version_is_the_package_s() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["version"] == __version__
