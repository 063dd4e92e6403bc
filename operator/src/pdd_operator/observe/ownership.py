"""Whose an object is, and which role and revision group it has. Pure.

Labels are anybody's to copy and to take away, so they say neither. An object is a PDDeployment's if that is its controlling owner, by uid,
and role and group are in its name, which nobody can change. Pods count while their StatefulSet was one of those, even when it is gone:
they hold hardware and serve until they are.
"""

from __future__ import annotations

import re
from typing import Final

from pdd_operator.api.labels import OPERATOR, OWNER_UID, ROLE, Component
from pdd_operator.api.names import ObjectRef, component_name, engine_config_group, engine_set_name, engine_set_parts
from pdd_operator.api.objects import Manifest
from pdd_operator.observe.observed import Observed

_ORDINAL: Final = re.compile(r"(.+)-(\d+)")


def is_owned(child: Manifest, uid: str) -> bool:
    """Whether the PDDeployment ``uid`` is its controlling owner."""
    return _controller(child).get("uid") == uid


def is_lost(child: Manifest, uid: str) -> bool:
    """Whether it has no controlling owner any more and says by its label that it was that of ``uid``."""
    return not _controller(child) and _label(child, OWNER_UID) == uid


def operator_of(deployment: Manifest) -> str:
    """Who cares for a PDDeployment: as its annotation says, or else its status. Empty: nobody yet."""
    named = (deployment["metadata"].get("annotations") or {}).get(OPERATOR)
    return str(named or (deployment.get("status") or {}).get("operator") or "")


def group_of(ref: ObjectRef, deployment: str) -> str | None:
    """The revision group that an object belongs to by its name, None for what belongs to no group."""
    if ref.kind in ("StatefulSet", "PodDisruptionBudget"):
        parts = engine_set_parts(deployment, ref.name)
        return None if parts is None else parts[1]
    return engine_config_group(deployment, ref.name) if ref.kind == "ConfigMap" else None


def owned_children(observed: Observed) -> dict[ObjectRef, Manifest]:
    uid = str(observed.deployment["metadata"]["uid"])
    return {ref: child for ref, child in observed.children.items() if is_owned(child, uid)}


def disowned_sets(observed: Observed) -> dict[ObjectRef, Manifest]:
    """StatefulSets that the operator made, of groups that it remembers, and that have no controlling owner any more."""
    meta = observed.deployment["metadata"]
    status = observed.deployment.get("status") or {}
    known = {str(group.get("revision")) for group in status.get("groups") or ()}
    return {
        ref: child
        for ref, child in observed.children.items()
        if ref.kind == "StatefulSet" and group_of(ref, meta["name"]) in known and is_lost(child, meta["uid"])
    }


def engine_place(observed: Observed, pod: Manifest) -> tuple[Component, str, int] | None:
    """Role, revision group and number of an engine pod of this PDDeployment; None for every other pod."""
    meta = observed.deployment["metadata"]
    found = _ORDINAL.fullmatch(str(pod["metadata"]["name"]))
    parts = None if found is None else engine_set_parts(meta["name"], found[1])
    if found is None or parts is None:
        return None
    controller = _controller(pod)
    ref = ObjectRef("apps/v1", "StatefulSet", engine_set_name(meta["name"], *parts))
    live = observed.children.get(ref)
    if controller and (controller.get("kind"), controller.get("name")) != (ref.kind, ref.name):
        return None
    if live is not None and is_owned(live, meta["uid"]) and controller.get("uid") == live["metadata"].get("uid"):
        return (*parts, int(found[2]))  # whatever its labels say
    theirs = live is not None and not is_owned(live, meta["uid"]) and ref not in disowned_sets(observed)
    return None if theirs or _label(pod, OWNER_UID) != meta["uid"] else (*parts, int(found[2]))


def is_router_pod(observed: Observed, pod: Manifest) -> bool:
    """Made by a ReplicaSet of this PDDeployment's router."""
    meta = observed.deployment["metadata"]
    if _label(pod, ROLE) != Component.ROUTER or _label(pod, OWNER_UID) != meta["uid"]:
        return False
    maker = str(_controller(pod).get("name") or "")
    # The hash that a ReplicaSet's name ends with has no hyphen: a Deployment with a longer name is another one.
    return not maker or maker.rpartition("-")[0] == component_name(meta["name"], Component.ROUTER)


def _controller(child: Manifest) -> Manifest:
    owners = child["metadata"].get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), {})


def _label(manifest: Manifest, label: str) -> str:
    return str((manifest["metadata"].get("labels") or {}).get(label, ""))
