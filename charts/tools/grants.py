"""Rights as data: what roles grant, and what an audit log shows to have been used. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pdd_e2e.control_plane.audit import Call

FORBIDDEN = 403
CREATED = 201


@dataclass(frozen=True, slots=True, order=True)
class Grant:
    """One verb on one resource; ``resource`` carries its subresource."""

    group: str
    resource: str
    verb: str

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}{'.' if self.group else ''}{self.group}"


ANYBODYS = Grant("authentication.k8s.io", "selfsubjectreviews", "create")
"""Asking who one is: Kubernetes lets everybody, by its role system:basic-user."""


def granted(rules: Iterable[dict[str, Any]]) -> set[Grant]:
    """Everything that ``rules`` allow, whatever its name."""
    return {
        Grant(group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def used(calls: Iterable[Call]) -> set[Grant]:
    """What the calls needed and had, but for what everybody has."""
    return {grant for call in calls if call.code != FORBIDDEN for grant in _needed(call)} - {ANYBODYS}


def refused(calls: Iterable[Call]) -> set[Grant]:
    """What the calls needed and did not have."""
    return {grant for call in calls if call.code == FORBIDDEN for grant in _needed(call)}


def _needed(call: Call) -> Iterator[Grant]:
    if call.resource:
        yield Grant(call.group, call.resource, call.verb)
    if call.verb == "patch" and call.code == CREATED:  # an apply that makes the object is asked for both
        yield Grant(call.group, call.resource, "create")


def without(rules: list[dict[str, Any]], grant: Grant) -> list[dict[str, Any]]:
    """``rules`` that allow all but ``grant``."""
    result: list[dict[str, Any]] = []
    for rule in rules:
        if grant.group not in rule["apiGroups"] or grant.resource not in rule["resources"]:
            result.append(rule)
            continue
        others = [resource for resource in rule["resources"] if resource != grant.resource]
        verbs = [verb for verb in rule["verbs"] if verb != grant.verb]
        result += [{**rule, "resources": others}] if others else []
        result += [{**rule, "resources": [grant.resource], "verbs": verbs}] if verbs else []
    return result
