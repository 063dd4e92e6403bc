"""Scheduling: waiting, batching, preemption, eviction and aborts change when something is computed, never what."""

import asyncio
import time
from typing import Any

import pytest

from pdd_e2e.engine_pair import claim_from


def ids(seed: int, tokens: int) -> list[int]:
    return [300 + (seed * 7919 + position * 31) % 200 for position in range(tokens)]


async def alone(start: Any, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    """Outputs on an engine with room for all."""
    fake = await start("alone")
    return [(await fake.http.complete(prompt, tokens)).token_ids for prompt in prompts]


async def test_small_cache_preempts_and_gets_the_same_tokens(start: Any) -> None:
    prompts = [ids(seed, 40) for seed in range(6)]
    expected = await alone(start, prompts, 30)
    small = await start("small", cache_blocks=8)
    answers = await asyncio.gather(*(small.http.complete(prompt, 30) for prompt in prompts))
    assert [answer.token_ids for answer in answers] == expected
    assert await small.http.metric("vllm:num_preemptions_total") > 0
    assert small.inside.held_blocks == 0


async def test_batch_limit_makes_the_others_wait(start: Any) -> None:
    fake = await start(max_running=2, seconds_per_output_token=0.01)
    requests = [asyncio.create_task(fake.http.complete(ids(seed, 20), 10)) for seed in range(5)]
    await fake.inside.core.pulse.wait_until(lambda: fake.inside.waiting == 3)
    assert fake.inside.running == 2
    assert await fake.http.metric("vllm:num_requests_running") == 2.0
    await asyncio.gather(*requests)


async def test_same_prompt_at_once_is_computed_once(start: Any) -> None:
    fake = await start(seconds_per_prompt_token=0.001)
    prompt = ids(1, 80)
    answers = await asyncio.gather(*(fake.http.complete(prompt, 3) for _ in range(4)))
    assert len({tuple(answer.token_ids) for answer in answers}) == 1
    assert sorted(answer.cached_tokens for answer in answers) == [0, 64, 64, 64]


async def test_evicted_is_a_miss(start: Any) -> None:
    fake = await start(cache_blocks=10)
    first = await fake.http.complete(ids(1, 80), 2)
    await fake.http.complete(ids(2, 120), 2)
    again = await fake.http.complete(ids(1, 80), 2)
    assert again.cached_tokens < 64
    assert again.token_ids == first.token_ids


async def test_time_is_taken_for_what_is_computed_only(start: Any) -> None:
    fake = await start(seconds_per_prompt_token=0.002)
    times = []
    for _ in range(2):
        started = time.monotonic()
        await fake.http.complete(ids(3, 101))
        times.append(time.monotonic() - started)
    assert times[0] >= 0.202
    assert times[1] < times[0] / 2


async def test_an_aborted_prefill_leaves_only_computed_blocks(start: Any, in_prefill: Any) -> None:
    fake = await start(seconds_per_prompt_token=0.01)
    prompt = ids(4, 80)
    request = asyncio.create_task(fake.http.complete(prompt))
    await fake.inside.core.pulse.wait_until(lambda: bool(fake.inside.prefix_cache.cached_hashes))
    request.cancel()
    await fake.inside.core.pulse.wait_until(lambda: fake.inside.running == 0)
    assert fake.inside.held_blocks == 0
    assert fake.inside.requests[0].aborted_at is not None
    assert all(block.computed for block in fake.inside.prefix_cache.blocks if block.hash is not None)


async def test_reads_waiting_for_room_give_way_to_the_first_in_the_queue(start: Any, introduce: Any) -> None:
    p, d = await start("p", cache_blocks=12), await start("d", role="Decode")
    await introduce(p, d)
    shared = [ids(seed, 97) for seed in range(3)]
    for prompt in shared:
        await d.http.complete(prompt)
    answers = await asyncio.gather(
        *(p.http.complete([*prompt, *ids(9, 60)], 2, **claim_from(d.http)) for prompt in shared)
    )
    assert all(len(answer.token_ids) == 2 for answer in answers)
    assert p.inside.held_blocks == 0


async def test_reset_prefix_cache(start: Any, in_prefill: Any) -> None:
    fake = await start(seconds_per_prompt_token=0.002)
    async with in_prefill(fake, ids(5, 40)):
        assert (await fake.http.post("/reset_prefix_cache", {})).body == {"success": False}
    assert (await fake.http.post("/reset_prefix_cache", {})).body == {"success": True}
    assert (await fake.http.complete(ids(5, 40))).cached_tokens == 0


async def test_prefix_caching_off(start: Any) -> None:
    fake = await start(prefix_caching=False)
    await fake.http.complete(ids(6, 40))
    assert (await fake.http.complete(ids(6, 40))).cached_tokens == 0


@pytest.mark.parametrize("chat", [False, True])
async def test_the_context_ends_the_answer(start: Any, chat: bool) -> None:
    fake = await start(max_model_len=64)
    if chat:
        answer = await fake.http.chat([{"role": "user", "content": "hi"}], 500)
    else:
        answer = await fake.http.complete(ids(7, 60), 500)
    assert answer.prompt_tokens + answer.body["usage"]["completion_tokens"] == 64
    assert answer.body["choices"][0]["finish_reason"] == "length"
