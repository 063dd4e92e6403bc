"""What has to be done so that the live objects are what was rendered. Pure, and total: ``plan(desired, desired) == ()``.

Touches only objects whose controlling owner is this PDDeployment, by uid, and those of a wanted name that have lost theirs and are labelled
with that uid. Objects of the same name that are somebody else's, or belong to a PDDeployment of the same name that was deleted, are named in
``Plan.foreign`` and left alone, and so is what would use them: nobody's permissions or configuration are borrowed. Which group and role an object has is in its
name; labels may be copied or lost, and neither costs an engine.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from pdd_operator.api import labels
from pdd_operator.api.names import ObjectRef, engine_set_parts, lasting_names
from pdd_operator.api.objects import (
    Action,
    Apply,
    CreateOnce,
    Delete,
    HandOver,
    Manifest,
    Rendered,
    Scale,
    SecretOnce,
    ref_of,
)
from pdd_operator.drift import first_drift
from pdd_operator.observe.outcome import RolloutPlan
from pdd_operator.observe.ownership import group_of, is_lost, is_owned
from pdd_operator.turns import Held, take_turns


@dataclass(frozen=True, slots=True)
class Plan:
    """``actions`` in the order in which they are to be done. ``held``: what waits until the other role's pods are replaced."""

    actions: tuple[Action, ...]
    foreign: tuple[ObjectRef, ...]
    blocked: Mapping[ObjectRef, ObjectRef] = field(default_factory=dict)
    """What is neither made nor changed, and the foreign object that it would use."""
    held: tuple[Held, ...] = ()


def plan(
    rendered: Rendered,
    children: Mapping[ObjectRef, Manifest],
    rollout: RolloutPlan,
    *,
    name: str,
    uid: str,
    missing_secrets: Collection[str],
) -> Plan:
    """``children``: live objects by reference; ``name``, ``uid``: of the PDDeployment; ``missing_secrets``: names of Secrets that are not there."""
    desired = frozenset(map(ref_of, rendered.manifests))
    own = {
        ref: child
        for ref, child in children.items()
        if is_owned(child, uid) or (ref in desired and is_lost(child, uid))
    }
    foreign = tuple(ref for ref in map(ref_of, rendered.manifests) if ref in children and ref not in own)
    blocked = blocked_by(rendered.manifests, foreign)
    applied, held = take_turns(tuple(_apply(rendered, own, {*foreign, *blocked}, missing_secrets)), own, name)
    actions = (
        *applied,
        # An older group makes room only for one that can come.
        *(() if any(ref.kind == "StatefulSet" for ref in blocked) else _scale_old_groups(own, rollout, name)),
        *_prune(rendered, own, rollout, name),
    )
    return Plan(actions, foreign, blocked, held)


def blocked_by(manifests: Collection[Manifest], foreign: Collection[ObjectRef]) -> dict[ObjectRef, ObjectRef]:
    """Of ``manifests``, in the order in which they are applied: what uses a foreign object, directly or not, and which."""
    bad = {(ref.kind, ref.name): ref for ref in foreign}
    bindings = [manifest for manifest in manifests if manifest["kind"] == "RoleBinding"]
    blocked = {}
    for manifest in manifests:
        ref = ref_of(manifest)
        culprit = next((bad[used] for used in _uses(manifest, bindings) if used in bad), None)
        if culprit is not None and ref not in foreign:
            blocked[ref] = bad[ref.kind, ref.name] = culprit
    return blocked


