"""One PDDeployment in a cluster, by kubectl: applied, waited for, looked at. Judges nothing."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pdd_cli.local.ports import free_ports
from pdd_e2e.cluster.errors import ClusterError
from pdd_e2e.cluster.kubectl import Kubectl

_POLL_SECONDS = 1.0  # a call of kubectl takes two cores a good part of a second, while they start engines
_READS_METRICS = (
    "import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:8000/metrics', timeout=10).read().decode())"
)


@dataclass(frozen=True, slots=True)
class LiveDeployment:
    """The PDDeployment `name` in `namespace`."""

    kubectl: Kubectl
    namespace: str
    name: str

    def __call__(self, *arguments: str, timeout_seconds: float = 60) -> str:
        """kubectl in this namespace."""
        return self.kubectl("--namespace", self.namespace, *arguments, timeout_seconds=timeout_seconds)

    def conditions(self) -> dict[str, dict[str, str]]:
        """By type."""
        found = self.kubectl.get("--namespace", self.namespace, "pdd", self.name)
        return {item["type"]: item for item in found.get("status", {}).get("conditions", [])}

    def patch(self, spec: dict[str, Any]) -> None:
        """Merged into the spec; None takes a field out."""
        self("patch", "pdd", self.name, "--type=merge", "--patch", json.dumps({"spec": spec}))

    def wait(self, condition: str, *, timeout_seconds: float) -> None:
        """Until the condition is True and about the present generation. Raises ClusterError with all conditions if it is late."""

        def met() -> bool:
            found = self.kubectl.get("--namespace", self.namespace, "pdd", self.name)
            current = found["metadata"]["generation"]
            return any(
                item["type"] == condition and item["status"] == "True" and item.get("observedGeneration") == current
                for item in found.get("status", {}).get("conditions", [])
            )

        wait_until(met, f"{condition} of {self.name}", timeout_seconds, lambda: json.dumps(self.conditions(), indent=1))

    def pods(self, role: str = "") -> dict[str, dict[str, Any]]:
        """Of one role, or all; by name."""
        selector = f"pdserve.io/deployment={self.name}" + (f",pdserve.io/role={role}" if role else "")
        found = self.kubectl.get("--namespace", self.namespace, "pods", "--selector", selector)
        return {item["metadata"]["name"]: item for item in found["items"]}

    def uids(self) -> dict[str, str]:
        """Of all pods: another uid is another pod."""
        return {name: pod["metadata"]["uid"] for name, pod in self.pods().items()}

    def ready_pods(self, role: str) -> list[str]:
        """Names of those that are Ready and not leaving."""
        return [name for name, pod in self.pods(role).items() if is_ready(pod)]

    def has_only(self, **wanted: int) -> bool:
        """Whether there are so many pods of these roles, and all of them ready."""
        pods = [(pod["metadata"]["labels"]["pdserve.io/role"], is_ready(pod)) for pod in self.pods().values()]
        return all([ready for of, ready in pods if of == role] == [True] * number for role, number in wanted.items())

    def wait_for_routers(self, *, timeout_seconds: float) -> None:
        """Until routers as the spec has them now serve, and no other pod of theirs is there. Raises ClusterError."""
        self.wait("Reconciled", timeout_seconds=timeout_seconds)
        self.wait("RouterAvailable", timeout_seconds=timeout_seconds)
        wanted = self.kubectl.get("--namespace", self.namespace, "pdd", self.name)["spec"]["router"]["replicas"]
        self.wait_for_only(timeout_seconds, router=wanted)

    def wait_for_only(self, timeout_seconds: float, **wanted: int) -> None:
        """Until `has_only`. Raises ClusterError."""
        what = f"nothing but {wanted} ready pods"
        wait_until(lambda: self.has_only(**wanted), what, timeout_seconds, lambda: self("get", "pods"))

    def router_image(self) -> str:
        """What its routers run."""
        (pod, *_) = self.pods("router").values()
        return str(pod["spec"]["containers"][0]["image"])

    def samples(self, pod: str, name: str, *, having: str = "") -> list[float]:
        """An engine's or a router's samples of one name whose line holds `having`. Raises ClusterError."""
        text = self("exec", pod, "--", "python3", "-c", _READS_METRICS)
        lines = [line for line in text.splitlines() if line.split(" ")[0].split("{")[0] == name and having in line]
        return [float(line.rsplit(" ", 1)[1]) for line in lines]

    def counter(self, pod: str, name: str, *, having: str = "") -> float:
        """Their sum."""
        return sum(self.samples(pod, name, having=having))

    @contextmanager
    def router_url(self) -> Iterator[str]:
        """A forwarded port of the router's Service."""
        (port,) = free_ports(1)
        words = ["--namespace", self.namespace, "port-forward", f"service/{self.name}-router", f"{port}:8000"]
        with subprocess.Popen(  # noqa: S603  # the kubectl that was found
            self.kubectl.command(*words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            try:
                line = process.stdout.readline() if process.stdout is not None else ""
                if "Forwarding from" not in line:
                    raise ClusterError(f"no forwarded port to {self.name}-router: {line}")
                yield f"http://127.0.0.1:{port}"
            finally:
                process.terminate()


def is_ready(pod: Mapping[str, Any]) -> bool:
    """By its condition, and not on its way out."""
    if pod["metadata"].get("deletionTimestamp"):
        return False
    return any(item["type"] == "Ready" and item["status"] == "True" for item in pod["status"].get("conditions", []))


def wait_until(
    met: Callable[[], bool],
    what: str,
    timeout_seconds: float,
    describe: Callable[[], str] = str,
    *,
    poll_seconds: float = _POLL_SECONDS,
) -> None:
    """Raises ClusterError with what `describe` says if `met` is not true in time."""
    deadline = time.monotonic() + timeout_seconds
    while not met():
        if time.monotonic() > deadline:
            raise ClusterError(f"{what} did not come within {timeout_seconds:.0f} s: {describe()}")
        time.sleep(poll_seconds)
