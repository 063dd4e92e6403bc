"""The fake's HTTP surface: the paths of a vLLM 0.32 OpenAI server that the router uses.

Parses, finds the fault that the script has for this request, lets the core generate, and sends. One handler per path; the
engine (engine.py) owns the server, the core and the script.
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from aiohttp import web
from multidict import CIMultiDict, CIMultiDictProxy

from pdd_e2e.fake_engine.answers import DONE, ChunkWriter, Envelope, Usage, event, whole_answer
from pdd_e2e.fake_engine.claims import Receipt
from pdd_e2e.fake_engine.core import EngineCore, Progress
from pdd_e2e.fake_engine.errors import (
    GenerationFailedError,
    RequestError,
    framework_error,
    http_error,
    internal_error,
    schema_error,
)
from pdd_e2e.fake_engine.faults import (
    Abort,
    Answer,
    Die,
    ErrorIn200,
    FinishError,
    GarbageJson,
    HangBeforeHeaders,
    RequestFault,
    ResetBeforeHeaders,
    Script,
    Status,
    ToolCalls,
)
from pdd_e2e.fake_engine.metrics import render_metrics
from pdd_e2e.fake_engine.requests import Job, parse_job
from pdd_e2e.fake_engine.text import Output
from pdd_e2e.fake_engine.tokens import encode, tool_call_text
from pdd_e2e.fake_engine.wire import AnswerCutError, Wire, hang, reset

VLLM_VERSION = "0.32.0"


@dataclass(slots=True)
class RecordedRequest:
    """One request as the engine saw it. Times are `time.monotonic()` seconds; `body` is the decoded JSON, else None.

    `ended` is set once the request is answered or aborted; one of the two times is there then.
    """

    method: str
    path: str
    headers: CIMultiDictProxy[str]
    body: Any
    received_at: float
    status: int | None = None
    finished_at: float | None = None
    aborted_at: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    read_tokens: int = 0
    receipt: Receipt | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)


_RECORD = web.RequestKey("record", RecordedRequest)


class Host(Protocol):
    """What the handlers need of the engine."""

    script_queue: Script
    requests: list[RecordedRequest]

    @property
    def core(self) -> EngineCore:
        """The present incarnation."""
        ...

    def die_soon(self) -> None:
        """Kill the engine from inside one of its own handlers."""
        ...


class Handlers:
    """Handlers of one engine."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def application(self) -> web.Application:
        """The aiohttp application."""
        app = web.Application(middlewares=[self._guard], client_max_size=256 * 1024 * 1024)
        app.router.add_get("/health", self._health)
        app.router.add_get("/ping", self._health)
        app.router.add_get("/version", self._version)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/reset_prefix_cache", self._reset_prefix_cache)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/completions", self._completions)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        record = RecordedRequest(
            request.method, request.path, CIMultiDictProxy(CIMultiDict(request.headers)), None, time.monotonic()
        )
        request[_RECORD] = record
        if request.method == "POST":
            self._host.requests.append(record)
        try:
            response: web.StreamResponse = await self._answer(request, handler)
        except (asyncio.CancelledError, ConnectionResetError):
            record.aborted_at = time.monotonic()
            raise
        else:
            record.status, record.finished_at = response.status, time.monotonic()
            return response
        finally:
            record.ended.set()

    async def _answer(self, request: web.Request, handler: Any) -> web.StreamResponse:
        try:
            if request.method == "GET":
                fault = self._host.script_queue.take_for_request(request.path, {})
                if (early := await self._misbehave(request, fault)) is not None:
                    return early
            answer: web.StreamResponse = await handler(request)
            return answer
        except RequestError as error:
            return web.json_response(error.body, status=error.status)
        except web.HTTPException as error:
            return web.json_response(framework_error(error.status), status=error.status)

    # -- small paths ---------------------------------------------------------------------------------------------------

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": VLLM_VERSION})

    async def _models(self, request: web.Request) -> web.Response:
        settings = self._host.core.settings
        card = {
            "id": settings.model,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "vllm",
            "root": settings.model,
            "parent": None,
            "max_model_len": settings.context_tokens,
            "permission": [],
        }
        return web.json_response({"object": "list", "data": [card]})

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(text=render_metrics(self._host.core), content_type="text/plain")

    async def _reset_prefix_cache(self, request: web.Request) -> web.Response:
        core = self._host.core
        core.expire()
        return web.json_response({"success": core.pool.reset()})

    # -- generation ----------------------------------------------------------------------------------------------------

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, chat=True)

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, chat=False)

    async def _generate(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        record = request[_RECORD]
        record.body = body = await _read_json(request)
        fault = self._host.script_queue.take_for_request(request.path, body if isinstance(body, dict) else {})
        if (early := await self._misbehave(request, fault)) is not None:
            return early
        core = self._host.core
        job = parse_job(body, core.settings, chat=chat)
        envelope = Envelope.new(core.settings.model, chat=chat, request_id=request.headers.get("X-Request-Id"))
        exchange = _Exchange(core, job, envelope, fault, record, Wire(request, fault, self._host.die_soon))
        try:
            return await (exchange.stream() if job.stream else exchange.whole())
        except AnswerCutError:
            return await exchange.wire.cut()

    async def _misbehave(self, request: web.Request, fault: RequestFault | None) -> web.StreamResponse | None:
        """The answer of a fault that needs no generation; None for every other."""
        match fault:
            case Status(code, body, headers):
                data = body if isinstance(body, bytes) else json.dumps(_error_body(code, body)).encode()
                return web.Response(status=code, body=data, headers={"Content-Type": "application/json", **headers})
            case HangBeforeHeaders():
                await hang()
            case ResetBeforeHeaders():
                reset(request)
                return web.Response()
            case GarbageJson(data):
                return web.Response(body=data, headers={"Content-Type": "application/json"})
            case Die(after_events=None):
                self._host.die_soon()
                await hang()
            case _:
                pass
        return None


class _Exchange:
    """One request for generation, from its job to the last byte."""

    def __init__(
        self,
        core: EngineCore,
        job: Job,
        envelope: Envelope,
        fault: RequestFault | None,
        record: RecordedRequest,
        wire: Wire,
    ) -> None:
        self._core = core
        self._job = job
        self._envelope = envelope
        self._fault = fault
        self._record = record
        self._progress = Progress()
        self.wire = wire

    async def whole(self) -> web.StreamResponse:
        """Answer without a stream."""
        if isinstance(self._fault, ErrorIn200):
            return await self.wire.body(200, internal_error(self._fault.message).body, {})
        outputs: list[list[Output]] = [[] for _ in range(self._choices)]
        try:
            async with aclosing(self._outputs()) as stream:
                async for index, output in stream:
                    outputs[index].append(output)
        except GenerationFailedError:
            error = internal_error()
            return await self.wire.body(error.status, error.body, {})
        self._note()
        params = self._progress.kv_transfer_params
        return await self.wire.body(200, whole_answer(self._job, self._envelope, outputs, self._usage(), params), {})

    async def stream(self) -> web.StreamResponse:
        """Answer as server-sent events."""
        writer = ChunkWriter(self._job, self._envelope, tool_calls=self._parses)
        await self.wire.start_stream()
        try:
            if isinstance(self._fault, ErrorIn200):
                raise GenerationFailedError(self._fault.message)
            async with aclosing(self._outputs()) as stream:
                await self._send_deltas(writer, stream)
            self._note()
            params = self._progress.kv_transfer_params if self._core.settings.stream_params else None
            for chunk in writer.last(self._usage(), params):
                await self.wire.event(event(chunk))
        except GenerationFailedError as failure:
            await self.wire.event(event(internal_error(*failure.args).body))
        await self.wire.event(DONE, done=True)
        return await self.wire.finish()

    async def _send_deltas(self, writer: ChunkWriter, stream: AsyncIterator[tuple[int, Output]]) -> None:
        first = True
        async for index, output in stream:
            for chunk in [*(writer.first() if first else ()), *writer.delta(index, output)]:
                await self.wire.event(event(chunk))
            first = False
        if first:  # aborted before the first token
            for chunk in writer.first():
                await self.wire.event(event(chunk))

    @property
    def _choices(self) -> int:
        return len(self._job.prompts) * self._job.n

    @property
    def _parses(self) -> bool:
        """Whether the text is one that the tool or reasoning parser has to take apart."""
        return self._job.chat and isinstance(self._fault, Answer | ToolCalls)

    async def _outputs(self) -> AsyncGenerator[tuple[int, Output], None]:
        """Outputs of all choices as they come. Closing it aborts every choice."""
        if self._choices == 1:
            async with aclosing(self._choice(0)) as outputs:
                async for output in outputs:
                    yield 0, output
            return
        queue: asyncio.Queue[tuple[int, Output | BaseException | None]] = asyncio.Queue()
        tasks = [asyncio.create_task(self._feed(index, queue)) for index in range(self._choices)]
        try:
            left = len(tasks)
            while left:
                index, item = await queue.get()
                if isinstance(item, BaseException):
                    raise item
                if item is None:
                    left -= 1
                else:
                    yield index, item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _feed(self, index: int, queue: "asyncio.Queue[tuple[int, Output | BaseException | None]]") -> None:
        try:
            async with aclosing(self._choice(index)) as outputs:
                async for output in outputs:
                    queue.put_nowait((index, output))
        except GenerationFailedError as failure:
            queue.put_nowait((index, failure))
        else:
            queue.put_nowait((index, None))

    def _choice(self, index: int) -> AsyncGenerator[Output, None]:
        fail_after = self._fault.after_tokens if isinstance(self._fault, FinishError) else None
        forced = _forced_tokens(self._job, self._fault)
        outputs = self._core.generate(self._job, index, self._progress, forced=forced, fail_after=fail_after)
        return _aborted(outputs, self._fault.after_tokens) if isinstance(self._fault, Abort) else outputs

    def _note(self) -> None:
        self._record.prompt_tokens = sum(len(prompt) for prompt in self._job.prompts)
        self._record.cached_tokens = self._progress.cached_tokens
        self._record.read_tokens = self._progress.read_tokens
        self._record.receipt = self._progress.receipt

    def _usage(self) -> Usage:
        details = self._core.settings.prompt_tokens_details
        return Usage(
            sum(len(prompt) for prompt in self._job.prompts),
            self._progress.completion_tokens,
            self._progress.cached_tokens if details else None,
        )


async def _aborted(outputs: AsyncGenerator[Output, None], tokens: int) -> AsyncGenerator[Output, None]:
    """No more than so many tokens, the last with the finish reason "abort"."""
    async with aclosing(outputs):
        while tokens > 0:
            output = await anext(outputs)
            tokens -= 1
            yield output if tokens else replace(output, finish_reason="abort")


def _forced_tokens(job: Job, fault: RequestFault | None) -> tuple[int, ...] | None:
    match fault:
        case Answer(text):
            return tuple(encode(text))
        case ToolCalls(calls, text):
            wanted = calls if calls is not None else tuple((name, "{}") for name in job.tools[:1])
            return tuple(encode(text + "".join(tool_call_text(name, arguments) for name, arguments in wanted)))
        case _:
            return None


def _error_body(code: int, body: Mapping[str, Any] | None) -> Mapping[str, Any]:
    return http_error(code).body if body is None else body


async def _read_json(request: web.Request) -> Any:
    if request.content_type != "application/json":
        raise schema_error(None, "Unsupported Media Type: Only 'application/json' is allowed")
    data = await request.read()
    try:
        return json.loads(data)
    except ValueError as error:
        raise schema_error("body", f"JSON decode error: {error}") from error
