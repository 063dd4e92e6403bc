"""The OpenAI surface as the router relies on it: shapes of whole and streamed answers, finish reasons, usage."""

import json
from collections.abc import Callable

from pdd_e2e.engine_pair import Pair, Streamed

Prompt = Callable[[int], list[int]]
HELLO = [{"role": "user", "content": "Say something about the sea."}]
USAGE = {"include_usage": True}


async def test_small_paths(pair: Pair) -> None:
    for engine in (pair.prefill, pair.decode):
        assert (await engine.get("/health")) == (200, "")
        status, text = await engine.get("/version")
        assert status == 200
        assert isinstance(json.loads(text)["version"], str)
        status, text = await engine.get("/v1/models")
        models = json.loads(text)
        assert models["object"] == "list"
        assert models["data"][0]["id"] == engine.card.model
        assert models["data"][0]["max_model_len"] > 0


async def test_metrics_that_the_router_reads(pair: Pair) -> None:
    for name in (
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_hits_total",
        "vllm:external_prefix_cache_queries_total",
        "vllm:external_prefix_cache_hits_total",
        "vllm:prompt_tokens_total",
        "vllm:generation_tokens_total",
    ):
        assert await pair.decode.metric(name) >= 0


async def test_whole_chat_answer(pair: Pair) -> None:
    body = (await pair.decode.chat(HELLO, 6)).body
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    assert body["model"] == pair.decode.card.model
    assert body["kv_transfer_params"] is None
    assert isinstance(body["created"], int)
    (choice,) = body["choices"]
    assert choice["index"] == 0
    assert choice["finish_reason"] == "length"
    assert choice["stop_reason"] is None
    assert choice["logprobs"] is None
    assert choice["message"]["role"] == "assistant"
    assert isinstance(choice["message"]["content"], str)
    assert "tool_calls" not in choice["message"]
    usage = body["usage"]
    assert usage["completion_tokens"] == 6
    assert usage["total_tokens"] == usage["prompt_tokens"] + 6


