"""What an engine answered, streamed or not, in one form; and how far two answers are apart. Pure."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

Json = dict[str, Any]
Tops = dict[str, float]

TOP_LOGPROBS = 5
TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True)
class Answer:
    """`tops`: per generated token the likeliest tokens with their log-probabilities. `prompt` and `tokens` are token ids, where asked for."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    text: str
    tops: tuple[Tops, ...]
    params: Json | None

    @property
    def receipt(self) -> Json:
        """The claim's receipt."""
        if self.params is None:
            raise AssertionError("the answer carries no kv_transfer_params")
        receipt: Json = self.params["claim"]
        return receipt

    def cut(self, tokens: int) -> "Answer":
        """The same with the first so many tokens only."""
        return replace(self, tokens=self.tokens[:tokens], tops=self.tops[:tokens])


def answer_of_body(body: Json) -> Answer:
    """From an answer that was not streamed."""
    return _answer([body])


def answer_of_stream(lines: Iterable[bytes]) -> Answer:
    """From the lines of a stream. Raises AssertionError if it did not end with [DONE] or holds an error."""
    data = [line.removeprefix(b"data: ").strip() for line in lines if line.startswith(b"data: ")]
    if not data or data[-1] != b"[DONE]":
        raise AssertionError(f"the stream ended without [DONE]: {data[-1:]!r}")
    return _answer([json.loads(item) for item in data[:-1]])


def _answer(parts: list[Json]) -> Answer:
    prompt: tuple[int, ...] = ()
    tokens: list[int] = []
    tops: list[Tops] = []
    texts: list[str] = []
    params: Json | None = None
    for part in parts:
        if "error" in part:
            raise AssertionError(f"the engine answered with an error: {part['error']}")
        params = part.get("kv_transfer_params") or params
        for choice in part["choices"]:
            prompt = tuple(choice.get("prompt_token_ids") or part.get("prompt_token_ids") or prompt)
            tokens += choice.get("token_ids") or ()
            tops += _tops(choice.get("logprobs"))
            texts.append(_text(choice))
    return Answer(prompt, tuple(tokens), "".join(texts), tuple(tops), params)


def _text(choice: Json) -> str:
    if "text" in choice:
        return str(choice["text"])
    message = choice.get("message") or choice.get("delta") or {}
    return message.get("content") or ""


def _tops(logprobs: Json | None) -> list[Tops]:
    if not logprobs:
        return []
    if "content" in logprobs:  # chat
        return [{top["token"]: top["logprob"] for top in token["top_logprobs"]} for token in logprobs["content"] or ()]
    return [dict(tops) for tops in logprobs["top_logprobs"]]


def apart(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    """The largest difference of log-probabilities. A token that one side does not list is at most as likely there as the least that it lists."""
    least_one, least_other = min(one.values()), min(other.values())
    differences = [abs(one[token] - other[token]) for token in one.keys() & other.keys()]
    differences += [one[token] - least_other for token in one.keys() - other.keys()]
    differences += [other[token] - least_one for token in other.keys() - one.keys()]
    return max(differences)


def same(answer: Answer, reference: Answer) -> bool:
    """Equal greedy tokens, as many as `answer` has, and first-token log-probabilities within the tolerance."""
    return (
        answer.tokens == reference.tokens[: len(answer.tokens)]
        and apart(answer.tops[0], reference.tops[0]) <= TOLERANCE
    )


def check_same(answer: Answer, reference: Answer) -> None:
    """Raises AssertionError with what differs."""
    if answer.prompt != reference.prompt:
        raise AssertionError("the two answers are to different prompts")
    if not same(answer, reference):
        raise AssertionError(
            f"not as computed afresh: tokens {answer.tokens} and {reference.tokens}, "
            f"log-probabilities {apart(answer.tops[0], reference.tops[0]):.4f} apart; receipt {answer.params}"
        )
