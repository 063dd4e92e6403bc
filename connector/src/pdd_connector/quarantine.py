"""Our own blocks that a read given up may still write into: referenced, so that nobody gets them, until every worker says the transfer has ended.

On the scheduler's side of either mechanism. A transfer that never ends keeps its blocks for good: that costs memory and is shown as a gauge;
giving them to somebody else would cost correctness. An engine that has too few left for its longest request ends, so that another takes its place:
such a request, and all behind it, would wait for ever.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pdd_connector.owner import BlockPool
from pdd_connector.recorder import Recorder

PATIENCE_SECONDS = 30.0  # for so long an engine without other work keeps stepping to see a transfer's end
STUCK_SECONDS = 60.0  # a transfer that has not ended by then is not expected to


class StuckReadsError(RuntimeError):
    """Reads that do not end hold so much of the cache that the engine cannot serve what it must."""


@dataclass
class _Entry:
    blocks: list[Any]
    since: float
    ranks: set[int] = field(default_factory=set)


class Quarantine:
    """Blocks by the request that had them. `longest`: blocks of a request of the greatest length."""

    def __init__(
        self, pool: BlockPool, recorder: Recorder, longest: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._pool = pool
        self._spare = len(pool.blocks) - 1 - longest  # one is vLLM's null block
        self._recorder = recorder
        self._clock = clock
        self._entries: dict[str, _Entry] = {}

    def take_report(self, rank: int, unsettled: Mapping[str, Sequence[int]], settled: Sequence[str]) -> None:
        """One worker's news: reads given up, with the ids of the blocks they write, and such reads that have ended."""
        for request_id, block_ids in unsettled.items():
            entry = self._entries.get(request_id)
            if entry is None:
                entry = self._entries[request_id] = _Entry([self._pool.blocks[b] for b in block_ids], self._clock())
                self._pool.touch(entry.blocks)
            entry.ranks.add(rank)
        for request_id in settled:
            entry = self._entries.get(request_id)
            if entry is None:
                continue
            entry.ranks.discard(rank)
            if not entry.ranks:
                del self._entries[request_id]
                self._pool.free_blocks(entry.blocks)
        if unsettled or settled:
            self._recorder.quarantined(sum(len(entry.blocks) for entry in self._entries.values()))

    def require_room(self) -> None:
        """Raises StuckReadsError where a request of the greatest length does not fit beside reads that are stuck."""
        if not self._entries:
            return
        now = self._clock()
        stuck = sum(len(entry.blocks) for entry in self._entries.values() if now - entry.since >= STUCK_SECONDS)
        if stuck and stuck > self._spare:
            raise StuckReadsError(
                f"{stuck} blocks are held by reads that do not end; the longest request does not fit any more"
            )

    @property
    def awaited(self) -> bool:
        """Whether an engine without other work should step to learn of an end."""
        now = self._clock()
        return any(now - entry.since < PATIENCE_SECONDS for entry in self._entries.values())
