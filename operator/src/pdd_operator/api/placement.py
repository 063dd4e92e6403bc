"""Where a user lets pods go: tolerations, affinity and spreading, as Kubernetes has them, bounded. Pure.

Rendered as they are given (``as_given``), so what is absent stays absent: nothing here has a default of its own.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pdd_operator.api.section import DNSLabel, LabelKey, LabelValue, Section

_Values = Annotated[tuple[LabelValue, ...], Field(max_length=32)]
_Weight = Annotated[int, Field(ge=1, le=100)]
LabelKeys = Annotated[tuple[LabelKey, ...], Field(max_length=8)]
NodePolicy = Literal["Honor", "Ignore"]


class Toleration(Section):
    key: LabelKey | None = None
    operator: Literal["Exists", "Equal"] | None = None
    value: LabelValue | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    toleration_seconds: Annotated[int, Field(ge=0, le=31_536_000)] | None = None


class NodeRequirement(Section):
    key: LabelKey
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    values: _Values | None = None


class NodeTerm(Section):
    match_expressions: Annotated[tuple[NodeRequirement, ...], Field(max_length=8)] | None = None


class NodeSelector(Section):
    node_selector_terms: Annotated[tuple[NodeTerm, ...], Field(min_length=1, max_length=8)]


class PreferredNodeTerm(Section):
    weight: _Weight
    preference: NodeTerm


class NodeAffinity(Section):
    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: (
        Annotated[tuple[PreferredNodeTerm, ...], Field(max_length=8)] | None
    ) = None


class LabelRequirement(Section):
    key: LabelKey
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: _Values | None = None


class LabelSelector(Section):
    match_labels: Annotated[dict[str, LabelValue], Field(max_length=16)] | None = None
    match_expressions: Annotated[tuple[LabelRequirement, ...], Field(max_length=8)] | None = None


class PodTerm(Section):
    topology_key: LabelKey
    label_selector: LabelSelector | None = None
    namespaces: Annotated[tuple[DNSLabel, ...], Field(max_length=32)] | None = None
    namespace_selector: LabelSelector | None = None
    match_label_keys: LabelKeys | None = None
    mismatch_label_keys: LabelKeys | None = None


class PreferredPodTerm(Section):
    weight: _Weight
    pod_affinity_term: PodTerm


class PodAffinity(Section):
    required_during_scheduling_ignored_during_execution: Annotated[tuple[PodTerm, ...], Field(max_length=8)] | None = (
        None
    )
    preferred_during_scheduling_ignored_during_execution: (
        Annotated[tuple[PreferredPodTerm, ...], Field(max_length=8)] | None
    ) = None


class Affinity(Section):
    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class TopologySpreadConstraint(Section):
    max_skew: Annotated[int, Field(ge=1, le=1024)]
    topology_key: LabelKey
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"]
    label_selector: LabelSelector | None = None
    min_domains: Annotated[int, Field(ge=1, le=1024)] | None = None
    node_affinity_policy: NodePolicy | None = None
    node_taints_policy: NodePolicy | None = None
    match_label_keys: LabelKeys | None = None
