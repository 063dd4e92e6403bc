"""Blocks of reads given up: nobody's until every worker says that the transfer has ended."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from pdd_connector.quarantine import PATIENCE_SECONDS, STUCK_SECONDS, Quarantine, StuckReadsError
from pdd_connector.recorder import Recorder


@dataclass
class Block:
    ref_cnt: int = 0


@dataclass
class Pool:
    blocks: list[Any] = field(default_factory=lambda: [Block() for _ in range(10)])

    def get_cached_block(self, block_hash: Any, kv_cache_group_ids: list[int]) -> None:
        raise NotImplementedError

    def touch(self, blocks: Any) -> None:
        for block in blocks:
            block.ref_cnt += 1

    def free_blocks(self, ordered_blocks: Any) -> None:
        for block in ordered_blocks:
            block.ref_cnt -= 1

    @property
    def references(self) -> list[int]:
        return [number for number, block in enumerate(self.blocks) if block.ref_cnt]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_blocks_come_back_when_the_last_rank_has_settled() -> None:
    pool, recorder = Pool(), Recorder()
    kept = Quarantine(pool, recorder, 5, Clock())
    kept.take_report(0, {"r": (3, 4)}, ())
    kept.take_report(1, {"r": (3, 4)}, ())
    assert pool.references == [3, 4]
    kept.take_report(0, {}, ("r",))
    assert pool.references == [3, 4]
    kept.take_report(1, {}, ("r",))
    assert pool.references == []
    assert recorder.take() == {"pdd:blocks_quarantined": 0}


def test_what_was_never_given_up_is_not_freed() -> None:
    pool = Pool()
    kept = Quarantine(pool, Recorder(), 5, Clock())
    kept.take_report(0, {}, ("r",))
    assert [block.ref_cnt for block in pool.blocks] == [0] * 10


def test_an_idle_engine_waits_for_the_end_but_not_for_ever_and_the_blocks_stay() -> None:
    pool, clock = Pool(), Clock()
    kept = Quarantine(pool, Recorder(), 5, clock)
    assert not kept.awaited
    kept.take_report(0, {"r": (3,)}, ())
    assert kept.awaited
    clock.now = PATIENCE_SECONDS
    assert not kept.awaited
    assert pool.references == [3]


def test_an_engine_whose_longest_request_does_not_fit_any_more_ends() -> None:
    """Ten blocks, one of them vLLM's: beside a request of five, four may be stuck."""
    clock = Clock()
    kept = Quarantine(Pool(), Recorder(), 5, clock)
    kept.require_room()
    kept.take_report(0, {"few": (1, 2, 3, 4)}, ())
    clock.now = STUCK_SECONDS
    kept.require_room()
    kept.take_report(0, {"one more": (5,)}, ())
    kept.require_room()  # it may end yet
    clock.now = 2 * STUCK_SECONDS
    with pytest.raises(StuckReadsError, match="5 blocks"):
        kept.require_room()
    kept.take_report(0, {}, ("few",))
    kept.require_room()
