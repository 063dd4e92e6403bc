"""Waiting for what no event announces: another process's state."""

import asyncio
from collections.abc import Awaitable, Callable


async def until(holds: Callable[[], Awaitable[bool]], every_seconds: float, timeout_seconds: float) -> bool:
    """True as soon as `holds()`; False if it does not within `timeout_seconds`. It is asked at least once."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_seconds
    while not await holds():
        if loop.time() > deadline:
            return False
        await asyncio.sleep(every_seconds)
    return True
