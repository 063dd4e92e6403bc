"""PDDeployments on a real API server as a user makes and sees them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from release import get_or_none, wait_until

from pdd_e2e.control_plane.api import KubeApi
from pdd_operator.kube.kinds import CHILD_KINDS, Kind

PATIENCE = 60.0
_ROOT = Path(__file__).parents[2]


def kind_path(kind: Kind, namespace: str) -> str:
    prefix = f"/apis/{kind.api_version}" if kind.group else f"/api/{kind.version}"
    return f"{prefix}/namespaces/{namespace}/{kind.plural}"


class World:
    """One PDDeployment after another in the release's namespace, as a user would make them."""

    def __init__(self, api: KubeApi, namespace: str) -> None:
        self.api = api
        self.namespace = namespace
        self.path = f"/apis/pdserve.io/v1alpha1/namespaces/{namespace}/pddeployments"

    def create(self, name: str, **spec: Any) -> None:
        sample = yaml.safe_load((_ROOT / "docs" / "samples" / "cpu-sockets.yaml").read_text(encoding="utf-8"))
        sample["metadata"]["name"] = name
        sample["spec"] |= spec
        self.api.create(self.path, sample)

    def change(self, name: str, **spec: Any) -> None:
        self.api.patch(f"{self.path}/{name}", {"spec": spec})

    def touch(self, name: str, value: str) -> None:
        """Has the operator look again, at once."""
        self.api.patch(f"{self.path}/{name}", {"metadata": {"annotations": {"example.com/touched": value}}})

    def get(self, name: str) -> dict[str, Any]:
        """The object as stored."""
        return self.api.get(f"{self.path}/{name}")

    def is_available(self, name: str) -> bool:
        """Whether its engines and routers are ready. (Not Ready: the fake kubelet's pods do not say what transport they found.)"""
        conditions = self.get(name).get("status", {}).get("conditions", ())
        true = {one["type"] for one in conditions if one["status"] == "True"}
        return {"PrefillAvailable", "DecodeAvailable", "RouterAvailable", "Reconciled"} <= true

    def condition(self, name: str) -> tuple[str, str, str]:
        """Status, reason and message of Reconciled, when it speaks of the newest spec."""
        item = self.get(name)
        for condition in item.get("status", {}).get("conditions", ()):
            if condition["type"] == "Reconciled" and condition["observedGeneration"] == item["metadata"]["generation"]:
                return condition["status"], condition["reason"], condition["message"]
        return "", "", ""

    def says(self, name: str, reason: str, words: str) -> bool:
        """Whether Reconciled is False for ``reason``, with ``words`` in its message."""
        status, given, message = self.condition(name)
        return (status, given) == ("False", reason) and words in message

    def is_done(self, name: str) -> bool:
        return self.condition(name)[0] == "True"

    def children(self, kind: Kind, name: str) -> list[dict[str, Any]]:
        """None of a kind that this API server does not have."""
        path = f"{kind_path(kind, self.namespace)}?labelSelector=pdserve.io/deployment%3D{name}"
        return list((get_or_none(self.api, path) or {"items": []})["items"])

    def remove(self, name: str) -> None:
        """Returns when garbage collection took everything."""
        self.api.delete(f"{self.path}/{name}")
        wait_until(
            lambda: not any(self.children(kind, name) for kind in CHILD_KINDS), f"children of {name} to go", PATIENCE
        )
