"""What the prefix cache gives on one engine: whole blocks of equal tokens under an equal salt, the last token computed."""

from collections.abc import Callable

import pytest

from pdd_e2e.engine_pair import Pair, shared_tokens

Prompt = Callable[[int], list[int]]
# Prompt lengths as (blocks, tokens more or less).
EDGES = [(0, 1), (0, 2), (1, -1), (1, 0), (1, 1), (2, -1), (2, 0), (2, 1), (3, 5)]


@pytest.mark.parametrize(("blocks", "more"), EDGES)
async def test_same_prompt_again(pair: Pair, prompt: Prompt, blocks: int, more: int) -> None:
    ids = prompt(blocks * pair.block_size + more)
    first = await pair.decode.complete(ids, 3)
    again = await pair.decode.complete(ids, 3)
    assert first.cached_tokens == 0
    assert again.cached_tokens == shared_tokens(len(ids), pair.block_size, len(ids))
    assert again.token_ids == first.token_ids


@pytest.mark.parametrize(("blocks", "more"), [(1, -2), (1, 0), (1, 1), (2, 3)])
async def test_generated_tokens_are_cached(pair: Pair, prompt: Prompt, blocks: int, more: int) -> None:
    size, generated = pair.block_size, 4
    ids = prompt(blocks * size + more)
    first = await pair.decode.complete(ids, generated)
    longer = [*ids, *first.token_ids, *prompt(5)]
    # The last token generated was never computed.
    assert (await pair.decode.complete(longer)).cached_tokens == shared_tokens(
        len(ids) + generated - 1, size, len(longer)
    )


@pytest.mark.parametrize("edited", [0, 1, -1, -2])
async def test_edit_ends_the_reuse(pair: Pair, prompt: Prompt, edited: int) -> None:
    size = pair.block_size
    ids = prompt(3 * size + 4)
    await pair.decode.complete(ids)
    place = {0: 0, 1: size, -1: 2 * size - 1, -2: 3 * size}[edited]
    other = list(ids)
    other[place] = 500 + (other[place] - 299) % 10
    assert (await pair.decode.complete(other)).cached_tokens == place // size * size


async def test_salts_share_nothing(pair: Pair, prompt: Prompt) -> None:
    size = pair.block_size
    ids = prompt(3 * size + 1)
    whole = 3 * size
    cached = [(await pair.decode.complete(ids, 2, cache_salt=salt)).cached_tokens for salt in ("a", "b", "a", "b")]
    assert cached == [0, 0, whole, whole]
    assert (await pair.decode.complete(ids, 2)).cached_tokens == 0
    assert (await pair.decode.complete(ids, 2)).cached_tokens == whole


async def test_streamed_usage_says_the_same(pair: Pair, prompt: Prompt) -> None:
    ids = prompt(2 * pair.block_size + 3)
    body = pair.decode.completion_body(ids, 2, stream_options={"include_usage": True})
    details = [
        (await pair.decode.stream("/v1/completions", body)).usage["prompt_tokens_details"]["cached_tokens"]
        for _ in range(2)
    ]
    assert details == [0, 2 * pair.block_size]


async def test_chat_history_extends_its_prefix(pair: Pair) -> None:
    salt = {"cache_salt": f"chat-{id(pair)}"}
    messages = [{"role": "user", "content": "List the rivers of Europe, one a line, with their lengths. " * 4}]
    first = await pair.decode.chat(messages, 8, **salt)
    messages += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "And of Asia?"}]
    second = await pair.decode.chat(messages, 1, **salt)
    assert second.cached_tokens >= first.prompt_tokens // pair.block_size * pair.block_size - pair.block_size
    assert second.cached_tokens % pair.block_size == 0
