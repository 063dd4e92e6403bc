"""Scripted faults: what a test can make a fake engine do wrong, and the queue that hands them out.

A fault of a request is consumed by the first request that it fits (path, then `when`); a fault of the claim channel by
the first question or transfer. Plain data; http.py and core.py act on it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pdd_e2e.fake_engine.claims import Reason


@dataclass(frozen=True, slots=True)
class Status:
    """Answer with this status; `body` is sent as JSON, or as it stands if it is bytes."""

    code: int
    body: Mapping[str, Any] | bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HangBeforeHeaders:
    """Compute nothing and answer nothing until the client leaves."""


@dataclass(frozen=True, slots=True)
class HangMidStream:
    """Stop sending after so many events; the connection stays open until the client leaves."""

    after_events: int


@dataclass(frozen=True, slots=True)
class HangAfterDone:
    """Send all of a stream, `[DONE]` too, but not its end, until the client leaves."""


@dataclass(frozen=True, slots=True)
class ResetBeforeHeaders:
    """Reset the TCP connection instead of answering."""


@dataclass(frozen=True, slots=True)
class ResetAfterBytes:
    """Reset the TCP connection after exactly so many bytes of the body."""

    count: int


@dataclass(frozen=True, slots=True)
class ResetAfterEvents:
    """Reset the TCP connection after so many events."""

    count: int


@dataclass(frozen=True, slots=True)
class SlowChunks:
    """Wait before every event."""

    seconds: float


@dataclass(frozen=True, slots=True)
class CloseWithoutDone:
    """End the stream in good order but without `[DONE]`, after so many events (None: after the last)."""

    after_events: int | None = None


@dataclass(frozen=True, slots=True)
class FinishError:
    """The engine gives up after so many tokens (vLLM's finish reason "error"): 500, or an error event in a stream."""

    after_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Abort:
    """The engine is told to go with the request in it, after so many tokens (vLLM's finish reason "abort").

    Status 200 all the same, and `[DONE]`; before the first token vLLM leaves a stream without any finish reason.
    """

    after_tokens: int = 0


@dataclass(frozen=True, slots=True)
class MalformedSse:
    """Send these bytes in place of the event with this number (from 0)."""

    at_event: int
    data: bytes = b"data: {not json\n\n"


@dataclass(frozen=True, slots=True)
class GarbageJson:
    """Status 200 and a body that is no JSON, also where a stream was asked for."""

    data: bytes = b'{"id": "chatcmpl-1", "choices": ['


@dataclass(frozen=True, slots=True)
class ErrorIn200:
    """Status 200 whose body (or first event) is an error."""

    message: str = "Internal server error"


@dataclass(frozen=True, slots=True)
class Die:
    """Kill the engine: at once, or after so many events of this answer."""

    after_events: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """No fault: generate this text. It may hold `<think>...</think>` first."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCalls:
    """No fault: generate these tool calls, [(name, arguments as JSON text)]; None: the request's first tool, `{}`."""

    calls: tuple[tuple[str, str], ...] | None = None
    text: str = ""


RequestFault = (
    Status
    | HangBeforeHeaders
    | HangMidStream
    | HangAfterDone
    | ResetBeforeHeaders
    | ResetAfterBytes
    | ResetAfterEvents
    | SlowChunks
    | CloseWithoutDone
    | FinishError
    | Abort
    | MalformedSse
    | GarbageJson
    | ErrorIn200
    | Die
    | Answer
    | ToolCalls
)


@dataclass(frozen=True, slots=True)
class RefuseClaim:
    """As owner: refuse the next question."""

    reason: Reason


@dataclass(frozen=True, slots=True)
class LateAnswer:
    """As owner: the next question's answer takes so long to arrive."""

    seconds: float


@dataclass(frozen=True, slots=True)
class SlowRead:
    """As owner: the next transfer takes so much longer."""

    seconds: float


@dataclass(frozen=True, slots=True)
class BrokenRead:
    """As owner: the next transfer fails."""


ClaimFault = RefuseClaim | LateAnswer | SlowRead | BrokenRead

Fault = RequestFault | ClaimFault
_T = TypeVar("_T")


@dataclass(slots=True)
class _Entry:
    fault: Fault
    path: str | None
    when: Callable[[Mapping[str, Any]], bool] | None
    times: int


class Script:
    """Faults in order. An entry is used `times` times and then gone."""

    def __init__(self) -> None:
        self._entries: list[_Entry] = []

    def add(
        self, fault: Fault, *, path: str | None, when: Callable[[Mapping[str, Any]], bool] | None, times: int
    ) -> None:
        """Append a fault; `path` None fits the two completion paths, `when` looks at the JSON body."""
        self._entries.append(_Entry(fault, path, when, times))

    @property
    def pending(self) -> int:
        """Faults not consumed yet: a test ends by checking that this is 0."""
        return sum(entry.times for entry in self._entries)

    def clear(self) -> None:
        """Forget what is left."""
        self._entries.clear()

    def take_for_request(self, path: str, body: Mapping[str, Any]) -> RequestFault | None:
        """The first fault that fits this request."""
        for entry in self._entries:
            fits = entry.path == path if entry.path else path.endswith("/completions")
            if isinstance(entry.fault, RequestFault) and fits and (entry.when is None or entry.when(body)):
                self._use(entry)
                return entry.fault
        return None

    def take(self, kind: type[_T]) -> _T | None:
        """The first fault of the claim channel of this kind."""
        for entry in self._entries:
            if isinstance(entry.fault, kind):
                self._use(entry)
                return entry.fault
        return None

    def _use(self, entry: _Entry) -> None:
        entry.times -= 1
        if entry.times == 0:
            self._entries.remove(entry)
