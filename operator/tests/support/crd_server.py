"""What a real API server says of PDDeployments: accepted and with which defaults, or refused and why. Nothing is stored (dry run)."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Any

from pdd_e2e.control_plane.api import KubeApi
from pdd_e2e.control_plane.errors import ApiError
from pdd_e2e.control_plane.local_control_plane import LocalControlPlane

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_PREFIX = re.compile(r'(Invalid value|Forbidden): ("([^"\\]|\\.)*": )?')
_PATIENCE_SECONDS = 30.0


@dataclass(frozen=True)
class Verdict:
    """`causes`: (field, text) for each; `stored` is the object with its defaults where there are none."""

    stored: dict[str, Any] | None
    causes: tuple[tuple[str, str], ...]

    @property
    def accepted(self) -> bool:
        return self.stored is not None

    def names(self, field: str, message: str) -> bool:
        """Whether a rule with exactly this message was broken at this field."""
        return (field, message) in self.causes


@dataclass(frozen=True)
class CrdServer:
    """PDDeployments in one namespace of an API server. `group` and `version` tell variants of the CRD apart."""

    api: KubeApi
    namespace: str
    group: str = "pdserve.io"
    version: str = "v1alpha1"

    @property
    def path(self) -> str:
        return f"/apis/{self.group}/{self.version}/namespaces/{self.namespace}/pddeployments"

    def judge(self, manifest: dict[str, Any]) -> Verdict:
        """What would come of creating it."""
        body = manifest | {"apiVersion": f"{self.group}/{self.version}"}
        try:
            return Verdict(self.api.create(self.path, body, dryRun="All", fieldValidation="Strict"), ())
        except ApiError as error:
            return refusal(error)

    def judge_change(self, before: dict[str, Any], after: dict[str, Any]) -> Verdict:
        """What would come of replacing one by the other."""
        body = {"apiVersion": f"{self.group}/{self.version}"}
        stored = self.api.create(self.path, before | body)
        name = stored["metadata"]["name"]
        change = after | body | {"metadata": {"name": name, "resourceVersion": stored["metadata"]["resourceVersion"]}}
        try:
            return Verdict(self.api.replace(f"{self.path}/{name}", change, dryRun="All", fieldValidation="Strict"), ())
        except ApiError as error:
            return refusal(error)
        finally:
            self.api.delete(f"{self.path}/{name}")


def refusal(error: ApiError) -> Verdict:
    """A refusal of the object; anything else is raised again."""
    if error.code not in (400, 422):
        raise error
    causes = error.body.get("details", {}).get("causes", [])
    if not causes:
        return Verdict(None, (("", error.message),))
    return Verdict(None, tuple((cause.get("field", ""), _text(cause["message"])) for cause in causes))


def _text(message: str) -> str:
    """Without the API server's own beginning, which repeats the value where that is a string."""
    return _PREFIX.sub("", message, count=1)


def install(api: KubeApi, definition: dict[str, Any]) -> None:
    """Creates the CRD and returns when every version of it is served."""
    api.create(CRDS, definition)
    await_served(api, definition)


def await_served(api: KubeApi, definition: dict[str, Any]) -> None:
    """A definition is served a moment after it is established; there is no event for it."""
    spec, deadline = definition["spec"], time.monotonic() + _PATIENCE_SECONDS
    for version in spec["versions"]:
        while True:
            try:
                api.get(f"/apis/{spec['group']}/{version['name']}/{spec['names']['plural']}")
                break
            except ApiError as error:
                if error.code not in (404, 429) or time.monotonic() > deadline:
                    raise
            time.sleep(0.02)


def await_published(plane: LocalControlPlane, definition: dict[str, Any]) -> None:
    """What kubectl looks names and texts up in follows later still, and kubectl keeps what it has read (api-resources reads anew)."""
    spec, deadline = definition["spec"], time.monotonic() + _PATIENCE_SECONDS
    key, name = f"apis/{spec['group']}/{spec['versions'][0]['name']}", definition["metadata"]["name"]
    listing = ("api-resources", "--api-group", spec["group"], "--output", "name")
    while key not in plane.api.get("/openapi/v3")["paths"] or name not in plane.kubectl(*listing).split():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{name} is not published")
        time.sleep(0.02)
