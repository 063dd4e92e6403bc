"""Scripted faults, as a plain HTTP client sees them."""

import asyncio
import json
import time
from typing import Any

import aiohttp
import pytest

from pdd_e2e.fake_engine import (
    Abort,
    Answer,
    CloseWithoutDone,
    Die,
    ErrorIn200,
    Fault,
    FinishError,
    GarbageJson,
    HangBeforeHeaders,
    HangMidStream,
    MalformedSse,
    ResetAfterBytes,
    ResetAfterEvents,
    ResetBeforeHeaders,
    SlowChunks,
    Status,
    ToolCalls,
)

HELLO = [{"role": "user", "content": "hello"}]
CHAT = "/v1/chat/completions"
BROKEN = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError)


def stream_body(fake: Any, **fields: Any) -> dict[str, Any]:
    return {**fake.http.chat_body(HELLO, 4), "stream": True, **fields}


async def read_until_broken(fake: Any, body: dict[str, Any]) -> bytes:
    """All bytes of the body that arrive before the connection breaks; fails if it does not."""
    data = b""
    async with fake.http.session.post(fake.http.card.url + CHAT, json=body) as response:
        assert response.status == 200
        with pytest.raises(BROKEN):
            while True:
                part = await response.content.readany()
                assert part, "the answer ended in good order"
                data += part
    return data


@pytest.mark.parametrize("path", ["/health", "/v1/models", CHAT])
async def test_status(start: Any, path: str) -> None:
    fake = await start()
    fake.inside.script(Status(503, {"error": {"message": "m"}}, {"Retry-After": "7"}), path=path)
    request = (
        fake.http.session.post(fake.http.card.url + path, json={})
        if path == CHAT
        else fake.http.session.get(fake.http.card.url + path)
    )
    async with request as response:
        assert response.status == 503
        assert response.headers["Retry-After"] == "7"
        assert await response.json() == {"error": {"message": "m"}}


async def test_status_without_a_body_has_vllms_error(start: Any) -> None:
    fake = await start()
    fake.inside.script(Status(500))
    answer = await fake.http.post(CHAT, stream_body(fake))
    assert answer.status == 500
    assert answer.body["error"]["code"] == 500


async def test_hang_before_headers_until_the_client_leaves(start: Any) -> None:
    fake = await start()
    fake.inside.script(HangBeforeHeaders())
    request = asyncio.create_task(fake.http.post(CHAT, fake.http.chat_body(HELLO)))
    done, _ = await asyncio.wait([request], timeout=0.1)
    assert not done
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)
    (record,) = fake.inside.requests
    async with asyncio.timeout(5):
        await record.ended.wait()
    assert record.aborted_at is not None


async def test_hang_mid_stream(start: Any) -> None:
    fake = await start()
    fake.inside.script(HangMidStream(2))
    async with fake.http.session.post(fake.http.card.url + CHAT, json=stream_body(fake)) as response:
        for _ in range(4):
            assert await response.content.readline()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await response.content.readline()
        assert fake.inside.running == 1
        response.close()
    await fake.inside.core.pulse.wait_until(lambda: fake.inside.running == 0)


@pytest.mark.parametrize("stream", [False, True])
async def test_reset_before_headers(start: Any, stream: bool) -> None:
    fake = await start()
    fake.inside.script(ResetBeforeHeaders())
    with pytest.raises(aiohttp.ClientConnectionError):
        await fake.http.post(CHAT, stream_body(fake, stream=stream))


@pytest.mark.parametrize("count", [1, 100, 350])
async def test_reset_after_bytes(start: Any, count: int) -> None:
    fake = await start()
    fake.inside.script(ResetAfterBytes(count))
    assert len(await read_until_broken(fake, stream_body(fake))) == count
    fake.inside.script(ResetAfterBytes(count))
    assert len(await read_until_broken(fake, fake.http.chat_body(HELLO, 4))) == count


@pytest.mark.parametrize("count", [0, 1, 3])
async def test_reset_after_events(start: Any, count: int) -> None:
    fake = await start()
    fake.inside.script(ResetAfterEvents(count))
    # The reset may overtake the last events, as on a real network.
    assert (await read_until_broken(fake, stream_body(fake))).count(b"\n\n") <= count


async def test_slow_chunks(start: Any) -> None:
    fake = await start()
    fake.inside.script(SlowChunks(0.03))
    started = time.monotonic()
    answer = await fake.http.stream(CHAT, stream_body(fake))
    assert answer.done
    assert time.monotonic() - started >= 0.03 * len(answer.chunks)


@pytest.mark.parametrize(("after", "events"), [(0, 0), (2, 2), (None, 5)])
async def test_close_without_done(start: Any, after: int | None, events: int) -> None:
    fake = await start()
    fake.inside.script(CloseWithoutDone(after))
    answer = await fake.http.stream(CHAT, stream_body(fake))
    assert not answer.done
    assert len(answer.chunks) == events


async def test_finish_error(start: Any) -> None:
    fake = await start()
    fake.inside.script(FinishError(2), FinishError(0), FinishError(2))
    whole = await fake.http.post(CHAT, fake.http.chat_body(HELLO, 4))
    assert whole.status == 500
    assert whole.body["error"] == {
        "message": "Internal server error",
        "type": "InternalServerError",
        "param": None,
        "code": 500,
    }
    at_once = await fake.http.stream(CHAT, stream_body(fake))
    assert at_once.chunks == [whole.body]
    assert at_once.done, "vLLM ends a failed stream with [DONE] too"
    later = await fake.http.stream(CHAT, stream_body(fake))
    assert later.chunks[-1] == whole.body
    assert len(later.chunks) == 4
    assert fake.inside.held_blocks == 0


