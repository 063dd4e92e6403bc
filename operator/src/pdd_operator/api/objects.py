"""Kubernetes objects as plain data, and what is to be done with them: the words that render, plan and reconcile share. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from pdd_operator.api.names import ObjectRef

Manifest: TypeAlias = dict[str, Any]
"""An object as the API server takes and gives it: JSON types, camelCase."""


def ref_of(manifest: Manifest) -> ObjectRef:
    return ObjectRef(manifest["apiVersion"], manifest["kind"], manifest["metadata"]["name"])


@dataclass(frozen=True, slots=True)
class SecretOnce:
    """A Secret whose content is random, made once and never read: the operator may create Secrets and nothing else.

    ``manifest`` has neither ``data`` nor ``ownerReferences``; ``key`` is the one key of its data, ``length_bytes`` the random bytes in it
    (written in hex). ``owner`` is the object of this PDDeployment that it goes with, None for the PDDeployment itself.
    """

    manifest: Manifest
    key: str
    length_bytes: int
    owner: ObjectRef | None


@dataclass(frozen=True, slots=True)
class Rendered:
    """Everything that one PDDeployment should consist of, in the order in which it is applied."""

    revision: str
    manifests: tuple[Manifest, ...]
    secrets: tuple[SecretOnce, ...]


@dataclass(frozen=True, slots=True)
class Apply:
    """Server-side apply of the whole manifest, forced."""

    manifest: Manifest
    reason: str


@dataclass(frozen=True, slots=True)
class Scale:
    """Set ``spec.replicas`` of a StatefulSet that is not rendered (any more)."""

    ref: ObjectRef
    replicas: int
    reason: str


@dataclass(frozen=True, slots=True)
class HandOver:
    """Keep ``spec.replicas`` of a StatefulSet at this value by another field manager, before the operator stops sending it."""

    ref: ObjectRef
    replicas: int
    reason: str


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete with background propagation, only if it still has this ``uid``."""

    ref: ObjectRef
    uid: str
    reason: str


@dataclass(frozen=True, slots=True)
class CreateOnce:
    """Create the Secret unless it is there."""

    secret: SecretOnce


Action: TypeAlias = Apply | Scale | HandOver | Delete | CreateOnce
