"""What the users of the traffic talk about, and who they are. Pure.

The same few dialogues again and again, each time as another tenant: what must come is known, and nothing of it is in a cache. A question is
longer than what a turn may have to be run on decode alone, and an answer's blocks are worth reading.
"""

import secrets
from collections.abc import Sequence
from typing import Any

LONG = "long"
"""Of users and their dialogue: an answer that is streamed for many seconds."""
READER = "reader"
"""Of users and their dialogue: a prompt that is prefilled for seconds."""
RETURNING = "returning"
"""How names of users begin who have one conversation each and go on with it when they are called."""
RUN_ON_DECODE_BELOW = 64
_TOPICS = ("the Danube", "the Nile", "the Volga")
_SYSTEM = "You are a patient teacher. You answer in whole sentences, with names, and you keep to what was asked."
_QUESTIONS = (
    "Tell me of {topic}: where does it begin, which towns lie on it, and into which sea does it flow? I have a map of the whole land before me, "
    "and I should like to follow the water with my finger from the hills down to the coast, from one town to the next, while you speak. ",
    "Now tell me of the people who live along {topic}, of their work in the fields and in the harbours, of what they eat in the winter, of the "
    "feasts that they hold when the harvest is in, and of the songs that are sung in the evening when the boats have come home again. ",
    "And last, what do travellers need who want to go down {topic} by boat in the summer? Think of clothes, of tents, of money and of the food "
    "for several weeks, of the papers that are asked for at the borders, and of the weather that one has to expect in the mountains. ",
)
_SENTENCE = "The old ferryman rows home over the dark lake before the storm comes.\n"
_ANSWER_TOKENS = 24
_LONG_TOKENS = 96
_READER_TOKENS = 8
_READER_SENTENCES = 30
_KEYS = 600
_MODEL = "smollm2"
_SILENCE_SECONDS = 60.0  # longer than any prefill, on two cores where engines start
_REQUEST_SECONDS = 300.0
_RETRY_SECONDS = 0.5
_PAUSE_SECONDS = {LONG: 4.0, READER: 6.0}  # after an answer: two cores are to start engines besides
_THINKING_SECONDS = 2.5
_DEADLINE_SECONDS = 7200.0


def make_keys() -> list[str]:
    """API keys, one for each conversation that there may be; the last is that of the references."""
    return [secrets.token_urlsafe(18) for _ in range(_KEYS)]


def dialogues() -> list[dict[str, Any]]:
    """All that there are."""
    talks = [
        {
            "name": topic,
            "system": f"{_SYSTEM} The pupil has read a book about {topic}.",
            "questions": [question.format(topic=topic) for question in _QUESTIONS],
            "max_tokens": _ANSWER_TOKENS,
        }
        for topic in _TOPICS
    ]
    tale = {
        "name": LONG,
        "system": _SYSTEM,
        "questions": [f"Write this sentence thirty times, word for word:\n{_SENTENCE * 4}"],
        "max_tokens": _LONG_TOKENS,
    }
    log = " ".join(
        f"On day {day} the ferryman carried {7 * day % 50} people over the lake." for day in range(_READER_SENTENCES)
    )
    book = {
        "name": READER,
        "system": _SYSTEM,
        "questions": [f"{log} Write this sentence once more: {_SENTENCE}"],
        "max_tokens": _READER_TOKENS,
    }
    return [*talks, tale, book]


def plan(url: str, keys: Sequence[str], users: int, *special: str, returning: int = 0) -> dict[str, Any]:
    """What the program is told. `users` talk, beginning with different topics; `special`: LONG or READER, each one user more; so many return."""
    spoken = {f"user-{at}": [*_TOPICS[at % len(_TOPICS) :], *_TOPICS[: at % len(_TOPICS)]] for at in range(users)}
    spoken |= {name: [name] for name in special}
    come_back = {f"{RETURNING}-{at}": _TOPICS[at % len(_TOPICS)] for at in range(returning)}
    needed = {name for names in spoken.values() for name in names} | set(come_back.values())
    return {
        "url": url,
        "model": _MODEL,
        "keys": list(keys[:-1]),
        "reference_key": keys[-1],
        "silence_seconds": _SILENCE_SECONDS,
        "request_seconds": _REQUEST_SECONDS,
        "retry_seconds": _RETRY_SECONDS,
        "pause_seconds": {name: _PAUSE_SECONDS.get(name, _THINKING_SECONDS) for name in spoken},
        "deadline_seconds": _DEADLINE_SECONDS,
        "users": spoken,
        "returning": come_back,
        "dialogues": [dialogue for dialogue in dialogues() if dialogue["name"] in needed],
    }
