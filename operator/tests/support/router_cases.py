"""Cases of ``condition_cases`` about the router: what its Deployment and pods show, and what is to be said of it."""

from __future__ import annotations

from condition_case import Case, D, R, changed_children, one_bad
from observed_world import pod

from pdd_operator.observe.reasons import ConditionType, Reason

T = ConditionType
ROUTER_CASES = (
    Case(
        "the router replaces its pods",
        T.RECONCILED,
        "Unknown",
        Reason.ROLLING_OUT,
        ("Deployment/glm-router",),
        children=changed_children("Deployment", "router", observedGeneration=2, replicas=3, updatedReplicas=1),
    ),
    Case(
        "what was changed of the router is not seen yet, and the change was in an earlier visit",
        T.RECONCILED,
        "Unknown",
        Reason.ROLLING_OUT,
        ("Deployment/glm-router",),
        children=changed_children("Deployment", "router", generation=5, observedGeneration=4),
    ),
    Case(
        "not ready",
        T.ROUTER_AVAILABLE,
        "False",
        Reason.NOT_ANSWERING,
        ("readiness",),
        pods=one_bad(R, ready=False, container={"ready": False, "started": True}),
    ),
    Case(
        "a router without decode engines waits",
        T.ROUTER_AVAILABLE,
        "False",
        Reason.INSUFFICIENT_REPLICAS,
        ("as soon as a decode engine is ready",),
        pods=[
            *(pod(R, ordinal, ready=False, container={"ready": False, "started": True}) for ordinal in range(2)),
            *(pod(D, ordinal, ready=False) for ordinal in range(2)),
        ],
    ),
)
