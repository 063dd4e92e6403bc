"""Puts an object together: metadata, owner, labels, and the hash by which a change is noticed. Pure."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pdd_operator.api.labels import API_VERSION, INPUT_HASH, KIND, Component, object_labels
from pdd_operator.api.objects import Manifest
from pdd_operator.api.v1alpha1 import PDDeployment


def owned_metadata(
    deployment: PDDeployment,
    name: str,
    component: Component | None = None,
    group: str | None = None,
    annotations: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Metadata of an object that goes when its PDDeployment goes."""
    metadata = unowned_metadata(deployment, name, component, group)
    if annotations:
        metadata["annotations"] = dict(annotations)
    metadata["ownerReferences"] = [
        {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "name": deployment.metadata.name,
            "uid": deployment.metadata.uid,
            "controller": True,
            "blockOwnerDeletion": False,
        }
    ]
    return metadata


def unowned_metadata(
    deployment: PDDeployment, name: str, component: Component | None = None, group: str | None = None
) -> dict[str, Any]:
    meta = deployment.metadata
    return {
        "name": name,
        "namespace": meta.namespace,
        "labels": object_labels(meta.name, meta.uid, component, group),
    }


def with_input_hash(manifest: Manifest) -> Manifest:
    """The same object with the annotation ``INPUT_HASH``: sha256 of everything else in it."""
    metadata = manifest["metadata"]
    annotations = metadata.get("annotations", {}) | {INPUT_HASH: digest(manifest)}
    return manifest | {"metadata": metadata | {"annotations": annotations}}


def digest(value: object) -> str:
    """sha256 of a JSON value, the same for equal values."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
