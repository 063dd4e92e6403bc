"""What was read of a cluster at one moment: all that the checks may look at. Data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final, TypeAlias

from pdd_operator.api.objects import Manifest

INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"
ZONE: Final = "topology.kubernetes.io/zone"
_FACTORS: Final[Mapping[str, int]] = {
    "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Unread:
    """In place of something that could not be read, and why."""

    why: str


@dataclass(frozen=True, slots=True)
class Right:
    """``namespace``: "" for the whole cluster."""

    verb: str
    group: str
    resource: str
    namespace: str = ""

    def __str__(self) -> str:
        where = f"in namespace {self.namespace}" if self.namespace else "in the cluster"
        return f"{self.verb} {self.resource}{f'.{self.group}' if self.group else ''} {where}"


@dataclass(frozen=True, slots=True)
class Node:
    """``usable``: it is ready and not cordoned. ``zone``, ``instance_type``: "" without the label.

    ``taints``: keys of those that keep pods away, without Kubernetes' own, which say that a node is not usable.
    """

    name: str
    instance_type: str
    zone: str
    usable: bool
    allocatable: Mapping[str, str]
    taints: tuple[str, ...] = ()

    def amount(self, resource: str) -> Decimal:
        """0 where the node offers none."""
        return parse_amount(self.allocatable.get(resource, "0"))


Objects: TypeAlias = tuple[Manifest, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """``version``: as the API server says it, v1.37.2. ``definition``: the CRD. ``operators``: Deployments of the chart; ``leases``: in
    their namespaces. ``rights``: what the user may do. ``space``: the namespace for PDDeployments, None where it is not there.
    ``served``: kinds and groups of others that the cluster has, as `podmonitors.monitoring.coreos.com` or `karpenter.sh`.
    """

    now: datetime
    version: str
    namespace: str
    definition: Manifest | Unread | None
    operators: Objects | Unread
    leases: Objects | Unread
    rights: Mapping[Right, bool] | Unread
    nodes: tuple[Node, ...] | Unread
    daemon_sets: Objects | Unread
    space: Manifest | Unread | None
    served: frozenset[str]


def node_of(manifest: Manifest) -> Node:
    """As the API server gives it."""
    labels: Mapping[str, str] = manifest["metadata"].get("labels") or {}
    status: Mapping[str, Any] = manifest.get("status") or {}
    ready = any(
        condition.get("type") == "Ready" and condition.get("status") == "True"
        for condition in status.get("conditions") or []
    )
    spec: Mapping[str, Any] = manifest.get("spec") or {}
    return Node(
        name=str(manifest["metadata"]["name"]),
        instance_type=labels.get(INSTANCE_TYPE, ""),
        zone=labels.get(ZONE, ""),
        usable=ready and not spec.get("unschedulable"),
        allocatable=dict(status.get("allocatable") or {}),
        taints=tuple(
            str(taint["key"])
            for taint in spec.get("taints") or []
            if taint.get("effect") in ("NoSchedule", "NoExecute")
            and not str(taint["key"]).startswith("node.kubernetes.io/")
        ),
    )


def parse_amount(text: str) -> Decimal:
    """A Kubernetes quantity in its own unit: bytes, cores, devices. 0 for what is none."""
    text = str(text).strip()
    for length in (2, 1):
        if text[-length:] in _FACTORS:
            return _decimal(text[:-length]) * _FACTORS[text[-length:]]
    return _decimal(text[:-1]) / 1000 if text.endswith("m") else _decimal(text)


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        return Decimal(0)
