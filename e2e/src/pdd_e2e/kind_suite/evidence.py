"""What is kept when a test fails: reads of the cluster only."""

from pathlib import Path
from typing import Any

from pdd_e2e.cluster.errors import ClusterError
from pdd_e2e.cluster.kubectl import Kubectl

_KINDS = "pdd,statefulsets,deployments,pods,services,configmaps,networkpolicies,persistentvolumeclaims,events"
_OPERATED = "pdserve.io/deployment"
_ALWAYS = ("pdd-system", "kube-system")


def collect(kubectl: Kubectl, folder: Path) -> Path:
    """Objects, events, descriptions, metrics and logs (also of what ran before) of every namespace with something of ours. No Secret is read."""
    folder.mkdir(parents=True, exist_ok=True)
    _keep(folder / "nodes.txt", kubectl, "describe", "nodes")
    for namespace in sorted({*_ALWAYS, *_namespaces(kubectl)}):
        place = ("--namespace", namespace)
        _keep(folder / f"{namespace}-overview.txt", kubectl, *place, "get", "pdd,pods,events", "-o", "wide")
        _keep(folder / f"{namespace}-objects.yaml", kubectl, *place, "get", _KINDS, "-o", "yaml")
        _keep(folder / f"{namespace}-pods.txt", kubectl, *place, "describe", "pods")
        for pod in _pods(kubectl, *place):
            _keep_pod(kubectl, place, pod, folder / f"{namespace}-{pod['metadata']['name']}")
    return folder


def _keep_pod(kubectl: Kubectl, place: tuple[str, str], pod: dict[str, Any], start: Path) -> None:
    name = pod["metadata"]["name"]
    logs = (*place, "logs", name, "--all-containers", "--prefix", "--timestamps")
    _keep(start.with_name(f"{start.name}.log"), kubectl, *logs)
    for container in pod["status"].get("containerStatuses", []):
        if container["restartCount"]:
            file = start.with_name(f"{start.name}-{container['name']}-previous.log")
            _keep(file, kubectl, *place, "logs", name, "--container", container["name"], "--timestamps", "--previous")
    if (port := metrics_port(pod)) is not None:
        path = f"/api/v1/namespaces/{place[1]}/pods/{name}:{port}/proxy/metrics"
        _keep(start.with_name(f"{start.name}-metrics.txt"), kubectl, "get", "--raw", path)


def metrics_port(pod: dict[str, Any]) -> int | None:
    """The port whose /metrics a pod of ours has: that named metrics, else that named http."""
    ports = [port for container in pod["spec"]["containers"] for port in container.get("ports", [])]
    named = {port.get("name"): int(port["containerPort"]) for port in ports}
    return named.get("metrics", named.get("http"))


def _namespaces(kubectl: Kubectl) -> set[str]:
    try:
        found = [
            *_pods(kubectl, "--all-namespaces", "--selector", _OPERATED),
            *kubectl.get("pdd", "--all-namespaces")["items"],
        ]
    except ClusterError:
        return set()  # what fails may be the cluster: the rest is worth having
    return {item["metadata"]["namespace"] for item in found}


def _pods(kubectl: Kubectl, *arguments: str) -> list[dict[str, Any]]:
    try:
        found: list[dict[str, Any]] = kubectl.get("pods", *arguments)["items"]
    except ClusterError:
        return []
    return found


def _keep(file: Path, kubectl: Kubectl, *arguments: str) -> None:
    """What could not be had is said in the file's place: the rest is worth having."""
    try:
        file.write_text(kubectl(*arguments, timeout_seconds=120))
    except ClusterError as error:
        file.write_text(f"{error}\n")
