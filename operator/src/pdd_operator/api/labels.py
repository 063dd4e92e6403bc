"""Labels and annotations that objects carry, and the selectors made of them. Part of the contract with the router.

The router finds engines by ``DEPLOYMENT``, ``ROLE`` and ``REVISION_GROUP`` (docs/protocol.md); the operator finds what it
owns by ``DEPLOYMENT`` and ``OWNER_UID``.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

GROUP: Final = "pdserve.io"
API_VERSION: Final = f"{GROUP}/v1alpha1"
KIND: Final = "PDDeployment"
PLURAL: Final = "pddeployments"

DEPLOYMENT: Final = f"{GROUP}/deployment"
ROLE: Final = f"{GROUP}/role"
REVISION_GROUP: Final = f"{GROUP}/revision-group"
OWNER_UID: Final = f"{GROUP}/owner-uid"

INPUT_HASH: Final = f"{GROUP}/input-hash"
"""Annotation: hash of the manifest as rendered, so that a field that is rendered no longer is noticed."""
TEMPLATE_HASH: Final = f"{GROUP}/template-hash"
"""Annotation of engines' StatefulSets: as ``INPUT_HASH``, of the pod template alone, a change of which replaces pods."""
RECONCILE: Final = f"{GROUP}/reconcile"
PAUSED: Final = "paused"
"""Value of ``RECONCILE`` on a PDDeployment that makes the operator leave its children alone."""
OPERATOR: Final = f"{GROUP}/operator"
"""Annotation on a PDDeployment: the operator that is to care for it, as ``status.operator`` names them, where several could."""

FIELD_MANAGER: Final = "pdd-operator"
HANDOVER_MANAGER: Final = "pdd-operator-handover"
"""Field manager that keeps ``spec.replicas`` while it passes from the operator to an autoscaler."""
MANAGED_BY: Final = "pdd-operator"


class Component(StrEnum):
    """Value of ``ROLE``: what a pod is."""

    PREFILL = "prefill"
    DECODE = "decode"
    ROUTER = "router"


ENGINE_COMPONENTS: Final = (Component.PREFILL, Component.DECODE)


def object_labels(
    deployment: str, uid: str, component: Component | None = None, group: str | None = None
) -> dict[str, str]:
    """Every label of an object owned by ``deployment``; ``group`` on what belongs to one revision group only."""
    labels = {
        "app.kubernetes.io/name": "pddeployment",
        "app.kubernetes.io/instance": deployment,
        "app.kubernetes.io/part-of": "pdserve",
        "app.kubernetes.io/managed-by": MANAGED_BY,
        DEPLOYMENT: deployment,
        OWNER_UID: uid,
    }
    if component is not None:
        labels |= {"app.kubernetes.io/component": component.value, ROLE: component.value}
    if group is not None:
        labels[REVISION_GROUP] = group
    return labels


def selector_labels(deployment: str, component: Component | None = None, group: str | None = None) -> dict[str, str]:
    """The immutable subset that selectors use."""
    labels = {DEPLOYMENT: deployment}
    if component is not None:
        labels[ROLE] = component.value
    if group is not None:
        labels[REVISION_GROUP] = group
    return labels
