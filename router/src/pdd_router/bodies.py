"""How much of requests may be in memory at once, in all and of one tenant: a body is held from its first byte to its answer's end.
When it has been parsed it counts as what its object takes, if that is more.

A place inside (``admission``) is asked for only when the body is there and understood, so places do not bound this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pdd_router.errors import QueueFullError
from pdd_router.tenancy import most_of

_LEAST_BYTES = 128 << 20
_LARGEST = 4
_RETRY_AFTER_SECONDS = 1


class Bodies:
    """128 MiB, or four of the largest body if that is more; three quarters of it for one tenant where there are several."""

    def __init__(self, max_body_bytes: int) -> None:
        self._max = max(_LEAST_BYTES, _LARGEST * max_body_bytes)
        self._of: dict[str, int] = {}
        self.held = 0

    @contextmanager
    def held_for(self, tenant: str) -> Iterator[Callable[[int], None]]:
        """Gives what counts so many bytes more, which raises QueueFullError where there is no room for them."""
        mine = 0

        def more(size: int) -> None:
            nonlocal mine
            of_tenant = self._of.get(tenant, 0) + size
            if self.held + size > self._max or of_tenant > most_of(self._max, tenant):
                raise QueueFullError(
                    "Requests that are being answered are too large together",
                    code="too_many_bytes",
                    retry_after_seconds=_RETRY_AFTER_SECONDS,
                )
            mine += size
            self.held += size
            self._of[tenant] = of_tenant

        try:
            yield more
        finally:
            self.held -= mine
            if mine:
                self._of[tenant] -= mine
                if not self._of[tenant]:
                    del self._of[tenant]
