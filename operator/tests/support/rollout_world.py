"""StatefulSets, their controller, kubelets and a garbage collector, as far as a rollout meets them; steps in any order.

Pods of a set have ordinals. The controller makes and ends pods by what it has seen of a set's spec, which may be old. A pod that
is ending keeps its place until it is gone. Deleting a set leaves its pods to the garbage collector.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from observed_world import NOW, config_map, deployment_object, parsed, pod, stateful_set

from pdd_operator.api.labels import ENGINE_COMPONENTS, Component
from pdd_operator.api.objects import Manifest, ref_of
from pdd_operator.observe.observed import Observed, ReuseWindow
from pdd_operator.observe.outcome import ReconcileOutcome, RolloutPlan
from pdd_operator.observe.rollout import plan_rollout
from pdd_operator.observe.status import compute_status


class PodState(Enum):
    STARTING = auto()
    READY = auto()
    ENDING = auto()


@dataclass
class Set:
    replicas: int
    generation: int = 1
    seen: int = 0
    seen_replicas: int = 0


@dataclass
class World:
    """``spec``: overrides as in ``deployment_object``. Checks are for the caller, after every step."""

    spec: dict[str, Any]
    revision: str = "000000"
    status: dict[str, Any] = field(default_factory=dict)
    sets: dict[tuple[str, Component], Set] = field(default_factory=dict)
    pods: dict[tuple[str, Component, int], PodState] = field(default_factory=dict)
    born: dict[str, int] = field(default_factory=dict)
    stuck: set[tuple[str, Component]] = field(default_factory=set)
    unlabelled: set[tuple[str, Component]] = field(default_factory=set)
    strangers: bool = False

    def __post_init__(self) -> None:
        self.change_spec({})

    def change_spec(self, changes: dict[str, Any]) -> None:
        """By whole sections. What is in ``stuck`` never becomes ready, what is in ``unlabelled`` lost all labels."""
        self.spec = {**self.spec, **changes}
        self.parsed = parsed(deployment_object(self.spec))

    # ---- what the operator sees and does ------------------------------------------------------------------------

    def observe(self) -> Observed:
        children: list[Manifest] = []
        for (group, part), found in self.sets.items():
            created = f"2026-11-29T{self.born[group] // 60:02}:{self.born[group] % 60:02}:00Z"
            children.append(
                stateful_set(part, group, found.replicas, created=created, generation=found.generation, seen=found.seen)
            )
            children.append(config_map(group, created))
            if (group, part) in self.unlabelled:
                children[-2]["metadata"]["labels"] = {}
        pods = [
            pod(part, ordinal, group, ready=state is not PodState.STARTING, terminating=state is PodState.ENDING)
            for (group, part, ordinal), state in self.pods.items()
        ]
        if self.strangers:
            children += strange_children(self.revision)
            pods += strange_pods(self.revision)
        deployment = deployment_object(self.spec, self.status)
        return Observed(deployment, {ref_of(child): child for child in children}, tuple(pods), _NOTHING, NOW)

    def plan(self) -> RolloutPlan:
        seen = self.observe()
        return plan_rollout(self.parsed.spec, self.revision, seen)

    def reconcile(self, *, write_status: bool = True) -> RolloutPlan:
        plan = self.plan()
        self.born.setdefault(self.revision, len(self.born))
        sizes = {Component.PREFILL: plan.replicas.prefill, Component.DECODE: plan.replicas.decode}
        for part in ENGINE_COMPONENTS:
            found = self.sets.get((self.revision, part))
            size = sizes[part]
            if found is None:
                assert size is not None, "a set that is not there needs a size"
                self.sets[self.revision, part] = Set(size)
            elif size is not None:
                self.scale(self.revision, part, size)
        for (group, part), size in plan.old_replicas.items():
            self.scale(group, part, size)
        for group in plan.finished:
            for part in ENGINE_COMPONENTS:
                self.sets.pop((group, part), None)
        if write_status:
            self.write_status(plan)
        return plan

    def write_status(self, plan: RolloutPlan) -> None:
        seen = self.observe()
        self.status = compute_status(seen, ReconcileOutcome(self.revision, rollout=plan), self.parsed)

    def scale(self, group: str, part: Component, size: int) -> None:
        found = self.sets[group, part]
        if found.replicas != size:
            found.replicas, found.generation = size, found.generation + 1

    # ---- what the cluster does ----------------------------------------------------------------------------------

    def sync(self, group: str, part: Component) -> None:
        """The controller learns of the set as it is now."""
        found = self.sets.get((group, part))
        if found is not None:
            found.seen, found.seen_replicas = found.generation, found.replicas

    def control(self, group: str, part: Component) -> None:
        """The controller acts by what it knows."""
        found = self.sets.get((group, part))
        if found is None:
            return
        for ordinal in range(found.seen_replicas):
            self.pods.setdefault((group, part, ordinal), PodState.STARTING)
        for owner, role, ordinal in list(self.pods):
            if (owner, role) == (group, part) and ordinal >= found.seen_replicas:
                self.pods[owner, role, ordinal] = PodState.ENDING

    def collect(self) -> None:
        """The garbage collector ends pods without a set."""
        for key in self.pods:
            if key[:2] not in self.sets:
                self.pods[key] = PodState.ENDING

    def settle(self) -> None:
        """Everything that the cluster has to do by itself, once."""
        for group, part in list(self.sets):
            self.sync(group, part)
            self.control(group, part)
        self.collect()
        for key, state in list(self.pods.items()):
            if state is PodState.ENDING:
                del self.pods[key]
            elif key[:2] not in self.stuck:
                self.pods[key] = PodState.READY

    def random_step(self, chance: random.Random) -> None:
        """One thing that may happen in a cluster."""
        keys, pods = sorted(self.sets), sorted(self.pods)
        kind = chance.choice(
            ("sync", "control", "control", "collect", "ready", "ready", "ready", "fail", "kill", "gone")
        )
        if kind in ("sync", "control") and keys:
            getattr(self, kind)(*chance.choice(keys))
        elif kind == "collect":
            self.collect()
        elif pods:
            self._pod_step(kind, chance.choice(pods))

    def _pod_step(self, kind: str, key: tuple[str, Component, int]) -> None:
        state = self.pods[key]
        if kind == "gone" and state is PodState.ENDING:
            del self.pods[key]
        elif kind == "ready" and state is PodState.STARTING and key[:2] not in self.stuck:
            self.pods[key] = PodState.READY
        elif kind == "fail" and state is PodState.READY:
            self.pods[key] = PodState.STARTING
        elif kind == "kill":
            self.pods[key] = PodState.ENDING

    # ---- what tests ask -----------------------------------------------------------------------------------------

    def count(self, part: Component) -> int:
        """Pods of a role in every group, ending ones too."""
        return sum(role is part for _, role, _ in self.pods)

    def may_count(self, part: Component) -> int:
        """Most pods of a role that are there or may come without the operator's doing."""
        total = 0
        for group in {key[0] for key in self.pods} | self.groups():
            there = sum(key[:2] == (group, part) for key in self.pods)
            found = self.sets.get((group, part))
            sizes = (
                () if found is None else (found.replicas, 0 if found.seen == found.generation else found.seen_replicas)
            )
            total += max((there, *sizes))
        return total

    def kept(self, group: str, part: Component, limit: int = 1000) -> int:
        """Ready pods of a role of a group that its set keeps, or would keep at that size."""
        size = min(limit, self._size(group, part))
        return sum(
            key[:2] == (group, part) and state is PodState.READY and key[2] < size for key, state in self.pods.items()
        )

    def pairs(self, group: str, limits: Mapping[Component, int] | None = None) -> int:
        """Ready prefill and decode pods of a group that its sets keep."""
        return min(self.kept(group, part, (limits or {}).get(part, 1000)) for part in ENGINE_COMPONENTS)

    def all_pairs(self) -> int:
        return sum(self.pairs(group) for group in self.groups())

    def best_service(self, limits: Mapping[Component, int]) -> tuple[int, int]:
        """Pairs and decode pods of the group that serves best; of the current one only as much as ``limits`` say."""
        return max(
            (
                (
                    self.pairs(group, limits if group == self.revision else None),
                    self.kept(group, Component.DECODE, limits[Component.DECODE] if group == self.revision else 1000),
                )
                for group in self.groups()
            ),
            default=(0, 0),
        )

    def most_pairs(self) -> int:
        return max((self.pairs(group) for group in self.groups()), default=0)

    def groups(self) -> set[str]:
        return {group for group, _ in self.sets}

    def _size(self, group: str, part: Component) -> int:
        found = self.sets.get((group, part))
        return 0 if found is None else found.replicas


def strange_children(revision: str) -> list[Manifest]:
    """What somebody made of copies: without owner, with another name, with another's owner; all with the labels of ours."""
    found = [stateful_set(part, "debug1", 2) for part in ENGINE_COMPONENTS]
    found += [stateful_set(part, "abcdef", 2) for part in ENGINE_COMPONENTS]
    for child in found:
        child["metadata"]["ownerReferences"] = []
    found.append(stateful_set(Component.DECODE, revision, 7))
    found[-1]["metadata"]["name"] = "copy"
    found.append(config_map("fedcba"))
    found[-1]["metadata"]["ownerReferences"] = [{"uid": "another", "controller": True}]
    return found


def strange_pods(revision: str) -> list[Manifest]:
    found = [pod(part, 0, group) for part in ENGINE_COMPONENTS for group in ("debug1", "abcdef")]
    found += [pod(part, 9, revision) for part in Component]
    for item in found[4:]:
        item["metadata"]["name"] = "debug"
        item["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "name": "copy-1", "uid": "x", "controller": True}]
    return found


_NOTHING = ReuseWindow(None, None)
