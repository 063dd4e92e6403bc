"""Does what ``plan`` decided, one action after the other, and says what came of each. No decisions of its own.

One object that is refused, or at which the API server fails, does not keep the others from being mended. When the API server cannot be
reached or asks to wait, the rest is left for the next time: nothing is lost by stopping anywhere, because every action is decided anew from
what is there.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pdd_operator.api import labels
from pdd_operator.api.names import ObjectRef
from pdd_operator.api.objects import Action, Apply, CreateOnce, Delete, HandOver, Manifest, Scale, SecretOnce, ref_of
from pdd_operator.errors import ClusterError, ConflictError, NamespaceEndingError, TransientError
from pdd_operator.kube.cluster import Cluster
from pdd_operator.observe.outcome import Failure


@dataclass(slots=True)
class Execution:
    """``children``: as they are now. ``interrupted``: what did not go through and may the next time. ``conflict``: look again soon.

    ``made``: Secrets that were not there.
    """

    children: dict[ObjectRef, Manifest]
    done: list[Action] = field(default_factory=list)
    made: list[SecretOnce] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    interrupted: TransientError | None = None
    conflict: bool = False


def execute(
    cluster: Cluster, deployment: Manifest, children: Mapping[ObjectRef, Manifest], actions: Sequence[Action]
) -> Execution:
    """Raises LeaseLostError and NamespaceEndingError only."""
    execution = Execution(dict(children))
    for action in actions:
        try:
            _act(cluster, deployment, execution, action)
        except NamespaceEndingError:
            raise
        except TransientError as error:
            execution.failures.append(Failure(error.reason, str(error), subject_of(action)))
            execution.interrupted = error
            if error.concerns_all:
                break
        except ClusterError as error:
            execution.failures.append(Failure(error.reason, str(error), subject_of(action)))
            execution.conflict = execution.conflict or isinstance(error, ConflictError)
        else:
            execution.done.append(action)
    return execution


def subject_of(action: Action) -> ObjectRef:
    """The object that ``action`` changes."""
    match action:
        case Apply(manifest):
            return ref_of(manifest)
        case CreateOnce(secret):
            return ref_of(secret.manifest)
        case Scale(ref) | HandOver(ref) | Delete(ref):
            return ref


def _act(cluster: Cluster, deployment: Manifest, execution: Execution, action: Action) -> None:
    namespace, children = deployment["metadata"]["namespace"], execution.children
    match action:
        case Apply(manifest):
            children[ref_of(manifest)] = cluster.apply(namespace, manifest)
        case Scale(ref, replicas):
            children[ref] = cluster.scale(namespace, ref, replicas)
        case HandOver(ref, replicas):
            children[ref] = cluster.apply(namespace, _only_replicas(ref, namespace, replicas), labels.HANDOVER_MANAGER)
        case Delete(ref, uid):
            cluster.delete(namespace, ref, uid)
            children.pop(ref, None)
        case CreateOnce(secret):
            if cluster.create_secret(namespace, secret_manifest(secret, deployment, children)):
                execution.made.append(secret)


def secret_manifest(secret: SecretOnce, deployment: Manifest, children: Mapping[ObjectRef, Manifest]) -> Manifest:
    """``secret`` with fresh random data and its owner. ConflictError while its owner is not there."""
    owner = deployment if secret.owner is None else children.get(secret.owner)
    if owner is None:
        raise ConflictError(f"{secret.owner}, which owns the Secret, is not there")
    metadata: dict[str, Any] = dict(secret.manifest["metadata"])
    metadata["ownerReferences"] = [_owner_reference(owner, controller=secret.owner is None)]
    return secret.manifest | {
        "metadata": metadata,
        "stringData": {secret.key: secrets.token_hex(secret.length_bytes)},
    }


def _owner_reference(owner: Manifest, *, controller: bool) -> Manifest:
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": controller,
        "blockOwnerDeletion": False,
    }


def _only_replicas(ref: ObjectRef, namespace: str, replicas: int) -> Manifest:
    return {
        "apiVersion": ref.api_version,
        "kind": ref.kind,
        "metadata": {"name": ref.name, "namespace": namespace},
        "spec": {"replicas": replicas},
    }


def sentence_of(action: Action) -> str:
    """What was done, for the log."""
    subject = subject_of(action)
    match action:
        case Apply(_, reason):
            return f"Applied {subject}: {reason}"
        case Scale(_, replicas, reason):
            return f"Scaled {subject} to {replicas}: {reason}"
        case HandOver(_, replicas, reason):
            return f"Handed over the size {replicas} of {subject}: {reason}"
        case Delete(_, _, reason):
            return f"Deleted {subject}: {reason}"
        case CreateOnce(_):
            return f"Created {subject}"
