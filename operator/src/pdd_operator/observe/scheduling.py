"""Why no node fits a pod, and what to do: the scheduler's words turned into fields of the spec and node groups. Pure.

Counts of nodes are left out of the answer: they change whenever a node comes or goes, and say nothing that helps.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from pdd_operator.api.labels import Component
from pdd_operator.api.objects import Manifest
from pdd_operator.api.v1alpha1 import Role, Spec

EFA: Final = "vpc.amazonaws.com/efa"
GPU: Final = "nvidia.com/gpu"
NEURON: Final = "aws.amazon.com/neuron"
MAX_CAUSES: Final = 3


@dataclass(frozen=True, slots=True)
class PodContext:
    """A pod and what the spec has for it; ``spec`` None where the spec is not valid."""

    pod: Manifest
    component: Component
    spec: Spec | None

    @property
    def name(self) -> str:
        return str(self.pod["metadata"]["name"])

    @property
    def field(self) -> str:
        """Path of the pod's section of the spec."""
        return f"spec.{self.component}"

    @property
    def role(self) -> Role | None:
        if self.spec is None or self.component is Component.ROUTER:
            return None
        return self.spec.prefill if self.component is Component.PREFILL else self.spec.decode

    @property
    def instance(self) -> str:
        """Instance type that the spec asks for, in words."""
        role = self.role
        if role is None or role.accelerator.instance_type is None:
            return "the instance type that the spec asks for"
        return role.accelerator.instance_type

    def requested(self, resource: str) -> str:
        """What the pod asks of a resource, "" where it does not."""
        for container in self.pod.get("spec", {}).get("containers") or []:
            resources: Mapping[str, Mapping[str, object]] = container.get("resources") or {}
            for kind in ("requests", "limits"):
                amount = (resources.get(kind) or {}).get(resource)
                if amount is not None:
                    return str(amount)
        return ""


def explain_unschedulable(context: PodContext, scheduler_message: str) -> str:
    """One line: what is missing, the field that asks for it and what to add. Total on any text."""
    causes = causes_of(scheduler_message)
    if not causes:
        said = scheduler_message.strip() or "the scheduler does not say why"
        return f"No node fits pod {context.name}: {said}."
    advice = list(dict.fromkeys(text for cause in causes for text in [_advice(context, cause)] if text))
    return f"No node fits pod {context.name}: {'; '.join(causes[:MAX_CAUSES])}. {' '.join(advice[:MAX_CAUSES])}".strip()


def causes_of(scheduler_message: str) -> list[str]:
    """Causes in a message as "0/3 nodes are available: 2 Insufficient cpu, 1 node(s) had …. preemption: …", worst first."""
    _, found, rest = scheduler_message.partition("nodes are available:")
    if not found:
        text = scheduler_message.strip().rstrip(".")
        return [text] if text else []
    rest = re.split(r"\.?\s*preemption:", rest, maxsplit=1)[0]
    # A comma separates causes only before a count: a taint or the name of a volume may hold one.
    parts = (re.sub(r"^\d+\s+", "", part).strip().rstrip(".") for part in re.split(r",\s+(?=\d+\s)", rest.strip()))
    parts = (part.replace("not found. not found", "not found") for part in parts)  # so it is said of claims
    return sorted(dict.fromkeys(part for part in parts if part), key=_rank)


def _efa(context: PodContext, match: re.Match[str]) -> str:
    amount = context.requested(EFA)
    return (
        f"`{context.field}.accelerator` asks for {amount or 'its'} EFA devices of {context.instance} per pod, and no node has so many "
        f"free: add a node group of {context.instance} with EFA interfaces whose nodes run the EFA device plugin "
        f"(aws-efa-k8s-device-plugin), or ask for less with `{context.field}.accelerator.efaDevices`; `pdd doctor` shows what nodes have."
    )


def _gpu(context: PodContext, match: re.Match[str]) -> str:
    return (
        f"`{context.field}.accelerator` asks for {context.requested(GPU) or 'its'} GPUs of {context.instance} per pod: add nodes of "
        f"{context.instance} that run the NVIDIA device plugin, or lower `{context.field}.replicas`; `pdd doctor` shows what nodes have."
    )


def _neuron(context: PodContext, match: re.Match[str]) -> str:
    return (
        f"`{context.field}.accelerator` asks for {context.requested(match['resource']) or 'its'} Neuron devices of {context.instance} per "
        f"pod: add nodes of {context.instance} that run the Neuron device plugin, or lower `{context.field}.replicas`; "
        "`pdd doctor` shows what nodes have."
    )


def _huge_pages(context: PodContext, match: re.Match[str]) -> str:
    resource = match["resource"]
    return (
        f"The pod asks for {context.requested(resource) or 'some'} of {resource}, which EFA needs: nodes must set them aside at boot "
        "(the EKS images with EFA do; elsewhere set vm.nr_hugepages), and autoscalers of nodes may not know of them; `pdd doctor` shows "
        "what nodes have."
    )


