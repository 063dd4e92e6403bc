"""A bounded store with a shelf per tenant: when it is full, whoever holds most gives up what it used least recently.

Every operation takes the same time however many entries and tenants there are. A tenant with nothing left takes no room.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")


class Shelves(Generic[_K, _V]):
    def __init__(self, max_entries: int) -> None:
        self._max = max_entries
        self._entries = 0
        # Who put something last comes last; so does, on a shelf, what was put last.
        self._shelves: OrderedDict[str, OrderedDict[_K, _V]] = OrderedDict()
        # Tenants by how many entries they hold. Counts change by one, so the greatest is always known.
        self._by_count: dict[int, OrderedDict[str, None]] = {}
        self._most = 0

    def __len__(self) -> int:
        return self._entries

    def get(self, tenant: str, key: _K) -> _V | None:
        shelf = self._shelves.get(tenant)
        return shelf.get(key) if shelf is not None else None

    def put(self, tenant: str, key: _K, value: _V) -> None:
        shelf = self._shelves.setdefault(tenant, OrderedDict())
        self._shelves.move_to_end(tenant)
        before = len(shelf)
        shelf[key] = value
        shelf.move_to_end(key)
        if len(shelf) > before:
            self._recount(tenant, before, before + 1)
        if self._entries > self._max:
            self._drop(next(iter(self._by_count[self._most])))

    def forget(self, tenant: str, is_old: Callable[[_V], bool]) -> None:
        """What is old of this tenant and of those that have put nothing for longest. Of any other it stays until that is
        one of them. So where all grows old in the same time and every put comes after this, nothing stays twice as long."""
        self._forget_of(tenant, is_old)
        while self._shelves and self._forget_of(next(iter(self._shelves)), is_old):
            pass

    def _forget_of(self, tenant: str, is_old: Callable[[_V], bool]) -> bool:
        """Whether nothing is left."""
        while (shelf := self._shelves.get(tenant)) and is_old(next(iter(shelf.values()))):
            self._drop(tenant)
        return tenant not in self._shelves

    def _drop(self, tenant: str) -> None:
        shelf = self._shelves[tenant]
        shelf.popitem(last=False)
        if not shelf:
            del self._shelves[tenant]
        self._recount(tenant, len(shelf) + 1, len(shelf))

    def _recount(self, tenant: str, before: int, after: int) -> None:
        self._entries += after - before
        if before:
            peers = self._by_count[before]
            del peers[tenant]
            if not peers:
                del self._by_count[before]
        if after:
            self._by_count.setdefault(after, OrderedDict())[tenant] = None
        if after > self._most or self._most not in self._by_count:
            self._most = after
