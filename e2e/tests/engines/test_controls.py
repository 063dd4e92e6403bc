"""The suite must be able to fail: the same cases on vLLM's own connector, and on ours with its guards taken out."""

import pytest

from pdd_e2e.engines.answers import TOLERANCE, apart, check_same
from pdd_e2e.engines.cases import asked_while_computing
from pdd_e2e.engines.dialogues import NEXT_TURNS, base
from pdd_e2e.engines.handles import HandlePair
from pdd_e2e.engines.held import BLOCK
from pdd_e2e.engines.prompts import token_ids
from pdd_e2e.engines.sets import EVEN_BYTES_PER_TOKEN
from pdd_e2e.engines.world import World, claim

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]


async def test_stock_is_right_where_history_is_extended(stock_pair: HandlePair, salt: str) -> None:
    """Token for token, which a chat rarely is. So what the next test sees is the connector's fault and not the suite's."""
    prompt = token_ids(150)
    first = await stock_pair.turn(prompt, salt, 40, keep=None)
    first.check_answers()
    await stock_pair.prefill.forget()
    before = await stock_pair.read_so_far(stock_pair.prefill)
    longer = [*prompt, *first.decode.tokens, *token_ids(20)]
    second, _ = await stock_pair.prefill_leg(longer, salt, first.held)
    check_same(second, await stock_pair.reference.ask(longer))
    assert await stock_pair.read_so_far(stock_pair.prefill) > before


@pytest.mark.parametrize(
    "kind",
    ["reasoning stripped", "edited", "removed", "inserted", "other system prompt", "cut short", "other conversation"],
)
async def test_stock_is_wrong_where_history_is_not(stock_pair: HandlePair, salt: str, kind: str) -> None:
    first = await stock_pair.turn(base(), salt, 40, keep=None)
    first.check_answers()
    await stock_pair.prefill.forget()
    messages = NEXT_TURNS[kind](first.decode.text)
    second, _ = await stock_pair.prefill_leg(messages, salt, first.held)
    reference = await stock_pair.reference.ask(messages)
    with pytest.raises(AssertionError, match="not as computed afresh"):
        check_same(second, reference)
    assert apart(second.tops[0], reference.tops[0]) > 100 * TOLERANCE


async def test_stock_reads_for_another_tenant(stock_pair: HandlePair, salt: str) -> None:
    first = await stock_pair.turn(base(), salt, keep=None)
    await stock_pair.prefill.forget()
    before = await stock_pair.read_so_far(stock_pair.prefill)
    await stock_pair.prefill_leg(base(), f"not-{salt}", first.held)
    await stock_pair.prefill.wait_metric("vllm:nixl_bytes_transferred_sum", before + 1)


async def test_without_the_in_flight_guard_unfinished_blocks_are_read(unguarded: World, salt: str) -> None:
    answer, prompt = await asked_while_computing(unguarded.prefill, unguarded.decode, salt)
    assert answer.receipt["read_tokens"] > 0
    with pytest.raises(AssertionError):
        check_same(answer, await unguarded.reference.ask(prompt, 3))


@pytest.mark.parametrize("kind", ["edited", "removed", "inserted", "other conversation"])
async def test_without_the_hashes_another_history_is_read(unguarded: World, salt: str, kind: str) -> None:
    first = await unguarded.turn(base(), salt, 24)
    first.check_answers()
    await unguarded.forget(unguarded.prefill)
    second = await unguarded.turn(NEXT_TURNS[kind](first.decode.text), salt)
    with pytest.raises(AssertionError, match="not as computed afresh"):
        second.check()


async def test_without_the_salt_another_tenant_reads(unguarded: World, salt: str) -> None:
    await unguarded.turn(base(), salt)
    await unguarded.forget(unguarded.prefill)
    answer = await unguarded.prefill.ask(base(), cache_salt=f"not-{salt}", **claim(unguarded.decode))
    assert answer.receipt["read_bytes"] > 0


async def test_a_rank_that_reads_the_wrong_blocks_is_seen(one_rank: World, salt: str) -> None:
    prompt = token_ids(8 * BLOCK + 3)
    reference = await one_rank.reference.ask(prompt)
    check_same(await one_rank.decode.ask(prompt, cache_salt=salt), reference)
    answer = await one_rank.prefill.ask(prompt, cache_salt=salt, **claim(one_rank.decode))
    assert answer.receipt["read_bytes"] == 8 * BLOCK * EVEN_BYTES_PER_TOKEN
    with pytest.raises(AssertionError, match="not as computed afresh"):
        check_same(answer, reference)
