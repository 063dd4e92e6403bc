"""Revision groups as they are found: per role the StatefulSet's size and how many pods exist and are ready. Pure.

Counts come from pods, not from StatefulSets' status: a set that was deleted leaves pods behind that still hold hardware.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pdd_operator.api.labels import ENGINE_COMPONENTS, REVISION_GROUP, ROLE, Component
from pdd_operator.api.objects import Manifest
from pdd_operator.observe.observed import Observed


@dataclass(frozen=True, slots=True)
class RoleFacts:
    """One role of one group. ``pods`` counts terminating ones, ``ready`` does not.

    ``set_replicas``: what its StatefulSet asks for, None without a StatefulSet. ``settled``: its controller has seen that.
    """

    set_replicas: int | None = None
    settled: bool = True
    pods: int = 0
    ready: int = 0

    @property
    def size(self) -> int:
        """Pods that the StatefulSet asks for; 0 where there is none."""
        return self.set_replicas or 0

    @property
    def footprint(self) -> int:
        """Most pods that exist or may come without anybody's doing."""
        return max(self.pods, self.size)


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """One revision group. ``created``: RFC 3339, of its oldest object, "" without one; orders groups by age.

    ``was_available``: once all its wanted pods were ready, as the status remembers it. ``has_objects``: more than pods are left.
    """

    revision: str
    roles: Mapping[Component, RoleFacts]
    created: str = ""
    was_available: bool = False
    has_objects: bool = False

    @property
    def pairs(self) -> int:
        """Prefill and decode pods that can work together."""
        return min(self.roles[component].ready for component in ENGINE_COMPONENTS)

    @property
    def served(self) -> bool:
        """It was available once, as far as can be told: remembered, or as large and as ready now as it should be."""
        roles = self.roles.values()
        return self.was_available or (self.pairs > 0 and all(role.ready >= role.size for role in roles))

    @property
    def is_gone(self) -> bool:
        return not self.has_objects and not any(role.pods for role in self.roles.values())


def label_of(manifest: Manifest, label: str) -> str:
    """A label's value, "" where it is missing."""
    return str((manifest.get("metadata", {}).get("labels") or {}).get(label, ""))


def is_terminating(manifest: Manifest) -> bool:
    return bool(manifest.get("metadata", {}).get("deletionTimestamp"))


def is_ready(pod: Manifest) -> bool:
    """Whether routers may send to it: Ready, and not on its way out."""
    return not is_terminating(pod) and condition_of(pod, "Ready").get("status") == "True"


def condition_of(manifest: Manifest, kind: str) -> Mapping[str, Any]:
    """A condition of an object's status, empty where it is missing."""
    conditions = (manifest.get("status") or {}).get("conditions") or []
    return next((condition for condition in conditions if condition.get("type") == kind), {})


def pods_of(observed: Observed, component: Component, group: str | None = None) -> tuple[Manifest, ...]:
    """Pods of a role, of one group where ``group`` is given, in order of their names."""
    found = (
        pod
        for pod in observed.pods
        if label_of(pod, ROLE) == component and (group is None or label_of(pod, REVISION_GROUP) == group)
    )
    return tuple(sorted(found, key=lambda pod: str(pod["metadata"]["name"])))


def set_of(observed: Observed, component: Component, group: str) -> Manifest | None:
    """StatefulSet of a role of a group, unless it is being deleted."""
    for ref, child in observed.children.items():
        if (
            ref.kind == "StatefulSet"
            and label_of(child, ROLE) == component
            and label_of(child, REVISION_GROUP) == group
        ):
            return None if is_terminating(child) else child
    return None


def groups_of(observed: Observed) -> tuple[GroupFacts, ...]:
    """Every group of which anything is left, oldest first."""
    remembered = _remembered(observed.deployment)
    children = [child for child in observed.children.values() if not is_terminating(child)]
    names = {label_of(manifest, REVISION_GROUP) for manifest in (*children, *observed.pods)} - {""}
    groups = (
        GroupFacts(
            revision=name,
            roles={component: _role(observed, component, name) for component in ENGINE_COMPONENTS},
            created=_created(child for child in children if label_of(child, REVISION_GROUP) == name),
            was_available=name in remembered,
            has_objects=any(label_of(child, REVISION_GROUP) == name for child in children),
        )
        for name in names
    )
    return tuple(sorted(groups, key=lambda group: (group.created, group.revision)))


def _role(observed: Observed, component: Component, group: str) -> RoleFacts:
    pods = pods_of(observed, component, group)
    facts = RoleFacts(pods=len(pods), ready=sum(is_ready(pod) for pod in pods))
    workload = set_of(observed, component, group)
    if workload is None:
        return facts
    generation = int(workload["metadata"].get("generation", 0))
    seen = int((workload.get("status") or {}).get("observedGeneration", 0))
    # The API server's default for a missing value is 1.
    size = int(workload["spec"].get("replicas", 1))
    return RoleFacts(size, seen >= generation, facts.pods, facts.ready)


def _created(children: Iterable[Manifest]) -> str:
    return min((str(child["metadata"].get("creationTimestamp") or "") for child in children), default="")


def _remembered(deployment: Manifest) -> frozenset[str]:
    groups = (deployment.get("status") or {}).get("groups") or []
    return frozenset(str(group.get("revision")) for group in groups if group.get("wasAvailable"))
