"""The value of ``--kv-transfer-config`` as plain data.

Pure. Must not import the connector, whose package needs not be in the operator's image: a test holds what is written here
equal to the connector's own builder, and lets its checker judge every pair.
"""

from __future__ import annotations

from typing import Any, Final

from pdd_operator.api.accelerators import Platform
from pdd_operator.api.labels import Component
from pdd_operator.api.v1alpha1 import Backend, Direction, Fallback, Spec
from pdd_operator.render.catalog import PLATFORMS, platform_of, transport_of
from pdd_operator.render.ports import CLAIM_PORT

_CONNECTOR_MODULE: Final = "pdd_connector.connector"
_KV_ROLES: Final = {Component.PREFILL: "kv_producer", Component.DECODE: "kv_consumer"}
_MAX_CLAIMS_PER_READER: Final = 64
_CONNECT_TIMEOUT_SECONDS: Final = 30


def backends_of(spec: Spec) -> tuple[Backend, ...]:
    """The transports that an engine may find itself on, the wanted one first."""
    if spec.transport.backend is Backend.EFA and spec.transport.fallback is Fallback.SOCKET:
        return (Backend.EFA, Backend.SOCKET)
    return (spec.transport.backend,)


def kv_transfer_config(spec: Spec, group: str, component: Component, backend: Backend) -> dict[str, Any]:
    """Of one engine role on one transport."""
    role = spec.prefill if component is Component.PREFILL else spec.decode
    platform = platform_of(role)
    row = PLATFORMS[platform]
    nixl_backends = [transport_of(platform, backend).nixl_backend]
    config: dict[str, Any] = {"kv_connector": row.connector_class}
    if row.own_connector:
        config["kv_connector_module_path"] = _CONNECTOR_MODULE
    extra = _own_extra(spec, group, nixl_backends) if row.own_connector else {"backends": nixl_backends}
    return config | {
        "kv_role": _KV_ROLES[component],
        "kv_buffer_device": row.kv_buffer_device,
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": extra | _upstream_extra(spec, platform),
    }


def _own_extra(spec: Spec, group: str, nixl_backends: list[str]) -> dict[str, Any]:
    transfer = spec.kv_transfer
    return {
        "mechanism": transfer.mechanism.value,
        "direction": transfer.direction.value,
        "recompute_threshold_tokens": transfer.recompute_threshold_tokens,
        "revision_group": group,
        "backends": nixl_backends,
        "claim": {
            "port": CLAIM_PORT,
            "timeout_milliseconds": transfer.claim.timeout_milliseconds,
            "hold_seconds": transfer.claim.hold_seconds,
            "max_owners_asked": transfer.claim.max_owners_asked,
            "max_claims_per_reader": _MAX_CLAIMS_PER_READER,
            "max_percent_of_blocks": transfer.claim.max_percent_of_blocks,
            "read_timeout_milliseconds": transfer.read_timeout_milliseconds,
            "connect_timeout_seconds": _CONNECT_TIMEOUT_SECONDS,
        },
        "retain": {
            "decoder_blocks_ttl_seconds": transfer.retain.decoder_blocks_ttl_seconds,
            "lease_seconds": transfer.retain.lease_seconds,
            "max_percent_of_blocks": transfer.retain.max_percent_of_blocks,
        },
    }


def _upstream_extra(spec: Spec, platform: Platform) -> dict[str, Any]:
    """vLLM's own keys. With our connector both ways are always open below it: it decides itself who reads (connector/README.md)."""
    transfer = spec.kv_transfer
    both_ways = PLATFORMS[platform].own_connector or transfer.direction is Direction.BIDIRECTIONAL
    return {
        "bidirectional_kv_xfer": both_ways,
        "kv_recompute_threshold": transfer.recompute_threshold_tokens,
        "kv_lease_duration": transfer.retain.lease_seconds,
        "decoder_kv_blocks_ttl": transfer.retain.decoder_blocks_ttl_seconds,
        "enforce_handshake_compat": True,
    }
