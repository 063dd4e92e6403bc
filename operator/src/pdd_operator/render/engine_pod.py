"""The pod of an engine: connector copied in, fabric proven, engine started, drained on stop. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pdd_operator.api.labels import GROUP, Component, object_labels
from pdd_operator.api.names import engine_group_name, engine_name
from pdd_operator.api.v1alpha1 import PDDeployment, PodTemplate, Role
from pdd_operator.render.catalog import PLATFORMS, Share, platform_of, share_of
from pdd_operator.render.engine_command import NOTICE_SECONDS, engine_files, pinned_seconds
from pdd_operator.render.engine_env import engine_env
from pdd_operator.render.inputs import RenderSettings
from pdd_operator.render.metadata import digest
from pdd_operator.render.model_source import model_mounts, model_volumes
from pdd_operator.render.ports import (
    CLAIM_PORT,
    CONNECTOR_PATH,
    ENGINE_PORT,
    HOME_PATH,
    RUN_PATH,
    SCRIPTS_PATH,
    SIDE_CHANNEL_PORT,
)
from pdd_operator.render.resources import engine_resources
from pdd_operator.render.revision import engine_image
from pdd_operator.render.scheduling import engine_scheduling
from pdd_operator.render.security import engine_security, pod_security, restricted

_STOP_MARGIN_SECONDS: Final = 30
FILES_CHECKSUM: Final = f"{GROUP}/files-checksum"


def role_of(deployment: PDDeployment, component: Component) -> Role:
    return deployment.spec.prefill if component is Component.PREFILL else deployment.spec.decode


def engine_pod_template(
    deployment: PDDeployment, settings: RenderSettings, component: Component, group: str
) -> dict[str, Any]:
    """``spec.template`` of an engine's StatefulSet."""
    meta, template = deployment.metadata, role_of(deployment, component).pod_template
    metadata: dict[str, Any] = {"labels": dict(template.labels) | object_labels(meta.name, meta.uid, component, group)}
    metadata["annotations"] = {
        "kubectl.kubernetes.io/default-container": "engine",
        **template.annotations,
        # A newer operator may write other files for the same revision: engines of one group are never started in two ways.
        FILES_CHECKSUM: digest(engine_files(deployment.spec, group)),
    }
    return {"metadata": metadata, "spec": _pod_spec(deployment, settings, component, group)}


def termination_grace_seconds(deployment: PDDeployment) -> int:
    """Longer than everything that may hold an engine up while it stops, one after another."""
    spec = deployment.spec
    return NOTICE_SECONDS + spec.engine.drain_timeout_seconds + pinned_seconds(spec) + _STOP_MARGIN_SECONDS


def _pod_spec(deployment: PDDeployment, settings: RenderSettings, component: Component, group: str) -> dict[str, Any]:
    spec, role = deployment.spec, role_of(deployment, component)
    share = share_of(role, spec.transport.backend, spec.engine.cpu_kv_cache_gib)
    resources = engine_resources(share, role.pod_template.resources)
    preflight = _preflight_container(deployment, settings, role, share) | {"resources": resources}
    engine = _engine_container(deployment, settings, component, group) | {"resources": resources}
    own_connector = PLATFORMS[platform_of(role)].own_connector
    pod: dict[str, Any] = {
        "serviceAccountName": engine_name(deployment.metadata.name),
        "automountServiceAccountToken": False,
        # Kubernetes would set VLLM_PORT and the like for a Service of such a name, and vLLM would believe them.
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": termination_grace_seconds(deployment),
        "securityContext": pod_security(owns_files=False),
        "initContainers": [*([_connector_container(settings, resources)] if own_connector else []), preflight],
        "containers": [engine],
        "volumes": _volumes(deployment, role.pod_template, group, share, own_connector=own_connector),
    }
    if spec.engine.image_pull_secret_names:
        pod["imagePullSecrets"] = [{"name": name} for name in spec.engine.image_pull_secret_names]
    return pod | engine_scheduling(deployment, component, group, role)


