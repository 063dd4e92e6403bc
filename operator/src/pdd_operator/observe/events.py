"""What is worth an event: the difference of two statuses and what was done in between. Pure.

One event per change: equal statuses and no action give none. Many objects done at once give one event, not one each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pdd_operator.api.labels import OPERATOR
from pdd_operator.api.objects import Action, Apply, CreateOnce, Delete, Scale, ref_of
from pdd_operator.observe.conditions import Condition, Truth, previous_conditions
from pdd_operator.observe.reasons import ConditionType, EventReason, Reason

MAX_OBJECTS: Final = 10
"""Objects that one event names."""


@dataclass(frozen=True, slots=True)
class Event:
    """``warning``: somebody should look. ``reason``: CamelCase; what is the same in reason and message is a repeat."""

    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class _Step:
    """One condition before and after; ``before`` is empty at first sight."""

    before: Condition
    after: Condition

    @property
    def moved(self) -> bool:
        return any(self.before.get(key) != self.after.get(key) for key in ("status", "reason"))

    def was(self, status: Truth) -> bool:
        return self.before.get("status") == status

    def is_now(self, status: Truth) -> bool:
        return self.after.get("status") == status


def events_between(
    old_status: Mapping[str, Any], new_status: Mapping[str, Any], actions: Sequence[Action]
) -> tuple[Event, ...]:
    """Events for one visit. ``actions``: those that were done."""
    before, after = previous_conditions(old_status), previous_conditions(new_status)
    steps = {kind: _Step(before.get(kind, {}), after[kind]) for kind in ConditionType if kind in after}
    found = [*_of_actions(actions), *_of_sizes(old_status, new_status), *_of_revisions(old_status, new_status)]
    for kind, step in steps.items():
        found += _OF_CONDITIONS[kind](kind, step) if step.moved else ()
    return tuple(found)


def _event(reason: EventReason, message: str, warning: bool = False) -> Event:
    return Event(reason.value, message, warning)


def _of_actions(actions: Sequence[Action]) -> Iterator[Event]:
    applied = [f"{ref_of(action.manifest)} ({action.reason})" for action in actions if isinstance(action, Apply)]
    secrets = [action.secret.manifest["metadata"]["name"] for action in actions if isinstance(action, CreateOnce)]
    deleted = [f"{action.ref} ({action.reason})" for action in actions if isinstance(action, Delete)]
    if applied:
        yield _event(EventReason.APPLIED_OBJECTS, f"Applied {_listed(applied)}")
    if secrets:
        yield _event(EventReason.CREATED_SECRETS, f"Created Secret {_listed(secrets)}")
    if deleted:
        yield _event(EventReason.DELETED_OBJECTS, f"Deleted {_listed(deleted)}")
    for action in actions:
        if isinstance(action, Scale):
            message = f"Scaled {action.ref} to {action.replicas}: {action.reason}"
            yield _event(EventReason.SCALED_OLD_REVISION, message)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_OBJECTS} more" if len(names) > MAX_OBJECTS else ""
    return ", ".join(names[:MAX_OBJECTS]) + more


def _of_sizes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Event]:
    for role, reason in (("prefill", EventReason.SCALED_PREFILL), ("decode", EventReason.SCALED_DECODE)):
        before, after = ((status.get(role) or {}).get("replicas") for status in (old, new))
        if before is not None and before != after:
            yield _event(reason, f"Scaled {role} from {before} to {after}")


def _of_revisions(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Event]:
    before, after = old.get("revision"), new.get("revision")
    if before and after != before:
        yield _event(EventReason.ROLLOUT_STARTED, f"Revision {after} replaces {before}")
    others = [_others(status) for status in (old, new)]
    if others[0] and not others[1]:
        yield _event(EventReason.ROLLOUT_FINISHED, f"Revision {after} is the only one now")


def _others(status: Mapping[str, Any]) -> list[str]:
    return [
        str(group["revision"]) for group in status.get("groups") or [] if group["revision"] != status.get("revision")
    ]


def _of_ready(kind: ConditionType, step: _Step) -> Iterator[Event]:
    if step.is_now(Truth.TRUE):
        yield _event(EventReason.BECAME_READY, step.after["message"])
    elif step.was(Truth.TRUE):
        warning = step.is_now(Truth.FALSE) and step.after["reason"] not in _BY_ITSELF
        yield _event(EventReason.BECAME_UNREADY, step.after["message"], warning)


def _of_accepted(kind: ConditionType, step: _Step) -> Iterator[Event]:
    if step.is_now(Truth.FALSE):
        yield _event(EventReason.INVALID_SPEC, step.after["message"], warning=True)
    elif step.was(Truth.FALSE) and step.is_now(Truth.TRUE):
        yield _event(EventReason.SPEC_ACCEPTED, step.after["message"])


def _of_reconciled(kind: ConditionType, step: _Step) -> Iterator[Event]:
    if step.is_now(Truth.FALSE):
        yield _event(EventReason.FAILED_TO_APPLY, step.after["message"], warning=True)
    if step.after["reason"] == Reason.PAUSED:
        yield _event(EventReason.PAUSED, step.after["message"])
    elif step.before.get("reason") == Reason.PAUSED:
        yield _event(EventReason.RESUMED, "The operator takes care of the objects again")


_UNAVAILABLE: Final = {
    ConditionType.PREFILL_AVAILABLE: EventReason.PREFILL_UNAVAILABLE,
    ConditionType.DECODE_AVAILABLE: EventReason.DECODE_UNAVAILABLE,
    ConditionType.ROUTER_AVAILABLE: EventReason.ROUTER_UNAVAILABLE,
}
_BY_ITSELF: Final = frozenset(
    (
        Reason.PODS_MISSING,
        Reason.CONTAINER_STARTING,
        Reason.MODEL_LOADING,
        Reason.INSUFFICIENT_REPLICAS,
        Reason.SCALED_TO_ZERO,
    )
)
"""Passes without anybody's doing, or is as asked: told where it takes something away, and never as a warning."""


