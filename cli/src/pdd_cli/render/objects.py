"""From a PDDeployment to the objects that are shown: as the operator renders them once nothing rolls out any more. Pure.

An object of a file has no uid. What depends on it (owners, a label, the hash over all) is left out then, because made-up values would be refused
or, worse, taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pdd_operator.api.labels import INPUT_HASH, OWNER_UID
from pdd_operator.api.objects import Manifest, SecretOnce
from pdd_operator.api.v1alpha1 import PDDeployment
from pdd_operator.render import render
from pdd_operator.render.inputs import ClusterFacts, RenderSettings, Replicas


@dataclass(frozen=True, slots=True)
class Shown:
    """``cluster``: which optional kinds were taken to be there."""

    deployment: PDDeployment
    cluster: ClusterFacts
    revision: str
    manifests: tuple[Manifest, ...]
    secrets: tuple[SecretOnce, ...]

    @property
    def has_uid(self) -> bool:
        return bool(self.deployment.metadata.uid)


def show(deployment: PDDeployment, settings: RenderSettings, cluster: ClusterFacts) -> Shown:
    """Raises InvalidSpecError where ``settings`` have no image for it."""
    spec = deployment.spec
    replicas = Replicas(
        prefill=None if spec.prefill.autoscaling else spec.prefill.replicas,
        decode=None if spec.decode.autoscaling else spec.decode.replicas,
    )
    rendered = render(deployment, settings, cluster, replicas)
    manifests, secrets = rendered.manifests, rendered.secrets
    if not deployment.metadata.uid:
        manifests = tuple(_without_uid(manifest) for manifest in manifests)
        secrets = tuple(
            SecretOnce(_without_uid(secret.manifest), secret.key, secret.length_bytes, secret.owner)
            for secret in secrets
        )
    return Shown(deployment, cluster, rendered.revision, manifests, secrets)


def _without_uid(value: Any) -> Any:
    if isinstance(value, dict):
        dropped = (OWNER_UID, INPUT_HASH, "ownerReferences")
        kept = {key: _without_uid(item) for key, item in value.items() if key not in dropped}
        return {key: item for key, item in kept.items() if item or key != "annotations"}
    if isinstance(value, list | tuple):
        return [_without_uid(item) for item in value]
    return value
