"""The `--kv-transfer-config` of each engine: asked of the connector's own builder in the engine environment, never made up here.

The exception is the stock connector, the control of the tests, of which our builder knows nothing.
"""

import json
import os
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from pdd_cli.local.engines import Role
from pdd_cli.local.processes import output_of

_BUILDER = "pdd_connector.kv_transfer_config"
_KV_ROLES = {Role.PREFILL: "kv_producer", Role.DECODE: "kv_consumer"}


class Connector(StrEnum):
    PDD = "pdd"
    STOCK = "stock"  # vLLM's own NixlConnector


async def build_config(python: Path, role: Role, settings: Mapping[str, Any], claim_port: int, folder: Path) -> str:
    """JSON for one side of our connector. `settings` as the connector's `parse_settings` reads them.

    Raises StartError with the builder's complaint if it refuses them. Writes the settings into `folder` to hand them over.
    """
    file = folder / f"connector-{role}-{claim_port}.json"
    file.write_text(json.dumps(settings))
    argv: tuple[str, ...] = (str(python), "-m", _BUILDER, "--role", str(role), "--platform", "cpu")
    argv += ("--settings", str(file), "--claim-port", str(claim_port))
    return json.dumps(json.loads(await output_of(argv, os.environ, timeout_seconds=60)), separators=(",", ":"))


def stock_config(role: Role, extra: Mapping[str, Any]) -> str:
    """JSON for the stock connector; `extra` is its `kv_connector_extra_config`."""
    config = {
        "kv_connector": "NixlConnector",
        "kv_role": _KV_ROLES[role],
        "kv_buffer_device": "cpu",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"backends": ["UCX"], "bidirectional_kv_xfer": True, **extra},
    }
    return json.dumps(config, separators=(",", ":"))
