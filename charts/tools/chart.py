"""Runs Helm on the chart for its tests: values in, objects out. No cluster."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[1] / "pdd-operator"
KUBERNETES = "1.37.2"
"""Version that is rendered for and whose schemas objects are held to."""


class HelmError(Exception):
    """Helm ended with an error; the text is what it said."""


@dataclass(frozen=True, slots=True)
class Chart:
    """The chart in ``folder``, rendered with ``helm``."""

    helm: Path
    folder: Path = FOLDER

    def run(self, *arguments: str) -> str:
        """Standard output of Helm. Raises HelmError."""
        command = [str(self.helm), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)  # noqa: S603  # a Helm that was found, no shell
        if done.returncode != 0:
            raise HelmError(done.stderr + done.stdout)
        return done.stdout

    def text(self, *flags: str, release: str = "pdd", namespace: str = "pdd-system") -> str:
        """What would be applied, as text."""
        return self.run(
            "template", release, str(self.folder), "--namespace", namespace, "--kube-version", KUBERNETES, *flags
        )

    def objects(self, *flags: str, release: str = "pdd", namespace: str = "pdd-system") -> list[dict[str, Any]]:
        """What would be applied, in the order of kind and name."""
        documents = yaml.safe_load_all(self.text(*flags, release=release, namespace=namespace))
        return sorted((item for item in documents if item), key=identity)

    def values_files(self) -> list[Path]:
        """The files that every test renders."""
        return sorted((self.folder / "ci").glob("*.yaml"))


def identity(item: dict[str, Any]) -> tuple[str, str, str]:
    """Kind, namespace and name."""
    return item["kind"], item["metadata"].get("namespace", ""), item["metadata"]["name"]


def one(objects: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """The only object of ``kind``. Raises ValueError."""
    (found,) = (item for item in objects if item["kind"] == kind)
    return found


def environment(objects: list[dict[str, Any]]) -> dict[str, str]:
    """What the operator's container gets; of what the node fills in (downward API) the path of the field."""
    (container,) = one(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    return {
        item["name"]: item["value"] if "value" in item else item["valueFrom"]["fieldRef"]["fieldPath"]
        for item in container["env"]
    }
