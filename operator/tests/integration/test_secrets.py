"""Secrets that were there before, that go away late, and that a quota has no room for. The operator may create them and nothing else."""

from __future__ import annotations

import time

from control_world import World

from pdd_e2e.control_plane.api import Json
from pdd_e2e.operators.deployments import cpu_deployment

SALT = "small-tenant-salt"
ONE_LOOK_SECONDS = 15.0


def make_salt(world: World) -> Json:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SALT}, "stringData": {"salt": "known"}}
    return world.plane.api.create(world.deployments.child_path("Secret"), secret)


def events(world: World) -> list[Json]:
    return world.plane.api.items(f"/api/v1/namespaces/{world.namespace}/events")


def test_a_secret_that_was_there_is_told_of_and_one_that_goes_late_is_made_anew(world: World) -> None:
    """As after a deletion and a creation of the same name: the collector takes the former salt when the new object runs already."""
    former = make_salt(world)["metadata"]["uid"]
    world.started()  # its resync is minutes away
    world.create_ready(cpu_deployment("small"))
    assert [
        event["type"] for event in events(world) if event["reason"] == "SecretFound" and SALT in event["message"]
    ] == ["Warning"]
    world.plane.api.delete(world.deployments.child_path("Secret", SALT))
    world.wait(lambda: world.deployments.exists("Secret", SALT), ONE_LOOK_SECONDS, "the salt is not made anew")
    live = world.deployments.exists("Secret", SALT)
    assert live is not None
    assert live["metadata"]["uid"] != former
    world.wait(
        lambda: "TenantSaltReplaced" in {event["reason"] for event in events(world)},
        5,
        "nobody is told that routers still use the former salt",
    )
    assert live["metadata"]["ownerReferences"][0]["uid"] == world.deployments.get("small")["metadata"]["uid"]


def test_a_quota_that_is_exactly_full_keeps_nothing_from_being_mended(world: World) -> None:
    operator = world.started()
    world.create_ready(cpu_deployment("small"))
    operator.terminate()
    path = f"/api/v1/namespaces/{world.namespace}/resourcequotas"
    quota = {"metadata": {"name": "full"}, "spec": {"hard": {"count/secrets": "2"}}}
    world.plane.api.create(path, {"apiVersion": "v1", "kind": "ResourceQuota", **quota})

    def full() -> bool:
        used = world.plane.api.get(f"{path}/full").get("status", {}).get("used", {})
        return bool(used.get("count/secrets") == "2")

    world.wait(full, ONE_LOOK_SECONDS, "the quota is not counted")
    world.plane.api.delete(world.deployments.child_path("Service", "small-router"))
    operator.start()
    world.wait(
        lambda: world.deployments.exists("Service", "small-router"), ONE_LOOK_SECONDS, "the Service is not restored"
    )
    time.sleep(1)  # what it would say against it, it would say now
    assert world.deployments.condition("small", "Reconciled")["status"] != "False"
