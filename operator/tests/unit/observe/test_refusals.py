"""Pods that the API server refuses, and pods that wait for what a volume needs: what is told, and which field helps."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
from observed_world import CPU_ROLE, NAME, all_children, deployment_object, observed, parsed, stateful_set

from pdd_operator.api.labels import Component
from pdd_operator.api.objects import Manifest, ref_of
from pdd_operator.observe.outcome import ReconcileOutcome
from pdd_operator.observe.pods import explain_pod
from pdd_operator.observe.reasons import Reason
from pdd_operator.observe.refusals import explain_refusal, sets_without_pods
from pdd_operator.observe.rollout import plan_rollout
from pdd_operator.observe.scheduling import PodContext
from pdd_operator.observe.status import compute_status

BEGINNING = (
    f'create Pod {NAME}-prefill-c0ffee-0 in StatefulSet {NAME}-prefill-c0ffee failed error: pods "x" is forbidden: '
)
EFA = parsed(deployment_object()).spec
CPU = parsed(deployment_object({"prefill": CPU_ROLE, "decode": CPU_ROLE, "transport": {"backend": "Socket"}})).spec
REFUSALS = {
    "quota": (
        "exceeded quota: team, requested: pods=1, used: pods=4, limited: pods=4",
        Reason.QUOTA_EXCEEDED,
        "Raise ResourceQuota team, or lower `spec.prefill.replicas`",
    ),
    "quota that must be told": (
        "failed quota: team: must specify limits.cpu for: engine,preflight",
        Reason.PODS_REFUSED,
        "`spec.prefill.podTemplate.resources`",
    ),
    "limit range": (
        "maximum memory usage per Container is 1Gi, but limit is 5Gi",
        Reason.PODS_REFUSED,
        "change `spec.prefill.podTemplate.resources`, or the LimitRange",
    ),
    "priority class": (
        "no PriorityClass with name urgent was found",
        Reason.PODS_REFUSED,
        "`spec.prefill.podTemplate.priorityClassName` names it: create PriorityClass urgent",
    ),
    "runtime class": (
        'pod rejected: RuntimeClass "gvisor" not found',
        Reason.PODS_REFUSED,
        "`spec.prefill.podTemplate.runtimeClassName` names it: create RuntimeClass gvisor",
    ),
    "something else": ("the webhook does not like it", Reason.PODS_REFUSED, "the webhook does not like it."),
}


@pytest.mark.parametrize(("said", "reason", "words"), REFUSALS.values(), ids=REFUSALS)
def test_the_field_or_the_object_that_helps_is_named(said: str, reason: Reason, words: str) -> None:
    trouble = explain_refusal(Component.PREFILL, CPU, f"{NAME}-prefill-c0ffee", BEGINNING + said)
    assert trouble.reason is reason
    assert words in trouble.message
    assert f'pods "x" is forbidden: {said}' in trouble.message, "the API server's own words"
    assert "failed error" not in trouble.message


def test_pod_security_is_told_with_the_exception_that_efa_needs() -> None:
    said = 'violates PodSecurity "restricted:latest": unrestricted capabilities'
    assert "enforce=privileged" in explain_refusal(Component.DECODE, EFA, "x", said).message
    assert "`spec.decode.podTemplate` asks for more" in explain_refusal(Component.DECODE, CPU, "x", said).message


def test_events_are_read_of_sets_alone_that_lack_pods_and_were_seen_by_their_controller() -> None:
    whole, lacking, unseen = (stateful_set(Component.PREFILL, group) for group in ("aaaaaa", "bbbbbb", "cccccc"))
    whole["status"]["replicas"] = 2
    unseen["status"] = {}
    objects = {ref_of(item): item for item in (whole, lacking, unseen, *all_children()) if "status" in item}
    del objects[ref_of(stateful_set(Component.DECODE))]
    found = dict(sets_without_pods({ref: item for ref, item in objects.items() if "c0ffee" not in ref.name}))
    assert found == {ref_of(lacking): lacking["metadata"]["uid"]}


def test_status_has_the_words_of_the_event() -> None:
    """Where no pod is there; where the event is not read, it only says where to look."""
    seen = observed(deployment_object(), all_children(), ())
    prefill = stateful_set(Component.PREFILL)
    told = replace(seen, refusals={ref_of(prefill): f"{BEGINNING}no PriorityClass with name urgent was found"})
    assert _prefill(told)["reason"] == "PodsRefused"
    assert "priorityClassName" in _prefill(told)["message"]
    assert _prefill(seen)["reason"] == "PodsMissing"


def _prefill(seen: Any) -> Any:
    deployment = parsed(deployment_object())
    sizes = plan_rollout(deployment.spec, "c0ffee", seen)
    status = compute_status(seen, ReconcileOutcome("c0ffee", rollout=sizes), deployment)
    return next(item for item in status["conditions"] if item["type"] == "PrefillAvailable")


def waiting(volumes: list[dict[str, Any]], ready_to_start: str = "False", **spec: Any) -> Manifest:
    conditions = [
        {"type": "PodScheduled", "status": "True"},
        {"type": "PodReadyToStartContainers", "status": ready_to_start},
    ]
    init = [{"name": "connector", "state": {"waiting": {"reason": "PodInitializing"}}}]
    return {
        "metadata": {"name": "p"},
        "spec": {"volumes": volumes, **spec},
        "status": {"phase": "Pending", "conditions": conditions, "initContainerStatuses": init},
    }


VOLUMES = [
    {"name": "pdd-scripts", "configMap": {"name": "ours"}},
    {"name": "templates", "configMap": {"name": "chat-templates"}},
    {"name": "spare", "secret": {"secretName": "spare", "optional": True}},
    {"name": "both", "projected": {"sources": [{"secret": {"name": "certificate"}}, {"configMap": {"name": "more"}}]}},
]


def test_a_pod_without_its_volumes_is_told_with_what_they_need() -> None:
    trouble = explain_pod(PodContext(waiting(VOLUMES), Component.PREFILL, CPU))
    assert trouble is not None
    field = "(`spec.prefill.podTemplate.volumes`)"
    assert f"ConfigMap chat-templates {field}, Secret certificate {field}, ConfigMap more {field}." in trouble.message
    assert trouble.reason is Reason.CONTAINER_STARTING


def test_the_api_keys_of_a_router_are_told_with_their_field() -> None:
    keys = deployment_object({"router": {"authentication": {"apiKeysSecretName": "keys"}}})
    volumes = [{"name": "pdd-api-keys", "secret": {"secretName": "keys"}}]
    trouble = explain_pod(PodContext(waiting(volumes), Component.ROUTER, parsed(keys).spec))
    assert trouble is not None
    assert "Secret keys (`spec.router.authentication.apiKeysSecretName`)" in trouble.message


def test_volumes_that_are_there_are_not_told_of() -> None:
    trouble = explain_pod(PodContext(waiting(VOLUMES, "True"), Component.PREFILL, CPU))
    assert trouble is not None
    assert "volumes" not in trouble.message


@pytest.mark.parametrize(("scheduler", "told"), [("volcano", True), ("default-scheduler", False)])
def test_a_scheduler_that_takes_no_pod_is_told_with_its_field(scheduler: str, told: bool) -> None:
    pod = copy.deepcopy(waiting([], schedulerName=scheduler))
    pod["status"] = {"phase": "Pending"}
    trouble = explain_pod(PodContext(pod, Component.DECODE, CPU))
    assert trouble is not None
    assert (f"{scheduler}, which `spec.decode.podTemplate.schedulerName` names" in trouble.message) is told
