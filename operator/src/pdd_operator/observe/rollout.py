"""How many pods each role of each revision group should have now, and which old groups may go. Pure.

Only the current group is rendered; what is left of others is scaled and deleted as this module says, one step per visit:
nothing is remembered here, so that a visit after a crash decides as the one before would have.

Surge: the new group stands at full size beside the old one, which goes when all wanted pods of the new one are ready. The autoscaler of
a role stays with the group that serves until then, and the new group has the size of that one.
InPlace: no role has more pods than wanted, all groups and terminating pods together; old pods make room for new ones, one per role at a
time and only as far as whole pairs of some group are left. Ready pods of the current group are never given up for older ones.
In both, a group that is neither current nor the best of the old ones goes at once. A group of which a StatefulSet is nobody's any more
is left to whoever took its owner away.
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

    def without_a_set(self, found: RoleFacts) -> int:
        """Of an autoscaled role whose StatefulSet is not there: as many as it had, so that losing the set loses no size."""
        return self.clamp(max(self.remembered, found.reach) or self.role.replicas)


@dataclass(frozen=True, slots=True)
class _Step:
    """``replicas``: of the current group. ``targets``: pods per old group and role; a group that is missing here goes."""

    wanted: Mapping[Component, int]
    replicas: Mapping[Component, int | None]
    targets: Mapping[str, Mapping[Component, int]]
    available: bool
    autoscaled_groups: Mapping[Component, str]


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
    others = [group for group in groups if group.revision != revision and not group.is_gone]
    old = [group for group in others if not group.disowned]
    if strategy is Strategy.IN_PLACE:
        step = _in_place(sizes, current, others, bool(others) or was_rolling)
    else:
        step = _surge(sizes, current, _best_first(old))
    return RolloutPlan(
        replicas=Replicas(
            prefill=step.replicas[Component.PREFILL],
            decode=step.replicas[Component.DECODE],
            autoscaled_groups=step.autoscaled_groups,
        ),
        old_replicas={
            (group.revision, part): step.targets[group.revision][part]
            for group in old
            if group.revision in step.targets
            for part in ENGINE_COMPONENTS
            if step.targets[group.revision][part] < group.roles[part].size
        },
        finished=frozenset(group.revision for group in old if group.has_objects) - set(step.targets),
        wanted=step.wanted,
        available=step.available,
    )


def _is_available(current: GroupFacts, wanted: Mapping[Component, int]) -> bool:
    # A set that is not there yet is not available even where no pod is wanted: the old group goes only for something.
    # And of more pods than wanted, those that stay must be the ready ones.
    return all(
        current.roles[part].set_replicas is not None and current.roles[part].ready_within(wanted[part]) >= wanted[part]
        for part in ENGINE_COMPONENTS
    )


def _best_first(old: Sequence[GroupFacts]) -> list[GroupFacts]:
    """Old groups by what is lost with them: once available before never, then by what serves, then newest."""
    newest_first = sorted(old, key=lambda group: (group.created, group.revision), reverse=True)
    return sorted(newest_first, key=lambda group: (group.served, *_serving(group)), reverse=True)


def _serving(group: GroupFacts) -> tuple[int, int]:
    """Whole pairs first; without one, routers send to decode engines alone."""
    return group.pairs, group.roles[Component.DECODE].kept


def _is_worth(group: GroupFacts) -> bool:
    return group.served or any(_serving(group))


# ---- Surge ------------------------------------------------------------------------------------------------------


def _surge(sizes: Mapping[Component, Sizes], current: GroupFacts, ranked: Sequence[GroupFacts]) -> _Step:
    kept = {group.revision: group for group in ranked[:1] if _is_worth(group)}
    kept |= {group.revision: group for group in [max(ranked, key=_serving)] if _is_worth(group)} if ranked else {}
    leading = {
        part: next((group for group in kept.values() if group.roles[part].size), None) for part in ENGINE_COMPONENTS
    }
    wanted = {part: _wanted_beside(sizes[part], part, current, leading[part]) for part in ENGINE_COMPONENTS}
    available = _is_available(current, wanted)
    replicas: dict[Component, int | None] = dict(wanted)
    autoscaled: dict[Component, str] = {}
    for part in ENGINE_COMPONENTS:
        leader = None if available else leading[part]
        if sizes[part].autoscaled and leader is not None:
            autoscaled[part] = leader.revision
        elif sizes[part].autoscaled and current.roles[part].size:
            replicas[part] = None
        elif sizes[part].autoscaled and sizes[part].remembered:
            autoscaled[part] = current.revision  # its set is made anew in this visit
    targets = {
        name: {part: group.roles[part].size for part in ENGINE_COMPONENTS}
        for name, group in kept.items()
        if not available
    }
    return _Step(wanted, replicas, targets, available, autoscaled)


def _wanted_beside(sizes: Sizes, part: Component, current: GroupFacts, leading: GroupFacts | None) -> int:
    """What the autoscaler has chosen: for the group that leads as long as there is one."""
    if not sizes.autoscaled:
        return sizes.role.replicas
    if leading is not None:
        return sizes.clamp(max(leading.roles[part].size, current.roles[part].reach))
    return current.roles[part].size or sizes.without_a_set(current.roles[part])


# ---- InPlace ----------------------------------------------------------------------------------------------------


def _in_place(
    sizes: Mapping[Component, Sizes], current: GroupFacts, others: Sequence[GroupFacts], rolling: bool
) -> _Step:
    """``others``: disowned groups too, whose pods hold hardware as well."""
    wanted = {part: _wanted_in_place(sizes[part], part, current, others, rolling) for part in ENGINE_COMPONENTS}
    replicas: dict[Component, int | None] = {
        part: _room(wanted[part], part, current, others) for part in ENGINE_COMPONENTS
    }
    autoscaled: dict[Component, str] = {}
    available = _is_available(current, wanted)
    targets: dict[str, dict[Component, int]] = {}
    if not available:
        ranked = _best_first([group for group in others if not group.disowned])
        targets = _old_targets(current, replicas, [group for group in ranked if _is_worth(group)], wanted)
    for part in ENGINE_COMPONENTS:
        if sizes[part].autoscaled and not rolling:
            if current.roles[part].size:
                replicas[part] = None
            elif sizes[part].remembered:
                autoscaled[part] = current.revision
    return _Step(wanted, replicas, targets, available, autoscaled)


def _wanted_in_place(
    sizes: Sizes, part: Component, current: GroupFacts, others: Sequence[GroupFacts], rolling: bool
) -> int:
    """The size before the rollout, which the status remembers: sets shrink and grow meanwhile."""
    if not sizes.autoscaled:
        return sizes.role.replicas
    here = current.roles[part]
    if not rolling:
        return here.size or sizes.without_a_set(here)
    return sizes.clamp(sizes.remembered or here.size + sum(group.roles[part].size for group in others))


def _room(wanted: int, part: Component, current: GroupFacts, others: Sequence[GroupFacts]) -> int:
    """Pods of the current group for which old ones have made room; never fewer than keep what is ready of it."""
    here = current.roles[part]
    room = max(0, wanted - sum(group.roles[part].footprint for group in others))
    if not all(group.roles[part].settled for group in others):
        # A controller that has not seen its set shrink may still replace a pod: nothing new until it has.
        room = min(room, here.size)
    return min(wanted, max(room, here.reach))


def _old_targets(
    current: GroupFacts,
    replicas: Mapping[Component, int | None],
    worth: Sequence[GroupFacts],
    wanted: Mapping[Component, int],
) -> dict[str, dict[Component, int]]:
    """One pod fewer than the current group can stand in for, and no role further than whole pairs allow.

    As long as a StatefulSet of the current group is not there, which something may refuse, none.
    """
    ready = {part: current.roles[part].ready_within(replicas[part] or 0) for part in ENGINE_COMPONENTS}
    targets = {group.revision: {part: group.roles[part].size for part in ENGINE_COMPONENTS} for group in worth}
    if any(current.roles[part].set_replicas is None for part in ENGINE_COMPONENTS):
        return targets

    def pairs() -> int:
        return min(ready.values()) + sum(_pairs_within(group, targets[group.revision]) for group in worth)

    floor = min(pairs(), max(0, min(wanted.values()) - 1))
    for part in ENGINE_COMPONENTS:
        excess = sum(share[part] for share in targets.values()) - max(0, wanted[part] - ready[part] - 1)
        for group in reversed(worth):
            share = targets[group.revision]
            for _ in range(min(excess, share[part])):
                share[part] -= 1
                if pairs() < floor:
                    share[part] += 1
                    break
                excess -= 1
    return {name: share for name, share in targets.items() if any(share.values())}


def _pairs_within(group: GroupFacts, share: Mapping[Component, int]) -> int:
    return min(group.roles[part].ready_within(share[part]) for part in ENGINE_COMPONENTS)