def _uses(manifest: Manifest, bindings: Collection[Manifest]) -> Iterator[tuple[str, str]]:
    """Kind and name of what a workload runs with, a binding binds, an autoscaler scales."""
    if manifest["kind"] in ("StatefulSet", "Deployment"):
        pod = manifest["spec"].get("template", {}).get("spec", {})
        account = ("ServiceAccount", str(pod.get("serviceAccountName", "")))
        yield account
        yield from (
            ("ConfigMap", volume["configMap"]["name"]) for volume in pod.get("volumes", ()) if "configMap" in volume
        )
        yield from ((one["kind"], one["metadata"]["name"]) for one in bindings if account in _uses(one, ()))
    elif manifest["kind"] == "RoleBinding":
        yield from ((subject["kind"], subject["name"]) for subject in manifest["subjects"])
        yield manifest["roleRef"]["kind"], manifest["roleRef"]["name"]
    elif manifest["kind"] == "HorizontalPodAutoscaler":
        target = manifest["spec"]["scaleTargetRef"]
        yield target["kind"], target["name"]


def _apply(
    rendered: Rendered, own: Mapping[ObjectRef, Manifest], theirs: Collection[ObjectRef], missing: Collection[str]
) -> Iterator[Action]:
    """Secrets come right after what owns them, so that pods find them."""
    wanted = [secret for secret in rendered.secrets if secret.manifest["metadata"]["name"] in missing]
    yield from _secrets_of(None, wanted)
    for manifest in rendered.manifests:
        ref = ref_of(manifest)
        if ref in theirs:
            continue
        live = own.get(ref)
        if live is None:
            yield Apply(manifest, "it was missing")
        elif drift := first_drift(manifest, live):
            yield from _hand_over(manifest, live, ref)
            yield Apply(manifest, f"`{drift}` differed")
        elif gives_up_replicas(manifest, live):
            yield from _hand_over(manifest, live, ref)
            yield Apply(manifest, "an autoscaler takes over `spec.replicas`")
        yield from _secrets_of(ref, wanted)


def _secrets_of(owner: ObjectRef | None, wanted: Collection[SecretOnce]) -> Iterator[Action]:
    return (CreateOnce(secret) for secret in wanted if secret.owner == owner)


def _hand_over(manifest: Manifest, live: Manifest, ref: ObjectRef) -> Iterator[Action]:
    if gives_up_replicas(manifest, live):
        yield HandOver(ref, int(live["spec"].get("replicas", 1)), "an autoscaler takes over `spec.replicas`")


def gives_up_replicas(manifest: Manifest, live: Manifest) -> bool:
    """Whether the operator sent ``spec.replicas`` before and does not any more: not sending it would reset it to 1."""
    if manifest["kind"] != "StatefulSet" or "replicas" in manifest["spec"]:
        return False
    return any(
        entry.get("manager") == labels.FIELD_MANAGER
        and entry.get("operation") == "Apply"
        and "f:replicas" in ((entry.get("fieldsV1") or {}).get("f:spec") or {})
        for entry in live["metadata"].get("managedFields") or ()
    )


def _scale_old_groups(own: Mapping[ObjectRef, Manifest], rollout: RolloutPlan, name: str) -> Iterator[Action]:
    for ref, live in own.items():
        parts = engine_set_parts(name, ref.name) if ref.kind == "StatefulSet" else None
        if parts is None or parts[1] in rollout.finished:
            continue
        role, group = parts
        wanted = rollout.old_replicas.get((group, role))
        if wanted is not None and wanted != live["spec"].get("replicas", 1):
            yield Scale(ref, wanted, f"revision group {group} gives way to a newer one")


def _prune(rendered: Rendered, own: Mapping[ObjectRef, Manifest], rollout: RolloutPlan, name: str) -> Iterator[Action]:
    """Of what the operator can have made by its name: a copy under another one is its maker's, whatever else it has in common."""
    desired = frozenset(map(ref_of, rendered.manifests))
    lasting = lasting_names(name)
    for ref, live in own.items():
        metadata = live["metadata"]
        if ref in desired or metadata.get("deletionTimestamp"):
            continue
        group = group_of(ref, name)
        if group in rollout.finished:
            yield Delete(ref, metadata["uid"], f"revision group {group} is finished")
        elif group is None and ref.name in lasting:
            yield Delete(ref, metadata["uid"], "it is not part of the deployment any more")
