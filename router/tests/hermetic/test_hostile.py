"""What must never reach an engine: each case is refused with 4xx in OpenAI's form, naming the field where there is one."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
GOOD_CHAT: dict[str, Any] = {"model": "fake", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
GOOD_COMPLETION: dict[str, Any] = {"model": "fake", "prompt": "hello", "max_tokens": 2}
MISSING = object()


def changed(base: dict[str, Any], **fields: Any) -> bytes:
    body = {**base, **fields}
    return json.dumps({key: value for key, value in body.items() if value is not MISSING}).encode()


def messages(*items: Any) -> bytes:
    return changed(GOOD_CHAT, messages=list(items))


def part(**fields: Any) -> bytes:
    return messages({"role": "user", "content": [{"type": "text", "text": "see"}, fields]})


def nested(depth: int) -> bytes:
    return changed(GOOD_CHAT)[:-1] + b', "x": ' + b"[" * depth + b"]" * depth + b"}"


# What it is, where it is sent, its bytes, and the status and field of the refusal.
Case = tuple[str, str, bytes, int, str | None]
BODIES: list[Case] = [
    ("empty", CHAT, b"", 400, None),
    ("not json", CHAT, b"{", 400, None),
    ("text", CHAT, b"hello", 400, None),
    ("array", CHAT, b"[]", 400, None),
    ("string", CHAT, b'"x"', 400, None),
    ("number", CHAT, b"1", 400, None),
    ("null", CHAT, b"null", 400, None),
    ("trailing", CHAT, changed(GOOD_CHAT) + b"x", 400, None),
    ("two objects", CHAT, changed(GOOD_CHAT) * 2, 400, None),
    ("comment", CHAT, b"/* hi */" + changed(GOOD_CHAT), 400, None),
    ("single quotes", CHAT, b"{'model': 'fake'}", 400, None),
    ("bom", CHAT, b"\xef\xbb\xbf" + changed(GOOD_CHAT), 400, None),
    ("latin-1", CHAT, changed(GOOD_CHAT).replace(b"hello", b"h\xe9llo"), 400, None),
    ("overlong utf-8", CHAT, changed(GOOD_CHAT).replace(b"hello", b"\xc0\xaf"), 400, None),
    ("utf-16", CHAT, json.dumps(GOOD_CHAT).encode("utf-16"), 400, None),
    ("raw newline in string", CHAT, changed(GOOD_CHAT).replace(b"hello", b"he\nllo"), 400, None),
    ("lone surrogate", CHAT, changed(GOOD_CHAT).replace(b"hello", b"\\ud800"), 400, None),
    ("reversed surrogates", CHAT, changed(GOOD_CHAT).replace(b"hello", b"\\udc00\\ud800"), 400, None),
    ("nan", CHAT, changed(GOOD_CHAT, temperature=float("nan")), 400, None),
    ("infinity", CHAT, changed(GOOD_CHAT, temperature=float("inf")), 400, None),
    ("minus infinity", CHAT, changed(GOOD_CHAT, top_p=float("-inf")), 400, None),
    ("overflow", CHAT, changed(GOOD_CHAT)[:-1] + b', "temperature": 1e999}', 400, None),
    ("huge integer", CHAT, changed(GOOD_CHAT)[:-1] + b', "seed": ' + b"9" * 5000 + b"}", 400, None),
    ("65 bits", CHAT, changed(GOOD_CHAT, top_k=2**64), 400, None),
    ("65 bits below zero", CHAT, changed(GOOD_CHAT, logit_bias={"1": -(2**63) - 1}), 400, None),
    ("20 digits", CHAT, changed(GOOD_CHAT)[:-1] + b', "x": [' + b"9" * 20 + b"]}", 400, None),
    ("duplicate key", CHAT, changed(GOOD_CHAT)[:-1] + b', "model": "other"}', 400, "model"),
    ("duplicate inner key", CHAT, changed(GOOD_CHAT).replace(b'"role"', b'"role": "system", "role"'), 400, "role"),
    ("deep", CHAT, nested(100), 400, None),
    ("very deep", CHAT, nested(100_000), 400, None),
    ("no model", CHAT, changed(GOOD_CHAT, model=MISSING), 400, "model"),
    ("null model", CHAT, changed(GOOD_CHAT, model=None), 400, "model"),
    ("empty model", CHAT, changed(GOOD_CHAT, model=""), 400, "model"),
    ("number model", CHAT, changed(GOOD_CHAT, model=1), 400, "model"),
    ("list model", CHAT, changed(GOOD_CHAT, model=["fake"]), 400, "model"),
    ("long model", CHAT, changed(GOOD_CHAT, model="m" * 300), 400, "model"),
    ("unknown model", CHAT, changed(GOOD_CHAT, model="gpt-4"), 404, "model"),
    ("path as model", CHAT, changed(GOOD_CHAT, model="../../etc/passwd"), 404, "model"),
    ("no messages", CHAT, changed(GOOD_CHAT, messages=MISSING), 400, "messages"),
    ("null messages", CHAT, changed(GOOD_CHAT, messages=None), 400, "messages"),
    ("empty messages", CHAT, changed(GOOD_CHAT, messages=[]), 400, "messages"),
    ("string messages", CHAT, changed(GOOD_CHAT, messages="hello"), 400, "messages"),
    ("object messages", CHAT, changed(GOOD_CHAT, messages={}), 400, "messages"),
    ("too many messages", CHAT, messages(*[{"role": "user", "content": "x"}] * 5000), 400, "messages"),
    ("string message", CHAT, messages("hello"), 400, "messages[0]"),
    ("null message", CHAT, messages(None), 400, "messages[0]"),
    ("list message", CHAT, messages([]), 400, "messages[0]"),
    ("second message bad", CHAT, messages({"role": "user", "content": "x"}, 7), 400, "messages[1]"),
    ("no role", CHAT, messages({"content": "x"}), 400, "messages[0].role"),
    ("empty role", CHAT, messages({"role": "", "content": "x"}), 400, "messages[0].role"),
    ("number role", CHAT, messages({"role": 1, "content": "x"}), 400, "messages[0].role"),
    ("long role", CHAT, messages({"role": "r" * 65, "content": "x"}), 400, "messages[0].role"),
    ("number content", CHAT, messages({"role": "user", "content": 1}), 400, "messages[0].content"),
    ("object content", CHAT, messages({"role": "user", "content": {}}), 400, "messages[0].content"),
    ("bool content", CHAT, messages({"role": "user", "content": True}), 400, "messages[0].content"),
    ("string part", CHAT, messages({"role": "user", "content": ["x"]}), 400, "messages[0].content[0]"),
    ("null part", CHAT, messages({"role": "user", "content": [None]}), 400, "messages[0].content[0]"),
    ("string tool calls", CHAT, messages({"role": "assistant", "tool_calls": "x"}), 400, "messages[0].tool_calls"),
    ("bad tool call", CHAT, messages({"role": "assistant", "tool_calls": [1]}), 400, "messages[0].tool_calls"),
    (
        "ssrf image",
        CHAT,
        part(type="image_url", image_url={"url": "http://169.254.169.254/latest"}),
        400,
        "messages[0].content[1].image_url",
    ),
    (
        "ssrf string",
        CHAT,
        part(type="image_url", image_url="http://10.0.0.1/"),
        400,
        "messages[0].content[1].image_url",
    ),
    ("file url", CHAT, part(type="image_url", image_url="file:///etc/passwd"), 400, "messages[0].content[1].image_url"),
    ("video", CHAT, part(type="video_url", video_url={"url": "https://x/"}), 400, "messages[0].content[1].video_url"),
    ("audio", CHAT, part(type="audio_url", audio_url={"url": "ftp://x/"}), 400, "messages[0].content[1].audio_url"),
    ("bare url", CHAT, part(type="input_image", url="http://x/"), 400, "messages[0].content[1].url"),
    ("number url", CHAT, part(type="image_url", image_url={"url": 1}), 400, "messages[0].content[1].image_url"),
    ("n zero", CHAT, changed(GOOD_CHAT, n=0), 400, "n"),
    ("n negative", CHAT, changed(GOOD_CHAT, n=-1), 400, "n"),
    ("n huge", CHAT, changed(GOOD_CHAT, n=16384), 400, "n"),
    ("n float", CHAT, changed(GOOD_CHAT, n=1.5), 400, "n"),
    ("n bool", CHAT, changed(GOOD_CHAT, n=True), 400, "n"),
    ("n string", CHAT, changed(GOOD_CHAT, n="1"), 400, "n"),
    ("best_of huge", COMPLETIONS, changed(GOOD_COMPLETION, best_of=10_000), 400, "best_of"),
    ("n times prompts", COMPLETIONS, changed(GOOD_COMPLETION, n=16, prompt=["x"] * 16), 400, "n"),
    ("max_tokens zero", CHAT, changed(GOOD_CHAT, max_tokens=0), 400, "max_tokens"),
    ("max_tokens negative", CHAT, changed(GOOD_CHAT, max_tokens=-5), 400, "max_tokens"),
    ("max_tokens huge", CHAT, changed(GOOD_CHAT, max_tokens=10**12), 400, "max_tokens"),
    ("max_tokens string", CHAT, changed(GOOD_CHAT, max_tokens="5"), 400, "max_tokens"),
    ("max_tokens bool", CHAT, changed(GOOD_CHAT, max_tokens=True), 400, "max_tokens"),
    ("new name zero", CHAT, changed(GOOD_CHAT, max_completion_tokens=0), 400, "max_completion_tokens"),
    ("new name list", CHAT, changed(GOOD_CHAT, max_completion_tokens=[]), 400, "max_completion_tokens"),
    ("min_tokens negative", CHAT, changed(GOOD_CHAT, min_tokens=-1), 400, "min_tokens"),
    ("seed huge", CHAT, changed(GOOD_CHAT, seed=2**64 - 1), 400, "seed"),
    ("stop number", CHAT, changed(GOOD_CHAT, stop=1), 400, "stop"),
    ("stop object", CHAT, changed(GOOD_CHAT, stop={}), 400, "stop"),
    ("stop numbers", CHAT, changed(GOOD_CHAT, stop=["a", 1]), 400, "stop[1]"),
    ("stop empty string", CHAT, changed(GOOD_CHAT, stop=[""]), 400, "stop[0]"),
    ("stop many", CHAT, changed(GOOD_CHAT, stop=["a"] * 1000), 400, "stop"),
    ("stop long", CHAT, changed(GOOD_CHAT, stop="a" * 5000), 400, "stop"),
    ("stop ids many", CHAT, changed(GOOD_CHAT, stop_token_ids=[1] * 1000), 400, "stop_token_ids"),
    ("bad words", CHAT, changed(GOOD_CHAT, bad_words=["a"] * 5000), 400, "bad_words"),
    ("bias list", CHAT, changed(GOOD_CHAT, logit_bias=[]), 400, "logit_bias"),
    ("bias many", CHAT, changed(GOOD_CHAT, logit_bias={str(at): 1 for at in range(2000)}), 400, "logit_bias"),
    ("stream string", CHAT, changed(GOOD_CHAT, stream="true"), 400, "stream"),
    ("stream number", CHAT, changed(GOOD_CHAT, stream=1), 400, "stream"),
    ("options alone", CHAT, changed(GOOD_CHAT, stream_options={"include_usage": True}), 400, "stream_options"),
    ("options list", CHAT, changed(GOOD_CHAT, stream=True, stream_options=[]), 400, "stream_options"),
    ("temperature string", CHAT, changed(GOOD_CHAT, temperature="hot"), 400, "temperature"),
    ("temperature bool", CHAT, changed(GOOD_CHAT, temperature=True), 400, "temperature"),
    ("top_p list", CHAT, changed(GOOD_CHAT, top_p=[]), 400, "top_p"),
    ("penalty object", CHAT, changed(GOOD_CHAT, presence_penalty={}), 400, "presence_penalty"),
    ("logprobs number", CHAT, changed(GOOD_CHAT, logprobs=5), 400, "logprobs"),
    ("top_logprobs huge", CHAT, changed(GOOD_CHAT, logprobs=True, top_logprobs=100_000), 400, "top_logprobs"),
    ("logprobs bool", COMPLETIONS, changed(GOOD_COMPLETION, logprobs=True), 400, "logprobs"),
    ("prompt_logprobs huge", CHAT, changed(GOOD_CHAT, prompt_logprobs=100_000), 400, "prompt_logprobs"),
    ("tools object", CHAT, changed(GOOD_CHAT, tools={}), 400, "tools"),
    ("tools numbers", CHAT, changed(GOOD_CHAT, tools=[1]), 400, "tools[0]"),
    ("tools many", CHAT, changed(GOOD_CHAT, tools=[{}] * 1000), 400, "tools"),
    ("tool_choice number", CHAT, changed(GOOD_CHAT, tool_choice=1), 400, "tool_choice"),
    ("response_format", CHAT, changed(GOOD_CHAT, response_format="json"), 400, "response_format"),
    ("template arguments", CHAT, changed(GOOD_CHAT, chat_template_kwargs=[1]), 400, "chat_template_kwargs"),
    ("xargs", CHAT, changed(GOOD_CHAT, vllm_xargs="kv_transfer_params"), 400, "vllm_xargs"),
    ("user object", CHAT, changed(GOOD_CHAT, user={}), 400, "user"),
    ("id number", CHAT, changed(GOOD_CHAT, conversation_id=1), 400, "conversation_id"),
    ("id long", CHAT, changed(GOOD_CHAT, session_id="x" * 300), 400, "session_id"),
    ("id object", CHAT, changed(GOOD_CHAT, prompt_cache_key={}), 400, "prompt_cache_key"),
    ("no prompt", COMPLETIONS, changed(GOOD_COMPLETION, prompt=MISSING), 400, "prompt"),
    ("null prompt", COMPLETIONS, changed(GOOD_COMPLETION, prompt=None), 400, "prompt"),
    ("number prompt", COMPLETIONS, changed(GOOD_COMPLETION, prompt=1), 400, "prompt"),
    ("object prompt", COMPLETIONS, changed(GOOD_COMPLETION, prompt={}), 400, "prompt"),
    ("empty prompts", COMPLETIONS, changed(GOOD_COMPLETION, prompt=[]), 400, "prompt"),
    ("null in prompts", COMPLETIONS, changed(GOOD_COMPLETION, prompt=["x", None]), 400, "prompt[1]"),
    ("negative id", COMPLETIONS, changed(GOOD_COMPLETION, prompt=[1, -1]), 400, "prompt[0]"),
    ("huge id", COMPLETIONS, changed(GOOD_COMPLETION, prompt=[[2**40]]), 400, "prompt[0]"),
    ("bool ids", COMPLETIONS, changed(GOOD_COMPLETION, prompt=[True]), 400, "prompt[0]"),
    ("mixed prompts", COMPLETIONS, changed(GOOD_COMPLETION, prompt=["x", [1]]), 400, "prompt"),
    ("many prompts", COMPLETIONS, changed(GOOD_COMPLETION, prompt=["x"] * 1000), 400, "prompt"),
    ("empty ids", COMPLETIONS, changed(GOOD_COMPLETION, prompt=[[]]), 400, "prompt[0]"),
    ("embeds", COMPLETIONS, changed(GOOD_COMPLETION, prompt_embeds="gASV"), 400, "prompt_embeds"),
    ("echo string", COMPLETIONS, changed(GOOD_COMPLETION, echo="yes"), 400, "echo"),
    ("suffix number", COMPLETIONS, changed(GOOD_COMPLETION, suffix=1), 400, "suffix"),
    ("too large", CHAT, messages({"role": "user", "content": "x" * 300_000}), 413, None),
]
HEADERS: list[tuple[str, dict[str, str], int, str | None]] = [
    ("no content type", {"Content-Type": "text/plain"}, 415, "Content-Type"),
    ("form", {"Content-Type": "application/x-www-form-urlencoded"}, 415, "Content-Type"),
    ("charset", {"Content-Type": "application/json; charset=utf-16"}, 415, "Content-Type"),
    ("gzip", {"Content-Encoding": "gzip"}, 415, "Content-Encoding"),
    ("brotli", {"Content-Encoding": "br"}, 415, "Content-Encoding"),
    ("unknown encoding", {"Content-Encoding": "snappy"}, 415, "Content-Encoding"),
    ("large header", {"X-Padding": "x" * 16_500}, 431, None),
    ("many headers", {f"X-{at}": "x" * 40 for at in range(300)}, 400, None),
    ("empty id", {"X-Session-ID": ""}, 400, "X-Session-ID"),
    ("long id", {"X-Conversation-ID": "x" * 300}, 400, "X-Conversation-ID"),
    ("unprintable id", {"X-Session-ID": "a\xa0b"}, 400, "X-Session-ID"),
]
PATHS = [
    "/", "/v1", "/v1/", "/v1/responses", "/v1/messages", "/v1/embeddings", "/v1/chat/completions/render", "/invocations",
    "/pause", "/resume", "/tokenize", "/detokenize", "/score", "/rerank", "/sleep", "/wake_up", "/is_sleeping",
    "/collective_rpc", "/server_info", "/reset_prefix_cache", "/scale_elastic_ep", "/update_weights", "/load", "/version",
    "/kv_event_sources", "/inference/v1/generate", "/v2/models", "/v1/load_lora_adapter", "/docs", "/openapi.json",
    "//v1/chat/completions", "/V1/chat/completions", "/v1/chat/completions/", "/v1/../reset_prefix_cache",
    "/v1/chat%2Fcompletions/..", "/v1/chat/completions%00", "/v1/models/../../sleep", "/abort_requests", "/ping",
    "/.env",
]  # fmt: skip


async def test_hundred_and_more_bad_bodies(cluster: Any) -> None:
    assert len(BODIES) >= 100
    async with cluster(config={"limits": {"maxBodyBytes": 300_000}}) as c:
        wrong = []
        for name, path, body, status, param in BODIES:
            reply = await c.post(path, body)
            error = reply.body.get("error", {}) if isinstance(reply.body, dict) else {}
            if reply.status != status or error.get("param") != param or not error.get("message"):
                wrong.append((name, reply.status, error))
        assert not wrong
        assert all(not c.legs(engine) for engine in c.engines), "engines never saw them"
        assert (await c.post(CHAT, changed(GOOD_CHAT))).status == 200, "control: the good body passes"
        assert (await c.post(COMPLETIONS, changed(GOOD_COMPLETION))).status == 200
        await c.until_idle()


async def test_bad_headers(cluster: Any) -> None:
    async with cluster() as c:
        for name, headers, status, param in HEADERS:
            reply = await c.post(CHAT, changed(GOOD_CHAT), headers)
            assert (reply.status, reply.body["error"]["param"]) == (status, param), name
        assert all(not c.legs(engine) for engine in c.engines)


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
async def test_router_is_an_allowlist(cluster: Any, method: str) -> None:
    """S4."""
    from yarl import URL

    async with cluster() as c:
        before = [len(engine.requests) for engine in c.engines]
        for path in PATHS:
            url = URL(c.router.url + path, encoded=True)
            async with c.session.request(method, url, json={}, allow_redirects=False) as response:
                assert response.status in (404, 405), path
                assert (await response.json())["error"]["message"]
        for path in (CHAT, COMPLETIONS, "/v1/models", "/metrics"):
            if method not in ("GET", "POST"):
                async with c.session.request(method, c.router.url + path) as response:
                    assert response.status == 405
                    assert (await response.json())["error"]["code"] == "method_not_allowed"
        assert [len(engine.requests) for engine in c.engines] == before


RAW = [
    b"GARBAGE\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 8 + b"\r\n\r\n",
    b"POST /v1/chat/completions HTTP/9.9\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: abc\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\nhello",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nbad header\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-A: a\x00b\r\n\r\n",
    b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * 70_000 + b"\r\n\r\n",
]


async def test_broken_http_is_refused_in_openai_form(cluster: Any) -> None:
    async with cluster() as c:
        host, port = c.router.url.removeprefix("http://").split(":")
        for raw in RAW:
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(raw)
            async with asyncio.timeout(5):
                answer = await reader.read()
            writer.close()
            head, _, body = answer.partition(b"\r\n\r\n")
            assert head.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4")), raw[:60]
            assert json.loads(body)["error"]["message"], raw[:60]
        assert all(not c.legs(engine) for engine in c.engines)
        assert (await c.post(CHAT, changed(GOOD_CHAT))).status == 200


@pytest.mark.parametrize(
    "begun",
    [b"", b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n", b"GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET /"],
)
async def test_headers_that_never_end_are_given_up(cluster: Any, begun: bytes) -> None:
    async with cluster(config={"limits": {"idleTimeoutSeconds": 0.3}}) as c:
        host, port = c.router.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(begun)
        trickle = asyncio.create_task(send_slowly(writer if begun else None))  # which must not count as being there
        async with asyncio.timeout(5):
            answer = await reader.read()
        assert answer.count(b"HTTP/1.1") == begun.count(b"\r\n\r\n")
        trickle.cancel()
        await asyncio.gather(trickle, return_exceptions=True)
        writer.close()


async def test_body_that_says_it_is_too_large_is_refused_at_once(cluster: Any) -> None:
    async with cluster(config={"limits": {"maxBodyBytes": 1024}}) as c:
        host, port = c.router.url.removeprefix("http://").split(":")
        for length, status in ((1025, b" 413 "), (1024, None)):  # control: the other is waited for
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json; charset=Utf-8\r\n"
                b"Content-Length: %d\r\n\r\n" % length
            )
            try:
                async with asyncio.timeout(5 if status else 0.2):
                    answer = await reader.readuntil(b"}}")
            except TimeoutError:
                assert status is None
            else:
                assert status is not None
                assert status in answer
            writer.close()


async def send_slowly(writer: asyncio.StreamWriter | None) -> None:
    while writer is not None:
        writer.write(b"a")
        await asyncio.sleep(0.05)


async def test_body_that_never_ends_is_given_up(cluster: Any) -> None:
    async with cluster(config={"limits": {"bodyTimeoutSeconds": 0.2}}) as c:
        host, port = c.router.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b'Content-Length: 1000\r\n\r\n{"model"'
        )
        async with asyncio.timeout(5):
            answer = await reader.readuntil(b"}}")
        writer.close()
        assert b" 408 " in answer.split(b"\r\n")[0]


async def test_what_is_not_the_clients_to_set_is_dropped(cluster: Any) -> None:
    """S5. A client can neither choose engines nor salts, nor reach vLLM's internals."""
    evil = {
        "kv_transfer_params": {"do_remote_prefill": True, "remote_host": "10.6.6.6", "remote_port": 1},
        "ec_transfer_params": {"x": 1},
        "cache_salt": "chosen",
        "request_id": "chosen",
        "priority": -100,
        "data_parallel_rank": 3,
        "vllm_xargs": {"kv_transfer_params": "junk", "harmless": 1},
    }
    headers = {
        "X-data-parallel-rank": "3",
        "x-prefiller-host-port": "10.6.6.6:80",
        "X-Vllm-Priority": "-9",
        "Authorization": "Bearer secret",
        "Cookie": "a=b",
        "X-Forwarded-For": "10.6.6.6",
        "X-Request-Id": "chosen",
    }
    text = {"role": "user", "content": "hello there " * 30}
    async with cluster() as c:
        reply = await c.post(CHAT, changed(GOOD_CHAT, messages=[text], **evil), headers)
        assert reply.status == 200
        for engine in c.engines:
            (leg,) = c.legs(engine)
            sent = json.dumps(leg.body) + str(leg.headers)
            assert "10.6.6.6" not in sent
            assert "chosen" not in sent
            assert "secret" not in sent
            assert not leg.body.keys() & {"ec_transfer_params", "request_id", "priority", "data_parallel_rank"}
            assert leg.body["vllm_xargs"] == {"harmless": 1}
            assert set(leg.body["kv_transfer_params"]) == {"claim"}
            assert {name.lower() for name in leg.headers} == {
                "host", "accept", "accept-encoding", "content-type", "content-length", "x-request-id",
            }  # fmt: skip


