"""Owners that stand still (SIGSTOP): too late to answer, or too late to be read. The reader computes within its limits, and later reads again."""

import asyncio

import pytest

from pdd_e2e.engines.answers import Json, check_same
from pdd_e2e.engines.prompts import token_ids
from pdd_e2e.engines.sets import CLAIM_KEY, HOLD_SECONDS, READ_SECONDS
from pdd_e2e.engines.tap import ClaimTap
from pdd_e2e.engines.world import World, claim, connect

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]
BLOCK = 32


async def read_again(claims: World, prompt: list[int], salt: str) -> None:
    """Within a minute the reader reads from that owner again, and rightly."""
    reference = await claims.reference.ask(prompt, 2)
    async with asyncio.timeout(60):
        while True:
            await claims.forget(claims.prefill)
            answer = await claims.prefill.ask(prompt, 2, cache_salt=salt, **claim(claims.decode))
            check_same(answer, reference)
            if answer.receipt["outcome"] == "Read":
                return
            await asyncio.sleep(0.5)


async def test_an_owner_that_answers_too_late(claims: World, salt: str) -> None:
    prompt = token_ids(5 * BLOCK + 3)
    await claims.decode.ask(prompt, cache_salt=salt)
    claims.decode.freeze()
    try:
        answer = await claims.prefill.ask(prompt, 2, cache_salt=salt, **claim(claims.decode))
    finally:
        claims.decode.thaw()
    assert (answer.receipt["outcome"], answer.receipt["read_bytes"]) == ("Late", 0)
    check_same(answer, await claims.reference.ask(prompt, 2))
    # It granted when it went on. The reader lets go of it at once if the channel still stands, else the timer does.
    await claims.decode.wait_unheld(2 * HOLD_SECONDS)
    await read_again(claims, prompt, salt)


async def test_a_read_that_does_not_end_in_time(claims: World, salt: str) -> None:
    prompt = token_ids(8 * BLOCK + 3)
    await claims.decode.ask(prompt, cache_salt=salt)
    loop = asyncio.get_running_loop()
    async with ClaimTap(claims.decode.address, CLAIM_KEY) as tap:
        await connect(claims.prefill, [tap.address])
        granted_at: list[float] = []

        async def stand_still(_grant: Json) -> None:
            claims.decode.freeze()
            granted_at.append(loop.time())

        tap.before["grant"] = stand_still
        try:
            answer = await claims.prefill.ask(prompt, 2, cache_salt=salt, **claim(tap.address))
            took = loop.time() - granted_at[0]
        finally:
            claims.decode.thaw()
    assert (answer.receipt["outcome"], answer.receipt["reason"]) == ("Failed", "Timeout")
    assert answer.receipt["read_bytes"] == 0
    assert took >= READ_SECONDS - 1
    check_same(answer, await claims.reference.ask(prompt, 2))
    await claims.decode.wait_unheld(2 * HOLD_SECONDS)
    await read_again(claims, prompt, salt)


async def test_an_answer_that_is_held_up(claims: World, salt: str) -> None:
    """A grant that comes after the limit is not read and does not stay held."""
    prompt = token_ids(5 * BLOCK + 3)
    await claims.decode.ask(prompt, cache_salt=salt)
    async with ClaimTap(claims.decode.address, CLAIM_KEY) as tap:
        await connect(claims.prefill, [tap.address])
        computed = asyncio.Event()

        async def hold_up(_grant: Json) -> None:
            await computed.wait()

        tap.before["grant"] = hold_up
        answer = await claims.prefill.ask(prompt, 2, cache_salt=salt, **claim(tap.address))
        computed.set()
        assert (answer.receipt["outcome"], answer.receipt["read_bytes"]) == ("Late", 0)
        check_same(answer, await claims.reference.ask(prompt, 2))
        await claims.decode.wait_unheld(HOLD_SECONDS / 2)
