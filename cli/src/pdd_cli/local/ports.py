"""Free TCP ports of the loopback interface."""

import socket
from contextlib import ExitStack


def free_ports(count: int) -> list[int]:
    """`count` different ports that nobody listens on now.

    All are held until all are known, so none is given twice. Another program may still take one before it is used; the process that
    wanted it then ends early and its log says so.
    """
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
