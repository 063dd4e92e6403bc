"""Decode's answer → the client: nothing is answered before decode's first event, nothing is hidden after it.

A stream that breaks ends in an error event, without ``[DONE]``, and its connection is closed. ``kv_transfer_params`` is
taken out on the way, and usage's ``cached_tokens`` says what was cached for the turn: to decode all is cached that prefill
has just computed for it. Everything else passes byte for byte.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field

import structlog
from aiohttp import HttpVersion11, web

from pdd_router.config import Mechanism
from pdd_router.errors import (
    AnswerTooLargeError,
    EngineFailedError,
    FailureReason,
    LegError,
    RouterError,
    UpstreamFailedError,
)
from pdd_router.flow import kv_params
from pdd_router.flow.report import HEADER, note_receipt, render_receipt
from pdd_router.flow.services import Services
from pdd_router.flow.turn import Opened, TurnInput, prompt_tokens_of, result_of
from pdd_router.openai.errors import render_error_event
from pdd_router.openai.sse import Event, render_event
from pdd_router.policy.conversations import Handle
from pdd_router.upstream import EventStream, check_event

_log = structlog.get_logger(__name__)
JsonObject = dict[str, object]

_DRAIN_SECONDS = 1.0
_PIECE_BYTES = 64 << 10


@dataclass(slots=True)
class Tally:
    """What is learned from an answer as it passes."""

    events: int = 0
    finished: set[int] = field(default_factory=set)
    params: object = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None

    def note(self, value: JsonObject) -> None:
        choices = value.get("choices")
        if isinstance(choices, list) and choices:
            self.events += 1
            self.finished.update(_index(choice) for choice in choices if _is_finished(choice))
        usage = value.get("usage")
        if isinstance(usage, dict):
            self.prompt_tokens = prompt_tokens_of(value)
            completion = usage.get("completion_tokens")
            self.completion_tokens = completion if isinstance(completion, int) else None
        if value.get(kv_params.KEY) is not None:
            self.params = value[kv_params.KEY]


def _is_finished(choice: object) -> bool:
    return isinstance(choice, dict) and isinstance(choice.get("finish_reason"), str)


def _index(choice: JsonObject) -> int:
    """An engine that numbers nothing has one choice."""
    index = choice.get("index")
    return index if isinstance(index, int) else 0


def for_client(value: JsonObject, cached_tokens: int | None) -> JsonObject:
    """What an engine answers as the client gets it. ``cached_tokens``: of the turn; None leaves decode's word.

    With Retain vLLM itself hands prefill's number on to decode (``remote_prefill_cached_tokens``).
    """
    rest = {key: item for key, item in value.items() if key != kv_params.KEY}
    usage = rest.get("usage")
    details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
    if cached_tokens is not None and isinstance(usage, dict) and isinstance(details, dict):
        rest["usage"] = {**usage, "prompt_tokens_details": {**details, "cached_tokens": cached_tokens}}
    return rest


def event_for_client(event: Event, value: JsonObject | None, cached_tokens: int | None) -> bytes | None:
    """The event as the client gets it; None where it carried nothing but our parameters."""
    if value is None or (kv_params.KEY not in value and not value.get("usage")):
        return event.raw  # nearly every event: nothing is copied or compared for a token
    rest = for_client(value, cached_tokens)
    if rest == value:
        return event.raw
    if not rest.get("choices") and not rest.get("usage"):
        return None
    return render_event(rest)


class Relay:
    """One answer to one client. ``deadline``: on the loop's clock, for the whole request."""

    def __init__(self, services: Services, given: TurnInput, opened: Opened, deadline: float) -> None:
        self._services = services
        self._given = given
        self._opened = opened
        self._deadline = deadline
        self._tally = Tally()

    def headers(self) -> dict[str, str]:
        if not self._services.config.expose_receipt:
            return {}
        return {HEADER: render_receipt(self._opened.plan, self._opened.prefill)}

    def _cached_tokens(self) -> int | None:
        """Prefill's receipt is of the first prompt: of several it says nothing."""
        prefill = self._opened.prefill
        return prefill.cached_tokens if prefill is not None and self._given.request.prompts == 1 else None

    def answer(self, answer: JsonObject) -> bytes:
        """A whole answer that has been checked already, for ``send``. Its engine is not needed any more."""
        self._tally.note(answer)
        self._ended(success=True)
        return json.dumps(for_client(answer, self._cached_tokens()), ensure_ascii=False, separators=(",", ":")).encode()

    async def send(self, request: web.Request, raw: bytes) -> web.StreamResponse:
        """Raises ConnectionError only. A client that reads too slowly is cut off; what it has not read is dropped."""
        response = web.StreamResponse(headers={**self.headers(), "Content-Type": "application/json"})
        response.content_length = len(raw)
        try:
            async with self._services.deadlines.until(self._deadline):
                await response.prepare(request)
                for at in range(0, len(raw), _PIECE_BYTES):  # else all of it lies in the connection, and nobody waits
                    await self._write(response, raw[at : at + _PIECE_BYTES])
                await self._write(response, None)
        except (TimeoutError, ConnectionError):
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError("The client did not read the answer") from None
        return response

    async def stream(self, request: web.Request, stream: EventStream) -> tuple[web.StreamResponse, str]:
        """Returns the response and how it ended (for logs and metrics). Raises only when the client is gone."""
        response = web.StreamResponse(
            headers={**self.headers(), "Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
        )
        if request.version >= HttpVersion11:  # before, the end of the connection is the end of the message
            response.enable_chunked_encoding()
        else:
            response.force_close()
        await response.prepare(request)
        try:
            await self._pump(stream, response)
        except LegError as error:
            await self._break(request, response, error)
            return response, "Broken"
        await self._write(response, None)
        return response, "Success"

    async def _pump(self, stream: EventStream, response: web.StreamResponse) -> None:
        engine = self._opened.plan.decode.engine
        while True:
            event = await self._next(stream)
            if event is None:
                raise EngineFailedError(engine.id.name, FailureReason.TRUNCATED)
            value = check_event(engine, event)
            self._opened.use.answers()
            if value is not None:
                self._tally.note(value)
            data = event_for_client(event, value, self._cached_tokens())
            if event.is_done:
                if len(self._tally.finished) < self._given.request.answers:
                    # vLLM on SIGTERM says so of an answer that it gave up before its first token, and of nothing but that.
                    raise EngineFailedError(engine.id.name, FailureReason.TRUNCATED)
                self._ended(success=True)  # before the client knows: many leave at once
            if data is not None:
                await self._write(response, data)
            if event.is_done:
                break
        await self._drain(stream)

    async def _next(self, stream: EventStream) -> Event | None:
        deadlines, gap = self._services.deadlines, self._services.config.timeouts.between_events_seconds
        try:
            async with deadlines.until(self._deadline):
                return await stream.next(min(deadlines.seconds_left(self._deadline), gap))
        except TimeoutError:
            raise EngineFailedError(self._opened.plan.decode.id.name, FailureReason.TIMEOUT) from None

    async def _drain(self, stream: EventStream) -> None:
        """Read the engine's end of stream, so that its connection can be used again; not worth an error."""
        try:
            await stream.next(_DRAIN_SECONDS)
        except LegError as error:
            _log.debug("Stream did not end after its last event", engine=error.engine, reason=result_of(error))

    async def _write(self, response: web.StreamResponse, data: bytes | None) -> None:
        """``data`` None: the end. A client that does not read holds decode for nobody: it is given up."""
        try:
            async with asyncio.timeout(self._services.config.limits.client_write_timeout_seconds):
                await (response.write_eof() if data is None else response.write(data))
        except TimeoutError:
            raise ConnectionResetError("The client does not read") from None

    async def _break(self, request: web.Request, response: web.StreamResponse, error: LegError) -> None:
        told: RouterError = UpstreamFailedError("The engine failed while it was answering", code="stream_broken")
        if isinstance(error, AnswerTooLargeError):
            told = error
        blamed = isinstance(error, EngineFailedError)  # not where the engine refused what the client wants
        if self._services.deadlines.seconds_left(self._deadline) <= 0:
            told = self._services.deadlines.error(self._deadline)
            blamed = False
        self._ended(success=False if blamed else None, result=result_of(error))
        _log.warning("Broke stream", request_id=self._given.request_id, engine=error.engine, reason=result_of(error))
        await self._write(response, render_error_event(told))
        # Flushes the event, then closes, without HTTP's end of message: a client that does not know error events must
        # not take the answer for whole, and none may put this connection back into its pool.
        request.protocol.force_close()

    def _ended(self, *, success: bool | None, result: str = "Success") -> None:
        """``success`` None: nothing is known of the engine's health."""
        opened, services = self._opened, self._services
        decode = opened.plan.decode
        opened.use.success = success
        services.metrics.legs.labels(decode.engine.role, decode.id.name, result).inc()
        model = self._given.request.model
        tokens = self._tally.completion_tokens or self._tally.events
        opened.served.generated_chars = round(tokens * services.estimator.ratio(model))
        if opened.prefill is None and self._tally.prompt_tokens is not None and self._given.chain.is_one_text:
            services.estimator.learn(model, self._given.chain.chars, self._tally.prompt_tokens)
        self._note_params(self._tally.params)

    def _note_params(self, params: object) -> None:
        opened, services = self._opened, self._services
        decode = opened.plan.decode
        if services.policy.mechanism is Mechanism.CLAIM:
            receipt = kv_params.parse_receipt(params)
            if receipt is not None:
                note_receipt(receipt, decode, opened.plan.decode_owners, services.registry, services.metrics)
            return
        handle = kv_params.parse_decode_handle(params)
        if handle is not None:
            expires = services.clock() + services.config.conversation_ttl_seconds
            opened.served.handle = Handle(handle, decode.living, expires)
            services.metrics.handles.labels("Stored").inc()
        elif params is not None:
            services.metrics.handles.labels("Unproven").inc()
