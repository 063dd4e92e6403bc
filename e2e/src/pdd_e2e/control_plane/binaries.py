"""Finds the programs of the control plane, or makes them: `KUBEBUILDER_ASSETS`, then a cache folder that is filled once.

The cache is filled from prebuilt archives beside the repository where there are some of the wanted version, else by building `e2e/kubebox`
with Go (5 to 15 minutes on two cores). A lock file keeps two runs from doing so at once; a program appears by a rename, never half.
"""

import fcntl
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pdd_e2e.control_plane.errors import ControlPlaneError
from pdd_e2e.control_plane.made_once import made_once, required_version, unpack

PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kubectl")
# What the same binary holds besides, for whoever needs a whole node.
_MORE_PROGRAMS = ("kube-scheduler", "kube-proxy", "kubelet", "kubeadm")
_ROOT = Path(__file__).parents[4]
KUBEBOX_SOURCE = _ROOT / "e2e" / "kubebox"
PREBUILT = _ROOT.parent / "shared" / "cluster" / "bin"
_NOTE_SECONDS = 15.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Binaries:
    """A folder that holds all of `PROGRAMS`."""

    folder: Path

    def path(self, program: str) -> Path:
        """Where `program` is."""
        return self.folder / program

    def missing(self) -> list[str]:
        """Those of `PROGRAMS` that are not there or cannot be run."""
        return [name for name in PROGRAMS if not os.access(self.path(name), os.X_OK)]


def wanted_version(source: Path = KUBEBOX_SOURCE) -> str:
    """The Kubernetes version that e2e/kubebox/go.mod asks for, as `v1.37.2`."""
    return required_version(source, "k8s.io/kubernetes")


def find_binaries(
    environment: Mapping[str, str] = os.environ,
    *,
    say: Say,
    prebuilt: Path = PREBUILT,
    source: Path = KUBEBOX_SOURCE,
) -> Binaries:
    """Programs that can be run. Raises ControlPlaneError saying what is missing and what to do."""
    if assets := environment.get("KUBEBUILDER_ASSETS"):
        binaries = Binaries(Path(assets))
        if missing := binaries.missing():
            raise ControlPlaneError(f"KUBEBUILDER_ASSETS={assets} lacks {', '.join(missing)}")
        return binaries
    version = wanted_version(source)
    binaries = Binaries(cache_folder(environment) / f"kubernetes-{version}")
    if binaries.missing():
        with _locked(binaries.folder.with_name(f"{binaries.folder.name}.lock"), say):
            if binaries.missing():  # another run may have filled it while we waited
                _fill(binaries.folder, version, prebuilt, source, environment, say)
    return binaries


def cache_folder(environment: Mapping[str, str]) -> Path:
    """$XDG_CACHE_HOME/pdd, or ~/.cache/pdd."""
    base = environment.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "pdd"


def _fill(folder: Path, version: str, prebuilt: Path, source: Path, environment: Mapping[str, str], say: Say) -> None:
    archive = prebuilt / "kubebox.xz"
    with made_once(folder / "kubebox") as made:
        if not (archive.is_file() and _unpacked(archive, made, version, say)):
            _build(made, version, source, environment, say)
    for name in (*PROGRAMS, *_MORE_PROGRAMS):
        link = folder / f".{name}"
        link.unlink(missing_ok=True)
        link.symlink_to("kubebox")
        link.replace(folder / name)


def _unpacked(archive: Path, target: Path, version: str, say: Say) -> bool:
    """Whether the archive held the wanted version, which is then at `target`."""
    say(f"unpacking {archive.name} (once)")
    unpack(archive, target)
    asked = [str(target), "kube-apiserver", "--version"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=60)  # noqa: S603  # what we just unpacked
    if done.stdout.split() == ["Kubernetes", version]:
        return True
    say(f"{archive.name} holds {done.stdout.strip() or 'nothing that runs'}, not {version}")
    return False


def build_flags(version: str) -> list[str]:
    """Flags of `go build` that make the programs report `version`."""
    major, minor = version.removeprefix("v").split(".")[:2]
    package = "k8s.io/component-base/version"
    values = {
        "gitVersion": version,
        "gitMajor": major,
        "gitMinor": minor,
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
    }
    settings = " ".join(f"-X {package}.{name}={value}" for name, value in values.items())
    return ["-trimpath", "-buildvcs=false", "-ldflags", f"-s -w {settings}"]


def _build(target: Path, version: str, source: Path, environment: Mapping[str, str], say: Say) -> None:
    go = shutil.which("go", path=environment.get("PATH"))
    if go is None:
        raise ControlPlaneError(
            f"no Kubernetes programs: set KUBEBUILDER_ASSETS to a folder with {', '.join(PROGRAMS)}, or install Go to build {source}"
        )
    say(f"building Kubernetes {version} from {source} (once, 5 to 15 minutes on two cores)")
    with _notes(say, "still building Kubernetes"):
        done = subprocess.run(  # noqa: S603  # the Go of PATH, on our own module
            [go, "build", *build_flags(version), "-o", str(target), "."],
            cwd=source,
            env={**environment, "CGO_ENABLED": "0"},
            capture_output=True,
            text=True,
        )
    if done.returncode != 0:
        raise ControlPlaneError(f"go build in {source} ended with {done.returncode}: {done.stderr[-2000:]}")


@contextmanager
def _locked(path: Path, say: Say) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another run is getting Kubernetes ready; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _notes(say: Say, text: str) -> Iterator[None]:
    """Says `text` and the time it took, now and then, while the context lasts."""
    done = threading.Event()
    began = time.monotonic()

    def note() -> None:
        while not done.wait(_NOTE_SECONDS):
            say(f"{text} ({time.monotonic() - began:.0f} s)")

    thread = threading.Thread(target=note, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
