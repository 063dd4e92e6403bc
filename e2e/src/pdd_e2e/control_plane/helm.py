"""Finds Helm, or makes it: `KUBEBUILDER_ASSETS`, then `PATH`, then a cache folder that is filled once; as `binaries` does for Kubernetes.

Only Helm 4 is taken: it applies on the server's side, and what an upgrade changes follows from that.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from pdd_e2e.control_plane.binaries import PREBUILT, Say, cache_folder
from pdd_e2e.control_plane.errors import ControlPlaneError
from pdd_e2e.control_plane.made_once import made_once, required_version, unpack

HELM_SOURCE = Path(__file__).parents[4] / "e2e" / "helm"
_PACKAGE = "helm.sh/helm/v4/cmd/helm"
_MAJOR = "v4."


def wanted_version(source: Path = HELM_SOURCE) -> str:
    """The version that e2e/helm/go.mod asks for, as `v4.3.1`."""
    return required_version(source, "helm.sh/helm/v4")


def find_helm(
    environment: Mapping[str, str] = os.environ,
    *,
    say: Say,
    prebuilt: Path = PREBUILT,
    source: Path = HELM_SOURCE,
) -> Path:
    """A Helm 4 that can be run. Raises ControlPlaneError saying what is missing and what to do."""
    for candidate in _installed(environment):
        if _version_of(candidate).startswith(_MAJOR):
            return candidate
    kept = cache_folder(environment) / f"helm-{wanted_version(source)}" / "helm"
    if not os.access(kept, os.X_OK):
        with made_once(kept) as helm:
            _make(helm, prebuilt / "helm.xz", source, say)
    return kept


def _installed(environment: Mapping[str, str]) -> list[Path]:
    places = [Path(environment["KUBEBUILDER_ASSETS"]) / "helm"] if environment.get("KUBEBUILDER_ASSETS") else []
    if found := shutil.which("helm", path=environment.get("PATH", os.defpath)):
        places.append(Path(found))
    return [place for place in places if os.access(place, os.X_OK)]


def _version_of(helm: Path) -> str:
    done = subprocess.run([str(helm), "version", "--short"], capture_output=True, text=True, timeout=60)  # noqa: S603  # a Helm that was found
    return done.stdout.strip()


def _make(target: Path, archive: Path, source: Path, say: Say) -> None:
    if archive.is_file():
        say(f"unpacking {archive.name} (once)")
        unpack(archive, target)
    else:
        _build(target, source, say)
    if not _version_of(target).startswith(_MAJOR):
        raise ControlPlaneError(f"{target} is not Helm 4: it says {_version_of(target)!r}")


def _build(target: Path, source: Path, say: Say) -> None:
    go = shutil.which("go")
    if go is None:
        raise ControlPlaneError(
            f"no Helm 4: put one on PATH or into KUBEBUILDER_ASSETS, or install Go to build {source}"
        )
    say(f"building Helm {wanted_version(source)} from {source} (once, a few minutes)")
    version = f"-s -w -X helm.sh/helm/v4/internal/version.version={wanted_version(source)}"
    command = [go, "build", "-trimpath", "-buildvcs=false", "-ldflags", version, "-o", str(target), _PACKAGE]
    done = subprocess.run(  # noqa: S603  # the Go of PATH, on our own module
        command, cwd=source, env={**os.environ, "CGO_ENABLED": "0"}, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise ControlPlaneError(f"go build in {source} ended with {done.returncode}: {done.stderr[-2000:]}")


if __name__ == "__main__":
    print(find_helm(say=lambda line: print(line, file=sys.stderr)))
