"""Something answers that is no API server: it is said so, and nothing of a missing chart."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from api_servers import answering, kubeconfig
from ran import Done

Pdd = Callable[..., Done]
COMMANDS = pytest.mark.parametrize("command", [("status", "one"), ("doctor",)], ids=lambda command: command[0])
ONE = "/apis/pdserve.io/v1alpha1/namespaces/agents/pddeployments/one"
STATUS = b'{"kind": "Status", "reason": "NotFound", "message": "not found", "code": 404}'


@COMMANDS
@pytest.mark.parametrize("code", [200, 404])
@pytest.mark.parametrize(
    "body", [b"[]", b"5", b"null", b"{}", b'"x"', b"", b"<html>", b"\xff", b"[" * 100_000, b'{"kind": "Pod"}'],
    ids=lambda body: repr(body[:15]),
)  # fmt: skip
def test_what_is_no_api_server(pdd: Pdd, tmp_path: Path, command: tuple[str, ...], code: int, body: bytes) -> None:
    with answering(body, code) as server:
        done = pdd(*command, "--kubeconfig", str(kubeconfig(tmp_path, server.url)))
    assert (done.code, done.out) == (1, "")
    assert f"{server.url} is no API server of Kubernetes" in done.err
    assert len(done.err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "found",
    [
        {"kind": "PDDeployment"},
        {"kind": "PDDeployment", "metadata": 5},
        {"kind": "PDDeployment", "metadata": {"name": "one"}},
        {"kind": "PDDeployment", "metadata": {"name": "one", "namespace": "agents"}, "status": []},
        {"kind": "PDDeployment", "metadata": {"name": "one", "namespace": "agents"}, "spec": "x"},
    ],
)
def test_an_object_that_is_none(pdd: Pdd, tmp_path: Path, found: dict[str, Any]) -> None:
    with answering(STATUS, 404, {ONE: found}) as server:
        done = pdd("status", "one", "--kubeconfig", str(kubeconfig(tmp_path, server.url)))
    assert done.code == 1
    assert "is no API server of Kubernetes" in done.err


@pytest.mark.parametrize("pods", [{"kind": "PodList", "items": 5}, {"kind": "PodList", "items": [{}]}, {"items": []}])
def test_lists_that_are_none(pdd: Pdd, tmp_path: Path, pods: dict[str, Any]) -> None:
    found = {"kind": "PDDeployment", "metadata": {"name": "one", "namespace": "agents"}}
    with answering(STATUS, 404, {ONE: found, "/api/v1/namespaces/agents/pods": pods}) as server:
        done = pdd("status", "one", "--kubeconfig", str(kubeconfig(tmp_path, server.url)))
    assert done.code == 1
    assert "is no API server of Kubernetes" in done.err


@pytest.mark.parametrize("body", [b"404 page not found\n", STATUS])
def test_what_an_api_server_says_of_what_is_not_there(pdd: Pdd, tmp_path: Path, body: bytes) -> None:
    with answering(body, 404) as server:
        done = pdd("status", "one", "--kubeconfig", str(kubeconfig(tmp_path, server.url)))
    assert done.code == 4
    assert "the chart is not installed" in done.err


@pytest.mark.parametrize(
    "deployments", [{"kind": "DeploymentList", "items": [{"metadata": {"name": "x"}}]}, [], 5, "x"]
)
def test_what_the_doctor_cannot_read_is_told(pdd: Pdd, tmp_path: Path, deployments: Any) -> None:
    paths = {
        "/version": {"gitVersion": "v1.36.0"},
        "/apis": {"kind": "APIGroupList", "groups": None},
        "/apis/apps/v1/deployments": deployments,
    }
    with answering(STATUS, 404, paths) as server:
        done = pdd("doctor", "-o", "json", "--kubeconfig", str(kubeconfig(tmp_path, server.url)))
    assert "operator" in done.out
    assert "could not be read: /apis/apps/v1/deployments: " in done.out
    assert "Traceback" not in done.err


def test_a_namespace_that_is_not_there_yet(pdd: Pdd, tmp_path: Path) -> None:
    """The API server says of it what it says of one that has just gone."""
    gone = b'{"kind": "Status", "reason": "NotFound", "code": 404, "details": {"name": "agents", "kind": "namespaces"}}'
    paths = {"/version": {"gitVersion": "v1.36.0"}, "/apis": {"kind": "APIGroupList", "groups": []}}
    with answering(gone, 404, paths) as server:
        done = pdd("doctor", "--kubeconfig", str(kubeconfig(tmp_path, server.url)))
    assert "namespace agents: not there yet" in done.out
