"""One router process as a pod of a PDDeployment would run it: its configuration, salt and ServiceAccount are those that the operator made.

Only what a pod has and a process on loopback has not is changed: where it listens, the port of the engines, where the salt is mounted.
"""

import base64
import json
import os
import sys
from pathlib import Path
from typing import Any

import yaml

from pdd_e2e.control_plane.errors import ControlPlaneError
from pdd_e2e.control_plane.local_control_plane import LocalControlPlane
from pdd_e2e.operators.deployments import Deployments, wait_for
from pdd_e2e.operators.served_process import ServedProcess

_READY_SECONDS = 20.0


class RouterProcess(ServedProcess):
    """`python -m pdd_router`, of the PDDeployment `name`. ``engine_port``: where engines listen behind their pods' addresses."""

    def __init__(
        self, plane: LocalControlPlane, deployments: Deployments, name: str, folder: Path, engine_port: int
    ) -> None:
        """Reads what the operator made, so that must be there."""
        super().__init__(folder / "router.log")
        found = deployments.api.get(deployments.child_path("ConfigMap", f"{name}-router"))
        config = yaml.safe_load(found["data"]["router.yaml"])
        secret = deployments.api.get(deployments.child_path("Secret", f"{name}-tenant-salt"))
        salt = folder / "salt"
        salt.write_bytes(base64.b64decode(secret["data"]["salt"]))
        config["listen"] = {"host": "127.0.0.1", "port": self.port}
        config["tenancy"]["saltSecretFile"] = str(salt)
        config["discovery"]["kubernetes"]["enginePort"] = engine_port
        self._config = folder / "router.yaml"
        self._config.write_text(yaml.safe_dump(config))
        self.account = (deployments.namespace, f"{name}-router")
        self._kubeconfig = plane.kubeconfig_for(service_account=self.account)

    @property
    def user(self) -> str:
        """As the audit log names it."""
        return "system:serviceaccount:" + ":".join(self.account)

    def start(self) -> None:
        environment = {"PATH": os.defpath, "PYTHONUNBUFFERED": "1", "KUBECONFIG": str(self._kubeconfig)}
        self._run([sys.executable, "-m", "pdd_router", "--config", str(self._config)], environment)

    def readiness(self) -> dict[str, Any]:
        """What /ready says; empty while it does not answer yet."""
        try:
            found: dict[str, Any] = json.loads(self.ask("/ready")[1])
        except ControlPlaneError:
            return {}
        return found

    def wait_until_ready(self, prefill: int, decode: int, timeout_seconds: float = _READY_SECONDS) -> None:
        """Until so many engines are available and all that should be connected are. Raises ControlPlaneError."""

        def ready() -> bool:
            found = self.readiness()
            pairs = found.get("pairs", {})
            able = found.get("available") == {"prefill": prefill, "decode": decode}
            return able and bool(found["ready"]) and pairs["introduced"] == pairs["wanted"]

        wait_for(ready, timeout_seconds, lambda: f"the router is not ready: {self.readiness()} {self.tail()}")
