"""An operator of the whole cluster, with the chart's ClusterRole: what it promises in one namespace it keeps in each, and apart from the others."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from control_world import OURS, READY, World

from pdd_e2e.control_plane.api import Json
from pdd_e2e.control_plane.fake_kubelet import FakeKubelet
from pdd_e2e.control_plane.fixtures import ADMIN_GROUP, FAKE_KUBELET_USER, remove_namespace
from pdd_e2e.operators.deployments import Deployments, cpu_deployment

RESYNC_SECONDS = 3
STEADY_SECONDS = 10.0
REPAIR_SECONDS = 5.0
Right = tuple[str, str, str]
"""Group, resource, verb."""


@pytest.fixture
def worlds(world: World) -> Iterator[tuple[World, World]]:
    """Two namespaces of one cluster; the operator is the first one's."""
    plane = world.plane
    made = plane.api.create(
        "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "test-"}}
    )
    name = str(made["metadata"]["name"])
    plane.wait_for_service_account(name)
    kubeconfig: Path = plane.kubeconfig_for(user=FAKE_KUBELET_USER, groups=[ADMIN_GROUP])
    with FakeKubelet(kubeconfig, namespace=name) as kubelet:
        kubelet.script(OURS, READY)
        yield world, replace(world, deployments=Deployments(plane.api, name), kubelet=kubelet)
        remove_namespace(plane, name)


def granted(world: World) -> set[Right]:
    """By the ClusterRoles that are bound to the operator's account."""
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    namespace, account = world.installation.account
    roles = [
        binding["roleRef"]["name"]
        for binding in world.plane.api.items(f"{rbac}/clusterrolebindings")
        for subject in binding.get("subjects", ())
        if (subject.get("namespace"), subject["name"]) == (namespace, account)
    ]
    rules: list[Json] = [rule for role in roles for rule in world.plane.api.get(f"{rbac}/clusterroles/{role}")["rules"]]
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_two_namespaces_are_made_repaired_and_left_in_peace(worlds: tuple[World, World]) -> None:
    first, second = worlds
    since = first.plane.audit.position()
    operator = first.started(watch_namespaces="", resync_seconds=str(RESYNC_SECONDS))
    for world in worlds:
        world.deployments.create(cpu_deployment("small"))
    for world in worlds:
        world.deployments.wait_for_condition("small", "Ready", timeout_seconds=60)

    for world in worlds:
        deleted = world.deployments.child_path("Service", "small-router")
        edited = world.deployments.child_path("ConfigMap", "small-router")
        was = world.plane.api.get(edited)["data"]
        world.plane.api.delete(deleted)
        world.plane.api.patch(edited, {"data": {"router.yaml": "edited"}})
        world.wait(lambda w=world: w.deployments.exists("Service", "small-router"), REPAIR_SECONDS, "no Service")
        world.wait(lambda e=edited, d=was: first.plane.api.get(e)["data"] == d, REPAIR_SECONDS, "an edit stays")

    for world in worlds:
        world.wait_quiet("small")
    quiet_since, versions = first.plane.audit.position(), [world.versions("small") for world in worlds]
    time.sleep(STEADY_SECONDS)  # the absence of something can only be waited for
    for world, before in zip(worlds, versions, strict=True):
        assert world.writes(quiet_since) == []
        assert world.versions("small") == before
        assert_one_list_per_resync(world, quiet_since)

    first.remove("small")
    assert second.versions("small") == versions[1], "what goes in one namespace goes in that alone"
    operator.terminate()  # a watch is in the log once it has ended
    assert_within_rights(worlds, since)


def assert_one_list_per_resync(world: World, since: int) -> None:
    calls = world.plane.audit.calls(since=since, user=world.installation.user, namespace=world.namespace)
    lists = Counter(call.resource for call in calls if call.verb == "list")
    assert STEADY_SECONDS / RESYNC_SECONDS - 2 <= max(lists.values()) <= STEADY_SECONDS / RESYNC_SECONDS + 2, lists


def assert_within_rights(worlds: tuple[World, World], since: int) -> None:
    """In both namespaces, and where a whole kind is watched (calls without a namespace)."""
    first, second = worlds
    calls = [
        call
        for call in first.plane.audit.calls(since=since, user=first.installation.user)
        if call.namespace in ("", first.namespace, second.namespace) and call.resource
    ]
    assert [call for call in calls if call.code == 403] == []
    used = {(call.group, call.resource, call.verb) for call in calls}
    assert used <= granted(first), used - granted(first)
    watched = {call.resource for call in calls if call.verb == "watch"}
    assert {call.namespace for call in calls if call.verb == "watch"} == {""}, (
        "one watch per kind, for the whole cluster"
    )
    assert {"pddeployments", "pods", "statefulsets"} <= watched
