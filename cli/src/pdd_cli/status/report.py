"""How one PDDeployment stands, as data: what its status says, and what its pods say now. Pure.

The status is the operator's word and may be old; pods are looked at here once more, with the operator's own explanations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from pdd_cli.status.remedies import REMEDIES
from pdd_operator.api.labels import REVISION_GROUP, ROLE, Component
from pdd_operator.api.names import component_name
from pdd_operator.api.objects import Manifest
from pdd_operator.api.parse import InvalidSpecError, parse_deployment
from pdd_operator.api.v1alpha1 import Spec
from pdd_operator.observe.conditions import parse_time, previous_conditions
from pdd_operator.observe.groups import is_ready, is_terminating, label_of
from pdd_operator.observe.pods import excused, explain_pod
from pdd_operator.observe.reasons import ConditionType, Reason
from pdd_operator.observe.scheduling import PodContext


class Mark(StrEnum):
    """``WARN``: on its way, or well with something to know."""

    PASS = "Pass"  # noqa: S105  # no password
    WARN = "Warn"
    FAIL = "Fail"


_QUALIFIED: Final = frozenset((Reason.SOCKET_FALLBACK, Reason.MINIMUM_READY))
"""True, and yet something to know."""
_NO_FAULT: Final = frozenset(
    (
        Reason.SCALED_TO_ZERO,
        Reason.CONTAINER_STARTING,
        Reason.MODEL_LOADING,
        Reason.INSUFFICIENT_REPLICAS,
    )
)
"""False because somebody asked for it, or because it is on its way."""


@dataclass(frozen=True, slots=True)
class ConditionLine:
    """``since_seconds``: how long the status has that value; None where it is not said. ``remedy``: "" where nothing is to be done."""

    type: str
    status: str
    reason: str
    message: str
    since_seconds: int | None
    mark: Mark
    remedy: str


@dataclass(frozen=True, slots=True)
class PodLine:
    """``reason``: Ready, Ending, or why it is not ready."""

    name: str
    revision: str
    ready: bool
    reason: str
    message: str
    mark: Mark


@dataclass(frozen=True, slots=True)
class RoleLines:
    role: str
    ready: int
    wanted: int
    pods: tuple[PodLine, ...]


@dataclass(frozen=True, slots=True)
class GroupLine:
    revision: str
    current: bool
    prefill_ready: int
    decode_ready: int
    was_available: bool


@dataclass(frozen=True, slots=True)
class Report:
    """``observed_generation``: which generation the conditions are about, 0: none yet. ``model``: what clients ask for."""

    name: str
    namespace: str
    generation: int
    observed_generation: int
    revision: str
    conditions: tuple[ConditionLine, ...]
    roles: tuple[RoleLines, ...]
    groups: tuple[GroupLine, ...]
    endpoint: str
    model: str
    service: str
    port: int
    needs_key: bool

    @property
    def is_current(self) -> bool:
        """Whether the conditions are about the spec as it is now."""
        return self.observed_generation >= self.generation

    @property
    def ready(self) -> bool:
        return self.is_current and any(
            line.type == ConditionType.READY and line.status == "True" for line in self.conditions
        )

    @property
    def rolling_out(self) -> bool:
        return any(not group.current for group in self.groups)


def report_of(deployment: Manifest, pods: Sequence[Manifest], now: datetime) -> Report:
    """``deployment``, ``pods``: as the API server gives them; ``now``: aware."""
    metadata, spec, status = deployment["metadata"], deployment.get("spec") or {}, deployment.get("status") or {}
    typed = _typed(deployment)
    router = spec.get("router") or {}
    model = spec.get("model") or {}
    conditions = previous_conditions(status)
    return Report(
        name=str(metadata["name"]),
        namespace=str(metadata["namespace"]),
        generation=int(metadata.get("generation", 1)),
        observed_generation=int(status.get("observedGeneration", 0)),
        revision=str(status.get("revision") or ""),
        conditions=tuple(_condition(conditions[kind], now) for kind in ConditionType if kind in conditions),
        roles=tuple(_role(component, spec, status, pods, typed) for component in Component),
        groups=tuple(_group(group) for group in status.get("groups") or []),
        endpoint=str(status.get("endpoint") or ""),
        model=str(model.get("servedName") or model.get("name") or ""),
        service=component_name(str(metadata["name"]), Component.ROUTER),
        port=int((router.get("service") or {}).get("port", 8000)),
        needs_key=bool((router.get("authentication") or {}).get("apiKeysSecretName")),
    )


def _typed(deployment: Manifest) -> Spec | None:
    try:
        return parse_deployment(deployment).spec
    except InvalidSpecError:
        return None


def _condition(condition: Mapping[str, Any], now: datetime) -> ConditionLine:
    reason = str(condition.get("reason") or "")
    mark = _mark(str(condition["type"]), str(condition.get("status")), reason)
    since = parse_time(condition.get("lastTransitionTime"))
    remedy = REMEDIES[Reason(reason)] if mark is not Mark.PASS and reason in set(Reason) else ""
    return ConditionLine(
        type=str(condition["type"]),
        status=str(condition.get("status")),
        reason=reason,
        message=str(condition.get("message") or ""),
        since_seconds=None if since is None else max(0, int((now - since).total_seconds())),
        mark=mark,
        remedy="" if remedy == "Nothing." else remedy,
    )


def _mark(kind: str, status: str, reason: str) -> Mark:
    if kind == ConditionType.STALLED:
        return Mark.FAIL if status == "True" else Mark.PASS
    if status == "True":
        return Mark.WARN if reason in _QUALIFIED else Mark.PASS
    # Reuse is no part of Ready: it needs traffic, and follow-up turns in it.
    if status == "Unknown" or reason in _NO_FAULT or kind == ConditionType.REUSE_ACTIVE:
        return Mark.WARN
    return Mark.FAIL


def _role(
    component: Component,
    spec: Mapping[str, Any],
    status: Mapping[str, Any],
    pods: Sequence[Manifest],
    typed: Spec | None,
) -> RoleLines:
    own = sorted(
        (pod for pod in pods if label_of(pod, ROLE) == component), key=lambda pod: str(pod["metadata"]["name"])
    )
    told = (status.get(component.value) or {}).get("replicas")
    asked = (spec.get(component.value) or {}).get("replicas", 2 if component is Component.ROUTER else 1)
    decode_ready = any(is_ready(pod) for pod in pods if label_of(pod, ROLE) == Component.DECODE)
    lines = tuple(_pod(PodContext(pod, component, typed), decode_ready) for pod in own)
    return RoleLines(component.value, sum(line.ready for line in lines), int(asked if told is None else told), lines)


def _pod(context: PodContext, decode_ready: bool) -> PodLine:
    ready, revision = is_ready(context.pod), label_of(context.pod, REVISION_GROUP)
    if is_terminating(context.pod):
        return PodLine(context.name, revision, False, "Ending", "It finishes what it has begun.", Mark.WARN)
    trouble = explain_pod(context)
    if trouble is None:
        return PodLine(context.name, revision, ready, "Ready", "", Mark.PASS)
    trouble = excused(trouble, context.component, decode_ready=decode_ready)
    mark = Mark.WARN if trouble.reason in _NO_FAULT else Mark.FAIL
    return PodLine(context.name, revision, ready, trouble.reason.value, trouble.message, mark)


def _group(group: Mapping[str, Any]) -> GroupLine:
    return GroupLine(
        revision=str(group.get("revision")),
        current=bool(group.get("current")),
        prefill_ready=int(group.get("prefillReady", 0)),
        decode_ready=int(group.get("decodeReady", 0)),
        was_available=bool(group.get("wasAvailable")),
    )
