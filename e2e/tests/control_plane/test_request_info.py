"""Paths are read as the API server reads them."""

import pytest

from pdd_e2e.control_plane.request_info import RequestInfo, request_info

TABLE = {
    "GET /api/v1/pods": ("list", "", "pods", "", ""),
    "GET /api/v1/namespaces/a/pods": ("list", "", "pods", "a", ""),
    "GET /api/v1/namespaces/a/pods?watch=true": ("watch", "", "pods", "a", ""),
    "GET /api/v1/namespaces/a/pods/b": ("get", "", "pods", "a", "b"),
    "PATCH /api/v1/namespaces/a/pods/b/status": ("patch", "", "pods/status", "a", "b"),
    "POST /api/v1/namespaces/a/serviceaccounts/b/token": ("create", "", "serviceaccounts/token", "a", "b"),
    "GET /api/v1/namespaces": ("list", "", "namespaces", "", ""),
    "POST /api/v1/namespaces": ("create", "", "namespaces", "", ""),
    "DELETE /api/v1/namespaces/a": ("delete", "", "namespaces", "", "a"),
    "PUT /api/v1/namespaces/a/finalize": ("update", "", "namespaces/finalize", "", "a"),
    "DELETE /api/v1/namespaces/a/configmaps": ("deletecollection", "", "configmaps", "a", ""),
    "PATCH /apis/pdserve.io/v1alpha1/namespaces/a/pddeployments/b/status": (
        "patch", "pdserve.io", "pddeployments/status", "a", "b",
    ),
    "GET /apis/apps/v1": ("get", "", "/apis/apps/v1", "", ""),
    "GET /api": ("get", "", "/api", "", ""),
    "GET /readyz": ("get", "", "/readyz", "", ""),
}  # fmt: skip


@pytest.mark.parametrize("line", TABLE)
def test_a_request_line_is_read(line: str) -> None:
    method, target = line.split()
    path, _, query = target.partition("?")
    parsed = request_info(method, path, dict(part.split("=") for part in query.split("&") if part))
    assert parsed == RequestInfo(*TABLE[line])


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_writes_are_mutating_and_reads_are_not(method: str) -> None:
    assert request_info(method, "/api/v1/namespaces/a/pods/b", {}).mutating
    assert not request_info("GET", "/api/v1/namespaces/a/pods/b", {}).mutating
