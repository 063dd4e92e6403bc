"""Turns through a real router and fake engines: what each leg is asked, what the client sees."""

import asyncio
import json
from typing import Any

import pytest

from pdd_e2e.fake_engine import HangBeforeHeaders
from pdd_router.endpoints.engine import Role

SYSTEM = {"role": "system", "content": "You are a patient librarian who answers at length. " * 4}


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text + " and tell me everything about it, please. " * 4}


def owners(request: Any) -> list[int]:
    return [owner["port"] for owner in request.body["kv_transfer_params"]["claim"]["owners"]]


@pytest.mark.parametrize("stream", [False, True])
async def test_follow_up_turn_reads_from_decode_what_it_holds(cluster: Any, stream: bool) -> None:
    async with cluster(engine={"prefix_caching": True}) as c:
        prefill, decode = c.prefills[0], c.decodes[0]
        history: list[Any] = [SYSTEM, user("Tell me of Rome")]
        first = await c.chat(history, stream=stream)
        assert first.status == 200
        assert first.receipt["prefill"]["engine"] == "p0"
        assert first.receipt["decode"] == {"engine": "d0"}
        assert owners(c.legs(prefill)[0]) == []
        assert owners(c.legs(decode)[0]) == [prefill.claim_port]
        history += [{"role": "assistant", "content": first.text}, user("And of Carthage")]
        prefill.prefix_cache.reset()
        second = await c.chat(history, stream=stream)
        assert owners(c.legs(prefill)[1]) == [decode.claim_port]
        assert second.receipt["prefill"]["outcome"] == "Read"
        assert second.receipt["prefill"]["owner"] == "d0"
        assert second.receipt["prefill"]["read_tokens"] > 100
        await c.until_idle()
        assert await c.metric("claim_read_tokens_total", direction="DecodeToPrefill") > 100
        assert await c.metric("claim_read_tokens_total", direction="PrefillToDecode") > 100
        assert all(engine.held_blocks == 0 for engine in c.engines)


@pytest.mark.parametrize("stream", [False, True])
async def test_usage_says_what_was_cached_for_the_turn_and_not_what_decode_read(cluster: Any, stream: bool) -> None:
    fields = {"stream": stream} | ({"stream_options": {"include_usage": True}} if stream else {})
    async with cluster() as c:
        history: list[Any] = [SYSTEM, user("Tell me of Rome")]
        first = await c.chat(history, **fields)
        assert usage_of(first, stream)["prompt_tokens_details"]["cached_tokens"] == 0, "all of it was computed"
        assert await c.metric("claim_read_tokens_total", direction="PrefillToDecode") > 100, "to decode it was cached"
        second = await c.chat([*history, {"role": "assistant", "content": first.text}, user("Go on")], **fields)
        prefill = second.receipt["prefill"]
        cached = usage_of(second, stream)["prompt_tokens_details"]["cached_tokens"]
        assert cached == prefill["local_tokens"] + prefill["read_tokens"] > 100


def usage_of(reply: Any, stream: bool) -> dict[str, Any]:
    found: dict[str, Any] = (reply.events[-1] if stream else reply.body)["usage"]
    return found


async def test_conversation_without_any_id_is_found_by_its_messages(cluster: Any) -> None:
    async with cluster(prefills=2, decodes=2) as c:
        histories: list[list[Any]] = [[SYSTEM, user(f"Subject number {at}")] for at in range(4)]
        first = [await c.chat(history) for history in histories]
        for history, reply in zip(histories, first, strict=True):
            history += [{"role": "assistant", "content": reply.text}, user("Go on")]
        assert {reply.receipt["decode"]["engine"] for reply in first} == {"d0", "d1"}, "equals take turns"
        for history, before in zip(histories, first, strict=True):
            after = await c.chat(history)
            assert after.receipt["decode"] == before.receipt["decode"], "decode is kept for a conversation"
            asked = owners(last_leg(c, after.receipt["prefill"]["engine"]))
            decode = engine_named(c, before.receipt["decode"]["engine"])
            assert asked[0] == decode.claim_port, "decode, which holds the conversation, is asked first"


