"""Where Helm comes from, and that one of another major version is not taken."""

import lzma
from pathlib import Path

import pytest

from pdd_e2e.control_plane.errors import ControlPlaneError
from pdd_e2e.control_plane.helm import find_helm, wanted_version


def fake_helm(path: Path, version: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho {version}\n")
    path.chmod(0o755)
    return path


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": str(tmp_path / "path"), **more}


def silent(line: str) -> None:
    """Says nothing."""


def test_assets_come_before_the_path(tmp_path: Path) -> None:
    fake_helm(tmp_path / "path" / "helm", "v4.1.0")
    wanted = fake_helm(tmp_path / "assets" / "helm", "v4.2.0")
    found = find_helm(environment(tmp_path, KUBEBUILDER_ASSETS=str(tmp_path / "assets")), say=silent)
    assert found == wanted


def test_helm_3_on_the_path_is_passed_over_for_the_archive(tmp_path: Path) -> None:
    fake_helm(tmp_path / "path" / "helm", "v3.20.0")
    (tmp_path / "helm.xz").write_bytes(lzma.compress(b"#!/bin/sh\necho v4.3.1\n"))
    found = find_helm(environment(tmp_path), say=silent, prebuilt=tmp_path)
    assert found == tmp_path / "cache" / "pdd" / f"helm-{wanted_version()}" / "helm"
    assert find_helm(environment(tmp_path), say=silent, prebuilt=tmp_path / "gone") == found


def test_an_archive_with_another_major_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "helm.xz").write_bytes(lzma.compress(b"#!/bin/sh\necho v3.20.0\n"))
    with pytest.raises(ControlPlaneError, match="is not Helm 4"):
        find_helm(environment(tmp_path), say=silent, prebuilt=tmp_path)
    assert not list((tmp_path / "cache" / "pdd").glob("*/helm"))


def test_without_anything_the_message_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    with pytest.raises(ControlPlaneError, match="put one on PATH or into KUBEBUILDER_ASSETS, or install Go"):
        find_helm(environment(tmp_path), say=silent, prebuilt=tmp_path)
