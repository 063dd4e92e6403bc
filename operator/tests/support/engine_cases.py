"""Cases of ``condition_cases`` about engines: what their pods show, and what is to be said of their availability."""

from __future__ import annotations

from condition_case import (
    Case,
    D,
    P,
    R,
    ended,
    one_bad,
    unscheduled,
    waiting,
)
from observed_world import (
    all_children,
    all_pods,
    pod,
    preflight_status,
    router_deployment,
)

from pdd_operator.observe.reasons import ConditionType, Reason

T = ConditionType
NODES = "0/9 nodes are available: "
ENGINE_CASES = (
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
)
