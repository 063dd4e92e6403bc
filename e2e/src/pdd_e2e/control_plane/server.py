"""One server process in its own process group, and how to wait until it serves.

Knows nothing of what it runs. Ended groups are told to the reaper, which ends what is left should this process be killed.
"""

import http.client
import os
import signal
import ssl
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from pdd_cli.local.process_groups import end_groups, living_members, send
from pdd_cli.local.reaper import Reaper
from pdd_e2e.control_plane.errors import ControlPlaneError

_POLL_SECONDS = 0.05
_PROBE_SECONDS = 2.0
_TAIL_LINES = 15


class Server:
    """A program with its log file. `start` again after `kill` or `end` appends to the same log."""

    def __init__(self, name: str, command: Sequence[str], log: Path, reaper: Reaper) -> None:
        self.name = name
        self.log = log
        self._command = list(command)
        self._reaper = reaper
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Its pid, which is its process group too, while it runs."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def start(self) -> None:
        """Raises ControlPlaneError if it runs already or cannot be run."""
        if self.pid is not None:
            raise ControlPlaneError(f"{self.name} runs already")
        with self.log.open("ab") as log:
            try:
                self._process = subprocess.Popen(  # noqa: S603  # a program of ours, no shell
                    self._command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self.log.parent,
                    env={"PATH": os.defpath, "HOME": str(self.log.parent)},
                    start_new_session=True,  # Ctrl-C in the terminal reaches us only: we end the servers in order
                )
            except OSError as error:
                raise ControlPlaneError(f"cannot run {self.name}: {error}") from error
        self._reaper.watch_group(self._process.pid)

    def signal(self, number: signal.Signals) -> None:
        """To the whole group. Raises ControlPlaneError if it does not run."""
        if self.pid is None:
            raise ControlPlaneError(f"{self.name} does not run")
        send(self.pid, number)

    def end(self, grace_seconds: float) -> None:
        """SIGTERM, then SIGKILL; returns when no member of its group is left. Does nothing if it never ran."""
        if self._process is None:
            return
        group = self._process.pid
        if living_members(group):
            send(group, signal.SIGCONT)  # a stopped process would not see SIGTERM
            end_groups([group], grace_seconds)
        self._process.wait()
        self._reaper.forget_group(group)
        self._process = None

    def wait_until(self, probe: "HttpProbe", timeout_seconds: float) -> None:
        """Returns when the probe answers 200. Raises ControlPlaneError with the end of the log if the process ends or time is up."""
        deadline = time.monotonic() + timeout_seconds
        while not probe.ok():
            if self.pid is None:
                raise ControlPlaneError(f"{self.name} ended while starting; {self.tail()}")
            if time.monotonic() > deadline:
                raise ControlPlaneError(f"{self.name} was not ready within {timeout_seconds:.0f} s; {self.tail()}")
            time.sleep(_POLL_SECONDS)

    def tail(self) -> str:
        """The end of its log and where the log is."""
        lines = self.log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
        return f"{self.log} ends:\n" + "\n".join(lines)


class HttpProbe:
    """GET on a loopback port; 200 is well. `trust` is None for plain HTTP."""

    def __init__(self, port: int, path: str, trust: ssl.SSLContext | None = None) -> None:
        self._port = port
        self._path = path
        self._trust = trust

    def ok(self) -> bool:
        """False for any other answer, and for none."""
        connection = self._connection()
        try:
            connection.request("GET", self._path)
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        if self._trust is None:
            return http.client.HTTPConnection("127.0.0.1", self._port, timeout=_PROBE_SECONDS)
        return http.client.HTTPSConnection("127.0.0.1", self._port, timeout=_PROBE_SECONDS, context=self._trust)
