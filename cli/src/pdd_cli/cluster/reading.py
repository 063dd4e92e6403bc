"""Reads JSON objects by their path. A thin shell around the official client: retries nothing, remembers nothing, writes nothing.

The one POST is SelfSubjectAccessReview, by which a user asks what he may do; nothing is stored by it.
"""

from __future__ import annotations

import json
from typing import Any

from kubernetes import client
from kubernetes.client.exceptions import ApiException
from kubernetes.dynamic import DynamicClient

from pdd_cli.cluster import answers
from pdd_cli.cluster.answers import StrangeAnswerError
from pdd_cli.errors import ClusterReadError
from pdd_operator.api.objects import Manifest
from pdd_operator.errors import ClusterError, ForbiddenError, NamespaceEndingError, NotFoundError
from pdd_operator.kube.errors import CLIENT_ERRORS, cluster_error

_CONNECT_SECONDS = 5.0


class _NoDiscovery:
    """Paths are given: the client's discovery would cost a hundred requests and keep a file."""

    def __init__(self, dynamic: DynamicClient, cache_file: str | None) -> None:
        """Nothing to look up."""


class ClusterReader:
    """Each call takes at most ``timeout_seconds``. Raises ClusterError of pdd_operator.errors."""

    def __init__(self, api: client.ApiClient, timeout_seconds: float) -> None:
        self._dynamic = DynamicClient(api, discoverer=_NoDiscovery)
        self._timeout = (min(_CONNECT_SECONDS, timeout_seconds), timeout_seconds)

    def get(self, path: str, kind: str) -> Manifest | None:
        """None: there is no such object, or no such kind."""
        answer = self._found(path)
        return None if answer is None else answers.object_of(answer, kind, path)

    def items(self, path: str, kind: str, label_selector: str | None = None) -> tuple[Manifest, ...]:
        """Objects of a list; empty too where there is no such kind."""
        answer = self._found(path, label_selector)
        return () if answer is None else answers.items_of(answer, kind, path)

    def names(self, path: str, kind: str, key: str) -> frozenset[str]:
        """Of groups or kinds, from what the API server says of itself; none where there is no such group."""
        answer = self._found(path)
        return frozenset() if answer is None else answers.names_of(answer, kind, key, path)

    def version(self) -> str:
        """As the API server says it, v1.37.2."""
        return answers.version_of(self._found("/version"))

    def review(self, body: Manifest) -> bool:
        """Answer to a SelfSubjectAccessReview: whether the user may."""
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        return answers.is_allowed(self._request("post", path, body=body), path)

    def _found(self, path: str, label_selector: str | None = None) -> object | None:
        try:
            return self._request("get", path, label_selector=label_selector)
        except (
            NotFoundError,
            NamespaceEndingError,
        ):  # of a namespace that is not there it says what it says of one that has gone
            return None

    def _request(self, method: str, path: str, **parameters: Any) -> object:
        what = f"{method} {path}"
        try:
            answer = self._dynamic.request(method, path, serialize=False, _request_timeout=self._timeout, **parameters)
        except CLIENT_ERRORS as error:
            if isinstance(error, ApiException) and error.status == 404 and not answers.is_kubernetes_404(error.body):
                raise StrangeAnswerError(f"{what}: the answer is a 404 that Kubernetes does not give", 404) from error
            raise cluster_error(error, what) from error
        try:
            body: object = json.loads(answer.data)
        except (ValueError, RecursionError) as error:
            raise StrangeAnswerError(f"{what}: the answer is no JSON that can be read") from error
        if body is None:
            raise StrangeAnswerError(f"{what}: the answer is null")
        return body


def unreadable(error: ClusterError, server: str) -> ClusterReadError:
    """For a person: what could not be read, and what to do."""
    if isinstance(error, StrangeAnswerError):
        text = (
            f"{server} is no API server of Kubernetes: {error}. Check the server of the context, proxies and --context."
        )
        return ClusterReadError(text)
    if error.status == 401:
        return ClusterReadError(f"{server} does not know you: {error}. Log in again, or choose another --context.")
    if isinstance(error, ForbiddenError):
        return ClusterReadError(f"{server} does not let you: {error}. Ask for the role `view` in the namespace.")
    if error.status == 0:
        text = (
            f"{server} does not answer: {error}. Check --context, network and VPN; `kubectl version` must answer too."
        )
        return ClusterReadError(text)
    return ClusterReadError(f"{server}: {error}")
