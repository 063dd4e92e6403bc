"""The HTTP surface: OpenAI's endpoints and the router's own. An allowlist: what is not here is 404.

Thin: reads and checks a request, gives it to a turn, and turns every RouterError into OpenAI's error form.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import structlog
from aiohttp import web

from pdd_router.endpoints.engine import Role
from pdd_router.errors import BadRequestError, NotFoundError, RouterError, UnavailableError
from pdd_router.flow.relay import Relay
from pdd_router.flow.services import Services
from pdd_router.flow.turn import Turn, TurnInput
from pdd_router.keys import GATE, SERVICES, request_id_of
from pdd_router.metrics import CONTENT_TYPE
from pdd_router.openai.errors import render_error
from pdd_router.openai.request import CONVERSATION_HEADERS, ClientRequest, Endpoint, parse_request
from pdd_router.openai.strict_json import JsonObject, memory_of, parse_object
from pdd_router.policy.chain import chain_of
from pdd_router.status import readiness, refresh_gauges
from pdd_router.tenancy import ANONYMOUS, tenant_hash

_log = structlog.get_logger(__name__)
_RETRY_AFTER_SECONDS = 2
_SERVER = "pdd-router"  # aiohttp's own value names its version and Python's
# Two of one would mean two tenants or two conversations, and every proxy may pick another.
_ONCE = ("Authorization", *CONVERSATION_HEADERS)
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def add_routes(app: web.Application) -> None:
    app.router.add_post(Endpoint.CHAT, _generate)
    app.router.add_post(Endpoint.COMPLETIONS, _generate)
    app.router.add_get("/v1/models", _models, allow_head=False)
    app.router.add_get("/v1/models/{id:.+}", _model, allow_head=False)
    app.router.add_get("/health", _health, allow_head=False)
    app.router.add_get("/ready", _ready, allow_head=False)
    app.router.add_get("/metrics", _metrics, allow_head=False)


async def finish_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Whatever the answer is. Between losing readiness and closing the socket requests are served, but connections are not kept."""
    response.headers["Server"] = _SERVER
    response.headers["X-Request-Id"] = request_id_of(request)
    if request.app[GATE].draining:
        response.force_close()
        response.headers["Connection"] = "close"


@web.middleware
async def errors_in_openai_form(request: web.Request, handler: _Handler) -> web.StreamResponse:
    try:
        _check_headers(request, request.app[SERVICES].config.limits.max_header_bytes)
        return await handler(request)
    except RouterError as error:
        return error_response(error)
    except web.HTTPRequestEntityTooLarge:
        limit = request.app[SERVICES].config.limits.max_body_bytes
        return error_response(
            BadRequestError(
                f"The request body must not be larger than {limit} bytes", code="body_too_large", status=413
            )
        )
    except web.HTTPMethodNotAllowed:
        return error_response(BadRequestError("The method is not allowed here", code="method_not_allowed", status=405))
    except web.HTTPException as error:
        if error.status != 404:
            return error_response(BadRequestError("The request cannot be served", status=error.status))
        return error_response(NotFoundError("There is nothing at this path", code="unknown_path"))


def error_response(error: RouterError) -> web.Response:
    response = web.json_response(render_error(error), status=error.status, headers={"Server": _SERVER})
    if error.retry_after_seconds is not None:
        response.headers["Retry-After"] = str(error.retry_after_seconds)
    return response


def _check_headers(request: web.Request, limit: int) -> None:
    size = len(request.raw_path) + sum(len(name) + len(value) + 4 for name, value in request.raw_headers)
    if size > limit:
        raise BadRequestError(
            f"The request's headers must not be larger than {limit} bytes", code="headers_too_large", status=431
        )
    for name in _ONCE:
        if len(request.headers.getall(name, ())) > 1:
            raise BadRequestError(f"Header `{name}` must be given once", param=name, code="duplicate_header")


# ---- OpenAI's endpoints ----


async def _generate(request: web.Request) -> web.StreamResponse:
    services = request.app[SERVICES]
    began = services.clock()
    outcome, given = "InternalError", None
    try:
        tenant = _tenant_of(request)
        with services.bodies.held_for(tenant) as more:
            given = await _read_input(request, services, tenant, more)
            response, outcome = await _serve(request, services, given, began)
    except RouterError as error:
        outcome = type(error).__name__
        raise
    except web.HTTPException:
        outcome = "BadRequestError"
        raise
    except (asyncio.CancelledError, ConnectionError):
        outcome = "ClientGone"
        raise
    finally:
        services.metrics.requests.labels(request.path, outcome).inc()
        if given is not None:
            _log.info(
                "Ended request",
                request_id=given.request_id,
                tenant_hash=tenant_hash(services.log_secret, given.tenant),
                endpoint=request.path,
                outcome=outcome,
                seconds=round(services.clock() - began, 4),
            )
    return response


