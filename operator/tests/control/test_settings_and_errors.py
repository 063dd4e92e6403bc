"""What the environment may say, and what the Kubernetes client's exceptions become."""

from __future__ import annotations

import json
from typing import Any

import pytest
import urllib3
from kubernetes.client.exceptions import ApiException

from pdd_operator.errors import (
    AlreadyExistsError,
    ClusterError,
    ConflictError,
    ForbiddenError,
    NamespaceEndingError,
    NotFoundError,
    QuotaExceededError,
    RefusedError,
    SettingsError,
    TooManyRequestsError,
    TransientError,
)
from pdd_operator.kube.errors import cluster_error, without_userinfo
from pdd_operator.render.inputs import Platform
from pdd_operator.settings import Settings

NEEDED = {
    "PDD_OPERATOR_NAMESPACE": "pdd-system",
    "PDD_OPERATOR_IMAGE_ROUTER": "router:1",
    "PDD_OPERATOR_IMAGE_CONNECTOR": "connector:1",
}


def test_everything_that_is_not_needed_has_a_default() -> None:
    settings = Settings.from_environment(NEEDED | {"PATH": "/bin"})
    assert settings.watch_namespaces == ()
    assert settings.leader_election
    assert settings.identity == "pdd-system/pdd-operator"
    assert settings.render.images.engine == {}
    assert not settings.render.allow_privileged


def test_lists_labels_and_empty_images() -> None:
    settings = Settings.from_environment(
        NEEDED
        | {
            "PDD_OPERATOR_WATCH_NAMESPACES": "a, b,",
            "PDD_OPERATOR_POD_LABELS": "app=x,app.kubernetes.io/name=y",
            "PDD_OPERATOR_IMAGE_ENGINE_NEURON": "",
            "PDD_OPERATOR_IMAGE_ENGINE_CPU": "cpu:1",
            "PDD_OPERATOR_ALLOW_PRIVILEGED": "true",
        }
    )
    assert settings.render.allow_privileged
    assert settings.watch_namespaces == ("a", "b")
    assert settings.render.operator_labels == {"app": "x", "app.kubernetes.io/name": "y"}
    assert settings.render.images.engine == {Platform.CPU: "cpu:1"}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"PDD_OPERATOR_NAMESPACE": ""}, "PDD_OPERATOR_NAMESPACE"),
        ({"PDD_OPERATOR_WORKERS": "many"}, "PDD_OPERATOR_WORKERS"),
        ({"PDD_OPERATOR_WORKERZ": "4"}, "PDD_OPERATOR_WORKERZ"),
        ({"PDD_OPERATOR_POD_LABELS": "app"}, "PDD_OPERATOR_POD_LABELS"),
        ({"PDD_OPERATOR_LEASE_RENEW_SECONDS": "10"}, "a third"),
    ],
)
def test_what_is_not_possible_is_refused_by_name(change: dict[str, str], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        Settings.from_environment(NEEDED | change)


def answer(status: int, reason: str = "", message: str = "said", **headers: str) -> ApiException:
    error = ApiException(status=status, reason="")
    error.body = json.dumps({"kind": "Status", "reason": reason, "message": message})
    error.headers = {name.replace("_", "-"): value for name, value in headers.items()}
    return error


def ending_namespace() -> ApiException:
    error = answer(403, "Forbidden", "unable to create new content in namespace a because it is being terminated")
    causes = [{"reason": "NamespaceTerminating", "message": "namespace a is being terminated"}]
    error.body = json.dumps(json.loads(error.body) | {"details": {"causes": causes}})
    return error


def missing(kind: str) -> ApiException:
    error = answer(404, "NotFound", f'{kind} "a" not found')
    error.body = json.dumps(json.loads(error.body) | {"details": {"name": "a", "kind": kind}})
    return error


CASES: list[tuple[Exception, type[ClusterError]]] = [
    (answer(404, "NotFound"), NotFoundError),
    (answer(410, "Gone"), NotFoundError),
    (answer(409, "AlreadyExists"), AlreadyExistsError),
    (answer(409, "Conflict"), ConflictError),
    (answer(401), ForbiddenError),
    (answer(403, "Forbidden"), ForbiddenError),
    (answer(403, "Forbidden", 'pods "x" is forbidden: exceeded quota: q'), QuotaExceededError),
    (ending_namespace(), NamespaceEndingError),
    (missing("namespaces"), NamespaceEndingError),
    (missing("secrets"), NotFoundError),
    (answer(422, "Invalid"), RefusedError),
    (answer(400, "BadRequest"), RefusedError),
    (answer(429), TooManyRequestsError),
    (answer(500), TransientError),
    (
        answer(500, "", "failed to create typed patch object (a/b; apps/v1, Kind=StatefulSet): .x: not known"),
        RefusedError,
    ),
    (
        answer(500, "", "failed to convert new object (a/b; apps/v1, Kind=StatefulSet) to proper version: no"),
        RefusedError,
    ),
    (answer(500, "InternalError", "Internal error occurred: failed calling webhook"), TransientError),
    (answer(503, "", "failed to create typed patch object"), TransientError),
    (answer(504), TransientError),
    (ApiException(status=0, reason="SSLError"), TransientError),
    (urllib3.exceptions.ReadTimeoutError(None, "", "slow"), TransientError),  # type: ignore[arg-type]  # no pool here
    (ConnectionResetError("reset"), TransientError),
    (ValueError("no JSON"), TransientError),
]


@pytest.mark.parametrize(("error", "expected"), CASES, ids=lambda case: getattr(case, "__name__", None))
def test_each_answer_has_its_error(error: Exception, expected: type[ClusterError]) -> None:
    found = cluster_error(error, "apply Service a")
    assert type(found) is expected
    assert str(found).startswith("apply Service a: ")


@pytest.mark.parametrize(
    ("header", "seconds"), [("7", 7.0), ("0", 0.0), ("Wed, 21 Oct 2026 07:28:00 GMT", None), ("-1", None)]
)
@pytest.mark.parametrize("status", [429, 503])
def test_the_time_to_wait_is_kept(header: str, seconds: float | None, status: int) -> None:
    found: Any = cluster_error(answer(status, Retry_After=header), "list pods")
    assert found.retry_after_seconds == seconds


def test_no_credentials_are_told() -> None:
    refused = ValueError("Invalid header value b'Bearer secret\\n'")
    found = str(cluster_error(refused, "get /version"))
    assert "secret" not in found
    assert "ValueError" in found
    assert "secret" not in str(cluster_error(OSError("no way to https://me:secret@host:6443/version"), "get /version"))


def test_an_answer_that_is_no_json_is_told_with_its_place() -> None:
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads("<html>")
    assert str(cluster_error(caught.value, "get /version")).endswith(
        "JSONDecodeError: Expecting value: line 1 column 1 (char 0)"
    )


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://me:p@ss@host:6443/a", "https://host:6443/a"),
        ("https://token@host", "https://host"),
        ("https://host/a@b", "https://host/a@b"),
    ],
)
def test_userinfo_of_a_url(url: str, shown: str) -> None:
    assert without_userinfo(f"({url})") == f"({shown})"
