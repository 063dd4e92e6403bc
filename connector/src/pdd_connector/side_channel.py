"""Whether an engine's channels can be served where they are configured: asked at its start, because upstream's listener does not tell.

It binds on a thread of its own. Where that fails the engine's start waits for it for ever, with a traceback among its log as the only sign.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

import zmq

from pdd_connector.channel import endpoint
from pdd_connector.claims.params import Address


class SideChannelError(RuntimeError):
    """A channel cannot be served; the message says where and why."""


@dataclass(frozen=True)
class Served:
    """An address that an engine is to listen on. `setting`: what its port comes from."""

    what: str
    address: Address
    setting: str


def require_free(served: Sequence[Served]) -> None:
    """Returns if all can be bound now, side by side. Raises SideChannelError if one cannot, or is no address that others can call."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    bound: list[zmq.Socket[bytes]] = []
    try:
        for item in served:
            if _is_unspecified(item.address.host):
                raise SideChannelError(
                    "`VLLM_NIXL_SIDE_CHANNEL_HOST` must be the address by which other engines reach this host, "
                    f"not {item.address.host}"
                )
            bound.append(_bind(context, item))  # kept, or the port would be free again for the next
    finally:
        context.destroy(linger=0)


def _bind(context: zmq.Context[zmq.Socket[bytes]], item: Served) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.ROUTER)
    try:
        socket.bind(endpoint(item.address))
    except zmq.ZMQError as error:
        raise SideChannelError(
            f"{item.what} cannot listen on {item.address.host}:{item.address.port} ({error.strerror}): "
            f"`VLLM_NIXL_SIDE_CHANNEL_HOST` must be an address of this host, {item.setting} a port that nobody else has taken, "
            "and no two channels may have the same"
        ) from error
    return socket


def _is_unspecified(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
