"""PodDisruptionBudgets and HorizontalPodAutoscalers. Pure.

Which metric an autoscaler reads, and where it comes from, is told in docs/autoscaling.md.
"""

from __future__ import annotations

import math
from typing import Any, Final

from pdd_operator.api.labels import Component, selector_labels
from pdd_operator.api.names import component_name, engine_set_name
from pdd_operator.api.objects import Manifest
from pdd_operator.api.quantities import quantity_of
from pdd_operator.api.v1alpha1 import Autoscaling, PDDeployment, ScalingMetric, ScalingTarget
from pdd_operator.render.metadata import owned_metadata

POD_METRICS: Final = {
    ScalingMetric.QUEUE_WAIT_SECONDS: "pdd_queue_wait_seconds",
    ScalingMetric.RUNNING_REQUESTS: "vllm_num_requests_running",
    ScalingMetric.WAITING_REQUESTS: "vllm_num_requests_waiting",
}

_SCALE_DOWN_WINDOW_SECONDS: Final = 600
"""An engine takes minutes to start and holds a cache that is lost with it."""


def render_budget(deployment: PDDeployment, component: Component, group: str | None = None) -> Manifest:
    """One at a time. ``group``: of engines; what one that takes over still lacks must not keep nodes of the one that serves from being drained.

    What is not ready may always go: it serves nobody, and a rollout that is stuck would hold its node.
    """
    name = deployment.metadata.name
    own = component_name(name, component) if group is None else engine_set_name(name, component, group)
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": owned_metadata(deployment, own, component, group),
        "spec": {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": selector_labels(name, component, group)},
        },
    }


def render_autoscaler(deployment: PDDeployment, component: Component, group: str, autoscaling: Autoscaling) -> Manifest:
    """``group``: whose StatefulSet it sizes. While another takes over beside it, that is the one that serves."""
    name = deployment.metadata.name
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": owned_metadata(deployment, component_name(name, component), component),
        "spec": {
            "scaleTargetRef": {
                "apiVersion": "apps/v1",
                "kind": "StatefulSet",
                "name": engine_set_name(name, component, group),
            },
            "minReplicas": autoscaling.min_replicas,
            "maxReplicas": autoscaling.max_replicas,
            "metrics": [_metric(autoscaling.target)],
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": _SCALE_DOWN_WINDOW_SECONDS}},
        },
    }


def _metric(target: ScalingTarget) -> dict[str, Any]:
    if target.metric is ScalingMetric.CPU_UTILIZATION:
        percent = {"type": "Utilization", "averageUtilization": _whole(target.value)}
        return {"type": "Resource", "resource": {"name": "cpu", "target": percent}}
    average = {"type": "AverageValue", "averageValue": target.value}
    return {"type": "Pods", "pods": {"metric": {"name": POD_METRICS[target.metric]}, "target": average}}


def _whole(quantity: str) -> int:
    """A Kubernetes quantity, rounded up to a whole number of at least 1."""
    return max(1, math.ceil(quantity_of(quantity)))
