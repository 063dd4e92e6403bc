"""Where pods go: node selectors, tolerations, affinities, spreading; the operator's own and the user's together. Pure."""

from __future__ import annotations

from typing import Any, Final

from pdd_operator.api.labels import ENGINE_COMPONENTS, ROLE, Component, selector_labels
from pdd_operator.api.v1alpha1 import Backend, PDDeployment, PodTemplate, Role
from pdd_operator.render.catalog import EFA_TOLERATION, PLATFORMS, platform_of

_INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"
_ZONE: Final = "topology.kubernetes.io/zone"
_HOST: Final = "kubernetes.io/hostname"


def engine_scheduling(deployment: PDDeployment, component: Component, group: str, role: Role) -> dict[str, Any]:
    """The part of an engine's pod spec that the scheduler reads."""
    template = role.pod_template
    backend = deployment.spec.transport.backend
    name = deployment.metadata.name
    selector = dict(template.node_selector)
    if role.accelerator.instance_type is not None:
        selector[_INSTANCE_TYPE] = role.accelerator.instance_type
    fields: dict[str, Any] = {"nodeSelector": selector} if selector else {}
    if backend is Backend.EFA:
        fields["affinity"] = _with_efa_terms(template.affinity.as_given(), name, group)
        spread: list[dict[str, Any]] = []
    else:
        fields |= _affinity(template)
        spread = [_spread(_HOST, selector_labels(name, component, group))]
    tolerations = [*_tolerations(role, backend), *(item.as_given() for item in template.tolerations)]
    constraints = _with_user_constraints(spread, template)
    return (
        fields
        | ({"tolerations": tolerations} if tolerations else {})
        | ({"topologySpreadConstraints": constraints} if constraints else {})
        | _named(template)
    )


def router_scheduling(deployment: PDDeployment) -> dict[str, Any]:
    """Replicas on different nodes and in different zones, where there are such."""
    template = deployment.spec.router.pod_template
    labels = selector_labels(deployment.metadata.name, Component.ROUTER)
    spread = [_spread(_HOST, labels), _spread(_ZONE, labels)]
    fields: dict[str, Any] = {"topologySpreadConstraints": _with_user_constraints(spread, template)}
    if template.node_selector:
        fields["nodeSelector"] = dict(template.node_selector)
    if template.tolerations:
        fields["tolerations"] = [item.as_given() for item in template.tolerations]
    return fields | _affinity(template) | _named(template)


def _affinity(template: PodTemplate) -> dict[str, Any]:
    given = template.affinity.as_given()
    return {"affinity": given} if given else {}


def _with_efa_terms(affinity: dict[str, Any], name: str, group: str) -> dict[str, Any]:
    """The user's affinity, and what EFA needs of all engines of a revision group.

    One zone: EFA traffic does not leave its subnet. Different nodes: EFA has no way from a node to itself, a transfer within
    one ends in EAGAIN (ai-dynamo/dynamo issue 7764), and any two engines of a group may read from each other.
    """
    engines = {
        "matchLabels": selector_labels(name, group=group),
        "matchExpressions": [{"key": ROLE, "operator": "In", "values": [item.value for item in ENGINE_COMPONENTS]}],
    }
    merged = dict(affinity)
    for kind, topology in (("podAffinity", _ZONE), ("podAntiAffinity", _HOST)):
        term = {"topologyKey": topology, "labelSelector": engines}
        users = dict(merged.get(kind) or {})
        users[_REQUIRED] = [term, *(users.get(_REQUIRED) or [])]
        merged[kind] = users
    return merged


_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


def _tolerations(role: Role, backend: Backend) -> list[dict[str, Any]]:
    key = PLATFORMS[platform_of(role)].toleration_key
    keys = [key] if key is not None else []
    if backend is Backend.EFA:
        keys.append(EFA_TOLERATION)
    return [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in keys]


def _spread(topology: str, labels: dict[str, str]) -> dict[str, Any]:
    return {
        "maxSkew": 1,
        "topologyKey": topology,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels},
    }


def _with_user_constraints(own: list[dict[str, Any]], template: PodTemplate) -> list[dict[str, Any]]:
    """Each topology once for each way of not fitting, as the API server demands: the user's is taken."""
    users = template.topology_spread_constraints
    given = {(item.topology_key, item.when_unsatisfiable) for item in users}
    kept = [item for item in own if (item["topologyKey"], item["whenUnsatisfiable"]) not in given]
    return [*kept, *(item.as_given() for item in users)]


def _named(template: PodTemplate) -> dict[str, Any]:
    named = {
        "priorityClassName": template.priority_class_name,
        "runtimeClassName": template.runtime_class_name,
        "schedulerName": template.scheduler_name,
    }
    return {key: value for key, value in named.items() if value is not None}