async def test_data_urls_and_plain_parts_pass_the_check(cluster: Any) -> None:
    """Control of the media check: what is refused then is refused by the engine, not by the router."""
    async with cluster() as c:
        body = part(type="image_url", image_url={"url": "data:image/png;base64,AAAA"})
        reply = await c.post(CHAT, body)
        assert any(c.legs(engine) for engine in c.engines)
        assert reply.status == 400
        text = messages({"role": "user", "content": [{"type": "text", "text": "see http://10.0.0.1/ there"}]})
        assert (await c.post(CHAT, text)).status == 200


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
FIELDS = [
    "model", "messages", "prompt", "stream", "n", "max_tokens", "stop", "tools", "tool_choice", "logprobs", "logit_bias",
    "kv_transfer_params", "cache_salt", "conversation_id", "vllm_xargs", "stream_options", "temperature",
]  # fmt: skip


async def test_no_body_at_all_makes_the_router_fail(cluster: Any) -> None:
    """Anything JSON: answered by an engine or refused in OpenAI's form; never a 5xx, never a hang, nothing left behind."""
    async with cluster() as c:
        examples: list[tuple[str, dict[str, Any]]] = []

        @settings(max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(st.sampled_from([CHAT, COMPLETIONS]), st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4))
        def collect(path: str, fields: dict[str, Any]) -> None:
            examples.append((path, fields))

        collect()
        for path, fields in examples:
            base = GOOD_CHAT if path == CHAT else GOOD_COMPLETION
            reply = await c.post(path, json.dumps({**base, **fields}).encode())
            assert reply.status == 200 or 400 <= reply.status < 500, fields
            if reply.status != 200:
                assert reply.body["error"]["message"]
        await c.until_idle()
