"""The fake's tokenizer and chat template: text to token ids and back.

Deterministic and the same in every process, so that two fakes hash one conversation alike. A token is one byte, one
word of a fixed vocabulary with its leading space, or a marker of the template. Pure: no state, no I/O.

Rendering a conversation whose assistant message is what the fake generated gives back the very token ids that it
generated: a follow-up turn extends the cached sequence, as with a real model whose template is well made.
"""

import codecs
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_ONSETS = "bdfgklmnprstvz"
_VOWELS = "aeiou"
_SYLLABLES = tuple(onset + vowel for onset in _ONSETS for vowel in _VOWELS)
WORDS = tuple(f" {first}{second}" for first in _SYLLABLES[:16] for second in _SYLLABLES[16:32])

START = 256
END = 257
FIRST_WORD = 258
VOCABULARY = FIRST_WORD + len(WORDS)

_WORD_IDS = {word: FIRST_WORD + index for index, word in enumerate(WORDS)}
_WORD = re.compile(r" [a-z]{4}(?![a-z])")
_THINK = re.compile(r"\A<think>(.*?)</think>", re.DOTALL)
_TOOL_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


def encode(text: str) -> list[int]:
    """Token ids of a text, without markers."""
    ids: list[int] = []
    end = 0
    for match in _WORD.finditer(text):
        word = _WORD_IDS.get(match.group())
        if word is None:
            continue
        ids.extend(text[end : match.start()].encode())
        ids.append(word)
        end = match.end()
    ids.extend(text[end:].encode())
    return ids


class Detokenizer:
    """Text of a growing sequence of tokens; holds back bytes that are half a character."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token: int) -> str:
        """The text that this token completes; markers are no text."""
        if token >= FIRST_WORD:
            return self._decoder.decode(b"") + WORDS[token - FIRST_WORD]
        if token in (START, END):
            return ""
        return self._decoder.decode(bytes([token]))

    def finish(self) -> str:
        """What is left of an unfinished character."""
        return self._decoder.decode(b"", final=True)


def decode(ids: Iterable[int]) -> str:
    """Text of token ids; markers are left out."""
    detokenizer = Detokenizer()
    return "".join([*(detokenizer.feed(token) for token in ids), detokenizer.finish()])


def token_text(token: int) -> str:
    """Text of a single token as log-probabilities show it."""
    if token == START:
        return "<|im_start|>"
    if token == END:
        return "<|im_end|>"
    return decode([token])


def render_chat(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None, *, generation_prompt: bool = True
) -> list[int]:
    """Token ids of a conversation in the fake's chat template. `messages` must be valid (requests.py checks)."""
    ids: list[int] = []
    if tools:
        ids += _segment("tools", json.dumps(list(tools), separators=(",", ":")))
    for message in messages:
        ids += _segment(str(message["role"]), _message_text(message))
    if generation_prompt:
        ids += [START, *encode("assistant\n")]
    return ids


def _segment(role: str, content: str) -> list[int]:
    return [START, *encode(f"{role}\n"), *encode(content), END, *encode("\n")]


def _message_text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(part.get("text", "") for part in content)
    calls = "".join(
        tool_call_text(call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls") or ()
    )
    return (content or "") + calls


def tool_call_text(name: str, arguments: str) -> str:
    """What the fake generates for one tool call, and what the template renders for it on the next turn."""
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments}, separators=(',', ':'))}</tool_call>"


def split_output(text: str) -> tuple[str | None, str, list[tuple[str, str]]]:
    """Generated text as the tool and reasoning parsers see it: (reasoning or None, content, [(name, arguments)])."""
    reasoning = None
    if match := _THINK.match(text):
        reasoning, text = match.group(1), text[match.end() :]
    calls = [json.loads(body) for body in _TOOL_CALL.findall(text)]
    return reasoning, _TOOL_CALL.sub("", text), [(call["name"], call["arguments"]) for call in calls]
