"""Decode fails after its first event: the client is told, at once, and never takes a part for the whole."""

import asyncio
import random
import time
from typing import Any

import pytest
from raw_chat import LONG, raw_chat

from pdd_e2e.fake_engine import (
    Abort,
    CloseWithoutDone,
    Die,
    Fault,
    FinishError,
    HangMidStream,
    MalformedSse,
    ResetAfterBytes,
    ResetAfterEvents,
    SlowChunks,
)


@pytest.mark.parametrize(
    "fault",
    [
        ResetAfterEvents(2),
        CloseWithoutDone(2),
        CloseWithoutDone(),
        FinishError(2),
        Abort(2),
        HangMidStream(2),
        Die(after_events=2),
        ResetAfterBytes(900),
    ],
    ids=repr,
)
async def test_broken_stream_ends_in_an_error_event_and_a_closed_connection(cluster: Any, fault: Fault) -> None:
    """R9."""
    async with cluster(decodes=2, config={"timeouts": {"betweenEventsSeconds": 0.3}}) as c:
        c.decodes[0].script(fault)
        began = time.monotonic()
        reply = await c.chat(LONG, stream=True, max_tokens=8)
        assert time.monotonic() - began < 2
        assert reply.status == 200, "the stream had begun"
        assert not reply.done, "never [DONE] after a cut"
        assert reply.cut, "a client that knows no error events sees a broken message"
        assert reply.events[-1]["error"]["type"] == "upstream_error"
        assert all("error" not in event for event in reply.events[:-1])
        assert not c.legs(c.decodes[1]), "never tried elsewhere after the first event"
        await c.until_idle()


async def test_decode_dies_under_many_streams_and_all_are_told_or_whole(cluster: Any) -> None:
    """R9, 200 streams: each is whole, or says so and ends; what came is the beginning of the whole answer, no token twice."""
    rng = random.Random(9)
    config = {"timeouts": {"betweenEventsSeconds": 0.3}, "breaker": {"failures": 1000}, "retries": {"burst": 1000}}
    async with cluster(decodes=2, config=config) as c:
        whole = await c.chat(LONG, stream=True, max_tokens=8)
        told = 0
        for _ in range(25):
            for engine in c.decodes:
                for _ in range(2):
                    after = rng.randrange(2, 8)
                    faults = [ResetAfterEvents(after), CloseWithoutDone(after), FinishError(after), Abort(after)]
                    engine.script(rng.choice([*faults, HangMidStream(after), ResetAfterBytes(400 * after)]))
            async with asyncio.timeout(5):
                replies = await asyncio.gather(*(c.chat(LONG, stream=True, max_tokens=8) for _ in range(8)))
            for reply in replies:
                assert reply.status == 200, "they had begun"
                broken = "error" in reply.events[-1]
                told += broken
                assert reply.done is not broken and reply.cut is broken
                assert whole.text.startswith(reply.text) and (broken or reply.text == whole.text)
        assert told >= 40
        await c.until_idle()


async def test_engine_is_not_blamed_for_what_it_refuses_in_a_stream(cluster: Any) -> None:
    """An error of the client's in an event says as little of the engine's health as a status 400 does."""
    refusal = b'data: {"error": {"message": "No such token", "type": "BadRequestError", "param": null, "code": %d}}\n\n'
    async with cluster(decodes=2, config={"breaker": {"failures": 1}}) as c:
        for code, blamed in ((400, False), (500, True)):
            c.decodes[0].script(MalformedSse(2, refusal % code))
            reply = await c.chat(LONG, stream=True, max_tokens=8)
            assert reply.cut and not reply.done
            await c.until_idle()
            assert any(state.breaker.ejected for state in c.registry.states()) is blamed


async def test_engine_is_not_blamed_for_the_time_that_a_request_has(cluster: Any) -> None:
    config = {"breaker": {"failures": 1}, "limits": {"requestTimeoutSeconds": 0.5}}
    async with cluster(decodes=2, config=config) as c:
        c.decodes[0].script(SlowChunks(0.1))
        reply = await c.chat(LONG, stream=True, max_tokens=64)
        assert reply.events[-1]["error"]["code"] == "deadline_exceeded"
        await c.until_idle()
        assert not any(state.breaker.ejected for state in c.registry.states())


async def test_connection_of_a_broken_stream_is_closed(cluster: Any) -> None:
    async with cluster() as c:
        c.decodes[0].script(ResetAfterEvents(2))
        reader, writer = await raw_chat(c, stream=True)
        async with asyncio.timeout(5):
            raw = await reader.read()  # to the end of the connection, though it is keep-alive by default
        writer.close()
        assert b'"error"' in raw
        assert b"[DONE]" not in raw
        assert not raw.endswith(b"0\r\n\r\n"), "the message must not look whole to a client without error events"


async def test_stream_cut_at_any_byte_never_passes_for_a_whole_one(cluster: Any) -> None:
    async with cluster(config={"breaker": {"failures": 1000}}) as c:
        whole = await c.chat(LONG, stream=True)
        for count in range(0, 1300, 41):
            c.decodes[0].script(ResetAfterBytes(count))
            reply = await c.chat(LONG, stream=True)
            if reply.status == 200:
                assert reply.done != ("error" in reply.events[-1])
                assert reply.cut != reply.done
                assert whole.text.startswith(reply.text), "no token twice, none lost in between"
            else:
                assert reply.status in (502, 503)
                assert reply.body["error"]["message"]
        await c.until_idle()


async def test_garbage_between_events_is_passed_or_refused_but_ends(cluster: Any) -> None:
    async with cluster() as c:
        c.decodes[0].script(MalformedSse(1))
        reply = c.chat(LONG, stream=True)
        with pytest.raises(ValueError, match="Expecting"):
            await reply  # the client's parser sees what the engine wrote: it is the engine's answer
        await c.until_idle()
