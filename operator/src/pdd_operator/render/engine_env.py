"""Environment of an engine's container. Pure.

Three layers, the later wins by name: defaults, what the user sets, what the operator owns. A name appears once: server-side
apply merges the list by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pdd_operator.api.accelerators import Platform
from pdd_operator.api.labels import Component
from pdd_operator.api.names import claim_key_name
from pdd_operator.api.quantities import quantity_of
from pdd_operator.api.v1alpha1 import Backend, Direction, EnvVar, Mechanism, PDDeployment, Role
from pdd_operator.render.catalog import PLATFORMS, platform_of, share_of
from pdd_operator.render.ports import (
    CONNECTOR_PATH,
    HOME_PATH,
    MODEL_CACHE_PATH,
    SIDE_CHANNEL_PORT,
)
from pdd_operator.render.resources import requested_cpu

CLAIM_KEY = "key"
"""Key of the Secret with the claim channel's key."""
TOKEN_KEY = "token"  # noqa: S105 - the name of a Secret's key
"""Key of the user's Secret with the Hugging Face token."""

_POD_IP = {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}}


def engine_env(deployment: PDDeployment, component: Component, group: str) -> list[dict[str, Any]]:
    """The whole list, sorted by layer and then as given."""
    entries: dict[str, dict[str, Any]] = {}
    for layer in (
        _defaults(deployment, component),
        map(_user_entry, deployment.spec.engine.env),
        _owned(deployment, group),
    ):
        for entry in layer:
            entries[entry["name"]] = entry
    return list(entries.values())


def _defaults(deployment: PDDeployment, component: Component) -> Iterable[dict[str, Any]]:
    spec = deployment.spec
    platform = platform_of(spec.prefill)
    values = {
        # The image knows no user 65532, and Python looks its name up unless one is set.
        "USER": "pdd",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ENGINE_READY_TIMEOUT_S": str(spec.engine.startup_timeout_seconds),
        **PLATFORMS[platform].default_env,
    }
    if platform is Platform.NEURON:
        values["VLLM_NEURON_COMPILATION_TIMEOUT"] = str(spec.engine.startup_timeout_seconds)
        # Its default is /var/tmp, which is read-only here.
        values["NEURON_COMPILE_CACHE_URL"] = f"{HOME_PATH}/neuron-compile-cache"
    if spec.model.source.hugging_face is None:
        values |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    if platform is Platform.CPU:
        role = spec.prefill if component is Component.PREFILL else spec.decode
        values["OMP_NUM_THREADS"] = str(_threads_per_worker(role))
    yield from _literals(values)


def _owned(deployment: PDDeployment, group: str) -> Iterable[dict[str, Any]]:
    spec = deployment.spec
    platform = platform_of(spec.prefill)
    values = {"HOME": HOME_PATH, "VLLM_NIXL_SIDE_CHANNEL_PORT": str(SIDE_CHANNEL_PORT)}
    if PLATFORMS[platform].own_connector:
        values["PYTHONPATH"] = CONNECTOR_PATH
    if platform is Platform.CPU:
        values["VLLM_CPU_KVCACHE_SPACE"] = str(spec.engine.cpu_kv_cache_gib)
    if platform is Platform.NEURON and spec.kv_transfer.direction is Direction.BIDIRECTIONAL:
        values["VLLM_NEURON_BIDIRECTIONAL_KV"] = "1"
    source = spec.model.source.hugging_face
    if source is not None:
        values["HF_HOME"] = MODEL_CACHE_PATH
    yield from _literals(values)
    # Bound and told to others: an address that every pod can reach, never a wildcard.
    yield {"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "valueFrom": _POD_IP}
    yield {"name": "VLLM_HOST_IP", "valueFrom": _POD_IP}
    if source is not None and source.token_secret_name is not None:
        yield _from_secret("HF_TOKEN", source.token_secret_name, TOKEN_KEY)
    if spec.kv_transfer.mechanism is Mechanism.CLAIM:
        yield _from_secret("PDD_CLAIM_KEY", claim_key_name(deployment.metadata.name, group), CLAIM_KEY)


def _threads_per_worker(role: Role) -> int:
    """More threads than cores would take turns, and wait for each other in every layer."""
    share = share_of(role, Backend.SOCKET, cpu_kv_cache_gib=0)
    cores = quantity_of(requested_cpu(share.cpu, role.pod_template.resources))
    return max(1, int(cores / role.tensor_parallel_size))


def _user_entry(variable: EnvVar) -> dict[str, Any]:
    source = variable.value_from
    if source is None:
        # The API server stores no empty value: one that is said would be missed for ever.
        return {"name": variable.name, **({"value": variable.value} if variable.value else {})}
    return {"name": variable.name, "valueFrom": source.model_dump(by_alias=True, exclude_none=True)}


def _literals(values: Mapping[str, str]) -> Iterable[dict[str, Any]]:
    return ({"name": name, "value": value} for name, value in values.items())


def _from_secret(name: str, secret: str, key: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
