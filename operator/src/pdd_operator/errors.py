"""Errors of the operator. Each that may show in a condition carries its ``reason``.

OperatorError
├── SettingsError                 the environment says something that is not possible
├── LeaseLostError                this process may not write any more
└── ClusterError                  the API server did not do what was asked
    ├── NotFoundError             404, 410: the object (or its kind) is not there
    ├── AlreadyExistsError        409 on create
    ├── ConflictError             409: another writer was quicker, or the precondition does not hold; look again, then retry
    ├── NamespaceEndingError      403, 404: nothing can be made in a namespace that is being deleted, or is gone
    ├── RefusedError              the same request will be refused again: 400, 405, 415, 422 ...
    │   │                         and the 500 that an apply gets for a field that is none
    │   ├── ForbiddenError        401, 403
    │   └── QuotaExceededError    403 of a ResourceQuota
    └── TransientError            5xx, timeouts, broken connections; perhaps it was done, perhaps not
        └── TooManyRequestsError  429, with the time to wait
"""

from __future__ import annotations

from typing import ClassVar


class OperatorError(Exception):
    """Everything that this package raises on purpose."""


class SettingsError(OperatorError):
    """Names the variable and says what it must be."""


class LeaseLostError(OperatorError):
    """Raised before a write that would come after the end of the lease."""


class ClusterError(OperatorError):
    """``reason`` is one of the reasons of the condition Reconciled; ``status`` the HTTP status, 0 where there was none."""

    reason: ClassVar[str] = "ApplyFailed"

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class NotFoundError(ClusterError):
    pass


class AlreadyExistsError(ClusterError):
    pass


class ConflictError(ClusterError):
    reason = "Conflict"


class NamespaceEndingError(ClusterError):
    """No fault of anybody's, and nothing to be told: whoever could read it is gone in a moment."""


class RefusedError(ClusterError):
    pass


class ForbiddenError(RefusedError):
    reason = "Forbidden"


class QuotaExceededError(RefusedError):
    reason = "QuotaExceeded"


class TransientError(ClusterError):
    """``retry_after_seconds``: at least so long the server asked to wait, None where it said nothing."""

    reason = "ApiUnavailable"

    def __init__(self, message: str, status: int = 0, retry_after_seconds: float | None = None) -> None:
        super().__init__(message, status)
        self.retry_after_seconds = retry_after_seconds

    @property
    def concerns_all(self) -> bool:
        """Whether the next call will fare no better. A 500 without a time to wait may be of one object: a webhook, a conversion."""
        return self.status != 500 or self.retry_after_seconds is not None


class TooManyRequestsError(TransientError):
    pass
