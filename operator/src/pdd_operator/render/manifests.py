"""A PDDeployment becomes the list of its objects. Pure: the same arguments give the same bytes.

The order is the order of applying: what others mount or name comes first, pods last.
"""

from __future__ import annotations

from collections.abc import Iterator

from pdd_operator.api.labels import ENGINE_COMPONENTS, Component
from pdd_operator.api.objects import Manifest, Rendered
from pdd_operator.api.v1alpha1 import PDDeployment, PolicyMode, Switch
from pdd_operator.render.availability import render_autoscaler, render_budget
from pdd_operator.render.engine_pod import role_of
from pdd_operator.render.engines import (
    render_claim_key,
    render_engine_account,
    render_engine_config,
    render_engine_service,
    render_engine_set,
)
from pdd_operator.render.inputs import ClusterFacts, RenderSettings, Replicas
from pdd_operator.render.metadata import with_input_hash
from pdd_operator.render.monitoring import render_dashboard, render_engine_monitor, render_router_monitor
from pdd_operator.render.network import render_engine_policy, render_router_policy
from pdd_operator.render.revision import revision_of
from pdd_operator.render.router import (
    render_router_access,
    render_router_config,
    render_router_deployment,
    render_router_service,
    render_tenant_salt,
)


def render(deployment: PDDeployment, settings: RenderSettings, cluster: ClusterFacts, replicas: Replicas) -> Rendered:
    """Every object of one PDDeployment in its current revision group.

    Total on what the rules of the CRD accept; raises UnsupportedError for hardware that they refuse, and where
    neither the object nor the settings name an engine image.
    """
    group = revision_of(deployment, settings)
    scraped = cluster.pod_monitors and deployment.spec.monitoring.pod_monitor is Switch.AUTO
    manifests = [
        *_foundations(deployment, settings, group, scraped=scraped),
        *_engines(deployment, settings, group, replicas),
        *_router(deployment, settings),
        *_monitoring(deployment, cluster, scraped=scraped),
    ]
    return Rendered(
        revision=group,
        manifests=tuple(with_input_hash(manifest) for manifest in manifests),
        secrets=(*render_claim_key(deployment, group), render_tenant_salt(deployment)),
    )


def _foundations(
    deployment: PDDeployment, settings: RenderSettings, group: str, *, scraped: bool
) -> Iterator[Manifest]:
    yield render_engine_account(deployment)
    yield from render_router_access(deployment)
    yield render_engine_config(deployment, group)
    yield render_router_config(deployment)
    if deployment.spec.network_policy.mode is PolicyMode.ENABLED:
        yield render_engine_policy(deployment, settings, scraped=scraped)
        yield render_router_policy(deployment, settings)


def _engines(deployment: PDDeployment, settings: RenderSettings, group: str, replicas: Replicas) -> Iterator[Manifest]:
    for component in ENGINE_COMPONENTS:
        count = replicas.prefill if component is Component.PREFILL else replicas.decode
        yield render_engine_service(deployment, component)
        yield render_budget(deployment, component, group)
        yield render_engine_set(deployment, settings, component, group, count)
        autoscaling = role_of(deployment, component).autoscaling
        # A size that is given is the rollout's: an autoscaler of the same set would undo every step.
        target = replicas.autoscaled_groups.get(component, group if count is None else None)
        if autoscaling is not None and target is not None:
            yield render_autoscaler(deployment, component, target, autoscaling)


def _router(deployment: PDDeployment, settings: RenderSettings) -> Iterator[Manifest]:
    yield render_router_service(deployment)
    yield render_budget(deployment, Component.ROUTER)
    yield render_router_deployment(deployment, settings)


def _monitoring(deployment: PDDeployment, cluster: ClusterFacts, *, scraped: bool) -> Iterator[Manifest]:
    if scraped:
        yield render_engine_monitor(deployment)
        yield render_router_monitor(deployment)
    if cluster.grafana_dashboards and deployment.spec.monitoring.dashboards is Switch.AUTO:
        yield render_dashboard(deployment)
