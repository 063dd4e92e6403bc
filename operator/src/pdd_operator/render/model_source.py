"""How a model gets into an engine's pod: volumes and mounts per source. Pure."""

from __future__ import annotations

from typing import Any

from pdd_operator.api.v1alpha1 import Model
from pdd_operator.render.ports import MODEL_CACHE_PATH, MODEL_PATH

VOLUME = "pdd-model"


def model_volumes(model: Model) -> list[dict[str, Any]]:
    """One volume: downloads go to the node's disk, everything else is there already and read-only."""
    source = model.source
    if source.persistent_volume_claim is not None:
        claim = {"claimName": source.persistent_volume_claim.claim_name, "readOnly": True}
        return [{"name": VOLUME, "persistentVolumeClaim": claim}]
    if source.image is not None:
        image = {"reference": source.image.reference, "pullPolicy": source.image.pull_policy.value}
        return [{"name": VOLUME, "image": image}]
    return [{"name": VOLUME, "emptyDir": {}}]


def model_mounts(model: Model) -> list[dict[str, Any]]:
    if model.source.hugging_face is not None:
        return [{"name": VOLUME, "mountPath": MODEL_CACHE_PATH}]
    return [{"name": VOLUME, "mountPath": MODEL_PATH, "readOnly": True}]
