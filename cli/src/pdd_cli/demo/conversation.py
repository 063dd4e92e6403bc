"""The conversation that the demo holds: an agent that looks into an incident, with tool calls and their results. Pure and deterministic.

Turn 1 brings the system prompt, a runbook and the question. Even turns bring a tool result (logs, metrics), odd ones a short follow-up
question; the last turn is always a question. The tool call belongs to the assistant message before it, as agents send it back. The model is
too small to call tools by itself, so the calls are scripted; what the assistant says is what the model said.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]

SYSTEM = (
    "You are an on-call assistant for an online shop. You look into incidents step by step, use the tools you are given, "
    "quote the lines that matter, and answer in one or two short sentences."
)

_RUNBOOK = (
    "When checkout is slow, compare the latency of the payment gateway with the latency of the order database first.",
    "A deployment within the last hour is the most likely cause; look at the release notes before anything else.",
    "If the connection pool is exhausted, requests wait in line and the time to first byte grows for every customer.",
    "Retries make an overloaded service worse. Ask whether the client library backs off before you raise any limit.",
    "Never restart all replicas at once. Take one out of the load balancer, wait until it is idle, and look at it.",
    "The cache in front of the catalog may hide a slow database for some minutes; its hit rate tells which it is.",
    "Write down what you have seen, with times, before you change anything, so that the next shift can follow it.",
    "A full disk on the log volume has stopped the payment worker twice this year; check the free space on it.",
)

_QUESTIONS = (
    "What do you make of that?",
    "Which of these lines would you look at first?",
    "Is the payment gateway or the order database to blame?",
    "Could the release of this morning explain it?",
    "What should we tell the customers who are waiting?",
    "Which single change would you make now?",
    "Summarize what we know so far.",
)

_TOOLS = (
    ("search_logs", {"service": "checkout", "level": "WARN", "minutes": 15}),
    ("query_metrics", {"service": "payment-gateway", "quantile": 0.95}),
    ("search_logs", {"service": "orders-db", "level": "ERROR", "minutes": 30}),
    ("list_releases", {"service": "checkout", "hours": 24}),
)

_EVENTS = (
    "payment gateway answered late",
    "waiting for a free connection to orders-db",
    "request to the catalog was retried",
    "order was saved after a second attempt",
    "session of the customer was renewed",
)


@dataclass(frozen=True, slots=True)
class TokenRates:
    """Characters per token, as measured: prose and log lines differ by a factor of two."""

    prose: float = 4.6
    log: float = 2.3


@dataclass(frozen=True, slots=True)
class Turn:
    """What is put before the model asks for its next reply. `call` goes onto the assistant message before, if there is one."""

    number: int
    call: Message | None
    added: tuple[Message, ...]

    @property
    def is_tool_result(self) -> bool:
        return self.call is not None


def plan_new_tokens(
    turns: int, longest_tokens: int, first_share: float = 0.3, question_tokens: int = 30
) -> tuple[int, ...]:
    """How many tokens each turn adds so that the last prompt has about `longest_tokens`. The tool results share what is left."""
    tools = [number for number in range(1, turns + 1) if _brings_tool_result(number, turns)]
    questions = turns - 1 - len(tools)
    first = round(longest_tokens * first_share)
    each_tool = (longest_tokens - first - questions * question_tokens) // max(1, len(tools))
    sizes = {1: first} | {number: max(question_tokens, each_tool) for number in tools}
    return tuple(sizes.get(number, question_tokens) for number in range(1, turns + 1))


def script(new_tokens: tuple[int, ...], rates: TokenRates) -> tuple[Turn, ...]:
    """The turns, each with about as many tokens as asked for."""
    turns = len(new_tokens)
    made = []
    for number, tokens in enumerate(new_tokens, start=1):
        if number == 1:
            made.append(Turn(1, None, _opening(tokens, rates)))
        elif _brings_tool_result(number, turns):
            made.append(_tool_turn(number, tokens, rates))
        else:
            question = _QUESTIONS[(number // 2 - 1) % len(_QUESTIONS)] if number < turns else _QUESTIONS[-1]
            made.append(Turn(number, None, ({"role": "user", "content": question},)))
    return tuple(made)


def extend(history: list[Message], turn: Turn) -> list[Message]:
    """The message list that turn sends: the history with its last reply calling the tool, if the turn brings a result, and what is added."""
    messages = [dict(message) for message in history]
    if turn.call is not None:
        messages[-1] = messages[-1] | {"tool_calls": [turn.call]}
    return [*messages, *(dict(message) for message in turn.added)]


def prose(characters: int) -> str:
    """Runbook sentences, at least `characters` long in all and at most one sentence longer."""
    return " ".join(_take(_sentences(), characters))


def log_lines(characters: int, seed: int = 0) -> str:
    """Log lines, at least `characters` long in all and at most one line longer; another seed gives other numbers."""
    return "\n".join(_take(_events(seed), characters))


def _brings_tool_result(number: int, turns: int) -> bool:
    return number % 2 == 0 and number < turns


def _opening(tokens: int, rates: TokenRates) -> tuple[Message, ...]:
    fixed = len(SYSTEM) + 200
    runbook = prose(max(200, round(tokens * rates.prose) - fixed))
    question = (
        "Customers report that checkout takes ten seconds since 09:40. Please find out why. "
        f"This is our runbook, it may help:\n{runbook}\nWhat do you look at first?"
    )
    return {"role": "system", "content": SYSTEM}, {"role": "user", "content": question}


def _tool_turn(number: int, tokens: int, rates: TokenRates) -> Turn:
    name, arguments = _TOOLS[(number // 2 - 1) % len(_TOOLS)]
    identity = f"call_{number:02d}"
    call = {"id": identity, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
    content = f"{name} found:\n{log_lines(round(tokens * rates.log), seed=number)}"
    return Turn(number, call, ({"role": "tool", "tool_call_id": identity, "content": content},))


def _take(lines: Iterator[str], characters: int) -> list[str]:
    taken: list[str] = []
    length = 0
    while length < characters:
        line = next(lines)
        taken.append(line)
        length += len(line) + 1
    return taken


def _sentences() -> Iterator[str]:
    rule = 0
    while True:
        yield f"Rule {rule + 1}. {_RUNBOOK[rule % len(_RUNBOOK)]}"
        rule += 1


def _events(seed: int) -> Iterator[str]:
    number = seed * 101
    while True:
        number += 1
        mixed = (number * 7919 + seed * 104729) % 100_003
        level = "WARN" if mixed % 3 else "ERROR"
        yield (
            f"09:{40 + (number // 60) % 20:02d}:{number % 60:02d} {level} checkout-{mixed % 6} "
            f"{_EVENTS[mixed % len(_EVENTS)]} after {mixed % 9000 + 400} ms"
        )
