"""The value of `--kv-transfer-config` for either side, built from one `PairSettings`.

Pure. Writes upstream's keys beside ours wherever the base class reads its own, so that both always say the same.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from pdd_connector.kv_transfer_config.facts import Platform
from pdd_connector.settings import ConnectorSettings, settings_as_dict

CONNECTOR_CLASS: Final = "PddConnector"
CONNECTOR_MODULE: Final = "pdd_connector.connector"


class Role(StrEnum):
    """Which side of the pair an engine is."""

    PREFILL = "Prefill"
    DECODE = "Decode"


KV_ROLES: Final = {Role.PREFILL: "kv_producer", Role.DECODE: "kv_consumer"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PairSettings:
    """All that a prefill and a decode engine share."""

    settings: ConnectorSettings = field(default_factory=ConnectorSettings)
    platform: Platform = Platform.CUDA


def upstream_extra(settings: ConnectorSettings) -> dict[str, Any]:
    """Upstream's own keys that follow from the settings.

    `bidirectional_kv_xfer` is on in every direction and on both sides: the base class reads a part of a prompt only
    then, and checks only then whether what it is about to read has expired. Who keeps and who reads is decided in our
    connector.
    """
    return {
        "bidirectional_kv_xfer": True,
        "kv_recompute_threshold": settings.recompute_threshold_tokens,
        "kv_lease_duration": settings.retain.lease_seconds,
        "decoder_kv_blocks_ttl": settings.retain.decoder_blocks_ttl_seconds,
        "enforce_handshake_compat": True,
    }


def build_kv_transfer_config(pair: PairSettings, role: Role, *, claim_port: int | None = None) -> dict[str, Any]:
    """`--kv-transfer-config` of one engine, as JSON types.

    `claim_port` is for engines that share an address, where the two sides cannot listen on the same port.
    `engine_id` is never written: a peer recognises a restarted engine by its new one.
    """
    extra = settings_as_dict(pair.settings) | upstream_extra(pair.settings)
    if claim_port is not None:
        extra["claim"]["port"] = claim_port
    return {
        "kv_connector": CONNECTOR_CLASS,
        "kv_connector_module_path": CONNECTOR_MODULE,
        "kv_role": KV_ROLES[role],
        "kv_buffer_device": pair.platform.value,
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": extra,
    }
