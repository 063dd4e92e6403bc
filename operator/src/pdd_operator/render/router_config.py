"""router.yaml: what of a PDDeployment the router is told. Pure.

The router owns the schema (``pdd_router.config``); a test loads every rendered file through it.
"""

from __future__ import annotations

from typing import Any, Final

import yaml

from pdd_operator.api.v1alpha1 import PDDeployment
from pdd_operator.render.ports import CLAIM_PORT, ENGINE_PORT, ROUTER_PORT

CONFIG_PATH: Final = "/pdd/config"
CONFIG_FILE: Final = "router.yaml"
SALT_PATH: Final = "/pdd/salt"
SALT_KEY: Final = "salt"
KEYS_PATH: Final = "/pdd/keys"
KEYS_KEY: Final = "keys.yaml"
READY_DELAY_SECONDS: Final = 10
"""Between losing readiness and closing the socket: until every node's load balancing has noticed."""


def grace_seconds(deployment: PDDeployment) -> int:
    """A request in flight may take as long as any: none is cut by a roll-out."""
    return deployment.spec.router.limits.request_timeout_seconds


def router_config(deployment: PDDeployment) -> dict[str, Any]:
    spec, meta = deployment.spec, deployment.metadata
    config: dict[str, Any] = {
        "listen": {"host": "0.0.0.0", "port": ROUTER_PORT},  # noqa: S104 - the pod's own address
        "discovery": {
            "kubernetes": {
                "namespace": meta.namespace,
                "deployment": meta.name,
                "enginePort": ENGINE_PORT,
                "claimPort": CLAIM_PORT,
            }
        },
        "mechanism": spec.kv_transfer.mechanism.value,
        "direction": spec.kv_transfer.direction.value,
        "recomputeThresholdTokens": spec.kv_transfer.recompute_threshold_tokens,
        "claim": {"maxOwnersAsked": spec.kv_transfer.claim.max_owners_asked},
        "retain": {"decoderBlocksTTLSeconds": spec.kv_transfer.retain.decoder_blocks_ttl_seconds},
        "conversationTTLSeconds": spec.router.conversation_ttl_seconds,
        "onPrefillFailure": spec.router.on_prefill_failure.value,
        "runOnDecodeBelowTokens": spec.router.run_on_decode_below_tokens,
        "tenancy": {
            "cacheIsolation": spec.tenancy.cache_isolation.value,
            "saltSecretFile": f"{SALT_PATH}/{SALT_KEY}",
        },
        "limits": {
            "maxBodyBytes": spec.router.limits.max_body_bytes,
            "maxConcurrentRequests": spec.router.limits.max_concurrent_requests,
            "requestTimeoutSeconds": spec.router.limits.request_timeout_seconds,
        },
        "shutdown": {"readyDelaySeconds": READY_DELAY_SECONDS, "graceSeconds": grace_seconds(deployment)},
        "logLevel": spec.router.log_level.value,
    }
    if spec.router.authentication.api_keys_secret_name is not None:
        config["authentication"] = {"apiKeysFile": f"{KEYS_PATH}/{KEYS_KEY}"}
    return config


def router_yaml(deployment: PDDeployment) -> str:
    return yaml.safe_dump(router_config(deployment), sort_keys=False)