def _of_availability(kind: ConditionType, step: _Step) -> Iterator[Event]:
    warning = step.after["reason"] not in _BY_ITSELF
    if step.is_now(Truth.FALSE) and (warning or step.was(Truth.TRUE)):
        yield _event(_UNAVAILABLE[kind], step.after["message"], warning)


def _of_transport(kind: ConditionType, step: _Step) -> Iterator[Event]:
    if step.is_now(Truth.FALSE) or step.after["reason"] == Reason.SOCKET_FALLBACK:
        yield _event(EventReason.TRANSPORT_DEGRADED, step.after["message"], warning=True)


def _of_reuse(kind: ConditionType, step: _Step) -> Iterator[Event]:
    if step.is_now(Truth.TRUE):
        yield _event(EventReason.REUSE_STARTED, step.after["message"])
    elif step.was(Truth.TRUE):
        yield _event(EventReason.REUSE_STOPPED, step.after["message"], warning=step.is_now(Truth.FALSE))


def _of_stalled(kind: ConditionType, step: _Step) -> Iterator[Event]:
    if step.is_now(Truth.TRUE):
        yield _event(EventReason.STALLED, step.after["message"], warning=True)


_OF_CONDITIONS: Final[Mapping[ConditionType, Callable[[ConditionType, _Step], Iterator[Event]]]] = {
    ConditionType.READY: _of_ready,
    ConditionType.ACCEPTED: _of_accepted,
    ConditionType.RECONCILED: _of_reconciled,
    ConditionType.PREFILL_AVAILABLE: _of_availability,
    ConditionType.DECODE_AVAILABLE: _of_availability,
    ConditionType.ROUTER_AVAILABLE: _of_availability,
    ConditionType.TRANSPORT_READY: _of_transport,
    ConditionType.REUSE_ACTIVE: _of_reuse,
    ConditionType.STALLED: _of_stalled,
}


def claim_key_replaced(name: str) -> Event:
    message = f"Secret {name} was gone and has new content: engines that started before refuse claims until restarted"
    return _event(EventReason.CLAIM_KEY_REPLACED, message, warning=True)


def tenant_salt_replaced(name: str, router: str) -> Event:
    message = (
        f"Secret {name} was gone and has new content: routers that started before go on with the former salt, and share no history with "
        f"others, until restarted: kubectl rollout restart deployment/{router}"
    )
    return _event(EventReason.TENANT_SALT_REPLACED, message, warning=True)


def secret_found(name: str) -> Event:
    message = (
        f"Secret {name} was there before anything that uses it, and its content is used: whoever made it knows that. If nobody should, "
        f"delete it; a new one is made. One that is left of a former PDDeployment of this name is replaced by itself"
    )
    return _event(EventReason.SECRET_FOUND, message, warning=True)


def left_to_another(other: str, identity: str) -> Event:
    message = (
        f"Operator {other} cares for this deployment, so {identity} leaves it alone: let one operator watch a namespace. To hand it over "
        f"set the annotation {OPERATOR}={identity}"
    )
    return _event(EventReason.LEFT_TO_ANOTHER, message, warning=True)
