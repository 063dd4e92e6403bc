"""A condition to wait on inside one event loop: wait until something holds, woken whenever anything changed."""

import asyncio
from collections.abc import Callable


class Pulse:
    """`notify` after every change; waiters look again."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        """Wake everyone who waits."""
        self._event.set()
        self._event = asyncio.Event()

    async def wait_until(self, holds: Callable[[], bool]) -> None:
        """Return once `holds()` is true; no other task runs between that look and the return."""
        while not holds():
            await self._event.wait()
