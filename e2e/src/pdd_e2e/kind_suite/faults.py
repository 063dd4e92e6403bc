"""What is done to pods under traffic, and what is written down of it: who, how, when. `draw` decides and touches nothing.

A pod is deleted without grace (its containers have two seconds), or the processes of its engine are killed inside it and the kubelet starts
the container again.
"""

import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from pdd_e2e.cluster.errors import ClusterError
from pdd_e2e.kind_suite.conduct import OPERATORS
from pdd_e2e.kind_suite.deployment import LiveDeployment, wait_until
from pdd_e2e.kind_suite.installation import SYSTEM
from pdd_e2e.kind_suite.traffic_verdict import Attempt

ENDPOINTS_SECONDS = 15.0
"""How long new connections may still be sent to a router that is gone."""
_REPLACED_SECONDS = 60
_DYING_SECONDS = 5.0  # a deleted pod's processes have two, and it may take requests meanwhile
# Whatever the first process has started: it cannot be killed from inside, and ends when they are gone.
_KILLS_ENGINE = (
    "import os, pathlib, signal\n"
    "others = [int(p.name) for p in pathlib.Path('/proc').iterdir() if p.name.isdigit() and int(p.name) not in (1, os.getpid())]\n"
    "for pid in sorted(others):\n"
    "    try:\n"
    "        if b'VLLM' in pathlib.Path(f'/proc/{pid}/cmdline').read_bytes():\n"
    "            os.kill(pid, signal.SIGKILL)\n"
    "    except OSError:\n"
    "        continue\n"
)


class How(StrEnum):
    """How a pod ends."""

    DELETED = "Deleted"
    CRASHED = "Crashed"


@dataclass(frozen=True, slots=True)
class Fault:
    """`at`: seconds since the epoch."""

    role: str
    pod: str
    how: How
    at: float


@dataclass(slots=True)
class Harm:
    """Does it to one deployment and its operator, and remembers."""

    deployment: LiveDeployment
    done: list[Fault] = field(default_factory=list)

    def delete(self, role: str, pod: str) -> Fault:
        """Returns when the object is gone; its processes have two seconds more."""
        fault = self._note(role, pod, How.DELETED)
        place = SYSTEM if role == "operator" else self.deployment.namespace
        self.deployment.kubectl("--namespace", place, "delete", "pod", pod, "--grace-period=0", "--force")
        return fault

    def crash(self, role: str, pod: str) -> Fault:
        """An engine's processes, all but the first."""
        fault = self._note(role, pod, How.CRASHED)
        try:
            self.deployment("exec", pod, "--container", "engine", "--", "python3", "-c", _KILLS_ENGINE)
        except ClusterError as error:
            if "137" not in str(error) and "not found" not in str(error):
                raise  # else the container ended before its exec did, as it should
        return fault

    def operators(self) -> list[str]:
        """Names of its pods."""
        found = self.deployment.kubectl.get("--namespace", SYSTEM, "pods", "--selector", OPERATORS)
        return [item["metadata"]["name"] for item in found["items"]]

    def life(self, role: str, pod: str) -> tuple[str, int] | None:
        """Uid and restarts; None where there is no such pod at this moment."""
        found = self.deployment.pods(role).get(pod)
        if found is None:
            return None
        statuses = found["status"].get("containerStatuses", [])
        return str(found["metadata"]["uid"]), sum(item["restartCount"] for item in statuses)

    def wait_for_another_life(self, fault: Fault, before: tuple[str, int] | None) -> None:
        """Another pod of that name, or the same started again. Raises ClusterError."""
        wait_until(
            lambda: self.life(fault.role, fault.pod) not in (None, before), f"another {fault.pod}", _REPLACED_SECONDS
        )

    def _note(self, role: str, pod: str, how: How) -> Fault:
        fault = Fault(role, pod, how, time.time())
        self.done.append(fault)
        return fault


@dataclass(frozen=True, slots=True)
class Standing:
    """Of a role: how many pods are wanted, and the names of those that serve."""

    wanted: int
    ready: Sequence[str]


def draw(chance: random.Random, standing: Mapping[str, Standing]) -> tuple[str, str, How] | None:
    """Whom to harm next, and how: of a role that has all its pods ready, so that one decode engine and one router are always left.

    None where every role has somebody missing.
    """
    whole = [role for role, pods in sorted(standing.items()) if pods.ready and len(pods.ready) >= pods.wanted]
    if not whole:
        return None
    role = chance.choice(whole)
    how = chance.choice([How.DELETED, How.CRASHED]) if role in ("prefill", "decode") else How.DELETED
    return role, chance.choice(sorted(standing[role].ready)), how


def explains(faults: Iterable[Fault], attempt: Attempt) -> bool:
    """Whether one of them may have been the end of a request: of the decode engine that streamed its answer, or of some router."""
    if attempt.kind == "Told stream_broken":
        ends = [fault for fault in faults if fault.role == "decode" and fault.pod == attempt.decode]
        return any(attempt.began <= fault.at + _DYING_SECONDS and fault.at <= attempt.ended for fault in ends)
    if attempt.outcome in ("Cut", "Dropped", "Unreachable"):
        ends = [fault for fault in faults if fault.role == "router"]
        return any(fault.at <= attempt.ended and attempt.began <= fault.at + ENDPOINTS_SECONDS for fault in ends)
    return False


def table(faults: Iterable[Fault], began: float) -> str:
    """For people."""
    return "\n".join(f"{fault.at - began:6.0f} s  {fault.role:<9} {fault.how:<8} {fault.pod}" for fault in faults)
