"""What a reconcile decided and met, beside what it read: the rest of what status is computed from. Pure data.

Made by ``reconcile``, read by ``observe.status``. ``RolloutPlan`` is made by ``observe.rollout`` and read by ``plan``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pdd_operator.api.labels import Component
from pdd_operator.api.names import ObjectRef
from pdd_operator.render.inputs import Replicas


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """Sizes of every revision group at this moment.

    ``replicas``: of the current group, as ``render`` takes them. None: an autoscaler decides. An int for an autoscaled role means that the
    rollout decides for now, and no HorizontalPodAutoscaler may target the current group's StatefulSet meanwhile. ``old_replicas``: of StatefulSets of older groups that
    should have another size than they may have; what is absent is left alone. ``finished``: older groups that are to be deleted. Older groups that
    are not in it are kept. ``wanted``: pods per role that the deployment as a whole should have. ``available``: the current group has them, ready.
    """

    replicas: Replicas
    old_replicas: Mapping[tuple[str, Component], int] = field(default_factory=dict)
    finished: frozenset[str] = frozenset()
    wanted: Mapping[Component, int] = field(default_factory=dict)
    available: bool = False


@dataclass(frozen=True, slots=True)
class Failure:
    """One thing that could not be made so. ``reason`` is a reason of the condition Reconciled, CamelCase.

    ApplyFailed, Conflict, Forbidden, QuotaExceeded, ForeignObject (an object of that name belongs to somebody else and is not touched),
    ApiUnavailable (the API server did not answer in time, or asked to wait) or InternalError.
    """

    reason: str
    message: str
    ref: ObjectRef | None = None


@dataclass(frozen=True, slots=True)
class ReconcileOutcome:
    """``revision``: the current revision group, None where the object is invalid. ``rollout``: None where nothing was planned.

    ``problems``: field and message of every rule that the spec breaks; empty where it is valid.
    """

    revision: str | None = None
    paused: bool = False
    rollout: RolloutPlan | None = None
    failures: tuple[Failure, ...] = ()
    problems: tuple[tuple[str, str], ...] = ()
    actions: int = 0
    """Actions that were done or tried in this reconcile; 0 means that nothing differed."""
    held: tuple[ObjectRef, ...] = ()
    """StatefulSets whose new pod template waits until the other role's pods are replaced and ready."""
