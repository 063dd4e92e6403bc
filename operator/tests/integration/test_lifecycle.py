"""Create, change, pause, delete: what the operator makes of a PDDeployment, with pods that become ready."""

from __future__ import annotations

import time
from typing import Any

from control_world import OURS, READY, World

from pdd_e2e.control_plane.pod_scripts import NeverReady
from pdd_e2e.operators.deployments import cpu_deployment

KINDS = {
    "ConfigMap": 2,
    "Deployment": 1,
    "NetworkPolicy": 2,
    "PodDisruptionBudget": 3,
    "Role": 1,
    "RoleBinding": 1,
    "Secret": 2,
    "Service": 3,
    "ServiceAccount": 2,
    "StatefulSet": 2,
}


def events_of(world: World, reason: str) -> list[dict[str, Any]]:
    events = world.plane.api.items(f"/api/v1/namespaces/{world.namespace}/events")
    return [event for event in events if event["reason"] == reason]


def test_a_created_deployment_gets_everything_and_a_true_status(world: World) -> None:
    operator = world.operator(lease=True, forked=False)
    operator.start()
    world.deployments.create(cpu_deployment("small"))
    world.deployments.wait_for_condition("small", "Ready", timeout_seconds=60)
    children = world.deployments.children("small")
    counts: dict[str, int] = {}
    for kind, _ in children:
        counts[kind] = counts.get(kind, 0) + 1
    assert counts == KINDS
    live = world.deployments.get("small")
    status, uid = live["status"], live["metadata"]["uid"]
    assert "finalizers" not in live["metadata"]
    assert not any("kopf" in name for name in live["metadata"].get("annotations", {}))
    assert status["observedGeneration"] == 1
    assert {role: status[role]["readyReplicas"] for role in ("prefill", "decode", "router")} == {
        "prefill": 1,
        "decode": 1,
        "router": 1,
    }
    secret_of_group = next(item for (kind, name), item in children.items() if kind == "Secret" and "claim" in name)
    config_of_group = next(item for (kind, name), item in children.items() if kind == "ConfigMap" and "engine" in name)
    assert secret_of_group["metadata"]["ownerReferences"][0]["uid"] == config_of_group["metadata"]["uid"]
    owners = {
        item["metadata"]["ownerReferences"][0]["uid"]
        for (kind, name), item in children.items()
        if (kind, name) != ("Secret", secret_of_group["metadata"]["name"])
    }
    assert owners == {uid}
    assert len(events_of(world, "AppliedObjects")) == 1, "one event for everything that was made at once"
    assert operator.ask("/healthz")[0] == 200
    assert operator.metric("pdd_operator_leader") == 1.0
    assert operator.metric('pdd_operator_reconciles_total{result="changed"}') >= 1
    assert not [line for line in operator.lines() if line.get("level") in ("warning", "error")]
    assert operator.terminate() < 5.0


# Imported by every Python that finds it first: no user has a name, as in a container whose image does not know user 65532.
NAMELESS = """
import os, pwd
def getpwuid(uid): raise KeyError(f"getpwuid(): uid not found: {uid}")
pwd.getpwuid = getpwuid
for name in ("LOGNAME", "USER", "LNAME", "USERNAME"): os.environ.pop(name, None)
"""


def test_a_user_without_a_name_will_do(world: World) -> None:
    (world.folder / "sitecustomize.py").write_text(NAMELESS)
    operator = world.operator(forked=False, settings={"PYTHONPATH": str(world.folder)})
    operator.start()
    world.deployments.create(cpu_deployment("small"))
    world.deployments.wait_for_condition("small", "Ready", timeout_seconds=60)
    assert not [line for line in operator.lines() if line.get("level") in ("warning", "error")]


# What kopf was seen to do once a watch had failed: its operator ends neither when it is told to nor when it is cancelled.
HANGING = """
import asyncio, kopf
async def operator(**_):
    print("hangs", flush=True)
    while True:
        try: await asyncio.sleep(3600)
        except asyncio.CancelledError: pass
kopf.operator = operator
"""


def test_watches_that_hang_do_not_keep_the_process_from_ending(world: World) -> None:
    (world.folder / "sitecustomize.py").write_text(HANGING)
    operator = world.operator(forked=False, settings={"PYTHONPATH": str(world.folder)})
    operator.start()
    world.wait(lambda: operator.log.exists() and {"event": "hangs"} in operator.lines(), 20, "it watches nothing")
    assert operator.terminate() < 8.0


def test_status_says_when_pods_are_not_ready(world: World) -> None:
    world.kubelet.script({"pdserve.io/role": "decode"}, NeverReady())
    world.started()
    world.deployments.create(cpu_deployment("small"))
    world.deployments.wait_for_condition("small", "PrefillAvailable")
    assert world.deployments.condition("small", "Ready")["status"] == "False"
    world.kubelet.clear_scripts()
    world.kubelet.script(OURS, READY)
    world.deployments.wait_for_condition("small", "Ready")


def test_deleting_it_leaves_nothing(world: World) -> None:
    world.started()
    world.create_ready(cpu_deployment("small"))
    world.remove("small")
    assert world.deployments.pods("small") == []


