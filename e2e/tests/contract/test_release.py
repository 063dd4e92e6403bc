"""Nothing stays held: after claims, after clients that leave at any point, after many requests at once."""

import asyncio
from collections.abc import Callable

import aiohttp
import pytest

from pdd_e2e.engine_pair import Engine, Pair, claim_from

Prompt = Callable[[int], list[int]]
LONG = 400


async def test_nothing_is_held_after_claims(pair: Pair, prompt: Prompt) -> None:
    for _ in range(3):
        ids = prompt(3 * pair.block_size + 1)
        await pair.decode.complete(ids)
        await pair.prefill.complete(ids, **claim_from(pair.decode))
    await pair.wait_idle()


@pytest.mark.parametrize("events", [0, 1, 5])
async def test_leaving_a_stream_aborts_it(pair: Pair, prompt: Prompt, events: int) -> None:
    body = pair.decode.completion_body(prompt(2 * pair.block_size + 1), LONG, stream=True)
    await leave_after(pair.decode, body, events)
    await pair.wait_idle()
    assert await pair.decode.metric("vllm:num_requests_running") == 0.0


async def leave_after(engine: Engine, body: dict[str, object], events: int) -> None:
    """Read so many events of a stream, then close the connection."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(engine.card.url + "/v1/completions", json=body) as response,
    ):
        seen = 0
        while seen < events:
            seen += (await response.content.readline()).startswith(b"data: ")
        response.close()


async def test_leaving_a_whole_answer_aborts_it(pair: Pair, prompt: Prompt) -> None:
    body = pair.decode.completion_body(prompt(2 * pair.block_size + 1), LONG)
    request = asyncio.create_task(pair.decode.post("/v1/completions", body))
    await pair.decode.wait_for_metric("vllm:num_requests_running", 1.0, 20)
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    await pair.wait_idle()


async def test_leaving_during_a_claim_frees_both_sides(pair: Pair, prompt: Prompt) -> None:
    for delay in (0.0, 0.005, 0.02, 0.1):
        ids = prompt(4 * pair.block_size + 1)
        await pair.decode.complete(ids)
        body = pair.prefill.completion_body(ids, LONG, **claim_from(pair.decode))
        request = asyncio.create_task(pair.prefill.post("/v1/completions", body))
        await asyncio.sleep(delay)
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
    await pair.wait_idle()


async def test_many_at_once(pair: Pair, prompt: Prompt) -> None:
    shared = prompt(3 * pair.block_size)
    await pair.decode.complete(shared)

    async def turn(number: int) -> None:
        ids = [*shared, *prompt(1 + number)]
        answer = await pair.prefill.complete(ids, 2, **claim_from(pair.decode))
        assert answer.receipt["outcome"] in ("Read", "Empty", "Local")
        taken = answer.receipt["local_tokens"] + answer.receipt["read_tokens"]
        assert taken == len(shared)
        fresh = await pair.prefill.complete(ids, 2, cache_salt=f"fresh-{number}")
        assert fresh.token_ids == answer.token_ids

    await asyncio.gather(*(turn(number) for number in range(6)))
    await pair.wait_idle()