async def test_conversations_that_are_prefilled_together_do_not_all_go_to_the_same_decode(cluster: Any) -> None:
    async with cluster(decodes=2) as c:
        c.prefills[0].script(HangBeforeHeaders(), times=4)
        tasks = [asyncio.create_task(c.chat([user(f"Subject number {at}")])) for at in range(4)]
        await c.until(lambda: len(c.legs(c.prefills[0])) == 4)
        decodes = c.registry.snapshot().by_role(Role.DECODE)
        assert [(view.expected, view.load, view.in_flight) for view in decodes] == [(2, 2, 0)] * 2
        assert all(view.in_flight_tokens > 0 for view in decodes)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await c.until_idle()
        assert [view.load for view in c.registry.snapshot().engines] == [0, 0, 0]


async def test_new_conversation_is_not_bound_to_the_engine_of_a_shared_preamble(cluster: Any) -> None:
    async with cluster(decodes=2) as c:
        await c.chat([SYSTEM, user("one")])
        hold = c.registry.use(c.registry.snapshot().engines[1].id, 10_000)
        with hold:  # d0 is busy: a conversation of its own would stay, a mere preamble must not
            other = await c.chat([SYSTEM, user("two")])
        assert other.receipt["decode"]["engine"] == "d1"
        assert owners(c.legs(c.prefills[0])[1]) == [c.decodes[0].claim_port], "still asked for the preamble"


@pytest.mark.parametrize(
    ("headers", "fields"),
    [
        ({"X-Session-ID": "abc"}, {}),
        ({"X-Conversation-ID": "abc"}, {}),
        ({}, {"conversation_id": "abc"}),
        ({}, {"session_id": "abc"}),
        ({}, {"prompt_cache_key": "abc"}),
    ],
)
async def test_explicit_id_finds_a_conversation_whose_text_changed(
    cluster: Any, headers: dict[str, str], fields: dict[str, str]
) -> None:
    async with cluster(decodes=2) as c:
        first = await c.chat([user("This was said")], headers=headers, **fields)
        second = await c.chat([user("Something else entirely")], headers=headers, **fields)
        assert second.receipt["decode"] == first.receipt["decode"]
        assert owners(c.legs(c.prefills[0])[1]) == [engine_named(c, first.receipt["decode"]["engine"]).claim_port]
        for engine in c.engines:
            for leg in c.legs(engine):
                assert not leg.body.keys() & {"conversation_id", "session_id", "prompt_cache_key"}
                assert "X-Session-ID" not in leg.headers
        third = await c.chat([user("Nobody knows this")])
        assert owners(last_leg(c, third.receipt["prefill"]["engine"])) == [], "control: no id, no text, no owner"