async def test_whole_completion_answer(pair: Pair, prompt: Prompt) -> None:
    ids = prompt(20)
    body = (await pair.decode.complete(ids, 5)).body
    assert body["object"] == "text_completion"
    assert body["id"].startswith("cmpl-")
    assert body["kv_transfer_params"] is None
    (choice,) = body["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["prompt_token_ids"] == ids
    assert len(choice["token_ids"]) == 5
    assert body["usage"]["prompt_tokens"] == 20
    assert body["usage"]["completion_tokens"] == 5


async def test_several_prompts_and_choices_are_numbered_through(pair: Pair, prompt: Prompt) -> None:
    body = pair.decode.completion_body([], 2, n=2, temperature=1, seed=7) | {"prompt": [prompt(5), prompt(9)]}
    answer = await pair.decode.post("/v1/completions", body)
    assert [choice["index"] for choice in answer.body["choices"]] == [0, 1, 2, 3]
    assert answer.body["usage"]["prompt_tokens"] == 14
    assert answer.body["usage"]["completion_tokens"] == 8


async def test_n_choices(pair: Pair) -> None:
    body = pair.decode.chat_body(HELLO, 4, n=2, temperature=1, seed=3)
    whole = await pair.decode.post("/v1/chat/completions", body)
    assert sorted(choice["index"] for choice in whole.body["choices"]) == [0, 1]
    streamed = await pair.decode.stream("/v1/chat/completions", body | {"stream_options": USAGE})
    seen = {choice["index"] for chunk in streamed.chunks for choice in chunk["choices"]}
    assert seen == {0, 1}
    assert streamed.finish_reasons == ["length", "length"]
    assert streamed.usage["completion_tokens"] == 8


async def test_chat_stream(pair: Pair) -> None:
    whole = await pair.decode.chat(HELLO, 6)
    body = pair.decode.chat_body(HELLO, 6)
    streamed = await pair.decode.stream("/v1/chat/completions", body)
    check_stream(streamed, "chat.completion.chunk")
    first = streamed.chunks[0]["choices"][0]
    assert first["delta"] == {"role": "assistant", "content": ""}
    assert first["finish_reason"] is None
    assert streamed.text == whole.text
    assert streamed.finish_reasons == ["length"]
    assert streamed.chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert all(chunk.get("usage") is None for chunk in streamed.chunks)


async def test_completion_stream(pair: Pair, prompt: Prompt) -> None:
    ids = prompt(21)
    whole = await pair.decode.complete(ids, 6)
    streamed = await pair.decode.stream("/v1/completions", pair.decode.completion_body(ids, 6))
    check_stream(streamed, "text_completion")
    assert streamed.text == whole.text
    assert streamed.finish_reasons == ["length"]
    tokens = [token for chunk in streamed.chunks for token in chunk["choices"][0]["token_ids"] or ()]
    assert tokens == whole.token_ids
    assert streamed.chunks[0]["choices"][0]["prompt_token_ids"] == ids


def check_stream(streamed: Streamed, kind: str) -> None:
    """What every good stream has in common."""
    assert streamed.status == 200
    assert streamed.content_type.startswith("text/event-stream")
    assert streamed.done
    assert {chunk["object"] for chunk in streamed.chunks} == {kind}
    assert len({chunk["id"] for chunk in streamed.chunks}) == 1
    assert len({chunk["created"] for chunk in streamed.chunks}) == 1


async def test_usage_comes_in_one_chunk_without_choices(pair: Pair) -> None:
    whole = await pair.decode.chat(HELLO, 3)
    for path, body in (
        ("/v1/chat/completions", pair.decode.chat_body(HELLO, 3)),
        ("/v1/completions", pair.decode.completion_body("Say something about the sea.", 3)),
    ):
        streamed = await pair.decode.stream(path, body | {"stream_options": USAGE})
        with_usage = [chunk for chunk in streamed.chunks if chunk.get("usage")]
        assert len(with_usage) == 1
        assert with_usage[0]["choices"] == []
        assert with_usage[0] is streamed.chunks[-1]
        assert streamed.usage["completion_tokens"] == 3
        if path.endswith("chat/completions"):
            assert streamed.usage["prompt_tokens"] == whole.prompt_tokens


async def test_continuous_usage(pair: Pair) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    streamed = await pair.decode.stream(
        "/v1/chat/completions", pair.decode.chat_body(HELLO, 3) | {"stream_options": options}
    )
    counts = [chunk["usage"]["completion_tokens"] for chunk in streamed.chunks]
    assert counts[0] == 0
    assert counts[-1] == 3
    assert counts == sorted(counts)


async def test_logprobs(pair: Pair, prompt: Prompt) -> None:
    chat = await pair.decode.chat(HELLO, 4, logprobs=True, top_logprobs=3)
    content = chat.body["choices"][0]["logprobs"]["content"]
    assert len(content) == 4
    for item in content:
        assert len(item["top_logprobs"]) == 3
        assert item["logprob"] == max(top["logprob"] for top in item["top_logprobs"])
        assert item["logprob"] <= 0
    completion = await pair.decode.complete(prompt(12), 4, logprobs=2)
    logprobs = completion.body["choices"][0]["logprobs"]
    assert [len(logprobs[name]) for name in ("tokens", "token_logprobs", "text_offset", "top_logprobs")] == [4] * 4
    streamed = await pair.decode.stream(
        "/v1/chat/completions", pair.decode.chat_body(HELLO, 4, logprobs=True, top_logprobs=3)
    )
    parts = [
        item
        for chunk in streamed.chunks
        for choice in chunk["choices"]
        for item in (choice.get("logprobs") or {}).get("content", ())
    ]
    assert [item["token"] for item in parts] == [item["token"] for item in content]


async def test_stop_string_is_cut_and_named(pair: Pair) -> None:
    text = (await pair.decode.chat(HELLO, 8)).text
    middle = len(text) // 2
    stop = text[middle : middle + 3]
    before = text[: text.index(stop)]
    whole = await pair.decode.chat(HELLO, 8, stop=[stop])
    assert whole.text == before
    assert whole.body["choices"][0]["finish_reason"] == "stop"
    assert whole.body["choices"][0]["stop_reason"] == stop
    streamed = await pair.decode.stream("/v1/chat/completions", pair.decode.chat_body(HELLO, 8, stop=stop))
    assert streamed.text == before
    assert streamed.finish_reasons == ["stop"]


async def test_request_id_of_the_client_is_in_the_answer(pair: Pair) -> None:
    headers = {"X-Request-Id": "turn-17"}
    body = pair.decode.chat_body(HELLO, 1)
    url = pair.decode.card.url + "/v1/chat/completions"
    async with pair.decode.session.post(url, json=body, headers=headers) as response:
        assert (await response.json())["id"] == "chatcmpl-turn-17"


async def test_unknown_fields_are_ignored(pair: Pair) -> None:
    answer = await pair.decode.chat(HELLO, 1, no_such_field={"a": 1}, user="u", metadata={"k": "v"})
    assert answer.status == 200