def _computing(context: PodContext, match: re.Match[str]) -> str:
    resource = match["resource"]
    return (
        f"The pod asks for {context.requested(resource) or 'more'} of {resource}: lower "
        f"`{context.field}.podTemplate.resources.requests` or add larger nodes."
    )


def _other_resource(context: PodContext, match: re.Match[str]) -> str:
    return f"No node has enough of {match['resource']}: add nodes that have, or run the device plugin that offers it."


def _taint(context: PodContext, match: re.Match[str]) -> str:
    return (
        f"Nodes are kept for others by the taint {match['taint'].strip()}: add a toleration to "
        f"`{context.field}.podTemplate.tolerations`, or add nodes without it."
    )


def _selector(context: PodContext, match: re.Match[str]) -> str:
    return (
        f"Nodes lack a label that the pod asks for: `{context.field}.accelerator` asks for nodes of {context.instance} (label "
        f"node.kubernetes.io/instance-type), `{context.field}.podTemplate.nodeSelector` and `.affinity` may ask for more: add a node group that has them."
    )


def _anti_affinity(context: PodContext, match: re.Match[str]) -> str:
    return (
        "Engines that use EFA must be on different nodes, because EFA does not reach another pod of the same node: "
        f"add a node of {context.instance}, or lower `{context.field}.replicas`."
    )


def _affinity(context: PodContext, match: re.Match[str]) -> str:
    return (
        "Prefill and decode must be in one zone, because EFA does not leave it (label topology.kubernetes.io/zone): "
        f"add nodes of {context.instance} in the zone where the other engines are."
    )


def _spread(context: PodContext, match: re.Match[str]) -> str:
    return f"`{context.field}.podTemplate.topologySpreadConstraints` cannot be kept: loosen them or add nodes where they ask."


def _volume_zone(context: PodContext, match: re.Match[str]) -> str:
    return (
        "A volume of the pod is in another zone than the nodes that fit: add nodes there, or use storage that every zone reaches "
        f"(`spec.model.source`, `{context.field}.podTemplate.volumes`)."
    )


def _claim(context: PodContext, match: re.Match[str]) -> str:
    return (
        "A PersistentVolumeClaim is missing or has no volume: create or bind the one that `spec.model.source.persistentVolumeClaim.claimName` "
        f"or `{context.field}.podTemplate.volumes` names."
    )


def _cordoned(context: PodContext, match: re.Match[str]) -> str:
    return "Nodes are cordoned: uncordon them (`kubectl uncordon`) or add others."


def _no_nodes(context: PodContext, match: re.Match[str]) -> str:
    return f"The cluster has no node: add a node group of {context.instance}."


def _gated(context: PodContext, match: re.Match[str]) -> str:
    return "Something in the cluster holds the pod back by a scheduling gate: see `spec.schedulingGates` of the pod."


_Advice: TypeAlias = Callable[[PodContext, re.Match[str]], str]
_RULES: Final[tuple[tuple[re.Pattern[str], _Advice], ...]] = (
    (re.compile(rf"Insufficient (?P<resource>{re.escape(EFA)})\b"), _efa),
    (re.compile(rf"Insufficient (?P<resource>{re.escape(GPU)}\S*)"), _gpu),
    (re.compile(rf"Insufficient (?P<resource>{re.escape(NEURON)}\S*)"), _neuron),
    (re.compile(r"Insufficient (?P<resource>hugepages-\S+)"), _huge_pages),
    (re.compile(r"Insufficient (?P<resource>cpu|memory|ephemeral-storage)\b"), _computing),
    (re.compile(r"Insufficient (?P<resource>\S+)"), _other_resource),
    (re.compile(r"persistentvolumeclaim|PersistentVolumeClaim"), _claim),
    (re.compile(r"volume node affinity conflict"), _volume_zone),
    (re.compile(r"anti-affinity"), _anti_affinity),
    (re.compile(r"node affinity|node selector|NodeAffinity"), _selector),
    (re.compile(r"pod affinity"), _affinity),
    (re.compile(r"topology spread"), _spread),
    (re.compile(r"untolerated taint(?:\(s\))? ?(?P<taint>\{[^}]*\}|)"), _taint),
    (re.compile(r"were unschedulable"), _cordoned),
    (re.compile(r"no nodes available"), _no_nodes),
    (re.compile(r"scheduling gate|SchedulingGated"), _gated),
)
"""In order of what to say first: a missing device is the news, that the other nodes are tainted is not."""


def _rule(cause: str) -> tuple[int, _Advice, re.Match[str]] | None:
    for rank, (pattern, advice) in enumerate(_RULES):
        match = pattern.search(cause)
        if match:
            return rank, advice, match
    return None


def _rank(cause: str) -> int:
    rule = _rule(cause)
    return len(_RULES) if rule is None else rule[0]


def _advice(context: PodContext, cause: str) -> str:
    rule = _rule(cause)
    return "" if rule is None else rule[1](context, rule[2])
