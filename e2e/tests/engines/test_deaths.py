"""Engines that die in the middle of a claim, and come back in the same place under another engine id. These tests come last: each start costs a minute."""

import asyncio

import pytest

from pdd_e2e.engines.answers import Json, check_same
from pdd_e2e.engines.dialogues import base
from pdd_e2e.engines.node import HELD_GAUGE, Node
from pdd_e2e.engines.prompts import token_ids
from pdd_e2e.engines.sets import CLAIM_KEY, HOLD_SECONDS
from pdd_e2e.engines.tap import ClaimTap
from pdd_e2e.engines.world import World, claim, connect

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(900)]
BLOCK = 32


async def owner_dies_while_being_read(claims: World, salt: str) -> None:
    """Decode is killed between its grant and the read: prefill computes, rightly."""
    prompt = token_ids(8 * BLOCK + 3)
    await claims.decode.ask(prompt, cache_salt=salt)
    async with ClaimTap(claims.decode.address, CLAIM_KEY) as tap:
        await connect(claims.prefills[1], [tap.address])

        async def die(_grant: Json) -> None:
            await claims.decode.kill()

        tap.before["grant"] = die
        answer = await claims.prefills[1].ask(prompt, 2, cache_salt=salt, **claim(tap.address))
    assert answer.receipt["outcome"] == "Failed"
    assert answer.receipt["read_bytes"] == 0
    check_same(answer, await claims.reference.ask(prompt, 2))


async def reader_dies_holding_a_claim(reader: Node, owner: Node, salt: str) -> None:
    """Prefill is killed between the grant and its read: the owner's blocks come back by its timer."""
    prompt = token_ids(8 * BLOCK + 3)
    await owner.ask(prompt, cache_salt=salt)
    async with ClaimTap(owner.address, CLAIM_KEY) as tap:
        await connect(reader, [tap.address])

        dead = asyncio.Event()

        async def die(_grant: Json) -> None:
            await reader.kill()
            dead.set()

        tap.before["grant"] = die
        asking = asyncio.ensure_future(reader.ask(prompt, cache_salt=salt, **claim(tap.address)))
        (outcome,) = await asyncio.gather(asking, return_exceptions=True)
        await dead.wait()
    assert isinstance(outcome, Exception)
    await owner.wait_metric(HELD_GAUGE, 0.01, HOLD_SECONDS)
    await owner.wait_unheld(2 * HOLD_SECONDS)


async def a_restarted_owner_is_another(claims: World, reader: Node, salt: str) -> None:
    """The reader knows the dead process in that place: it reads nothing of the new one before it is connected with it, then it does."""
    prompt = token_ids(6 * BLOCK + 3)
    reference = await claims.reference.ask(prompt, 2)
    await claims.decode.ask(prompt, cache_salt=salt)
    outcomes = []
    async with asyncio.timeout(90):
        while "Read" not in outcomes:
            answer = await reader.ask(prompt, 2, cache_salt=salt, **claim(claims.decode))
            check_same(answer, reference)
            outcomes.append(answer.receipt["outcome"])
            await claims.forget(reader)
    assert outcomes[0] == "Unconnected"
    assert set(outcomes) <= {"Unconnected", "Read"}


@pytest.mark.ends_engines(1)
async def test_deaths_and_restarts(claims: World, salt: str) -> None:
    """One after the other, so that both engines start again together."""
    lost, survivor = claims.prefills
    await owner_dies_while_being_read(claims, salt)
    await reader_dies_holding_a_claim(lost, survivor, salt)
    await claims.restart([lost, claims.decode])
    await a_restarted_owner_is_another(claims, survivor, salt)
    await claims.introduce()
    for prefill in claims.prefills:
        first = await claims.turn(base(), f"{salt}-{prefill.name}", prefill=prefill)
        first.check()
        await claims.forget(prefill)
        (await claims.turn(base(), f"{salt}-{prefill.name}", prefill=prefill, streamed=True)).check()


@pytest.mark.ends_engines(2)
async def test_a_terminated_owner_drains_and_lends_no_more(claims: World, salt: str) -> None:
    """SIGTERM while it serves: the stream ends whole, a claim meanwhile is refused or finds nobody, and the process ends."""
    prompt = token_ids(6 * BLOCK + 3)
    held = await claims.decode.ask(prompt, cache_salt=salt)
    stream = asyncio.ensure_future(claims.decode.ask(prompt, 120, streamed=True, cache_salt=salt))
    await claims.decode.wait_metric("vllm:num_requests_running", 1)
    claims.decode.terminate()
    outcomes = set()
    while not stream.done():
        answer = await claims.prefill.ask(prompt, cache_salt=salt, **claim(claims.decode))
        check_same(answer, held.cut(1))
        outcomes.add((answer.receipt["outcome"], answer.receipt["reason"]))
        await claims.forget(claims.prefill)
    assert len((await stream).tokens) == 120
    assert ("Refused", "Stopping") in outcomes
    assert outcomes <= {("Read", None), ("Refused", "Stopping"), ("Unconnected", None), ("Late", None)}
    async with asyncio.timeout(60):
        await claims.decode.process.wait_end()
    claims.decode.stopped = True
    await claims.decode.process.stop()
