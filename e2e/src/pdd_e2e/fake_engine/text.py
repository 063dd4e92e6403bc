"""From tokens to text: detokenizing, stop strings and the finish reason of one choice. State, no I/O."""

from collections.abc import Sequence
from dataclasses import dataclass

from pdd_e2e.fake_engine.model import Candidate
from pdd_e2e.fake_engine.tokens import END, Detokenizer


@dataclass(frozen=True, slots=True)
class Output:
    """One generated token: the text that it releases, and how the choice ended if it did."""

    token: Candidate
    rivals: tuple[Candidate, ...]
    text: str
    finish_reason: str | None = None
    stop_reason: str | None = None


class TextStream:
    """Text of one choice. Holds back what may turn out to be the beginning of a stop string."""

    def __init__(self, stop: Sequence[str], max_tokens: int, room: int) -> None:
        self._stop = tuple(stop)
        self._limit = min(max_tokens, room)
        self._tokens = 0
        self._held = ""
        self._hold_back = max((len(item) for item in stop), default=1) - 1
        self._detokenizer = Detokenizer()

    def feed(self, token: Candidate, rivals: Sequence[Candidate]) -> Output:
        """Take one token."""
        self._tokens += 1
        self._held += self._detokenizer.feed(token.token)
        finish, reason = self._finish(token.token)
        if finish:
            self._held += self._detokenizer.finish() if reason is None else ""
            return Output(token, tuple(rivals), self._held, finish, reason)
        cut = len(self._held) - self._hold_back
        text, self._held = (self._held[:cut], self._held[cut:]) if cut > 0 else ("", self._held)
        return Output(token, tuple(rivals), text)

    def _finish(self, token: int) -> tuple[str | None, str | None]:
        found = [(self._held.index(item), item) for item in self._stop if item in self._held]
        if found:
            position, item = min(found)
            self._held = self._held[:position]
            return "stop", item
        if token == END:
            return "stop", None
        return ("length" if self._tokens >= self._limit else None), None
