"""Which engine StatefulSet waits with its new pod template, so that the two roles are never replaced at the same moment. Pure.

A change that makes no new revision group (pod templates, timeouts, a newer operator's own template) replaces pods inside the group. With one
engine per role both would be gone at once, and with them the service. Layer 3, below ``plan``: no cluster, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pdd_operator.api.labels import ENGINE_COMPONENTS, TEMPLATE_HASH, Component
from pdd_operator.api.names import ObjectRef, engine_set_name, engine_set_parts
from pdd_operator.api.objects import Action, Apply, HandOver, Manifest, Scale, ref_of
from pdd_operator.drift import template_drift

_OTHER: Final = dict(zip(ENGINE_COMPONENTS, reversed(ENGINE_COMPONENTS), strict=True))


@dataclass(frozen=True, slots=True)
class Held:
    """``apply`` waits. ``behind``: the set whose apply in this visit goes first; None: the other role's pods are being replaced already."""

    apply: Apply
    behind: ObjectRef | None


def take_turns(
    actions: Sequence[Action], own: Mapping[ObjectRef, Manifest], deployment: str
) -> tuple[tuple[Action, ...], tuple[Held, ...]]:
    """What is left to do now, and what waits. A size is never held back: it is set alone instead."""
    changed = {
        ref_of(action.manifest): action
        for action in actions
        if isinstance(action, Apply) and _changes_pods(action.manifest, own.get(ref_of(action.manifest)))
    }
    held: dict[ObjectRef, Held] = {}
    going: set[ObjectRef] = set()
    for ref, action in changed.items():
        other = _other_role(ref, deployment)
        if other is None or other not in own or _has_nothing_to_lose(own[ref]):
            going.add(ref)
        elif _is_unfit(own[other]):
            held[ref] = Held(action, None)
        elif other in going:
            held[ref] = Held(action, other)
        else:
            going.add(ref)
    left: list[Action] = []
    for step in actions:
        if isinstance(step, Apply) and ref_of(step.manifest) in held:
            left += _size_alone(step.manifest, own[ref_of(step.manifest)])
        elif not (isinstance(step, HandOver) and step.ref in held):
            left.append(step)
    return tuple(left), tuple(held.values())


def is_updating(live: Manifest) -> bool:
    """Whether pods of a StatefulSet are being replaced or not ready after it, or may be: its controller has not seen the newest spec."""
    status = live.get("status") or {}
    seen = int(status.get("observedGeneration") or 0)
    if not seen:
        return False
    unseen = seen < int(live["metadata"].get("generation", 0))
    return unseen or status.get("currentRevision") != status.get("updateRevision")


def _is_unfit(live: Manifest) -> bool:
    """Whether a set cannot serve alone. A template that is changed back is the current revision again at once, whatever its pods are still of."""
    status = live.get("status") or {}
    older = int(status.get("replicas") or 0) > int(status.get("updatedReplicas") or 0)
    none_ready = live["spec"].get("replicas", 1) > 0 and not status.get("readyReplicas")
    return is_updating(live) or older or none_ready


def _changes_pods(manifest: Manifest, live: Manifest | None) -> bool:
    if live is None or manifest["kind"] != "StatefulSet":
        return False
    # A field that is rendered no longer shows in the hash and nowhere else.
    return template_drift(manifest, live) is not None or _hash_of(manifest) != _hash_of(live)


def _hash_of(manifest: Manifest) -> object:
    return (manifest["metadata"].get("annotations") or {}).get(TEMPLATE_HASH)


def _has_nothing_to_lose(live: Manifest) -> bool:
    return is_updating(live) or not (live.get("status") or {}).get("readyReplicas")


def _other_role(ref: ObjectRef, deployment: str) -> ObjectRef | None:
    parts = engine_set_parts(deployment, ref.name)
    if parts is None:
        return None
    role: Component = _OTHER[parts[0]]
    return ObjectRef(ref.api_version, ref.kind, engine_set_name(deployment, role, parts[1]))


def _size_alone(manifest: Manifest, live: Manifest) -> list[Action]:
    wanted = manifest["spec"].get("replicas")
    if wanted is None or wanted == live["spec"].get("replicas", 1):
        return []
    return [Scale(ref_of(manifest), wanted, "its new pod template waits for the other role")]