def _connector_container(settings: RenderSettings, engine: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """Has the engine's cpu and memory, which costs a pod nothing more: so what quotas and limit ranges ask for is said in one place."""
    plain = {kind: {name: part[name] for name in ("cpu", "memory") if name in part} for kind, part in engine.items()}
    return {
        "name": "connector",
        "image": settings.images.connector,
        "imagePullPolicy": "IfNotPresent",
        "command": ["/copy.sh", CONNECTOR_PATH],
        "resources": {kind: part for kind, part in plain.items() if part},
        "securityContext": restricted(),
        "volumeMounts": [{"name": "pdd-connector", "mountPath": CONNECTOR_PATH}],
    }


def _preflight_container(
    deployment: PDDeployment, settings: RenderSettings, role: Role, share: Share
) -> dict[str, Any]:
    """Has the engine's own image, devices and privileges: anything else would judge another place."""
    transport = deployment.spec.transport
    command = ["python3", f"{SCRIPTS_PATH}/preflight.py", "--backend", transport.backend.value]
    command += ["--fallback", transport.fallback.value, "--interface", transport.interface]
    command += ["--efa-devices", str(share.efa_devices), "--huge-pages-mib", str(share.huge_pages_mib)]
    return {
        "name": "preflight",
        "image": engine_image(deployment, settings),
        "imagePullPolicy": deployment.spec.engine.image_pull_policy.value,
        "command": command,
        "env": [{"name": "HOME", "value": HOME_PATH}],
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "securityContext": engine_security(transport),
        "volumeMounts": [
            {"name": "pdd-scripts", "mountPath": SCRIPTS_PATH, "readOnly": True},
            {"name": "pdd-run", "mountPath": RUN_PATH},
            {"name": "pdd-home", "mountPath": HOME_PATH},
            {"name": "pdd-tmp", "mountPath": "/tmp"},  # noqa: S108 - a path inside the pod
        ],
    }


def _engine_container(
    deployment: PDDeployment, settings: RenderSettings, component: Component, group: str
) -> dict[str, Any]:
    spec = deployment.spec
    drain = ["python3", f"{SCRIPTS_PATH}/drain.py", "--notice-seconds", str(NOTICE_SECONDS)]
    drain += ["--timeout-seconds", str(spec.engine.drain_timeout_seconds), "--port", str(ENGINE_PORT)]
    return {
        "name": "engine",
        "image": engine_image(deployment, settings),
        "imagePullPolicy": spec.engine.image_pull_policy.value,
        "command": ["/bin/sh", f"{SCRIPTS_PATH}/start-{component}.sh"],
        "env": engine_env(deployment, component, group),
        "ports": [
            {"name": "http", "containerPort": ENGINE_PORT, "protocol": "TCP"},
            {"name": "side-channel", "containerPort": SIDE_CHANNEL_PORT, "protocol": "TCP"},
            {"name": "claim", "containerPort": CLAIM_PORT, "protocol": "TCP"},
        ],
        "lifecycle": {"preStop": {"exec": {"command": drain}}},
        **_probes(spec.engine.startup_timeout_seconds),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": engine_security(spec.transport),
        "volumeMounts": _engine_mounts(deployment, role_of(deployment, component)),
    }


def _probes(startup_timeout_seconds: int) -> dict[str, Any]:
    """Loading a model takes minutes to hours: until then only the startup probe counts."""
    period = 2  # it costs nothing, and a rollout waits for it once for every engine
    return {
        "startupProbe": _health(period, -(-startup_timeout_seconds // period), 5),
        "readinessProbe": _health(5, 3, 5),
        # A full batch slows the answer down; killing the engine for that would make it worse.
        "livenessProbe": _health(10, 6, 10),
    }


def _health(period_seconds: int, failures: int, timeout_seconds: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": "/health", "port": "http", "scheme": "HTTP"},
        "periodSeconds": period_seconds,
        "failureThreshold": failures,
        "timeoutSeconds": timeout_seconds,
    }


def _volumes(
    deployment: PDDeployment, template: PodTemplate, group: str, share: Share, *, own_connector: bool
) -> list[dict[str, Any]]:
    scripts = {"name": engine_group_name(deployment.metadata.name, group), "defaultMode": 0o444}
    memory = {"medium": "Memory", "sizeLimit": f"{share.shared_memory_gib}Gi"}
    own: list[dict[str, Any]] = [
        {"name": "pdd-scripts", "configMap": scripts},
        {"name": "pdd-run", "emptyDir": {}},
        {"name": "pdd-home", "emptyDir": {}},
        {"name": "pdd-tmp", "emptyDir": {}},
        {"name": "pdd-shared-memory", "emptyDir": memory},
        *model_volumes(deployment.spec.model),
    ]
    if own_connector:
        own.append({"name": "pdd-connector", "emptyDir": {}})
    return [*own, *(volume.as_given() for volume in template.volumes)]


def _engine_mounts(deployment: PDDeployment, role: Role) -> list[dict[str, Any]]:
    own: list[dict[str, Any]] = [
        {"name": "pdd-scripts", "mountPath": SCRIPTS_PATH, "readOnly": True},
        {"name": "pdd-run", "mountPath": RUN_PATH, "readOnly": True},
        {"name": "pdd-home", "mountPath": HOME_PATH},
        {"name": "pdd-tmp", "mountPath": "/tmp"},  # noqa: S108 - a path inside the pod
        {"name": "pdd-shared-memory", "mountPath": "/dev/shm"},  # noqa: S108 - a path inside the pod
        *model_mounts(deployment.spec.model),
    ]
    if PLATFORMS[platform_of(role)].own_connector:
        own.append({"name": "pdd-connector", "mountPath": CONNECTOR_PATH, "readOnly": True})
    return [*own, *(mount.as_given() for mount in role.pod_template.volume_mounts)]
