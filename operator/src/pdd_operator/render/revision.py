"""The revision group: a hash of everything that prefill and decode must have in common.

Pure. Engines of different groups are never paired, and a change of the group rolls engines out anew; so every field of the
spec is named here, either as one that must match or as one that is free to differ. A test refuses a field that is neither.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

from pdd_operator.api.names import GROUP_LENGTH
from pdd_operator.api.v1alpha1 import PDDeployment
from pdd_operator.render.catalog import UnsupportedError, platform_of
from pdd_operator.render.inputs import RenderSettings

MUST_MATCH: Final = (
    "model",
    "engine.image",
    "engine.imagePullPolicy",  # pulled again, a tag may be another image
    "engine.dtype",
    "engine.kvCacheDtype",
    "engine.maxModelLen",
    "engine.maxNumSeqs",
    "engine.blockSize",
    "engine.memoryUtilizationPercent",
    "engine.cpuKVCacheGiB",
    "engine.trustRemoteCode",
    "engine.extraArgs",
    "engine.env",
    "prefill.accelerator",
    "prefill.tensorParallelSize",
    "decode.accelerator",
    "decode.tensorParallelSize",
    "transport",
    "kvTransfer",
)
"""Paths whose whole subtree is hashed."""

MAY_DIFFER: Final = (
    "engine.imagePullSecretNames",
    "engine.startupTimeoutSeconds",
    "engine.drainTimeoutSeconds",
    "prefill.replicas",
    "prefill.autoscaling",
    "prefill.podTemplate",
    "decode.replicas",
    "decode.autoscaling",
    "decode.podTemplate",
    "rollout",
    "router",
    "tenancy",
    "monitoring",
    "networkPolicy",
)
"""Paths that change no token and no block: they are rolled out within the group, or touch no engine at all."""


def revision_of(deployment: PDDeployment, settings: RenderSettings) -> str:
    """Six hex digits. Fields at their default are left out, so that a new field of a later operator changes no group."""
    spec = deployment.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    hashed = {path: _at(spec, path) for path in MUST_MATCH}
    hashed["engine.image"] = engine_image(deployment, settings)
    hashed["connectorImage"] = settings.images.connector
    text = json.dumps(hashed, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:GROUP_LENGTH]


def engine_image(deployment: PDDeployment, settings: RenderSettings) -> str:
    """The image that the object names, or the default of its platform, which is the same on both sides.

    Raises UnsupportedError where there is neither.
    """
    spec = deployment.spec
    platform = platform_of(spec.prefill)
    image = spec.engine.image or settings.images.engine.get(platform)
    if image is None:
        value = f"images.engine.{platform.lower()}"
        raise UnsupportedError(
            "spec.engine.image",
            f"`image` must be set: the operator has no default for {platform} ({value} of its chart)",
        )
    return image


def _at(data: dict[str, Any], path: str) -> Any:
    found: Any = data
    for part in path.split("."):
        found = found.get(part, {}) if isinstance(found, dict) else {}
    return found
