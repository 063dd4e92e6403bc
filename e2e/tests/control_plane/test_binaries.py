"""Programs are found or made once: with shell scripts for the archive's content and for Go, as the real build takes minutes."""

import lzma
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pdd_e2e.control_plane.binaries import (
    KUBEBOX_SOURCE,
    PROGRAMS,
    Binaries,
    build_flags,
    find_binaries,
    wanted_version,
)
from pdd_e2e.control_plane.errors import ControlPlaneError

VERSION = "v1.99.3"


@dataclass
class Place:
    """A machine of its own: a cache, a folder of archives, a Go module, and a PATH with or without Go."""

    root: Path
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in ("prebuilt", "source", "bin"):
            (self.root / name).mkdir()
        (self.root / "source" / "go.mod").write_text(f"module m\n\nrequire (\n\tk8s.io/kubernetes {VERSION}\n)\n")

    @property
    def folder(self) -> Path:
        return self.root / "cache" / "pdd" / f"kubernetes-{VERSION}"

    def find(self, **environment: str) -> Binaries:
        known = {"XDG_CACHE_HOME": str(self.root / "cache"), "PATH": f"{self.root / 'bin'}:{os.defpath}"}
        return find_binaries(
            known | environment, say=self.said.append, prebuilt=self.root / "prebuilt", source=self.root / "source"
        )

    def archive(self, version: str) -> Path:
        path = self.root / "prebuilt" / "kubebox.xz"
        path.write_bytes(lzma.compress(f"#!/bin/sh\necho Kubernetes {version}\n".encode()))
        return path

    def go(self, script: str) -> None:
        go = self.root / "bin" / "go"
        go.write_text(f"#!/bin/sh\necho built >> {self.root}/builds\n{script}\n")
        go.chmod(0o755)

    def builds(self) -> int:
        file = self.root / "builds"
        return len(file.read_text().splitlines()) if file.exists() else 0


WRITES_PROGRAM = """
while [ "$1" != -o ]; do shift; done
printf '#!/bin/sh\\necho made\\n' > "$2"; chmod 755 "$2"
"""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_named_assets_come_first_and_must_be_complete(place: Place, tmp_path: Path) -> None:
    place.archive(VERSION)
    assets = tmp_path / "assets"
    assets.mkdir()
    for name in PROGRAMS[1:]:
        (assets / name).touch(mode=0o755)
    with pytest.raises(ControlPlaneError, match=rf"lacks {PROGRAMS[0]}$"):
        place.find(KUBEBUILDER_ASSETS=str(assets))
    (assets / PROGRAMS[0]).touch(mode=0o755)
    assert place.find(KUBEBUILDER_ASSETS=str(assets)).folder == assets
    assert not place.folder.exists()


def test_the_archive_is_unpacked_once(place: Place) -> None:
    archive = place.archive(VERSION)
    place.go(WRITES_PROGRAM)
    binaries = place.find()
    assert binaries.folder == place.folder
    assert binaries.missing() == []
    archive.unlink()
    said = len(place.said)
    assert place.find() == binaries
    assert (len(place.said), place.builds()) == (said, 0)


def test_an_archive_of_another_version_is_passed_over(place: Place) -> None:
    place.archive("v1.98.0")
    place.go(WRITES_PROGRAM)
    assert place.find().missing() == []
    assert place.builds() == 1
    assert any("Kubernetes v1.98.0, not v1.99.3" in line for line in place.said)
    assert any(line.startswith("building Kubernetes v1.99.3") for line in place.said)


def test_two_runs_at_once_build_once(place: Place) -> None:
    started = place.root / "started"
    go_on = place.root / "go-on"
    os.mkfifo(started)
    os.mkfifo(go_on)
    place.go(f"echo > {started}; read _ < {go_on}\n{WRITES_PROGRAM}")
    found: list[Binaries] = []
    runs = [threading.Thread(target=lambda: found.append(place.find())) for _ in range(2)]
    runs[0].start()
    started.read_text()
    runs[1].start()
    while not any("waiting" in line for line in place.said):
        runs[1].join(0.01)
    go_on.write_text("\n")
    for run in runs:
        run.join()
    assert [binaries.missing() for binaries in found] == [[], []]
    assert place.builds() == 1


def test_with_neither_archive_nor_go_it_says_what_to_do(place: Place) -> None:
    with pytest.raises(ControlPlaneError, match=r"set KUBEBUILDER_ASSETS .* or install Go"):
        place.find(PATH=str(place.root / "bin"))


def test_a_build_that_fails_says_why_and_leaves_no_program(place: Place) -> None:
    place.go("echo no space left >&2; exit 1")
    with pytest.raises(ControlPlaneError, match="no space left"):
        place.find()
    assert sorted(Binaries(place.folder).missing()) == sorted(PROGRAMS)
    place.go(WRITES_PROGRAM)
    assert place.find().missing() == []


def test_what_is_built_reports_the_version_of_the_module() -> None:
    version = wanted_version()
    flags = " ".join(build_flags(version))
    assert f"version.gitVersion={version}" in flags
    assert "version.gitMinor=37" in flags
    text = (KUBEBOX_SOURCE / "go.mod").read_text()
    staging = version.replace("v1.", "v0.")
    replaced = [line for line in text.splitlines() if "=>" in line]
    assert len(replaced) > 30
    assert all(line.endswith(f" {staging}") for line in replaced)
