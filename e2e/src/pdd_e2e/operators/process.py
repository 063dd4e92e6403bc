"""One operator process, with the credentials of one kubeconfig."""

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from pdd_e2e.control_plane.errors import ControlPlaneError
from pdd_e2e.operators.served_process import POLL_SECONDS, ServedProcess
from pdd_e2e.operators.zygote import Zygote

IMAGES = {
    "PDD_OPERATOR_IMAGE_ROUTER": "images.example/pdd-router:1",
    "PDD_OPERATOR_IMAGE_CONNECTOR": "images.example/pdd-connector:1",
    "PDD_OPERATOR_IMAGE_ENGINE_GPU": "images.example/vllm-gpu:1",
    "PDD_OPERATOR_IMAGE_ENGINE_NEURON": "images.example/vllm-neuron:1",
    "PDD_OPERATOR_IMAGE_ENGINE_CPU": "images.example/vllm-cpu:1",
}
QUICK_LEASE = {"PDD_OPERATOR_LEASE_DURATION_SECONDS": "3", "PDD_OPERATOR_LEASE_RENEW_SECONDS": "0.5"}


class OperatorProcess(ServedProcess):
    """`python -m pdd_operator`. With a `zygote` it is a fork of that instead: the same code, started in a tenth of the time."""

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
        super().__init__(log)
        self._zygote = zygote
        self._environment = {
            "PATH": os.defpath,
            "PYTHONUNBUFFERED": "1",
            "KUBECONFIG": str(kubeconfig),
            "PDD_OPERATOR_NAMESPACE": namespace,
            "PDD_OPERATOR_POD_NAME": log.stem,
            "PDD_OPERATOR_LEASE_NAME": lease_name,
            "PDD_OPERATOR_HTTP_ADDRESS": "127.0.0.1",
            "PDD_OPERATOR_HTTP_PORT": str(self.port),
            **IMAGES,
            **QUICK_LEASE,
            **(settings or {}),
        }

    def start(self) -> None:
        self.log.touch()
        if self._zygote is not None:
            self._pid = self._zygote.start(self._environment, self.log)
        else:
            self._run([sys.executable, "-m", "pdd_operator"], self._environment)

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
            time.sleep(POLL_SECONDS)
        raise ControlPlaneError(f"the operator does not lead: {self.tail()}")
