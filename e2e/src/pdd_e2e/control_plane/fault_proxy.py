"""An HTTPS proxy between one client and the API server that breaks calls as told, counts them, and can stop at every write.

Ends the client's TLS with a certificate of the control plane's own authority, so a client needs nothing but another address. Passes bearer
tokens on; a client certificate becomes the front-proxy headers that the API server is told to believe, so RBAC and audit see the same user
as without the proxy. Streams watches; upgraded connections (exec, port-forward) are not proxied.
"""

import asyncio
import socket
import ssl
import struct
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from pdd_e2e.control_plane.certificates import KeyPair
from pdd_e2e.control_plane.errors import ControlPlaneError
from pdd_e2e.control_plane.fault_rules import (
    Answer,
    Book,
    CutWatch,
    Delay,
    Entry,
    Fault,
    Hang,
    ResetAfter,
    ResetBefore,
    Rule,
    StallWatch,
)
from pdd_e2e.control_plane.kubeconfig import with_server
from pdd_e2e.control_plane.request_info import RequestInfo, request_info

_MAX_BODY_BYTES = 16 * 1024 * 1024
_STOP_SECONDS = 10.0
_HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "host", "content-length"}
)

BeforeWrite = Callable[[RequestInfo, int], bool]
AfterWrite = Callable[[RequestInfo, int, int], None]


class Upstream(Protocol):
    """What the proxy needs of a control plane."""

    @property
    def url(self) -> str: ...
    @property
    def authority(self) -> Path: ...
    @property
    def serving(self) -> KeyPair: ...
    @property
    def front_proxy(self) -> KeyPair: ...


@dataclass(frozen=True, slots=True)
class SeenCall:
    """A call that the proxy has decided on, at `at` (monotonic seconds)."""

    at: float
    info: RequestInfo
    fault: Fault | None


class FaultProxy:
    """Serves while its context lasts. Everything here may be called from the test's thread.

    `before_write(call, number)` runs before the number-th mutating call (from 1) goes to the server; False drops the call and resets the
    connection. `after_write(call, number, code)` runs when the server has answered and the client has not seen it. Both run on threads of
    their own and may block, but only their own call.
    """

    def __init__(self, plane: Upstream) -> None:
        self.before_write: BeforeWrite | None = None
        self.after_write: AfterWrite | None = None
        self._plane = plane
        self._book = Book()
        self._calls: list[SeenCall] = []
        self._changed = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._writes: set[asyncio.Task[web.StreamResponse]] = set()
        self._connections: weakref.WeakSet[asyncio.Transport] = weakref.WeakSet()
        self._failure: Exception | None = None
        self.url = ""

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._run(self._start())
        except BaseException:
            self._stop_loop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._run(self._close())
        finally:
            self._stop_loop()
        if self._failure is not None:
            raise ControlPlaneError(f"a hook of the fault proxy failed: {self._failure!r}") from self._failure

    # ---- for tests ----------------------------------------------------------------------------------------------

    def kubeconfig(self, base: Path) -> Path:
        """Like `base`, by way of the proxy; written beside it."""
        port = self.url.rpartition(":")[2]
        return with_server(base, base.with_suffix(f".by-{port}.kubeconfig"), server=self.url)

    def add(self, rule: Rule) -> Entry:
        """From now on; its `hits` says how often it acted."""
        with self._changed:
            return self._book.add(rule)

    def clear(self) -> None:
        """No rule any more. Counts go on."""
        with self._changed:
            self._book.entries.clear()

    def counts(self) -> Counter[tuple[str, str, str]]:
        """(user agent, verb, resource) → calls so far, those that never reached the server included."""
        with self._changed:
            return Counter(self._book.counts)

    def calls(self) -> list[SeenCall]:
        """All calls so far, in order."""
        with self._changed:
            return list(self._calls)

    def wait_for(self, what: Callable[[list[SeenCall]], bool], timeout_seconds: float) -> bool:
        """Whether `what` became true of the calls so far in that time; it is asked after every call."""
        with self._changed:
            return self._changed.wait_for(lambda: what(self._calls), timeout_seconds)

    # ---- serving ------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        trust = ssl.create_default_context(cafile=str(self._plane.authority))
        trust.load_cert_chain(self._plane.front_proxy.certificate, self._plane.front_proxy.key)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=trust, limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        )
        app = web.Application(client_max_size=_MAX_BODY_BYTES)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
        await self._runner.setup()
        serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(self._plane.authority))
        serving.load_cert_chain(self._plane.serving.certificate, self._plane.serving.key)
        serving.verify_mode = ssl.CERT_OPTIONAL
        await web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=serving).start()
        self.url = f"https://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _close(self) -> None:
        for connection in self._connections:
            connection.abort()  # an orderly end of TLS would wait for clients that sleep
        await self._runner.cleanup()
        for write in self._writes:
            write.cancel()
        await asyncio.gather(*self._writes, return_exceptions=True)
        await self._session.close()
        await asyncio.sleep(0)  # transports close on the next turn of the loop

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(_STOP_SECONDS)

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_SECONDS)
        if self._thread.is_alive():
            raise ControlPlaneError(f"the fault proxy did not stop within {_STOP_SECONDS:.0f} s")
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        call = request_info(request.method, request.path, request.query, request.headers.get("User-Agent", ""))
        with self._changed:
            fault = self._book.judge(call)
            number = self._book.writes
            self._calls.append(SeenCall(time.monotonic(), call, fault))
            self._changed.notify_all()
        if request.transport is not None:
            self._connections.add(request.transport)
        match fault:
            case Answer():
                return _answered(fault)
            case Hang():
                await asyncio.Event().wait()  # ends when the client goes away, or the proxy
            case ResetBefore():
                return _reset(request)
            case Delay(seconds=seconds):
                await asyncio.sleep(seconds)
            case None | ResetAfter() | CutWatch() | StallWatch():
                pass  # the server is asked first
        body = await request.read()
        if not call.mutating:
            return await self._forward(request, body, call, fault)
        write = asyncio.ensure_future(self._write(request, body, call, fault, number))
        self._writes.add(write)
        write.add_done_callback(self._writes.discard)
        return await asyncio.shield(write)  # a write that has begun is finished although its client has died

    async def _write(
        self, request: web.Request, body: bytes, call: RequestInfo, fault: Fault | None, number: int
    ) -> web.StreamResponse:
        try:
            if self.before_write and not await asyncio.to_thread(self.before_write, call, number):
                return _reset(request)
            response = await self._forward(request, body, call, fault)
            if self.after_write:
                await asyncio.to_thread(self.after_write, call, number, response.status)
        except Exception as error:  # noqa: BLE001  # what a test's hook raises is raised on exit, where the test sees it
            self._failure = self._failure or error
            return _reset(request)
        return _reset(request) if isinstance(fault, ResetAfter) else response

    async def _forward(
        self, request: web.Request, body: bytes, call: RequestInfo, fault: Fault | None
    ) -> web.StreamResponse:
        try:
            async with self._session.request(
                request.method,
                URL(self._plane.url + request.raw_path, encoded=True),
                headers=_headers_for_server(request),
                data=body or None,
                allow_redirects=False,
            ) as answer:
                if call.verb == "watch":
                    return await _streamed(request, answer, fault)
                data = await answer.read()
        except aiohttp.ClientError:
            return _reset(request)  # the API server is away: the client is to see just that
        if isinstance(fault, ResetAfter) and not call.mutating:
            return _reset(request)
        return web.Response(status=answer.status, headers=_headers_for_client(answer), body=data)


