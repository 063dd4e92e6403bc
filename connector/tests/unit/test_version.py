"""The gate: which versions are let in, and what is said to the others."""

import pytest

from pdd_connector import version
from pdd_connector.version import UnsupportedVersionError, check_versions, streams_need_wrapping


@pytest.mark.parametrize("vllm", ["0.32.0", "0.32.7", "0.33.0", "0.33.1.post1", "0.32.0+cpu", "0.33.0+cu130"])
@pytest.mark.parametrize("nixl", ["1.5", "1.5.1", "1.12.0", "2.0.0"])
def test_supported(vllm: str, nixl: str) -> None:
    assert check_versions(vllm, nixl) is None


@pytest.mark.parametrize("vllm", ["0.31.9", "0.34.0", "1.32.0", "0.320.0", "0.33.0rc1", "0.33.1.dev3", "dev", "", None])
def test_other_vllm_is_refused_with_both_versions_named(vllm: str | None) -> None:
    problem = check_versions(vllm, "1.5.1")
    assert problem is not None
    assert f"vLLM must be 0.32 or 0.33, found {vllm or 'none'}" in problem
    assert "NIXL" not in problem


@pytest.mark.parametrize("nixl", ["1.4.9", "0.9.0", "x", None])
def test_old_nixl_is_refused(nixl: str | None) -> None:
    problem = check_versions("0.33.0", nixl)
    assert problem is not None and f"NIXL must be 1.5 or newer, found {nixl or 'none'}" in problem


def test_this_environment_is_supported() -> None:
    version.require_supported_versions()
    assert version.installed_vllm() == "0.32.0"


def test_unsupported_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version, "installed_vllm", lambda: "0.34.0")
    with pytest.raises(UnsupportedVersionError, match=r"must be 0\.32 or 0\.33, found 0\.34\.0"):
        version.require_supported_versions()


@pytest.mark.parametrize(
    ("vllm", "needed"), [("0.32.0", True), ("0.32.9+cpu", True), ("0.33.0", False), ("0.34", False)]
)
def test_only_0_32_needs_its_streams_wrapped(vllm: str, needed: bool) -> None:
    assert streams_need_wrapping(vllm) is needed
