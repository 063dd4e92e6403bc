"""R6: two operators, one writer. The leader is killed, or paused past the end of its lease; never do two write."""

from __future__ import annotations

import signal
import time

from control_world import World

from pdd_e2e.control_plane.audit import Call
from pdd_e2e.operators.deployments import cpu_deployment
from pdd_e2e.operators.process import OperatorProcess

DURATION_SECONDS, RENEW_SECONDS = 3.0, 0.5
TAKEOVER_SECONDS = DURATION_SECONDS + RENEW_SECONDS + 3.0
EXIT_LEASE_LOST = 3


def leads(operator: OperatorProcess) -> bool:
    return operator.metric("pdd_operator_leader") == 1.0


def object_writes(world: World, since: int) -> list[Call]:
    """In order of arrival."""
    return sorted(world.writes(since), key=lambda call: call.received)


def test_a_standby_takes_over_from_a_killed_leader(world: World) -> None:
    first = world.operator("first", lease=True)
    first.start()
    first.wait_until_leader()
    second = world.operator("second", lease=True)
    second.start()
    world.create_ready(cpu_deployment("small"))
    assert not leads(second)
    assert second.ask("/healthz")[0] == 200, "a standby is well"
    since = world.plane.audit.position()
    first.kill()
    began = time.monotonic()
    second.wait_until_leader(TAKEOVER_SECONDS + 5)
    assert time.monotonic() - began <= TAKEOVER_SECONDS
    world.deployments.patch("small", {"spec": {"decode": {"replicas": 2}}})
    world.deployments.wait_for_condition("small", "Ready")
    assert {_who(call) for call in object_writes(world, since)} == {"second"}


def test_a_leader_that_was_paused_past_its_lease_writes_nothing_more(world: World) -> None:
    first = world.operator("first", lease=True, forked=False)
    first.start()
    first.wait_until_leader()
    world.create_ready(cpu_deployment("small"))
    second = world.operator("second", lease=True)
    second.start()
    # paused in the middle of work: a change was just made
    world.deployments.patch("small", {"spec": {"engine": {"maxModelLen": 4096}}})
    first.signal(signal.SIGSTOP)
    second.wait_until_leader(TAKEOVER_SECONDS + 5)
    world.deployments.wait_for_condition("small", "Ready", timeout_seconds=40)
    since = world.plane.audit.position()
    world.deployments.patch("small", {"spec": {"engine": {"maxModelLen": 2048}}})
    first.signal(signal.SIGCONT)
    assert first.wait_for_end(10) == EXIT_LEASE_LOST
    world.deployments.wait_for_condition("small", "Ready", timeout_seconds=40)
    writes = object_writes(world, since)
    assert {_who(call) for call in writes} == {"second"}
    assert any(line["event"] == "Lost the lease, ended at once" for line in first.lines())


def test_a_leader_that_is_asked_to_stop_hands_over_at_once(world: World) -> None:
    first = world.operator("first", lease=True)
    first.start()
    first.wait_until_leader()
    second = world.operator("second", lease=True)
    second.start()
    world.wait(lambda: any("Waiting" in str(line["event"]) for line in second.lines()), 15, "it does not wait")
    assert first.terminate() < 5.0
    began = time.monotonic()
    second.wait_until_leader()
    assert time.monotonic() - began < DURATION_SECONDS, "the lease was released, not left to run out"


def test_without_a_lease_both_write(world: World) -> None:
    """Control: that only one wrote was the lease's doing, and the log would have shown the other."""
    since = world.plane.audit.position()
    for name in ("first", "second"):
        world.started(name)
    world.create_ready(cpu_deployment("small"))

    def both() -> bool:
        world.plane.api.delete(world.deployments.child_path("Service", "small-prefill"))
        world.wait(lambda: world.deployments.exists("Service", "small-prefill"), 10, "not restored")
        return {_who(call) for call in world.writes(since)} == {"first", "second"}

    world.wait(both, 40, "only one wrote")


def _who(call: Call) -> str:
    """The log of a process is called as its pod is, and its user agent too."""
    return call.user_agent.removeprefix("pdd-operator/").partition("_")[0]


def test_two_releases_that_see_new_objects_at_once_share_none(world: World) -> None:
    """Each object is one operator's from its first write on; which one's is chance, so there are some."""
    objects = [f"small-{number}" for number in range(4)]
    for name in objects:
        world.deployments.create(cpu_deployment(name))
    since = world.plane.audit.position()
    for name, lease in (("first", "one"), ("second", "other")):
        world.started(name, lease_name=lease)
    for name in objects:
        world.deployments.wait_for_condition(name, "Ready", timeout_seconds=60)
    owners = {name: world.deployments.get(name)["status"]["operator"].rpartition("/")[2] for name in objects}
    for call in world.writes(since):
        if call.resource in ("events", "secrets") or call.code == 409:
            continue
        name = max((one for one in objects if call.name.startswith(one)), key=len)
        assert {"one": "first", "other": "second"}[owners[name]] == _who(call), f"{_who(call)} wrote {call}"
    assert {call.resource for call in world.writes(since) if call.code == 409} <= {"pddeployments/status"}


def test_an_operator_of_another_release_leaves_the_object_alone(world: World) -> None:
    first = world.started("first")
    world.create_ready(cpu_deployment("small"))
    first.terminate()
    world.wait_quiet("small")
    since = world.plane.audit.position()
    second = world.started("second", lease_name="other")
    path = f"/api/v1/namespaces/{world.namespace}/events"
    world.wait(
        lambda: any(event["reason"] == "LeftToAnother" for event in world.plane.api.items(path)), 20, "it says nothing"
    )
    assert {call.resource for call in world.writes(since)} <= {"events"}
    named = {"metadata": {"annotations": {"pdserve.io/operator": f"{world.installation.account[0]}/other"}}}
    world.deployments.patch("small", named)
    world.plane.api.delete(world.deployments.child_path("Service", "small-router"))
    world.wait(lambda: world.deployments.exists("Service", "small-router"), 10, "it does not take over")
    second.terminate()
