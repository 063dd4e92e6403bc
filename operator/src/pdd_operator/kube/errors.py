"""What the Kubernetes client raises, as this package's errors. Pure: looks at exceptions only."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import urllib3
from kubernetes.client.exceptions import ApiException

from pdd_operator.errors import (
    AlreadyExistsError,
    ClusterError,
    ConflictError,
    ForbiddenError,
    NamespaceEndingError,
    NotFoundError,
    QuotaExceededError,
    RefusedError,
    TooManyRequestsError,
    TransientError,
)

CLIENT_ERRORS = (ApiException, urllib3.exceptions.HTTPError, OSError, ValueError)
"""What may come out of a call of the client. ValueError: an answer that is no JSON; or a header that cannot be sent."""

_MESSAGE_LENGTH = 1024
_UNTYPED = ("failed to create typed patch object", "failed to convert new object")
"""How a 500 begins that says that a server-side apply has a field which its kind does not have, or of another type."""
_NAMESPACE_ENDS = "NamespaceTerminating"
_USERINFO = re.compile(r"(?<=://)[^/\s]*@")
_BY_STATUS: Mapping[int, Callable[[str, int], ClusterError]] = {
    401: ForbiddenError,
    404: NotFoundError,
    410: NotFoundError,
}


def cluster_error(error: Exception, what: str) -> ClusterError:
    """The typed error for ``error``; ``what`` (verb, kind, name) begins its message."""
    if not isinstance(error, ApiException):
        return TransientError(without_userinfo(f"{what}: {_said(error)}")[:_MESSAGE_LENGTH])
    status = int(error.status or 0)
    answer = _status_of(error)
    reason, message = answer.reason, answer.message
    text = f"{what}: {message}"[:_MESSAGE_LENGTH]
    if status == 429:
        return TooManyRequestsError(text, status, retry_after_of(error.headers))
    if status == 500 and message.startswith(_UNTYPED):
        return RefusedError(text, status)
    if status == 0 or status >= 500:
        return TransientError(text, status, retry_after_of(error.headers))
    if status == 409:
        return AlreadyExistsError(text, status) if reason == "AlreadyExists" else ConflictError(text, status)
    if status == 403 and _NAMESPACE_ENDS in answer.causes:
        return NamespaceEndingError(text, status)
    if status == 404 and answer.kind == "namespaces":  # it has ended while we were at it
        return NamespaceEndingError(text, status)
    if status == 403:
        return QuotaExceededError(text, status) if "exceeded quota" in message else ForbiddenError(text, status)
    return _BY_STATUS.get(status, RefusedError)(text, status)


def without_userinfo(text: str) -> str:
    """Names and passwords that stand in URLs are nobody's to read."""
    return _USERINFO.sub("", text)


def _said(error: Exception) -> str:
    """Of a plain ValueError its type alone: http.client puts the header that it refuses, a token, into the text."""
    kind = type(error).__name__
    if isinstance(error, ValueError) and not isinstance(error, json.JSONDecodeError):
        return f"{kind}, whose text may hold credentials and is not shown"
    return f"{kind}: {error}"


def retry_after_of(headers: Mapping[str, str] | None) -> float | None:
    """Seconds of the header Retry-After; None where it is absent or a date, which API servers do not send."""
    for name, value in (headers or {}).items():
        if name.lower() == "retry-after":
            try:
                seconds = float(value)
            except ValueError:
                return None
            return seconds if 0 <= seconds < 86_400 else None
    return None


@dataclass(frozen=True, slots=True)
class _Answer:
    """Of a ``Status`` object. ``causes``: their reasons. ``kind``: of what it is about, in the plural."""

    reason: str
    message: str
    causes: tuple[str, ...] = ()
    kind: str = ""


def _status_of(error: ApiException) -> _Answer:
    """Whatever there is where the answer is no ``Status``."""
    body = error.body.decode("utf-8", "replace") if isinstance(error.body, bytes) else str(error.body or "")
    try:
        status = json.loads(body)
    except ValueError:
        return _Answer("", body or str(error.reason or ""))
    if not isinstance(status, dict):
        return _Answer("", body)
    given = status.get("details")
    details = given if isinstance(given, dict) else {}
    reasons = tuple(str(cause.get("reason")) for cause in details.get("causes") or () if isinstance(cause, dict))
    message = str(status.get("message", "") or error.reason or "")
    return _Answer(str(status.get("reason", "")), message, reasons, str(details.get("kind", "")))
