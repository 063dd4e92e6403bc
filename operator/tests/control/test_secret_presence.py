"""When Secrets are asked for, made anew and told of: they cannot be read or watched."""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from fake_cluster import Clock, FakeCluster
from looks import RESYNC_SECONDS, looks_of_a_new_process, name_of

from pdd_operator.api.names import ObjectRef
from pdd_operator.errors import ForbiddenError, QuotaExceededError, TransientError
from pdd_operator.reconcile import REFUSED_AGAIN_SECONDS
from pdd_operator.secret_presence import DOUBT_AGAIN_SECONDS, DOUBT_SECONDS
from pdd_operator.workqueue import Done, Retry


def reconciled(cluster: FakeCluster) -> tuple[str, str]:
    found = next(one for one in cluster.deployment["status"]["conditions"] if one["type"] == "Reconciled")
    return found["status"], found["reason"]


def test_secrets_are_asked_for_at_each_resync(
    cluster: FakeCluster, clock: Clock, look: Callable[[], Done | Retry]
) -> None:
    look()
    look()
    claim = next(name for name in cluster.secrets if "claim" in name)
    cluster.secrets.discard(claim)
    cluster.writes.clear()
    look()
    assert cluster.writes == [], "Secrets cannot be watched"
    clock.now += RESYNC_SECONDS
    look()
    assert f"secret {claim}" in cluster.writes
    assert "event ClaimKeyReplaced" in cluster.writes


def test_a_salt_that_is_made_anew_while_routers_run_is_said(
    cluster: FakeCluster, clock: Clock, look: Callable[[], Done | Retry]
) -> None:
    look()
    assert "event TenantSaltReplaced" not in cluster.writes
    cluster.secrets.discard("small-tenant-salt")
    clock.now += RESYNC_SECONDS
    look()
    assert "secret small-tenant-salt" in cluster.writes
    assert "event TenantSaltReplaced" in cluster.writes
    assert "event ClaimKeyReplaced" not in cluster.writes


def test_a_secret_whose_owner_was_made_anew_is_watched_until_it_cannot_be_collected_any_more(
    cluster: FakeCluster, clock: Clock, look: Callable[[], Done | Retry]
) -> None:
    look()
    look()
    del cluster.objects[name_of(cluster, "ConfigMap", "engine")]
    found = look()
    assert isinstance(found, Done)
    assert found.again_seconds == DOUBT_AGAIN_SECONDS
    clock.now += DOUBT_AGAIN_SECONDS
    look()
    cluster.secrets = {name for name in cluster.secrets if "claim" not in name}  # the garbage collector
    clock.now += DOUBT_AGAIN_SECONDS
    looks_of_a_new_process(cluster)()
    assert any("claim" in name for name in cluster.secrets), "a restart does not forget it"


@pytest.mark.parametrize("restarted", [False, True])
def test_the_salt_of_a_predecessor_is_watched_until_it_cannot_be_collected_any_more(
    cluster: FakeCluster, clock: Clock, look: Callable[[], Done | Retry], restarted: bool
) -> None:
    """Deleted and made anew between two looks: nothing tells but the uid."""
    look()
    look()
    cluster.objects.clear()
    created = (clock.utc() + timedelta(seconds=1)).isoformat()
    cluster.deployment["metadata"] |= {"uid": "uid-2", "creationTimestamp": created}
    cluster.writes.clear()
    found = look()
    assert isinstance(found, Done)
    assert found.again_seconds == DOUBT_AGAIN_SECONDS
    assert "event SecretFound" in cluster.writes
    cluster.secrets.discard("small-tenant-salt")  # the garbage collector
    clock.now += DOUBT_AGAIN_SECONDS
    (looks_of_a_new_process(cluster) if restarted else look)()
    assert "small-tenant-salt" in cluster.secrets


def test_what_is_left_of_a_predecessor_keeps_the_doubt_alive(
    cluster: FakeCluster, clock: Clock, look: Callable[[], Done | Retry]
) -> None:
    look()
    service = name_of(cluster, "Service", "router")
    left = copy.deepcopy(cluster.objects[service])
    left["metadata"] |= {"name": "small-left"}
    left["metadata"]["ownerReferences"][0]["uid"] = "uid-0"
    cluster.objects[ObjectRef("v1", "Service", "small-left")] = left
    clock.now += 10 * DOUBT_SECONDS
    again = looks_of_a_new_process(cluster)
    again()
    cluster.secrets.discard("small-tenant-salt")
    again()
    assert "small-tenant-salt" in cluster.secrets
    assert "event SecretFound" not in cluster.writes, "it was there, and so was what uses it"


def pod_with(secret: str, *, ready: bool, waiting: str = "") -> Any:
    return {
        "kind": "Pod",
        "metadata": {"name": "small-router-0", "uid": "pod", "resourceVersion": "1", "labels": {}},
        "spec": {"volumes": [{"name": "salt", "secret": {"secretName": secret}}]},
        "status": {
            "conditions": [{"type": "Ready", "status": str(ready)}],
            "containerStatuses": [{"name": "router", "state": {"waiting": {"reason": waiting}} if waiting else {}}],
        },
    }


@pytest.mark.parametrize("waiting", ["ContainerCreating", "CreateContainerConfigError"])
def test_a_pod_that_waits_for_a_secret_has_it_made(
    cluster: FakeCluster, clock: Clock, look: Callable[[], Done | Retry], waiting: str
) -> None:
    look()
    clock.now += DOUBT_SECONDS + 1
    cluster.secrets.discard("small-tenant-salt")
    look()
    assert "small-tenant-salt" not in cluster.secrets, "control: it is asked for at the resync only"
    cluster.pods = (pod_with("small-tenant-salt", ready=False, waiting=waiting),)
    look()
    assert "small-tenant-salt" in cluster.secrets


FULL = QuotaExceededError("exceeded quota: q", 403)


@pytest.mark.parametrize("error", [FULL, ForbiddenError("a policy", 403), TransientError("a webhook", 500)])
def test_a_refusal_says_nothing_of_whether_a_secret_is_there(
    cluster: FakeCluster, look: Callable[[], Done | Retry], error: Exception
) -> None:
    """A quota is asked before the name is looked up: exactly full, it refuses also what is there."""
    look()
    cluster.refuse = {f"dry-run {name}": error for name in cluster.secrets}
    cluster.pods = tuple(pod_with(name, ready=True) for name in cluster.secrets)
    del cluster.objects[name_of(cluster, "Service", "router")]
    cluster.writes.clear()
    assert isinstance(looks_of_a_new_process(cluster)(), Done)
    assert "apply Service/small-router" in cluster.writes
    assert not [what for what in cluster.writes if what.startswith("secret")]
    assert reconciled(cluster)[0] != "False"


def test_a_secret_that_has_no_room_is_said_and_everything_else_is_done(
    cluster: FakeCluster, look: Callable[[], Done | Retry]
) -> None:
    cluster.refuse = {"dry-run small-tenant-salt": FULL, "secret small-tenant-salt": FULL}
    assert look() == Done(calls=1, again_seconds=REFUSED_AGAIN_SECONDS)
    assert len([what for what in cluster.writes if what.startswith("apply")]) == 17
    assert reconciled(cluster) == ("False", "QuotaExceeded")
