"""One look at one object against an API server of thirty lines: what is written, what is not, and when it is looked at again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import structlog
from fake_cluster import FakeCluster
from looks import KEY, SETTINGS, looks_of_a_new_process, name_of

from pdd_operator.api import labels
from pdd_operator.errors import (
    ForbiddenError,
    LeaseLostError,
    NamespaceEndingError,
    NotFoundError,
    TooManyRequestsError,
    TransientError,
)
from pdd_operator.reconcile import REFUSED_AGAIN_SECONDS
from pdd_operator.workqueue import Done, Retry


def test_the_second_look_writes_nothing(cluster: FakeCluster, look: Callable[[], Done | Retry]) -> None:
    assert isinstance(look(), Done)
    assert len([what for what in cluster.writes if what.startswith("apply")]) == 17
    assert len(cluster.secrets) == 2
    look()
    cluster.writes.clear()
    cluster.dry_runs.clear()
    assert isinstance(look(), Done)
    assert (cluster.writes, cluster.dry_runs) == ([], [])


def test_a_paused_one_tells_of_what_runs_and_not_of_what_a_newer_operator_would_make(
    cluster: FakeCluster, look: Callable[[], Done | Retry]
) -> None:
    look()
    status = cluster.deployment["status"]
    cluster.deployment["metadata"]["annotations"] = {labels.RECONCILE: labels.PAUSED}
    newer = looks_of_a_new_process(cluster, replace(SETTINGS, images=replace(SETTINGS.images, connector="connector:2")))
    newer()
    assert cluster.deployment["status"]["revision"] == status["revision"]
    assert cluster.deployment["status"]["groups"] == status["groups"]
    assert "event RolloutStarted" not in cluster.writes
    del cluster.deployment["metadata"]["annotations"]
    newer()
    assert cluster.deployment["status"]["revision"] != status["revision"]
    assert "event RolloutStarted" in cluster.writes


@pytest.mark.parametrize("lost", ["Service/small-router", "Deployment/small-router"])
def test_a_namespace_that_is_being_deleted_is_left_alone_without_a_complaint(
    cluster: FakeCluster, look: Callable[[], Done | Retry], lost: str
) -> None:
    """Its objects go one after the other, and nothing can be made there any more, not even an event."""
    look()
    ending = NamespaceEndingError("because it is being terminated", 403)
    cluster.refuse = {f"dry-run {name}": ending for name in cluster.secrets}
    cluster.refuse[f"apply {lost}"] = ending
    del cluster.objects[name_of(cluster, *lost.split("/"))]
    cluster.writes.clear()
    with structlog.testing.capture_logs() as said:
        assert look() == Done(calls=1)
        assert looks_of_a_new_process(cluster)() == Done(calls=1), "which asks for Secrets first"
    assert "status" not in cluster.writes
    assert {line["log_level"] for line in said} == {"info"}


def test_a_namespace_that_is_being_deleted_gets_no_events(
    cluster: FakeCluster, look: Callable[[], Done | Retry]
) -> None:
    cluster.refuse = {"event AppliedObjects": NamespaceEndingError("because it is being terminated", 403)}
    with structlog.testing.capture_logs() as said:
        assert isinstance(look(), Done)
    assert {line["log_level"] for line in said} == {"info"}


def test_an_object_that_went_while_it_was_looked_at_is_told_nothing(
    cluster: FakeCluster, look: Callable[[], Done | Retry]
) -> None:
    cluster.refuse = {"status": NotFoundError("not found", 404)}
    with structlog.testing.capture_logs() as said:
        assert isinstance(look(), Done)
    assert not [what for what in cluster.writes if what.startswith("event")]
    assert {line["log_level"] for line in said} == {"info"}


def test_two_operators_do_not_fight_over_one_object(cluster: FakeCluster, look: Callable[[], Done | Retry]) -> None:
    look()
    look()
    other = looks_of_a_new_process(cluster, identity="elsewhere/pdd-operator")
    del cluster.objects[name_of(cluster, "Service", "router")]
    cluster.deployment["spec"]["router"] = {"replicas": 2}
    cluster.writes.clear()
    for _ in range(3):
        assert other() == Done(calls=1)
    assert cluster.writes == ["event LeftToAnother"], "neither objects nor status"
    looks_of_a_new_process(cluster)()
    assert "apply Service/small-router" in cluster.writes, "the same installation takes it over without a word"


def test_of_two_operators_that_see_a_new_object_at_once_one_acts(
    cluster: FakeCluster, look: Callable[[], Done | Retry]
) -> None:
    fresh = cluster.get_deployment(KEY)
    look()
    assert cluster.writes[0] == "claim", "before anything is made"
    cluster.writes.clear()
    other = looks_of_a_new_process(cluster, identity="elsewhere/pdd-operator")
    live, cluster.get_deployment = cluster.get_deployment, lambda key: fresh  # type: ignore[method-assign]  # read before that
    assert other() == Retry(calls=1)
    cluster.get_deployment = live  # type: ignore[method-assign]
    other()
    assert cluster.writes == ["event LeftToAnother"]


def test_an_operator_hands_over_to_the_one_that_the_annotation_names(
    cluster: FakeCluster, look: Callable[[], Done | Retry]
) -> None:
    look()
    cluster.deployment["metadata"]["annotations"] = {labels.OPERATOR: "elsewhere/pdd-operator"}
    del cluster.objects[name_of(cluster, "Service", "router")]
    cluster.writes.clear()
    look()
    assert cluster.writes == ["event LeftToAnother"]
    other = looks_of_a_new_process(cluster, identity="elsewhere/pdd-operator")
    other()
    assert "apply Service/small-router" in cluster.writes
    assert cluster.deployment["status"]["operator"] == "elsewhere/pdd-operator"
    del cluster.deployment["metadata"]["annotations"]
    cluster.writes.clear()
    look()
    assert not [what for what in cluster.writes if "event" not in what], "and keeps it"


def test_an_invalid_one_touches_nothing_but_its_status(cluster: FakeCluster, look: Callable[[], Done | Retry]) -> None:
    look()
    cluster.writes.clear()
    cluster.deployment["spec"]["decode"]["replicas"] = -1
    assert look() == Done(calls=1)
    assert {what.split()[0] for what in cluster.writes} <= {"status", "event"}
    condition = next(one for one in cluster.deployment["status"]["conditions"] if one["type"] == "Accepted")
    assert (condition["status"], "replicas" in condition["message"]) == ("False", True)


@pytest.mark.parametrize("allowed", [False, True])
def test_privileged_engines_are_made_only_where_the_operator_may(cluster: FakeCluster, allowed: bool) -> None:
    role = {"accelerator": {"instanceType": "p5.48xlarge", "count": 8}, "tensorParallelSize": 8}
    cluster.deployment["spec"] = {
        "model": {"name": "Qwen/Qwen3-0.6B"},
        "engine": {"image": "engine:1"},
        "prefill": role,
        "decode": role,
        "transport": {"privileges": "Privileged"},
    }
    looks_of_a_new_process(cluster, replace(SETTINGS, allow_privileged=allowed))()
    made = [item for ref, item in cluster.objects.items() if ref.kind == "StatefulSet"]
    engines = [one for item in made for one in item["spec"]["template"]["spec"]["containers"]]
    assert [one["securityContext"]["privileged"] for one in engines] == ([True, True] if allowed else [])
    accepted = next(one for one in cluster.deployment["status"]["conditions"] if one["type"] == "Accepted")
    wanted = ("True", "Valid") if allowed else ("False", "PrivilegesRefused")
    assert (accepted["status"], accepted["reason"]) == wanted
    named = all(part in accepted["message"] for part in ("transport.privileges", "`allowPrivileged`"))
    assert named is not allowed


def test_one_refused_object_does_not_keep_the_others_away(
    cluster: FakeCluster, look: Callable[[], Done | Retry]
) -> None:
    cluster.refuse["apply Service/small-router"] = ForbiddenError("no", 403)
    found = look()
    assert found == Done(calls=1, again_seconds=REFUSED_AGAIN_SECONDS)
    assert len([what for what in cluster.writes if what.startswith("apply")]) == 16
    condition = next(one for one in cluster.deployment["status"]["conditions"] if one["type"] == "Reconciled")
    assert (condition["status"], condition["reason"]) == ("False", "Forbidden")


@pytest.mark.parametrize(
    ("kind", "name", "users"),
    [
        ("ServiceAccount", "small-engine", {"small-prefill", "small-decode"}),
        ("ConfigMap", "small-engine", {"small-prefill", "small-decode"}),
        ("ServiceAccount", "small-router", {"small-router"}),
        ("Role", "small-router", {"small-router"}),
        ("RoleBinding", "small-router", {"small-router"}),
        ("ConfigMap", "small-router", {"small-router"}),
    ],
)
def test_no_pods_are_made_of_what_is_somebody_else_s(
    cluster: FakeCluster, look: Callable[[], Done | Retry], kind: str, name: str, users: set[str]
) -> None:
    look()
    ref = name_of(cluster, kind, name.removeprefix("small-"))
    cluster.objects = {ref: cluster.objects[ref]}
    cluster.objects[ref]["metadata"] |= {"labels": {}, "ownerReferences": []}
    cluster.writes.clear()
    assert look() == Done(calls=1, again_seconds=REFUSED_AGAIN_SECONDS)
    workloads = {"small-prefill", "small-decode", "small-router"} - users
    made = [what.split("/")[1] for what in cluster.writes if "Set/" in what or "Deployment/" in what]
    assert {"-".join(what.split("-")[:2]) for what in made} == workloads
    condition = next(one for one in cluster.deployment["status"]["conditions"] if one["type"] == "Reconciled")
    assert condition["reason"] == "ForeignObject"
    assert all(part in condition["message"] for part in (str(ref), *users))
    assert "delete" not in condition["message"]


def test_what_lost_its_owner_is_taken_back_as_it_is(cluster: FakeCluster, look: Callable[[], Done | Retry]) -> None:
    look()
    look()
    before = {ref: item["metadata"]["uid"] for ref, item in cluster.objects.items()}
    for item in cluster.objects.values():
        item["metadata"].pop("ownerReferences")
    cluster.writes.clear()
    look()
    assert {what.split()[0] for what in cluster.writes} <= {"apply", "status", "event"}
    assert {ref: item["metadata"]["uid"] for ref, item in cluster.objects.items()} == before
    assert all(item["metadata"]["ownerReferences"] for item in cluster.objects.values())


def test_a_server_that_asks_to_wait_is_not_asked_anything_more(
    cluster: FakeCluster, look: Callable[[], Done | Retry]
) -> None:
    cluster.refuse["apply ServiceAccount/small-router"] = TooManyRequestsError("wait", 429, 7.0)
    assert look() == Retry(calls=1, at_least_seconds=7.0, progressed=True)
    assert cluster.writes[-1] == "apply ServiceAccount/small-engine"


@pytest.mark.parametrize("status", [0, 502, 503, 504])
def test_a_server_that_is_away_is_left_alone_but_told_about(
    cluster: FakeCluster, look: Callable[[], Done | Retry], status: int
) -> None:
    cluster.refuse["apply ServiceAccount/small-router"] = TransientError("away", status)
    assert look() == Retry(calls=1, progressed=True)
    assert "apply Role/small-router" not in cluster.writes
    assert "status" in cluster.writes


def test_a_server_that_fails_at_one_object_is_asked_for_the_others(
    cluster: FakeCluster, look: Callable[[], Done | Retry]
) -> None:
    cluster.refuse["apply StatefulSet/" + _set_name(cluster, look)] = TransientError("a webhook is down", 500)
    for ref in [ref for ref in cluster.objects if ref.kind in ("Service", "StatefulSet")]:
        del cluster.objects[ref]
    cluster.writes.clear()
    assert look() == Retry(calls=1, progressed=True)
    applied = [what for what in cluster.writes if what.startswith("apply")]
    assert len(applied) == 4, "three Services and the other StatefulSet"


def _set_name(cluster: FakeCluster, look: Callable[[], Done | Retry]) -> str:
    look()
    return name_of(cluster, "StatefulSet", "prefill").name


def test_without_the_lease_the_look_ends_at_once(cluster: FakeCluster, look: Callable[[], Done | Retry]) -> None:
    cluster.refuse["apply Role/small-router"] = LeaseLostError("over")
    assert isinstance(look(), Retry)
    assert cluster.writes[-1] == "apply ServiceAccount/small-router"


def test_a_bug_is_said_in_status_and_tried_again(
    cluster: FakeCluster, look: Callable[[], Done | Retry], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr("pdd_operator.reconcile.render", broken)
    assert isinstance(look(), Retry)
    condition = next(one for one in cluster.deployment["status"]["conditions"] if one["type"] == "Reconciled")
    assert condition["reason"] == "InternalError"


def test_an_apply_that_changes_nothing_is_not_repeated_for_ever(
    cluster: FakeCluster, look: Callable[[], Done | Retry]
) -> None:
    """The server stores a field otherwise than it was sent: without the guard, each look would apply again."""
    cluster.drop_field = "publishNotReadyAddresses"
    look()
    look()
    cluster.writes.clear()
    for _ in range(3):
        look()
    assert [what for what in cluster.writes if what.startswith("apply")] == []


@pytest.mark.parametrize("gone", [None, "deletionTimestamp"])
def test_what_is_gone_or_going_is_left_alone(
    cluster: FakeCluster, look: Callable[[], Done | Retry], gone: str | None
) -> None:
    if gone is None:
        cluster.deployment = None
    else:
        cluster.deployment["metadata"][gone] = "2026-01-01T00:00:00Z"
    assert look() == Done(calls=1, gone=True)
    assert cluster.writes == []


def test_a_refused_template_of_one_role_does_not_keep_the_other_waiting(
    cluster: FakeCluster, look: Callable[[], Done | Retry]
) -> None:
    look()
    for ref, item in cluster.objects.items():
        if ref.kind == "StatefulSet":
            item["metadata"]["generation"] = 1
            item["status"] = {"observedGeneration": 1, "readyReplicas": 1}
    cluster.deployment["spec"]["engine"] = {"drainTimeoutSeconds": 7}
    prefill, decode = name_of(cluster, "StatefulSet", "prefill"), name_of(cluster, "StatefulSet", "decode")
    cluster.writes.clear()
    cluster.refuse[f"apply {prefill}"] = ForbiddenError("no", 403)
    look()
    assert f"apply {decode}" in cluster.writes


def test_control_otherwise_it_waits(cluster: FakeCluster, look: Callable[[], Done | Retry]) -> None:
    look()
    for ref, item in cluster.objects.items():
        if ref.kind == "StatefulSet":
            item["metadata"]["generation"] = 1
            item["status"] = {"observedGeneration": 1, "readyReplicas": 1}
    cluster.deployment["spec"]["engine"] = {"drainTimeoutSeconds": 7}
    cluster.writes.clear()
    look()
    assert f"apply {name_of(cluster, 'StatefulSet', 'prefill')}" in cluster.writes
    assert f"apply {name_of(cluster, 'StatefulSet', 'decode')}" not in cluster.writes
    condition = next(one for one in cluster.deployment["status"]["conditions"] if one["type"] == "Reconciled")
    assert "gets its new pod template when" in condition["message"]


def test_why_pods_are_refused_is_read_where_a_set_lacks_pods(
    cluster: FakeCluster, look: Callable[[], Done | Retry]
) -> None:
    look()
    prefill, decode = (cluster.objects[name_of(cluster, "StatefulSet", part)] for part in ("prefill", "decode"))
    prefill["status"] = {"observedGeneration": 1}
    decode["status"] = {"observedGeneration": 1, "replicas": 1}
    said = "no PriorityClass with name urgent was found"
    cluster.refusals = {item["metadata"]["uid"]: said for item in (prefill, decode)}
    look()
    told = {one["type"]: one["reason"] for one in cluster.deployment["status"]["conditions"]}
    assert (told["PrefillAvailable"], told["DecodeAvailable"]) == ("PodsRefused", "PodsMissing")
