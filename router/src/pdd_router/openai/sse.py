"""Server-sent events, incrementally: bytes in any chunking → whole events. Pure.

Events are kept as the engine wrote them, so that what is not ours to change reaches the client byte for byte.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

DONE = b"data: [DONE]\n\n"
_END = re.compile(rb"\n\n|\n\r\n|\r\r")


class EventTooLargeError(ValueError):
    """An event grew over the limit without ending."""


@dataclass(frozen=True, slots=True)
class Event:
    """``raw``: the event's bytes with its blank line. ``data``: its data lines joined, None for a mere comment."""

    raw: bytes
    data: str | None

    @property
    def is_done(self) -> bool:
        return self.data is not None and self.data.strip() == "[DONE]"

    def json(self) -> dict[str, object] | None:
        """The event's object, or None where data is no JSON object (``[DONE]``, comments)."""
        if self.data is None:
            return None
        try:
            value = json.loads(self.data)
        except ValueError:
            return None
        return value if isinstance(value, dict) else None


class EventParser:
    """Feed chunks, take events. A line ends with LF, CRLF or CR; an event with an empty line."""

    def __init__(self, max_event_bytes: int) -> None:
        self._max = max_event_bytes
        self._buffer = bytearray()
        self._scanned = 0

    @property
    def pending(self) -> bool:
        """True where an event has begun and not ended."""
        return bool(self._buffer.strip())

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """Events that ``chunk`` completes. Raises EventTooLargeError."""
        self._buffer += chunk
        while (end := self._find_end()) is not None:
            raw = bytes(self._buffer[:end])
            del self._buffer[:end]
            self._scanned = 0
            if raw.strip():
                yield Event(raw, _data_of(raw))
        if len(self._buffer) > self._max:
            raise EventTooLargeError

    def _find_end(self) -> int | None:
        # Resume a little before the end of what was scanned: the rest of an end may be there. One search for all kinds of end: with one
        # search each, every event would cost a look at all that is behind it.
        found = _END.search(self._buffer, max(0, self._scanned - 2))
        self._scanned = len(self._buffer)
        return found.end() if found else None


def _data_of(raw: bytes) -> str | None:
    lines = []
    for line in raw.splitlines():  # of bytes: str.splitlines would also split at U+2028, which is legal inside JSON
        if line.startswith(b"data:"):
            lines.append(line[5:].removeprefix(b" "))
    return b"\n".join(lines).decode("utf-8", "replace") if lines else None


def render_event(value: dict[str, object]) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
