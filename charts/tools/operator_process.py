"""The operator as a process on this machine, with the environment and the account that the chart gives it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.request import urlopen

from release import wait_until

from pdd_cli.local.ports import free_ports

_STOP_SECONDS = 15.0
# Repeats of an event are counted at most once a minute; here at once, so that a test need not wait for it.
_CODE = "import pdd_operator.kube.events as e, runpy; e._REPEAT_SECONDS = 0.0; runpy.run_module('pdd_operator', run_name='__main__')"


class OperatorProcess:
    """Runs while its context lasts; ``log`` is its output. Ends by SIGTERM, and by SIGKILL when that does not do."""

    def __init__(self, environment: Mapping[str, str], *, namespace: str, kubeconfig: Path, log: Path) -> None:
        """``environment``: as the chart has it; what a node would fill in is filled in here."""
        self.log = log
        (port,) = free_ports(1)
        self._metrics = f"http://127.0.0.1:{port}/metrics"
        self._environment = {
            **environment,
            "PDD_OPERATOR_NAMESPACE": namespace,
            "PDD_OPERATOR_POD_NAME": "pdd-operator-0",
            "PDD_OPERATOR_HTTP_ADDRESS": "127.0.0.1",
            "PDD_OPERATOR_HTTP_PORT": str(port),
            "KUBECONFIG": str(kubeconfig),
            "PATH": os.defpath,
        }

    def __enter__(self) -> Self:
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(  # noqa: S603  # our own module
                [sys.executable, "-c", _CODE], env=self._environment, stdout=output, stderr=subprocess.STDOUT
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            code = self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        if code != 0 and error is None:
            raise AssertionError(f"the operator ended with {code}: {self.tail()}")

    def wait_until(self, holds: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
        """Returns when ``holds``. Raises TimeoutError with the operator's last words."""
        try:
            wait_until(holds, what, seconds)
        except TimeoutError as error:
            raise TimeoutError(f"{error}: {self.tail()}") from error

    def has_reconciled(self) -> bool:
        """Whether it looked at an object and nothing waits."""
        try:
            text = urlopen(self._metrics, timeout=5).read().decode()  # noqa: S310  # our own port
        except OSError:
            return False
        values = dict(line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
        looked = sum(float(value) for name, value in values.items() if name.startswith("pdd_operator_reconciles_total"))
        return looked > 0 and float(values["pdd_operator_queue_depth"]) == 0

    def tail(self) -> str:
        """The end of its output."""
        return self.log.read_text(encoding="utf-8", errors="replace")[-4000:]
