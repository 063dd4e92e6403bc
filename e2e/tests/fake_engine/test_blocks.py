"""The block pool: references, eviction, hashes. A model checks every step of random use."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdd_e2e.fake_engine.blocks import Block, BlockPool, NoRoomError, chained_hash


def test_hash_covers_everything_before_and_the_salt_of_the_first() -> None:
    first = chained_hash(None, [1, 2], None)
    assert chained_hash(None, [1, 2], "s") != first
    assert chained_hash(None, [1, 3], None) != first
    assert chained_hash(None, [12], None) != chained_hash(None, [1, 2], None)
    second = chained_hash(first, [3, 4], None)
    assert second != chained_hash(None, [3, 4], None)
    assert second == chained_hash(first, [3, 4], "s"), "the salt enters the first block alone"
    assert second != chained_hash(chained_hash(None, [1, 2], "s"), [3, 4], "s"), "and the others through the chain"


def test_least_recently_used_is_evicted_and_the_tail_first() -> None:
    pool = BlockPool(4)
    old, new = pool.allocate(2), pool.allocate(2)
    for index, block in enumerate([*old, *new]):
        pool.cache(block, bytes([index]))
    pool.release(old)
    pool.release(new)
    assert pool.allocate(1) == [old[1]]
    assert pool.cached_hashes == {b"\0", b"\2", b"\3"}
    pool.touch([old[0]])
    pool.release([old[0]])
    pool.allocate(1)
    assert pool.cached_hashes == {b"\0", b"\2"}, "touching made the head of the old chain young again"


def test_two_blocks_of_one_hash_live_side_by_side() -> None:
    pool = BlockPool(3)
    first, second = pool.allocate(2)
    pool.cache(first, b"h")
    pool.cache(second, b"h")
    pool.release([first])
    pool.allocate(2)
    assert pool.find(b"h") is second


def test_reset_only_when_nothing_is_held() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    pool.cache(blocks[0], b"h")
    assert not pool.reset()
    pool.release(blocks)
    assert pool.reset()
    assert pool.cached_hashes == frozenset()


def test_nothing_is_cached_when_caching_is_off() -> None:
    pool = BlockPool(2, caching=False)
    pool.cache(pool.allocate(1)[0], b"h")
    assert pool.find(b"h") is None


def test_run_stops_at_what_is_not_computed() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(3)
    for index, block in enumerate(blocks):
        pool.cache(block, bytes([index]))
        block.computed = index != 1
    hashes = [bytes([index]) for index in range(3)]
    assert pool.longest_run(hashes, computed_only=True) == blocks[:1]
    assert pool.longest_run(hashes) == blocks


@settings(max_examples=60)
@given(st.data())
def test_random_use_keeps_the_books(data: st.DataObject) -> None:
    size = 6
    pool = BlockPool(size)
    held: list[list[Block]] = []
    number = 0
    for _ in range(data.draw(st.integers(1, 40))):
        action = data.draw(st.sampled_from(["allocate", "touch", "release"]))
        if action == "allocate":
            count = data.draw(st.integers(0, size))
            if count > pool.free:
                with pytest.raises(NoRoomError):
                    pool.allocate(count)
                continue
            blocks = pool.allocate(count)
            for block in blocks:
                pool.cache(block, number.to_bytes(2, "big"))
                number += 1
            held.append(blocks)
        elif action == "touch" and pool.cached_hashes:
            run = pool.longest_run([data.draw(st.sampled_from(sorted(pool.cached_hashes)))])
            assert len(run) == 1
            pool.touch(run)
            held.append(run)
        elif held:
            pool.release(held.pop(data.draw(st.integers(0, len(held) - 1))))
        references = [sum(blocks.count(block) for blocks in held) for block in pool.blocks]
        assert [block.references for block in pool.blocks] == references
        assert pool.held == sum(count > 0 for count in references)
        assert all(block.hash in pool.cached_hashes for block in pool.blocks if block.hash is not None)
