"""What users got: parsed, judged against what a quiet deployment answers, counted. Pure.

Kinds of an attempt: `Whole`; `Told` (an error event, no [DONE], the connection closed); `Cut` (a stream that just ended); `Dropped` (the
connection ended before an answer); `Unreachable`; `Refused` (an HTTP error in OpenAI's form); `Hang` (no byte for a minute); `Malformed` (what no router may send).
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_BLOCK = 32
Answers = Mapping[str, Sequence[Mapping[str, str]]]
"""By dialogue and turn: `text`, what the quiet deployment answers; `sure`, the part of it before the first near tie."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One request of a user's. Times: seconds since the epoch, by the pod's clock. `tried`: how often this turn was tried before."""

    user: str
    dialogue: str
    conversation: int
    turn: int
    tried: int
    began: float
    ended: float
    outcome: str
    status: int | None
    code: str | None
    last_at: float | None
    told_at: float | None
    done: int
    after_end: int
    finish: str | None
    end: str | None
    text: str
    usage: Mapping[str, Any] | None
    receipt: Mapping[str, Any] | None
    error: str | None

    @property
    def kind(self) -> str:
        """The outcome, and for refusals and broken streams what was said."""
        return f"{self.outcome} {self.code}" if self.code else self.outcome

    @property
    def decode(self) -> str:
        """The engine that answered, or ""."""
        return str(((self.receipt or {}).get("decode") or {}).get("engine", ""))

    @property
    def prefill(self) -> str:
        """The engine that prefilled, or ""."""
        return str(((self.receipt or {}).get("prefill") or {}).get("engine", ""))


@dataclass(frozen=True, slots=True)
class Opened:
    """A stream that has begun: whose, and on which decode engine."""

    user: str
    began: float
    decode: str


@dataclass(frozen=True, slots=True)
class Heard:
    """All that the program has said so far."""

    attempts: tuple[Attempt, ...]
    asked: tuple[tuple[str, float], ...]
    opened: tuple[Opened, ...]
    answers: Answers
    ready: bool

    def running(self, user: str, since: float) -> list[Opened]:
        """The user's streams that were asked for since then and have not ended."""
        ended = {(attempt.user, attempt.began) for attempt in self.attempts}
        own = [stream for stream in self.opened if stream.user == user and stream.began >= since]
        return [stream for stream in own if (stream.user, stream.began) not in ended]

    def waits(self, user: str) -> bool:
        """Whether the user has asked something and there is no answer yet."""
        answered = {(attempt.user, attempt.began) for attempt in self.attempts}
        answered |= {(stream.user, stream.began) for stream in self.opened}
        return any(question[0] == user and question not in answered for question in self.asked)


def parse(lines: Iterable[str]) -> Heard:
    """Raises ValueError where a line is none of the program's."""
    attempts, asked, opened, ready = [], [], [], False
    answers: dict[str, list[Mapping[str, str]]] = {}
    for line in lines:
        value = json.loads(line)
        kind = value.pop("kind")
        if kind == "attempt":
            attempts.append(Attempt(**value))
        elif kind == "asked":
            asked.append((value["user"], value["began"]))
        elif kind == "opened":
            opened.append(Opened(**value))
        elif kind == "reference":
            answers.setdefault(value["dialogue"], []).append({"text": value["text"], "sure": value["sure"]})
        else:
            ready = True
    return Heard(tuple(attempts), tuple(asked), tuple(opened), answers, ready)


def wrong(heard: Heard) -> list[str]:
    """Texts that are not what the quiet deployment answers, whole or as far as they came. In words."""
    found = []
    for attempt in heard.attempts:
        expected = heard.answers[attempt.dialogue][attempt.turn]
        if not is_right(attempt.text, expected, whole=attempt.outcome == "Whole"):
            found.append(
                f"{attempt.user} turn {attempt.turn} of {attempt.dialogue}, {attempt.kind}: "
                f"{attempt.text!r} instead of {expected['text']!r} (sure: {expected['sure']!r}), receipt {attempt.receipt}"
            )
    return found