def test_a_new_one_of_the_same_name_waits_for_the_leftovers_of_the_old(world: World) -> None:
    world.started()
    first = world.create_ready(cpu_deployment("small"))
    world.deployments.delete("small")
    second = world.create_ready(cpu_deployment("small"), timeout_seconds=90)
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    owners = {
        owner["uid"]
        for item in world.deployments.children("small").values()
        for owner in item["metadata"]["ownerReferences"]
        if owner["kind"] == "PDDeployment"
    }
    assert owners == {second["metadata"]["uid"]}


def test_scaling_changes_the_set_and_nothing_else(world: World) -> None:
    world.started()
    world.create_ready(cpu_deployment("small"))
    world.wait_quiet("small")
    before = world.uids("small")
    world.deployments.patch("small", {"spec": {"decode": {"replicas": 3}}})
    world.deployments.wait_for_condition("small", "Ready")
    assert world.uids("small") == before
    decode = [
        pod for pod in world.deployments.pods("small") if pod["metadata"]["labels"]["pdserve.io/role"] == "decode"
    ]
    assert len(decode) == 3


def test_a_change_of_the_router_touches_no_engine(world: World) -> None:
    world.started()
    world.create_ready(cpu_deployment("small"))
    world.wait_quiet("small")
    before = world.versions("small")
    since = world.plane.audit.position()
    world.deployments.patch("small", {"spec": {"router": {"runOnDecodeBelowTokens": 300}}})
    world.deployments.wait_for_condition("small", "Reconciled")
    world.wait_quiet("small")
    touched = {name for name, version in world.versions("small").items() if before[name] != version}
    of_controllers = {("PodDisruptionBudget", "small-router")}  # its status counts the pods that are replaced
    assert touched - of_controllers == {("ConfigMap", "small-router"), ("Deployment", "small-router")}
    written = {(call.resource, call.name) for call in world.writes(since) if call.resource != "events"}
    assert not [name for _, name in written if "prefill" in name or "decode" in name or "engine" in name]


def test_a_paused_one_is_left_alone_until_it_is_resumed(world: World) -> None:
    world.started()
    world.create_ready(cpu_deployment("small"))
    world.deployments.patch("small", {"metadata": {"annotations": {"pdserve.io/reconcile": "paused"}}})
    world.wait(
        lambda: world.deployments.condition("small", "Reconciled").get("reason") == "Paused",
        10,
        "the pause is not said",
    )
    world.deployments.api.delete(world.deployments.child_path("Service", "small-prefill"))
    world.deployments.patch("small", {"spec": {"decode": {"replicas": 2}}})
    time.sleep(3)  # nothing may happen, and nothing says that it does not
    assert world.deployments.exists("Service", "small-prefill") is None
    world.deployments.patch("small", {"metadata": {"annotations": {"pdserve.io/reconcile": None}}})
    world.deployments.wait_for_condition("small", "Ready")
    assert world.deployments.exists("Service", "small-prefill") is not None
    assert world.deployments.get("small")["status"]["decode"]["readyReplicas"] == 2


def test_an_object_of_somebody_else_is_never_taken_over(world: World) -> None:
    path = world.deployments.child_path("Service")
    foreign = {"metadata": {"name": "small-router"}, "spec": {"ports": [{"port": 80}], "selector": {"app": "other"}}}
    made = world.plane.api.create(path, {"apiVersion": "v1", "kind": "Service", **foreign})
    world.started()
    world.deployments.create(cpu_deployment("small"))
    found = world.deployments.wait_for_condition("small", "Reconciled", "False")
    assert found["reason"] == "ForeignObject"
    assert "small-router" in found["message"]
    live = world.plane.api.get(f"{path}/small-router")
    assert live["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
    assert ("StatefulSet", f"small-prefill-{world.deployments.get('small')['status']['revision']}") in (
        world.deployments.children("small")
    ), "the rest is made"


def test_no_pod_runs_as_the_service_account_of_somebody_else(world: World) -> None:
    """Else whoever may create PDDeployments has the rights of every ServiceAccount of the namespace."""
    path = world.deployments.child_path("ServiceAccount")
    for name in ("small-engine", "small-router"):
        world.plane.api.create(path, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}})
    world.started()
    world.deployments.create(cpu_deployment("small"))
    found = world.deployments.wait_for_condition("small", "Reconciled", "False")
    assert found["reason"] == "ForeignObject"
    assert all(f"ServiceAccount/{name}" in found["message"] for name in ("small-engine", "small-router"))
    made = {kind for kind, _ in world.deployments.children("small")}
    assert made & {"ConfigMap", "Service", "Role", "NetworkPolicy"}, "the rest is made"
    assert not made & {"StatefulSet", "Deployment", "RoleBinding"}


def test_without_an_image_for_the_hardware_it_says_which_field_must_be_set(world: World) -> None:
    world.started(image_engine_cpu="")
    world.deployments.create(cpu_deployment("small"))
    found = world.deployments.wait_for_condition("small", "Accepted", "False")
    assert "image" in found["message"]
    assert world.deployments.children("small") == {}
    world.deployments.patch("small", {"spec": {"engine": {"image": "vllm-cpu:1"}}})
    world.deployments.wait_for_condition("small", "Ready")
