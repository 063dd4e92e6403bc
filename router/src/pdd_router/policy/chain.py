"""A prompt as a chain of hashes: two prompts share a link exactly where they are equal up to it. Pure.

Only a guess at what an engine's KV holds (the engine's own block hashes are the proof), so it may be coarse: one link a
message, or one per so many characters of a bare prompt. The chain starts from everything that is rendered before the
first message: model, tools, template arguments.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from pdd_router.openai.content import is_media
from pdd_router.openai.request import ClientRequest, Endpoint
from pdd_router.openai.strict_json import JsonObject

CHUNK_CHARS = 256
CHUNK_IDS = 64
CHARS_PER_ID = 4  # a token id stands for about so many characters, so that both kinds of prompt count alike
CHARS_PER_MEDIA = 4096  # an image is about a thousand tokens, whatever its base64 is long
_BEFORE_MESSAGES = ("model", "tools", "chat_template", "chat_template_kwargs", "reasoning_effort", "documents")
_SYSTEM_ROLES = frozenset({"system", "developer"})


@dataclass(frozen=True, slots=True)
class Link:
    """``chars``: size of the prompt up to and with this link. ``is_turn``: a conversation, not only its preamble,
    has begun here. ``by_assistant``: the model wrote it, so the engine that served the turn may hold it already."""

    digest: bytes
    chars: int
    is_turn: bool
    by_assistant: bool = False


@dataclass(frozen=True, slots=True)
class Chain:
    """Links from the shortest prefix to the whole; ``chars``: size of the whole prompt. ``is_one_text``: what an engine
    counts as its tokens says how many characters a token has; not so of media, or of several prompts, which it may not add up."""

    links: tuple[Link, ...]
    chars: int
    is_one_text: bool = True


def chain_of(request: ClientRequest) -> Chain:
    seed = _digest(b"", _canonical({key: request.body.get(key) for key in _BEFORE_MESSAGES}))
    if request.endpoint is Endpoint.CHAT:
        return _chat_chain(seed, request.body)
    chain = _prompt_chain(seed, request.body.get("prompt"))
    return replace(chain, is_one_text=request.prompts == 1)


def _chat_chain(seed: bytes, body: JsonObject) -> Chain:
    preamble = len(_canonical(body.get("tools"))) if body.get("tools") else 0
    messages = body["messages"]
    links: list[Link] = []
    digest, chars, is_turn, media = seed, preamble, False, 0
    for message in messages if isinstance(messages, list) else ():
        text = _canonical(_plain(message))
        digest = _digest(digest, text)
        of_message = _media(message)
        media += of_message
        chars += _size(message) + of_message * CHARS_PER_MEDIA
        role = message.get("role")
        is_turn = is_turn or role not in _SYSTEM_ROLES
        links.append(Link(digest, chars, is_turn, by_assistant=role == "assistant"))
    return Chain(tuple(links), chars, is_one_text=not media)


def _prompt_chain(seed: bytes, prompt: object) -> Chain:
    chunks: Iterable[tuple[bytes, int]]
    if isinstance(prompt, str):
        total, chunks = len(prompt), _text_chunks(prompt)
    elif isinstance(prompt, list) and prompt and isinstance(prompt[0], int):
        total, chunks = len(prompt) * CHARS_PER_ID, _id_chunks(prompt)
    else:
        return Chain((), len(_canonical(prompt)))
    links: list[Link] = []
    digest, chars = seed, 0
    for data, size in chunks:
        digest = _digest(digest, data)
        chars += size
        # A bare prompt does not say where its preamble ends: the greater half is taken for the conversation.
        links.append(Link(digest, chars, is_turn=chars * 2 >= total))
    return Chain(tuple(links), total)


def _text_chunks(prompt: str) -> Iterator[tuple[bytes, int]]:
    for at in range(0, len(prompt) - CHUNK_CHARS + 1, CHUNK_CHARS):
        yield prompt[at : at + CHUNK_CHARS].encode(), CHUNK_CHARS


def _id_chunks(prompt: list[object]) -> Iterator[tuple[bytes, int]]:
    for at in range(0, len(prompt) - CHUNK_IDS + 1, CHUNK_IDS):
        yield _canonical(prompt[at : at + CHUNK_IDS]), CHUNK_IDS * CHARS_PER_ID


def _plain(message: JsonObject) -> JsonObject:
    """One form for what renders alike: absent and null fields, a text and a list of one text."""
    kept = {key: value for key, value in message.items() if value is not None and value != []}
    content = kept.get("content")
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):
        part = content[0]
        if part.get("type") == "text" and isinstance(part.get("text"), str):
            kept["content"] = part["text"]
    return kept


def _size(message: JsonObject) -> int:
    """Characters that the model reads of a message, about, without its media."""
    plain = _plain(message)
    content = plain.pop("content", "")
    plain.pop("role", None)
    if isinstance(content, list):
        content = [_without_media(part) for part in content]
    size = len(content) if isinstance(content, str) else len(_canonical(content))
    return size + (len(_canonical(plain)) if plain else 0)


def _media(message: JsonObject) -> int:
    content = message.get("content")
    parts = content if isinstance(content, list) else ()
    return sum(value is not None and is_media(key) for part in parts for key, value in part.items())


def _without_media(part: JsonObject) -> JsonObject:
    return {key: value for key, value in part.items() if not is_media(key)}


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _digest(previous: bytes, data: bytes) -> bytes:
    return hashlib.blake2b(data, key=previous, digest_size=16).digest()
