"""Revision groups on a real API server: Surge beside the old, InPlace within the hardware there is, and sizes that an autoscaler owns."""

from __future__ import annotations

import time
from typing import Any

from control_world import OURS, PASSED, World

from pdd_e2e.control_plane.api import Json
from pdd_e2e.control_plane.pod_scripts import NeverReady, Runs
from pdd_e2e.operators.deployments import cpu_deployment

CHANGE = {"spec": {"engine": {"maxModelLen": 4096}}}
TWO = {"replicas": 2, "accelerator": {"type": "CPU"}}


def revision(world: World) -> str:
    return str(world.deployments.get("small")["status"]["revision"])


def finished(world: World, old: str) -> bool:
    status = world.deployments.get("small").get("status", {})
    ready = next(one for one in status["conditions"] if one["type"] == "Ready")
    return status["revision"] != old and len(status["groups"]) == 1 and ready["status"] == "True"


def of_role(world: World, role: str) -> list[Json]:
    return [pod for pod in world.deployments.pods("small") if pod["metadata"]["labels"]["pdserve.io/role"] == role]


def engine_set(world: World, role: str, group: str) -> Any:
    return world.deployments.exists("StatefulSet", f"small-{role}-{group}")


def test_surge_keeps_the_old_group_until_the_new_one_is_ready(world: World) -> None:
    world.started()
    world.create_ready(cpu_deployment("small"))
    old = revision(world)
    before = world.uids("small")
    world.kubelet.script(OURS, NeverReady())
    world.deployments.patch("small", CHANGE)
    world.wait(lambda: revision(world) != old, 15, "no new group")
    new = revision(world)
    world.wait(lambda: engine_set(world, "decode", new), 15, "no new set")
    time.sleep(3)  # the old one must not go now
    assert all(engine_set(world, role, old)["spec"]["replicas"] == 1 for role in ("prefill", "decode"))
    assert world.deployments.exists("Secret", f"small-claim-{new}") is not None
    world.kubelet.clear_scripts()
    world.kubelet.script(OURS, Runs(init_messages=PASSED))
    world.wait(lambda: finished(world, old), 40, "the rollout does not finish")
    gone = [("StatefulSet", f"small-{role}-{old}") for role in ("prefill", "decode")]
    gone += [("ConfigMap", f"small-engine-{old}"), ("Secret", f"small-claim-{old}")]
    world.wait(lambda: not set(gone) & set(world.deployments.children("small")), 30, "the old group is not gone")
    after = world.uids("small")
    assert {name: uid for name, uid in before.items() if name not in gone}.items() <= after.items()


def test_in_place_never_has_more_pods_than_are_asked_for(world: World) -> None:
    world.started()
    world.create_ready(cpu_deployment("small", prefill=TWO, decode=TWO, rollout={"strategy": "InPlace"}))
    old = revision(world)
    most = {"prefill": 0, "decode": 0}
    world.deployments.patch("small", CHANGE)

    def watched() -> bool:
        for role in most:
            most[role] = max(most[role], len(of_role(world, role)))
        return finished(world, old)

    world.wait(watched, 60, "the rollout does not finish")
    assert most == {"prefill": 2, "decode": 2}


def test_a_change_during_a_rollout_ends_with_one_group(world: World) -> None:
    world.started()
    world.create_ready(cpu_deployment("small"))
    old = revision(world)
    world.kubelet.script(OURS, NeverReady())
    world.deployments.patch("small", CHANGE)
    world.wait(lambda: revision(world) != old, 15, "no new group")
    middle = revision(world)
    world.wait(lambda: engine_set(world, "decode", middle), 15, "no new set")
    world.deployments.patch("small", {"spec": {"engine": {"maxModelLen": 2048}}})
    world.wait(lambda: revision(world) not in (old, middle), 15, "no third group")
    world.wait(lambda: engine_set(world, "decode", middle) is None, 30, "a group that never ran is kept")
    assert engine_set(world, "decode", old) is not None
    world.kubelet.clear_scripts()
    world.kubelet.script(OURS, Runs(init_messages=PASSED))
    world.wait(lambda: finished(world, old), 40, "the rollout does not finish")


def test_an_autoscaled_role_keeps_its_size(world: World) -> None:
    """The operator gives `spec.replicas` away without it falling to 1, and leaves what the autoscaler sets."""
    world.started(resync_seconds="3")
    world.create_ready(cpu_deployment("small", decode=TWO | {"replicas": 3}))
    group = revision(world)
    sizes: list[int] = []

    def size() -> int:
        sizes.append(engine_set(world, "decode", revision(world))["spec"]["replicas"])
        return sizes[-1]

    scaling = {"minReplicas": 1, "maxReplicas": 5, "target": {"metric": "CPUUtilization", "value": "80"}}
    world.deployments.patch("small", {"spec": {"decode": {"replicas": None, "autoscaling": scaling}}})
    path = world.deployments.child_path("HorizontalPodAutoscaler", "small-decode")
    world.wait(
        lambda: size() and world.deployments.exists("HorizontalPodAutoscaler", "small-decode"), 15, "no autoscaler"
    )
    assert world.plane.api.get(path)["spec"]["scaleTargetRef"]["name"] == f"small-decode-{group}"
    for _ in range(20):
        size()
        time.sleep(0.1)
    assert set(sizes) == {3}, "handed over without falling"
    scale = world.deployments.child_path("StatefulSet", f"small-decode-{group}") + "/scale"
    world.plane.api.patch(scale, {"spec": {"replicas": 4}}, fieldManager="kube-controller-manager")
    time.sleep(7)  # two resyncs
    assert size() == 4, "what the autoscaler sets stays"
    world.deployments.patch("small", CHANGE)
    world.wait(lambda: finished(world, group), 40, "the rollout does not finish")
    assert size() == 4, "a new group begins with the size of the old one"
    world.deployments.patch("small", {"spec": {"decode": {"replicas": 3, "autoscaling": None}}})
    world.wait(lambda: size() == 3, 15, "the operator does not take the size back")
    world.wait(
        lambda: world.deployments.exists("HorizontalPodAutoscaler", "small-decode") is None, 15, "the autoscaler stays"
    )
