"""OpenAI's error object. Pure; the only place that renders one."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pdd_router.errors import EngineRejectedError, RouterError


def render_error(error: RouterError) -> dict[str, object]:
    """The JSON body for an error response or an SSE error event."""
    if isinstance(error, EngineRejectedError):
        return error.body
    return error_body(error.message, type_=error.type, code=error.code, param=error.param)


def error_body(
    message: str, *, type_: str, code: str | int | None = None, param: str | None = None
) -> dict[str, object]:
    return {"error": {"message": message, "type": type_, "param": param, "code": code}}


def render_error_event(error: RouterError) -> bytes:
    """One SSE event that OpenAI's clients raise as an API error."""
    return b"data: " + json.dumps(render_error(error)).encode() + b"\n\n"


def parse_engine_error(status: int, body: object) -> dict[str, object]:
    """An engine's error body in OpenAI's form, whatever form it came in.

    Engines answer ``{"error": {...}}``, older ones ``{"object": "error", "message": ...}`` or ``{"detail": ...}``.
    """
    fields: Mapping[str, object] = {}
    if isinstance(body, dict):
        inner = body.get("error")
        fields = inner if isinstance(inner, dict) else body
    message = fields.get("message")
    kind = fields.get("type")
    param = fields.get("param")
    code = fields.get("code")
    return error_body(
        message if isinstance(message, str) else "The engine refused the request",
        type_=kind if isinstance(kind, str) else "invalid_request_error",
        code=code if isinstance(code, str | int) and not isinstance(code, bool) else status,
        param=param if isinstance(param, str) else None,
    )