async def test_both_legs_render_the_same_prompt(cluster: Any) -> None:
    tools = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]
    fields = {
        "tools": tools,
        "tool_choice": "auto",
        "chat_template_kwargs": {"enable_thinking": False},
        "response_format": {"type": "text"},
        "n": 2,
        "temperature": 0.5,
        "logprobs": True,
        "top_logprobs": 2,
        "stop": ["zzz"],
        "min_tokens": 2,
        "unknown_field": {"kept": True},
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    async with cluster() as c:
        assert (await c.chat([SYSTEM, user("hello")], **fields)).status == 200
        prefill, decode = c.legs(c.prefills[0])[0], c.legs(c.decodes[0])[0]
        assert prefill.prompt_tokens == decode.prompt_tokens
        for name in ("messages", "tools", "tool_choice", "chat_template_kwargs", "response_format", "unknown_field"):
            assert prefill.body[name] == decode.body[name]
        assert prefill.body["max_tokens"] == 1
        assert prefill.body["stream"] is False
        assert prefill.body["n"] == 1
        assert not prefill.body.keys() & {"stream_options", "logprobs", "top_logprobs", "stop", "min_tokens"}
        sent = {key: value for key, value in decode.body.items() if key not in ("kv_transfer_params", "cache_salt")}
        assert sent == {
            "model": "fake",
            "messages": [SYSTEM, user("hello")],
            "max_tokens": 4,
            **fields,
        }, "decode gets what the client sent"
        assert "max_completion_tokens" not in prefill.body


async def test_prefill_limits_the_name_that_the_client_used(cluster: Any) -> None:
    async with cluster() as c:
        body = {"model": "fake", "messages": [user("x")], "max_completion_tokens": 7}
        assert (await c.post("/v1/chat/completions", body)).status == 200
        assert c.legs(c.prefills[0])[0].body["max_completion_tokens"] == 1
        assert "max_tokens" not in c.legs(c.prefills[0])[0].body


async def test_one_way_asks_nobody_for_history(cluster: Any) -> None:
    async with cluster(config={"direction": "PrefillToDecode"}) as c:
        history: list[Any] = [SYSTEM, user("one")]
        reply = await c.chat(history)
        await c.chat([*history, {"role": "assistant", "content": reply.text}, user("two")])
        assert [owners(leg) for leg in c.legs(c.prefills[0])] == [[], []]
        assert [owners(leg) for leg in c.legs(c.decodes[0])] == [[c.prefills[0].claim_port]] * 2
        readers = {request.path for request in c.prefills[0].requests if request not in c.legs(c.prefills[0])}
        assert not readers, "prefill engines are introduced to nobody"


@pytest.mark.parametrize(("below", "arm", "why"), [(0, "PrefillDecode", "Split"), (400, "DecodeOnly", "Held")])
async def test_little_new_text_runs_on_the_decode_that_holds_the_rest(
    cluster: Any, below: int, arm: str, why: str
) -> None:
    async with cluster(config={"runOnDecodeBelowTokens": below}) as c:
        history: list[Any] = [SYSTEM, *[user(f"long story part {at}") for at in range(30)]]
        first = await c.chat(history)
        assert first.receipt["arm"] == "PrefillDecode"
        second = await c.chat([*history, {"role": "assistant", "content": first.text}, user("And?")])
        assert (second.receipt["arm"], second.receipt["why"]) == (arm, why)
        assert second.receipt["decode"] == first.receipt["decode"]


async def test_short_prompt_is_not_worth_two_legs(cluster: Any) -> None:
    async with cluster(config={"recomputeThresholdTokens": 64}) as c:
        short = await c.chat([{"role": "user", "content": "Hi"}])
        assert (short.receipt["arm"], short.receipt["why"]) == ("DecodeOnly", "Short")
        assert (await c.chat([SYSTEM, user("Hello")])).receipt["arm"] == "PrefillDecode"


async def test_prompt_logprobs_are_computed_where_they_are_asked_for(cluster: Any) -> None:
    async with cluster() as c:
        body = {"model": "fake", "prompt": "A story. " * 40, "echo": True, "logprobs": 1, "max_tokens": 2}
        reply = await c.post("/v1/completions", body)
        assert reply.receipt["why"] == "Unsplittable"
        assert "kv_transfer_params" not in c.legs(c.decodes[0])[0].body


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"n": 3, "temperature": 0.7, "seed": 1},
        {"logprobs": True, "top_logprobs": 2},
        {"return_token_ids": True},
    ],
)
async def test_answer_is_the_engines_answer(cluster: Any, stream: bool, fields: dict[str, Any]) -> None:
    messages = [SYSTEM, user("What is seen is what was said")]
    body = {"model": "fake", "messages": messages, "max_tokens": 6, "temperature": 0, "stream": stream, **fields}
    if stream:
        body["stream_options"] = {"include_usage": True}
    async with cluster() as c:
        routed = await c.post("/v1/chat/completions", body)
        async with c.session.post(c.decodes[0].url + "/v1/chat/completions", json=body) as response:
            from_engine = await response.read()
        assert routed.status == 200
        if not stream:
            import json

            expected = json.loads(from_engine)
            assert comparable(routed.body) == comparable(expected)
            assert "kv_transfer_params" not in routed.body
            return
        assert routed.done
        assert "kv_transfer_params" not in str(routed.events)
        usage = [event["usage"] for event in routed.events if event.get("usage")]
        assert usage
        assert all(event.get("choices") or event.get("usage") for event in routed.events)


def comparable(answer: dict[str, Any]) -> dict[str, Any]:
    gone = ("id", "created", "kv_transfer_params")
    kept = {key: value for key, value in answer.items() if key not in gone}
    usage = dict(kept["usage"])
    usage.pop("prompt_tokens_details")  # what was cached is what this is all about
    return {**kept, "usage": usage}


async def test_tool_calls_and_their_results_pass(cluster: Any) -> None:
    from pdd_e2e.fake_engine import ToolCalls

    tools = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]
    async with cluster() as c:
        c.decodes[0].script(ToolCalls((("look_up", '{"key": "a"}'),)))
        history: list[Any] = [SYSTEM, user("Look it up")]
        first = await c.chat(history, tools=tools, max_tokens=200)
        message = first.body["choices"][0]["message"]
        assert message["tool_calls"][0]["function"]["name"] == "look_up"
        assert first.body["choices"][0]["finish_reason"] == "tool_calls"
        echoed = {key: value for key, value in message.items() if value is not None}
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "found " * 30}
        second = await c.chat([*history, echoed, result], tools=tools)
        assert owners(c.legs(c.prefills[0])[1]) == [c.decodes[0].claim_port]
        assert second.receipt["decode"] == first.receipt["decode"]


