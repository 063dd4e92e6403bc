"""Whether the NIXL side channel can be served where it is configured: asked at the engine's start, because upstream's listener does not tell.

It binds on a thread of its own. Where that fails the engine's start waits for it for ever, with a traceback among its log as the only sign.
"""

from __future__ import annotations

import zmq

from pdd_connector.channel import endpoint
from pdd_connector.claims.params import Address


class SideChannelError(RuntimeError):
    """The side channel cannot be served; the message says where and why."""


def require_free(address: Address) -> None:
    """Returns if the address can be bound now. Raises SideChannelError if it cannot."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        context.socket(zmq.ROUTER).bind(endpoint(address))
    except zmq.ZMQError as error:
        raise SideChannelError(
            f"the NIXL side channel cannot listen on {address.host}:{address.port} ({error.strerror}): "
            "`VLLM_NIXL_SIDE_CHANNEL_HOST` must be an address of this host, `VLLM_NIXL_SIDE_CHANNEL_PORT` a port that nobody else has taken"
        ) from error
    finally:
        context.destroy(linger=0)
