"""The Kubernetes API as discovery needs it: list and watch the pods of one deployment, nothing else. Blocking I/O.

Every failure is an ApiError with a reason; nothing is retried here. The only module that knows the ``kubernetes``
package, and imported only where discovery is on.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from typing import cast

import urllib3
import yaml
from kubernetes import client
from kubernetes.config import ConfigException, load_incluster_config, load_kube_config

from pdd_router.config import ConfigError, KubernetesDiscovery
from pdd_router.pods.reading import DEPLOYMENT_LABEL, ROLE_LABEL
from pdd_router.pods.watching import ApiError, Event, Pace, PodList, Trouble, trouble_of_status

_MAX_LIST_BYTES = 256 << 20
_MAX_EVENT_BYTES = 8 << 20  # etcd takes objects of 1.5 MiB
_MAX_RETRY_AFTER_SECONDS = 3600.0


def read_access() -> client.Configuration:
    """Where the API server is and who we are: the file in KUBECONFIG where that is set, else what a pod is given.

    Raises ConfigError.
    """
    access = client.Configuration()
    try:
        if kubeconfig := os.environ.get("KUBECONFIG"):
            load_kube_config(config_file=kubeconfig, client_configuration=access, persist_config=False)
        else:
            load_incluster_config(client_configuration=access)
    except (ConfigException, OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(
            f"discovery.kubernetes: neither KUBECONFIG nor a pod's service account gives access ({type(error).__name__})"
        ) from None
    access.retries = False  # the watch decides when to try again, and honours Retry-After
    return access


class KubernetesPods:
    """``interrupt`` may be called from another thread; after it every call fails at once."""

    def __init__(self, access: client.Configuration, wanted: KubernetesDiscovery, pace: Pace) -> None:
        self._api = client.ApiClient(access)
        self._namespace = wanted.namespace
        # Routers are pods of the deployment as well, and not worth an event.
        self._selector = f"{DEPLOYMENT_LABEL}={wanted.deployment},{ROLE_LABEL}!=router"
        self._pace = pace
        self._lock = threading.Lock()
        self._interrupted = False
        self._response: urllib3.BaseHTTPResponse | None = None

    def list(self) -> PodList:
        with _translated():
            response = self._request(self._pace.list_seconds)
            try:
                raw = response.read(_MAX_LIST_BYTES + 1)
            finally:
                self._close()
        if len(raw) > _MAX_LIST_BYTES:
            raise ApiError(Trouble.MALFORMED)
        value = _parse(raw)
        items, metadata = value.get("items"), value.get("metadata")
        version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
        if not isinstance(version, str) or not version or not isinstance(items, list | None):
            raise ApiError(Trouble.MALFORMED)
        return PodList(version, items or [])

    def watch(self, version: str, seconds: int) -> Generator[Event]:
        """Returns when the API server has begun to answer; ends when it ends the watch, after ``seconds`` at the latest."""
        with _translated():
            response = self._request(seconds + self._pace.grace_seconds, version=version, seconds=seconds)
        return self._events(response)

    def interrupt(self) -> None:
        with self._lock:
            self._interrupted = True
            if self._response is not None:
                # The answer may have ended this very moment, and then there is nothing left to wake.
                with suppress(RuntimeError, ValueError, OSError):
                    self._response.shutdown()

    def close(self) -> None:
        self._api.close()

    def _events(self, response: urllib3.BaseHTTPResponse) -> Generator[Event]:
        pending = b""
        try:
            with _translated():
                for chunk in response.stream(1 << 16):
                    *lines, pending = (pending + chunk).split(b"\n")
                    for line in lines:
                        if line.strip():
                            yield _parse_event(line)
                    if len(pending) > _MAX_EVENT_BYTES:
                        raise ApiError(Trouble.MALFORMED)
        finally:
            self._close()
        if pending.strip():
            raise ApiError(Trouble.CUT)

    def _request(
        self, read_seconds: float, *, version: str | None = None, seconds: int | None = None
    ) -> urllib3.BaseHTTPResponse:
        query = [("labelSelector", self._selector)]
        if version is not None:
            query += [("watch", "true"), ("allowWatchBookmarks", "true"), ("resourceVersion", version)]
            query += [("timeoutSeconds", str(seconds))]
        # Not by CoreV1Api: its models would cost a second and 100 MB, and pods are read as plain data here.
        request = self._api.param_serialize(
            "GET",
            "/api/v1/namespaces/{namespace}/pods",
            path_params={"namespace": self._namespace},
            query_params=query,
            header_params={"Accept": "application/json"},
            auth_settings=["BearerToken"],
        )
        answer = self._api.call_api(*request, _request_timeout=(self._pace.connect_seconds, read_seconds))
        response = cast(urllib3.BaseHTTPResponse, answer.response)
        if response.status != 200:
            response.close()
            raise ApiError(trouble_of_status(response.status), _retry_after(response.headers.get("Retry-After", "")))
        with self._lock:
            if self._interrupted:
                response.close()
                raise ApiError(Trouble.CUT)
            self._response = response
        return response

    def _close(self) -> None:
        with self._lock:
            response, self._response = self._response, None
        if response is not None:
            response.close()


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except client.ApiException:
        raise ApiError(Trouble.CONNECT) from None  # TLS failed
    except (urllib3.exceptions.ReadTimeoutError, TimeoutError):
        raise ApiError(Trouble.TIMEOUT) from None
    except (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ConnectTimeoutError):
        raise ApiError(Trouble.CONNECT) from None
    except ConfigException:
        raise ApiError(Trouble.REFUSED) from None  # the token could not be read again
    except (urllib3.exceptions.HTTPError, OSError):
        raise ApiError(Trouble.CUT) from None


def _retry_after(value: str) -> float | None:
    return min(float(value), _MAX_RETRY_AFTER_SECONDS) if value.isascii() and value.isdigit() else None


def _parse(raw: bytes) -> dict[str, object]:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        raise ApiError(Trouble.MALFORMED) from None
    if not isinstance(value, dict):
        raise ApiError(Trouble.MALFORMED)
    return value


def _parse_event(line: bytes) -> Event:
    value = _parse(line)
    kind = value.get("type")
    if not isinstance(kind, str):
        raise ApiError(Trouble.MALFORMED)
    return Event(kind, value.get("object"))
