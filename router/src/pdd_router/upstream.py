"""The one HTTP client: how the router speaks to an engine. Every limit is explicit; every failure is a LegError.

Must not retry, choose engines or look into prompts. Leaving a call, by cancellation too, closes its connection, which
is how an engine learns that nobody waits any more. Only the headers named here ever reach an engine.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import cast

import aiohttp

from pdd_router.config import Limits, Timeouts
from pdd_router.endpoints.engine import Engine
from pdd_router.errors import (
    AnswerTooLargeError,
    EngineBusyError,
    EngineFailedError,
    EngineRejectedError,
    FailureReason,
    LegError,
)
from pdd_router.openai.errors import parse_engine_error
from pdd_router.openai.sse import Event, EventParser, EventTooLargeError

JsonObject = dict[str, object]

_ERROR_BODY_BYTES = 64 << 10
# Below every engine's own keep-alive (uvicorn: 5 s), so that no request goes out on a connection just being closed.
_KEEP_ALIVE_SECONDS = 2.0
_BUSY = frozenset({429, 503})
# The engine's or the way's trouble although they are 4xx: time limit, conflict, expectation of a proxy.
_NOT_THE_CLIENT = frozenset({401, 403, 407, 408, 409, 421, 425})

_SAYS_NOTHING = frozenset({"index", "role", "delta"})
# What comes with the role comes at once; n answers have n roles.
_AHEAD_SECONDS = 0.25
_AHEAD_EVENTS = 64
# Finish reasons with status 200. "abort": the engine was told to go with the request in it (vLLM on SIGTERM).
_FAILED = {"error": FailureReason.FINISH_ERROR, "abort": FailureReason.ABORTED}


class EventStream:
    """An engine's stream. ``next`` gives events that say something (no comments), None after the last."""

    def __init__(self, engine: Engine, response: aiohttp.ClientResponse, max_event_bytes: int) -> None:
        self._engine = engine
        self._response = response
        self._max_event_bytes = max_event_bytes
        self._parser = EventParser(max_event_bytes)
        self._ready: deque[Event] = deque()

    async def next(self, timeout_seconds: float) -> Event | None:
        """Raises EngineFailedError where the stream breaks, or nothing comes in time; with no time left, even if something is there.
        AnswerTooLargeError for an event beyond the limit."""
        if timeout_seconds <= 0:  # a time limit does nothing where nothing is waited for
            raise EngineFailedError(self._engine.id.name, FailureReason.TIMEOUT)
        with _translated(self._engine):
            async with asyncio.timeout(timeout_seconds):
                while not self._ready:
                    chunk = await _read(self._response)
                    if not chunk:
                        break
                    self._parse(chunk)
        if self._ready:
            return self._ready.popleft()
        if self._parser.pending:
            raise EngineFailedError(self._engine.id.name, FailureReason.TRUNCATED)
        return None

    async def begin(self, timeout_seconds: float) -> None:
        """Returns when the first event is there, or more, and is what an answer begins with; ``next`` gives them again. Raises LegError.

        vLLM sends the role with the first token. Where it aborts a request without one, the end comes along with the role:
        then the answer may still be had elsewhere.
        """
        seen: list[Event] = []
        clock = asyncio.get_running_loop().time
        until = clock() + timeout_seconds
        while len(seen) < _AHEAD_EVENTS:
            try:
                event = await self.next(until - clock())
            except EngineFailedError as error:
                if seen and error.reason is FailureReason.TIMEOUT:
                    break  # an answer of which nothing may be seen for long, such as hidden reasoning
                raise
            value = None if event is None else check_event(self._engine, event)
            if event is None or event.is_done:
                raise EngineFailedError(self._engine.id.name, FailureReason.TRUNCATED)
            if not seen:
                until = clock() + _AHEAD_SECONDS
            seen.append(event)
            if value is None or _says_something(value):
                break
        self._ready.extendleft(reversed(seen))

    def _parse(self, chunk: bytes) -> None:
        try:
            self._ready.extend(event for event in self._parser.feed(chunk) if event.data is not None)
        except EventTooLargeError:
            raise AnswerTooLargeError(self._engine.id.name, "limits.maxEventBytes", self._max_event_bytes) from None


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """What is there, b"" at the end. Raises aiohttp.ClientError."""
    try:
        return await response.content.readany()
    except RuntimeError:  # aiohttp closed the connection over what the engine wrote, and says no more than that it did
        raise aiohttp.ClientPayloadError("The connection was closed") from None


@contextmanager
def _translated(engine: Engine) -> Iterator[None]:
    """Whatever the connection did → EngineFailedError. (TimeoutError is an OSError.)"""
    try:
        yield
    except (aiohttp.ClientError, OSError) as error:
        reason = FailureReason.DISCONNECTED
        if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
            reason = FailureReason.CONNECT
        elif isinstance(error, TimeoutError):
            reason = FailureReason.TIMEOUT
        raise EngineFailedError(engine.id.name, reason) from None


