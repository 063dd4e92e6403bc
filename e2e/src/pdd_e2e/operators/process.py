"""One operator process: started, asked over HTTP, stopped, paused, killed. Its log goes to a file."""

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
    """`python -m pdd_operator` with the credentials of one kubeconfig. Started on entry, killed on exit if it still runs."""

    def __init__(
        self, kubeconfig: Path, log: Path, *, namespace: str, lease_name: str, settings: Mapping[str, str] | None = None
    ) -> None:
        """`namespace`: its own; `settings`: further PDD_OPERATOR_* variables."""
        self._log = log
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

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def start(self) -> None:
        """A new process with the same settings."""
        with self._log.open("ab") as log:
            command = [sys.executable, "-m", "pdd_operator"]
            self._process = subprocess.Popen(command, env=self._environment, stdout=log, stderr=log)  # noqa: S603  # ours

    @property
    def pid(self) -> int:
        """Of the running process."""
        return self._running().pid

    def kill(self) -> None:
        """SIGKILL, if it still runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
        if self._process is not None:
            self._process.wait(_STOP_SECONDS)

    def terminate(self) -> tuple[int, float]:
        """SIGTERM; its exit code and how many seconds it took."""
        began = time.monotonic()
        self._running().terminate()
        code = self._running().wait(_STOP_SECONDS)
        return code, time.monotonic() - began

    def wait_for_end(self, timeout_seconds: float) -> int:
        """Its exit code when it ends by itself. Raises subprocess.TimeoutExpired."""
        return self._running().wait(timeout_seconds)

    def pause(self) -> None:
        """SIGSTOP."""
        self._running().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self._running().send_signal(signal.SIGCONT)

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
                if self._running().poll() is not None:
                    break
            time.sleep(_POLL_SECONDS)
        raise ControlPlaneError(f"the operator does not lead: {self._log.read_text()[-3000:]}")

    def memory_bytes(self) -> int:
        """Resident memory now."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ControlPlaneError("the operator was not started")
        return self._process


def _parsed(line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        return {"event": line}
    return value if isinstance(value, dict) else {"event": line}
