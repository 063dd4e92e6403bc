"""Clients that leave, and many requests at once: whatever happens, every block is free again within seconds."""

import asyncio
import random

import aiohttp
import pytest

from pdd_e2e.engines.answers import check_same
from pdd_e2e.engines.dialogues import base
from pdd_e2e.engines.node import Node, Prompt, all_unheld
from pdd_e2e.engines.prompts import token_ids
from pdd_e2e.engines.sets import HOLD_SECONDS
from pdd_e2e.engines.world import World, claim

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]
BLOCK = 32


async def leave_after(node: Node, prompt: Prompt, most: int, **fields: object) -> int:
    """Read at most so many bytes of a stream, then close the connection; how many were read."""
    body = node.body(prompt, 40, stream=True, **fields)
    seen = 0
    async with aiohttp.ClientSession() as own, own.post(node.path(body), json=body) as response:
        assert response.status == 200
        while seen < most:
            piece = await response.content.read(most - seen)
            if not piece:
                break
            seen += len(piece)
        response.close()
    return seen


async def test_leaving_a_stream_at_any_byte_frees_everything(claims: World, salt: str) -> None:
    source = random.Random(11)
    shared = token_ids(4 * BLOCK)
    await asyncio.gather(*(node.ask(shared, cache_salt=salt) for node in claims.nodes))
    cuts = [0, 1, *(source.randrange(2, 6_000) for _ in range(14))]

    async def one(cut: int) -> None:
        owner, reader = source.choice([(claims.decode, claims.prefill), (claims.prefill, claims.decode)])
        await leave_after(reader, [*shared, *token_ids(70)], cut, cache_salt=salt, **claim(owner))

    for number in range(0, len(cuts), 4):
        await asyncio.gather(*(one(cut) for cut in cuts[number : number + 4]))
    await all_unheld(claims.nodes, HOLD_SECONDS / 2)


async def test_leaving_before_the_first_byte_frees_everything(claims: World, salt: str) -> None:
    """At any moment of a question, a read or a prefill."""
    source = random.Random(12)
    for _ in range(12):
        prompt = token_ids(6 * BLOCK + 9)
        await claims.decode.ask(prompt, cache_salt=salt)
        asking = asyncio.ensure_future(claims.prefill.ask(prompt, 50, cache_salt=salt, **claim(claims.decode)))
        await asyncio.sleep(source.choice([0.0, 0.002, 0.01, 0.03, 0.1]))
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    await all_unheld(claims.nodes, HOLD_SECONDS / 2)
    assert (await claims.turn(base(), salt)).decode.receipt["outcome"] == "Read"


async def test_after_many_mixed_requests_nothing_is_held(claims: World, salt: str) -> None:
    """Turns of several tenants in both directions, some left half-way, some given up, some asking the wrong engines."""
    source = random.Random(13)
    histories = [token_ids(5 * BLOCK) for _ in range(3)]
    answers = 0

    async def one(number: int) -> None:
        nonlocal answers
        history = source.choice(histories)
        prompt = [*history[: source.randrange(1, len(history))], *token_ids(source.randrange(1, 60))]
        reader = source.choice(claims.nodes)
        owners = [node for node in claims.nodes if node is not reader]
        fields = {"cache_salt": f"{salt}-{number % 2}"} | claim(*owners)
        kind = number % 5
        if kind == 0:
            await leave_after(reader, prompt, source.randrange(3_000), **fields)
        elif kind == 1:
            asking = asyncio.ensure_future(reader.ask(prompt, 30, **fields))
            await asyncio.wait([asking], timeout=source.uniform(0, 0.2))
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        else:
            answer = await reader.ask(prompt, 2, streamed=kind == 2, **fields)
            check_same(answer, await claims.reference.ask(prompt, 2))
            answers += 1

    for start in range(0, 240, 6):
        await asyncio.gather(*(one(number) for number in range(start, start + 6)))
    assert answers == 144
    await all_unheld(claims.nodes, HOLD_SECONDS / 2)
