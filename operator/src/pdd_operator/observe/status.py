"""The whole status of a PDDeployment from one look at it. Pure: equal input, equal output, and nothing in it follows the clock.

What is equal to the status before comes out equal in every byte, so that the caller writes only what changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from pdd_operator import __version__
from pdd_operator.api.labels import ENGINE_COMPONENTS, Component, selector_labels
from pdd_operator.api.names import ObjectRef, component_name
from pdd_operator.api.objects import Manifest
from pdd_operator.api.v1alpha1 import PDDeployment, Spec
from pdd_operator.observe.checks import (
    Situation,
    check_accepted,
    check_available,
    check_reconciled,
    check_reuse,
    check_transport,
)
from pdd_operator.observe.conditions import (
    Condition,
    assemble,
    parse_time,
    previous_conditions,
    stalled_finding,
    with_stalled,
)
from pdd_operator.observe.groups import GroupFacts, condition_of, groups_of, is_ready, pods_of, set_of
from pdd_operator.observe.observed import Observed
from pdd_operator.observe.outcome import ReconcileOutcome
from pdd_operator.observe.ownership import owned_children
from pdd_operator.observe.reasons import ConditionType

MAX_GROUPS: Final = 16
_DEFAULT_DEADLINE_SECONDS: Final = 7200
"""As the CRD's default, for a spec that cannot be read."""
_AVAILABLE: Final = {
    ConditionType.PREFILL_AVAILABLE: Component.PREFILL,
    ConditionType.DECODE_AVAILABLE: Component.DECODE,
    ConditionType.ROUTER_AVAILABLE: Component.ROUTER,
}


def compute_status(observed: Observed, outcome: ReconcileOutcome, deployment: PDDeployment | None) -> dict[str, Any]:
    """The status to write. ``deployment``: None where the object could not be parsed; then much stays as it was."""
    before: Mapping[str, Any] = observed.deployment.get("status") or {}
    spec = None if deployment is None else deployment.spec
    revision = outcome.revision or str(before.get("revision") or "")
    situation = Situation(
        observed=observed,
        outcome=outcome,
        spec=spec,
        revision=revision,
        groups=groups_of(observed),
        wanted={component: _wanted(component, observed, outcome, spec, revision) for component in Component},
        previous=previous_conditions(before),
    )
    status: dict[str, Any] = {"observedGeneration": int(observed.deployment["metadata"].get("generation", 1))}
    status |= {"revision": revision} if revision else {}
    endpoint = _endpoint(observed.deployment, spec) or before.get("endpoint")
    status |= {"endpoint": endpoint} if endpoint else {}
    status |= {component.value: _component(situation, component) for component in Component}
    status["versions"] = _versions(observed, revision)
    status["groups"] = _groups(situation)
    status["conditions"] = _conditions(situation)
    return status


def _wanted(
    component: Component, observed: Observed, outcome: ReconcileOutcome, spec: Spec | None, revision: str
) -> int:
    """What the rollout says, or else the spec; where neither can, what was wanted before, or else what the objects ask for."""
    if component is Component.ROUTER and spec is not None:
        return spec.router.replicas
    if outcome.rollout is not None and component in outcome.rollout.wanted:
        return outcome.rollout.wanted[component]
    role = None if spec is None else spec.prefill if component is Component.PREFILL else spec.decode
    if role is not None and role.autoscaling is None:
        return role.replicas
    before = ((observed.deployment.get("status") or {}).get(component.value) or {}).get("replicas")
    if before is not None:
        return int(before)
    if component is Component.ROUTER:
        router = _router_of(observed)
        return 0 if router is None else _size(router)
    workload = set_of(observed, component, revision)
    if workload is not None:
        return _size(workload)
    return 0 if role is None else role.replicas


def _router_of(observed: Observed) -> Manifest | None:
    """By its name: labels are anybody's to copy."""
    name = component_name(observed.deployment["metadata"]["name"], Component.ROUTER)
    return owned_children(observed).get(ObjectRef("apps/v1", "Deployment", name))


def _size(workload: Manifest) -> int:
    return int(workload.get("spec", {}).get("replicas", 1))


