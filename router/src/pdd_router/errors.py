"""Everything that can end a request, and what the client then sees.

    RouterError
    ├── BadRequestError            4xx: the client's own fault, names the field
    ├── UnauthorizedError          401
    ├── NotFoundError              404: path or model that is not on the allowlist
    ├── QueueFullError             429
    ├── UnavailableError           503: no engine, draining, waited too long in the queue
    ├── DeadlineExceededError      504
    ├── UpstreamFailedError        502: every engine that could be tried failed
    └── LegError              one engine failed one leg; the driver decides whether another is tried
        ├── EngineRejectedError    4xx from the engine: goes to the client unchanged in OpenAI's form
        ├── EngineBusyError        429/503 from the engine: elsewhere, no fault of its health
        ├── AnswerTooLargeError    502: more than the router takes; it would be so anywhere
        └── EngineFailedError      connection, time limit, 5xx, malformed or failed answer

Messages must never contain anything a client sent except the name of a field.
"""

from __future__ import annotations

from enum import StrEnum


class RouterError(Exception):
    """Base. ``status`` is the HTTP status; ``type``, ``code`` and ``param`` fill OpenAI's error object."""

    status = 500
    type = "internal_error"

    def __init__(
        self, message: str, *, code: str | None = None, param: str | None = None, retry_after_seconds: int | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.param = param
        self.retry_after_seconds = retry_after_seconds


class BadRequestError(RouterError):
    status = 400
    type = "invalid_request_error"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400) -> None:
        super().__init__(message, code=code, param=param)
        self.status = status


class UnauthorizedError(RouterError):
    status = 401
    type = "authentication_error"


class NotFoundError(RouterError):
    status = 404
    type = "not_found_error"


class QueueFullError(RouterError):
    status = 429
    type = "rate_limit_error"


class UnavailableError(RouterError):
    status = 503
    type = "service_unavailable_error"


class DeadlineExceededError(RouterError):
    status = 504
    type = "timeout_error"


class UpstreamFailedError(RouterError):
    status = 502
    type = "upstream_error"


class FailureReason(StrEnum):
    """Why an engine's leg failed; a metric label."""

    CONNECT = "Connect"
    DISCONNECTED = "Disconnected"
    TIMEOUT = "Timeout"
    STATUS = "Status"
    MALFORMED = "Malformed"
    ERROR_EVENT = "ErrorEvent"
    FINISH_ERROR = "FinishError"
    ABORTED = "Aborted"
    TRUNCATED = "Truncated"


class LegError(RouterError):
    """One engine did not do its leg."""

    def __init__(self, engine: str, message: str, *, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.engine = engine


class EngineRejectedError(LegError):
    """The engine judged the request itself to be wrong (4xx). ``body`` is an OpenAI error object."""

    type = "invalid_request_error"

    def __init__(self, engine: str, status: int, body: dict[str, object]) -> None:
        super().__init__(engine, "The engine refused the request")
        self.status = status
        self.body = body


class EngineBusyError(LegError):
    """The engine is up and full (429, 503)."""

    status = 503
    type = "service_unavailable_error"


class AnswerTooLargeError(LegError):
    """The answer that was asked for is beyond a limit of the router's own: no fault of the engine's."""

    status = 502
    type = "upstream_error"

    def __init__(self, engine: str, limit: str, size: int) -> None:
        super().__init__(
            engine, f"The answer is larger than the router's `{limit}` of {size} bytes", code="answer_too_large"
        )


class EngineFailedError(LegError):
    """The engine did not answer, or not in a way that can be used."""

    status = 502
    type = "upstream_error"

    def __init__(self, engine: str, reason: FailureReason) -> None:
        super().__init__(engine, f"The engine failed: {reason.value}")
        self.reason = reason
