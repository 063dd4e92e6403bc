"""Free TCP ports of the loopback interface."""

import random
import socket
from contextlib import ExitStack
from pathlib import Path

_LOWEST = 10_000
_KERNELS_OWN = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int) -> list[int]:
    """`count` different ports that nobody listens on now.

    Below those that the kernel gives to whoever asks for any: while an engine starts again, its ports must not go to another one's sockets.
    All are held until all are known, so none is given twice. Another program may still take one before it is used; the process that
    wanted it then ends early and its log says so. Raises OSError if there are not so many.
    """
    first_of_kernel = int(_KERNELS_OWN.read_text().split()[0])
    candidates = list(range(_LOWEST, max(first_of_kernel, _LOWEST)))
    random.SystemRandom().shuffle(candidates)
    found: list[int] = []
    with ExitStack() as held:
        for port in candidates:
            if len(found) == count:
                break
            one = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
            found.append(port)
    if len(found) < count:
        raise OSError(f"no {count} free ports from {_LOWEST} to {first_of_kernel}")
    return found
