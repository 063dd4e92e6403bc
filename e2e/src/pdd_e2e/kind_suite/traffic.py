"""The life of the pod whose users talk to a deployment's router through its Service, and of what the deployment needs for them.

Traffic comes from inside the cluster: a forwarded port would be one router's, and end with it.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pdd_e2e.cluster.errors import ClusterError
from pdd_e2e.kind_suite import traffic_program
from pdd_e2e.kind_suite.deployment import LiveDeployment, wait_until
from pdd_e2e.kind_suite.traffic_plan import RUN_ON_DECODE_BELOW, make_keys, plan
from pdd_e2e.kind_suite.traffic_verdict import Heard, parse

POD = "traffic"
_KEYS_SECRET = "traffic-keys"  # noqa: S105  # a name
_READY_SECONDS = 300
_END_SECONDS = 120
_POLL_SECONDS = 2.0  # each look takes the machine a good part of a second
_RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "seccompProfile": {"type": "RuntimeDefault"},
}


@dataclass(slots=True)
class Traffic:
    """A pod that converses."""

    deployment: LiveDeployment

    def heard(self) -> Heard:
        """Raises ClusterError where the program failed."""
        lines = self.deployment("logs", POD, "--tail=-1").splitlines()
        try:
            return parse(lines)
        except ValueError:
            raise ClusterError(f"the users' program failed: {' '.join(lines[-8:])}") from None

    def wait(self, met: Callable[[Heard], bool], what: str, timeout_seconds: float) -> Heard:
        """Until what was heard is as it should be. Raises ClusterError."""
        found: list[Heard] = []

        def is_met() -> bool:
            found[:] = [self.heard()]
            return met(found[0])

        def last() -> str:
            return str(found[0].attempts[-3:]) if found else "nothing was heard"

        wait_until(is_met, what, timeout_seconds, last, poll_seconds=_POLL_SECONDS)
        return found[0]

    def wait_for_answers(self, number: int, *, timeout_seconds: float) -> Heard:
        """So many more whole answers to turns that begin from now on."""
        since = time.time()

        def enough(heard: Heard) -> bool:
            return sum(attempt.outcome == "Whole" and attempt.began >= since for attempt in heard.attempts) >= number

        return self.wait(enough, f"{number} answers", timeout_seconds)

    def call(self, turn: int) -> None:
        """Those who return ask their first (0) or their second question (1)."""
        self._signal(("SIGUSR1", "SIGUSR2")[turn])

    def stop(self) -> Heard:
        """The users end what they have begun. Raises ClusterError where the program failed."""
        self._signal("SIGTERM")
        wait_until(lambda: self._phase() in ("Succeeded", "Failed"), "the users' end", _END_SECONDS, self._phase)
        if self._phase() == "Failed":
            raise ClusterError(f"the users' program failed: {self.deployment('logs', POD, '--tail=20')}")
        return self.heard()

    def _signal(self, name: str) -> None:
        self.deployment("exec", POD, "--", "python", "-c", f"import os, signal; os.kill(1, signal.{name})")

    def _phase(self) -> str:
        return str(self.deployment.kubectl.get("--namespace", self.deployment.namespace, "pod", POD)["status"]["phase"])


@contextmanager
def arranged(deployment: LiveDeployment, *, routers: int = 1) -> Iterator[list[str]]:
    """The deployment takes API keys, one for each conversation, and has short turns prefilled, too. Gives the keys; afterwards all is as before."""
    keys = make_keys()
    tenants = yaml.safe_dump({key: f"tenant-{at}" for at, key in enumerate(keys)})
    deployment.kubectl.apply([_secret(deployment.namespace, tenants)])
    deployment.patch(
        {
            "router": {
                "replicas": routers,
                "authentication": {"apiKeysSecretName": _KEYS_SECRET},
                "runOnDecodeBelowTokens": RUN_ON_DECODE_BELOW,
            }
        }
    )
    try:
        deployment.wait_for_routers(timeout_seconds=90)
        yield keys
    finally:
        deployment.patch({"router": {"replicas": 1, "authentication": None, "runOnDecodeBelowTokens": None}})
        deployment.wait_for_routers(timeout_seconds=120)
        deployment("delete", "secret", _KEYS_SECRET)


@contextmanager
def conversing(
    deployment: LiveDeployment, keys: Sequence[str], users: int, *special: str, returning: int = 0
) -> Iterator[Traffic]:
    """Users as in `plan`, who talk from when every answer was recorded. The pod is taken away afterwards."""
    url = f"http://{deployment.name}-router.{deployment.namespace}.svc:8000"
    told = plan(url, keys, users, *special, returning=returning)
    remove(deployment)
    deployment.kubectl.apply(_objects(deployment, told))
    try:
        traffic = Traffic(deployment)
        wait_until(lambda: traffic._phase() != "Pending", "the users' pod", 60)
        traffic.wait(lambda heard: heard.ready, "the reference answers", _READY_SECONDS)
        yield traffic
    finally:
        remove(deployment)


def remove(deployment: LiveDeployment) -> None:
    """The pod and what it was told."""
    deployment("delete", "pod,configmap", POD, "--ignore-not-found", "--grace-period=1", timeout_seconds=90)


def _secret(namespace: str, tenants: str) -> dict[str, Any]:
    metadata = {"name": _KEYS_SECRET, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"keys.yaml": tenants}}


def _objects(deployment: LiveDeployment, told: Mapping[str, Any]) -> list[dict[str, Any]]:
    metadata = {"name": POD, "namespace": deployment.namespace}
    program = Path(traffic_program.__file__)
    files = {program.name: program.read_text(), "plan.json": json.dumps(told)}
    container = {
        "name": "users",
        "image": deployment.router_image(),
        "command": ["python", f"/traffic/{program.name}", "/traffic/plan.json"],
        "securityContext": _RESTRICTED,
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}},
        "volumeMounts": [{"name": "traffic", "mountPath": "/traffic", "readOnly": True}],
    }
    pod = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "containers": [container],
        "volumes": [{"name": "traffic", "configMap": {"name": POD}}],
    }
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": files},
        {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod},
    ]
