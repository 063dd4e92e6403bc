"""Light traffic: users who talk, each one conversation of two turns after the other, while a test changes something.

What they meet is kept and not judged, with one exception: an error ends a user, and is raised when the traffic ends.
"""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event

import openai

from pdd_e2e.kind_suite.conversation import QUESTIONS, Conversation, Turn

_UNAVAILABLE = 503
_PAUSE_SECONDS = 1.0
_ANSWER_TOKENS = 12
_END_SECONDS = 150.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that was answered with 503. `retry_after_seconds`: what the answer's header asks for, None without one."""

    seconds: float
    retry_after_seconds: float | None
    message: str


@dataclass(slots=True)
class Traffic:
    """What users have met until now. `patient` ones take 503 for an answer and come again when it says."""

    url: str
    patient: bool
    turns: list[Turn] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    stopping: Event = field(default_factory=Event)

    def talk(self, user: str) -> None:
        """Until `stopping`. Raises openai.OpenAIError."""
        number = 0
        while not self.stopping.is_set():
            number += 1
            conversation = Conversation(self.url, f"{user} asks about subject {number}", answer_tokens=_ANSWER_TOKENS)
            for question in QUESTIONS[:2]:
                self._ask(conversation, question)
                self.stopping.wait(_PAUSE_SECONDS)

    def _ask(self, conversation: Conversation, question: str) -> None:
        while not self.stopping.is_set():
            asked_at = time.monotonic()
            try:
                self.turns.append(conversation.ask(question))
                return
            except openai.APIStatusError as error:
                if not self.patient or error.status_code != _UNAVAILABLE:
                    raise
                after = error.response.headers.get("retry-after")
                wait = None if after is None else float(after)
                self.refusals.append(Refusal(time.monotonic() - asked_at, wait, error.message))
                self.stopping.wait(1.0 if wait is None else wait)


@contextmanager
def talking(url: str, users: Sequence[str], *, patient: bool = False) -> Iterator[Traffic]:
    """Traffic while the block runs. At its end every user comes to the end of a turn; raises the first error that one met."""
    traffic = Traffic(url, patient)
    with ThreadPoolExecutor(len(users)) as pool:
        going: list[Future[None]] = [pool.submit(traffic.talk, user) for user in users]
        try:
            yield traffic
        finally:
            traffic.stopping.set()
        for user in going:
            user.result(timeout=_END_SECONDS)