@pytest.mark.parametrize(("after", "finish"), [(2, ["abort"]), (0, [])])
async def test_abort(start: Any, after: int, finish: list[str]) -> None:
    """As vLLM 0.32 does where SIGTERM meets a request: nothing but the finish reason tells it from a whole answer."""
    fake = await start()
    fake.inside.script(Abort(after), Abort(after))
    whole = await fake.http.post(CHAT, fake.http.chat_body(HELLO, 4))
    assert (whole.status, whole.body["choices"][0]["finish_reason"]) == (200, "abort")
    assert whole.body["usage"]["completion_tokens"] == after
    streamed = await fake.http.stream(CHAT, stream_body(fake))
    choices = [choice for chunk in streamed.chunks for choice in chunk["choices"]]
    assert streamed.done
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == finish
    assert fake.inside.held_blocks == 0


async def test_malformed_event(start: Any) -> None:
    fake = await start()
    fake.inside.script(MalformedSse(1, b"data: {oops\n\n"))
    async with fake.http.session.post(fake.http.card.url + CHAT, json=stream_body(fake)) as response:
        events = (await response.text()).split("\n\n")
    assert events[1] == "data: {oops"
    assert json.loads(events[2].removeprefix("data: "))


@pytest.mark.parametrize("stream", [False, True])
async def test_garbage(start: Any, stream: bool) -> None:
    fake = await start()
    fake.inside.script(GarbageJson())
    async with fake.http.session.post(fake.http.card.url + CHAT, json=stream_body(fake, stream=stream)) as response:
        assert response.status == 200
        with pytest.raises(json.JSONDecodeError):
            json.loads(await response.text())


async def test_error_in_a_good_status(start: Any) -> None:
    fake = await start()
    fake.inside.script(ErrorIn200("no"), ErrorIn200("no"))
    whole = await fake.http.post(CHAT, fake.http.chat_body(HELLO))
    assert (whole.status, whole.body["error"]["message"]) == (200, "no")
    assert (await fake.http.stream(CHAT, stream_body(fake))).chunks == [whole.body]


@pytest.mark.parametrize("fault", [Die(), Die(0), Die(2)])
async def test_death_and_resurrection(start: Any, fault: Fault) -> None:
    fake = await start()
    before, url = fake.inside.engine_id, fake.inside.url
    fake.inside.script(fault)
    with pytest.raises(BROKEN):
        await fake.http.stream(CHAT, stream_body(fake))
    await fake.inside.dead()
    with pytest.raises(aiohttp.ClientConnectorError):
        await fake.http.get("/health")
    await fake.inside.restart()
    assert fake.inside.url == url
    assert fake.inside.engine_id != before
    assert (await fake.http.get("/health"))[0] == 200


async def test_faults_are_for_the_requests_that_they_fit(start: Any) -> None:
    fake = await start()
    fake.inside.script(Status(418), when=lambda body: body.get("user") == "x", times=2)
    assert (await fake.http.chat(HELLO)).status == 200
    for _ in range(2):
        assert (await fake.http.post(CHAT, fake.http.chat_body(HELLO, user="x"))).status == 418
    assert (await fake.http.chat(HELLO, user="x")).status == 200


async def test_scripted_answer_with_reasoning(start: Any) -> None:
    fake = await start()
    fake.inside.script(Answer("<think>hm</think>Grüße"), times=2)
    message = (await fake.http.chat(HELLO, 100)).body["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == ("hm", "Grüße")
    streamed = await fake.http.stream(CHAT, stream_body(fake, max_tokens=100))
    assert streamed.text == "Grüße"
    assert streamed.finish_reasons == ["stop"]


async def test_scripted_tool_call(start: Any) -> None:
    fake = await start()
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    fake.inside.script(ToolCalls((("look", '{"at":"sky"}'),)), ToolCalls(), ToolCalls((("look", '{"at":"sky"}'),)))
    choice = (await fake.http.chat(HELLO, 200, tools=tools)).body["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"at":"sky"}'}
    default = (await fake.http.chat(HELLO, 200, tools=tools)).body["choices"][0]
    assert default["message"]["tool_calls"][0]["function"] == {"name": "look", "arguments": "{}"}
    streamed = await fake.http.stream(CHAT, stream_body(fake, max_tokens=200, tools=tools))
    calls = [
        call
        for chunk in streamed.chunks
        for choice in chunk["choices"]
        for call in choice["delta"].get("tool_calls", ())
    ]
    assert calls[0]["id"]
    assert calls[0]["function"]["name"] == "look"
    assert "".join(call["function"]["arguments"] for call in calls) == '{"at":"sky"}'
    assert streamed.finish_reasons == ["tool_calls"]


async def test_requests_are_recorded(start: Any) -> None:
    fake = await start()
    body = fake.http.chat_body(HELLO, 2, cache_salt="s")
    async with fake.http.session.post(fake.http.card.url + CHAT, json=body, headers={"X-Test": "1"}) as response:
        await response.read()
    (record,) = fake.inside.requests
    assert (record.method, record.path, record.status, record.body) == ("POST", CHAT, 200, body)
    assert record.headers["x-test"] == "1"
    assert record.finished_at is not None
    assert record.aborted_at is None
