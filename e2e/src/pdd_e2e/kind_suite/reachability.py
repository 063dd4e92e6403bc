"""Who reaches whom in a cluster: connections tried from inside pods, and pods that are nobody's to try them from.

A connection that is answered, by whatever, was let through; one that is never answered was not. Judges nothing.
"""

import json
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pdd_e2e.cluster.kubectl import Kubectl

LISTENER_PORTS = (8000, 9000)  # one that our policies name, and one that they do not
_EXEC_SECONDS = 60
# Three seconds: the kernel asks again after one, so that one lost packet is no verdict.
_TRIES = """
import concurrent.futures, json, socket, sys
def tried(target):
    host, port = target.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), timeout=3).close()
    except ConnectionRefusedError:
        return "Refused"
    except TimeoutError:
        return "Dropped"
    return "Open"
targets = sys.argv[1:]
with concurrent.futures.ThreadPoolExecutor(len(targets)) as pool:
    print(json.dumps(dict(zip(targets, pool.map(tried, targets)))))
"""
# Address and port in hexadecimal, the address as the processor stores it; state 0A listens.
_LISTENS = """
import json
rows = [line.split() for name in ("tcp", "tcp6") for line in open(f"/proc/net/{name}").readlines()[1:]]
places = [row[1].split(":") for row in rows if row[3] == "0A"]
loopback = ("7F", "0" * 24 + "01000000")
print(json.dumps(sorted({int(port, 16) for address, port in places if not address.endswith(loopback)})))
"""
_LISTENER = """
import selectors, socket, sys
doors = selectors.DefaultSelector()
for port in sys.argv[1:]:
    doors.register(socket.create_server(("0.0.0.0", int(port)), backlog=64), selectors.EVENT_READ)
while True:
    for door, _ in doors.select():
        door.fileobj.accept()[0].close()
"""


class Reach(StrEnum):
    """What became of a connection. `Refused`: it got there, and nothing listens."""

    OPEN = "Open"
    REFUSED = "Refused"
    DROPPED = "Dropped"


@dataclass(frozen=True, slots=True)
class Spot:
    """A running pod. Its image has a `python3`."""

    namespace: str
    pod: str
    address: str

    def port(self, number: int) -> str:
        """As a target."""
        return f"{self.address}:{number}"

    def ports(self, numbers: Iterable[int]) -> list[str]:
        """As targets."""
        return [self.port(number) for number in numbers]


def running_spots(kubectl: Kubectl, namespace: str, selector: str, timeout_seconds: int) -> dict[str, Spot]:
    """Pods with a selector once each of them runs; by name. Raises ClusterError."""
    chosen = ("--namespace", namespace, "pods", f"--selector={selector}")
    running = ("wait", "--for=jsonpath={.status.phase}=Running", f"--timeout={timeout_seconds}s")
    kubectl(*running, *chosen, timeout_seconds=timeout_seconds + 10)
    found = kubectl.get(*chosen)["items"]
    return {pod["metadata"]["name"]: Spot(namespace, pod["metadata"]["name"], pod["status"]["podIP"]) for pod in found}


def reached(kubectl: Kubectl, source: Spot, targets: Iterable[str]) -> dict[str, Reach]:
    """What becomes of one connection to each `host:port`, all at once. Raises ClusterError."""
    found = json.loads(_python(kubectl, source, _TRIES, *targets))
    return {target: Reach(verdict) for target, verdict in found.items()}


def reached_from(kubectl: Kubectl, sources: Mapping[str, Spot], targets: Iterable[str]) -> dict[str, dict[str, Reach]]:
    """The same from many pods at once, by their names here."""
    wanted = list(targets)
    with ThreadPoolExecutor(len(sources)) as pool:
        rows = pool.map(lambda source: reached(kubectl, source, wanted), sources.values())
        return dict(zip(sources, rows, strict=True))


def listening(kubectl: Kubectl, place: Spot) -> list[int]:
    """Ports of a pod that can be reached from outside if nothing forbids it: not those of its loopback."""
    ports: list[int] = json.loads(_python(kubectl, place, _LISTENS))
    return ports


def probe_pod(name: str, image: str, labels: Mapping[str, str] | None = None) -> dict[str, Any]:
    """A pod that listens on `LISTENER_PORTS` and says nothing. It never gets ready, so that no Service sends anybody there."""
    container = {
        "name": "probe",
        "image": image,
        "command": ["python3", "-c", _LISTENER, *map(str, LISTENER_PORTS)],
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "128Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": dict(labels or {})},
        "spec": {
            "automountServiceAccountToken": False,
            "containers": [container],
            "enableServiceLinks": False,
            "readinessGates": [{"conditionType": "pdserve.io/never"}],
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "terminationGracePeriodSeconds": 0,
        },
    }


def _python(kubectl: Kubectl, place: Spot, program: str, *arguments: str) -> str:
    command = ("exec", place.pod, "--", "python3", "-c", program, *arguments)
    return kubectl("--namespace", place.namespace, *command, timeout_seconds=_EXEC_SECONDS)
