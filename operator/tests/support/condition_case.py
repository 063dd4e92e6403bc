"""One case of the table in `condition_cases`: what a cluster shows, what is to be said of it, and the words to write cases with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from observed_world import (
    CURRENT,
    LONG_AGO,
    NO_WINDOW,
    NOW,
    all_children,
    all_pods,
    deployment_object,
    observed,
    parsed,
    pod,
)

from pdd_operator.api.labels import Component
from pdd_operator.api.names import ObjectRef
from pdd_operator.api.objects import Manifest
from pdd_operator.observe.observed import ReuseSample, ReuseWindow
from pdd_operator.observe.outcome import Failure, ReconcileOutcome
from pdd_operator.observe.reasons import ConditionType, Reason
from pdd_operator.observe.rollout import plan_rollout
from pdd_operator.observe.status import compute_status

P, D, R = Component.PREFILL, Component.DECODE, Component.ROUTER
SAMPLE = ReuseSample(NOW, 4, 4, 0.0, 0.0, 0.0, 0.0, 0.0, {}, 0.0, engines=frozenset("abcd"))
GIB = float(1 << 30)


@dataclass(frozen=True)
class Case:
    """``contains``: parts of the message. ``outcome``: fields of ReconcileOutcome; ``valid``: whether the object could be parsed."""

    name: str
    kind: ConditionType
    status: str
    reason: Reason
    contains: tuple[str, ...] = ()
    pods: Iterable[Manifest] = field(default_factory=all_pods)
    children: Iterable[Manifest] = field(default_factory=all_children)
    spec: Mapping[str, Any] = field(default_factory=dict)
    before: Mapping[str, Any] = field(default_factory=dict)
    outcome: Mapping[str, Any] = field(default_factory=dict)
    window: ReuseWindow = NO_WINDOW
    valid: bool = True
    revision: str | None = CURRENT

    def compute(self) -> dict[str, Any]:
        seen = observed(deployment_object(self.spec, self.before), self.children, self.pods, self.window)
        deployment = parsed(seen.deployment) if self.valid else None
        plan = None
        if deployment is not None and self.revision is not None:
            plan = plan_rollout(deployment.spec, self.revision, seen)
        revision = self.revision if self.valid else None
        return compute_status(seen, ReconcileOutcome(revision, rollout=plan, **self.outcome), deployment)

    def condition(self) -> Mapping[str, Any]:
        return next(found for found in self.compute()["conditions"] if found["type"] == self.kind)


def one_bad(component: Component, **worse: Any) -> list[Manifest]:
    """All pods, but both of a role as bad as said: one bad pod of two leaves the role available."""
    kept = [found for found in all_pods() if found["metadata"]["labels"]["pdserve.io/role"] != component]
    return [*kept, *(pod(component, ordinal, **worse) for ordinal in range(2))]


def unscheduled(component: Component, message: str, **more: Any) -> list[Manifest]:
    scheduled = {"status": "False", "reason": "Unschedulable", "message": message}
    return one_bad(component, ready=False, phase="Pending", scheduled=scheduled, init=[], containerStatuses=[], **more)


def waiting(component: Component, reason: str, message: str = "", **more: Any) -> list[Manifest]:
    state = {"state": {"waiting": {"reason": reason, "message": message}}, "started": False, **more}
    return one_bad(component, ready=False, container=state)


def ended(code: int, reason: str = "Error", message: str = "") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message}}


def window(**after: Any) -> ReuseWindow:
    return ReuseWindow(SAMPLE, replace(SAMPLE, **after))


def failure(reason: str, message: str = "no") -> dict[str, Any]:
    return {"failures": (Failure(reason, message, ObjectRef("v1", "ConfigMap", "glm-router")),)}


def condition(
    kind: ConditionType, status: str, reason: str, message: str = "", since: str = LONG_AGO
) -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since}


def changed_children(kind: str, role: str, generation: int = 1, **status: Any) -> list[Manifest]:
    """All children, one of them with another status."""
    children = all_children()
    for child in children:
        if child["kind"] == kind and child["metadata"]["labels"]["pdserve.io/role"] == role:
            child["metadata"]["generation"] = generation
            child["status"] |= status
    return children


def decode_of(revision: str) -> list[Manifest]:
    """All pods, the decode engines' of a revision of their StatefulSet."""
    pods = all_pods()
    for engine in pods:
        if engine["metadata"]["labels"].get("pdserve.io/role") == D:
            engine["metadata"]["labels"]["controller-revision-hash"] = revision
    return pods
