"""Streams of engines that write what no server should, byte by byte: what the router's client makes of them."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pdd_router.config import Limits, Timeouts
from pdd_router.endpoints.engine import Engine, EngineId, Role
from pdd_router.errors import EngineFailedError, FailureReason
from pdd_router.upstream import EventStream, Upstream

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
ROLE = b'data: {"choices": [{"index": 0, "delta": {"role": "assistant"}}]}\n\n'
EMPTY = b'data: {"choices": [{"index": 0, "delta": {"content": ""}}]}\n\n'
WORD = b'data: {"choices": [{"index": 0, "delta": {"content": "word"}}]}\n\n'


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@asynccontextmanager
async def stream_of(*pieces: bytes | float) -> AsyncIterator[EventStream]:
    """Of an engine that writes these, and waits so many seconds in between; then it keeps the connection open."""
    answers = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers.append(asyncio.current_task())
        await reader.readuntil(b"\r\n\r\n")
        for piece in pieces:
            if isinstance(piece, bytes):
                writer.write(piece)
                await writer.drain()
            else:
                await asyncio.sleep(piece)
        await reader.read()
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        engine = Engine(EngineId("odd", f"http://127.0.0.1:{port}"), Role.DECODE, "", None)
        upstream = Upstream(Limits(), Timeouts())
        try:
            async with upstream.open_stream(engine, "/v1/chat/completions", {}, request_id="r") as stream:
                yield stream
        finally:
            await upstream.close()
            await asyncio.gather(*filter(None, answers))


async def test_broken_framing_is_a_failure_of_the_engine_however_late_it_is_read() -> None:
    """aiohttp closes such a connection by itself; what it raises then is no error of its own."""
    async with stream_of(HEAD + chunk(WORD), 0.05, b"no length\r\n") as stream:
        assert await stream.next(1) is not None
        await asyncio.sleep(0.3)  # a client that is written to meanwhile
        with pytest.raises(EngineFailedError) as failed:
            await stream.next(1)
        assert failed.value.reason is FailureReason.DISCONNECTED


async def test_time_that_is_up_is_up_though_events_are_there() -> None:
    """Else a client that reads slowly would hold its engine for ever: nothing is waited for while there is something to read."""
    async with stream_of(HEAD + chunk(WORD * 3)) as stream:
        assert await stream.next(1) is not None
        with pytest.raises(EngineFailedError) as failed:
            await stream.next(0)
        assert failed.value.reason is FailureReason.TIMEOUT


async def test_a_beginning_that_says_nothing_is_not_held_back_for_long() -> None:
    """Events without a word come and come, as of hidden reasoning: the client gets its headers all the same, and every event."""
    pieces = [item for _ in range(40) for item in (0.1, chunk(EMPTY))]
    began = time.monotonic()
    async with stream_of(HEAD + chunk(ROLE), *pieces, chunk(WORD)) as stream:
        assert time.monotonic() - began < 2, "not the four seconds that they take"
        events = [await stream.next(5) for _ in range(42)]
    assert [event.raw for event in events if event] == [ROLE, *[EMPTY] * 40, WORD]
