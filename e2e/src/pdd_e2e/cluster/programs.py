"""Finds what a node is made of beside kubebox: containerd, CoreDNS, what enforces NetworkPolicies, and kind itself. As `control_plane.binaries` does for Kubernetes.

Prebuilt archives beside the repository come first, else Go builds them from the modules in e2e/kind/modules (minutes, once).
"""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pdd_e2e.cluster.errors import ClusterError
from pdd_e2e.cluster.shell import run
from pdd_e2e.control_plane.binaries import PREBUILT, Say, cache_folder, find_binaries
from pdd_e2e.control_plane.made_once import made_once, unpack

MODULES = Path(__file__).parents[3] / "kind" / "modules"
_BUILD_TIMEOUT_SECONDS = 1800


@dataclass(frozen=True, slots=True)
class Program:
    """A Go program: the folder of its module under e2e/kind/modules, and its package."""

    module: str
    package: str
    flags: str = ""


_CONTAINERD = "github.com/containerd/containerd/v2"
_CONTAINERD_VERSION = f"-X {_CONTAINERD}/version.Version=2.4.2"
PROGRAMS: Mapping[str, Program] = {
    "containerd": Program("containerd", f"{_CONTAINERD}/cmd/containerd", _CONTAINERD_VERSION),
    "ctr": Program("containerd", f"{_CONTAINERD}/cmd/ctr", _CONTAINERD_VERSION),
    "containerd-shim-runc-v2": Program("containerd", f"{_CONTAINERD}/cmd/containerd-shim-runc-v2", _CONTAINERD_VERSION),
    "coredns": Program("coredns", "github.com/coredns/coredns"),
    "kind": Program("kind", "sigs.k8s.io/kind"),
    "kube-network-policies": Program("network-policies", "sigs.k8s.io/kube-network-policies/cmd"),
}


@dataclass(frozen=True, slots=True)
class Programs:
    """Where programs are: those of `PROGRAMS` in one folder, those of Kubernetes in another."""

    folder: Path
    kubernetes: Path

    def path(self, name: str) -> Path:
        """One of `PROGRAMS`, or one that kubebox holds."""
        return (self.folder if name in PROGRAMS else self.kubernetes) / name


def find_programs(
    environment: Mapping[str, str] = os.environ,
    *,
    say: Say,
    prebuilt: Path = PREBUILT,
    modules: Path = MODULES,
) -> Programs:
    """All of them, made first if need be. Raises ClusterError or ControlPlaneError saying what is missing and what to do."""
    kubernetes = find_binaries(environment, say=say)
    if not os.access(kubernetes.folder / "kubebox", os.X_OK):
        raise ClusterError(f"{kubernetes.folder} has no kubebox, which nodes are built from: unset KUBEBUILDER_ASSETS")
    folder = cache_folder(environment) / "kind" / "bin"
    for name, program in PROGRAMS.items():
        if not os.access(folder / name, os.X_OK):
            with made_once(folder / name) as target:
                _make(target, program, prebuilt / f"{name}.xz", modules, say)
    return Programs(folder, kubernetes.folder)


def _make(target: Path, program: Program, archive: Path, modules: Path, say: Say) -> None:
    if archive.is_file():
        say(f"unpacking {archive.name} (once)")
        unpack(archive, target)
    else:
        _build(target, program, modules, say)


def _build(target: Path, program: Program, modules: Path, say: Say) -> None:
    go = shutil.which("go")
    if go is None:
        raise ClusterError(f"no {target.name}: install Go to build it from {modules / program.module}")
    say(f"building {target.name} from {modules / program.module} (once, some minutes)")
    flags = ["-trimpath", "-buildvcs=false", "-tags", "no_btrfs no_devmapper no_zfs"]
    run(
        [go, "build", *flags, "-ldflags", f"-s -w {program.flags}", "-o", target, program.package],
        cwd=modules / program.module,
        env={"CGO_ENABLED": "0"},
        timeout_seconds=_BUILD_TIMEOUT_SECONDS,
    )
