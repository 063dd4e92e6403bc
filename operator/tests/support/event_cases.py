"""A case per reason of an event: two statuses, what was done between, and what is told. A table for tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from observed_world import config_map

from pdd_operator.api.names import ObjectRef
from pdd_operator.api.objects import Action, Apply, CreateOnce, Delete, Scale, SecretOnce
from pdd_operator.observe.reasons import EventReason as E

REF = ObjectRef("apps/v1", "StatefulSet", "glm-prefill-0ddba1")
SECRET = SecretOnce({"metadata": {"name": "glm-claim-c0ffee"}}, "key", 32, None)


@dataclass(frozen=True)
class EventCase:
    """``contains``: a part of the message."""

    reason: E
    old: Mapping[str, Any] = field(default_factory=dict)
    new: Mapping[str, Any] = field(default_factory=dict)
    actions: tuple[Action, ...] = ()
    warning: bool = False
    contains: str = ""


def said(kind: str, status: str, reason: str, message: str = "why and what to do") -> dict[str, Any]:
    return {"conditions": [{"type": kind, "status": status, "reason": reason, "message": message}]}


def groups(revision: str, *others: str) -> dict[str, Any]:
    return {"revision": revision, "groups": [{"revision": name} for name in (*others, revision)]}


TRUE = said("Ready", "True", "AllAvailable")
CASES = (
    EventCase(
        E.APPLIED_OBJECTS,
        actions=(Apply(config_map("c0ffee"), "it was missing"),),
        contains="ConfigMap/glm-engine-c0ffee (it was missing)",
    ),
    EventCase(E.CREATED_SECRETS, actions=(CreateOnce(SECRET),), contains="glm-claim-c0ffee"),
    EventCase(E.DELETED_OBJECTS, actions=(Delete(REF, "uid", "old"),), contains="StatefulSet/glm-prefill-0ddba1 (old)"),
    EventCase(E.SCALED_OLD_REVISION, actions=(Scale(REF, 1, "room"),), contains="to 1: room"),
    EventCase(E.SCALED_PREFILL, {"prefill": {"replicas": 2}}, {"prefill": {"replicas": 4}}, contains="from 2 to 4"),
    EventCase(E.SCALED_DECODE, {"decode": {"replicas": 2}}, {"decode": {"replicas": 0}}, contains="from 2 to 0"),
    EventCase(E.ROLLOUT_STARTED, groups("a"), groups("b", "a"), contains="Revision b replaces a"),
    EventCase(E.ROLLOUT_FINISHED, groups("b", "a"), groups("b"), contains="b is the only one"),
    EventCase(
        E.INVALID_SPEC, said("Accepted", "True", "Valid"), said("Accepted", "False", "InvalidSpec"), warning=True
    ),
    EventCase(E.SPEC_ACCEPTED, said("Accepted", "False", "InvalidSpec"), said("Accepted", "True", "Valid")),
    EventCase(
        E.FAILED_TO_APPLY,
        said("Reconciled", "True", "UpToDate"),
        said("Reconciled", "False", "Forbidden"),
        warning=True,
    ),
    EventCase(E.PAUSED, said("Reconciled", "True", "UpToDate"), said("Reconciled", "Unknown", "Paused")),
    EventCase(E.RESUMED, said("Reconciled", "Unknown", "Paused"), said("Reconciled", "True", "UpToDate")),
    EventCase(E.BECAME_READY, said("Ready", "False", "ModelLoading"), TRUE),
    EventCase(E.BECAME_UNREADY, TRUE, said("Ready", "False", "CrashLooping"), warning=True),
    EventCase(E.BECAME_UNREADY, TRUE, said("Ready", "Unknown", "RollingOut")),
    EventCase(
        E.PREFILL_UNAVAILABLE,
        said("PrefillAvailable", "True", "AllReady"),
        said("PrefillAvailable", "False", "ModelLoading"),
    ),
    EventCase(E.DECODE_UNAVAILABLE, {}, said("DecodeAvailable", "False", "Unschedulable"), warning=True),
    EventCase(
        E.ROUTER_UNAVAILABLE,
        said("RouterAvailable", "True", "AllReady"),
        said("RouterAvailable", "False", "ScaledToZero"),
    ),
    EventCase(
        E.TRANSPORT_DEGRADED,
        said("TransportReady", "True", "EFA"),
        said("TransportReady", "True", "SocketFallback"),
        warning=True,
    ),
    EventCase(E.TRANSPORT_DEGRADED, {}, said("TransportReady", "False", "MixedTransport"), warning=True),
    EventCase(E.REUSE_STARTED, said("ReuseActive", "Unknown", "NoTraffic"), said("ReuseActive", "True", "BytesMoved")),
    EventCase(
        E.REUSE_STOPPED,
        said("ReuseActive", "True", "BytesMoved"),
        said("ReuseActive", "False", "AllEmpty"),
        warning=True,
    ),
    EventCase(
        E.REUSE_STOPPED, said("ReuseActive", "True", "BytesMoved"), said("ReuseActive", "Unknown", "NoSecondTurns")
    ),
    EventCase(
        E.STALLED,
        said("Stalled", "False", "Progressing"),
        said("Stalled", "True", "ProgressDeadlineExceeded"),
        warning=True,
    ),
)
