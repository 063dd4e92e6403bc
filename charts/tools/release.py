"""A release of the chart on a real API server: install, upgrade, uninstall, by Helm and nothing else."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from chart import FOLDER, HelmError

from pdd_e2e.control_plane.api import Json, KubeApi
from pdd_e2e.control_plane.errors import ApiError

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
CRD = f"{CRDS}/pddeployments.pdserve.io"
DEPLOYMENTS = "/apis/pdserve.io/v1alpha1/pddeployments"
_POLL_SECONDS = 0.05
_PATIENCE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Release:
    """``home``: Helm's caches. ``namespace`` exists."""

    helm: Path
    kubeconfig: Path
    api: KubeApi
    namespace: str
    home: Path
    name: str = "pdd"

    def install(self, *flags: str, chart: Path = FOLDER) -> str:
        """What Helm says. Returns when a PDDeployment can be created. Raises HelmError."""
        said = self._run("install", self.name, str(chart), *flags)
        self.wait_for_definition()
        return said

    def upgrade(self, *flags: str, chart: Path = FOLDER) -> str:
        """What Helm says. Raises HelmError."""
        said = self._run("upgrade", self.name, str(chart), *flags)
        self.wait_for_definition()
        return said

    def uninstall(self) -> str:
        """What Helm says; a definition that is not kept is gone when this returns."""
        return self._run("uninstall", self.name, "--wait")

    def manifest(self) -> str:
        """What the release consists of, as Helm remembers it."""
        return self._run("get", "manifest", self.name)

    def _run(self, *arguments: str) -> str:
        command = [str(self.helm), *arguments, "--namespace", self.namespace]
        environment = {"HOME": str(self.home), "KUBECONFIG": str(self.kubeconfig)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)  # noqa: S603  # a Helm that was found, no shell
        if done.returncode != 0:
            raise HelmError(done.stderr + done.stdout)
        return done.stdout + done.stderr

    def wait_for_definition(self) -> None:
        """Returns when the API server serves PDDeployments."""
        wait_until(lambda: is_served(self.api, DEPLOYMENTS), "PDDeployments to be served")


def get_or_none(api: KubeApi, path: str) -> Json | None:
    """The object at ``path``, None where there is none."""
    try:
        return api.get(path)
    except ApiError as error:
        if error.code != 404:
            raise
        return None


def is_served(api: KubeApi, path: str) -> bool:
    """Whether the list at ``path`` can be had. A definition that is new makes the API server ask for patience (429)."""
    try:
        api.get(path)
    except ApiError as error:
        if error.code not in (404, 429):
            raise
        return False
    return True


def wait_until(holds: Callable[[], bool], what: str, seconds: float = _PATIENCE_SECONDS) -> None:
    """Returns when ``holds``. Raises TimeoutError that names ``what``."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:.0f} s for {what}")
        time.sleep(_POLL_SECONDS)
