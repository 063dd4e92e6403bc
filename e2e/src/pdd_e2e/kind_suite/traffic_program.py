"""Users of a router's Service, run in a pod of the cluster: python traffic_program.py PLAN. One JSON object a line on standard output.

Python 3.11 and aiohttp, which the router's image has; imports nothing of this package, being handed to the pod as one file. First it has
every answer computed afresh by one engine (`reference` lines), then its users hold conversations until SIGTERM or the
plan's deadline (`asked`, `opened` and `attempt` lines), each turn again until it is answered. Those who return have one conversation each:
they begin it on SIGUSR1 and go on with it on SIGUSR2, a few at a time. Judges how an answer came, never what it says.
"""

import asyncio
import itertools
import json
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

# Two likeliest tokens that are nearer than this may change places with what else is in a batch.
_NEAR_TIE = 0.02
_ENDS = ("<|im_end|>", "<|endoftext|>")
_CHAT = "/v1/chat/completions"
_RETURN_AT_ONCE = 3  # more on two cores, and what they read comes too late
# Of a connection between two calls: the router at its other end is the one that knows the conversation.
_KEPT_SECONDS = 300.0


@dataclass(slots=True)
class Attempt:
    """One request. Times: seconds since the epoch; `last_at` of the last piece of text, `told_at` of an error event.

    `end`: Complete (HTTP's end of message came), Broken, or None where there was no stream.
    """

    user: str
    dialogue: str
    conversation: int
    turn: int
    tried: int
    began: float
    ended: float = 0.0
    outcome: str = ""
    status: int | None = None
    code: str | None = None
    last_at: float | None = None
    told_at: float | None = None
    done: int = 0
    after_end: int = 0
    finish: str | None = None
    end: str | None = None
    text: str = ""
    usage: dict[str, Any] | None = None
    receipt: dict[str, Any] | None = None
    error: str | None = None


@dataclass(slots=True)
class EventBytes:
    """Bytes in any pieces -> the data of whole events."""

    buffer: bytes = b""

    def feed(self, piece: bytes) -> Iterator[str]:
        self.buffer += piece
        while b"\n\n" in self.buffer:
            event, self.buffer = self.buffer.split(b"\n\n", 1)
            if event.startswith(b"data: "):
                yield event[6:].decode()


def note(attempt: Attempt, data: str, now: float) -> None:
    """Takes one event into account."""
    if attempt.done or attempt.told_at is not None:
        attempt.after_end += 1
    if data == "[DONE]":
        attempt.done += 1
        return
    value = json.loads(data)
    if "error" in value:
        attempt.told_at, attempt.code = now, value["error"].get("code")
        return
    attempt.usage = value.get("usage") or attempt.usage
    for choice in value.get("choices", []):
        if content := (choice.get("delta") or {}).get("content"):
            attempt.text += content
            attempt.last_at = now
        attempt.finish = choice.get("finish_reason") or attempt.finish


def outcome_of(attempt: Attempt) -> str:
    """How a stream ended. Malformed: what no router may send, such as [DONE] after an answer that was cut."""
    told = attempt.told_at is not None
    if attempt.done == 1 and attempt.finish and not told and not attempt.after_end and attempt.end == "Complete":
        return "Whole"
    if attempt.done or attempt.after_end or (told and attempt.end != "Broken"):
        return "Malformed"
    return "Told" if told else "Cut"


@dataclass(slots=True)
class World:
    """What all users share."""

    plan: dict[str, Any]
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    calls: tuple[asyncio.Event, ...] = field(default_factory=lambda: (asyncio.Event(), asyncio.Event()))
    door: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_RETURN_AT_ONCE))
    conversations: Iterator[int] = field(default_factory=itertools.count)

    def key_of(self, conversation: int) -> str:
        """Each conversation is another tenant's: the same words, and nobody has computed them, or not for a long time."""
        keys: list[str] = self.plan["keys"]
        return keys[conversation % len(keys)]

    def end(self) -> None:
        """Nobody asks anything more, nor waits for a call."""
        for event in (self.stop, *self.calls):
            event.set()


