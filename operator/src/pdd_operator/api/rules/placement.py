"""Rules of tolerations, affinity and spreading: what Kubernetes asks of them beyond types. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from pdd_operator.api.placement import (
    LabelRequirement,
    LabelSelector,
    NodeAffinity,
    NodeRequirement,
    NodeTerm,
    PodAffinity,
    PodTerm,
    Toleration,
    TopologySpreadConstraint,
)
from pdd_operator.api.rules.problem import Problem, check_keys, check_unique
from pdd_operator.api.v1alpha1 import PodTemplate

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def check_placement(field: str, template: PodTemplate) -> Iterator[Problem]:
    """``field``: the path of the template."""
    for index, toleration in enumerate(template.tolerations):
        yield from _check_toleration(f"{field}.tolerations[{index}]", toleration)
    affinity = template.affinity
    if affinity.node_affinity is not None:
        yield from _check_node_affinity(f"{field}.affinity.nodeAffinity", affinity.node_affinity)
    for name, of_pods in (("podAffinity", affinity.pod_affinity), ("podAntiAffinity", affinity.pod_anti_affinity)):
        if of_pods is not None:
            yield from _check_pod_affinity(f"{field}.affinity.{name}", of_pods)
    constraints = template.topology_spread_constraints
    for index, constraint in enumerate(constraints):
        yield from _check_constraint(f"{field}.topologySpreadConstraints[{index}]", constraint)
    keys = [f"{item.topology_key} {item.when_unsatisfiable}" for item in constraints]
    yield from check_unique(f"{field}.topologySpreadConstraints", keys)


def _check_toleration(field: str, toleration: Toleration) -> Iterator[Problem]:
    exists = toleration.operator == "Exists"
    named = toleration.key is not None or exists
    if (
        not named
        or (exists and toleration.value is not None)
        or (toleration.toleration_seconds is not None and toleration.effect != "NoExecute")
    ):
        yield Problem(
            field,
            "`tolerations` must have a `key` unless `operator` is Exists, no `value` where it is, and `tolerationSeconds` with effect "
            "NoExecute only",
        )


def _check_node_affinity(field: str, affinity: NodeAffinity) -> Iterator[Problem]:
    required = affinity.required_during_scheduling_ignored_during_execution
    for index, term in enumerate(required.node_selector_terms if required is not None else ()):
        yield from _check_node_term(f"{field}.{_REQUIRED}.nodeSelectorTerms[{index}]", term)
    for index, preferred in enumerate(affinity.preferred_during_scheduling_ignored_during_execution or ()):
        yield from _check_node_term(f"{field}.{_PREFERRED}[{index}].preference", preferred.preference)


def _check_node_term(field: str, term: NodeTerm) -> Iterator[Problem]:
    for index, requirement in enumerate(term.match_expressions or ()):
        if not _is_comparison(requirement):
            yield Problem(
                f"{field}.matchExpressions[{index}].values",
                "`values` must have items with In and NotIn, exactly one number with Gt and Lt, and none with Exists and DoesNotExist",
            )


def _is_comparison(requirement: NodeRequirement) -> bool:
    values = requirement.values or ()
    if requirement.operator in ("Gt", "Lt"):
        return len(values) == 1 and values[0].isascii() and values[0].isdecimal()
    return bool(values) == (requirement.operator in ("In", "NotIn"))


def _check_pod_affinity(field: str, affinity: PodAffinity) -> Iterator[Problem]:
    for index, term in enumerate(affinity.required_during_scheduling_ignored_during_execution or ()):
        yield from _check_pod_term(f"{field}.{_REQUIRED}[{index}]", term)
    for index, preferred in enumerate(affinity.preferred_during_scheduling_ignored_during_execution or ()):
        yield from _check_pod_term(f"{field}.{_PREFERRED}[{index}].podAffinityTerm", preferred.pod_affinity_term)


def _check_pod_term(field: str, term: PodTerm) -> Iterator[Problem]:
    for name, selector in (("labelSelector", term.label_selector), ("namespaceSelector", term.namespace_selector)):
        yield from _check_selector(f"{field}.{name}", selector)
    for name, keys in (("matchLabelKeys", term.match_label_keys), ("mismatchLabelKeys", term.mismatch_label_keys)):
        yield from _check_label_keys(f"{field}.{name}", keys, term.label_selector)


def _check_constraint(field: str, constraint: TopologySpreadConstraint) -> Iterator[Problem]:
    if constraint.min_domains is not None and constraint.when_unsatisfiable != "DoNotSchedule":
        yield Problem(
            f"{field}.minDomains",
            "`minDomains` must be left out unless `whenUnsatisfiable` is DoNotSchedule",
        )
    yield from _check_selector(f"{field}.labelSelector", constraint.label_selector)
    yield from _check_label_keys(f"{field}.matchLabelKeys", constraint.match_label_keys, constraint.label_selector)


def _check_label_keys(field: str, keys: tuple[str, ...] | None, selector: LabelSelector | None) -> Iterator[Problem]:
    if keys is not None and selector is None:
        yield Problem(field, f"`{field.rpartition('.')[2]}` must be left out where there is no `labelSelector`")
    yield from check_unique(field, keys or ())


def _check_selector(field: str, selector: LabelSelector | None) -> Iterator[Problem]:
    if selector is None:
        return
    yield from check_keys(f"{field}.matchLabels", selector.match_labels or ())
    for index, requirement in enumerate(selector.match_expressions or ()):
        if not _is_choice(requirement):
            yield Problem(
                f"{field}.matchExpressions[{index}].values",
                "`values` must have items with In and NotIn, and none with the other operators",
            )


def _is_choice(requirement: LabelRequirement) -> bool:
    return bool(requirement.values) == (requirement.operator in ("In", "NotIn"))
