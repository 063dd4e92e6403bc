"""How the operator grows: 10 and then 100 PDDeployments applied at once, until every status is true. Run as a module; see `--help`.

They are in one namespace, which the operator watches; or in several, and it watches the whole cluster.

Prints time, API calls per object, memory and CPU time, and how they grow. Everything runs on this machine beside the operator (etcd, API server,
controllers, the kubelet's stand-in), so times are upper bounds, while calls and memory are the operator's own.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from pdd_e2e.control_plane.fake_kubelet import FakeKubelet
from pdd_e2e.control_plane.local_control_plane import LocalControlPlane
from pdd_e2e.control_plane.pod_scripts import Runs
from pdd_e2e.operators.deployments import Deployments, cpu_deployment, wait_for
from pdd_e2e.operators.install import Installation, install
from pdd_e2e.operators.process import OperatorProcess

_PASSED = {"preflight": json.dumps({"transport": "Socket", "reason": "Socket", "message": "sockets"})}
_SETTLE_SECONDS = 3.0
_NAMESPACES = 10
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Result:
    """`calls`: by verb, watches and leases left out; `cpu_seconds`: of the operator."""

    objects: int
    seconds: float
    calls: Counter[str]
    memory_bytes: int
    cpu_seconds: float

    @property
    def calls_per_object(self) -> float:
        return sum(self.calls.values()) / self.objects


def measure(
    plane: LocalControlPlane,
    installation: Installation,
    objects: int,
    folder: Path,
    limit: float,
    *,
    cluster_wide: bool = False,
) -> Result:
    """A new operator, new namespaces, `objects` PDDeployments at once."""
    places = [
        _new_namespace(plane, f"bench-{objects}-{number}") for number in range(_NAMESPACES if cluster_wide else 1)
    ]
    kubeconfig = plane.kubeconfig_for(service_account=installation.account)
    with OperatorProcess(
        kubeconfig,
        folder / f"operator-{objects}.log",
        namespace=installation.account[0],
        lease_name=installation.lease_name,
        settings={
            "PDD_OPERATOR_LEASE_DURATION_SECONDS": "15",
            "PDD_OPERATOR_LEASE_RENEW_SECONDS": "5",
            "PDD_OPERATOR_WATCH_NAMESPACES": "" if cluster_wide else places[0].namespace,
        },
    ) as operator:
        operator.wait_until_leader(60)
        since, began = plane.audit.position(), time.monotonic()
        for number in range(objects):
            places[number % len(places)].create(cpu_deployment(f"d{number:03d}"))
        wait_for(lambda: _ready(places) == objects, limit, lambda: f"{_ready(places)} of {objects} are ready")
        seconds = time.monotonic() - began
        time.sleep(_SETTLE_SECONDS)
        there = {place.namespace for place in places}
        calls = [
            call
            for call in plane.audit.calls(since=since, user=installation.user)
            if call.namespace in there and call.verb != "watch"
        ]
        return Result(
            objects, seconds, Counter(call.verb for call in calls), operator.memory_bytes(), _cpu_seconds(operator.pid)
        )


def _new_namespace(plane: LocalControlPlane, name: str) -> Deployments:
    plane.api.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    plane.wait_for_service_account(name)
    return Deployments(plane.api, name)


def _ready(places: list[Deployments]) -> int:
    """How many are Ready in their newest generation."""
    count = 0
    for item in [item for place in places for item in place.api.items(place.path)]:
        conditions = item.get("status", {}).get("conditions", ())
        count += any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    return count


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def report(results: list[Result]) -> str:
    """A table, and the growth from the first to the last."""
    lines = ["objects    seconds  calls/object  writes/object  memory MiB  CPU seconds"]
    for one in results:
        writes = sum(count for verb, count in one.calls.items() if verb in ("create", "patch", "delete", "update"))
        lines.append(
            f"{one.objects:7d} {one.seconds:10.1f} {one.calls_per_object:13.1f} {writes / one.objects:14.1f}"
            f" {one.memory_bytes / _MIB:11.1f} {one.cpu_seconds:12.1f}"
        )
    first, last = results[0], results[-1]
    if last is not first:
        extra = (last.memory_bytes - first.memory_bytes) / (last.objects - first.objects)
        lines.append(
            f"{last.objects / first.objects:.0f} times the objects: {last.seconds / first.seconds:.1f} times the time,"
            f" {last.calls_per_object / first.calls_per_object:.2f} times the calls per object, {extra / 1024:.0f} KiB more per object"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench-operator", description=__doc__)
    parser.add_argument("--objects", type=int, nargs="+", default=[10, 100], help="how many at once, one run each")
    parser.add_argument("--limit-seconds", type=float, default=900.0, help="longest time of one run")
    parser.add_argument(
        "--cluster-wide",
        action="store_true",
        help=f"watch the whole cluster, and spread the objects over {_NAMESPACES} namespaces",
    )
    arguments = parser.parse_args()
    results = []
    with (
        tempfile.TemporaryDirectory(prefix="pdd-bench-operator-") as folder,
        LocalControlPlane(say=lambda line: print(line, file=sys.stderr)) as plane,
    ):
        installation = install(plane, "pdd-system")
        with FakeKubelet(plane.kubeconfig) as kubelet:
            kubelet.script({"app.kubernetes.io/part-of": "pdserve"}, Runs(init_messages=_PASSED))
            for objects in arguments.objects:
                results.append(
                    measure(
                        plane,
                        installation,
                        objects,
                        Path(folder),
                        arguments.limit_seconds,
                        cluster_wide=arguments.cluster_wide,
                    )
                )
                print(report(results[-1:]), flush=True)
    print(report(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