def is_right(text: str, expected: Mapping[str, str], *, whole: bool) -> bool:
    """Equal up to the first near tie of the reference; a part of an answer must be its beginning."""
    sure = expected["sure"]
    if whole and sure == expected["text"]:
        return text == sure
    return text.startswith(sure) or (not whole and sure.startswith(text))


def kinds(attempts: Iterable[Attempt]) -> Counter[str]:
    return Counter(attempt.kind for attempt in attempts)


def failures(attempts: Iterable[Attempt]) -> list[Attempt]:
    return [attempt for attempt in attempts if attempt.outcome != "Whole"]


# ---- reuse ----


@dataclass(frozen=True, slots=True)
class Reuse:
    """Prompt tokens of turns that a prefill engine took, and how many of them were computed: as it was; had each engine its own cache only."""

    turns: int = 0
    prompt: int = 0
    computed: int = 0
    own_cache_only: int = 0

    def __add__(self, other: "Reuse") -> "Reuse":
        return Reuse(
            self.turns + other.turns,
            self.prompt + other.prompt,
            self.computed + other.computed,
            self.own_cache_only + other.own_cache_only,
        )


@dataclass(frozen=True, slots=True)
class ReuseReport:
    """`all` turns; those `handed_over`: taken by another prefill engine than the turn before; of these `read_over` read from another engine,
    and `late` began to read, and it took too long: a miss."""

    all: Reuse
    handed_over: Reuse
    read_over: int
    late: int

    def table(self) -> str:
        """For people."""
        columns = (self.all, self.handed_over)
        rows = [
            ("prefill turns", [str(item.turns) for item in columns]),
            ("prompt tokens (all computed, without any cache)", [str(item.prompt) for item in columns]),
            ("computed, had each engine its own cache only", [_share(i.own_cache_only, i.prompt) for i in columns]),
            ("computed with reuse between engines", [_share(i.computed, i.prompt) for i in columns]),
        ]
        lines = [f"{name:<50} {first:>15} {second:>15}" for name, (first, second) in rows]
        head = f"{'':<50} {'all':>15} {'handed over':>15}"
        return "\n".join(
            [
                head,
                *lines,
                f"of {self.handed_over.turns} turns handed over, {self.read_over} read their history, {self.late} too late",
            ]
        )


def reuse(attempts: Sequence[Attempt], since: float = 0.0) -> ReuseReport:
    """Of turns that began since then, from receipts. What an engine's own cache would have held is the longest prompt of the conversation that it
    took before, whenever that was, in whole blocks.
    """
    total, handed, read, late = Reuse(), Reuse(), 0, 0
    held: dict[tuple[int, str], int] = {}
    latest: dict[int, str] = {}
    for attempt in sorted(attempts, key=lambda item: item.ended):
        leg = (attempt.receipt or {}).get("prefill")
        if attempt.outcome != "Whole" or not leg or leg["local_tokens"] is None:
            continue
        place, prompt = (attempt.conversation, attempt.prefill), int(leg["prompt_tokens"])
        turn = Reuse(1, prompt, prompt - leg["local_tokens"] - leg["read_tokens"], prompt - held.get(place, 0))
        if attempt.began >= since:
            total += turn
            if latest.get(attempt.conversation, attempt.prefill) != attempt.prefill:
                handed += turn
                read += leg["read_tokens"] > 0
                late += leg.get("reason") == "Timeout"
        held[place] = max(held.get(place, 0), prompt // _BLOCK * _BLOCK)
        latest[attempt.conversation] = attempt.prefill
    return ReuseReport(total, handed, read, late)


def _share(part: int, whole: int) -> str:
    return f"{part} ({100 * part / whole:.0f} %)" if whole else "0"
