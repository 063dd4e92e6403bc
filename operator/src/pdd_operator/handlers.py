"""What kopf is told to watch. Each handler does one thing: it puts the PDDeployment that an object belongs to into the queue.

Level-based: the kind of event does not matter, there are no finalizers and kopf writes nothing, neither annotations nor events. kopf's list
at the beginning of each watch is the resumption after a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import kopf

from pdd_operator.api import labels
from pdd_operator.api.names import NamespacedName
from pdd_operator.kube import kinds
from pdd_operator.kube.kinds import Kind

Told = Callable[[NamespacedName, str, str, bool], None]
"""Of which PDDeployment an object told, its uid, its version, and whether it is gone."""


def make_registry(told: Told, watched: Iterable[Kind]) -> kopf.OperatorRegistry:
    """``watched``: child kinds that the API server serves. ``told`` is called in kopf's event loop."""
    registry = kopf.OperatorRegistry()

    async def on_deployment(namespace: str | None, name: str | None, event: kopf.RawEvent, **_: Any) -> None:
        _tell(told, NamespacedName(namespace or "", name or ""), event)

    async def on_child(namespace: str | None, event: kopf.RawEvent, **_: Any) -> None:
        owner = owner_of(event["object"])
        if owner is not None:
            _tell(told, NamespacedName(namespace or "", owner), event)

    deployment = kinds.DEPLOYMENT
    kopf.on.event(deployment.group, deployment.version, deployment.plural, registry=registry)(on_deployment)
    for kind in (*watched, kinds.POD):
        kopf.on.event(kind.group, kind.version, kind.plural, registry=registry)(on_child)
    kopf.on.login(registry=registry)(log_in)
    return registry


def make_settings(watched: Iterable[Kind], request_timeout_seconds: float) -> kopf.OperatorSettings:
    """The server filters children by label, so that a large cluster's other objects are never sent."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.networking.request_timeout = request_timeout_seconds
    settings.queueing.idle_timeout = 1.0
    settings.process.ultimate_exiting_timeout = None  # it would kill the whole process
    settings.watching.server_timeout = 240  # whole seconds: the API server parses an integer
    for kind in (*watched, kinds.POD):
        settings.watching.label_selectors[kind.group, kind.version, kind.plural] = labels.DEPLOYMENT
    return settings


def log_in(**kwargs: Any) -> kopf.ConnectionInfo | None:
    """The pod's ServiceAccount or, outside a cluster, what KUBECONFIG says: the same as ``kube.cluster.connect``."""
    return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)


def owner_of(body: Any) -> str | None:
    """Name of the PDDeployment: by the controlling owner, as labels may have been taken away; pods have only the label."""
    metadata = body.get("metadata") or {}
    for owner in metadata.get("ownerReferences") or ():
        if (
            owner.get("controller")
            and owner.get("kind") == labels.KIND
            and owner.get("apiVersion") == labels.API_VERSION
        ):
            return str(owner["name"])
    name = (metadata.get("labels") or {}).get(labels.DEPLOYMENT)
    return None if name is None else str(name)


def _tell(told: Told, key: NamespacedName, event: kopf.RawEvent) -> None:
    metadata = event["object"].get("metadata") or {}
    told(key, str(metadata.get("uid", "")), str(metadata.get("resourceVersion", "")), event["type"] == "DELETED")
