"""Clients leave at any moment; whatever was begun for them ends at once, and nothing stays counted."""

import asyncio
import contextlib
import gc
import json
import random
import socket
from pathlib import Path
from typing import Any

import pytest
from raw_chat import LONG, raw_chat

from pdd_e2e.fake_engine import GarbageJson, HangAfterDone, HangBeforeHeaders, HangMidStream


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("stream", [False, True])
async def test_engine_sees_the_abort_at_once(cluster: Any, role: str, stream: bool) -> None:
    """R12."""
    async with cluster() as c:
        engine = c.prefills[0] if role == "prefill" else c.decodes[0]
        engine.script(HangBeforeHeaders())
        _, writer = await raw_chat(c, stream=stream)
        await c.until(lambda: len(c.legs(engine)) == 1)
        writer.close()
        await c.until(lambda: c.legs(engine)[0].aborted_at is not None, seconds=0.5)
        await c.until_idle()
        state = c.registry.states()[0 if role == "prefill" else 1]
        assert not state.breaker.ejected, "a client that leaves says nothing about the engine"


async def test_engine_sees_the_abort_in_the_middle_of_a_stream(cluster: Any) -> None:
    async with cluster() as c:
        c.decodes[0].script(HangMidStream(3))
        reader, writer = await raw_chat(c, stream=True)
        await reader.readuntil(b"data: ")
        writer.close()
        await c.until(lambda: c.legs(c.decodes[0])[0].aborted_at is not None, seconds=0.5)
        await c.until_idle()


async def test_client_that_leaves_on_done_has_had_its_answer(cluster: Any) -> None:
    """As the openai client does: what the answer's end says of engine and conversation is not lost, though the engine's end of stream is late."""
    async with cluster() as c:
        c.decodes[0].script(HangAfterDone())
        reader, writer = await raw_chat(c, stream=True)
        await reader.readuntil(b"[DONE]")
        writer.close()
        await c.until_idle()
        name = c.decodes[0].settings.name
        assert await c.metric("legs_total", role="Decode", engine=name, result="Success") == 1


async def test_client_that_leaves_the_queue_takes_no_place(cluster: Any) -> None:
    async with cluster(config={"limits": {"maxConcurrentRequests": 1}}) as c:
        c.decodes[0].script(HangBeforeHeaders())
        _, holding = await raw_chat(c, stream=True)
        await c.until(lambda: len(c.legs(c.decodes[0])) == 1)
        _, waiting = await raw_chat(c, stream=True)
        await c.until(lambda: c.router.services.admission.queued == 1)
        waiting.close()
        await c.until(lambda: c.router.services.admission.queued == 0)
        holding.close()
        await c.until_idle()
        assert (await c.chat(LONG)).status == 200


