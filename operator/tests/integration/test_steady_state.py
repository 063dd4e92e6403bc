"""R2 and R7: when nothing changes nothing is written, neither by resyncs nor by a restart; and without an operator nothing stops."""

from __future__ import annotations

import time

from control_world import World

from pdd_e2e.operators.deployments import cpu_deployment

STEADY_SECONDS = 30.0
KINDS_LISTED = 10


def test_nothing_is_written_while_nothing_changes(world: World) -> None:
    operator = world.started(resync_seconds="5")
    world.create_ready(cpu_deployment("small"))
    world.wait_quiet("small", 2.0)
    versions, status = world.versions("small"), world.deployments.get("small")["metadata"]["resourceVersion"]
    since, looks = world.plane.audit.position(), operator.metric('pdd_operator_reconciles_total{result="unchanged"}')
    time.sleep(STEADY_SECONDS)  # the absence of something can only be waited for
    looked = operator.metric('pdd_operator_reconciles_total{result="unchanged"}') - looks
    assert looked >= 4, "resyncs happened"
    assert world.writes(since) == []
    assert world.versions("small") == versions
    assert world.deployments.get("small")["metadata"]["resourceVersion"] == status
    calls = world.plane.audit.calls(since=since, user=world.installation.user, namespace=world.namespace)
    lists = [call for call in calls if call.verb == "list" and call.resource == "statefulsets"]
    assert len(lists) <= looked + 1, "one list per kind and resync"
    # control: the same log shows a write as soon as there is one
    world.deployments.api.delete(world.deployments.child_path("Service", "small-prefill"))
    world.wait(lambda: world.deployments.exists("Service", "small-prefill"), 10, "the Service is not restored")
    assert world.writes(since)


def test_without_an_operator_nothing_stops_and_its_return_is_quiet(world: World) -> None:
    operator = world.started()
    world.create_ready(cpu_deployment("small", decode={"replicas": 2, "accelerator": {"type": "CPU"}}))
    world.wait_quiet("small", 2.0)
    operator.terminate()
    uids = world.uids("small")
    pod = next(pod for pod in world.deployments.pods("small") if "decode" in pod["metadata"]["name"])
    path = f"/api/v1/namespaces/{world.namespace}/pods/{pod['metadata']['name']}"
    world.plane.api.delete(path, {"gracePeriodSeconds": 0})

    def replaced() -> bool:
        ready = [
            one
            for one in world.deployments.pods("small")
            if any(c["type"] == "Ready" and c["status"] == "True" for c in one.get("status", {}).get("conditions", ()))
        ]
        return len(ready) == 4 and pod["metadata"]["uid"] not in {one["metadata"]["uid"] for one in ready}

    world.wait(replaced, 20, "the StatefulSet does not replace its pod")
    assert world.uids("small") == uids
    since = world.plane.audit.position()
    operator.start()
    world.wait(lambda: operator.runs and _looked(world, since), 20, "it does not look")
    time.sleep(3)  # whatever it would write, it would write now
    assert [call for call in world.writes(since) if call.resource not in ("events", "pddeployments/status")] == []
    assert world.uids("small") == uids


def _looked(world: World, since: int) -> bool:
    calls = world.plane.audit.calls(since=since, user=world.installation.user, namespace=world.namespace)
    return any(call.verb == "list" and call.resource == "pods" and "pdd-operator" in call.user_agent for call in calls)
