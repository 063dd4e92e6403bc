"""An engine whose side channel cannot listen says so at its start."""

import socket

import pytest

from pdd_connector.claims.params import Address
from pdd_connector.side_channel import SideChannelError, require_free


def test_a_taken_port_is_refused_by_name_and_a_free_one_is_left_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(SideChannelError, match=rf"127\.0\.0\.1:{port} .*VLLM_NIXL_SIDE_CHANNEL_PORT"):
            require_free(Address(host="127.0.0.1", port=port))
    for _ in range(2):
        require_free(Address(host="127.0.0.1", port=port))


def test_an_address_of_another_host_is_refused() -> None:
    with pytest.raises(SideChannelError, match="VLLM_NIXL_SIDE_CHANNEL_HOST"):
        require_free(Address(host="192.0.2.1", port=5600))
