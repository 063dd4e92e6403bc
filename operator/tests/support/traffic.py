"""Users: conversations of several turns, one after the other, streamed or whole, as long as their context lasts. Every turn is judged."""

from __future__ import annotations

import contextlib
import http
import http.client
import itertools
import json
import threading
import time
from types import TracebackType
from typing import Any, Self

TURNS = 5
TURN_SECONDS = 20.0
_PAUSE_SECONDS = 0.05
_AFTER_FAILURE_SECONDS = 0.5
_STOP_SECONDS = TURN_SECONDS + 5
_QUESTION = "Tell of the river, the bridge and the people of the town, and leave nothing out that was told. " * 12


class Traffic:
    """``users`` at once. No two conversations have a beginning in common, so each of them needs prefill."""

    def __init__(self, port: int, model: str, users: int = 3) -> None:
        self.failures: list[str] = []
        self.answered = 0
        self.reused_tokens = 0
        self.slowest_seconds = 0.0
        self._port = port
        self._model = model
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._talk, args=(user,), daemon=True) for user in range(users)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(_STOP_SECONDS)
        if any(thread.is_alive() for thread in self._threads):
            self.failures.append("a turn hangs")

    def _talk(self, user: int) -> None:
        for number in itertools.count():
            messages: list[dict[str, str]] = []
            for turn in range(TURNS):
                if self._stop.is_set():
                    return
                messages.append({"role": "user", "content": f"{user}, {number}, {turn}. {_QUESTION}"})
                began = time.monotonic()
                try:
                    text, cached = self._ask(messages, stream=(number + user) % 2 == 0, session=f"{user}-{number}")
                except (OSError, http.client.HTTPException, ValueError, LookupError) as error:
                    with self._lock:
                        self.failures.append(f"user {user}, turn {turn}: {_described(error, began)}")
                    self._stop.wait(_AFTER_FAILURE_SECONDS)
                    break
                with self._lock:
                    self.answered += 1
                    self.reused_tokens += cached
                    self.slowest_seconds = max(self.slowest_seconds, time.monotonic() - began)
                messages.append({"role": "assistant", "content": text})
                self._stop.wait(_PAUSE_SECONDS)

    def _ask(self, messages: list[dict[str, str]], *, stream: bool, session: str) -> tuple[str, int]:
        """Text, and the prompt tokens that were not computed by whom the client sees. Raises for any fault."""
        body: dict[str, Any] = {"model": self._model, "messages": messages, "max_tokens": 24, "temperature": 0}
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        headers = {"Content-Type": "application/json", "X-Session-ID": session}
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=TURN_SECONDS)
        with contextlib.closing(connection):
            connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
            answer = connection.getresponse()
            raw = answer.read().decode()
        if answer.status != http.HTTPStatus.OK:
            raise ValueError(f"{answer.status} {raw[:300]}")
        if not stream:
            whole = json.loads(raw)
            return _checked(str(whole["choices"][0]["message"]["content"])), _cached(whole)
        *events, done = [part.removeprefix("data: ") for part in raw.strip().split("\n\n")]
        if done != "[DONE]":
            raise ValueError(f"the stream ends with {done[:200]}")
        chunks = [json.loads(event) for event in events]
        deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
        return _checked("".join(delta.get("content") or "" for delta in deltas)), _cached(chunks[-1])


def _described(error: Exception, began: float) -> str:
    told = error.partial[-500:] if isinstance(error, http.client.IncompleteRead) else b""
    return f"after {time.monotonic() - began:.1f} s: {error!r} {told!r}"


def _checked(text: str) -> str:
    if not text:
        raise ValueError("an answer without text")
    return text


def _cached(answer: dict[str, Any]) -> int:
    return int((answer["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