async def test_completions_conversation_is_found_by_its_text(cluster: Any) -> None:
    async with cluster(decodes=2) as c:
        text = "Once upon a time there was a very long text that went on and on. " * 20
        first = await c.post("/v1/completions", {"model": "fake", "prompt": text, "max_tokens": 4})
        more = text + first.body["choices"][0]["text"] + " and it went on. " * 5
        second = await c.post("/v1/completions", {"model": "fake", "prompt": more, "max_tokens": 4})
        assert second.receipt["decode"] == first.receipt["decode"]
        assert owners(c.legs(c.prefills[0])[1]) == [engine_named(c, first.receipt["decode"]["engine"]).claim_port]


@pytest.mark.parametrize("prompt", ["text", ["one text", "another"], [1, 2, 3], [[1, 2, 3], [4, 5]]])
async def test_every_form_of_prompt(cluster: Any, prompt: Any) -> None:
    async with cluster() as c:
        reply = await c.post("/v1/completions", {"model": "fake", "prompt": prompt, "max_tokens": 2})
        assert reply.status == 200
        assert len(reply.body["choices"]) == (2 if isinstance(prompt[0], list) or len(prompt) == 2 else 1)


async def test_receipt_can_be_kept_from_clients(cluster: Any) -> None:
    async with cluster(config={"exposeReceipt": False}) as c:
        reply = await c.chat([user("hello")])
        assert reply.status == 200
        assert "X-PDD-Receipt" not in reply.headers


async def test_models_and_own_paths(cluster: Any) -> None:
    async with cluster() as c:
        assert [card["id"] for card in (await c.get("/v1/models")).body["data"]] == ["fake"]
        assert (await c.get("/v1/models/fake")).body["id"] == "fake"
        missing = await c.get("/v1/models/other")
        assert (missing.status, missing.body["error"]["param"]) == (404, "model")
        unknown = await c.chat([user("x")], model="other")
        assert (unknown.status, unknown.body["error"]["code"]) == (404, "model_not_found")
        assert (await c.get("/health")).status == 200
        ready = await c.get("/ready")
        assert ready.status == 200
        assert ready.body["pairs"] == {"introduced": 2, "wanted": 2}
        text = (await c.get("/metrics")).body
        assert 'pdd_router_engines{role="Decode",state="Available"} 1.0' in text


async def test_openai_client_unchanged(cluster: Any) -> None:
    import openai

    async with cluster() as c, openai.AsyncOpenAI(base_url=c.router.url + "/v1", api_key="none") as client:
        whole = await client.chat.completions.create(
            model="fake", messages=[{"role": "user", "content": "Hello there " * 20}], max_tokens=4, temperature=0
        )
        assert whole.choices[0].message.content
        stream = await client.chat.completions.create(
            model="fake",
            messages=[{"role": "user", "content": "Hello there " * 20}],
            max_tokens=4,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == (
            whole.choices[0].message.content
        )
        assert chunks[-1].usage is not None
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model="fake", messages=[], max_tokens=4)
        assert refused.value.param == "messages"


def engine_named(c: Any, name: str) -> Any:
    return next(engine for engine in c.engines if engine.settings.name == name)


def last_leg(c: Any, name: str) -> Any:
    return c.legs(engine_named(c, name))[-1]


async def test_stream_over_http_1_0_ends_with_the_connection(cluster: Any) -> None:
    """What nginx speaks to its upstreams unless told otherwise."""
    async with cluster() as c:
        host, port = c.router.url.removeprefix("http://").split(":")
        body = json.dumps({"model": "fake", "messages": [{"role": "user", "content": "hi"}], "stream": True})
        for version, connection, chunked in (
            ("1.0", "close", False),
            ("1.0", "keep-alive", False),
            ("1.1", "close", True),
        ):
            reader, writer = await asyncio.open_connection(host, int(port))
            head = f"POST /v1/chat/completions HTTP/{version}\r\nHost: r\r\nConnection: {connection}\r\n"
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write((head + body).encode())
            async with asyncio.timeout(5):
                answer, _, events = (await reader.read()).partition(b"\r\n\r\n")
            writer.close()
            assert answer.startswith(f"HTTP/{version} 200 ".encode())
            assert (b"Transfer-Encoding: chunked" in answer) is chunked
            assert events.endswith(b"0\r\n\r\n" if chunked else b"data: [DONE]\n\n")
        await c.until_idle()
