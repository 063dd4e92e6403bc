"""Reads JSON objects by their path. A thin shell around the official client: retries nothing, remembers nothing, writes nothing.

The one POST is SelfSubjectAccessReview, by which a user asks what he may do; nothing is stored by it.
"""

from __future__ import annotations

import json
from typing import Any

from kubernetes import client
from kubernetes.dynamic import DynamicClient

from pdd_cli.errors import ClusterReadError
from pdd_operator.api.objects import Manifest
from pdd_operator.errors import ClusterError, ForbiddenError, NotFoundError
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

    def get(self, path: str, label_selector: str | None = None) -> Manifest | None:
        """None: there is no such object, or no such kind."""
        try:
            return self._request("get", path, label_selector=label_selector)
        except NotFoundError:
            return None

    def items(self, path: str, label_selector: str | None = None) -> tuple[Manifest, ...]:
        """Objects of a list; empty too where there is no such kind."""
        return tuple((self.get(path, label_selector) or {}).get("items") or ())

    def review(self, body: Manifest) -> Manifest:
        """Answer to a SelfSubjectAccessReview."""
        return self._request("post", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body=body)

    def _request(self, method: str, path: str, **parameters: Any) -> Manifest:
        try:
            answer = self._dynamic.request(method, path, serialize=False, _request_timeout=self._timeout, **parameters)
            body: Manifest = json.loads(answer.data)
        except CLIENT_ERRORS as error:
            raise cluster_error(error, f"{method} {path}") from error
        return body


def unreadable(error: ClusterError, server: str) -> ClusterReadError:
    """For a person: what could not be read, and what to do."""
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
