"""Sending an answer, well or as scripted: headers, events, body, and everything that can break on the way.

Knows aiohttp and the faults, nothing of what the events mean.
"""

import asyncio
import json
import socket
import struct
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from pdd_e2e.fake_engine.faults import (
    CloseWithoutDone,
    Die,
    HangAfterDone,
    HangMidStream,
    MalformedSse,
    RequestFault,
    ResetAfterBytes,
    ResetAfterEvents,
    SlowChunks,
)


class AnswerCutError(Exception):
    """The script ended the answer here; nothing more may be sent."""


def reset(request: web.Request) -> None:
    """Close the TCP connection with a reset."""
    transport = request.transport
    if transport is None:
        return
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


async def hang() -> None:
    """Wait until the client leaves (the handler is cancelled then)."""
    await asyncio.get_running_loop().create_future()


class Wire:
    """One answer under way. `kill` starts the death of the engine."""

    def __init__(self, request: web.Request, fault: RequestFault | None, kill: Callable[[], None]) -> None:
        self._request = request
        self._fault = fault
        self._kill = kill
        self._response: web.StreamResponse | None = None
        self._events = 0
        self._bytes = 0

    @property
    def started(self) -> bool:
        """Whether headers have gone out."""
        return self._response is not None

    async def start_stream(self) -> None:
        """Send status 200 and the headers of an event stream, as vLLM does before it computes anything."""
        await self._start(web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"}))

    async def event(self, data: bytes, *, done: bool = False) -> None:
        """Send one event, unless the script has something else for this place. Raises `AnswerCutError`."""
        await self._before_event(done=done)
        if isinstance(self._fault, MalformedSse) and self._events == self._fault.at_event:
            data = self._fault.data
        await self._write(data)
        self._events += 1

    async def finish(self) -> web.StreamResponse:
        """End a stream in good order, unless the script keeps its end back."""
        if isinstance(self._fault, HangAfterDone):
            await hang()
        response = self._sent()
        await response.write_eof()
        return response

    async def body(
        self, status: int, body: Mapping[str, Any] | bytes, headers: Mapping[str, str]
    ) -> web.StreamResponse:
        """Send a whole answer; for the faults it counts as one event."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        response = web.StreamResponse(status=status, headers={"Content-Type": "application/json", **headers})
        response.content_length = len(data)
        if not isinstance(self._fault, Die):
            await self._start(response)
        await self._before_event(done=False)
        await self._write(data)
        await response.write_eof()
        return response

    async def cut(self) -> web.StreamResponse:
        """What the handler returns after `AnswerCutError`."""
        if isinstance(self._fault, CloseWithoutDone):
            return await self.finish()
        return self._response or web.Response(status=500)

    async def _start(self, response: web.StreamResponse) -> None:
        self._response = response
        await response.prepare(self._request)

    async def _before_event(self, *, done: bool) -> None:
        match self._fault:
            case SlowChunks(seconds):
                await asyncio.sleep(seconds)
            case HangMidStream(after) if self._events == after:
                await hang()
            case ResetAfterEvents(after) if self._events == after:
                self._cut_off()
            case CloseWithoutDone(after) if done if after is None else self._events == after:
                raise AnswerCutError
            case Die(after) if self._events == (after or 0):
                self._kill()
                await hang()
            case _:
                pass

    async def _write(self, data: bytes) -> None:
        if isinstance(self._fault, ResetAfterBytes) and self._bytes + len(data) >= self._fault.count:
            await self._sent().write(data[: self._fault.count - self._bytes])
            # What was written must have left before the reset throws the rest away.
            await asyncio.sleep(0.01)
            self._cut_off()
        await self._sent().write(data)
        self._bytes += len(data)

    def _cut_off(self) -> None:
        reset(self._request)
        raise AnswerCutError

    def _sent(self) -> web.StreamResponse:
        if self._response is None:
            raise RuntimeError("nothing was started")
        return self._response
