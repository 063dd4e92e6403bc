"""One test's world: a namespace with PDDeployments, a kubelet that runs their pods, and operators that this test starts and kills."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from pdd_e2e.control_plane.api import Json
from pdd_e2e.control_plane.audit import Call
from pdd_e2e.control_plane.fake_kubelet import FakeKubelet
from pdd_e2e.control_plane.local_control_plane import LocalControlPlane
from pdd_e2e.control_plane.pod_scripts import Runs
from pdd_e2e.operators.deployments import Deployments, Name, normalised, wait_for
from pdd_e2e.operators.install import Installation
from pdd_e2e.operators.process import OperatorProcess
from pdd_e2e.operators.zygote import Zygote

OURS = {"app.kubernetes.io/part-of": "pdserve"}
PASSED = {"preflight": json.dumps({"transport": "Socket", "reason": "Socket", "message": "sockets"})}
READY = Runs(init_messages=PASSED)
_DIGEST = re.compile(r'"[0-9a-f]{64}"')
"""Of contents that name the namespace; the contents are compared themselves."""
NO_LEASE = {"PDD_OPERATOR_LEADER_ELECTION": "false"}


@dataclass
class World:
    """``kubeconfig``: the operator's own, with the chart's permissions and nothing else."""

    plane: LocalControlPlane
    installation: Installation
    deployments: Deployments
    kubelet: FakeKubelet
    kubeconfig: Path
    zygote: Zygote
    folder: Path
    stack: ExitStack

    @property
    def namespace(self) -> str:
        return self.deployments.namespace

    def operator(
        self,
        name: str = "operator",
        *,
        kubeconfig: Path | None = None,
        lease: bool = False,
        settings: Mapping[str, str] | None = None,
        forked: bool = True,
    ) -> OperatorProcess:
        """Not started; killed at the end of the test. It watches this namespace only. ``lease``: with leader election."""
        return self.stack.enter_context(
            _Unstarted(
                kubeconfig or self.kubeconfig,
                self.folder / f"{name}.log",
                namespace=self.installation.account[0],
                lease_name=self.installation.lease_name,
                settings={
                    "PDD_OPERATOR_WATCH_NAMESPACES": self.namespace,
                    **({} if lease else NO_LEASE),
                    **(settings or {}),
                },
                zygote=self.zygote if forked else None,
            )
        )

    def started(self, name: str = "operator", **settings: str) -> OperatorProcess:
        """A running operator without leader election; ``settings`` without their prefix, in lower case."""
        operator = self.operator(
            name, settings={f"PDD_OPERATOR_{key.upper()}": value for key, value in settings.items()}
        )
        operator.start()
        return operator

    def create_ready(self, manifest: Json, timeout_seconds: float = 40.0) -> Json:
        """Makes it and waits until it is Ready."""
        self.deployments.create(manifest)
        name = str(manifest["metadata"]["name"])
        self.deployments.wait_for_condition(name, "Ready", timeout_seconds=timeout_seconds)
        return self.deployments.get(name)

    def snapshot(self, name: str) -> dict[Name, Json]:
        """Its children, comparable with those of another PDDeployment of that name in another namespace."""
        found = normalised(self.deployments.children(name), self.deployments.get(name)["metadata"]["uid"])
        text = {key: json.dumps(item).replace(self.namespace, "NAMESPACE") for key, item in found.items()}
        return {key: json.loads(_DIGEST.sub('"DIGEST"', item)) for key, item in text.items()}

    def versions(self, name: str) -> dict[Name, str]:
        """uid and resourceVersion of its children, except of what pods' progress changes."""
        return {
            key: f"{item['metadata']['uid']}/{item['metadata']['resourceVersion']}"
            for key, item in self.deployments.children(name).items()
        }

    def uids(self, name: str) -> dict[Name, str]:
        return {key: str(item["metadata"]["uid"]) for key, item in self.deployments.children(name).items()}

    def writes(self, since: int) -> list[Call]:
        """What operators wrote into this namespace, refused and dry-run creations of existing Secrets left out."""
        calls = self.plane.audit.writes(since=since, user=self.installation.user, namespace=self.namespace)
        return [call for call in calls if not (call.resource == "secrets" and call.code == 409)]

    def remove(self, name: str) -> None:
        """Deletes it and waits until the garbage collector has taken everything."""
        self.deployments.delete(name)
        self.wait_gone(name)

    def wait_gone(self, name: str, timeout_seconds: float = 40.0) -> None:
        def gone() -> bool:
            return not self.deployments.children(name) and not self.deployments.pods(name)

        wait_for(gone, timeout_seconds, lambda: f"left over: {sorted(self.deployments.children(name))}")

    def wait(self, what: Callable[[], object], timeout_seconds: float, complaint: str) -> float:
        """How many seconds it took until ``what`` was truthy."""
        began = time.monotonic()
        wait_for(what, timeout_seconds, lambda: complaint)
        return time.monotonic() - began

    def wait_quiet(self, name: str, seconds: float = 1.5, timeout_seconds: float = 30.0) -> None:
        """Until nothing of it changed for so long."""
        last, since = self.versions(name), time.monotonic()
        deadline = since + timeout_seconds
        while time.monotonic() - since < seconds:
            time.sleep(0.2)
            if (now := self.versions(name)) != last:
                last, since = now, time.monotonic()
            assert time.monotonic() < deadline, "it never comes to rest"


class _Unstarted(OperatorProcess):
    """Enters its context without starting."""

    def __enter__(self) -> _Unstarted:
        return self
