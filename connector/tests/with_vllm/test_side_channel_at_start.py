"""The connector of an engine whose side channel's port is taken refuses to be made."""

import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import NixlBaseConnector

from pdd_connector import connector
from pdd_connector.claims.params import Address
from pdd_connector.kv_transfer_config.check import LOADED_KEYS
from pdd_connector.settings import ConnectorSettings, Mechanism
from pdd_connector.side_channel import SideChannelError


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


@pytest.mark.parametrize("mechanism", Mechanism)
def test_a_taken_port_ends_the_start(mechanism: Mechanism, taken_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def scheduler(*_arguments: Any) -> Any:
        claims = Address(host="127.0.0.1", port=taken_port + 1)
        return SimpleNamespace(side_channel_host="127.0.0.1", side_channel_port=taken_port, claim_address=claims)

    def base_init(self: Any, *_arguments: Any) -> None:
        self.engine_id = "e"

    monkeypatch.setattr(NixlBaseConnector, "__init__", base_init)
    monkeypatch.setattr(connector, "ClaimScheduler", scheduler)
    monkeypatch.setattr(connector, "RetainScheduler", scheduler)
    monkeypatch.setattr(connector, "load_settings", lambda _extra: ConnectorSettings(mechanism=mechanism))
    monkeypatch.setattr(connector.engine_hooks, "install", lambda: None)
    monkeypatch.setattr(connector, "nap_instead_of_yielding", lambda: None)
    config: Any = SimpleNamespace(kv_transfer_config=SimpleNamespace(**dict.fromkeys(LOADED_KEYS)))
    with pytest.raises(SideChannelError, match=f"127.0.0.1:{taken_port}"):
        connector.PddConnector(config, KVConnectorRole.SCHEDULER, SimpleNamespace())
