"""How many pods each role of each revision group should have now, and which old groups may go. Pure.

Only the current group is rendered; what is left of others is scaled and deleted as this module says, one step per visit:
nothing is remembered here, so that a visit after a crash decides as the one before would have.

Surge: the new group stands at full size beside the old one, which goes when all wanted pods of the new one are ready.
InPlace: no role ever has more pods than wanted, all groups and terminating pods together; old pods make room for new ones.
In both, a group that is neither current nor the best of the old ones goes at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pdd_operator.api.labels import ENGINE_COMPONENTS, Component
from pdd_operator.api.v1alpha1 import Role, Spec, Strategy
from pdd_operator.observe.groups import GroupFacts, RoleFacts, groups_of
from pdd_operator.observe.observed import Observed
from pdd_operator.observe.outcome import RolloutPlan
from pdd_operator.render.inputs import Replicas


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is known of one role's size. ``remembered``: pods wanted in all when this was last judged, 0 if never."""

    role: Role
    remembered: int = 0

    @property
    def autoscaled(self) -> bool:
        return self.role.autoscaling is not None

    def clamp(self, replicas: int) -> int:
        """Within what the autoscaler may choose; unchanged without one."""
        scaling = self.role.autoscaling
        return replicas if scaling is None else max(scaling.min_replicas, min(replicas, scaling.max_replicas))


def plan_rollout(spec: Spec, revision: str, observed: Observed) -> RolloutPlan:
    """The next step from what is there to ``revision`` alone."""
    status = observed.deployment.get("status") or {}
    sizes = {
        component: Sizes(role, int((status.get(component.value) or {}).get("replicas") or 0))
        for component, role in ((Component.PREFILL, spec.prefill), (Component.DECODE, spec.decode))
    }
    listed = {str(group.get("revision")) for group in status.get("groups") or []}
    return decide(spec.rollout.strategy, revision, sizes, groups_of(observed), bool(listed - {revision}))


def decide(
    strategy: Strategy,
    revision: str,
    sizes: Mapping[Component, Sizes],
    groups: Sequence[GroupFacts],
    was_rolling: bool = False,
) -> RolloutPlan:
    """As ``plan_rollout``, from groups. ``was_rolling``: other groups were there when this was last judged."""
    nothing = GroupFacts(revision, dict.fromkeys(ENGINE_COMPONENTS, RoleFacts()))
    current = next((group for group in groups if group.revision == revision), nothing)
    old = [group for group in groups if group.revision != revision and not group.is_gone]
    rolling = bool(old) or was_rolling
    ranked = _best_first(old)
    if strategy is Strategy.IN_PLACE:
        wanted = {part: _wanted_in_place(sizes[part], part, current, ranked, rolling) for part in ENGINE_COMPONENTS}
        replicas = {part: _room(sizes[part], wanted[part], part, current, old, rolling) for part in ENGINE_COMPONENTS}
    else:
        wanted = {part: _wanted_beside(sizes[part], part, current, ranked) for part in ENGINE_COMPONENTS}
        replicas = {
            part: None if sizes[part].autoscaled and current.roles[part].size else wanted[part]
            for part in ENGINE_COMPONENTS
        }
    available = all(_is_available(current.roles[part], wanted[part]) for part in ENGINE_COMPONENTS)
    targets = _old_targets(strategy, current, ranked, wanted, available)
    return RolloutPlan(
        replicas=Replicas(prefill=replicas[Component.PREFILL], decode=replicas[Component.DECODE]),
        old_replicas={
            (group.revision, part): targets[group.revision][part]
            for group in old
            if group.revision in targets
            for part in ENGINE_COMPONENTS
            if targets[group.revision][part] < group.roles[part].size
        },
        finished=frozenset(group.revision for group in old if group.has_objects) - set(targets),
        wanted=wanted,
        available=available,
    )


def _is_available(role: RoleFacts, wanted: int) -> bool:
    # A set that is not there yet is not available even where no pod is wanted: the old group goes only for something.
    return role.set_replicas is not None and role.ready >= wanted


def _best_first(old: Sequence[GroupFacts]) -> list[GroupFacts]:
    """Old groups by what is lost with them: once available before never, then by ready pairs, then newest."""
    newest_first = sorted(old, key=lambda group: (group.created, group.revision), reverse=True)
    return sorted(newest_first, key=lambda group: (group.served, group.pairs), reverse=True)


def _wanted_beside(sizes: Sizes, part: Component, current: GroupFacts, ranked: Sequence[GroupFacts]) -> int:
    """Surge: what the autoscaler has chosen; before it can, as many as the old group has."""
    if not sizes.autoscaled:
        return sizes.role.replicas
    if current.roles[part].size:
        return current.roles[part].size
    before = next((group.roles[part].size for group in ranked if group.roles[part].size), sizes.role.replicas)
    return sizes.clamp(before)


def _wanted_in_place(
    sizes: Sizes, part: Component, current: GroupFacts, ranked: Sequence[GroupFacts], rolling: bool
) -> int:
    """InPlace: the size before the rollout, which the status remembers: sets shrink and grow meanwhile."""
    if not sizes.autoscaled:
        return sizes.role.replicas
    here = current.roles[part].size
    if not rolling:
        return here or sizes.clamp(sizes.role.replicas)
    return sizes.clamp(sizes.remembered or here + sum(group.roles[part].size for group in ranked))


def _room(
    sizes: Sizes, wanted: int, part: Component, current: GroupFacts, old: Sequence[GroupFacts], rolling: bool
) -> int | None:
    """InPlace: pods of the current group for which old ones have made room."""
    here = current.roles[part]
    if sizes.autoscaled and here.size and not rolling:
        return None
    room = max(0, wanted - sum(group.roles[part].footprint for group in old))
    if all(group.roles[part].settled for group in old):
        return min(wanted, room)
    # A controller that has not seen its set shrink may still replace a pod: nothing new until it has.
    return min(wanted, room, here.size)


def _old_targets(
    strategy: Strategy,
    current: GroupFacts,
    ranked: Sequence[GroupFacts],
    wanted: Mapping[Component, int],
    available: bool,
) -> dict[str, dict[Component, int]]:
    """Pods per old group and role; never more than it has. A group that is missing here goes."""
    if available or not ranked:
        return {}
    if strategy is Strategy.SURGE:
        kept = {
            group.revision: group
            for group in (ranked[0], max(ranked, key=lambda group: group.pairs))
            if _is_worth(group)
        }
        return {name: {part: group.roles[part].size for part in ENGINE_COMPONENTS} for name, group in kept.items()}
    left = {part: max(0, wanted[part] - current.roles[part].ready - 1) for part in ENGINE_COMPONENTS}
    targets: dict[str, dict[Component, int]] = {}
    for group in ranked:
        share = {part: min(left[part], group.roles[part].size) for part in ENGINE_COMPONENTS}
        if any(share.values()) and _is_worth(group):
            targets[group.revision] = share
            left = {part: left[part] - share[part] for part in ENGINE_COMPONENTS}
    return targets


def _is_worth(group: GroupFacts) -> bool:
    return group.served or group.pairs > 0
