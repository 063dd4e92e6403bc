"""Objects of the engines: StatefulSets, headless Services, configuration, ServiceAccount, the claim channel's key. Pure."""

from __future__ import annotations

from typing import Final

from pdd_operator.api.labels import TEMPLATE_HASH, Component, selector_labels
from pdd_operator.api.names import (
    ObjectRef,
    claim_key_name,
    component_name,
    engine_group_name,
    engine_name,
    engine_set_name,
)
from pdd_operator.api.objects import Manifest, SecretOnce
from pdd_operator.api.v1alpha1 import Mechanism, PDDeployment
from pdd_operator.render.engine_command import engine_files
from pdd_operator.render.engine_env import CLAIM_KEY
from pdd_operator.render.engine_pod import engine_pod_template
from pdd_operator.render.inputs import RenderSettings
from pdd_operator.render.metadata import digest, owned_metadata, unowned_metadata
from pdd_operator.render.ports import CLAIM_PORT, ENGINE_PORT, SIDE_CHANNEL_PORT

_KEY_BYTES: Final = 32


def render_engine_account(deployment: PDDeployment) -> Manifest:
    """Engines never talk to the API server."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": owned_metadata(deployment, engine_name(deployment.metadata.name)),
        "automountServiceAccountToken": False,
    }


def render_engine_config(deployment: PDDeployment, group: str) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": owned_metadata(deployment, engine_group_name(deployment.metadata.name, group), group=group),
        "data": engine_files(deployment.spec, group),
    }


def render_claim_key(deployment: PDDeployment, group: str) -> tuple[SecretOnce, ...]:
    """A key per revision group, gone with the group's ConfigMap. Nothing claims with Retain."""
    if deployment.spec.kv_transfer.mechanism is not Mechanism.CLAIM:
        return ()
    name = deployment.metadata.name
    manifest = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": unowned_metadata(deployment, claim_key_name(name, group), group=group),
        "type": "Opaque",
    }
    owner = ObjectRef("v1", "ConfigMap", engine_group_name(name, group))
    return (SecretOnce(manifest, CLAIM_KEY, _KEY_BYTES, owner),)


def render_engine_set(
    deployment: PDDeployment, settings: RenderSettings, component: Component, group: str, replicas: int | None
) -> Manifest:
    """``replicas`` None: an autoscaler's, hence not sent."""
    name, template = deployment.metadata.name, engine_pod_template(deployment, settings, component, group)
    spec = {
        "serviceName": component_name(name, component),
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "RollingUpdate"},
        "selector": {"matchLabels": selector_labels(name, component, group)},
        "template": template,
    }
    metadata = owned_metadata(
        deployment, engine_set_name(name, component, group), component, group, {TEMPLATE_HASH: digest(template)}
    )
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata,
        "spec": spec if replicas is None else {"replicas": replicas, **spec},
    }


def render_engine_service(deployment: PDDeployment, component: Component) -> Manifest:
    """Gives pods of all groups their names; they find each other before they are ready."""
    name = deployment.metadata.name
    ports = (("http", ENGINE_PORT), ("side-channel", SIDE_CHANNEL_PORT), ("claim", CLAIM_PORT))
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": owned_metadata(deployment, component_name(name, component), component),
        "spec": {
            "type": "ClusterIP",
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": selector_labels(name, component),
            "ports": [{"name": label, "port": port, "targetPort": label, "protocol": "TCP"} for label, port in ports],
        },
    }
