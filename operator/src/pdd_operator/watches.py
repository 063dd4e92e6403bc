"""Whether the watches still tell what happens: compares what lists show with what watches told. No I/O, no clock of its own.

A child that a list shows in a version that no watch has told, and about which no watch says anything for ``patience_seconds``, means that
its kind's watch is dead, whatever the framework believes. Used from several threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from pdd_operator.api.objects import Manifest


class WatchMonitor:
    """Remembers per watched object what was told last, and since when something untold was seen."""

    def __init__(self, clock: Callable[[], float], patience_seconds: float) -> None:
        self._clock = clock
        self._patience_seconds = patience_seconds
        self._kinds: frozenset[str] = frozenset()
        self._told: dict[str, tuple[float, str]] = {}
        self._untold: dict[str, tuple[float, str]] = {}
        self._gone: dict[str, float] = {}
        self._lock = threading.Lock()

    def expect(self, kinds: Iterable[str]) -> None:
        """These are watched."""
        self._kinds = frozenset(kinds)

    def told(self, uid: str, version: str, *, deleted: bool = False) -> None:
        """A watch said something about an object: its kind's watch lives."""
        with self._lock:
            self._untold.pop(uid, None)
            if deleted:
                self._told.pop(uid, None)
                self._bury(uid)
            else:
                self._told[uid] = (self._clock(), version)

    def listed(self, objects: Iterable[Manifest], read_at: float) -> None:
        """Lists that began at ``read_at`` showed these. What a watch told since then may be newer than they are."""
        now = self._clock()
        with self._lock:
            for found in objects:
                uid, version = found["metadata"]["uid"], found["metadata"]["resourceVersion"]
                if uid in self._gone:
                    continue
                told_at, told_version = self._told.get(uid, (float("-inf"), ""))
                if found["kind"] in self._kinds and told_version != version and told_at < read_at:
                    self._untold.setdefault(uid, (now, found["kind"]))

    def _bury(self, uid: str) -> None:
        """A list that began before the deletion still shows what no watch will ever tell of again. None takes longer than the patience."""
        now = self._clock()
        self._gone = {dead: at for dead, at in self._gone.items() if now - at <= self._patience_seconds}
        self._gone[uid] = now

    def silent_kinds(self) -> tuple[str, ...]:
        """Kinds whose watch did not tell a change for longer than the patience."""
        now = self._clock()
        with self._lock:
            return tuple(sorted({kind for at, kind in self._untold.values() if now - at > self._patience_seconds}))
