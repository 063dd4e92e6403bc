"""Finds Helm, or makes it: `KUBEBUILDER_ASSETS`, then `PATH`, then a cache folder that is filled once; as `binaries` does for Kubernetes.

Only Helm 4 is taken: it applies on the server's side, and what an upgrade changes follows from that.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from pdd_e2e.control_plane.binaries import PREBUILT, Say, cache_folder, unpack
from pdd_e2e.control_plane.errors import ControlPlaneError

HELM_SOURCE = Path(__file__).parents[4] / "e2e" / "helm"
_PACKAGE = "helm.sh/helm/v4/cmd/helm"
_MAJOR = "v4."


def wanted_version(source: Path = HELM_SOURCE) -> str:
    """The version that e2e/helm/go.mod asks for, as `v4.3.1`."""
    found = re.search(r"^\s*(?:require )?helm\.sh/helm/v4 (v\S+)", (source / "go.mod").read_text(), re.MULTILINE)
    if found is None:
        raise ControlPlaneError(f"{source}/go.mod does not require helm.sh/helm/v4")
    return found[1]


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
        archive = prebuilt / "helm.xz"
        if archive.is_file():
            _made(kept, lambda target: _unpack(archive, target, say))
        else:
            _made(kept, lambda target: _build(target, source, say))
    return kept


def _installed(environment: Mapping[str, str]) -> list[Path]:
    places = [Path(environment["KUBEBUILDER_ASSETS"]) / "helm"] if environment.get("KUBEBUILDER_ASSETS") else []
    if found := shutil.which("helm", path=environment.get("PATH", os.defpath)):
        places.append(Path(found))
    return [place for place in places if os.access(place, os.X_OK)]


def _version_of(helm: Path) -> str:
    done = subprocess.run([str(helm), "version", "--short"], capture_output=True, text=True, timeout=60)  # noqa: S603  # a Helm that was found
    return done.stdout.strip()


def _made(kept: Path, make: Callable[[Path], None]) -> None:
    """Appears by a rename, never half; two runs at once do the work twice and agree."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
        target = Path(folder) / "helm"
        make(target)
        target.chmod(0o755)
        if not _version_of(target).startswith(_MAJOR):
            raise ControlPlaneError(f"{target} is not Helm 4: it says {_version_of(target)!r}")
        target.replace(kept)


def _unpack(archive: Path, target: Path, say: Say) -> None:
    say(f"unpacking {archive.name} (once)")
    unpack(archive, target)


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