async def test_client_stops_at_any_byte(cluster: Any) -> None:
    async with cluster() as c:
        whole, writer = await raw_chat(c, stream=True)
        length = len(await whole.readuntil(b"0\r\n\r\n"))
        writer.close()
        for at in range(1, length, max(1, length // 60)):
            reader, writer = await raw_chat(c, stream=True)
            await reader.readexactly(at)
            writer.close()
        await c.until_idle()
        assert all(engine.held_blocks == 0 for engine in c.engines)
        assert (await c.chat(LONG)).status == 200


async def test_client_that_reads_nothing_is_given_up(cluster: Any) -> None:
    async with cluster(config={"limits": {"clientWriteTimeoutSeconds": 0.2}}) as c:
        # Large events, for the kernel alone takes 4 MB before the router feels that nobody reads.
        asked = {"max_tokens": 7000, "ignore_eos": True, "logprobs": True, "top_logprobs": 20}
        body = json.dumps({"model": "fake", "messages": LONG, "stream": True, **asked})
        host, port = c.router.url.removeprefix("http://").split(":")
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # so that what is not read stays where it is
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, (host, int(port)))
            head = "POST /v1/chat/completions HTTP/1.1\r\nHost: r\r\nContent-Type: application/json\r\n"
            await loop.sock_sendall(client, f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
            await c.until(lambda: bool(c.legs(c.decodes[0])))
            await c.until(lambda: c.router.services.admission.in_flight == 0, seconds=20)
            (leg,) = c.legs(c.decodes[0])
            await c.until(lambda: leg.aborted_at is not None)
        await c.until_idle()


async def test_slow_reader_of_a_whole_answer_has_a_place_and_a_deadline_and_no_engine(cluster: Any) -> None:
    """It takes a little all the time, so that no write and no kernel ever gives it up."""
    limits = {"requestTimeoutSeconds": 3.0, "clientWriteTimeoutSeconds": 30.0, "idleTimeoutSeconds": 0.5}
    async with cluster(config={"limits": limits}) as c:
        c.decodes[0].script(
            GarbageJson(b'{"choices": [], "x": "%b"}' % (b"x" * 12_000_000))
        )  # the kernel alone takes 4 MB
        body = json.dumps({"model": "fake", "messages": LONG})
        host, port = c.router.url.removeprefix("http://").split(":")
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            began = loop.time()
            await loop.sock_connect(client, (host, int(port)))
            ours = client.getsockname()[1]
            head = "POST /v1/chat/completions HTTP/1.1\r\nHost: r\r\nContent-Type: application/json\r\n"
            await loop.sock_sendall(client, f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
            assert (await loop.sock_recv(client, 64)).startswith(b"HTTP/1.1 200 OK")
            admission, bodies = c.router.services.admission, c.router.services.bodies
            assert (admission.in_flight, bodies.held > 0) == (1, True)
            assert all(state.in_flight == 0 for state in c.registry.states())
            while is_established(int(port), ours):
                assert loop.time() - began < 5
                with contextlib.suppress(TimeoutError, ConnectionError):
                    await asyncio.wait_for(loop.sock_recv(client, 1024), 0.05)
                await asyncio.sleep(0.02)
            assert loop.time() - began > 2.5, "not before its time is over"
        await c.until_idle()
        assert bodies.held == 0


async def test_client_that_does_not_read_whole_answers_is_cut_off(cluster: Any) -> None:
    """Else its connection, and the answers with it, would stay for as long as it likes."""
    async with cluster(config={"limits": {"clientWriteTimeoutSeconds": 0.3}}) as c:
        host, port = c.router.url.removeprefix("http://").split(":")
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, (host, int(port)))
            ours = client.getsockname()[1]
            assert is_established(int(port), ours)
            await loop.sock_sendall(client, b"GET /metrics HTTP/1.1\r\nHost: r\r\n\r\n" * 600)
            await c.until(lambda: not is_established(int(port), ours), seconds=10)


def is_established(port: int, peer: int) -> bool:
    """The router's end of a connection: only it learns of the kernel's time limit."""
    return f"{port:04X} 0100007F:{peer:04X} 01" in Path("/proc/net/tcp").read_text()


async def test_thousand_mixed_requests_leave_nothing(cluster: Any) -> None:
    """R11 in small: plain, streamed, refused, aborted, and with faults; then everything is as before."""
    from pdd_e2e.fake_engine import FinishError, ResetAfterEvents, ResetBeforeHeaders, Status

    rng = random.Random(11)
    config = {"breaker": {"baseSeconds": 0.05, "maxSeconds": 0.1}, "limits": {"maxConcurrentRequests": 12}}
    async with cluster(prefills=2, decodes=2, config=config) as c:
        await c.chat(LONG)
        await c.until_idle()
        tasks_before = own_tasks()
        statuses: dict[Any, int] = {}

        async def one(at: int) -> None:
            if rng.random() < 0.1:
                fault = rng.choice([Status(500), ResetBeforeHeaders(), FinishError(1), ResetAfterEvents(1)])
                rng.choice(c.engines).script(fault)
            kind = rng.random()
            if kind < 0.15:
                status: Any = (await c.chat([], stream=True)).status
            elif kind < 0.35:
                task = asyncio.create_task(c.chat(LONG, stream=kind < 0.25))
                await asyncio.sleep(rng.random() * 0.02)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                status = "gone"
            else:
                messages = [{"role": "user", "content": f"Subject {rng.randrange(50)}. " * 8}]
                status = (await c.chat(messages, stream=kind < 0.7, max_tokens=3)).status
            statuses[status] = statuses.get(status, 0) + 1

        async def worker(numbers: Any) -> None:
            for at in numbers:
                await one(at)

        numbers = iter(range(1000))
        await asyncio.gather(*(worker(numbers) for _ in range(16)))
        assert sum(statuses.values()) == 1000
        assert statuses[200] > 500
        assert statuses[400] > 100
        await c.until_idle()
        for engine in c.engines:
            engine.script_queue.__init__()
        await c.until(lambda: all(engine.held_blocks == 0 for engine in c.engines), seconds=10)
        gc.collect()
        await c.until(lambda: own_tasks() == tasks_before, seconds=10)
        text = c.router.services.metrics.render().decode()
        assert "pdd_router_in_flight_requests 0.0" in text


def own_tasks() -> int:
    """Tasks but those of idle connections, which the pools keep for a while."""
    return sum("RequestHandler.start" not in repr(task.get_coro()) for task in asyncio.all_tasks())
