"""Objects of the router: Deployment, configuration, Service, its right to watch pods, the tenants' salt. Pure."""

from __future__ import annotations

from typing import Any, Final

from pdd_operator.api.labels import GROUP, Component, object_labels, selector_labels
from pdd_operator.api.names import component_name, tenant_salt_name
from pdd_operator.api.objects import Manifest, SecretOnce
from pdd_operator.api.v1alpha1 import PDDeployment
from pdd_operator.render.inputs import RenderSettings
from pdd_operator.render.metadata import digest, owned_metadata, unowned_metadata
from pdd_operator.render.ports import ROUTER_PORT
from pdd_operator.render.resources import Defaults, container_resources
from pdd_operator.render.router_config import (
    CONFIG_FILE,
    CONFIG_PATH,
    KEYS_KEY,
    KEYS_PATH,
    READY_DELAY_SECONDS,
    SALT_KEY,
    SALT_PATH,
    grace_seconds,
    router_config,
    router_yaml,
)
from pdd_operator.render.scheduling import router_scheduling
from pdd_operator.render.security import pod_security, restricted

CONFIG_CHECKSUM: Final = f"{GROUP}/config-checksum"
_SALT_BYTES: Final = 32
_STOP_MARGIN_SECONDS: Final = 15
_RESOURCES: Final = Defaults(cpu="500m", memory="1Gi", memory_limited=True)


def _name(deployment: PDDeployment) -> str:
    return component_name(deployment.metadata.name, Component.ROUTER)


def render_tenant_salt(deployment: PDDeployment) -> SecretOnce:
    """Lives as long as the PDDeployment: a new salt is an empty cache."""
    manifest = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": unowned_metadata(deployment, tenant_salt_name(deployment.metadata.name), Component.ROUTER),
        "type": "Opaque",
    }
    return SecretOnce(manifest, SALT_KEY, _SALT_BYTES, None)


def render_router_access(deployment: PDDeployment) -> tuple[Manifest, Manifest, Manifest]:
    """ServiceAccount, Role, RoleBinding: the router finds engines by watching pods, and may do nothing else."""
    name = _name(deployment)
    account: Manifest = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": owned_metadata(deployment, name, Component.ROUTER),
        "automountServiceAccountToken": False,
    }
    role: Manifest = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": owned_metadata(deployment, name, Component.ROUTER),
        "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}],
    }
    binding: Manifest = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": owned_metadata(deployment, name, Component.ROUTER),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": deployment.metadata.namespace}],
    }
    return account, role, binding


def render_router_config(deployment: PDDeployment) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": owned_metadata(deployment, _name(deployment), Component.ROUTER),
        "data": {CONFIG_FILE: router_yaml(deployment)},
    }


def render_router_service(deployment: PDDeployment) -> Manifest:
    service = deployment.spec.router.service
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": owned_metadata(
            deployment, _name(deployment), Component.ROUTER, annotations=dict(service.annotations)
        ),
        "spec": {
            "type": service.type.value,
            "selector": selector_labels(deployment.metadata.name, Component.ROUTER),
            "ports": [{"name": "http", "port": service.port, "targetPort": "http", "protocol": "TCP"}],
        },
    }


def render_router_deployment(deployment: PDDeployment, settings: RenderSettings) -> Manifest:
    meta, router = deployment.metadata, deployment.spec.router
    labels = dict(router.pod_template.labels) | object_labels(meta.name, meta.uid, Component.ROUTER)
    annotations = dict(router.pod_template.annotations) | {CONFIG_CHECKSUM: digest(router_config(deployment))}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": owned_metadata(deployment, _name(deployment), Component.ROUTER),
        "spec": {
            "replicas": router.replicas,
            "revisionHistoryLimit": 3,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "selector": {"matchLabels": selector_labels(meta.name, Component.ROUTER)},
            "template": {
                "metadata": {"labels": labels, "annotations": annotations},
                "spec": _pod_spec(deployment, settings),
            },
        },
    }


def _pod_spec(deployment: PDDeployment, settings: RenderSettings) -> dict[str, Any]:
    router = deployment.spec.router
    grace = READY_DELAY_SECONDS + grace_seconds(deployment) + _STOP_MARGIN_SECONDS
    pod: dict[str, Any] = {
        "serviceAccountName": _name(deployment),
        "automountServiceAccountToken": True,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace,
        "securityContext": pod_security(owns_files=True),
        "containers": [_container(deployment, settings)],
        "volumes": [*_volumes(deployment), *(volume.as_given() for volume in router.pod_template.volumes)],
    }
    if router.image_pull_secret_names:
        pod["imagePullSecrets"] = [{"name": name} for name in router.image_pull_secret_names]
    return pod | router_scheduling(deployment)


def _container(deployment: PDDeployment, settings: RenderSettings) -> dict[str, Any]:
    router = deployment.spec.router
    return {
        "name": "router",
        "image": router.image or settings.images.router,
        "imagePullPolicy": router.image_pull_policy.value,
        "args": ["--config", f"{CONFIG_PATH}/{CONFIG_FILE}"],
        "ports": [{"name": "http", "containerPort": ROUTER_PORT, "protocol": "TCP"}],
        "readinessProbe": _probe("/ready", 2, 2),
        "livenessProbe": _probe("/health", 10, 3),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": container_resources(_RESOURCES, router.pod_template.resources),
        "securityContext": restricted(),
        "volumeMounts": [*_mounts(deployment), *(mount.as_given() for mount in router.pod_template.volume_mounts)],
    }


def _probe(path: str, period_seconds: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": "http", "scheme": "HTTP"},
        "periodSeconds": period_seconds,
        "failureThreshold": failures,
        "timeoutSeconds": 5,
    }


def _volumes(deployment: PDDeployment) -> list[dict[str, Any]]:
    """Configuration, salt and, where tenants have keys, those; each with the one file that is meant."""
    salt = tenant_salt_name(deployment.metadata.name)
    volumes: list[dict[str, Any]] = [
        {"name": "pdd-config", "configMap": {"name": _name(deployment), "defaultMode": 0o444}},
        {"name": "pdd-salt", "secret": _one_key(salt, SALT_KEY)},
        {"name": "pdd-tmp", "emptyDir": {}},
    ]
    keys = deployment.spec.router.authentication.api_keys_secret_name
    if keys is not None:
        volumes.append({"name": "pdd-keys", "secret": _one_key(keys, KEYS_KEY)})
    return volumes


def _mounts(deployment: PDDeployment) -> list[dict[str, Any]]:
    mounts: list[dict[str, Any]] = [
        {"name": "pdd-config", "mountPath": CONFIG_PATH, "readOnly": True},
        {"name": "pdd-salt", "mountPath": SALT_PATH, "readOnly": True},
        {"name": "pdd-tmp", "mountPath": "/tmp"},  # noqa: S108 - a path inside the pod
    ]
    if deployment.spec.router.authentication.api_keys_secret_name is not None:
        mounts.append({"name": "pdd-keys", "mountPath": KEYS_PATH, "readOnly": True})
    return mounts


def _one_key(secret: str, key: str) -> dict[str, Any]:
    return {"secretName": secret, "defaultMode": 0o440, "items": [{"key": key, "path": key}]}
