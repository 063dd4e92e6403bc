"""Files that change while the router runs: engines, API keys. Polled, since a mounted ConfigMap or Secret is swapped by
renaming a link, which not every notification sees.

A file that does not parse leaves the last good state in force, is logged once, and counted. Must not decide what a
file means: ``parse`` and ``apply`` are given.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import structlog

from pdd_router.config import ConfigError

_log = structlog.get_logger(__name__)
T = TypeVar("T")


def read_named(setting: str, path: Path, parse: Callable[[str], T]) -> T:
    """The file that a setting names. Raises ConfigError, which begins with the setting."""
    try:
        text = path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{setting}: cannot read {path}: {type(error).__name__}") from None
    try:
        return parse(text)
    except ConfigError as error:
        raise ConfigError(f"{setting}: {error}") from None


class Following(Protocol):
    """A followed file, whatever it holds."""

    def load(self) -> None: ...

    def poll(self) -> bool: ...

    async def follow(self, interval_seconds: float) -> None: ...


class FollowedFile(Generic[T]):
    """``setting``: that names the file. ``on_result``: told for every content that was new, True where it was good."""

    def __init__(
        self,
        setting: str,
        path: Path,
        *,
        parse: Callable[[str], T],
        apply: Callable[[T], None],
        on_result: Callable[[str, bool], None],
    ) -> None:
        self._setting = setting
        self._path = path
        self._parse = parse
        self._apply = apply
        self._on_result = on_result
        self._stamp: tuple[int, int, int] | None = None
        self._content: bytes | None = None
        self._failed = False
        self._unreadable = False

    def load(self) -> None:
        """The first reading. Raises ConfigError: a router must not start on a bad file."""
        # Without a stamp: the first poll compares what it reads with what was read here.
        self._apply(read_named(self._setting, self._path, self._parse_first))

    def _parse_first(self, text: str) -> T:
        self._content = text.encode()
        return self._parse(text)

    async def follow(self, interval_seconds: float) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(interval_seconds)
            self.poll()

    def poll(self) -> bool:
        """Look once. True where new content was applied."""
        try:
            stamp = self._read_stamp()
            # Equal stamps are not trusted while the file is young: two writes may fall into one tick of the clock.
            if stamp == self._stamp and not self._failed and self._is_settled(stamp):
                return False
            content = self._path.read_bytes()
        except OSError as error:
            # Looked at again every time, so it would be told every time.
            reason = f"cannot read: {type(error).__name__}"
            if not self._unreadable:
                self._fail(reason)
            self._unreadable = True
            return False
        self._stamp = stamp
        if content == self._content:
            self._unreadable = False
            return False
        self._unreadable = False
        self._content = content
        try:
            value = self._parse(content.decode("utf-8"))
        except (ConfigError, UnicodeDecodeError) as error:
            self._fail(str(error) if isinstance(error, ConfigError) else "not UTF-8")
            return False
        self._failed = False
        self._apply(value)
        self._on_result(self._path.name, True)
        _log.info("Applied file", file=self._path.name)
        return True

    def _fail(self, reason: str) -> None:
        self._failed = True
        self._on_result(self._path.name, False)
        _log.error("Kept the last good state of a bad file", file=self._path.name, reason=reason)

    def _read_stamp(self) -> tuple[int, int, int]:
        status = self._path.stat()
        return (status.st_mtime_ns, status.st_size, status.st_ino)

    def _is_settled(self, stamp: tuple[int, int, int]) -> bool:
        return time.time_ns() - stamp[0] > 3_000_000_000
