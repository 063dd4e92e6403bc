"""One operator process: started, asked over HTTP, stopped, paused, killed. Its log goes to a file."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pdd_cli.local.ports import free_ports
from pdd_e2e.control_plane.errors import ControlPlaneError
from pdd_e2e.operators.zygote import Zygote

_POLL_SECONDS = 0.05
_STOP_SECONDS = 15.0
IMAGES = {
    "PDD_OPERATOR_IMAGE_ROUTER": "images.example/pdd-router:1",
    "PDD_OPERATOR_IMAGE_CONNECTOR": "images.example/pdd-connector:1",
    "PDD_OPERATOR_IMAGE_ENGINE_GPU": "images.example/vllm-gpu:1",
    "PDD_OPERATOR_IMAGE_ENGINE_NEURON": "images.example/vllm-neuron:1",
    "PDD_OPERATOR_IMAGE_ENGINE_CPU": "images.example/vllm-cpu:1",
}
QUICK_LEASE = {"PDD_OPERATOR_LEASE_DURATION_SECONDS": "3", "PDD_OPERATOR_LEASE_RENEW_SECONDS": "0.5"}


class OperatorProcess:
    """`python -m pdd_operator` with the credentials of one kubeconfig. Started on entry, killed on exit if it still runs.

    With a `zygote` it is a fork of that instead: the same code, started in a tenth of the time.
    """

    def __init__(
        self,
        kubeconfig: Path,
        log: Path,
        *,
        namespace: str,
        lease_name: str,
        settings: Mapping[str, str] | None = None,
        zygote: Zygote | None = None,
    ) -> None:
        """`namespace`: its own; `settings`: further PDD_OPERATOR_* variables."""
        self._log = log
        self._zygote = zygote
        (self._port,) = free_ports(1)
        self._environment = {
            "PATH": os.defpath,
            "PYTHONUNBUFFERED": "1",
            "KUBECONFIG": str(kubeconfig),
            "PDD_OPERATOR_NAMESPACE": namespace,
            "PDD_OPERATOR_POD_NAME": log.stem,
            "PDD_OPERATOR_LEASE_NAME": lease_name,
            "PDD_OPERATOR_HTTP_ADDRESS": "127.0.0.1",
            "PDD_OPERATOR_HTTP_PORT": str(self._port),
            **IMAGES,
            **QUICK_LEASE,
            **(settings or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._pid = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def start(self) -> None:
        """A new process with the same settings."""
        self._log.touch()
        if self._zygote is not None:
            self._pid = self._zygote.start(self._environment, self._log)
            return
        with self._log.open("ab") as log:
            command = [sys.executable, "-m", "pdd_operator"]
            self._process = subprocess.Popen(command, env=self._environment, stdout=log, stderr=log)  # noqa: S603  # ours
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
                raise ControlPlaneError(f"the operator does not end: {self._log.read_text()[-3000:]}")
            time.sleep(_POLL_SECONDS / 5)
        return None if self._process is None else self._process.returncode

    def lines(self) -> list[dict[str, Any]]:
        """Its log so far; lines that are no JSON (a traceback of the interpreter) as `{"event": line}`."""
        return [_parsed(line) for line in self._log.read_text().splitlines() if line]

    def ask(self, path: str) -> tuple[int, str]:
        """Status and body of an HTTP answer. Raises ControlPlaneError when there is none."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            raise ControlPlaneError(f"the operator does not answer: {error}") from error

    def metric(self, sample: str) -> float:
        """The value of one sample, named with its labels as in the text format; 0 where it is absent."""
        for line in self.ask("/metrics")[1].splitlines():
            name, _, value = line.rpartition(" ")
            if name == sample:
                return float(value)
        return 0.0

    def wait_until_leader(self, timeout_seconds: float = 20.0) -> None:
        """Raises ControlPlaneError with the end of its log."""
        deadline = time.monotonic() + timeout_seconds
        while time.monotonic() < deadline:
            try:
                if self.metric("pdd_operator_leader") == 1.0:
                    return
            except ControlPlaneError:
                if not self.runs:
                    break
            time.sleep(_POLL_SECONDS)
        raise ControlPlaneError(f"the operator does not lead: {self._log.read_text()[-3000:]}")

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
