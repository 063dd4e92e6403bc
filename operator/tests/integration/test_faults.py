"""R3: an API server that refuses, delays, resets and forgets, at random by seed; the end is right, there is no hot loop, and it waits when told.

PDD_FAULT_SEEDS says how many seeds (more than the few that fit into a run of all tests).
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from control_world import NO_LEASE, World

from pdd_e2e.control_plane.fault_proxy import FaultProxy, SeenCall
from pdd_e2e.control_plane.fault_rules import (
    Answer,
    CutWatch,
    Delay,
    Fault,
    Hang,
    ResetAfter,
    ResetBefore,
    Rule,
    StallWatch,
)
from pdd_e2e.operators.deployments import cpu_deployment
from pdd_e2e.operators.process import OperatorProcess
from pdd_operator.workqueue import Pace

SEEDS = range(1, 1 + int(os.environ.get("PDD_FAULT_SEEDS", "3")))
OPERATOR, KOPF = "pdd-operator", "kopf"
CALLS_PER_SECOND, BURST_CALLS, ONE_LOOK_CALLS = 10, 60, 80
CONVERGED_SECONDS = 60
"""Once nothing breaks any more, on a busy machine."""
READS, WRITES = ("get", "list"), ("create", "patch", "delete")
TIMEOUT_SECONDS = {"PDD_OPERATOR_REQUEST_TIMEOUT_SECONDS": "1.5"}
RETRY_AFTER_SECONDS = 2
POD_MONITOR_NAME = "podmonitors.monitoring.coreos.com"
POD_MONITORS = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": POD_MONITOR_NAME},
    "spec": {
        "group": "monitoring.coreos.com",
        "names": {"kind": "PodMonitor", "plural": "podmonitors"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


@dataclass
class Broken:
    """The operator behind the proxy."""

    world: World
    proxy: FaultProxy
    operator: OperatorProcess

    def own_calls(self) -> list[SeenCall]:
        """Of the operator's own client, without kopf's watches."""
        return [call for call in self.proxy.calls() if call.info.user_agent.startswith(OPERATOR)]


@pytest.fixture
def broken(world: World, fault_proxy: FaultProxy) -> Iterator[Broken]:
    operator = world.operator(
        "broken", kubeconfig=fault_proxy.kubeconfig(world.kubeconfig), settings=NO_LEASE | TIMEOUT_SECONDS
    )
    operator.start()
    world.wait(lambda: any(call.info.verb == "watch" for call in fault_proxy.calls()), 20, "it does not watch")
    yield Broken(world, fault_proxy, operator)
    fault_proxy.clear()


def random_rules(seed: int) -> list[Rule]:
    """Faults of the operator's calls and of kopf's watches, of the kinds that a real API server and network have."""
    chance = random.Random(seed)
    of_calls: list[tuple[Fault, tuple[str, ...]]] = [
        (Answer(409), ("patch",)),
        (Answer(429, retry_after_seconds=1), READS + WRITES),
        (Answer(500), READS + WRITES),
        (Answer(503, retry_after_seconds=1), WRITES),
        (Hang(), WRITES),
        (ResetBefore(), READS + WRITES),
        (ResetAfter(), WRITES),
        (Delay(0.5), READS + WRITES),
    ]
    of_watches: list[Fault] = [CutWatch(0), CutWatch(2), StallWatch(1, 2.0), Answer(500)]
    rules = []
    for _ in range(6):
        fault, verbs = chance.choice(of_calls)
        times = 1 if isinstance(fault, Hang) else chance.randint(1, 2)
        rules.append(Rule(fault=fault, verbs=verbs, user_agent=OPERATOR, nth=chance.randint(1, 60), times=times))
    for _ in range(3):
        rules.append(
            Rule(fault=chance.choice(of_watches), verbs=("watch",), user_agent=KOPF, nth=chance.randint(1, 6), times=2)
        )
    return rules


def longest_wait(faults: int) -> float:
    """How long the backoff may make one object wait if each of so many faults ends a look, one after the other (workqueue.Pace)."""
    pace = Pace()
    waits = (min(pace.max_backoff_seconds, pace.backoff_seconds * 2.0**number) for number in range(faults))
    return sum(waits) * (1 + pace.jitter)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_breaks_it_converges_without_a_hot_loop(broken: Broken, seed: int) -> None:
    world = broken.world
    rules = random_rules(seed)
    entries = [broken.proxy.add(rule) for rule in rules]
    limit = CONVERGED_SECONDS + longest_wait(sum(rule.times or 0 for rule in rules if rule.user_agent == OPERATOR))
    began, before = time.monotonic(), len(broken.own_calls())
    world.deployments.create(cpu_deployment("small"))
    world.deployments.wait_for_condition("small", "Ready", timeout_seconds=limit)
    world.deployments.patch("small", {"spec": {"decode": {"replicas": 2}}})
    world.plane.api.delete(world.deployments.child_path("Service", "small-prefill"))
    world.wait(
        lambda: (
            world.deployments.exists("Service", "small-prefill")
            and world.deployments.get("small")["status"]["decode"]["readyReplicas"] == 2
        ),
        limit,
        "it does not converge",
    )
    world.deployments.wait_for_condition("small", "Ready", timeout_seconds=limit)
    took = time.monotonic() - began
    hits = sum(entry.hits for entry, rule in zip(entries, rules, strict=True) if rule.user_agent == OPERATOR)
    assert took <= 2 * CONVERGED_SECONDS + longest_wait(hits), f"{took:.1f} s for {hits} faults"
    calls = len(broken.own_calls()) - before
    assert calls <= BURST_CALLS + ONE_LOOK_CALLS + CALLS_PER_SECOND * took, f"{calls} calls in {took:.1f} s"
    assert sum(entry.hits for entry in entries) > 0, "nothing was broken: this seed proves nothing"


def test_retry_after_is_respected(broken: Broken) -> None:
    world = broken.world
    refused = broken.proxy.add(
        Rule(
            fault=Answer(429, retry_after_seconds=RETRY_AFTER_SECONDS),
            verbs=("patch",),
            resource="statefulsets",
            user_agent=OPERATOR,
            times=2,
        )
    )
    world.deployments.create(cpu_deployment("small"))
    world.deployments.wait_for_condition("small", "Ready", timeout_seconds=60)
    assert refused.hits == 2
    calls = broken.own_calls()
    for at, call in enumerate(calls):
        if call.fault is None or call.info.resource != "statefulsets":
            continue
        # what was seen until then is still told; looking at it anew has to wait
        again = next(later for later in calls[at + 1 :] if later.info.resource == "pddeployments")
        assert again.at - call.at >= RETRY_AFTER_SECONDS


def test_an_api_server_that_stays_away_is_asked_ever_more_rarely(broken: Broken) -> None:
    world = broken.world
    broken.proxy.add(Rule(fault=Answer(500), verbs=READS, user_agent=OPERATOR, times=None))
    before = len(broken.own_calls())
    world.deployments.create(cpu_deployment("small"))
    time.sleep(8)  # a hot loop would make hundreds of calls
    assert 4 <= len(broken.own_calls()) - before <= 12
    broken.proxy.clear()
    world.deployments.wait_for_condition("small", "Ready", timeout_seconds=60)


def test_a_watch_that_is_given_up_ends_the_process_and_the_next_one_carries_on(broken: Broken) -> None:
    """kopf takes a 410 for final. An operator that watches all kinds but one would be worse than none."""
    world = broken.world
    world.create_ready(cpu_deployment("small"))
    refused = broken.proxy.add(Rule(fault=Answer(410), verbs=("watch",), resource="services", user_agent=KOPF))
    broken.operator.kill()  # the rule is for a watch that begins
    broken.operator.start()
    broken.operator.wait_for_end(45)
    assert refused.hits == 1
    world.plane.api.delete(world.deployments.child_path("Service", "small-router"))
    broken.operator.start()
    world.wait(lambda: world.deployments.exists("Service", "small-router"), 20, "the next process does nothing")
    world.deployments.wait_for_condition("small", "Ready")


def test_a_definition_that_is_removed_ends_the_process_once_and_the_next_one_does_without_it(world: World) -> None:
    """PodMonitor and dashboards are somebody else's definitions; kopf cannot stop one watch alone."""
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    world.plane.api.create(definitions, POD_MONITORS)
    world.plane.wait_for_definition(POD_MONITOR_NAME)
    operator = world.started()
    world.create_ready(cpu_deployment("small"))
    monitors = f"/apis/monitoring.coreos.com/v1/namespaces/{world.namespace}/podmonitors"
    assert world.plane.api.items(monitors)
    world.plane.api.delete(f"{definitions}/{POD_MONITOR_NAME}")
    operator.wait_for_end(45)
    operator.start()
    world.plane.api.delete(world.deployments.child_path("Service", "small-router"))
    world.wait(lambda: world.deployments.exists("Service", "small-router"), 20, "the next process does nothing")
    world.deployments.wait_for_condition("small", "Reconciled")
    assert operator.runs
