"""The router stops while requests run on: each is told, in time, and nobody takes a part for the whole."""

import asyncio
import json
import socket
import time
from typing import Any

from raw_chat import LONG, raw_chat

from pdd_e2e.fake_engine import HangBeforeHeaders, HangMidStream, MalformedSse, SlowChunks

GRACE = 1.2


async def read_to_the_end(reader: asyncio.StreamReader) -> tuple[bytes, float]:
    async with asyncio.timeout(20):
        raw = await reader.read()
    return raw, time.monotonic()


async def test_what_has_not_ended_in_time_is_told_and_no_engine_is_blamed(cluster: Any) -> None:
    """Streams that go on and one that is silent, a whole answer, one that waits for a place."""
    config = {
        "shutdown": {"graceSeconds": GRACE},
        "limits": {"maxConcurrentRequests": 4},
        "breaker": {"failures": 1},
    }
    async with cluster(decodes=2, config=config) as c:
        faults = [SlowChunks(0.05), HangMidStream(2), SlowChunks(0.05), HangBeforeHeaders()]
        readers, writers = [], []
        for fault in faults:
            for engine in c.decodes:
                engine.script_queue.__init__()
                engine.script(fault)
            reader, writer = await raw_chat(c, stream=not isinstance(fault, HangBeforeHeaders), max_tokens=5000)
            if not isinstance(fault, HangBeforeHeaders):
                await reader.readuntil(b"data: ")
            readers.append(reader)
            writers.append(writer)
        await c.until(lambda: sum(len(c.legs(engine)) for engine in c.decodes) == 4)
        reader, writer = await raw_chat(c, stream=False)
        await c.until(lambda: c.router.services.admission.queued == 1)
        states = c.registry.states()
        began = time.monotonic()
        reading = [asyncio.create_task(read_to_the_end(one)) for one in (*readers, reader)]
        writers.append(writer)
    for at, (raw, ended) in enumerate(await asyncio.gather(*reading)):
        assert GRACE - 0.1 < ended - began < GRACE + 0.9, "not twice as long"
        assert b'"code": "router_stopping"' in raw
        assert b"[DONE]" not in raw
        if at < 3:
            assert not raw.endswith(b"0\r\n\r\n"), "its message must not look whole"
        else:
            assert raw.startswith(b"HTTP/1.1 503 ") and b"Retry-After: " in raw
    assert not any(state.breaker.ejected for state in states)
    for writer in writers:
        writer.close()


async def test_client_that_does_not_read_does_not_hold_the_router_up(cluster: Any) -> None:
    """It cannot be told. aiohttp waits for as long again before it cancels anything."""
    event = b'data: {"choices": [], "x": "%b"}\n\n' % (b"x" * 1_000_000)
    with socket.socket() as client:
        async with cluster(config={"shutdown": {"graceSeconds": GRACE}}) as c:
            c.decodes[0].script(MalformedSse(2, event * 12))
            body = json.dumps({"model": "fake", "messages": LONG, "stream": True, "max_tokens": 8})
            host, port = c.router.url.removeprefix("http://").split(":")
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, (host, int(port)))
            head = "POST /v1/chat/completions HTTP/1.1\r\nHost: r\r\nContent-Type: application/json\r\n"
            await loop.sock_sendall(client, f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
            assert (await loop.sock_recv(client, 64)).startswith(b"HTTP/1.1 200 OK")
            await asyncio.sleep(0.2)
            began = time.monotonic()
        assert GRACE < time.monotonic() - began < GRACE + 2.5, "a second more than it has, not twice as long"
