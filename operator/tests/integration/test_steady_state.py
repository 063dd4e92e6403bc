"""R2: when nothing changes nothing is written, by no look, and no look asks for more than one list of each kind.

PDD_STEADY_SECONDS says for how long it is looked at.
"""

from __future__ import annotations

import os
import time
from collections import Counter

import pytest
from control_world import World

from pdd_e2e.operators.deployments import cpu_deployment

STEADY_SECONDS = float(os.environ.get("PDD_STEADY_SECONDS", "20"))
RESYNC_SECONDS = 4
SAMPLE_SECONDS = 2
LOOKS = 'pdd_operator_reconciles_total{result="unchanged"}'


@pytest.mark.timeout(150 + STEADY_SECONDS)
def test_nothing_is_written_while_nothing_changes(world: World) -> None:
    world.kubelet.pod_network = "127.20"  # where nobody listens: engines' counters are asked for, and refused at once
    operator = world.started(resync_seconds=str(RESYNC_SECONDS), sample_seconds=str(SAMPLE_SECONDS))
    world.create_ready(cpu_deployment("small"))
    world.wait(lambda: reuse_reason(world) == "EnginesUnreachable", 20, "the last thing to be told is not told")
    world.wait_quiet("small", 2.0)
    versions, status = world.versions("small"), world.deployments.get("small")["metadata"]["resourceVersion"]
    since, looks = world.plane.audit.position(), operator.metric(LOOKS)
    time.sleep(STEADY_SECONDS)  # the absence of something can only be waited for
    lists = lists_per_kind(world, since)
    looked = operator.metric(LOOKS) - looks
    assert looked >= STEADY_SECONDS / RESYNC_SECONDS - 2, "resyncs happened, and looks after each sample"
    assert world.writes(since) == []
    assert world.versions("small") == versions
    assert world.deployments.get("small")["metadata"]["resourceVersion"] == status
    assert max(lists.values()) <= looked + 1, "one list per kind and look"
    print(f"{STEADY_SECONDS:.0f} s, {looked:.0f} looks, no writes, lists per look:")
    print(", ".join(f"{kind} {count / looked:.2f}" for kind, count in sorted(lists.items())))
    # control: the same log shows a write as soon as there is one
    world.deployments.api.delete(world.deployments.child_path("Service", "small-prefill"))
    world.wait(lambda: world.deployments.exists("Service", "small-prefill"), 10, "the Service is not restored")
    assert world.writes(since)


def reuse_reason(world: World) -> str:
    return str(world.deployments.condition("small", "ReuseActive").get("reason"))


def lists_per_kind(world: World, since: int) -> Counter[str]:
    calls = world.plane.audit.calls(since=since, user=world.installation.user, namespace=world.namespace)
    return Counter(call.resource for call in calls if call.verb == "list")
