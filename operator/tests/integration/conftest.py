"""Worlds for tests of the operator as a real process, on a real API server, with the permissions that the chart gives it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from control_world import OURS, READY, World

from pdd_e2e.control_plane.fake_kubelet import FakeKubelet
from pdd_e2e.control_plane.local_control_plane import LocalControlPlane
from pdd_e2e.operators.deployments import Deployments
from pdd_e2e.operators.install import Installation, install
from pdd_e2e.operators.zygote import Zygote

TEST_SECONDS = 150
"""On an idle machine none takes a third of it."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(TEST_SECONDS))


@pytest.fixture(scope="session")
def installation(control_plane: LocalControlPlane) -> Installation:
    return install(control_plane, "pdd-system")


@pytest.fixture(scope="session")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    with Zygote("pdd_operator", tmp_path_factory.mktemp("zygote") / "zygote.log") as zygote:
        yield zygote


@pytest.fixture(scope="session")
def operator_kubeconfig(control_plane: LocalControlPlane, installation: Installation) -> Path:
    return control_plane.kubeconfig_for(service_account=installation.account)


@pytest.fixture
def world(
    control_plane: LocalControlPlane,
    installation: Installation,
    operator_kubeconfig: Path,
    namespace: str,
    fake_kubelet: FakeKubelet,
    zygote: Zygote,
    tmp_path: Path,
) -> Iterator[World]:
    fake_kubelet.script(OURS, READY)
    with ExitStack() as stack:
        yield World(
            control_plane,
            installation,
            Deployments(control_plane.api, namespace),
            fake_kubelet,
            operator_kubeconfig,
            zygote,
            tmp_path,
            stack,
        )