async def _read_input(request: web.Request, services: Services, tenant: str, more: Callable[[int], None]) -> TurnInput:
    client = parse_request(
        Endpoint(request.path),
        await _read_object(request, services, more),
        tuple(request.headers.get(name) for name in CONVERSATION_HEADERS),
        services.config.limits,
    )
    while not services.registry.models() and services.registry.is_coming(Role.DECODE):
        await services.registry.news()  # the moment in which one decode engine takes over from another
    _check_model(services, client)
    return TurnInput(
        request=client,
        request_id=request_id_of(request),
        tenant=tenant,
        salt=services.salts.salt_of(tenant),
        chain=chain_of(client),
    )


def _tenant_of(request: web.Request) -> str:
    keys = request.app[GATE].keys
    return ANONYMOUS if keys is None else keys.tenant_of(request.headers.get("Authorization"))


async def _read_object(request: web.Request, services: Services, more: Callable[[int], None]) -> JsonObject:
    """The object is held instead of the body, and may be many times larger. Nothing runs between, so one at most is not counted."""
    limits = services.config.limits
    body = await _read_body(request, services, more)
    value = parse_object(body, max_depth=limits.max_json_depth, max_values=limits.max_json_values)
    more(max(0, memory_of(value) - len(body)))
    return value


async def _read_body(request: web.Request, services: Services, more: Callable[[int], None]) -> bytes:
    if request.content_type != "application/json":
        raise BadRequestError("`Content-Type` must be application/json", param="Content-Type", status=415)
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise BadRequestError("`Content-Encoding` must not be set", param="Content-Encoding", status=415)
    if (request.charset or "utf-8").lower() not in ("utf-8", "utf8"):
        raise BadRequestError("The charset must be utf-8", param="Content-Type", status=415)
    limit, body = services.config.limits.max_body_bytes, bytearray()
    until = asyncio.get_running_loop().time() + services.config.limits.body_timeout_seconds
    if (request.content_length or 0) > limit:
        raise web.HTTPRequestEntityTooLarge(limit)  # at once, not after reading so much
    try:
        async with services.deadlines.until(until):
            async for part in request.content.iter_any():
                more(len(part))
                body += part
                if len(body) > limit:
                    raise web.HTTPRequestEntityTooLarge(limit)
            return bytes(body)
    except TimeoutError:
        raise BadRequestError("The request body did not arrive in time", code="body_timeout", status=408) from None
    except web.RequestPayloadError:
        raise BadRequestError("The request body is not whole", code="invalid_body") from None


def _check_model(services: Services, client: ClientRequest) -> None:
    registry = services.registry
    if any(client.model in state.models for state in registry.states() if state.accepting):
        return
    if not registry.models():
        raise UnavailableError("No engine is available", code="no_engine", retry_after_seconds=_RETRY_AFTER_SECONDS)
    raise NotFoundError("The model does not exist", code="model_not_found", param="model")


async def _serve(
    request: web.Request, services: Services, given: TurnInput, began: float
) -> tuple[web.StreamResponse, str]:
    deadline = asyncio.get_running_loop().time() + services.config.limits.request_timeout_seconds
    async with AsyncExitStack() as place, AsyncExitStack() as stack:
        try:
            async with services.deadlines.until(deadline):
                await place.enter_async_context(services.admission.place(given.tenant))
                opened = await stack.enter_async_context(Turn(services, given, deadline).opened())
        except TimeoutError:
            raise services.deadlines.error(deadline) from None
        services.metrics.first_event.labels(opened.plan.arm).observe(services.clock() - began)
        _log.info(
            "Opened turn",
            request_id=given.request_id,
            arm=opened.plan.arm,
            why=opened.plan.why,
            prefill=opened.prefill.engine if opened.prefill else None,
            decode=opened.plan.decode.id.name,
        )
        relay = Relay(services, given, opened, deadline)
        if opened.stream is not None:
            return await relay.stream(request, opened.stream)
        raw = relay.answer(opened.answer or {})
        await stack.aclose()  # the engine has others to serve while this client reads
        return await relay.send(request, raw), "Success"


async def _models(request: web.Request) -> web.Response:
    _tenant_of(request)
    cards = request.app[SERVICES].registry.models()
    return web.json_response({"object": "list", "data": list(cards.values())})


async def _model(request: web.Request) -> web.Response:
    _tenant_of(request)
    card = request.app[SERVICES].registry.models().get(request.match_info["id"])
    if card is None:
        raise NotFoundError("The model does not exist", code="model_not_found", param="model")
    return web.json_response(card)


# ---- the router's own ----


async def _health(_: web.Request) -> web.Response:
    return web.json_response({"status": "ok"})


async def _ready(request: web.Request) -> web.Response:
    """200 where a decode engine can be given traffic. ``introduced`` of ``wanted`` pairs: when equal, every engine can
    read from every other."""
    services = request.app[SERVICES]
    listed = services.discovery is None or services.discovery.listed
    state = readiness(services.registry, draining=request.app[GATE].draining, listed=listed)
    headers = {} if state.ready else {"Retry-After": str(_RETRY_AFTER_SECONDS)}
    return web.json_response(state.render(), status=200 if state.ready else 503, headers=headers)


async def _metrics(request: web.Request) -> web.Response:
    services = request.app[SERVICES]
    refresh_gauges(services)
    return web.Response(body=services.metrics.render(), headers={"Content-Type": CONTENT_TYPE})
