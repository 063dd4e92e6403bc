"""A typed, thin view of an API server: JSON objects by path, through the official client's connections and credentials.

Objects stay plain dictionaries, so that tests compare what the server really stores. Nothing is retried and nothing is cached: a test sees
every single failure.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import urlencode

import urllib3
from kubernetes import client, config

from pdd_e2e.control_plane.errors import ApiError, ApiUnreachableError

Json = dict[str, Any]
PatchKind = Literal["merge", "strategic", "json", "apply"]

_PATCH_TYPES: Mapping[PatchKind, str] = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
    "apply": "application/apply-patch+yaml",
}
_CONNECT_SECONDS = 5.0


class Watch:
    """One watch request. `close` may be called from any thread and ends the iteration."""

    def __init__(self, response: urllib3.BaseHTTPResponse) -> None:
        self._response = response
        self._closed = False

    def __iter__(self) -> Iterator[Json]:
        """Events as sent (`type`, `object`) until the server ends the watch; a connection that breaks ends it too."""
        rest = b""
        try:
            for chunk in self._response.stream(None):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    yield json.loads(line)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            if not self._closed:
                raise ApiUnreachableError(f"the watch broke: {error}") from error
        finally:
            self._response.close()

    def close(self) -> None:
        """Unblocks whoever iterates."""
        self._closed = True
        with contextlib.suppress(ValueError, RuntimeError, OSError):  # it ended by itself meanwhile
            self._response.shutdown()


class KubeApi:
    """Requests with the credentials of one kubeconfig. Safe to use from several threads."""

    def __init__(self, kubeconfig: Path, *, user_agent: str = "pdd-e2e", timeout_seconds: float = 30.0) -> None:
        settings = client.Configuration()
        config.load_kube_config(config_file=str(kubeconfig), client_configuration=settings, persist_config=False)
        settings.retries = False
        settings.proxy = None
        settings.connection_pool_maxsize = 16
        self._host: str = settings.host
        self._client = client.ApiClient(settings)
        self._headers = {"Accept": "application/json", "User-Agent": user_agent}
        token: str | None = settings.get_api_key_with_prefix("BearerToken", alias="authorization")
        if token:
            self._headers["Authorization"] = token
        self._timeout_seconds = timeout_seconds

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the idle connections."""
        self._client.close()

    def get(self, path: str, **query: str) -> Json:
        """One object, or a list with `items`. Raises ApiError or ApiUnreachableError, as all of these do."""
        return self._json("GET", path, query=query)

    def items(self, path: str, **query: str) -> list[Json]:
        """The objects of a list."""
        return list(self.get(path, **query)["items"])

    def create(self, path: str, body: Json, **query: str) -> Json:
        """POST: the object as stored."""
        return self._json("POST", path, body=body, query=query)

    def replace(self, path: str, body: Json, **query: str) -> Json:
        """PUT: the object as stored."""
        return self._json("PUT", path, body=body, query=query)

    def patch(self, path: str, body: Any, kind: PatchKind = "merge", **query: str) -> Json:
        """PATCH: the object as stored. `apply` needs `fieldManager` (and, to take fields over, `force="true"`)."""
        return self._json("PATCH", path, body=body, query=query, content_type=_PATCH_TYPES[kind])

    def delete(self, path: str, options: Json | None = None) -> Json:
        """DELETE with `DeleteOptions`: the object or a `Status`."""
        return self._json("DELETE", path, body=options or {})

    def watch(self, path: str, resource_version: str, **query: str) -> Watch:
        """Changes after `resource_version`."""
        parameters = {"watch": "true", "resourceVersion": resource_version, "allowWatchBookmarks": "true", **query}
        response = self._send("GET", path, None, parameters, "application/json", None)
        if response.status >= 400:
            raise _api_error(response.status, response.data)
        return Watch(response)

    def _json(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Json:
        response = self._send(method, path, body, query or {}, content_type, self._timeout_seconds)
        try:
            data = response.data
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiUnreachableError(f"{method} {path}: {error}") from error
        if response.status >= 400:
            raise _api_error(response.status, data)
        answer: Json = json.loads(data)
        return answer

    def _send(
        self,
        method: str,
        path: str,
        body: Any,
        query: Mapping[str, str],
        content_type: str,
        read_seconds: float | None,
    ) -> urllib3.BaseHTTPResponse:
        url = self._host + path + ("?" + urlencode(query) if query else "")
        headers = dict(self._headers)
        if body is not None:
            headers["Content-Type"] = content_type
        try:
            answer = self._client.call_api(
                method, url, headers, body=body, _request_timeout=(_CONNECT_SECONDS, read_seconds)
            )
        except (client.ApiException, urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiUnreachableError(f"{method} {path}: {error}") from error
        response: urllib3.BaseHTTPResponse = answer.response
        return response


def _api_error(code: int, data: bytes) -> ApiError:
    try:
        body: Json = json.loads(data)
    except ValueError:
        return ApiError(code, "", data.decode("utf-8", "replace"), {})
    return ApiError(code, str(body.get("reason", "")), str(body.get("message", "")), body)
