"""Engines of two ranks each: every rank reads its own part, and a claim is good only if all parts are.

The reference computes the same function on one rank: the model has one KV head more than its own, and the same output (`even_heads`).
"""

import asyncio

import aiohttp
import pytest

from pdd_e2e.engines.answers import apart, check_same
from pdd_e2e.engines.dialogues import NEXT_TURNS, after, base, edited, extended, other_conversation
from pdd_e2e.engines.handles import HandlePair
from pdd_e2e.engines.node import Node, all_unheld
from pdd_e2e.engines.prompts import token_ids
from pdd_e2e.engines.sets import (
    CLAIM_KEY,
    EVEN_BYTES_PER_TOKEN,
    HOLD_SECONDS,
    LONE,
    RANKS,
    READ_SECONDS,
    RETAIN_SECONDS,
)
from pdd_e2e.engines.tap import ClaimTap
from pdd_e2e.engines.world import World, claim, connect

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]
BLOCK = 32
READ_BYTES = "vllm:nixl_bytes_transferred_sum"
READS = "vllm:nixl_bytes_transferred_count"
QUARANTINED = "vllm:pdd_blocks_quarantined"
SECOND_RANK = "Worker_TP1"


async def test_the_model_depends_on_its_history_and_not_on_its_ranks(tensor_parallel: World) -> None:
    prompts = [make("Yes, I do.") for make in (extended, other_conversation, edited)]
    one, other, word = [await tensor_parallel.prefill.ask(prompt) for prompt in prompts]
    assert apart(one.tops[0], other.tops[0]) > 0.5
    assert apart(one.tops[0], word.tops[0]) > 0.01
    for answer, prompt in zip((one, other, word), prompts, strict=True):
        check_same(answer, await tensor_parallel.reference.ask(prompt))


class Transfers:
    """What a node's ranks have read over NIXL since this was made, by vLLM's own counters."""

    def __init__(self, node: Node, reads: float, read_bytes: float) -> None:
        self._node = node
        self._before = (reads, read_bytes)

    @classmethod
    async def of(cls, node: Node) -> "Transfers":
        return cls(node, await node.metric(READS), await node.metric(READ_BYTES))

    async def check(self, reads: int, read_bytes: int) -> None:
        """Raises AssertionError unless it was that many reads of that many bytes together."""
        await self._node.wait_metric(READS, self._before[0] + reads)
        seen = (await self._node.metric(READS), await self._node.metric(READ_BYTES))
        assert seen == (self._before[0] + reads, self._before[1] + read_bytes)


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("kind", ["extended", "edited"])
async def test_next_turn(tensor_parallel: World, salt: str, kind: str, streamed: bool) -> None:
    """Both directions, both ranks: what decode holds goes to prefill, what prefill computed to decode."""
    prefill, decode = tensor_parallel.prefill, tensor_parallel.decode
    first = await tensor_parallel.turn(base(), salt, 24, streamed=streamed)
    first.check()
    assert first.of_decode.read > 0
    await tensor_parallel.forget(prefill)
    of_prefill, of_decode = await Transfers.of(prefill), await Transfers.of(decode)
    messages = NEXT_TURNS[kind](first.decode.text)
    second = await tensor_parallel.turn(messages, salt, streamed=streamed)
    second.check()
    for transfers, expected in ((of_prefill, second.of_prefill), (of_decode, second.of_decode)):
        await transfers.check(RANKS if expected.read else 0, expected.read * EVEN_BYTES_PER_TOKEN)
    assert second.of_prefill.read > 0
    third = await tensor_parallel.turn(after(messages, second.decode.text), salt, streamed=streamed)
    third.check()
    await all_unheld(tensor_parallel.nodes, HOLD_SECONDS / 2)  # by the reader's word, not by the timer


