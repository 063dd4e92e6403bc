"""The CRD on a real API server, installed once for the session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from crd import CRD_FILE, crd
from crd_server import CrdServer, await_published, await_served

from pdd_e2e.control_plane.local_control_plane import LocalControlPlane


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test that needs the control plane waits for its start."""
    for item in items:
        if "/tests/api/" in item.path.as_posix():
            item.add_marker(pytest.mark.timeout(120))


@pytest.fixture(scope="session")
def server(control_plane: LocalControlPlane) -> Iterator[CrdServer]:
    """Installed by kubectl, which turns every warning of the API server into an error."""
    control_plane.kubectl("apply", "--server-side", "--warnings-as-errors", "--filename", str(CRD_FILE))
    await_served(control_plane.api, crd())
    await_published(control_plane, crd())
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "crd-"}}
    name = control_plane.api.create("/api/v1/namespaces", namespace)["metadata"]["name"]
    yield CrdServer(control_plane.api, name)
    control_plane.api.delete(f"/api/v1/namespaces/{name}")
