"""The conversations of the suite: one base, and every way in which a next turn may differ from an exact extension. Pure.

Texts are long enough that each message fills blocks of its own.
"""

from collections.abc import Callable
from typing import Any

Messages = list[dict[str, Any]]

SYSTEM = "You are a careful guide to the coast. You answer in plain words, you never guess, and you say so when you do not know."
LANTERNS = (
    "The station master of Varnhem keeps eleven lanterns in a green cupboard and counts them every evening before the last train from the coast "
    "arrives, because the winter of the great flood took all but one of them."
)
PEARS = (
    "Old Mirela sells pears and honey at the corner market, and nobody in the village remembers a winter in which she stayed at home, although "
    "the road to the market was closed by snow for weeks."
)
LAKES = (
    "A survey of the northern lakes found that the water was colder than ten years ago, which surprised the students who had measured it, and "
    "their teacher asked for another summer of measurements."
)
_FIRST = "What is the one thing that you remember best?"
_NEXT = "And what came after that, in the same year?"


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def base() -> Messages:
    """A conversation that has gone on for a while."""
    return [system(SYSTEM), user(LANTERNS), assistant(PEARS), user(_FIRST)]


def extended(answer: str) -> Messages:
    """The next turn, word for word."""
    return [*base(), assistant(answer), user(_NEXT)]


def reasoning_stripped(answer: str) -> Messages:
    """The answer comes back without its first half, as clients drop reasoning."""
    return [*base(), assistant(answer[len(answer) // 2 :]), user(_NEXT)]


def edited(answer: str) -> Messages:
    """One word of the first message is another."""
    messages = extended(answer)
    messages[1] = user(LANTERNS.replace("eleven", "seven"))
    return messages


def removed(answer: str) -> Messages:
    """An answer and the question after it are gone."""
    messages = extended(answer)
    return [*messages[:2], *messages[4:]]


def inserted(answer: str) -> Messages:
    """An exchange is put in between."""
    messages = extended(answer)
    return [*messages[:2], assistant("Yes."), user("Please go on."), *messages[2:]]


def other_system(answer: str) -> Messages:
    """Everything stays but the system prompt."""
    return [system(LAKES), *extended(answer)[1:]]


def regenerated(answer: str) -> Messages:
    """The same question once more."""
    del answer
    return base()


def cut_short(answer: str) -> Messages:
    """The first message alone, shortened."""
    del answer
    return [system(SYSTEM), user(LANTERNS[: len(LANTERNS) * 3 // 4])]


def other_conversation(answer: str) -> Messages:
    """Another conversation of the same length, under the same system prompt."""
    return [system(SYSTEM), user(LAKES), assistant(PEARS), *extended(answer)[3:]]


NEXT_TURNS: dict[str, Callable[[str], Messages]] = {
    "extended": extended,
    "reasoning stripped": reasoning_stripped,
    "edited": edited,
    "removed": removed,
    "inserted": inserted,
    "other system prompt": other_system,
    "regenerated": regenerated,
    "cut short": cut_short,
    "other conversation": other_conversation,
}


def after(messages: Messages, answer: str) -> Messages:
    """One more exact extension of any of them."""
    return [*messages, assistant(answer), user("Thank you. Is there anything to add?")]
