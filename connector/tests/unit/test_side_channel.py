"""An engine whose channels cannot listen says so at its start."""

import socket

import pytest

from pdd_connector.claims.params import Address
from pdd_connector.side_channel import Served, SideChannelError, require_free


def side_channel(host: str, port: int) -> Served:
    return Served("the NIXL side channel", Address(host=host, port=port), "`VLLM_NIXL_SIDE_CHANNEL_PORT`")


def claim_channel(port: int) -> Served:
    return Served("the claim channel", Address(host="127.0.0.1", port=port), "`claim.port`")


def test_a_taken_port_is_refused_by_name_and_a_free_one_is_left_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, socket.create_server(("127.0.0.1", 0)) as another:
        port, claim_port = other.getsockname()[1], another.getsockname()[1]
        with pytest.raises(SideChannelError, match=rf"127\.0\.0\.1:{port} .*VLLM_NIXL_SIDE_CHANNEL_PORT"):
            require_free([side_channel("127.0.0.1", port)])
        with pytest.raises(SideChannelError, match=rf"claim channel .*127\.0\.0\.1:{claim_port} .*`claim.port`"):
            require_free([claim_channel(claim_port)])
    for _ in range(2):
        require_free([side_channel("127.0.0.1", port), claim_channel(claim_port)])


def test_two_channels_with_the_same_port_are_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    with pytest.raises(SideChannelError, match="no two channels"):
        require_free([side_channel("127.0.0.1", port), claim_channel(port)])


def test_an_address_of_another_host_is_refused() -> None:
    with pytest.raises(SideChannelError, match="VLLM_NIXL_SIDE_CHANNEL_HOST"):
        require_free([side_channel("192.0.2.1", 5600)])


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])  # noqa: S104  # refused
def test_no_address_at_all_is_refused(host: str) -> None:
    with pytest.raises(SideChannelError, match="address by which other engines reach this host"):
        require_free([side_channel(host, 5600)])
