"""Those that wait until a decode engine is not full any more, in the order in which they came.

Each place that becomes free lets one of them decide again, not all: deciding takes no place yet. Who cannot use it (it
may want another model), or is gone by then, lets the next one try. Must not know engines: only who waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Ticket:
    def __init__(self, waiting: Waiting) -> None:
        self._waiting = waiting
        self.called = asyncio.Event()

    async def call(self) -> None:
        """Until it is called. Asking again says that the last call was of no use."""
        if self.called.is_set():
            self.called.clear()
            self._waiting.call_next(self)
        await self.called.wait()


class Waiting:
    def __init__(self) -> None:
        self._tickets: list[Ticket] = []

    @contextmanager
    def ticket(self) -> Iterator[Ticket]:
        """Leaving it by an exception gives a call on."""
        ticket = Ticket(self)
        self._tickets.append(ticket)
        try:
            yield ticket
        except BaseException:
            if ticket.called.is_set():
                self.call_next(ticket)
            raise
        finally:
            self._tickets.remove(ticket)

    def call_next(self, after: Ticket | None = None) -> None:
        behind = self._tickets[self._tickets.index(after) + 1 :] if after is not None else self._tickets
        for ticket in behind:
            if not ticket.called.is_set():
                ticket.called.set()
                return

    def call_all(self) -> None:
        for ticket in self._tickets:
            ticket.called.set()
