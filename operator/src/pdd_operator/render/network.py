"""NetworkPolicies: who may talk to engines and router, and whom they may talk to. Pure.

An engine's HTTP port serves everything that vLLM offers, without a key: the router, the operator and, where a PodMonitor
exists, monitoring get to it. All other ports of engines (side channel, claim channel, whatever UCX chooses) are open
between the engines of one object only. Engines of different revision groups refuse each other themselves: each group has
a claim key of its own. EFA's own traffic is no IP and is what security groups are for (docs/security.md).
"""

from __future__ import annotations

from typing import Any, Final

from pdd_operator.api.labels import ENGINE_COMPONENTS, GROUP, ROLE, Component, selector_labels
from pdd_operator.api.names import component_name, engine_name
from pdd_operator.api.objects import Manifest
from pdd_operator.api.v1alpha1 import PDDeployment, ServiceType
from pdd_operator.render.inputs import RenderSettings
from pdd_operator.render.metadata import owned_metadata
from pdd_operator.render.ports import ENGINE_PORT, ROUTER_PORT

SCRAPER_NAMESPACE: Final = {f"{GROUP}/metrics": "allowed"}
"""Label of namespaces whose pods may read engines' and routers' metrics."""

_NAMESPACE_NAME: Final = "kubernetes.io/metadata.name"
_LAST_PORT: Final = 65535


def render_engine_policy(deployment: PDDeployment, settings: RenderSettings, *, scraped: bool) -> Manifest:
    name = deployment.metadata.name
    peers = {"podSelector": engine_selector(name)}
    operator = {
        "namespaceSelector": {"matchLabels": {_NAMESPACE_NAME: settings.operator_namespace}},
        "podSelector": {"matchLabels": dict(settings.operator_labels)},
    }
    callers: list[dict[str, Any]] = [
        {"podSelector": {"matchLabels": selector_labels(name, Component.ROUTER)}},
        operator,
    ]
    if scraped:
        callers.append({"namespaceSelector": {"matchLabels": dict(SCRAPER_NAMESPACE)}})
    egress: list[dict[str, Any]] = [_dns(), {"to": [peers], "ports": _all_but_http()}]
    if deployment.spec.model.source.hugging_face is not None:
        egress.append({"ports": [_tcp(443)]})
    return _policy(
        deployment,
        engine_name(name),
        None,
        engine_selector(name),
        ingress=[{"from": callers, "ports": [_tcp(ENGINE_PORT)]}, {"from": [peers], "ports": _all_but_http()}],
        egress=egress,
    )


def render_router_policy(deployment: PDDeployment, settings: RenderSettings) -> Manifest:
    """Open to the cluster, and to the world where its Service is; itself bound to engines, DNS and the API server."""
    name = deployment.metadata.name
    rule: dict[str, Any] = {"ports": [_tcp(ROUTER_PORT)]}
    if deployment.spec.router.service.type is ServiceType.CLUSTER_IP:
        rule["from"] = [{"namespaceSelector": {}}]
    return _policy(
        deployment,
        component_name(name, Component.ROUTER),
        Component.ROUTER,
        {"matchLabels": selector_labels(name, Component.ROUTER)},
        ingress=[rule],
        egress=[
            _dns(),
            {"to": [{"podSelector": engine_selector(name)}], "ports": [_tcp(ENGINE_PORT)]},
            # The API server has no pods that a selector could name.
            {"ports": [_tcp(port) for port in settings.api_server_ports]},
        ],
    )


def engine_selector(name: str) -> dict[str, Any]:
    """Selects engine pods of both roles and all groups."""
    return {
        "matchLabels": selector_labels(name),
        "matchExpressions": [{"key": ROLE, "operator": "In", "values": [item.value for item in ENGINE_COMPONENTS]}],
    }


def _policy(
    deployment: PDDeployment,
    name: str,
    component: Component | None,
    selector: dict[str, Any],
    *,
    ingress: list[dict[str, Any]],
    egress: list[dict[str, Any]],
) -> Manifest:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": owned_metadata(deployment, name, component),
        "spec": {
            "podSelector": selector,
            "policyTypes": ["Ingress", "Egress"],
            "ingress": ingress,
            "egress": egress,
        },
    }


def _tcp(port: int) -> dict[str, Any]:
    return {"protocol": "TCP", "port": port}


def _dns() -> dict[str, Any]:
    """To anywhere: a node-local cache answers from an address that belongs to no pod."""
    return {"ports": [{"protocol": "UDP", "port": 53}, _tcp(53)]}


def _all_but_http() -> list[dict[str, Any]]:
    return [
        _tcp(1) | {"endPort": ENGINE_PORT - 1},
        _tcp(ENGINE_PORT + 1) | {"endPort": _LAST_PORT},
        {"protocol": "UDP", "port": 1, "endPort": _LAST_PORT},
    ]
