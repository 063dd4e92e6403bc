"""Revision groups as they are found: per role the StatefulSet's size and how many pods exist and are ready. Pure.

Counts come from pods, not from StatefulSets' status: a set that was deleted leaves pods behind that still hold hardware.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pdd_operator.api.labels import ENGINE_COMPONENTS, Component
from pdd_operator.api.names import ObjectRef, engine_set_name
from pdd_operator.api.objects import Manifest
from pdd_operator.observe.observed import Observed
from pdd_operator.observe.ownership import (
    disowned_sets,
    engine_place,
    group_of,
    is_owned,
    is_router_pod,
    owned_children,
)


@dataclass(frozen=True, slots=True)
class RoleFacts:
    """One role of one group. ``pods`` counts terminating ones, ``ready`` does not.

    ``set_replicas``: what its StatefulSet asks for, None without a StatefulSet. ``settled``: its controller has seen that.
    ``ready_ordinals``: which pods are ready, None where that is not known: the first ones then.
    """

    set_replicas: int | None = None
    settled: bool = True
    pods: int = 0
    ready: int = 0
    ready_ordinals: tuple[int, ...] | None = None

    @property
    def size(self) -> int:
        """Pods that the StatefulSet asks for; 0 where there is none."""
        return self.set_replicas or 0

    @property
    def footprint(self) -> int:
        """Most pods that exist or may come without anybody's doing."""
        return max(self.pods, self.size)

    @property
    def reach(self) -> int:
        """Smallest size at which its StatefulSet, or one made in its place, keeps every ready pod that is not leaving anyway."""
        return max((number + 1 for number in self._ready_numbers() if number < self._limit), default=0)

    @property
    def kept(self) -> int:
        """Ready pods that its StatefulSet keeps as it is."""
        return self.ready_within(self.size)

    def ready_within(self, size: int) -> int:
        """Ready pods that a StatefulSet of this size keeps: it takes away those with the highest numbers, ready or not."""
        return sum(number < size for number in self._ready_numbers())

    def _ready_numbers(self) -> Sequence[int]:
        return range(self.ready) if self.ready_ordinals is None else self.ready_ordinals

    @property
    def _limit(self) -> float:
        return float("inf") if self.set_replicas is None else self.set_replicas


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """One revision group. ``created``: RFC 3339, of its oldest object, "" without one; orders groups by age.

    ``was_available``: once all its wanted pods were ready, as the status remembers it. ``has_objects``: more than pods are left.
    ``disowned``: a StatefulSet of it has no owner any more, so that the operator may neither scale nor delete it.
    """

    revision: str
    roles: Mapping[Component, RoleFacts]
    created: str = ""
    was_available: bool = False
    has_objects: bool = False
    disowned: bool = False

    @property
    def pairs(self) -> int:
        """Prefill and decode pods that can work together and stay."""
        return min(self.roles[component].kept for component in ENGINE_COMPONENTS)

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
    """Pods of a role, of one group where ``group`` is given, in order of their names. Only this PDDeployment's own."""
    if component is Component.ROUTER:
        found = [pod for pod in observed.pods if is_router_pod(observed, pod)]
    else:
        places = ((pod, engine_place(observed, pod)) for pod in observed.pods)
        found = [
            pod
            for pod, place in places
            if place is not None and place[0] is component and (group is None or place[1] == group)
        ]
    return tuple(sorted(found, key=lambda pod: str(pod["metadata"]["name"])))


def set_of(observed: Observed, component: Component, group: str) -> Manifest | None:
    """StatefulSet of a role of a group, by its name, unless it is somebody else's or is being deleted."""
    meta = observed.deployment["metadata"]
    child = observed.children.get(ObjectRef("apps/v1", "StatefulSet", engine_set_name(meta["name"], component, group)))
    if child is None or is_terminating(child) or not is_owned(child, meta["uid"]):
        return None
    return child


def groups_of(observed: Observed) -> tuple[GroupFacts, ...]:
    """Every group of which anything is left, oldest first. Other people's objects are in none."""
    name = str(observed.deployment["metadata"]["name"])
    remembered = _remembered(observed.deployment)
    objects: dict[str, list[Manifest]] = {}
    for ref, child in owned_children(observed).items():
        group = group_of(ref, name)
        if group is not None and not is_terminating(child):
            objects.setdefault(group, []).append(child)
    disowned = {group_of(ref, name) for ref in disowned_sets(observed)}
    places = [place for pod in observed.pods if (place := engine_place(observed, pod)) is not None]
    groups = (
        GroupFacts(
            revision=group,
            roles={component: _role(observed, component, group) for component in ENGINE_COMPONENTS},
            created=_created(objects.get(group, ())),
            was_available=group in remembered,
            has_objects=group in objects or group in disowned,
            disowned=group in disowned,
        )
        for group in {*objects, *(place[1] for place in places), *disowned}
        if group is not None
    )
    return tuple(sorted(groups, key=lambda group: (group.created, group.revision)))


def _role(observed: Observed, component: Component, group: str) -> RoleFacts:
    pods = pods_of(observed, component, group)
    ready = tuple(sorted(int(str(pod["metadata"]["name"]).rpartition("-")[2]) for pod in pods if is_ready(pod)))
    facts = RoleFacts(pods=len(pods), ready=len(ready), ready_ordinals=ready)
    workload = set_of(observed, component, group)
    if workload is None:
        return facts
    generation = int(workload["metadata"].get("generation", 0))
    seen = int((workload.get("status") or {}).get("observedGeneration", 0))
    # The API server's default for a missing value is 1.
    size = int(workload["spec"].get("replicas", 1))
    return replace(facts, set_replicas=size, settled=seen >= generation)


def _created(children: Iterable[Manifest]) -> str:
    return min((str(child["metadata"].get("creationTimestamp") or "") for child in children), default="")


def _remembered(deployment: Manifest) -> frozenset[str]:
    groups = (deployment.get("status") or {}).get("groups") or []
    return frozenset(str(group.get("revision")) for group in groups if group.get("wasAvailable"))