class Upstream:
    def __init__(self, limits: Limits, timeouts: Timeouts) -> None:
        self._limits = limits
        self._timeouts = timeouts
        self._session = aiohttp.ClientSession(
            # Admission bounds the connections; a second bound here would be a queue without fairness.
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            auto_decompress=False,
            skip_auto_headers=("User-Agent",),
            headers={"Accept-Encoding": "identity"},
        )

    async def close(self) -> None:
        await self._session.close()

    async def get(self, engine: Engine, path: str, timeout_seconds: float) -> tuple[int, bytes]:
        """Raises LegError."""
        with _translated(engine):
            async with (
                asyncio.timeout(timeout_seconds),
                self._session.get(engine.id.url + path, allow_redirects=False, timeout=self._no_total()) as response,
            ):
                return response.status, await self._read_body(engine, response, self._limits.max_answer_bytes)

    async def post_json(
        self, engine: Engine, path: str, body: JsonObject, *, request_id: str, timeout_seconds: float
    ) -> JsonObject:
        """The answer's object. Raises LegError."""
        with _translated(engine):
            async with (
                asyncio.timeout(timeout_seconds),
                self._post(engine, path, body, request_id, "application/json") as response,
            ):
                if response.status != 200:
                    raise await self._refusal(engine, response)
                raw = await self._read_body(engine, response, self._limits.max_answer_bytes)
        return _parse_answer(engine, raw)

    @asynccontextmanager
    async def open_stream(
        self, engine: Engine, path: str, body: JsonObject, *, request_id: str
    ) -> AsyncIterator[EventStream]:
        """A stream that has begun to answer. Raises LegError on the way to it."""
        limit = self._timeouts.first_event_seconds
        with _translated(engine):
            async with asyncio.timeout(limit):
                response = await self._post(engine, path, body, request_id, "text/event-stream")
        try:
            with _translated(engine):
                if response.status != 200:
                    async with asyncio.timeout(limit):
                        raise await self._refusal(engine, response)
            if response.content_type != "text/event-stream":
                raise EngineFailedError(engine.id.name, FailureReason.MALFORMED)
            stream = EventStream(engine, response, self._limits.max_event_bytes)
            await stream.begin(limit)
            yield stream
        finally:
            # Never back into the pool: an unfinished answer must be cut, a finished one has released itself.
            response.close()

    def _post(
        self, engine: Engine, path: str, body: JsonObject, request_id: str, accept: str
    ) -> aiohttp.client._RequestContextManager:
        return self._session.post(
            engine.id.url + path,
            data=json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode(),
            headers={"Content-Type": "application/json", "Accept": accept, "X-Request-Id": request_id},
            allow_redirects=False,
            timeout=self._no_total(),
        )

    def _no_total(self) -> aiohttp.ClientTimeout:
        # Totals and gaps are asyncio.timeout's business at each call, which also covers slow writing.
        return aiohttp.ClientTimeout(total=None, sock_connect=self._timeouts.connect_seconds)

    async def _refusal(self, engine: Engine, response: aiohttp.ClientResponse) -> LegError:
        status = response.status
        if status in _BUSY:
            return EngineBusyError(engine.id.name, "The engine is full")
        if not 400 <= status < 500 or status in _NOT_THE_CLIENT:
            return EngineFailedError(engine.id.name, FailureReason.STATUS)
        try:
            body: object = json.loads(await self._read_body(engine, response, _ERROR_BODY_BYTES))
        except (ValueError, AnswerTooLargeError):  # such as one that repeats a long prompt
            body = None
        return EngineRejectedError(engine.id.name, status, parse_engine_error(status, body))

    async def _read_body(self, engine: Engine, response: aiohttp.ClientResponse, limit: int) -> bytes:
        parts = bytearray()
        while chunk := await _read(response):
            parts += chunk
            if len(parts) > limit:
                response.close()
                raise AnswerTooLargeError(engine.id.name, "limits.maxAnswerBytes", limit)
        return bytes(parts)


def _parse_answer(engine: Engine, raw: bytes) -> JsonObject:
    try:
        value = json.loads(raw)
    except ValueError:
        raise EngineFailedError(engine.id.name, FailureReason.MALFORMED) from None
    if not isinstance(value, dict):
        raise EngineFailedError(engine.id.name, FailureReason.MALFORMED)
    check_answer(engine.id.name, value)
    return cast(JsonObject, value)


def check_event(engine: Engine, event: Event) -> JsonObject | None:
    """The event's object, if it is one. Raises as ``check_answer`` does."""
    value = event.json()
    if value is not None:
        check_answer(engine.id.name, value)
    return value


def _says_something(value: JsonObject) -> bool:
    """Whether an event has more of an answer than roles."""
    choices = value.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        delta = choice.get("delta") if isinstance(choice, dict) else None
        said = {**choice, **delta} if isinstance(delta, dict) else choice
        if not isinstance(said, dict) or any(value for key, value in said.items() if key not in _SAYS_NOTHING):
            return True
    return False


def check_answer(engine: str, value: JsonObject) -> None:
    """Raises EngineFailedError or EngineRejectedError where an answer or an event with status 200 is in truth a failure."""
    error = value.get("error")
    if error is not None:
        code = error.get("code") if isinstance(error, dict) else None
        if isinstance(code, int) and 400 <= code < 500 and code not in _BUSY and code not in _NOT_THE_CLIENT:
            raise EngineRejectedError(engine, code, parse_engine_error(code, value))
        raise EngineFailedError(engine, FailureReason.ERROR_EVENT)
    choices = value.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        finish = choice.get("finish_reason") if isinstance(choice, dict) else None
        if isinstance(finish, str) and finish in _FAILED:
            raise EngineFailedError(engine, _FAILED[finish])
