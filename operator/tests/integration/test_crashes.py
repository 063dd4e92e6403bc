"""R1: the operator is killed at every single write, again and again, and the end is always the same.

A chain of processes: each is killed at its first write (after the server has done it and before the operator knows; or before the server sees
the second). So every write of a reconcile is a point of death once in each way, and what follows it is the work of a new process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from control_world import NO_LEASE, World

from pdd_e2e.control_plane.api import Json
from pdd_e2e.control_plane.fault_proxy import FaultProxy
from pdd_e2e.control_plane.request_info import RequestInfo
from pdd_e2e.operators.deployments import Name, cpu_deployment
from pdd_e2e.operators.process import OperatorProcess

QUIET_SECONDS = 3.0
MAX_DEATHS = 120
ROLE = {"accelerator": {"type": "CPU"}}
CHANGES: dict[str, Json] = {
    "scale": {"spec": {"decode": {"replicas": 2}}},
    "revision": {"spec": {"engine": {"maxModelLen": 4096}}},
}


@dataclass
class Killer:
    """Kills the operator at its write number ``at`` of each life; ``lost``: the server never sees that write."""

    operator: OperatorProcess
    at: int
    lost: bool
    points: list[str] = field(default_factory=list)
    armed: bool = True
    died: threading.Event = field(default_factory=threading.Event)
    writes: int = 0

    def before(self, call: RequestInfo, number: int) -> bool:
        self.writes += 1
        if self.lost and self.armed and self.writes >= self.at:
            self._kill(call)
            return False
        return True

    def after(self, call: RequestInfo, number: int, code: int) -> None:
        if not self.lost and self.armed and self.writes >= self.at:
            self._kill(call)

    def _kill(self, call: RequestInfo) -> None:
        if self.died.is_set():
            return
        self.points.append(f"{call.verb} {call.resource} {call.name}")
        self.operator.kill()
        self.died.set()

    def live_and_die(self, done: Callable[[], bool]) -> None:
        """Lives until one passes without a write although everything is done."""
        while len(self.points) < MAX_DEATHS:
            self.writes = 0
            self.died.clear()
            self.operator.start()
            quiet_since = time.monotonic()
            seen = 0
            while not self.died.wait(0.1):
                if self.writes != seen or not done():
                    seen, quiet_since = self.writes, time.monotonic()
                if time.monotonic() - quiet_since > QUIET_SECONDS:
                    self.operator.kill()
                    return
        raise AssertionError(f"it never comes to rest: {self.points}")


@pytest.fixture
def killer(world: World, fault_proxy: FaultProxy) -> Iterator[Callable[[bool], Killer]]:
    kubeconfig = fault_proxy.kubeconfig(world.kubeconfig)

    def make(lost: bool) -> Killer:
        found = Killer(world.operator("killed", kubeconfig=kubeconfig, settings=NO_LEASE), 2 if lost else 1, lost)
        fault_proxy.before_write, fault_proxy.after_write = found.before, found.after
        return found

    yield make
    fault_proxy.before_write = fault_proxy.after_write = None


def finished(world: World, name: str) -> bool:
    """Ready in the newest generation, with no older revision left."""
    live = world.deployments.get(name)
    status = live.get("status", {})
    ready = next((one for one in status.get("conditions", ()) if one["type"] == "Ready"), {})
    return (
        ready.get("status") == "True"
        and ready.get("observedGeneration") == live["metadata"]["generation"]
        and len(status.get("groups", ())) == 1
    )


@pytest.fixture(scope="module")
def known() -> dict[str, dict[Name, Json]]:
    return {}


@pytest.fixture
def expected(world: World, known: dict[str, dict[Name, Json]]) -> dict[str, dict[Name, Json]]:
    """What an operator that nobody kills makes: after creation, and after each change. Made once."""
    if known:
        return known
    operator = world.started("unharmed")
    found = known
    world.deployments.create(cpu_deployment("small"))
    for step, change in {"create": {}, **CHANGES}.items():
        if change:
            world.deployments.patch("small", change)
        world.wait(lambda: finished(world, "small"), 40, f"the unharmed operator does not finish {step}")
        world.wait_quiet("small", 1.0)
        found[step] = world.snapshot("small")
    world.remove("small")
    operator.kill()
    return found


@pytest.mark.parametrize("lost", [False, True], ids=["after", "before"])
def test_killed_at_every_write_it_still_gets_there(
    world: World, killer: Callable[[bool], Killer], expected: dict[str, dict[Name, Json]], lost: bool
) -> None:
    chain = killer(lost)
    world.deployments.create(cpu_deployment("small"))
    deaths = {}
    for step in ("create", *CHANGES):
        before = len(chain.points)
        uids = world.uids("small")
        if step != "create":
            world.deployments.patch("small", CHANGES[step])
        chain.live_and_die(lambda: finished(world, "small"))
        deaths[step] = len(chain.points) - before
        assert world.snapshot("small") == expected[step], f"after {step}, killed at {chain.points[before:]}"
        if step == "scale":
            assert world.uids("small") == uids, "nothing was made anew"
    assert deaths["create"] >= (18 if not lost else 9), "every write of the creation was a point of death"
    assert deaths["revision"] >= 4
    world.deployments.delete("small")
    chain.operator.start()
    world.wait_gone("small")
    assert chain.operator.runs


def test_the_chain_notices_an_operator_that_forgets(world: World, killer: Callable[[bool], Killer]) -> None:
    """Control: with one object refused for ever, the chain does not take the result for the right one."""
    chain = killer(False)
    path = world.deployments.child_path("Service")
    foreign = {"metadata": {"name": "small-router"}, "spec": {"ports": [{"port": 80}]}}
    world.plane.api.create(path, {"apiVersion": "v1", "kind": "Service", **foreign})
    world.deployments.create(cpu_deployment("small"))
    chain.live_and_die(lambda: bool(world.deployments.condition("small", "Reconciled").get("status") == "False"))
    assert ("Service", "small-router") not in world.snapshot("small")
    assert not finished(world, "small")
