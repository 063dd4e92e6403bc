"""Which call gets which fault: rules as data, and the book that counts calls against them. Pure; the proxy does what it says."""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from pdd_e2e.control_plane.request_info import RequestInfo

_REASONS = {
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """The proxy answers itself with a `Status` of this code; the server never sees the call."""

    code: int
    retry_after_seconds: int | None = None
    message: str = "injected by the fault proxy"

    def body(self) -> dict[str, Any]:
        """The `Status` object."""
        details = {} if self.retry_after_seconds is None else {"retryAfterSeconds": self.retry_after_seconds}
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": _REASONS.get(self.code, ""),
            "details": details,
            "code": self.code,
        }


@dataclass(frozen=True, slots=True)
class Delay:
    """The call reaches the server `seconds` later."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Hang:
    """No answer until the client gives up; the server never sees the call."""


@dataclass(frozen=True, slots=True)
class ResetBefore:
    """The connection is reset; the server never sees the call."""


@dataclass(frozen=True, slots=True)
class ResetAfter:
    """The connection is reset after the server has answered: a write has happened and the client does not know."""


@dataclass(frozen=True, slots=True)
class CutWatch:
    """The connection of a watch is reset after that many events."""

    after_events: int = 0


@dataclass(frozen=True, slots=True)
class StallWatch:
    """After that many events a watch's further ones come `seconds` later: its client sees the past."""

    after_events: int
    seconds: float


Fault = Answer | Delay | Hang | ResetBefore | ResetAfter | CutWatch | StallWatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """`fault` for those calls that match all that is given, from the `nth` of them (1 is the first), `times` of them (None: all further).

    `user_agent` is a part of the header; `resource` as in RequestInfo (`pods/status` is not `pods`).
    """

    fault: Fault
    verbs: Collection[str] | None = None
    resource: str | None = None
    namespace: str | None = None
    user_agent: str | None = None
    nth: int = 1
    times: int | None = 1

    def matches(self, call: RequestInfo) -> bool:
        """Whether the call counts for this rule."""
        return (
            (self.verbs is None or call.verb in self.verbs)
            and self.resource in (None, call.resource)
            and self.namespace in (None, call.namespace)
            and (self.user_agent is None or self.user_agent in call.user_agent)
        )

    def covers(self, number: int) -> bool:
        """Whether the `number`-th matching call gets the fault."""
        return self.nth <= number and (self.times is None or number < self.nth + self.times)


@dataclass(slots=True)
class Entry:
    """A rule in the book: how many calls matched, and how many got its fault."""

    rule: Rule
    matched: int = 0
    hits: int = 0


@dataclass(slots=True)
class Book:
    """Rules in the order in which they were added; every matching rule counts a call, the first that covers it decides."""

    entries: list[Entry] = field(default_factory=list)
    counts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    writes: int = 0

    def add(self, rule: Rule) -> Entry:
        """The entry shows later whether the rule ever acted."""
        entry = Entry(rule)
        self.entries.append(entry)
        return entry

    def judge(self, call: RequestInfo) -> Fault | None:
        """Counts the call and says what happens to it; None: nothing."""
        self.counts[(call.user_agent, call.verb, call.resource)] += 1
        self.writes += call.mutating
        chosen: Entry | None = None
        for entry in self.entries:
            if not entry.rule.matches(call):
                continue
            entry.matched += 1
            if chosen is None and entry.rule.covers(entry.matched):
                chosen = entry
        if chosen is None:
            return None
        chosen.hits += 1
        return chosen.rule.fault
