"""Why the API server refuses the pods of a workload, and what to do: its words turned into fields of the spec. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeAlias

from pdd_operator.api.labels import Component
from pdd_operator.api.names import ObjectRef
from pdd_operator.api.objects import Manifest
from pdd_operator.api.v1alpha1 import Backend, Spec
from pdd_operator.observe.conditions import shortened
from pdd_operator.observe.pods import Trouble
from pdd_operator.observe.reasons import Reason

_QUOTED_CHARACTERS: Final = 400


def sets_without_pods(children: Mapping[ObjectRef, Manifest]) -> Iterator[tuple[ObjectRef, str]]:
    """StatefulSets, with their uid, that have fewer pods than they want although their controller has seen what is wanted."""
    for ref, child in children.items():
        status = child.get("status") or {}
        wanted = int((child.get("spec") or {}).get("replicas") or 0)
        if ref.kind == "StatefulSet" and status.get("observedGeneration") and int(status.get("replicas") or 0) < wanted:
            yield ref, str(child["metadata"]["uid"])


def explain_refusal(component: Component, spec: Spec | None, workload: str, said: str) -> Trouble:
    """``said``: the API server's words, as a controller repeats them."""
    words = shortened(" ".join(said.split("failed error: ")[-1].split()), _QUOTED_CHARACTERS)
    if "exceeded quota" in said:
        reason, text = Reason.QUOTA_EXCEEDED, f"A ResourceQuota has no room for pods of {workload}: {words}."
    else:
        reason, text = Reason.PODS_REFUSED, f"The API server refuses pods of {workload}: {words}."
    for pattern, advice in _RULES:
        if match := pattern.search(said):
            return Trouble(reason, f"{text} {advice(f'spec.{component}', spec, match)}")
    return Trouble(reason, text)


def _quota(field: str, spec: Spec | None, match: re.Match[str]) -> str:
    return f"Raise ResourceQuota {match['quota']}, or lower `{field}.replicas` or `{field}.podTemplate.resources`."


def _unsaid(field: str, spec: Spec | None, match: re.Match[str]) -> str:
    return f"ResourceQuota {match['quota']} wants it to be said: set it in `{field}.podTemplate.resources`."


def _limit_range(field: str, spec: Spec | None, match: re.Match[str]) -> str:
    return f"A LimitRange of the namespace bounds it: change `{field}.podTemplate.resources`, or the LimitRange."


def _priority_class(field: str, spec: Spec | None, match: re.Match[str]) -> str:
    return (
        f"`{field}.podTemplate.priorityClassName` names it: create PriorityClass {match['name']}, or correct the field."
    )


def _runtime_class(field: str, spec: Spec | None, match: re.Match[str]) -> str:
    return (
        f"`{field}.podTemplate.runtimeClassName` names it: create RuntimeClass {match['name']}, or correct the field."
    )


def _pod_security(field: str, spec: Spec | None, match: re.Match[str]) -> str:
    if spec is not None and spec.transport.backend is Backend.EFA:
        return (
            "Engines on EFA need more than that level allows: label the namespace pod-security.kubernetes.io/enforce=privileged, "
            "or set `spec.transport.backend: Socket`."
        )
    return f"`{field}.podTemplate` asks for more than the namespace's Pod Security level allows: take it out, or loosen the level."


_Advice: TypeAlias = Callable[[str, Spec | None, re.Match[str]], str]
_RULES: Final[tuple[tuple[re.Pattern[str], _Advice], ...]] = (
    (re.compile(r"exceeded quota: (?P<quota>[^,\s]+)"), _quota),
    (re.compile(r"failed quota: (?P<quota>[^:\s]+): must specify"), _unsaid),
    (re.compile(r"(maximum|minimum) \S+ usage per|max limit to request ratio per"), _limit_range),
    (re.compile(r"no PriorityClass with name (?P<name>\S+) was found"), _priority_class),
    (re.compile(r"RuntimeClass \\?\"?(?P<name>[-.a-z0-9]+)\\?\"? not found"), _runtime_class),
    (re.compile(r"violates PodSecurity"), _pod_security),
)
