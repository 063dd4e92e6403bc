"""One pure check per condition: what was observed and what reconcile met, in; status, reason and message out.

False needs somebody or something; Unknown is on its way or cannot be told. Messages name the field that helps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pdd_operator.api.labels import ENGINE_COMPONENTS, REVISION_GROUP, Component
from pdd_operator.api.names import ObjectRef, component_name, engine_set_parts
from pdd_operator.api.objects import Manifest, ref_of
from pdd_operator.api.v1alpha1 import Backend, InstanceFamily, Spec
from pdd_operator.observe.conditions import NOT_OBSERVED, Condition, Finding, Truth
from pdd_operator.observe.groups import GroupFacts, condition_of, is_ready, is_terminating, label_of, pods_of
from pdd_operator.observe.observed import Observed
from pdd_operator.observe.outcome import Failure, ReconcileOutcome
from pdd_operator.observe.ownership import disowned_sets, group_of, owned_children
from pdd_operator.observe.pods import Preflight, Trouble, excused, explain_pod, preflight_of
from pdd_operator.observe.reasons import ConditionType, Reason
from pdd_operator.observe.refusals import explain_refusal
from pdd_operator.observe.reuse import judge_reuse
from pdd_operator.observe.scheduling import EFA, PodContext

_REVISION: Final = "controller-revision-hash"
"""Label of a StatefulSet's pods: the set's name, a hyphen and a hash, as ``status.updateRevision`` has it."""
MAX_TOLD: Final = 3
"""Problems or failures that one message tells."""
_RETRIED: Final = frozenset((Reason.CONFLICT, Reason.API_UNAVAILABLE))
_WORST_FIRST: Final = (
    Reason.CONTAINER_CONFIG_INVALID,
    Reason.PREFLIGHT_REFUSED,
    Reason.IMAGE_PULL_FAILED,
    Reason.OUT_OF_MEMORY,
    Reason.CRASH_LOOPING,
    Reason.INIT_FAILED,
    Reason.UNSCHEDULABLE,
    Reason.NODE_LOST,
    Reason.POD_ENDED,
    Reason.NOT_ANSWERING,
    Reason.CONTAINER_STARTING,
    Reason.MODEL_LOADING,
)
"""Which pod of several is told of: what a person must repair before what passes by itself."""


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything a check may look at. ``spec``: None where it is not valid. ``revision``: the current one or the last known, "" before.

    ``wanted``: pods per component.
    """

    observed: Observed
    outcome: ReconcileOutcome
    spec: Spec | None
    revision: str
    groups: tuple[GroupFacts, ...]
    wanted: Mapping[Component, int]
    previous: Mapping[str, Condition]

    def live_pods(self, component: Component) -> list[Manifest]:
        """Pods that are not on their way out, of every group."""
        return [pod for pod in pods_of(self.observed, component) if not is_terminating(pod)]

    def ready_pods(self, component: Component) -> int:
        return sum(is_ready(pod) for pod in pods_of(self.observed, component))

    @property
    def old_groups(self) -> list[GroupFacts]:
        return [group for group in self.groups if group.revision != self.revision and not group.is_gone]


def check_accepted(situation: Situation) -> Finding:
    problems = situation.outcome.problems
    if problems:
        told = "; ".join(f"`{field}`: {message}" if field else message for field, message in problems[:MAX_TOLD])
        more = f"; and {len(problems) - MAX_TOLD} more" if len(problems) > MAX_TOLD else ""
        return Finding(Truth.FALSE, _problem_reason([field for field, _ in problems]), f"{told}{more}")
    if situation.spec is None:
        return NOT_OBSERVED
    return Finding(Truth.TRUE, Reason.VALID, "The spec keeps every rule.")


def _problem_reason(fields: Iterable[str]) -> Reason:
    """Told apart only where every problem is of one kind."""
    kinds = set()
    for field in fields:
        if ".accelerator" in field or ".tensorParallelSize" in field:
            kinds.add(Reason.UNSUPPORTED_ACCELERATOR)
        elif field == "spec.transport.privileges":
            kinds.add(Reason.PRIVILEGES_REFUSED)
        elif field.removeprefix("spec.").startswith(("transport", "kvTransfer")):
            kinds.add(Reason.INCOMPATIBLE_TRANSFER)
        else:
            kinds.add(Reason.INVALID_SPEC)
    return kinds.pop() if len(kinds) == 1 else Reason.INVALID_SPEC


