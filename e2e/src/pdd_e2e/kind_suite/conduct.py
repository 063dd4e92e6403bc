"""How the product's own pods conduct themselves during a test: what they log, and whether they were started again. Reads only."""

import json
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pdd_e2e.cluster.errors import ClusterError
from pdd_e2e.cluster.kubectl import Kubectl

OPERATORS = "app.kubernetes.io/name=pdd-operator"
_OURS = "pdserve.io/role"
_LOGGING = ("operator", "router")  # engines are vLLM's, and warn of much


@dataclass(frozen=True, slots=True)
class ProductPod:
    """A pod of the operator's, or one that it made. `restarts`: of all its containers."""

    namespace: str
    name: str
    uid: str
    role: str
    restarts: int


@dataclass(frozen=True, slots=True)
class Moment:
    """What there was at a time (RFC 3339): where a test begins."""

    time: str
    restarts: Mapping[str, int]


def product_pods(kubectl: Kubectl) -> list[ProductPod]:
    """In all namespaces. Raises ClusterError."""
    pods = kubectl.get("pods", "--all-namespaces")["items"]
    roles = [(item, _role(item["metadata"].get("labels", {}))) for item in pods]
    return [_pod(item, role) for item, role in roles if role]


def _role(labels: Mapping[str, str]) -> str:
    """ "" for a pod that is none of the product's."""
    name, _, operator = OPERATORS.partition("=")
    return "operator" if labels.get(name) == operator else labels.get(_OURS, "")


def moment(kubectl: Kubectl) -> Moment:
    """Now. Raises ClusterError."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return Moment(now, {pod.uid: pod.restarts for pod in product_pods(kubectl)})


def restarted(before: Moment, pods: Iterable[ProductPod], allowed: Iterable[str] = ()) -> list[str]:
    """Pods whose containers were started again since, but those of roles that are allowed to: in words."""
    again = [pod for pod in pods if pod.role not in allowed and pod.restarts > before.restarts.get(pod.uid, 0)]
    return [f"{pod.role} {pod.namespace}/{pod.name} was started again ({pod.restarts} times in all)" for pod in again]


def complaints(kubectl: Kubectl, pods: Iterable[ProductPod], since: str, allowed: Iterable[str] = ()) -> list[str]:
    """Lines at level warning or above since a time of operators and routers that are there, but those that a pattern allows."""
    patterns = [re.compile(pattern) for pattern in allowed]
    logging = [pod for pod in pods if pod.role in _LOGGING]
    with ThreadPoolExecutor(4) as pool:
        found = [*pool.map(lambda pod: _lines(kubectl, pod, since), logging)]
    return [line for lines in found for line in lines if not any(pattern.search(line) for pattern in patterns)]


def complains(line: str) -> bool:
    """Whether a line is at level warning or above. One that is no JSON is, too: nothing of ours writes such."""
    try:
        entry = json.loads(line)
    except ValueError:
        return True
    return not isinstance(entry, dict) or entry.get("level") not in ("debug", "info")


def _lines(kubectl: Kubectl, pod: ProductPod, since: str) -> list[str]:
    logs = ("--namespace", pod.namespace, "logs", pod.name, f"--since-time={since}")
    try:
        text = kubectl(*logs)
        if pod.restarts:
            text += kubectl(*logs, "--previous")
    except ClusterError as error:
        if "NotFound" in str(error) or "is waiting to start" in str(error):
            return []  # it went, or has said nothing yet
        raise
    return [f"{pod.namespace}/{pod.name}: {line}" for line in text.splitlines() if complains(line)]


def _pod(item: Mapping[str, Any], role: str) -> ProductPod:
    metadata = item["metadata"]
    restarts = sum(status["restartCount"] for status in item.get("status", {}).get("containerStatuses", []))
    return ProductPod(metadata["namespace"], metadata["name"], metadata["uid"], role, restarts)
