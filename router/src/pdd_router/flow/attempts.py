"""What a failure changes about the next attempt: pure transitions, and the error that ends a request."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pdd_router.config import OnPrefillFailure
from pdd_router.endpoints.engine import EngineId, Living
from pdd_router.errors import (
    EngineBusyError,
    EngineFailedError,
    FailureReason,
    LegError,
    RouterError,
    UnavailableError,
    UpstreamFailedError,
)
from pdd_router.policy.decide import Attempt, Refusal, RefusalReason

RETRY_AFTER_SECONDS = 2


@dataclass(frozen=True, slots=True)
class Progress:
    """``attempt`` is what ``decide`` sees; ``retries`` made so far; ``last`` failure, for the client's error."""

    attempt: Attempt = field(default_factory=Attempt)
    retries: int = 0
    last: LegError | None = None


def without(progress: Progress, engine: EngineId) -> Progress:
    """The engine vanished between deciding and sending: decide again, nothing was tried."""
    return replace(progress, attempt=replace(progress.attempt, excluded=progress.attempt.excluded | {engine}))


def prefilled(progress: Progress, engine: Living) -> Progress:
    return replace(progress, attempt=replace(progress.attempt, prefilled=engine))


def after_prefill_failure(
    progress: Progress, engine: EngineId, error: LegError, policy: OnPrefillFailure, *, may_retry: bool
) -> Progress:
    """Another prefill engine (Retry, while the budget lasts), decode alone (Aggregate, or no budget), or the end
    (Fail: raises UpstreamFailedError)."""
    if policy is OnPrefillFailure.FAIL:
        raise UpstreamFailedError("The prefill engine failed", code="prefill_failed") from error
    again = policy is OnPrefillFailure.RETRY and may_retry
    attempt = replace(
        progress.attempt,
        excluded=progress.attempt.excluded | {engine},
        prefill_failed=True,
        give_up_prefill=not again,
    )
    return Progress(attempt, progress.retries + (1 if again else 0), error)


def after_decode_failure(progress: Progress, engine: EngineId, error: LegError, *, may_retry: bool) -> Progress:
    """Another decode engine, or the end."""
    if not may_retry:
        raise end_of(error) from error
    attempt = replace(progress.attempt, excluded=progress.attempt.excluded | {engine})
    return Progress(attempt, progress.retries + 1, error)


def end_of(error: LegError) -> RouterError:
    """What the client sees when nothing is left to try."""
    if isinstance(error, EngineBusyError):
        return _full()
    if isinstance(error, EngineFailedError) and error.reason is FailureReason.CONNECT:
        return UnavailableError("No engine can be reached", code="no_engine", retry_after_seconds=RETRY_AFTER_SECONDS)
    return UpstreamFailedError("The engine failed", code="engine_failed")


def _full() -> RouterError:
    return UnavailableError("All engines are full", code="engines_full", retry_after_seconds=RETRY_AFTER_SECONDS)


def refused(refusal: Refusal, progress: Progress) -> RouterError:
    """There is no plan (any more)."""
    if refusal.reason is RefusalReason.PREFILL_FAILED:
        return UpstreamFailedError("The prefill engine failed", code="prefill_failed")
    if refusal.reason is RefusalReason.DECODE_FULL:
        return _full()
    if refusal.reason is RefusalReason.NO_DECODE and progress.last is not None:
        return end_of(progress.last)
    role = "decode" if refusal.reason is RefusalReason.NO_DECODE else "prefill"
    return UnavailableError(f"No {role} engine is available", code="no_engine", retry_after_seconds=RETRY_AFTER_SECONDS)
