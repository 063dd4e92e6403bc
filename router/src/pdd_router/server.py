"""aiohttp's server with its own error pages replaced: what aiohttp refuses itself (broken HTTP, headers beyond its
limits, an unexpected exception) is answered in OpenAI's form too, and logged without quoting the request.
"""

from __future__ import annotations

import asyncio
import logging
import socket

import structlog
from aiohttp import web

from pdd_router.config import Limits
from pdd_router.errors import BadRequestError, RouterError
from pdd_router.handlers import error_response
from pdd_router.keys import request_id_of
from pdd_router.logs import frames_of

_log = structlog.get_logger(__name__)
_NO_ACCESS_LOG = logging.Logger("no access log", level=logging.CRITICAL)  # it would quote paths and headers


class _OpenAIProtocol(web.RequestHandler):
    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun already")
        error: RouterError
        if 400 <= status < 500:
            error = BadRequestError("The request must be valid HTTP/1.1", code="invalid_http", status=status)
            _log.info("Refused malformed HTTP", request_id=request_id_of(request), exception=type(exc).__name__)
        else:
            error = RouterError("Internal error", code="internal_error")
            _log.error(
                "Failed unexpectedly",
                request_id=request_id_of(request),
                exception=type(exc).__name__,
                frames=frames_of(exc) if exc is not None else [],
            )
        response = error_response(error)
        response.headers["X-Request-Id"] = request_id_of(request)  # the application never saw this request
        response.force_close()
        return response

    async def shutdown(self, timeout: float | None = 15.0) -> None:  # noqa: ASYNC109  # aiohttp names it
        """aiohttp would wait for as long again before it cancels what has not ended."""
        if self._task_handler is not None and timeout is not None:
            asyncio.get_running_loop().call_later(timeout, self._task_handler.cancel)
        await super().shutdown(timeout)


class RouterSite(web.BaseSite):
    """One listening socket for a runner that has been set up."""

    def __init__(self, runner: web.AppRunner, host: str, port: int, limits: Limits) -> None:
        super().__init__(runner)
        self._host = host
        self._port = port
        self._limits = limits

    @property
    def name(self) -> str:
        return f"http://{self._host}:{self.port}"

    @property
    def port(self) -> int:
        """The real one, also where 0 was asked for."""
        sockets: list[socket.socket] = list(getattr(self._server, "sockets", None) or ())
        return int(sockets[0].getsockname()[1]) if sockets else self._port

    async def start(self) -> None:
        await super().start()
        loop = asyncio.get_running_loop()
        server = self._runner.server
        if server is None:
            raise RuntimeError("the runner must be set up before its site starts")

        def protocol() -> _OpenAIProtocol:
            return _OpenAIProtocol(
                server,
                loop=loop,
                access_log=_NO_ACCESS_LOG,
                keepalive_timeout=self._limits.idle_timeout_seconds,  # counts until a request's headers are whole
                auto_decompress=False,  # a compressed body is refused, so it must not be unpacked either
                # A little more than the router's own limit, so that its own, better worded refusal comes first.
                max_field_size=self._limits.max_header_bytes + 1024,
                max_line_size=self._limits.max_header_bytes + 1024,
            )

        self._server = await loop.create_server(protocol, self._host, self._port, backlog=1024, reuse_address=True)
        for listening in self._server.sockets:
            # Connections inherit it. aiohttp never waits for a whole answer to be taken, nor for what is left at a close.
            listening.setsockopt(
                socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(self._limits.client_write_timeout_seconds * 1000)
            )
