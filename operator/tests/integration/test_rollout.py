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
    of_roles = ("StatefulSet", "PodDisruptionBudget")
    gone = [(kind, f"small-{role}-{old}") for kind in of_roles for role in ("prefill", "decode")]
    assert set(gone) <= set(before)
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


SCALING = {"minReplicas": 1, "maxReplicas": 5, "target": {"metric": "CPUUtilization", "value": "80"}}


def scaled_by_the_autoscaler(world: World, group: str, size: int) -> None:
    scale = world.deployments.child_path("StatefulSet", f"small-decode-{group}") + "/scale"
    world.plane.api.patch(scale, {"spec": {"replicas": size}}, fieldManager="kube-controller-manager")


def test_an_autoscaled_role_that_loses_labels_or_its_set_keeps_its_size_and_autoscaler(world: World) -> None:
    world.started(resync_seconds="3")
    world.create_ready(cpu_deployment("small", decode={"accelerator": {"type": "CPU"}, "autoscaling": SCALING}))
    group = revision(world)
    world.wait(lambda: world.deployments.exists("HorizontalPodAutoscaler", "small-decode"), 15, "no autoscaler")
    scaler = world.uids("small")["HorizontalPodAutoscaler", "small-decode"]
    scaled_by_the_autoscaler(world, group, 4)
    world.wait(lambda: len(of_role(world, "decode")) == 4, 20, "it does not grow")
    world.wait_quiet("small")
    path = world.deployments.child_path("StatefulSet", f"small-decode-{group}")
    for label in ("revision-group", "role", "deployment"):
        world.plane.api.patch(path, {"metadata": {"labels": {f"pdserve.io/{label}": None}}})
        world.wait(
            lambda label=label: f"pdserve.io/{label}" in engine_set(world, "decode", group)["metadata"]["labels"],
            20,
            f"the label {label} is not restored",
        )
        assert engine_set(world, "decode", group)["spec"]["replicas"] == 4
    world.plane.api.delete(path, {"propagationPolicy": "Orphan"})
    world.wait(lambda: engine_set(world, "decode", group), 20, "the set is not made anew")
    world.wait_quiet("small")
    assert engine_set(world, "decode", group)["spec"]["replicas"] == 4
    assert len(of_role(world, "decode")) == 4
    assert world.uids("small")["HorizontalPodAutoscaler", "small-decode"] == scaler


def test_a_new_pod_template_reaches_one_role_after_the_other(world: World) -> None:
    world.started()
    world.create_ready(cpu_deployment("small"))
    group = revision(world)
    (decode,) = of_role(world, "decode")
    world.kubelet.script(OURS | {"pdserve.io/role": "prefill"}, NeverReady())
    world.deployments.patch("small", {"spec": {"engine": {"drainTimeoutSeconds": 7}}})

    def waits() -> bool:
        return "gets its new pod template when" in str(world.deployments.condition("small", "Reconciled")["message"])

    world.wait(waits, 15, "nothing is said of what waits")
    time.sleep(3)  # decode must not go now
    assert [pod["metadata"]["uid"] for pod in of_role(world, "decode")] == [decode["metadata"]["uid"]]
    world.kubelet.clear_scripts()
    world.kubelet.script(OURS, Runs(init_messages=PASSED))
    world.wait(lambda: of_role(world, "decode")[:1] not in ([], [decode]) and not waits(), 40, "decode waits for ever")
    world.deployments.wait_for_condition("small", "Reconciled", timeout_seconds=30)
    assert revision(world) == group
    assert of_role(world, "decode")[0]["metadata"]["uid"] != decode["metadata"]["uid"]
