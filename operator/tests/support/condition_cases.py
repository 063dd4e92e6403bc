"""A case per reason of a condition: what a cluster shows, and what is to be said of it. A table for tests, and for the test of the table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from observed_world import (
    CPU_ROLE,
    CURRENT,
    LONG_AGO,
    NO_WINDOW,
    NOW,
    OLD,
    all_children,
    all_pods,
    deployment_object,
    observed,
    parsed,
    pod,
    preflight_status,
    router_deployment,
    stateful_set,
)

from pdd_operator.api.labels import Component
from pdd_operator.api.names import ObjectRef
from pdd_operator.api.objects import Manifest
from pdd_operator.observe.observed import ReuseSample, ReuseWindow
from pdd_operator.observe.outcome import Failure, ReconcileOutcome
from pdd_operator.observe.reasons import ConditionType, Reason
from pdd_operator.observe.rollout import plan_rollout
from pdd_operator.observe.status import compute_status

P, D, R = Component.PREFILL, Component.DECODE, Component.ROUTER
SAMPLE = ReuseSample(NOW, 4, 0.0, 0.0, 0.0, 0.0, 0.0, {}, 0.0, engines=frozenset("abcd"))
GIB = float(1 << 30)


@dataclass(frozen=True)
class Case:
    """``contains``: parts of the message. ``outcome``: fields of ReconcileOutcome; ``valid``: whether the object could be parsed."""

    name: str
    kind: ConditionType
    status: str
    reason: Reason
    contains: tuple[str, ...] = ()
    pods: Iterable[Manifest] = field(default_factory=all_pods)
    children: Iterable[Manifest] = field(default_factory=all_children)
    spec: Mapping[str, Any] = field(default_factory=dict)
    before: Mapping[str, Any] = field(default_factory=dict)
    outcome: Mapping[str, Any] = field(default_factory=dict)
    window: ReuseWindow = NO_WINDOW
    valid: bool = True
    revision: str | None = CURRENT

    def compute(self) -> dict[str, Any]:
        seen = observed(deployment_object(self.spec, self.before), self.children, self.pods, self.window)
        deployment = parsed(seen.deployment) if self.valid else None
        plan = None
        if deployment is not None and self.revision is not None:
            plan = plan_rollout(deployment.spec, self.revision, seen)
        revision = self.revision if self.valid else None
        return compute_status(seen, ReconcileOutcome(revision, rollout=plan, **self.outcome), deployment)

    def condition(self) -> Mapping[str, Any]:
        return next(found for found in self.compute()["conditions"] if found["type"] == self.kind)


def one_bad(component: Component, **worse: Any) -> list[Manifest]:
    """All pods, but both of a role as bad as said: one bad pod of two leaves the role available."""
    kept = [found for found in all_pods() if found["metadata"]["labels"]["pdserve.io/role"] != component]
    return [*kept, *(pod(component, ordinal, **worse) for ordinal in range(2))]


def unscheduled(component: Component, message: str, **more: Any) -> list[Manifest]:
    scheduled = {"status": "False", "reason": "Unschedulable", "message": message}
    return one_bad(component, ready=False, phase="Pending", scheduled=scheduled, init=[], containerStatuses=[], **more)


def waiting(component: Component, reason: str, message: str = "", **more: Any) -> list[Manifest]:
    state = {"state": {"waiting": {"reason": reason, "message": message}}, "started": False, **more}
    return one_bad(component, ready=False, container=state)


def ended(code: int, reason: str = "Error", message: str = "") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message}}


def window(**after: Any) -> ReuseWindow:
    return ReuseWindow(SAMPLE, replace(SAMPLE, **after))


def failure(reason: str, message: str = "no") -> dict[str, Any]:
    return {"failures": (Failure(reason, message, ObjectRef("v1", "ConfigMap", "glm-router")),)}


def condition(
    kind: ConditionType, status: str, reason: str, message: str = "", since: str = LONG_AGO
) -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since}


def changed_children(kind: str, role: str, generation: int = 1, **status: Any) -> list[Manifest]:
    """All children, one of them with another status."""
    children = all_children()
    for child in children:
        if child["kind"] == kind and child["metadata"]["labels"]["pdserve.io/role"] == role:
            child["metadata"]["generation"] = generation
            child["status"] |= status
    return children


T = ConditionType
NODES = "0/9 nodes are available: "
CASES = (
    # ---- Accepted
    Case("valid", T.ACCEPTED, "True", Reason.VALID),
    Case(
        "names the field",
        T.ACCEPTED,
        "False",
        Reason.INVALID_SPEC,
        ("`spec.model.name`", "must"),
        outcome={"problems": (("spec.model.name", "must not be empty"),)},
        valid=False,
    ),
    Case(
        "many problems are counted",
        T.ACCEPTED,
        "False",
        Reason.INVALID_SPEC,
        ("and 2 more",),
        outcome={"problems": tuple((f"spec.f{number}", "must be") for number in range(5))},
        valid=False,
    ),
    Case(
        "accelerator",
        T.ACCEPTED,
        "False",
        Reason.UNSUPPORTED_ACCELERATOR,
        outcome={"problems": (("spec.prefill.accelerator.instanceType", "must be known"),)},
        valid=False,
    ),
    Case(
        "transfer",
        T.ACCEPTED,
        "False",
        Reason.INCOMPATIBLE_TRANSFER,
        outcome={"problems": (("spec.kvTransfer.mechanism", "must be Retain"),)},
        valid=False,
    ),
    Case(
        "of two kinds",
        T.ACCEPTED,
        "False",
        Reason.INVALID_SPEC,
        outcome={"problems": (("spec.kvTransfer.mechanism", "must"), ("spec.decode.accelerator", "must"))},
        valid=False,
    ),
    # ---- Reconciled
    Case("equal", T.RECONCILED, "True", Reason.UP_TO_DATE),
    Case("paused", T.RECONCILED, "Unknown", Reason.PAUSED, ("pdserve.io/reconcile",), outcome={"paused": True}),
    Case(
        "invalid",
        T.RECONCILED,
        "Unknown",
        Reason.SPEC_NOT_ACCEPTED,
        outcome={"problems": (("spec", "must"),)},
        valid=False,
    ),
    Case("nothing was decided", T.RECONCILED, "Unknown", Reason.NOT_OBSERVED, revision=None),
    Case(
        "an old revision is left",
        T.RECONCILED,
        "Unknown",
        Reason.ROLLING_OUT,
        (CURRENT, OLD, "prefill 0 of 2, decode 0 of 2"),
        pods=[*all_pods(OLD)],
        children=[*all_children(OLD), *all_children(CURRENT)],
    ),
    Case(
        "an old pod is left",
        T.RECONCILED,
        "Unknown",
        Reason.ROLLING_OUT,
        pods=[*all_pods(), pod(D, 0, OLD, terminating=True)],
    ),
    Case(
        "a set replaces its pods",
        T.RECONCILED,
        "Unknown",
        Reason.ROLLING_OUT,
        ("StatefulSet/glm-decode-c0ffee",),
        children=changed_children("StatefulSet", "decode", currentRevision="a", updateRevision="b"),
    ),
    Case(
        "a set is as it was made",
        T.RECONCILED,
        "True",
        Reason.UP_TO_DATE,
        children=changed_children("StatefulSet", "decode", currentRevision="a", updateRevision="a"),
    ),
    Case(
        "the router replaces its pods",
        T.RECONCILED,
        "Unknown",
        Reason.ROLLING_OUT,
        ("Deployment/glm-router",),
        children=changed_children("Deployment", "router", observedGeneration=2, replicas=3, updatedReplicas=1),
    ),
    Case(
        "what the operator changed is not seen yet",
        T.RECONCILED,
        "Unknown",
        Reason.ROLLING_OUT,
        children=changed_children("StatefulSet", "decode", generation=5),
        outcome={"actions": 1},
    ),
    Case(
        "what an autoscaler changed is not seen yet",
        T.RECONCILED,
        "True",
        Reason.UP_TO_DATE,
        children=changed_children("StatefulSet", "decode", generation=5),
    ),
    Case(
        "what was made just now has no pods of before",
        T.RECONCILED,
        "True",
        Reason.UP_TO_DATE,
        children=changed_children("StatefulSet", "decode", observedGeneration=0),
        outcome={"actions": 9},
    ),
    Case(
        "refused", T.RECONCILED, "False", Reason.APPLY_FAILED, ("ConfigMap/glm-router",), outcome=failure("ApplyFailed")
    ),
    Case("forbidden", T.RECONCILED, "False", Reason.FORBIDDEN, outcome=failure("Forbidden")),
    Case("quota", T.RECONCILED, "False", Reason.QUOTA_EXCEEDED, outcome=failure("QuotaExceeded")),
    Case("foreign", T.RECONCILED, "False", Reason.FOREIGN_OBJECT, outcome=failure("ForeignObject")),
    Case("fault", T.RECONCILED, "False", Reason.INTERNAL_ERROR, outcome=failure("InternalError")),
    Case("undeclared", T.RECONCILED, "False", Reason.INTERNAL_ERROR, outcome=failure("WhoKnows")),
    Case("conflict passes", T.RECONCILED, "Unknown", Reason.CONFLICT, outcome=failure("Conflict")),
    Case("silence passes", T.RECONCILED, "Unknown", Reason.API_UNAVAILABLE, outcome=failure("ApiUnavailable")),
    Case(
        "what lasts is told before what passes",
        T.RECONCILED,
        "False",
        Reason.FORBIDDEN,
        outcome={"failures": (Failure("Conflict", "again"), Failure("Forbidden", "no"))},
    ),
    # ---- availability
    Case("all", T.PREFILL_AVAILABLE, "True", Reason.ALL_READY),
    Case(
        "one of two",
        T.DECODE_AVAILABLE,
        "True",
        Reason.MINIMUM_READY,
        ("1 of 2 decode pods", "zai-org/GLM-5-FP8"),
        pods=[*all_pods()[:3], pod(D, 1, ready=False), *all_pods()[4:]],
    ),
    Case(
        "the only one is not enough when it is gone",
        T.DECODE_AVAILABLE,
        "False",
        Reason.MODEL_LOADING,
        spec={"decode": {"replicas": 1}},
        pods=[*all_pods()[:2], pod(D, 0, ready=False), *all_pods()[4:]],
    ),
    Case(
        "not seen",
        T.PREFILL_AVAILABLE,
        "Unknown",
        Reason.NOT_OBSERVED,
        children=(),
        pods=(),
        valid=False,
        outcome={"problems": (("spec", "must"),)},
    ),
    Case(
        "none wanted",
        T.ROUTER_AVAILABLE,
        "False",
        Reason.SCALED_TO_ZERO,
        ("`spec.router.replicas`",),
        spec={"router": {"replicas": 0}},
    ),
    Case("no set", T.PREFILL_AVAILABLE, "False", Reason.PODS_MISSING, ("StatefulSet",), pods=(), children=()),
    Case(
        "no pod",
        T.PREFILL_AVAILABLE,
        "False",
        Reason.PODS_MISSING,
        ("kubectl describe statefulset glm-prefill-c0ffee",),
        pods=(),
    ),
    Case(
        "quota of pods",
        T.ROUTER_AVAILABLE,
        "False",
        Reason.QUOTA_EXCEEDED,
        ("exceeded quota: team",),
        pods=(),
        children=[
            *all_children()[:3],
            router_deployment(
                conditions=[{"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: team"}]
            ),
        ],
    ),
    Case(
        "policy",
        T.ROUTER_AVAILABLE,
        "False",
        Reason.PODS_REFUSED,
        ("violates PodSecurity",),
        pods=(),
        children=[
            *all_children()[:3],
            router_deployment(
                conditions=[{"type": "ReplicaFailure", "status": "True", "message": "violates PodSecurity"}]
            ),
        ],
    ),
    Case(
        "fewer exist",
        T.DECODE_AVAILABLE,
        "False",
        Reason.INSUFFICIENT_REPLICAS,
        spec={"decode": {"replicas": 4}},
    ),
    Case(
        "pods that end",
        T.DECODE_AVAILABLE,
        "False",
        Reason.INSUFFICIENT_REPLICAS,
        ("Pod glm-decode-c0ffee-0 is ending", "delete the node"),
        pods=one_bad(D, terminating=True),
    ),
    Case(
        "no EFA",
        T.DECODE_AVAILABLE,
        "False",
        Reason.UNSCHEDULABLE,
        (
            "Insufficient vpc.amazonaws.com/efa",
            "`spec.decode.accelerator`",
            "16 EFA devices",
            "p5en.48xlarge",
            "pdd doctor",
        ),
        pods=unscheduled(
            D, NODES + "9 Insufficient vpc.amazonaws.com/efa. preemption: 0/9 nodes are available: 9 No victims."
        ),
    ),
    Case(
        "no image",
        T.PREFILL_AVAILABLE,
        "False",
        Reason.IMAGE_PULL_FAILED,
        ("`spec.engine.image`",),
        pods=waiting(P, "ImagePullBackOff"),
    ),
    Case(
        "image of the router",
        T.ROUTER_AVAILABLE,
        "False",
        Reason.IMAGE_PULL_FAILED,
        ("`spec.router.imagePullSecretNames`", "refuses"),
        pods=waiting(R, "ErrImagePull", "pull access denied, 403 Forbidden"),
    ),
    Case(
        "no secret",
        T.PREFILL_AVAILABLE,
        "False",
        Reason.CONTAINER_CONFIG_INVALID,
        ("`spec.model.source.huggingFace.tokenSecretName`", "create Secret hf-token"),
        pods=waiting(P, "CreateContainerConfigError", 'secret "hf-token" not found'),
    ),
    Case(
        "preflight",
        T.PREFILL_AVAILABLE,
        "False",
        Reason.PREFLIGHT_REFUSED,
        ("NoDevices: plug them in",),
        pods=one_bad(
            P,
            ready=False,
            init=[preflight_status("", "NoDevices", "plug them in")],
            container={"state": {"waiting": {"reason": "PodInitializing"}}},
        ),
    ),
    Case(
        "init",
        T.PREFILL_AVAILABLE,
        "False",
        Reason.INIT_FAILED,
        ("connector", "exit code 1", "No space left"),
        pods=one_bad(P, ready=False, init=[{"name": "connector", "state": ended(1, message="cp: No space left")}]),
    ),
    Case(
        "memory",
        T.DECODE_AVAILABLE,
        "False",
        Reason.OUT_OF_MEMORY,
        ("`spec.decode.podTemplate.resources.limits.memory`",),
        pods=waiting(D, "CrashLoopBackOff", lastState=ended(137, "OOMKilled"), restartCount=3),
    ),
    Case(
        "crash",
        T.DECODE_AVAILABLE,
        "False",
        Reason.CRASH_LOOPING,
        ("exit code 1", "CUDA error: no device", "--previous"),
        pods=waiting(D, "CrashLoopBackOff", lastState=ended(1, message="CUDA error: no device"), restartCount=1),
    ),
    Case(
        "loading",
        T.PREFILL_AVAILABLE,
        "False",
        Reason.MODEL_LOADING,
        ("startupTimeoutSeconds",),
        pods=one_bad(P, ready=False),
    ),
    Case(
        "creating",
        T.PREFILL_AVAILABLE,
        "False",
        Reason.CONTAINER_STARTING,
        pods=waiting(P, "ContainerCreating"),
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
        "node",
        T.DECODE_AVAILABLE,
        "False",
        Reason.NODE_LOST,
        pods=one_bad(
            D,
            ready=False,
            container={"ready": True, "started": True},
            conditions=[{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "Unknown"}],
        ),
    ),
    Case(
        "evicted",
        T.DECODE_AVAILABLE,
        "False",
        Reason.POD_ENDED,
        ("Evicted",),
        pods=one_bad(D, ready=False, phase="Failed", reason="Evicted", message="The node was low on memory."),
    ),
    # ---- TransportReady
    Case("efa", T.TRANSPORT_READY, "True", Reason.EFA, ("16 devices",)),
    Case(
        "sockets",
        T.TRANSPORT_READY,
        "True",
        Reason.SOCKET,
        pods=all_pods(init=[preflight_status("Socket", "SocketReady")]),
        spec={"prefill": CPU_ROLE, "decode": CPU_ROLE, "transport": {"backend": "Socket"}},
    ),
    Case(
        "fallback",
        T.TRANSPORT_READY,
        "True",
        Reason.SOCKET_FALLBACK,
        ("NoDevices: none",),
        pods=all_pods(init=[preflight_status("Socket", "NoDevices", "none")]),
        spec={"transport": {"fallback": "Socket"}},
    ),
    Case(
        "one pod has no fabric",
        T.TRANSPORT_READY,
        "False",
        Reason.FABRIC_UNAVAILABLE,
        ("glm-prefill-c0ffee-1", "NoPlugin: other image"),
        pods=[
            *all_pods()[:1],
            pod(P, 1, ready=False, init=[preflight_status("", "NoPlugin", "other image")]),
            *all_pods()[2:],
        ],
    ),
    Case(
        "mixed",
        T.TRANSPORT_READY,
        "False",
        Reason.MIXED_TRANSPORT,
        ("glm-decode-c0ffee-0",),
        pods=[*all_pods()[:2], pod(D, 0, init=[preflight_status("Socket", "NoDevices", "none")])],
        spec={"transport": {"fallback": "Socket"}},
    ),
    Case(
        "engines of an older revision do not mix with the current ones",
        T.TRANSPORT_READY,
        "True",
        Reason.EFA,
        pods=[*all_pods(), *all_pods(OLD, init=[preflight_status("Socket", "NoDevices", "none")])[:4]],
    ),
    Case(
        "until a current engine has said anything, older ones count",
        T.TRANSPORT_READY,
        "True",
        Reason.EFA,
        pods=[*all_pods(init=())[:4], *all_pods(OLD)],
    ),
    Case("no engine", T.TRANSPORT_READY, "Unknown", Reason.NOT_OBSERVED, pods=()),
    # ---- ReuseActive
    Case("no samples", T.REUSE_ACTIVE, "Unknown", Reason.NOT_OBSERVED),
    Case(
        "moved",
        T.REUSE_ACTIVE,
        "True",
        Reason.BYTES_MOVED,
        ("4.1 GiB", "about 90 %"),
        window=window(
            prefill_bytes_read=4.1 * GIB,
            decode_to_prefill_bytes_read=4.1 * GIB,
            prefill_tokens_read=9_100.0,
            prefill_prompt_tokens=10_000.0,
            claims_asked=10.0,
        ),
    ),
    Case(
        "not asked",
        T.REUSE_ACTIVE,
        "False",
        Reason.NOT_ASKED,
        ("`spec.kvTransfer.direction`",),
        spec={"kvTransfer": {"direction": "PrefillToDecode"}},
        window=window(decode_to_prefill_bytes_read=GIB),
    ),
    Case("quiet", T.REUSE_ACTIVE, "Unknown", Reason.NO_TRAFFIC, window=window()),
    Case("first turns", T.REUSE_ACTIVE, "Unknown", Reason.NO_SECOND_TURNS, window=window(prefill_prompt_tokens=5000.0)),
    Case(
        "prefill alone",
        T.REUSE_ACTIVE,
        "False",
        Reason.PREFILL_ONLY,
        window=window(claims_asked=5.0, prefill_bytes_read=GIB),
    ),
    Case("empty", T.REUSE_ACTIVE, "False", Reason.ALL_EMPTY, window=window(claims_asked=5.0, claims_empty=5.0)),
    Case(
        "refused",
        T.REUSE_ACTIVE,
        "False",
        Reason.CLAIMS_REFUSED,
        ("Group", "revision"),
        window=window(claims_asked=9.0, claims_empty=2.0, claims_refused={"Group": 5.0, "OwnerFull": 2.0}),
    ),
    Case(
        "late",
        T.REUSE_ACTIVE,
        "False",
        Reason.CLAIMS_LATE,
        ("`spec.kvTransfer.claim.timeoutMilliseconds`",),
        window=window(claims_asked=5.0, claims_late=5.0),
    ),
    Case(
        "expired",
        T.REUSE_ACTIVE,
        "False",
        Reason.CLAIMS_LATE,
        ("`spec.kvTransfer.retain.decoderBlocksTTLSeconds`",),
        spec={"kvTransfer": {"mechanism": "Retain"}},
        window=window(claims_asked=5.0, claims_late=5.0),
    ),
    Case(
        "unconnected",
        T.REUSE_ACTIVE,
        "False",
        Reason.UNCONNECTED,
        ("6600",),
        window=window(claims_asked=5.0, claims_unconnected=5.0),
    ),
    Case("failing", T.REUSE_ACTIVE, "False", Reason.READS_FAILING, window=window(claims_asked=5.0, reads_failed=5.0)),
    Case("unexplained", T.REUSE_ACTIVE, "False", Reason.NOTHING_READ, window=window(claims_asked=5.0)),
    Case(
        "unreachable",
        T.REUSE_ACTIVE,
        "Unknown",
        Reason.ENGINES_UNREACHABLE,
        ("NetworkPolicy",),
        window=ReuseWindow(replace(SAMPLE, engines_read=0), replace(SAMPLE, engines_read=0)),
    ),
    # ---- Stalled
    Case("done", T.STALLED, "False", Reason.COMPLETE),
    Case("on its way", T.STALLED, "False", Reason.PROGRESSING, pods=()),
    Case("left alone", T.STALLED, "False", Reason.PAUSED, outcome={"paused": True}),
    Case(
        "scaled down",
        T.STALLED,
        "False",
        Reason.SCALED_TO_ZERO,
        spec={"prefill": {"replicas": 0}},
        before={"conditions": [condition(T.READY, "False", "ScaledToZero")]},
    ),
    Case(
        "invalid stalls",
        T.STALLED,
        "True",
        Reason.INVALID_SPEC,
        outcome={"problems": (("spec", "must"),)},
        valid=False,
    ),
    Case(
        "too long",
        T.STALLED,
        "True",
        Reason.PROGRESS_DEADLINE_EXCEEDED,
        ("`spec.rollout.progressDeadlineSeconds` (7200 s)", "StatefulSet"),
        pods=(),
        before={"conditions": [condition(T.READY, "False", "PodsMissing")]},
    ),
    Case(
        "a pod that became ready is progress",
        T.STALLED,
        "False",
        Reason.PROGRESSING,
        pods=[pod(P, 0, ready_since=(NOW - timedelta(minutes=5)).isoformat())],
        before={"conditions": [condition(T.READY, "False", "PodsMissing")]},
    ),
    # ---- Ready
    Case("all is well", T.READY, "True", Reason.ALL_AVAILABLE),
    Case("copies what is wrong", T.READY, "False", Reason.MODEL_LOADING, pods=one_bad(P, ready=False)),
    Case(
        "false trumps unknown",
        T.READY,
        "False",
        Reason.MODEL_LOADING,
        pods=one_bad(P, ready=False),
        outcome={"paused": True},
    ),
    Case("unknown", T.READY, "Unknown", Reason.PAUSED, outcome={"paused": True}),
    Case(
        "reuse does not matter",
        T.READY,
        "True",
        Reason.ALL_AVAILABLE,
        window=window(claims_asked=5.0, claims_empty=5.0),
    ),
    Case(
        "one router too many matters not",
        T.ROUTER_AVAILABLE,
        "True",
        Reason.ALL_READY,
        pods=[*all_pods(), pod(R, 2)],
        children=[*all_children(), stateful_set(P, CURRENT)],
    ),
)