def check_reconciled(situation: Situation) -> Finding:
    outcome = situation.outcome
    if outcome.paused:
        message = 'The annotation pdserve.io/reconcile is "paused": objects are left as they are until it is removed.'
        return Finding(Truth.UNKNOWN, Reason.PAUSED, message)
    if outcome.problems:
        message = (
            "Objects are left as they are until the spec keeps every rule: condition Accepted says which it breaks."
        )
        return Finding(Truth.UNKNOWN, Reason.SPEC_NOT_ACCEPTED, message)
    if outcome.failures:
        return _failed(outcome.failures)
    if outcome.revision is None:
        return NOT_OBSERVED
    if situation.old_groups:
        return Finding(Truth.UNKNOWN, Reason.ROLLING_OUT, _rolling_message(situation))
    updating, held = _updating(situation), ", ".join(sorted(map(str, outcome.held)))
    if held:
        message = f"{held} gets its new pod template when the pods of the other role are replaced and ready."
        return Finding(Truth.UNKNOWN, Reason.ROLLING_OUT, message)
    if updating:
        message = f"Pods of {', '.join(updating)} are being replaced by such as the spec asks for now."
        return Finding(Truth.UNKNOWN, Reason.ROLLING_OUT, message)
    return Finding(Truth.TRUE, Reason.UP_TO_DATE, f"Every object is as revision {situation.revision} asks.")


def _updating(situation: Situation) -> list[str]:
    """Workloads of the current revision that still have pods of before their last change, or may have.

    A controller that has not seen the newest spec says nothing of it yet. Of engines that counts only where the operator has changed something
    in this visit: an autoscaler changes their sets too, and what it does is no rollout. Nobody else changes the router's.
    """
    found = []
    name = str(situation.observed.deployment["metadata"]["name"])
    for ref, child in owned_children(situation.observed).items():
        of_router = ref.kind == "Deployment" and ref.name == component_name(name, Component.ROUTER)
        of_engines = ref.kind == "StatefulSet" and group_of(ref, name) == situation.revision
        status = child.get("status") or {}
        seen = int(status.get("observedGeneration") or 0)
        if not (of_router or of_engines) or not seen:
            continue
        ours = of_router or situation.outcome.actions > 0
        unseen = ours and seen < int(child["metadata"].get("generation", 0))
        older = int(status.get("replicas") or 0) > int(status.get("updatedReplicas") or 0)
        if unseen or (older if of_router else _replaces_engines(situation, ref.name, status)):
            found.append(str(ref))
    return sorted(found)


def _replaces_engines(situation: Situation, engine_set: str, status: Mapping[str, Any]) -> bool:
    """By its pods, too: a template that is changed back is the current revision again at once. Not by numbers, in which a smaller size shows."""
    newest = status.get("updateRevision")
    revisions = (label_of(pod, _REVISION) for pod in situation.observed.pods)
    older = any(name != newest and name.rpartition("-")[0] == engine_set for name in revisions)
    return older or status.get("currentRevision") != newest


def _failed(failures: tuple[Failure, ...]) -> Finding:
    known = [(_failure_reason(failure), failure) for failure in failures]
    lasting = [(reason, failure) for reason, failure in known if reason not in _RETRIED]
    told = lasting or known
    texts = dict.fromkeys(
        f"{failure.ref}: {failure.message}" if failure.ref is not None else failure.message for _, failure in told
    )
    more = f"; and {len(texts) - MAX_TOLD} more" if len(texts) > MAX_TOLD else ""
    status = Truth.FALSE if lasting else Truth.UNKNOWN
    return Finding(status, told[0][0], "; ".join(list(texts)[:MAX_TOLD]) + more)


