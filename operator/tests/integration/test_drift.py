"""R4: what somebody deletes or edits is back within five seconds, and what somebody adds stays."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from control_world import World

from pdd_e2e.control_plane.api import Json
from pdd_e2e.operators.deployments import CHILD_PATHS, Name, cpu_deployment

REPAIR_SECONDS = 5.0
SEEN_KINDS = [kind for kind in CHILD_PATHS if kind not in ("Secret", "HorizontalPodAutoscaler")]
"""Secrets cannot be seen by the operator; a HorizontalPodAutoscaler is only there where one is asked for."""


def pod_spec(item: Json) -> Any:
    return item["spec"]["template"]["spec"]


EDITS: dict[str, Callable[[Json], Json]] = {
    "StatefulSet": lambda item: {"spec": {"replicas": 2}},
    "Deployment": lambda item: {"spec": {"replicas": 3}},
    "Service": lambda item: {"spec": {"selector": {"app": "elsewhere"}}},
    "ServiceAccount": lambda item: {"automountServiceAccountToken": not item.get("automountServiceAccountToken")},
    "ConfigMap": lambda item: {"data": {next(iter(item["data"])): "edited"}},
    "PodDisruptionBudget": lambda item: {"spec": {"maxUnavailable": 5}},
    "NetworkPolicy": lambda item: {"spec": {"ingress": [{}]}},
    "Role": lambda item: {"rules": []},
    "RoleBinding": lambda item: {"subjects": []},
}


@pytest.fixture
def ready(world: World) -> Iterator[World]:
    world.started()
    world.create_ready(cpu_deployment("small"))
    world.wait_quiet("small")
    yield world


def one_of_each(world: World) -> dict[str, Name]:
    found: dict[str, Name] = {}
    for kind, name in sorted(world.deployments.children("small")):
        found.setdefault(kind, (kind, name))
    return found


def test_a_deleted_child_of_any_kind_comes_back(ready: World) -> None:
    chosen = one_of_each(ready)
    assert sorted(chosen) == sorted([*SEEN_KINDS, "Secret"])
    took = {}
    for kind in SEEN_KINDS:
        _, name = chosen[kind]
        uid = ready.uids("small")[kind, name]
        ready.plane.api.delete(ready.deployments.child_path(kind, name), {"propagationPolicy": "Background"})

        def back(kind: str = kind, name: str = name, uid: str = uid) -> bool:
            live = ready.deployments.exists(kind, name)
            return live is not None and live["metadata"]["uid"] != uid

        took[kind] = ready.wait(back, 20, f"{kind} is not restored")
    assert max(took.values()) <= REPAIR_SECONDS, took
    ready.deployments.wait_for_condition("small", "Ready")


def test_an_edited_child_of_any_kind_is_mended_and_foreign_fields_stay(ready: World) -> None:
    chosen = one_of_each(ready)
    before = _without_mine(ready.snapshot("small"))
    for kind in SEEN_KINDS:
        path = ready.deployments.child_path(kind, chosen[kind][1])
        foreign = {"metadata": {"annotations": {"example.com/mine": "yes"}, "labels": {"example.com/mine": "yes"}}}
        live = ready.plane.api.patch(path, foreign, fieldManager="somebody")
        ready.plane.api.patch(path, EDITS[kind](live), fieldManager="somebody")
    deadline = time.monotonic() + REPAIR_SECONDS
    while (found := _without_mine(ready.snapshot("small"))) != before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert found == before
    for kind in SEEN_KINDS:
        metadata = ready.deployments.exists(*chosen[kind])["metadata"]
        assert metadata["annotations"]["example.com/mine"] == "yes"
        assert metadata["labels"]["example.com/mine"] == "yes"


def test_variables_of_others_stay_and_ours_are_mended(ready: World) -> None:
    kind, name = one_of_each(ready)["Deployment"]
    path = ready.deployments.child_path(kind, name)
    container = pod_spec(ready.plane.api.get(path))["containers"][0]["name"]
    theirs = [{"name": "THEIRS", "value": "1"}]
    ready.plane.api.patch(path, _with_container(container, {"env": theirs}), "strategic", fieldManager="somebody")
    ready.plane.api.patch(path, _with_container(container, {"image": "evil:1"}), "strategic", fieldManager="somebody")
    ready.wait(lambda: _first(ready, path)["image"] != "evil:1", REPAIR_SECONDS, "the image is not mended")
    assert {"name": "THEIRS", "value": "1"} in _first(ready, path)["env"]


def test_a_child_that_lost_its_labels_gets_them_back_and_is_not_made_twice(ready: World) -> None:
    path = ready.deployments.child_path("Service", "small-prefill")
    before = ready.plane.api.get(path)["metadata"]
    ready.plane.api.patch(path, {"metadata": {"labels": {name: None for name in before["labels"]}}})
    ready.wait(
        lambda: ready.plane.api.get(path)["metadata"].get("labels") == before["labels"], 10, "the labels are not back"
    )
    assert ready.plane.api.get(path)["metadata"]["uid"] == before["uid"]


def test_children_that_lost_their_owner_are_taken_back_and_nothing_restarts(ready: World) -> None:
    chosen, uids = one_of_each(ready), ready.uids("small")
    pods = {pod["metadata"]["uid"] for pod in ready.deployments.pods("small")}
    for kind in SEEN_KINDS:
        ready.plane.api.patch(
            ready.deployments.child_path(kind, chosen[kind][1]), {"metadata": {"ownerReferences": None}}
        )

    def taken_back() -> bool:
        children = ready.deployments.children("small")
        return all(children[chosen[kind]]["metadata"].get("ownerReferences") for kind in SEEN_KINDS)

    ready.wait(taken_back, 10, "they have no owner")
    ready.deployments.wait_for_condition("small", "Reconciled")
    assert ready.uids("small") == uids
    assert {pod["metadata"]["uid"] for pod in ready.deployments.pods("small")} == pods


def test_a_deleted_secret_comes_back_at_the_next_resync_and_that_is_said(world: World) -> None:
    """The exception: the operator may not watch Secrets, so it asks by dry run at each resync only."""
    world.started(resync_seconds="2")
    world.create_ready(cpu_deployment("small"))
    kind, name = next(key for key in world.deployments.children("small") if key[0] == "Secret" and "claim" in key[1])
    world.plane.api.delete(world.deployments.child_path(kind, name))
    world.wait(lambda: world.deployments.exists(kind, name), 15, "the Secret is not restored")

    def said() -> bool:
        events = world.plane.api.items(f"/api/v1/namespaces/{world.namespace}/events")
        return any(event["reason"] == "ClaimKeyReplaced" and name in event["message"] for event in events)

    world.wait(said, 10, "no event")


def test_without_an_operator_nothing_is_restored(world: World) -> None:
    """Control: it is the operator that mends, not some controller."""
    operator = world.started()
    world.create_ready(cpu_deployment("small"))
    operator.terminate()
    world.plane.api.delete(world.deployments.child_path("Service", "small-prefill"))
    time.sleep(REPAIR_SECONDS)
    assert world.deployments.exists("Service", "small-prefill") is None


def _with_container(name: str, change: Json) -> Json:
    return {"spec": {"template": {"spec": {"containers": [{"name": name, **change}]}}}}


def _first(world: World, path: str) -> Any:
    return pod_spec(world.plane.api.get(path))["containers"][0]


def _without_mine(snapshot: dict[Name, Json]) -> dict[Name, Json]:
    for item in snapshot.values():
        for part in ("annotations", "labels"):
            found = item["metadata"].get(part, {})
            found.pop("example.com/mine", None)
            if not found:
                item["metadata"].pop(part, None)
    return snapshot
