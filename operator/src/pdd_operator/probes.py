"""HTTP for probes and Prometheus: /healthz, /readyz, /metrics. Says nothing about any object."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@asynccontextmanager
async def serve_probes(
    address: str, port: int, illness: Callable[[], str | None], expose: Callable[[], bytes]
) -> AsyncIterator[None]:
    """Listens while the context is open. ``illness``: why the process should be restarted, None while it is well."""

    async def healthz(request: web.Request) -> web.Response:
        reason = illness()
        return web.Response(text=reason or "ok", status=200 if reason is None else 503)

    async def readyz(request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def metrics(request: web.Request) -> web.Response:
        return web.Response(body=expose(), headers={"Content-Type": _METRICS_TYPE})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", metrics)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, address, port).start()
        yield
    finally:
        await runner.cleanup()
