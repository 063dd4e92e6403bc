"""Retain: handles with proof, good once, held only on request, read only as far as the proof goes."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from pdd_e2e.engine_pair import Json, Pair, Whole

Prompt = Callable[[int], list[int]]
HANDLE = {
    "do_remote_prefill",
    "do_remote_decode",
    "remote_block_ids",
    "remote_engine_id",
    "remote_request_id",
    "remote_host",
    "remote_port",
    "tp_size",
    "remote_num_tokens",
    "remote_blocks_expiry_time",
    "proof",
}
REQUEST: Json = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
KEEP: Json = {"version": 1, "keep": True}


async def first_turn(pair: Pair, ids: list[int], generated: int, *, keep: bool = True) -> Whole:
    """P, then D with P's handle; the answer of D."""
    prefill = await pair.prefill.complete(ids, kv_transfer_params=REQUEST)
    assert prefill.params is not None
    assert set(prefill.params) >= HANDLE
    assert prefill.params["do_remote_prefill"] is True
    extra = {"retain": KEEP} if keep else {}
    return await pair.decode.complete(ids, generated, logprobs=1, kv_transfer_params=prefill.params | extra)


async def check_as_if_afresh(pair: Pair, ids: list[int], answer: Whole) -> None:
    """Same greedy tokens, and log-probabilities, as without any reuse."""
    fresh = await pair.prefill.complete(
        ids, len(answer.token_ids), logprobs=1, cache_salt=f"fresh-{time.monotonic_ns()}"
    )
    assert fresh.cached_tokens == 0
    assert fresh.token_ids == answer.token_ids
    assert fresh.logprobs() == pytest.approx(answer.logprobs(), abs=1e-3)


async def second_turn(pair: Pair, ids: list[int], handle: Json | None, **change: Any) -> Whole:
    """P with D's handle (changed), two tokens."""
    assert handle is not None
    return await pair.prefill.complete(ids, 2, logprobs=1, kv_transfer_params=handle | change)


async def free_decode(pair: Pair, ids: list[int], handle: Json | None) -> None:
    """Use a handle up, so that nothing stays held on either side but P's lease."""
    await second_turn(pair, ids, handle)


async def test_decode_with_a_handle_generates_as_if_alone(retain_pair: Pair, prompt: Prompt) -> None:
    ids = prompt(3 * retain_pair.block_size + 5)
    answer = await first_turn(retain_pair, ids, 5, keep=False)
    assert answer.params is None
    await check_as_if_afresh(retain_pair, ids, answer)
    await retain_pair.decode.wait_for_metric("vllm:kv_cache_usage_perc", 0.0, 20)


@pytest.mark.parametrize(
    "kept", [{}, {"retain": {"version": 1, "keep": False}}, {"retain": {"version": 1}}, {"foo": 1}]
)
async def test_decode_holds_nothing_unless_asked(retain_pair: Pair, prompt: Prompt, kept: Json) -> None:
    answer = await retain_pair.decode.complete(prompt(20), 2, kv_transfer_params=kept)
    assert answer.params is None
    await retain_pair.decode.wait_for_metric("vllm:kv_cache_usage_perc", 0.0, 20)


async def test_kept_blocks_are_held_until_they_are_read(retain_pair: Pair, prompt: Prompt) -> None:
    size = retain_pair.block_size
    ids = prompt(3 * size + 5)
    answer = await first_turn(retain_pair, ids, 4)
    handle = answer.params
    assert handle is not None
    assert set(handle) >= HANDLE
    assert handle["do_remote_decode"] is True
    assert handle["remote_num_tokens"] == len(ids) + 3
    assert len(handle["proof"]) == 64 * (handle["remote_num_tokens"] // size)
    assert await retain_pair.decode.metric("vllm:kv_cache_usage_perc") > 0.0
    longer = [*ids, *answer.token_ids, *prompt(size)]
    second = await second_turn(retain_pair, longer, handle)
    assert second.cached_tokens == (len(ids) + 3) // size * size
    await check_as_if_afresh(retain_pair, longer, second)
    await retain_pair.decode.wait_for_metric("vllm:kv_cache_usage_perc", 0.0, 20)


async def test_edited_history_is_read_up_to_the_edit(retain_pair: Pair, prompt: Prompt) -> None:
    size = retain_pair.block_size
    ids = prompt(4 * size)
    answer = await retain_pair.decode.complete(ids, 2, kv_transfer_params={"retain": KEEP})
    changed = [*ids[: 2 * size + 1], 501, *ids[2 * size + 2 :], 502]
    second = await second_turn(retain_pair, changed, answer.params)
    assert second.cached_tokens == 2 * size
    await check_as_if_afresh(retain_pair, changed, second)
    await retain_pair.decode.wait_for_metric("vllm:kv_cache_usage_perc", 0.0, 20)


async def test_foreign_prompt_reads_nothing_and_frees(retain_pair: Pair, prompt: Prompt) -> None:
    size = retain_pair.block_size
    answer = await retain_pair.decode.complete(prompt(3 * size), 2, kv_transfer_params={"retain": KEEP})
    other = prompt(3 * size + 1)
    second = await second_turn(retain_pair, other, answer.params)
    assert second.cached_tokens == 0
    await check_as_if_afresh(retain_pair, other, second)
    await retain_pair.decode.wait_for_metric("vllm:kv_cache_usage_perc", 0.0, 20)


async def test_another_salt_reads_nothing(retain_pair: Pair, prompt: Prompt) -> None:
    size = retain_pair.block_size
    ids = prompt(3 * size + 1)
    answer = await retain_pair.decode.complete(ids, 2, cache_salt="tenant-a", kv_transfer_params={"retain": KEEP})
    assert answer.params is not None
    second = await retain_pair.prefill.complete(ids, 2, cache_salt="tenant-b", kv_transfer_params=answer.params)
    assert second.cached_tokens == 0


async def test_replayed_handle_gives_right_tokens(retain_pair: Pair, prompt: Prompt) -> None:
    size = retain_pair.block_size
    ids = prompt(3 * size + 1)
    answer = await retain_pair.decode.complete(ids, 2, kv_transfer_params={"retain": KEEP})
    await free_decode(retain_pair, ids, answer.params)
    # Other tokens take the blocks that the handle names.
    for _ in range(3):
        await retain_pair.decode.complete(prompt(4 * size))
    longer = [*ids, *prompt(2 * size)]
    await check_as_if_afresh(retain_pair, longer, await second_turn(retain_pair, longer, answer.params))


@pytest.mark.parametrize("proof", [None, "", "zz", "00" * 31, "00" * 32, 7])
async def test_handle_without_good_proof_is_not_used(retain_pair: Pair, prompt: Prompt, proof: object) -> None:
    ids = prompt(3 * retain_pair.block_size + 1)
    answer = await retain_pair.decode.complete(ids, 2, kv_transfer_params={"retain": KEEP})
    second = await second_turn(retain_pair, ids, answer.params, proof=proof)
    assert second.cached_tokens == 0
    await check_as_if_afresh(retain_pair, ids, second)
