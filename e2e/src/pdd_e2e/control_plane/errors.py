"""What can go wrong with a local control plane, as types that tests can tell apart."""

from typing import Any


class ControlPlaneError(Exception):
    """A control plane could not be had; the message says what to do and where the logs are."""


class ApiError(Exception):
    """The API server answered with a `Status` that is a failure."""

    def __init__(self, code: int, reason: str, message: str, body: dict[str, Any]) -> None:
        super().__init__(f"{code} {reason}: {message}")
        self.code = code
        self.reason = reason
        self.message = message
        self.body = body


class ApiUnreachableError(Exception):
    """No answer: refused, reset, or later than the time limit. A write may have happened all the same."""