def say(kind: str, value: dict[str, Any]) -> None:
    print(json.dumps({"kind": kind, **value}), flush=True)


def messages_of(dialogue: dict[str, Any], turn: int) -> list[dict[str, str]]:
    """The history up to a question, with the reference's answers in it."""
    messages = [{"role": "system", "content": dialogue["system"]}]
    for at in range(turn):
        messages.append({"role": "user", "content": dialogue["questions"][at]})
        messages.append({"role": "assistant", "content": dialogue["answers"][at]["text"]})
    return [*messages, {"role": "user", "content": dialogue["questions"][turn]}]


# ---- references ----


async def record_references(world: World) -> None:
    async with asyncio.TaskGroup() as recording:
        for dialogue in world.plan["dialogues"]:
            recording.create_task(record_dialogue(world, dialogue))
    say("ready", {"at": time.time()})


async def record_dialogue(world: World, dialogue: dict[str, Any]) -> None:
    dialogue["answers"] = []
    for turn in range(len(dialogue["questions"])):
        answer = await reference(world, dialogue, turn)
        dialogue["answers"].append(answer)
        say("reference", {"dialogue": dialogue["name"], "turn": turn, **answer})


async def reference(world: World, dialogue: dict[str, Any], turn: int) -> dict[str, Any]:
    """Prompt log-probabilities make the router use one engine, and that engine compute the whole prompt."""
    body = _body(world, dialogue, turn) | {"prompt_logprobs": 0, "logprobs": True, "top_logprobs": 4}
    timeout = aiohttp.ClientTimeout(total=world.plan["request_seconds"])
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.post(world.plan["url"] + _CHAT, json=body, headers=_headers(world.plan["reference_key"])) as response,
    ):
        response.raise_for_status()
        value = await response.json()
    cached = (value["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    if cached:
        raise RuntimeError(f"{cached} tokens of a reference were not computed")
    choice = value["choices"][0]
    return {"text": choice["message"]["content"], "sure": sure_text(choice["logprobs"]["content"])}


def sure_text(tokens: list[dict[str, Any]]) -> str:
    """The text before the first token that had a near rival."""
    certain = itertools.takewhile(_is_certain, tokens)
    return "".join(token["token"] for token in certain)


def _is_certain(token: dict[str, Any]) -> bool:
    """What would end an answer is no rival: either it is the answer's last token, or it may not come yet (`min_tokens`)."""
    words = sorted((top["logprob"] for top in token["top_logprobs"] if top["token"] not in _ENDS), reverse=True)
    return token["token"] in _ENDS or bool(words[0] - words[1] >= _NEAR_TIE)


# ---- users ----


async def converse(world: World, user: str, dialogues: list[dict[str, Any]]) -> None:
    for at in itertools.count():
        if world.stop.is_set():
            return
        dialogue, conversation = dialogues[at % len(dialogues)], next(world.conversations)
        # A connection of its own: kube-proxy chooses a router anew.
        async with aiohttp.ClientSession() as session:
            for turn in range(len(dialogue["questions"])):
                if world.stop.is_set() or not await until_answered(world, session, user, dialogue, conversation, turn):
                    break
                await asyncio.sleep(world.plan["pause_seconds"][user])


async def come_back(world: World, user: str, dialogue: dict[str, Any]) -> None:
    """One turn at each call."""
    conversation, connector = next(world.conversations), aiohttp.TCPConnector(keepalive_timeout=_KEPT_SECONDS)
    async with aiohttp.ClientSession(connector=connector) as session:
        for turn, call in enumerate(world.calls):
            await call.wait()
            async with world.door:
                if world.stop.is_set() or not await until_answered(world, session, user, dialogue, conversation, turn):
                    break


async def until_answered(
    world: World, session: aiohttp.ClientSession, user: str, dialogue: dict[str, Any], conversation: int, turn: int
) -> bool:
    for tried in itertools.count():
        attempt = Attempt(user, dialogue["name"], conversation, turn, tried, time.time())
        await ask(world, session, dialogue, attempt)
        attempt.ended = time.time()
        say("attempt", asdict(attempt))
        if attempt.outcome == "Whole":
            return True
        if world.stop.is_set():
            break
        await asyncio.sleep(world.plan["retry_seconds"])
    return False


async def ask(world: World, session: aiohttp.ClientSession, dialogue: dict[str, Any], attempt: Attempt) -> None:
    body = _body(world, dialogue, attempt.turn) | {"stream": True, "stream_options": {"include_usage": True}}
    headers = _headers(world.key_of(attempt.conversation))
    say("asked", {"user": attempt.user, "began": attempt.began})
    try:
        async with asyncio.timeout(world.plan["request_seconds"]):
            silence = aiohttp.ClientTimeout(total=None, sock_read=world.plan["silence_seconds"])
            response = await session.post(world.plan["url"] + _CHAT, json=body, headers=headers, timeout=silence)
            async with response:
                attempt.status = response.status
                if response.status != 200:
                    await _refused(response, attempt)
                    return
                receipt = json.loads(response.headers["X-PDD-Receipt"])
                attempt.receipt, decode = receipt, receipt["decode"]["engine"]
                say("opened", {"user": attempt.user, "began": attempt.began, "decode": decode})
                await _read(response, attempt)
        attempt.outcome = outcome_of(attempt)
    except TimeoutError:
        attempt.outcome = "Hang"
    except aiohttp.ClientConnectorError as error:
        attempt.outcome, attempt.error = "Unreachable", repr(error)
    except aiohttp.ClientError as error:
        attempt.outcome, attempt.error = "Dropped", repr(error)


async def _refused(response: aiohttp.ClientResponse, attempt: Attempt) -> None:
    attempt.outcome = "Refused"
    try:
        attempt.code = json.loads(await response.read())["error"]["code"]
    except (ValueError, KeyError, TypeError):
        attempt.outcome = "Malformed"


async def _read(response: aiohttp.ClientResponse, attempt: Attempt) -> None:
    events = EventBytes()
    try:
        async for piece in response.content.iter_any():
            for data in events.feed(piece):
                note(attempt, data, time.time())
    except TimeoutError:  # aiohttp's own are ClientErrors, too
        raise
    except aiohttp.ClientError as error:
        attempt.end, attempt.error = "Broken", repr(error)
    else:
        attempt.end = "Complete"


def _body(world: World, dialogue: dict[str, Any], turn: int) -> dict[str, Any]:
    return {
        "model": world.plan["model"],
        "messages": messages_of(dialogue, turn),
        "max_tokens": dialogue["max_tokens"],
        "min_tokens": dialogue["max_tokens"],
        "temperature": 0,
    }


def _headers(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def main(plan: dict[str, Any]) -> None:
    world = World(plan)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, world.end)
    for number, call in zip((signal.SIGUSR1, signal.SIGUSR2), world.calls, strict=True):
        loop.add_signal_handler(number, call.set)
    loop.call_later(plan["deadline_seconds"], world.end)
    await record_references(world)
    async with asyncio.TaskGroup() as users:
        for user, names in plan["users"].items():
            chosen = [dialogue for dialogue in plan["dialogues"] if dialogue["name"] in names]
            users.create_task(converse(world, user, sorted(chosen, key=lambda item: names.index(item["name"]))))
        for user, name in plan["returning"].items():
            (dialogue,) = [item for item in plan["dialogues"] if item["name"] == name]
            users.create_task(come_back(world, user, dialogue))


if __name__ == "__main__":
    asyncio.run(main(json.loads(Path(sys.argv[1]).read_text())))
