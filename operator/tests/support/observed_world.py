"""Objects as a cluster shows them, for tests of what the operator says of them. No cluster, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from pdd_operator.api.labels import Component, object_labels
from pdd_operator.api.names import component_name, engine_set_name
from pdd_operator.api.objects import Manifest, ref_of
from pdd_operator.api.v1alpha1 import PDDeployment
from pdd_operator.observe.observed import Observed, ReuseWindow

NOW = datetime(2026, 11, 29, 12, 0, 0, tzinfo=UTC)
LONG_AGO = "2026-11-01T00:00:00Z"
NAME, NAMESPACE, UID = "glm", "agents", "11111111-2222-3333-4444-555555555555"
CURRENT, OLD = "c0ffee", "0ddba1"
NO_WINDOW = ReuseWindow(None, None)

EFA_ROLE = {"replicas": 2, "accelerator": {"instanceType": "p5en.48xlarge", "count": 8}, "tensorParallelSize": 8}
CPU_ROLE = {"replicas": 2, "accelerator": {"type": "CPU"}}


def deployment_object(spec: Mapping[str, Any] | None = None, status: Mapping[str, Any] | None = None) -> Manifest:
    """A PDDeployment on p5en with two engines per role; ``spec`` is merged over that, one level deep."""
    base: dict[str, Any] = {
        "model": {"name": "zai-org/GLM-5-FP8", "source": {"huggingFace": {"tokenSecretName": "hf-token"}}},
        "prefill": EFA_ROLE,
        "decode": EFA_ROLE,
    }
    for section, fields in (spec or {}).items():
        base[section] = {**base.get(section, {}), **fields}
    found: Manifest = {
        "apiVersion": "pdserve.io/v1alpha1",
        "kind": "PDDeployment",
        "metadata": {"name": NAME, "namespace": NAMESPACE, "uid": UID, "generation": 3},
        "spec": base,
    }
    return found | ({"status": dict(status)} if status else {})


def parsed(manifest: Manifest) -> PDDeployment:
    return PDDeployment.model_validate({key: value for key, value in manifest.items() if key != "status"})


OWNER = {"apiVersion": "pdserve.io/v1alpha1", "kind": "PDDeployment", "name": NAME, "uid": UID, "controller": True}


def owned_by(uid: str, kind: str, name: str) -> list[Manifest]:
    return [{"kind": kind, "name": name, "uid": uid, "controller": True}]


def stateful_set(
    component: Component,
    group: str = CURRENT,
    replicas: int = 2,
    *,
    created: str = LONG_AGO,
    generation: int = 1,
    seen: int | None = None,
) -> Manifest:
    containers = [{"name": "engine", "image": "registry.example/engine:1"}]
    init = [{"name": "connector", "image": "registry.example/connector:1"}, {"name": "preflight"}]
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {
            "name": engine_set_name(NAME, component, group),
            "uid": f"uid-{engine_set_name(NAME, component, group)}",
            "ownerReferences": [OWNER],
            "labels": object_labels(NAME, UID, component, group),
            "creationTimestamp": created,
            "generation": generation,
        },
        "spec": {"replicas": replicas, "template": {"spec": {"containers": containers, "initContainers": init}}},
        "status": {"observedGeneration": generation if seen is None else seen},
    }


def config_map(group: str, created: str = LONG_AGO) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": f"{NAME}-engine-{group}",
            "ownerReferences": [OWNER],
            "labels": object_labels(NAME, UID, None, group),
            "creationTimestamp": created,
        },
    }


def router_deployment(replicas: int = 2, conditions: Iterable[Mapping[str, Any]] = ()) -> Manifest:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": component_name(NAME, Component.ROUTER),
            "ownerReferences": [OWNER],
            "labels": object_labels(NAME, UID, Component.ROUTER),
            "creationTimestamp": LONG_AGO,
        },
        "spec": {
            "replicas": replicas,
            "template": {"spec": {"containers": [{"name": "router", "image": "registry.example/router:1"}]}},
        },
        "status": {"conditions": list(conditions)},
    }


def preflight_status(transport: str = "EFA", reason: str = "EFAReady", message: str = "16 EFA devices") -> Manifest:
    """The status of a preflight that ended."""
    said = f'{{"transport": "{transport}", "reason": "{reason}", "message": "{message}"}}'
    state = {"terminated": {"exitCode": 0 if transport else 1, "message": said}}
    return {"name": "preflight", "ready": bool(transport), "restartCount": 0, "state": state}


def pod(
    component: Component,
    ordinal: int = 0,
    group: str = CURRENT,
    *,
    ready: bool = True,
    terminating: bool = False,
    scheduled: Mapping[str, Any] | None = None,
    init: Iterable[Mapping[str, Any]] | None = None,
    container: Mapping[str, Any] | None = None,
    phase: str = "Running",
    ready_since: str = LONG_AGO,
    requests: Mapping[str, str] | None = None,
    **status: Any,
) -> Manifest:
    """A pod that is ready by default; every keyword makes it worse."""
    is_router = component is Component.ROUTER
    main = "router" if is_router else "engine"
    base = component_name(NAME, component) if is_router else engine_set_name(NAME, component, group)
    asked = {"vpc.amazonaws.com/efa": "16", "nvidia.com/gpu": "8"} if requests is None else dict(requests)
    well = {"name": main, "image": f"registry.example/{main}:1", "ready": ready, "started": ready, "restartCount": 0}
    running = {"state": {"running": {"startedAt": LONG_AGO}}}
    conditions = [
        {"type": "PodScheduled", **(scheduled or {"status": "True"})},
        {"type": "Ready", "status": "True" if ready else "False", "lastTransitionTime": ready_since},
    ]
    found: Manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{base}-{ordinal}",
            "uid": f"uid-{base}-{ordinal}",
            "ownerReferences": owned_by(f"uid-{base}", "StatefulSet", base)
            if not is_router
            else owned_by(f"uid-{base}-5f9c", "ReplicaSet", f"{base}-5f9c"),
            "labels": object_labels(NAME, UID, component, None if is_router else group),
        },
        "spec": {"containers": [{"name": main, "resources": {} if is_router else {"requests": asked}}]},
        "status": {
            "phase": phase,
            "conditions": conditions,
            "initContainerStatuses": list(([] if is_router else [preflight_status()]) if init is None else init),
            "containerStatuses": [{**well, **running, **(container or {})}],
            **status,
        },
    }
    if terminating:
        found["metadata"]["deletionTimestamp"] = LONG_AGO
    return found


def all_pods(group: str = CURRENT, replicas: int = 2, **changes: Any) -> list[Manifest]:
    """Engines of both roles and two routers, all ready."""
    engines = [
        pod(component, ordinal, group, **changes)
        for component in (Component.PREFILL, Component.DECODE)
        for ordinal in range(replicas)
    ]
    return [*engines, pod(Component.ROUTER, 0), pod(Component.ROUTER, 1)]


def all_children(group: str = CURRENT, replicas: int = 2) -> list[Manifest]:
    sets = [stateful_set(component, group, replicas) for component in (Component.PREFILL, Component.DECODE)]
    return [*sets, config_map(group), router_deployment()]


def observed(
    deployment: Manifest,
    children: Iterable[Manifest],
    pods: Iterable[Manifest],
    reuse: ReuseWindow = NO_WINDOW,
    now: datetime = NOW,
) -> Observed:
    return Observed(deployment, {ref_of(child): child for child in children}, tuple(pods), reuse, now)
