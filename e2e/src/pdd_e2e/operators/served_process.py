"""A process of the product that serves /metrics on loopback: stopped, paused, killed, asked. Its log goes to a file; how it starts is its kind's."""

import contextlib
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pdd_cli.local.ports import free_ports
from pdd_e2e.control_plane.errors import ControlPlaneError

POLL_SECONDS = 0.05
_STOP_SECONDS = 15.0


class ServedProcess(ABC):
    """Started on entry, killed on exit if it still runs. ``port``: a free one that it is to serve on."""

    def __init__(self, log: Path) -> None:
        self.log = log
        (self.port,) = free_ports(1)
        self._process: subprocess.Popen[bytes] | None = None
        self._pid = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @abstractmethod
    def start(self) -> None:
        """A new process with the same settings."""

    def _run(self, command: list[str], environment: dict[str, str]) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)  # noqa: S603  # ours
        self._pid = self._process.pid

    @property
    def pid(self) -> int:
        """Of the process that was started last."""
        return self._pid

    @property
    def runs(self) -> bool:
        """Whether it is there; a paused one is."""
        if self._process is not None:
            return self._process.poll() is None
        return self._pid > 0 and Path(f"/proc/{self._pid}").exists()

    def kill(self) -> None:
        """SIGKILL, if it still runs. Returns when it is gone."""
        self.signal(signal.SIGKILL)
        self.wait_for_end(_STOP_SECONDS)

    def terminate(self) -> float:
        """SIGTERM; how many seconds it took to end."""
        began = time.monotonic()
        self.signal(signal.SIGTERM)
        self.wait_for_end(_STOP_SECONDS)
        return time.monotonic() - began

    def signal(self, number: signal.Signals) -> None:
        """SIGSTOP pauses it, SIGCONT lets it go on. Nothing if it is gone."""
        if self.runs:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def wait_for_end(self, timeout_seconds: float) -> int | None:
        """Waits until it has ended; its exit code, None for a fork. Raises ControlPlaneError."""
        deadline = time.monotonic() + timeout_seconds
        while self.runs:
            if time.monotonic() > deadline:
                raise ControlPlaneError(f"it does not end: {self.tail()}")
            time.sleep(POLL_SECONDS / 5)
        return None if self._process is None else self._process.returncode

    def lines(self) -> list[dict[str, Any]]:
        """Its log so far; lines that are no JSON (a traceback of the interpreter) as `{"event": line}`."""
        return [_parsed(line) for line in self.log.read_text().splitlines() if line]

    def tail(self) -> str:
        """The end of its log."""
        return self.log.read_text()[-3000:]

    def ask(self, path: str) -> tuple[int, str]:
        """Status and body of an HTTP answer. Raises ControlPlaneError when there is none."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            raise ControlPlaneError(f"{self.log.stem} does not answer: {error}") from error

    def metric(self, sample: str) -> float:
        """The value of one sample, named with its labels as in the text format; 0 where it is absent."""
        for line in self.ask("/metrics")[1].splitlines():
            name, _, value = line.rpartition(" ")
            if name == sample:
                return float(value)
        return 0.0

    def memory_bytes(self) -> int:
        """Resident memory now."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


def _parsed(line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        return {"event": line}
    return value if isinstance(value, dict) else {"event": line}
