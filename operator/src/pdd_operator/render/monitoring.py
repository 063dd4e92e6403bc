"""PodMonitors and the Grafana dashboard, for clusters that have those kinds. Pure."""

from __future__ import annotations

import json
from typing import Any, Final

from pdd_operator.api.labels import DEPLOYMENT, REVISION_GROUP, ROLE, Component, selector_labels
from pdd_operator.api.names import component_name, dashboard_name, engine_name
from pdd_operator.api.objects import Manifest
from pdd_operator.api.v1alpha1 import PDDeployment
from pdd_operator.render.dashboard import dashboard
from pdd_operator.render.metadata import owned_metadata
from pdd_operator.render.network import engine_selector

INSTANCE_SELECTOR: Final = {"dashboards": "grafana"}
"""Label of the Grafana objects that show the dashboard (docs/monitoring.md)."""
_INTERVAL: Final = "15s"


def render_engine_monitor(deployment: PDDeployment) -> Manifest:
    name = deployment.metadata.name
    return _monitor(deployment, engine_name(name), None, engine_selector(name))


def render_router_monitor(deployment: PDDeployment) -> Manifest:
    name = deployment.metadata.name
    selector = {"matchLabels": selector_labels(name, Component.ROUTER)}
    return _monitor(deployment, component_name(name, Component.ROUTER), Component.ROUTER, selector)


def render_dashboard(deployment: PDDeployment) -> Manifest:
    meta = deployment.metadata
    return {
        "apiVersion": "grafana.integreatly.org/v1beta1",
        "kind": "GrafanaDashboard",
        "metadata": owned_metadata(deployment, dashboard_name(meta.name)),
        "spec": {
            "allowCrossNamespaceImport": True,
            "instanceSelector": {"matchLabels": dict(INSTANCE_SELECTOR)},
            "json": json.dumps(dashboard(meta.namespace, meta.name), sort_keys=True),
        },
    }


def _monitor(deployment: PDDeployment, name: str, component: Component | None, selector: dict[str, Any]) -> Manifest:
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": owned_metadata(deployment, name, component),
        "spec": {
            "selector": selector,
            "podTargetLabels": [DEPLOYMENT, ROLE, REVISION_GROUP],
            "podMetricsEndpoints": [{"port": "http", "path": "/metrics", "interval": _INTERVAL}],
        },
    }