def _failure_reason(failure: Failure) -> Reason:
    # What nobody declared is a fault of the operator's own.
    return Reason(failure.reason) if failure.reason in set(Reason) else Reason.INTERNAL_ERROR


def _rolling_message(situation: Situation) -> str:
    current = next((group for group in situation.groups if group.revision == situation.revision), None)
    ready = {part: 0 if current is None else current.roles[part].ready for part in ENGINE_COMPONENTS}
    progress = ", ".join(f"{part} {ready[part]} of {situation.wanted[part]}" for part in ENGINE_COMPONENTS)
    old = ", ".join(group.revision for group in situation.old_groups)
    lost = ", ".join(sorted(map(str, disowned_sets(situation.observed))))
    told = (
        f" {lost} lost its ownerReferences, so it is neither scaled nor deleted: restore them (controller: this PDDeployment)."
        if lost
        else ""
    )
    return f"Revision {situation.revision} replaces {old}: {progress} of its engines are ready.{told}"


def check_available(situation: Situation, component: Component) -> Finding:
    """Of a role, over all groups: while a change rolls out the older one serves."""
    wanted, ready = situation.wanted[component], situation.ready_pods(component)
    if situation.spec is None and not situation.observed.children:
        return NOT_OBSERVED
    idle = _idle_autoscaler(situation, component)
    if wanted == 0:
        return Finding(
            Truth.FALSE, Reason.SCALED_TO_ZERO, f"No {component} pod is wanted: `spec.{component}.replicas` is 0."
        )
    if ready >= wanted:
        return Finding(Truth.TRUE, Reason.ALL_READY, f"All {wanted} wanted {component} pods are ready.{idle}")
    trouble = _worst(situation, component) or _not_created(situation, component)
    trouble = excused(trouble, component, decode_ready=situation.ready_pods(Component.DECODE) > 0)
    message = f"{ready} of {wanted} {component} pods are ready. {trouble.message}{idle}"
    if ready >= max(1, wanted - 1):
        return Finding(Truth.TRUE, Reason.MINIMUM_READY, message)
    return Finding(Truth.FALSE, trouble.reason, message)


def _idle_autoscaler(situation: Situation, component: Component) -> str:
    """What keeps the autoscaler of a role from acting, as it says itself; "" where nothing does."""
    name = component_name(situation.observed.deployment["metadata"]["name"], component)
    scaler = owned_children(situation.observed).get(ObjectRef("autoscaling/v2", "HorizontalPodAutoscaler", name))
    active = {} if scaler is None else condition_of(scaler, "ScalingActive")
    if active.get("status") != "False":
        return ""
    return f" HorizontalPodAutoscaler {name} does not act ({active.get('reason')}): {active.get('message')}"


def _worst(situation: Situation, component: Component) -> Trouble | None:
    """Of the current group's pods if one of them is in trouble, else of any."""
    pods = situation.live_pods(component)
    current = [pod for pod in pods if label_of(pod, REVISION_GROUP) == situation.revision]
    for candidates in (current, pods):
        troubles = [
            trouble
            for pod in candidates
            if (trouble := explain_pod(PodContext(pod, component, situation.spec))) is not None
        ]
        if troubles:
            return min(troubles, key=lambda trouble: _WORST_FIRST.index(trouble.reason))
    return None


def _not_created(situation: Situation, component: Component) -> Trouble:
    """Why there are fewer pods than wanted, where those that exist are well."""
    kind = "Deployment" if component is Component.ROUTER else "StatefulSet"
    deployment = str(situation.observed.deployment["metadata"]["name"])
    workloads = [
        child
        for ref, child in owned_children(situation.observed).items()
        if ref.kind == kind and _serves_as(ref, deployment) is component
    ]
    for workload in workloads:
        refusal = condition_of(workload, "ReplicaFailure")
        said = situation.observed.refusals.get(ref_of(workload), "")
        if said or refusal.get("status") == "True":
            words = said or str(refusal.get("message") or "")
            return explain_refusal(component, situation.spec, str(workload["metadata"]["name"]), words)
    name = workloads[0]["metadata"]["name"] if workloads else ""
    ending = [pod for pod in pods_of(situation.observed, component) if is_terminating(pod)]
    if ending:
        message = f"Pod {ending[0]['metadata']['name']} is ending and comes anew when it is gone; if its node is lost, delete the node."
        return Trouble(Reason.INSUFFICIENT_REPLICAS, message)
    if situation.live_pods(component):
        return Trouble(Reason.INSUFFICIENT_REPLICAS, f"{kind} {name} is about to make the others.")
    if not name:
        return Trouble(Reason.PODS_MISSING, f"Its {kind} is not there: condition Reconciled says why.")
    message = (
        f"{kind} {name} has made no pod yet: if that stays so, a ResourceQuota or an admission policy may refuse them "
        f"(`kubectl describe {kind.lower()} {name}`)."
    )
    return Trouble(Reason.PODS_MISSING, message)