def _endpoint(deployment: Manifest, spec: Spec | None) -> str:
    if spec is None:
        return ""
    metadata = deployment["metadata"]
    host = f"{component_name(metadata['name'], Component.ROUTER)}.{metadata['namespace']}.svc"
    return f"http://{host}:{spec.router.service.port}/v1"


def _component(situation: Situation, component: Component) -> dict[str, Any]:
    labels = selector_labels(situation.observed.deployment["metadata"]["name"], component)
    return {
        "replicas": situation.wanted[component],
        "readyReplicas": situation.ready_pods(component),
        "selector": ",".join(f"{key}={value}" for key, value in sorted(labels.items())),
    }


def _groups(situation: Situation) -> list[dict[str, Any]]:
    """Every group of which something is left, oldest first, the current one last; that one even before it has anything."""
    revision, rollout = situation.revision, situation.outcome.rollout
    groups = [group for group in situation.groups if group.revision != revision and not group.is_gone]
    told = [_group(group, current=False, available=group.was_available) for group in groups]
    if revision:
        current = next((group for group in situation.groups if group.revision == revision), None)
        available = rollout is not None and rollout.available
        if current is None:
            told.append(
                {"revision": revision, "prefillReady": 0, "decodeReady": 0, "current": True, "wasAvailable": available}
            )
        else:
            told.append(_group(current, current=True, available=available or current.was_available))
    return told[-MAX_GROUPS:]


def _group(group: GroupFacts, *, current: bool, available: bool) -> dict[str, Any]:
    return {
        "revision": group.revision,
        "prefillReady": group.roles[Component.PREFILL].ready,
        "decodeReady": group.roles[Component.DECODE].ready,
        "current": current,
        "wasAvailable": available,
    }


def _versions(observed: Observed, revision: str) -> dict[str, str]:
    """The operator that says this, and the images that the objects ask for now."""
    versions = {"operator": __version__}
    engine = set_of(observed, Component.DECODE, revision) or set_of(observed, Component.PREFILL, revision)
    if engine is not None:
        pod = engine["spec"].get("template", {}).get("spec", {})
        versions["engine"] = _image(pod, "containers", "engine")
        versions["connector"] = _image(pod, "initContainers", "connector")
    router = _router_of(observed)
    if router is not None:
        versions["router"] = _image(router["spec"].get("template", {}).get("spec", {}), "containers", "router")
    return {name: image for name, image in sorted(versions.items()) if image}


def _image(pod: Mapping[str, Any], kind: str, name: str) -> str:
    images = (container.get("image") for container in pod.get(kind) or [] if container.get("name") == name)
    return str(next(images, None) or "")


def _conditions(situation: Situation) -> list[Condition]:
    findings = {
        ConditionType.ACCEPTED: check_accepted(situation),
        ConditionType.RECONCILED: check_reconciled(situation),
        ConditionType.TRANSPORT_READY: check_transport(situation),
        ConditionType.REUSE_ACTIVE: check_reuse(situation),
    } | {kind: check_available(situation, component) for kind, component in _AVAILABLE.items()}
    generation, now = int(situation.observed.deployment["metadata"].get("generation", 1)), situation.observed.now
    conditions = assemble(findings, situation.previous, generation, now)
    by_type = {condition["type"]: condition for condition in conditions}
    spec = situation.spec
    stalled = stalled_finding(
        by_type[ConditionType.ACCEPTED],
        by_type[ConditionType.READY],
        _progressed(situation),
        _DEFAULT_DEADLINE_SECONDS if spec is None else spec.rollout.progress_deadline_seconds,
        now,
    )
    return with_stalled(conditions, stalled, situation.previous, generation, now)


def _progressed(situation: Situation) -> datetime | None:
    """When a pod of the current group (or of the router) became ready last, or the group's sets were made. Never in the future."""
    observed, times = situation.observed, []
    for component in Component:
        group = None if component is Component.ROUTER else situation.revision
        times += [
            condition_of(pod, "Ready").get("lastTransitionTime")
            for pod in pods_of(observed, component, group)
            if is_ready(pod)
        ]
    for component in ENGINE_COMPONENTS:
        workload = set_of(observed, component, situation.revision)
        times += [] if workload is None else [workload["metadata"].get("creationTimestamp")]
    moments = [moment for moment in map(parse_time, times) if moment is not None]
    return min(max(moments), observed.now) if moments else None
