"""Ports and paths that objects, scripts and configurations must agree on. Pure."""

from __future__ import annotations

from typing import Final

ENGINE_PORT: Final = 8000
ROUTER_PORT: Final = 8000
SIDE_CHANNEL_PORT: Final = 5600
"""NIXL's handshake; one port per data-parallel rank, of which there is one per pod."""
CLAIM_PORT: Final = 6600

SCRIPTS_PATH: Final = "/pdd/scripts"
CONNECTOR_PATH: Final = "/pdd/connector"
RUN_PATH: Final = "/pdd/run"
HOME_PATH: Final = "/pdd/home"
MODEL_PATH: Final = "/pdd/model"
"""Where a volume with the model is mounted, read-only."""
MODEL_CACHE_PATH: Final = "/pdd/model-cache"
"""Where a model is downloaded to."""
TRANSPORT_FILE: Final = f"{RUN_PATH}/transport"
