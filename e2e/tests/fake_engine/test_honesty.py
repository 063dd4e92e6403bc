"""The model of KV is honest: what a request generates comes from the blocks that it uses, so wrong blocks show.

Each test has its control: with the guard taken away, the wrong output appears.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from pdd_e2e.engine_pair import claim_from
from pdd_e2e.fake_engine import blocks, sequence
from pdd_e2e.fake_engine.blocks import Block, BlockPool

IDS = [300 + position % 150 for position in range(70)]


def computed_blocks(pool: BlockPool) -> list[Block]:
    """Blocks of the prefix cache in the order of their ids."""
    return [block for block in pool.blocks if block.hash is not None]


def corrupt(block: Block) -> None:
    block.overwrite(bytes(byte ^ 1 for byte in block.kv))


@pytest.mark.parametrize("which", [0, 1, 2, 3])
async def test_a_corrupted_block_changes_the_output(start: Any, which: int) -> None:
    fake = await start()
    good = await fake.http.complete(IDS, 6)
    warm = await fake.http.complete(IDS, 6)
    assert warm.cached_tokens == 64
    assert warm.token_ids == good.token_ids, "control: an intact cache changes nothing"
    corrupt(computed_blocks(fake.inside.prefix_cache)[which])
    wrong = await fake.http.complete(IDS, 6, logprobs=1)
    assert wrong.cached_tokens == 64
    assert wrong.token_ids != good.token_ids


async def test_swapped_blocks_change_the_output(start: Any) -> None:
    fake = await start()
    good = await fake.http.complete(IDS, 6)
    first, second = computed_blocks(fake.inside.prefix_cache)[:2]
    one, two = bytes(first.kv), bytes(second.kv)
    first.overwrite(two)
    second.overwrite(one)
    assert (await fake.http.complete(IDS, 6)).token_ids != good.token_ids


async def test_a_block_corrupted_at_the_owner_travels(start: Any, introduce: Any) -> None:
    p, d = await start("p"), await start("d", role="Decode")
    await introduce(p, d)
    good = await d.http.complete(IDS, 6)
    corrupt(computed_blocks(d.inside.prefix_cache)[1])
    wrong = await p.http.complete(IDS, 6, **claim_from(d.http))
    assert wrong.receipt["read_tokens"] == 64
    assert wrong.token_ids != good.token_ids


async def test_one_token_of_difference_anywhere_changes_the_output(start: Any) -> None:
    fake = await start()
    seen = set()
    for place in (0, 15, 16, 40, 69):
        ids = [*IDS[:place], 499, *IDS[place + 1 :]]
        seen.add(tuple((await fake.http.complete(ids, 6)).token_ids))
    assert len(seen) == 5


async def test_salt_isolates_and_without_it_tenants_share(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = await start()
    await fake.http.complete(IDS, cache_salt="a")
    assert (await fake.http.complete(IDS, cache_salt="b")).cached_tokens == 0
    # Control: a hash that leaves the salt out.
    salted = blocks.chained_hash

    def unsalted(parent: bytes | None, tokens: Sequence[int], salt: str | None) -> bytes:
        return salted(parent, tokens, None)

    monkeypatch.setattr(sequence, "chained_hash", unsalted)
    await fake.http.complete(IDS, cache_salt="a")
    assert (await fake.http.complete(IDS, cache_salt="b")).cached_tokens == 64


async def test_only_computed_blocks_are_granted_and_others_would_be_wrong(
    start: Any, introduce: Any, monkeypatch: pytest.MonkeyPatch, in_prefill: Callable[..., Any]
) -> None:
    p, d = await start("p", seconds_per_prompt_token=0.002), await start("d", role="Decode")
    await introduce(p, d)
    async with in_prefill(p, IDS):
        early = await d.http.complete(IDS, 4, **claim_from(p.http))
        assert early.receipt["outcome"] == "Empty"
    right = early.token_ids
    # Control: an owner that grants what is only scheduled.
    granted = BlockPool.longest_run

    def careless(self: BlockPool, hashes: Sequence[bytes], *, computed_only: bool = False) -> list[Block]:
        return granted(self, hashes)

    monkeypatch.setattr(BlockPool, "longest_run", careless)
    assert p.inside.prefix_cache.reset()
    assert d.inside.prefix_cache.reset()
    async with in_prefill(p, IDS):
        wrong = await d.http.complete(IDS, 4, **claim_from(p.http))
        assert wrong.receipt["outcome"] == "Read"
    assert wrong.token_ids != right
