"""The users' program tells a whole answer from every way in which one may end, byte for byte, against a server that sends what it is told."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from pdd_e2e.kind_suite import traffic_program
from pdd_e2e.kind_suite.traffic_program import Attempt, World, ask, come_back, messages_of, sure_text

HEAD = (
    b'HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nX-PDD-Receipt: {"decode":{"engine":"d-0"}}\r\n'
    b"Transfer-Encoding: chunked\r\n\r\n"
)
END = b"0\r\n\r\n"
DONE = b"[DONE]"
ERROR = b'{"error":{"code":"stream_broken"}}'
DIALOGUE = {
    "name": "talk",
    "system": "Be brief.",
    "questions": ["One?", "Two?"],
    "max_tokens": 4,
    "answers": [{"text": "1"}],
}


def word(text: str, finish: str | None = None) -> bytes:
    return json.dumps({"choices": [{"delta": {"content": text}, "finish_reason": finish}]}).encode()


def events(*data: bytes) -> bytes:
    """As chunks that do not end where events do."""
    raw = b"".join(b"data: " + item + b"\n\n" for item in data)
    pieces = [raw[at : at + 7] for at in range(0, len(raw), 7)]
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)


WHOLE = (word("Ro"), word("me", "stop"), DONE)
CASES = {
    "whole": (HEAD + events(*WHOLE) + END, "Whole"),
    "told": (HEAD + events(word("Ro"), ERROR), "Told"),
    "cut": (HEAD + events(word("Ro")), "Cut"),
    "ended as if whole": (HEAD + events(word("Ro")) + END, "Cut"),
    "done after a cut": (HEAD + events(word("Ro"), DONE) + END, "Malformed"),
    "done after an error": (HEAD + events(word("Ro"), ERROR, DONE) + END, "Malformed"),
    "error and HTTP's end": (HEAD + events(word("Ro"), ERROR) + END, "Malformed"),
    "words after the end": (HEAD + events(*WHOLE, word("again")) + END, "Malformed"),
    "done twice": (HEAD + events(*WHOLE, DONE) + END, "Malformed"),
    "whole without HTTP's end": (HEAD + events(*WHOLE), "Malformed"),
    "no answer": (b"", "Dropped"),
    "refused": (b'HTTP/1.1 503 No\r\nContent-Length: 31\r\n\r\n{"error": {"code":"no_engine"}}\n', "Refused"),
    "refused in no form": (b"HTTP/1.1 502 No\r\nContent-Length: 2\r\n\r\n{}", "Malformed"),
}


@asynccontextmanager
async def serving(answer: bytes, *, closes: bool = True) -> AsyncIterator[str]:
    release = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
        await reader.readexactly(int(length.split(b":")[1]))
        writer.write(answer)
        await writer.drain()
        if not closes:
            await release.wait()
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        release.set()


async def asked(url: str, **limits: float) -> Attempt:
    plan: dict[str, Any] = {
        "url": url,
        "model": "m",
        "keys": ["key"],
        "request_seconds": 5,
        "silence_seconds": 5,
        **limits,
    }
    attempt = Attempt("user", "talk", 0, 1, 0, 0.0)
    async with aiohttp.ClientSession() as session:
        await ask(World(plan), session, DIALOGUE, attempt)
    return attempt


@pytest.mark.parametrize("name", CASES)
async def test_every_end_of_an_answer_is_told_from_the_others(name: str) -> None:
    answer, outcome = CASES[name]
    async with serving(answer) as url:
        assert (await asked(url)).outcome == outcome


@pytest.mark.parametrize("limit", ["request_seconds", "silence_seconds"])
async def test_what_never_ends_is_a_hang(limit: str) -> None:
    async with serving(HEAD + events(word("Ro")), closes=False) as url:
        attempt = await asked(url, **{limit: 0.3})
    assert (attempt.outcome, attempt.text) == ("Hang", "Ro")


async def test_a_port_where_nobody_listens_is_unreachable() -> None:
    async with serving(b"") as url:
        pass
    assert (await asked(url)).outcome == "Unreachable"


def test_the_history_is_the_reference_s() -> None:
    assert [item["content"] for item in messages_of(DIALOGUE, 1)] == ["Be brief.", "One?", "1", "Two?"]


def test_a_reference_is_sure_until_two_tokens_are_near_each_other() -> None:
    def token(text: str, **logprobs: float) -> dict[str, Any]:
        tops = [{"token": name.replace("END", "<|im_end|>"), "logprob": value} for name, value in logprobs.items()]
        return {"token": text, "top_logprobs": tops}

    sure, near = token("Ro", Ro=-0.1, Pa=-3, END=-9), token("me", me=-0.7, sa=-0.701)
    assert sure_text([sure, near, sure]) == "Ro"
    assert sure_text([sure, sure]) == "RoRo"
    assert sure_text([token("Ro", END=-0.7, Ro=-0.7, Pa=-5), sure]) == "RoRo", "it may not end yet"


async def test_who_returns_asks_a_turn_at_each_call_and_none_when_all_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    asked_for: list[tuple[str, int]] = []
    both = asyncio.Event()

    async def answered(world: World, session: Any, user: str, dialogue: Any, conversation: int, turn: int) -> bool:
        asked_for.append((user, turn))
        if len(asked_for) == 2:
            both.set()
        return True

    monkeypatch.setattr(traffic_program, "until_answered", answered)
    world = World({})
    returning = [asyncio.create_task(come_back(world, user, DIALOGUE)) for user in ("ada", "grace")]
    await asyncio.sleep(0)
    assert asked_for == []
    world.calls[0].set()
    await both.wait()
    world.end()
    await asyncio.gather(*returning)
    assert sorted(asked_for) == [("ada", 0), ("grace", 0)]
