"""An owner asked at the worst moment: while it computes, receives, evicts, preempts or aborts the very blocks it is asked for.

Whatever it grants then must be finished, and whatever the reader makes of it must be the reference's answer. Several moments are tried each time; which
of them hits what depends on the machine, that every answer is right does not.
"""

import asyncio
import random

import pytest

from pdd_e2e.engines.answers import Answer, Json, check_same
from pdd_e2e.engines.cases import STEP_TOKENS, asked_while_computing
from pdd_e2e.engines.node import Node
from pdd_e2e.engines.prompts import token_ids
from pdd_e2e.engines.sets import CLAIM_KEY
from pdd_e2e.engines.tap import ClaimTap
from pdd_e2e.engines.world import World, claim, connect

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]
BLOCK = 32


async def test_an_owner_that_is_computing_them_grants_nothing(claims: World, salt: str) -> None:
    answer, prompt = await asked_while_computing(claims.prefill, claims.decode, salt)
    check_same(answer, await claims.reference.ask(prompt, 3))
    assert (answer.receipt["outcome"], answer.receipt["read_tokens"]) == ("Empty", 0)
    await claims.forget(claims.prefill)
    again = await claims.prefill.ask(prompt, 3, cache_salt=salt, **claim(claims.decode))
    check_same(again, await claims.reference.ask(prompt, 3))
    assert (again.receipt["outcome"], again.receipt["read_tokens"]) == ("Read", 3 * STEP_TOKENS)


async def test_owner_and_readers_are_asked_the_same_at_once(claims: World, salt: str) -> None:
    owner, (one, two) = claims.decode, claims.prefills
    for delay in (0.0, 0.03, 0.1, 0.2):
        prompt = token_ids(3 * STEP_TOKENS + 7)

        async def late(node: Node, seconds: float, prompt: list[int] = prompt) -> Answer:
            await asyncio.sleep(seconds)
            return await node.ask(prompt, 3, cache_salt=salt, **claim(owner))

        answers = await asyncio.gather(owner.ask(prompt, 3, cache_salt=salt), late(one, delay), late(two, delay * 1.5))
        reference = await claims.reference.ask(prompt, 3)
        for answer in answers:
            check_same(answer, reference)


async def test_an_owner_that_is_receiving_them_grants_nothing(claims: World, salt: str) -> None:
    first, reader = claims.prefills[1], claims.prefill
    prompt = token_ids(6 * BLOCK + 3)
    reference = await claims.reference.ask(prompt, 3)
    await first.ask(prompt, cache_salt=salt)
    async with ClaimTap(first.address, CLAIM_KEY) as tap:
        await connect(claims.decode, [tap.address])
        granted = asyncio.Event()

        async def stop_the_first(_grant: Json) -> None:
            first.freeze()  # its blocks are granted, and do not come
            granted.set()

        tap.before["grant"] = stop_the_first
        try:
            receiving = asyncio.ensure_future(claims.decode.ask(prompt, 3, cache_salt=salt, **claim(tap.address)))
            await granted.wait()
            meanwhile = await reader.ask(prompt, 3, cache_salt=salt, **claim(claims.decode))
        finally:
            first.thaw()
        received = await receiving
    check_same(meanwhile, reference)
    check_same(received, reference)
    assert received.receipt["outcome"] in ("Read", "Failed")  # Failed: the machine was too slow for the read's limit
    assert (meanwhile.receipt["outcome"], meanwhile.receipt["read_tokens"]) == ("Empty", 0)
    await claims.forget(reader)
    again = await reader.ask(prompt, 3, cache_salt=salt, **claim(claims.decode))
    check_same(again, reference)
    assert again.receipt["read_tokens"] == 6 * BLOCK


async def test_an_owner_that_evicts_while_it_is_asked(claims: World, salt: str) -> None:
    owner, reader = claims.decode, claims.prefill
    prompt = token_ids(12 * BLOCK + 5)
    reference = await claims.reference.ask(prompt, 2)
    await owner.ask(prompt, cache_salt=salt)
    flood = asyncio.ensure_future(_flood(owner, f"flood-{salt}", rounds=4))
    reads = []
    while not flood.done():
        answer = await reader.ask(prompt, 2, cache_salt=salt, **claim(owner))
        check_same(answer, reference)
        reads.append(answer.receipt["read_tokens"])
        await claims.forget(reader)
    await flood
    await _flood(owner, f"last-{salt}", rounds=1)
    last = await reader.ask(prompt, 2, cache_salt=salt, **claim(owner))
    check_same(last, reference)
    assert reads[0] > 0
    assert last.receipt["read_tokens"] < 12 * BLOCK, "nothing was evicted: this test shows nothing"


async def _flood(node: Node, salt: str, rounds: int) -> None:
    """Each round needs the whole cache at once. One after the other would not: whoever asks keeps what it is lent from being old."""
    for number in range(rounds):
        await asyncio.gather(*(node.ask(token_ids(11 * BLOCK), 24, cache_salt=f"{salt}-{number}") for _ in range(4)))


async def test_an_owner_that_preempts_while_it_is_asked(claims: World, salt: str) -> None:
    owner = claims.decode
    before = await owner.metric("vllm:num_preemptions_total")
    prompts = [token_ids(10 * BLOCK + number) for number in range(5)]  # 50 blocks, and more as they grow, of 47
    running = asyncio.gather(*(owner.ask(prompt, 60, cache_salt=salt) for prompt in prompts))
    seen: list[tuple[int, Answer]] = []

    async def keep_asking(reader: Node, order: list[int]) -> None:
        while not running.done():
            for number in order:
                seen.append((number, await reader.ask(prompts[number], 2, cache_salt=salt, **claim(owner))))
            await reader.forget()

    await asyncio.gather(
        *(keep_asking(node, list(range(5))[::step]) for node, step in zip(claims.prefills, (1, -1), strict=True))
    )
    finished = await running
    expected = await asyncio.gather(*(claims.reference.ask(prompt, 2) for prompt in prompts))
    for number, answer in [*seen, *enumerate(finished)]:
        check_same(answer.cut(2), expected[number])
    assert await owner.metric("vllm:num_preemptions_total") > before, "nothing was preempted: this test shows nothing"


async def test_an_owner_whose_request_is_aborted(claims: World, salt: str) -> None:
    """Blocks of an aborted request: those that were finished may be granted, those that were not must never be."""
    owner, source = claims.decode, random.Random(3)
    for _ in range(4):
        prompt = token_ids(3 * STEP_TOKENS + 7)
        reference = asyncio.ensure_future(claims.reference.ask(prompt, 3))
        aborted = asyncio.ensure_future(owner.ask(prompt, 200, cache_salt=salt))
        asking = [
            asyncio.ensure_future(node.ask(prompt, 3, cache_salt=salt, **claim(owner))) for node in claims.prefills
        ]
        await asyncio.sleep(source.uniform(0, 0.4))
        aborted.cancel()
        answers = [await one for one in asking]
        await asyncio.gather(aborted, return_exceptions=True)
        await claims.forget(*claims.prefills)
        answers += [await node.ask(prompt, 3, cache_salt=salt, **claim(owner)) for node in claims.prefills]
        for answer in answers:
            check_same(answer, await reference)
        await claims.forget(*claims.prefills)