async def _streamed(request: web.Request, answer: aiohttp.ClientResponse, fault: Fault | None) -> web.StreamResponse:
    """A watch, one event per line; cut or stalled as `fault` says."""
    response = web.StreamResponse(status=answer.status, headers=_headers_for_client(answer))
    await response.prepare(request)
    events, rest = 0, b""
    if isinstance(fault, CutWatch) and fault.after_events == 0:
        return _reset(request, response)
    async for chunk in answer.content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if isinstance(fault, StallWatch) and events == fault.after_events:
                await asyncio.sleep(fault.seconds)
            await response.write(line + b"\n")
            events += 1
            if isinstance(fault, CutWatch) and events >= fault.after_events:
                return _reset(request, response)
    await response.write_eof(rest)
    return response


def _answered(fault: Answer) -> web.Response:
    headers = {} if fault.retry_after_seconds is None else {"Retry-After": str(fault.retry_after_seconds)}
    return web.json_response(fault.body(), status=fault.code, headers=headers)


def _reset(request: web.Request, response: web.StreamResponse | None = None) -> web.StreamResponse:
    """Resets the client's connection, so that it sees no orderly end. What is returned is sent to nobody."""
    if request.transport is not None:
        connection = request.transport.get_extra_info("socket")
        if connection is not None:  # None: the client was killed meanwhile
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        request.transport.abort()
    return response if response is not None else web.Response()


def _headers_for_server(request: web.Request) -> CIMultiDict[str]:
    headers = CIMultiDict(
        (name, value)
        for name, value in request.headers.items()
        if name.lower() not in _HOP_BY_HOP and not name.lower().startswith("x-remote-")
    )
    certificate = request.transport.get_extra_info("peercert") if request.transport else None
    for part in (certificate or {}).get("subject", ()):
        for kind, value in part:
            if kind == "commonName":
                headers.add("X-Remote-User", value)
            elif kind == "organizationName":
                headers.add("X-Remote-Group", value)
    return headers


def _headers_for_client(answer: aiohttp.ClientResponse) -> CIMultiDict[str]:
    return CIMultiDict((name, value) for name, value in answer.headers.items() if name.lower() not in _HOP_BY_HOP)
