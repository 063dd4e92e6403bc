"""What is kept when a test fails, and what logs may say: reads of the cluster only."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pdd_e2e.cluster.errors import ClusterError
from pdd_e2e.cluster.kubectl import Kubectl

_KINDS = "pdd,statefulsets,deployments,pods,services,configmaps,networkpolicies,persistentvolumeclaims,events"


def collect(kubectl: Kubectl, namespaces: Iterable[str], folder: Path) -> Path:
    """Objects, events, descriptions and logs (also of what ran before) of every namespace in `folder`. No Secret is read."""
    folder.mkdir(parents=True, exist_ok=True)
    _keep(folder / "nodes.txt", kubectl, "describe", "nodes")
    for namespace in namespaces:
        place = ("--namespace", namespace)
        _keep(folder / f"{namespace}-overview.txt", kubectl, *place, "get", "pdd,pods,events", "-o", "wide")
        _keep(folder / f"{namespace}-objects.yaml", kubectl, *place, "get", _KINDS, "-o", "yaml")
        _keep(folder / f"{namespace}-pods.txt", kubectl, *place, "describe", "pods")
        for pod in _pods(kubectl, namespace):
            name = pod["metadata"]["name"]
            logs = (*place, "logs", name, "--all-containers", "--prefix", "--timestamps")
            _keep(folder / f"{namespace}-{name}.log", kubectl, *logs)
            if any(item["restartCount"] for item in pod["status"].get("containerStatuses", [])):
                _keep(folder / f"{namespace}-{name}-previous.log", kubectl, *logs, "--previous")
    return folder


def complaints(kubectl: Kubectl, namespace: str, selector: str, since: str, allowed: Iterable[str] = ()) -> list[str]:
    """Lines at level warning or above since a time (RFC 3339) of pods with `selector`, but those that a pattern allows.

    Lines that are no JSON are complaints, too: nothing of ours writes them.
    """
    text = kubectl(
        "--namespace", namespace, "logs", "--selector", selector, "--tail=-1", f"--since-time={since}", "--prefix"
    )
    patterns = [re.compile(pattern) for pattern in allowed]
    found = [line for line in text.splitlines() if _complains(line.partition(" ")[2])]
    return [line for line in found if not any(pattern.search(line) for pattern in patterns)]


def _complains(line: str) -> bool:
    try:
        entry = json.loads(line)
    except ValueError:
        return True
    return entry.get("level") not in ("debug", "info")


def _pods(kubectl: Kubectl, namespace: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = kubectl.get("--namespace", namespace, "pods")["items"]
    return found


def _keep(file: Path, kubectl: Kubectl, *arguments: str) -> None:
    """What could not be had is said in the file's place: the rest is worth having."""
    try:
        file.write_text(kubectl(*arguments, timeout_seconds=120))
    except ClusterError as error:
        file.write_text(f"{error}\n")