def _serves_as(ref: ObjectRef, deployment: str) -> Component | None:
    if ref.name == component_name(deployment, Component.ROUTER):
        return Component.ROUTER
    parts = engine_set_parts(deployment, ref.name)
    return None if parts is None else parts[0]


def check_transport(situation: Situation) -> Finding:
    """From what preflight of the current group's engines said; of older ones while no current engine has said anything."""
    engines = [pod for component in ENGINE_COMPONENTS for pod in situation.live_pods(component)]
    said = [(pod, found) for pod in engines if (found := preflight_of(pod)) is not None]
    current = [(pod, found) for pod, found in said if label_of(pod, REVISION_GROUP) == situation.revision]
    told = current or said
    for pod, found in told:
        if not found.transport:
            message = f"Pod {pod['metadata']['name']}: {found.reason}: {found.message}"
            return Finding(Truth.FALSE, Reason.FABRIC_UNAVAILABLE, message)
    transports = {found.transport for _, found in told}
    if len(transports) > 1:
        sockets = [str(pod["metadata"]["name"]) for pod, found in told if found.transport == Backend.SOCKET]
        message = f"Engines with EFA cannot read from those with sockets ({', '.join(sockets[:MAX_TOLD])}): give all of them nodes of one kind."
        return Finding(Truth.FALSE, Reason.MIXED_TRANSPORT, message)
    if transports == {Backend.EFA.value}:
        devices = PodContext(told[0][0], Component.DECODE, situation.spec).requested(EFA)
        message = (
            f"Engines use EFA (LIBFABRIC, provider efa), {devices} devices per pod." if devices else "Engines use EFA."
        )
        return Finding(Truth.TRUE, Reason.EFA, message)
    if transports == {Backend.SOCKET.value}:
        return _sockets(situation.spec, told[0][1])
    return Finding(Truth.UNKNOWN, Reason.NOT_OBSERVED, "No engine has passed its preflight yet.")


def _sockets(spec: Spec | None, preflight: Preflight) -> Finding:
    if spec is not None and spec.transport.backend is Backend.EFA and not _on_cpu(spec):
        message = f"EFA was asked for and is not there. {preflight.reason}: {preflight.message}"
        return Finding(Truth.TRUE, Reason.SOCKET_FALLBACK, message)
    return Finding(Truth.TRUE, Reason.SOCKET, "KV moves over sockets, as the spec asks.")


def _on_cpu(spec: Spec) -> bool:
    return all(role.accelerator.type is InstanceFamily.CPU for role in (spec.prefill, spec.decode))


def check_reuse(situation: Situation) -> Finding:
    before = situation.previous.get(ConditionType.REUSE_ACTIVE)
    if situation.spec is None:
        return NOT_OBSERVED if before is None else _as_before(before)
    current = next((group for group in situation.groups if group.revision == situation.revision), None)
    ready = 0 if current is None else sum(role.ready for role in current.roles.values())
    return judge_reuse(situation.observed.reuse, situation.spec.kv_transfer, ready, before)


def _as_before(condition: Condition) -> Finding:
    if condition.get("reason") not in set(Reason):
        return NOT_OBSERVED
    return Finding(Truth(condition["status"]), Reason(condition["reason"]), str(condition["message"]))