async def test_a_read_that_fails_on_one_rank(tensor_parallel: World, salt: str) -> None:
    """The owner's second rank stands still, so only the reader's first rank can read: all is computed, in time, and nothing stays held."""
    reader, owner = tensor_parallel.prefill, tensor_parallel.decode
    prompt = token_ids(8 * BLOCK + 3)
    reference = await tensor_parallel.reference.ask(prompt, 3)
    await owner.ask(prompt, cache_salt=salt)
    transfers = await Transfers.of(reader)
    with owner.frozen_workers(SECOND_RANK):
        async with asyncio.timeout(3 * READ_SECONDS):
            answer = await reader.ask(prompt, 3, cache_salt=salt, **claim(owner))
        quarantined = await reader.metric(QUARANTINED)
    assert (answer.receipt["outcome"], answer.receipt["reason"]) == ("Failed", "Timeout")
    assert answer.receipt["read_bytes"] == 0
    check_same(answer, reference)
    await transfers.check(1, 8 * BLOCK * EVEN_BYTES_PER_TOKEN // RANKS)
    assert quarantined == 8  # the second rank's read may still write into them
    await all_unheld(tensor_parallel.nodes, HOLD_SECONDS / 2)
    await tensor_parallel.forget(reader)
    await connect(reader, [owner.address])
    again = await reader.ask(prompt, 3, cache_salt=salt, **claim(owner))
    assert (again.receipt["outcome"], again.receipt["read_tokens"]) == ("Read", 8 * BLOCK)
    check_same(again, reference)


async def test_engines_of_unequal_ranks_refuse_each_other(
    tensor_parallel: World, session: aiohttp.ClientSession, salt: str
) -> None:
    lone = next(Node(process, session) for process in tensor_parallel.stack.prefills if process.name == LONE)
    pair = tensor_parallel.decode
    prompt = token_ids(5 * BLOCK + 3)
    reference = await tensor_parallel.reference.ask(prompt, 3)
    for number, (reader, owner) in enumerate(((lone, pair), (pair, lone))):
        tenant = f"{salt}-{number}"
        await owner.ask(prompt, cache_salt=tenant)
        transfers = await Transfers.of(reader)
        refused = await reader.count("vllm:pdd_claims_refused_total", reason="Group")
        rejected = await owner.count("vllm:pdd_claims_rejected_total", reason="Group")
        assert await reader.introduce([owner.address]) == []
        answer = await reader.ask(prompt, 3, cache_salt=tenant, **claim(owner))
        assert (answer.receipt["outcome"], answer.receipt["reason"]) == ("Refused", "Group")
        assert (answer.receipt["read_tokens"], answer.receipt["read_bytes"]) == (0, 0)
        check_same(answer, reference)
        assert await reader.count("vllm:pdd_claims_refused_total", reason="Group") == refused + 1
        await owner.ask(prompt)  # an engine tells its numbers with its steps
        # More than one where this took more than the seconds after which a reader greets again.
        assert await owner.count("vllm:pdd_claims_rejected_total", reason="Group") > rejected
        await transfers.check(0, 0)
    await all_unheld([lone, pair])


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_handles(tensor_parallel_retain: HandlePair, salt: str, streamed: bool) -> None:
    """The same with mechanism Retain: by prefill's handle to decode, by decode's back, on both ranks."""
    pair = tensor_parallel_retain
    first = await pair.turn(base(), salt, 24, streamed=streamed)
    first.check_answers()
    assert first.held is not None
    assert first.decode_bytes > 0
    await pair.prefill.wait_unheld()
    await pair.forget(pair.prefill)
    second = await pair.turn(extended(first.decode.text), salt, held=first.held, keep=None, streamed=streamed)
    second.check_answers()
    assert second.prefill_bytes > 0
    await all_unheld([pair.prefill, pair.decode], 2 * RETAIN_SECONDS)
    await pair.check_bytes()


@pytest.mark.ends_engines(1)
async def test_a_rank_that_dies_while_being_read(tensor_parallel: World, salt: str) -> None:
    """The owner's second rank is killed between grant and read; the engine does not outlive it, the reader does."""
    reader, owner = tensor_parallel.prefill, tensor_parallel.decode
    prompt = token_ids(8 * BLOCK + 3)
    await owner.ask(prompt, cache_salt=salt)
    async with ClaimTap(owner.address, CLAIM_KEY) as tap:
        await connect(reader, [tap.address])

        async def die(_grant: object) -> None:
            owner.kill_worker(SECOND_RANK)

        tap.before["grant"] = die
        async with asyncio.timeout(3 * READ_SECONDS):
            answer = await reader.ask(prompt, 3, cache_salt=salt, **claim(tap.address))
    assert answer.receipt["outcome"] == "Failed"
    assert answer.receipt["read_bytes"] == 0
    check_same(answer, await tensor_parallel.reference.ask(prompt, 3))
    await reader.wait_unheld()
    await owner.process.stop()
