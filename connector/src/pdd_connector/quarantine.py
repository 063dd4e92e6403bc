"""Our own blocks that a read given up may still write into: referenced, so that nobody gets them, until every worker says the transfer has ended.

On the scheduler's side of either mechanism. A transfer that never ends keeps its blocks for good: that costs memory and is shown as a gauge;
giving them to somebody else would cost correctness.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pdd_connector.owner import BlockPool
from pdd_connector.recorder import Recorder

PATIENCE_SECONDS = 30.0  # for so long an engine without other work keeps stepping to see a transfer's end


@dataclass
class _Entry:
    blocks: list[Any]
    since: float
    ranks: set[int] = field(default_factory=set)


class Quarantine:
    """Blocks by the request that had them."""

    def __init__(self, pool: BlockPool, recorder: Recorder, clock: Callable[[], float] = time.monotonic) -> None:
        self._pool = pool
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

    @property
    def awaited(self) -> bool:
        """Whether an engine without other work should step to learn of an end."""
        now = self._clock()
        return any(now - entry.since < PATIENCE_SECONDS for entry in self._entries.values())
