"""Which Secrets of a PDDeployment are not there. By dry run, as the operator may create Secrets and nothing else.

Layer 1, beside ``reconcile``: asks, decides what the answers mean, writes nothing. A Secret that is there may still fall to the garbage
collector with a former owner (a PDDeployment of the same name, a ConfigMap that somebody deleted), at a time of the collector's choosing. So one
that this process did not make for its present owner is asked for again and again while that owner is young or anything of a predecessor is left;
all others once per resync, and while a pod waits for them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from pdd_operator.api import labels
from pdd_operator.api.names import ObjectRef, claim_key_name, component_name, tenant_salt_name
from pdd_operator.api.objects import Manifest, Rendered, SecretOnce
from pdd_operator.errors import RefusedError, TransientError
from pdd_operator.kube.cluster import Cluster
from pdd_operator.observe.conditions import parse_time
from pdd_operator.observe.events import Event, claim_key_replaced, tenant_salt_replaced
from pdd_operator.observe.groups import is_ready, label_of
from pdd_operator.observe.observed import Observed
from pdd_operator.observe.ownership import group_of, is_owned

DOUBT_AGAIN_SECONDS: Final = 5.0
WAITING_AGAIN_SECONDS: Final = 30.0
DOUBT_SECONDS: Final = 60.0
"""How long after its owner was made anew a Secret may still fall to garbage collection."""
_WAITING: Final = frozenset(("ContainerCreating", "CreateContainerConfigError"))
"""How a container waits whose Secret is missing: as a volume, and as a variable."""


@dataclass(slots=True)
class SecretMemory:
    """Of one PDDeployment, since this process began. Forgotten with the object; losing it costs a call."""

    seen: dict[str, float] = field(default_factory=dict)
    """When each was last known to be there, monotonic seconds."""
    made: set[tuple[str, str]] = field(default_factory=set)
    """Name and owner's uid of those that this process made: no former owner takes them away."""

    def note_made(self, name: str, owner_uid: str, now: float) -> None:
        self.seen[name] = now
        self.made.add((name, owner_uid))


@dataclass(frozen=True, slots=True)
class SecretsFound:
    """``missing``: not there, or not known to be: to be created. ``again_seconds``: when to ask again, None at the next resync.

    ``found``: there before anything that uses them, so that somebody else may know their content.
    """

    missing: frozenset[str] = frozenset()
    again_seconds: float | None = None
    found: tuple[str, ...] = ()


def look_for_secrets(
    cluster: Cluster, observed: Observed, rendered: Rendered, memory: SecretMemory, now: float, resync_seconds: float
) -> SecretsFound:
    """``now``: monotonic seconds. Raises ClusterError where the API server is away, never for what it refuses."""
    metadata = observed.deployment["metadata"]
    missing, found, again = set(), [], []
    for secret in rendered.secrets:
        name, owner = name_of(secret), owner_of(secret, observed)
        if owner is not None and owner is not observed.deployment and not is_owned(owner, metadata["uid"]):
            continue  # somebody else's: nothing is made for it
        doubtful = (name, uid_of(owner)) not in memory.made and _may_be_collected(owner, observed)
        waiting = any(_is_waiting(pod) for pod in _users(name, observed))
        again += [DOUBT_AGAIN_SECONDS] * doubtful + [WAITING_AGAIN_SECONDS] * waiting
        if now - memory.seen.get(name, float("-inf")) < resync_seconds and not doubtful and not waiting:
            continue
        absent = _is_absent(cluster, metadata["namespace"], secret)
        if absent is None:
            absent = not any(map(is_ready, _users(name, observed)))
        elif not absent and name not in memory.seen and _is_unused(secret, observed):
            found.append(name)
        if absent:
            missing.add(name)
        else:
            memory.seen[name] = now
    return SecretsFound(frozenset(missing), min(again, default=None), tuple(found))


def told_of_replaced(observed: Observed, made: Iterable[SecretOnce]) -> Iterator[Event]:
    """Of Secrets that were made anew although pods that hold their former content are there."""
    name = observed.deployment["metadata"]["name"]
    router = component_name(name, labels.Component.ROUTER)
    users = {group_of(ref, name) for ref in observed.children if ref.kind == "StatefulSet"}
    for secret in map(name_of, made):
        if any(group is not None and secret == claim_key_name(name, group) for group in users):
            yield claim_key_replaced(secret)
        elif secret == tenant_salt_name(name) and ObjectRef("apps/v1", "Deployment", router) in observed.children:
            yield tenant_salt_replaced(secret, router)


def name_of(secret: SecretOnce) -> str:
    return str(secret.manifest["metadata"]["name"])


def owner_of(secret: SecretOnce, observed: Observed) -> Manifest | None:
    """What it goes with; None while that is not there."""
    return observed.deployment if secret.owner is None else observed.children.get(secret.owner)


def uid_of(owner: Manifest | None) -> str:
    return "" if owner is None else str(owner["metadata"].get("uid", ""))


def _is_absent(cluster: Cluster, namespace: str, secret: SecretOnce) -> bool | None:
    """None: it cannot be told. Quotas and policies are asked before the name is looked up, so their refusal says nothing of it."""
    try:
        return cluster.create_secret(namespace, secret.manifest, dry_run=True)
    except RefusedError:
        return None
    except TransientError as error:
        if error.concerns_all:
            raise
        return None


def _may_be_collected(owner: Manifest | None, observed: Observed) -> bool:
    if owner is None:
        return True
    created = parse_time(owner["metadata"].get("creationTimestamp"))
    young = created is not None and observed.now - created < timedelta(seconds=DOUBT_SECONDS)
    return young or any(is_of_predecessor(child, observed.deployment) for child in observed.children.values())


def is_of_predecessor(child: Manifest, deployment: Manifest) -> bool:
    """Owned by a PDDeployment of the same name that is no more: the garbage collector takes it."""
    own = deployment["metadata"]
    return any(
        (owner.get("kind"), owner.get("name")) == (labels.KIND, own["name"]) and owner.get("uid") != own["uid"]
        for owner in child["metadata"].get("ownerReferences") or ()
    )


def _is_unused(secret: SecretOnce, observed: Observed) -> bool:
    """Whether nothing is there that would have had it made: neither its group nor, for what is of no group, anything."""
    uid, group = uid_of(observed.deployment), label_of(secret.manifest, labels.REVISION_GROUP)
    own = (child for child in observed.children.values() if is_owned(child, uid))
    return not any(not group or label_of(child, labels.REVISION_GROUP) == group for child in own)


def _users(name: str, observed: Observed) -> Iterator[Manifest]:
    """Pods that name the Secret, as volume or variable."""
    return (pod for pod in observed.pods if json.dumps(name) in json.dumps(pod.get("spec") or {}))


def _is_waiting(pod: Manifest) -> bool:
    status = pod.get("status") or {}
    statuses = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    return any(
        ((container.get("state") or {}).get("waiting") or {}).get("reason") in _WAITING for container in statuses
    )
