"""Errors as vLLM 0.32 words them: one exception, one body. Pure."""

from http import HTTPStatus
from typing import Any


class RequestError(Exception):
    """An HTTP error with vLLM's body `{"error": {"message", "type", "param", "code"}}`."""

    def __init__(self, status: int, message: str, *, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body: dict[str, Any] = {"error": {"message": message, "type": kind, "param": param, "code": status}}


class GenerationFailedError(Exception):
    """The engine gave up on a request (vLLM's finish reason "error"): 500, or an error event in a stream."""


def internal_error(message: str = "Internal server error") -> RequestError:
    """What a request answers that the engine gave up on."""
    return RequestError(500, message, kind="InternalServerError")


def schema_error(param: str | None, message: str) -> RequestError:
    """What request validation answers: a body whose shape or types are wrong."""
    where = "" if param is None else f" ({param})"
    return RequestError(400, f"1 validation error:\n  {message}{where}", kind="Bad Request", param=param)


def value_error(param: str | None, message: str) -> RequestError:
    """What vLLM's own validation answers: a value out of range, fields that do not go together."""
    where = "" if param is None else f" (parameter={param})"
    return RequestError(400, message + where, param=param)


def http_error(status: int) -> RequestError:
    """An HTTP error that vLLM raises as such."""
    phrase = HTTPStatus(status).phrase
    return RequestError(status, phrase, kind=phrase)


def framework_error(status: int) -> dict[str, Any]:
    """Body for an unknown path or method: the framework answers before vLLM's handlers see it."""
    return {"detail": HTTPStatus(status).phrase}


def unknown_model(model: str) -> RequestError:
    """The model is not served here."""
    return RequestError(404, f"The model `{model}` does not exist.", kind="NotFoundError", param="model")


def too_long(tokens: int, limit: int) -> RequestError:
    """The prompt does not fit the context."""
    return value_error(
        "input_tokens",
        f"This model's maximum context length is {limit} tokens. However, your prompt contains {tokens} input tokens, "
        "which exceeds this limit even without any output tokens. Please reduce the length of the input prompt.",
    )
