"""Claims: what a reader gets from an owner, what it does not, and what the receipt says. Both directions, both endpoints."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from pdd_e2e.engine_pair import Engine, Json, Pair, claim_from, shared_tokens

Prompt = Callable[[int], list[int]]
RECEIPT = {
    "version",
    "outcome",
    "reason",
    "owner",
    "prompt_tokens",
    "local_tokens",
    "read_tokens",
    "read_bytes",
    "answer_ms",
    "read_ms",
    "connected",
}


def check_receipt(receipt: Json, outcome: str, *, local: int, read: int, owner: Engine | None = None) -> None:
    """Form and figures of a receipt."""
    assert set(receipt) == RECEIPT
    assert receipt["version"] == 1
    assert (receipt["outcome"], receipt["local_tokens"], receipt["read_tokens"]) == (outcome, local, read)
    assert (receipt["read_bytes"] > 0) == (read > 0)
    assert (receipt["read_ms"] is not None) == (read > 0)
    assert receipt["owner"] == (owner.card.address() if owner is not None else None)


# -- how much is read --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("blocks", "more"), [(1, 1), (2, -1), (2, 0), (2, 1), (3, 7), (5, 0)], ids=lambda value: str(value)
)
async def test_reads_whole_blocks_and_computes_the_rest(pair: Pair, prompt: Prompt, blocks: int, more: int) -> None:
    ids = prompt(blocks * pair.block_size + more)
    await pair.decode.complete(ids)
    answer = await pair.prefill.complete(ids, **claim_from(pair.decode))
    read = shared_tokens(len(ids), pair.block_size, len(ids))
    check_receipt(answer.receipt, "Read", local=0, read=read, owner=pair.decode)
    assert answer.receipt["prompt_tokens"] == len(ids)
    assert answer.receipt["reason"] is None
    assert answer.cached_tokens == read


@pytest.mark.parametrize("more", [-6, -4, -3, -2, 0, 3])
async def test_reads_what_decode_generated(pair: Pair, prompt: Prompt, more: int) -> None:
    generated = 4
    ids = prompt(2 * pair.block_size + more)
    served = await pair.decode.complete(ids, generated)
    longer = [*ids, *served.token_ids, *prompt(pair.block_size + 3)]
    answer = await pair.prefill.complete(longer, **claim_from(pair.decode))
    read = shared_tokens(len(ids) + generated - 1, pair.block_size, len(longer))
    check_receipt(answer.receipt, "Read", local=0, read=read, owner=pair.decode)


async def test_both_directions(pair: Pair, prompt: Prompt) -> None:
    for owner, reader in ((pair.prefill, pair.decode), (pair.decode, pair.prefill)):
        ids = prompt(3 * pair.block_size + 2)
        await owner.complete(ids)
        answer = await reader.complete(ids, 2, **claim_from(owner))
        check_receipt(answer.receipt, "Read", local=0, read=3 * pair.block_size, owner=owner)


async def test_only_what_is_missing_is_read(pair: Pair, prompt: Prompt) -> None:
    size = pair.block_size
    ids = prompt(5 * size + 1)
    await pair.prefill.complete(ids[: 2 * size + 3])
    await pair.decode.complete(ids)
    answer = await pair.prefill.complete(ids, **claim_from(pair.decode))
    check_receipt(answer.receipt, "Read", local=2 * size, read=3 * size, owner=pair.decode)
    assert answer.cached_tokens == 5 * size


async def test_bytes_follow_tokens(pair: Pair, prompt: Prompt) -> None:
    receipts = []
    before = await pair.prefill.metric("vllm:nixl_bytes_transferred_sum") if await _has_read(pair) else 0.0
    for blocks in (2, 4):
        ids = prompt(blocks * pair.block_size + 1)
        await pair.decode.complete(ids)
        receipts.append((await pair.prefill.complete(ids, **claim_from(pair.decode))).receipt)
    assert receipts[1]["read_bytes"] == 2 * receipts[0]["read_bytes"]
    read = receipts[0]["read_bytes"] + receipts[1]["read_bytes"]
    await pair.prefill.wait_for_metric("vllm:nixl_bytes_transferred_sum", before + read, 10)


async def _has_read(pair: Pair) -> bool:
    _, text = await pair.prefill.get("/metrics")
    return "vllm:nixl_bytes_transferred_sum" in text


# -- what is not read --------------------------------------------------------------------------------------------------


async def test_local_when_nothing_is_missing(pair: Pair, prompt: Prompt) -> None:
    ids = prompt(2 * pair.block_size + 1)
    await pair.decode.complete(ids)
    await pair.prefill.complete(ids, **claim_from(pair.decode))
    again = await pair.prefill.complete(ids, **claim_from(pair.decode))
    check_receipt(again.receipt, "Local", local=2 * pair.block_size, read=0)


@pytest.mark.parametrize("more", [-1, 0])
async def test_local_when_the_prompt_has_no_whole_block(pair: Pair, prompt: Prompt, more: int) -> None:
    answer = await pair.prefill.complete(prompt(pair.block_size + more), **claim_from(pair.decode))
    check_receipt(answer.receipt, "Local", local=0, read=0)


async def test_empty_when_nobody_may_be_asked(pair: Pair, prompt: Prompt) -> None:
    answer = await pair.prefill.complete(prompt(2 * pair.block_size + 1), **claim_from())
    check_receipt(answer.receipt, "Empty", local=0, read=0)


async def test_empty_when_the_owner_has_nothing(pair: Pair, prompt: Prompt) -> None:
    answer = await pair.prefill.complete(prompt(2 * pair.block_size + 1), **claim_from(pair.decode))
    check_receipt(answer.receipt, "Empty", local=0, read=0)


async def test_another_tenant_reads_nothing(pair: Pair, prompt: Prompt) -> None:
    ids = prompt(3 * pair.block_size + 1)
    await pair.decode.complete(ids, cache_salt="tenant-a")
    stranger = await pair.prefill.complete(ids, cache_salt="tenant-b", **claim_from(pair.decode))
    check_receipt(stranger.receipt, "Empty", local=0, read=0)
    unsalted = await pair.prefill.complete(ids, **claim_from(pair.decode))
    check_receipt(unsalted.receipt, "Empty", local=0, read=0)
    same = await pair.prefill.complete(ids, cache_salt="tenant-a", **claim_from(pair.decode))
    check_receipt(same.receipt, "Read", local=0, read=3 * pair.block_size, owner=pair.decode)


@pytest.mark.parametrize("kind", ["edited", "removed", "inserted", "cut", "first"])
async def test_changed_history_is_read_up_to_the_change(pair: Pair, prompt: Prompt, kind: str) -> None:
    size = pair.block_size
    ids = prompt(4 * size)
    place = 2 * size + size // 2
    changed = {
        "edited": [*ids[:place], 501, *ids[place + 1 :]],
        "removed": [*ids[:place], *ids[place + 3 :], *prompt(4)],
        "inserted": [*ids[:place], 502, 503, *ids[place:]],
        "cut": ids[:place],
        "first": [504, *ids[1:], 505],
    }[kind]
    await pair.decode.complete(ids)
    answer = await pair.prefill.complete(changed, 3, logprobs=1, **claim_from(pair.decode))
    read = 0 if kind == "first" else 2 * size
    owner = pair.decode if read else None
    check_receipt(answer.receipt, "Read" if read else "Empty", local=0, read=read, owner=owner)
    await check_as_if_afresh(pair.prefill, changed, answer)


async def test_branches_and_repeats_can_claim_again(pair: Pair, prompt: Prompt) -> None:
    size = pair.block_size
    trunk = prompt(3 * size)
    await pair.decode.complete(trunk)
    first = await pair.prefill.complete([*trunk, *prompt(size + 1)], **claim_from(pair.decode))
    check_receipt(first.receipt, "Read", local=0, read=3 * size, owner=pair.decode)
    second = await pair.prefill.complete([*trunk, *prompt(size + 1)], **claim_from(pair.decode))
    check_receipt(second.receipt, "Empty", local=3 * size, read=0)


# -- right tokens ------------------------------------------------------------------------------------------------------


async def check_as_if_afresh(engine: Engine, ids: list[int], answer: Any) -> None:
    """Same greedy tokens, and log-probabilities, as without any reuse (another salt)."""
    fresh = await engine.complete(ids, len(answer.token_ids), logprobs=1, cache_salt=f"fresh-{time.monotonic_ns()}")
    assert fresh.cached_tokens == 0
    assert fresh.token_ids == answer.token_ids
    assert fresh.logprobs() == pytest.approx(answer.logprobs(), abs=1e-3)


@pytest.mark.parametrize("more", [-1, 0, 1, 9])
async def test_tokens_are_those_of_computing_afresh(pair: Pair, prompt: Prompt, more: int) -> None:
    ids = prompt(3 * pair.block_size + more)
    served = await pair.decode.complete(ids, 5)
    longer = [*ids, *served.token_ids, *prompt(3)]
    answer = await pair.prefill.complete(longer, 6, logprobs=1, **claim_from(pair.decode))
    assert answer.receipt["outcome"] == "Read"
    await check_as_if_afresh(pair.prefill, longer, answer)


async def test_conversation_with_claims_on_both_legs(pair: Pair) -> None:
    salt = {"cache_salt": f"talk-{time.monotonic_ns()}"}
    messages: list[Json] = [{"role": "system", "content": "You are a patient guide to old cities. " * 3}]
    held = 0
    for question in ("Where do I begin?", "How long does that take?", "And after that?"):
        messages.append({"role": "user", "content": question})
        leg = await pair.prefill.chat(messages, 1, **salt, **claim_from(pair.decode))
        # Decode holds the whole previous turn; prefill holds that turn's prompt already.
        assert leg.receipt["local_tokens"] + leg.receipt["read_tokens"] >= held
        answer = await pair.decode.chat(messages, 8, logprobs=True, **salt, **claim_from(pair.prefill))
        assert answer.cached_tokens == (answer.prompt_tokens - 1) // pair.block_size * pair.block_size
        fresh = await pair.decode.chat(messages, 8, logprobs=True, cache_salt=f"fresh-{time.monotonic_ns()}")
        assert answer.text == fresh.text
        assert answer.logprobs() == pytest.approx(fresh.logprobs(), abs=1e-3)
        held = (answer.prompt_tokens - 1) // pair.block_size * pair.block_size
        messages.append({"role": "assistant", "content": answer.text})


# -- refused, unknown, several owners ----------------------------------------------------------------------------------

MALFORMED: dict[str, Any] = {
    "no-object": 7,
    "text": "claim",
    "list": [],
    "owners-no-list": {"version": 1, "owners": {"host": "127.0.0.1", "port": 6600}},
    "too-many-owners": {"version": 1, "owners": [{"host": "127.0.0.1", "port": 6600 + i} for i in range(9)]},
    "owner-no-object": {"version": 1, "owners": ["127.0.0.1:6600"]},
    "host-missing": {"version": 1, "owners": [{"port": 6600}]},
    "host-number": {"version": 1, "owners": [{"host": 1, "port": 6600}]},
    "port-missing": {"version": 1, "owners": [{"host": "127.0.0.1"}]},
    "port-zero": {"version": 1, "owners": [{"host": "127.0.0.1", "port": 0}]},
    "port-high": {"version": 1, "owners": [{"host": "127.0.0.1", "port": 65536}]},
    "port-text": {"version": 1, "owners": [{"host": "127.0.0.1", "port": "6600"}]},
    "unknown-key": {"version": 1, "owners": [], "hurry": True},
    "unknown-owner-key": {"version": 1, "owners": [{"host": "127.0.0.1", "port": 6600, "rank": 0}]},
    "introduce-text": {"version": 1, "owners": [], "introduce": "yes"},
}


@pytest.mark.parametrize("name", MALFORMED)
async def test_malformed_claim_is_refused_and_computed(pair: Pair, prompt: Prompt, name: str) -> None:
    ids = prompt(2 * pair.block_size + 1)
    answer = await pair.prefill.complete(ids, 2, kv_transfer_params={"claim": MALFORMED[name]})
    check_receipt(answer.receipt, "Refused", local=0, read=0)
    assert answer.receipt["reason"] == "Malformed"
    assert len(answer.token_ids) == 2


@pytest.mark.parametrize("version", [0, 2, 99])
async def test_other_version_is_refused_and_computed(pair: Pair, prompt: Prompt, version: int) -> None:
    ids = prompt(2 * pair.block_size + 1)
    await pair.decode.complete(ids)
    claim = claim_from(pair.decode)
    claim["kv_transfer_params"]["claim"]["version"] = version
    answer = await pair.prefill.complete(ids, 2, **claim)
    check_receipt(answer.receipt, "Refused", local=0, read=0)
    assert answer.receipt["reason"] == "Version"


async def test_unknown_owner_costs_the_time_limit_only(pair: Pair, prompt: Prompt) -> None:
    started = time.monotonic()
    ids = prompt(2 * pair.block_size + 1)
    answer = await pair.prefill.complete(ids, **claim_from({"host": "127.0.0.1", "port": 9}))
    # Never connected, so never asked.
    check_receipt(answer.receipt, "Unconnected", local=0, read=0)
    assert answer.receipt["answer_ms"] is None
    assert time.monotonic() - started < 30


async def test_one_good_owner_is_enough(pair: Pair, prompt: Prompt) -> None:
    ids = prompt(2 * pair.block_size + 1)
    await pair.decode.complete(ids)
    nobody = {"host": "127.0.0.1", "port": 9}
    answer = await pair.prefill.complete(ids, **claim_from(nobody, pair.decode))
    check_receipt(answer.receipt, "Read", local=0, read=2 * pair.block_size, owner=pair.decode)


async def test_introduction_names_who_is_connected(pair: Pair) -> None:
    answer = await pair.prefill.complete("hello", **claim_from(pair.decode, introduce=True))
    check_receipt(answer.receipt, "Introduced", local=0, read=0)
    assert answer.receipt["connected"] == [pair.decode.card.address()]


# -- where the receipt is ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("usage", [False, True])
@pytest.mark.parametrize("chat", [False, True])
async def test_streamed_receipt_is_in_the_last_chunk(pair: Pair, prompt: Prompt, chat: bool, usage: bool) -> None:
    options = {"stream_options": {"include_usage": True}} if usage else {}
    if chat:
        path = "/v1/chat/completions"
        text = "".join(f"{number} " for number in prompt(3 * pair.block_size))
        body = pair.prefill.chat_body([{"role": "user", "content": text}], 3, **options)
    else:
        path = "/v1/completions"
        body = pair.prefill.completion_body(prompt(2 * pair.block_size + 3), 3, **options)
    await pair.decode.post(path, {key: value for key, value in body.items() if key != "stream_options"})
    streamed = await pair.prefill.stream(path, body | claim_from(pair.decode))
    assert streamed.done
    assert streamed.params is not None
    assert streamed.params["claim"]["outcome"] == "Read"
    assert streamed.params["claim"]["read_tokens"] >= 2 * pair.block_size
    assert all("kv_transfer_params" not in chunk for chunk in streamed.chunks[:-1])
    assert streamed.finish_reasons == ["length"]
    if usage:
        assert streamed.usage["completion_tokens"] == 3


async def test_no_claim_no_receipt(pair: Pair, prompt: Prompt) -> None:
    ids = prompt(pair.block_size + 1)
    assert (await pair.prefill.complete(ids)).params is None
    streamed = await pair.prefill.stream("/v1/completions", pair.prefill.completion_body(ids, 2))
    assert all(chunk.get("kv_transfer_params") is None for chunk in streamed.chunks)


@pytest.mark.parametrize("params", [{}, {"foo": 1}, {"do_remote_prefill": False}, {"do_remote_decode": "x"}])
async def test_params_that_are_not_ours_hold_nothing(pair: Pair, prompt: Prompt, params: Json) -> None:
    answer = await pair.decode.complete(prompt(pair.block_size + 1), 2, kv_transfer_params=params)
    assert len(answer.token_ids) == 2
    await pair.wait_idle()
