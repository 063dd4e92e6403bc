"""Every reason that a condition or an event of ours may carry, with one line of meaning. docs/conditions.md says what to do. Pure.

A reason is part of the API: alerts and scripts match it. Rename none; a test asks for each to be documented and produced.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class _Meant(StrEnum):
    """A member is its own name on the wire and carries ``meaning``, one line."""

    meaning: str

    def __new__(cls, value: str, meaning: str = "") -> Self:
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member


class ConditionType(_Meant):
    """What is said of a PDDeployment, in this order. All but Stalled are well when True; Ready is made of its dependents."""

    READY = "Ready", "The deployment serves what its spec asks for."
    ACCEPTED = "Accepted", "The spec keeps every rule."
    RECONCILED = "Reconciled", "Every object is as the spec asks, and so is every pod."
    PREFILL_AVAILABLE = "PrefillAvailable", "Enough prefill engines are ready: all wanted but one, and at least one."
    DECODE_AVAILABLE = "DecodeAvailable", "Enough decode engines are ready: all wanted but one, and at least one."
    ROUTER_AVAILABLE = "RouterAvailable", "Enough router pods are ready: all wanted but one, and at least one."
    TRANSPORT_READY = "TransportReady", "Every engine of the current revision found the transport that it may use."
    REUSE_ACTIVE = "ReuseActive", "Prefill engines read the KV of earlier turns from decode engines."
    STALLED = "Stalled", "It does not get better by itself: somebody must do something."


class Reason(_Meant):
    """Reasons of conditions."""

    NOT_OBSERVED = "NotObserved", "Nothing was seen yet that would tell."
    # Ready
    ALL_AVAILABLE = "AllAvailable", "Every condition that Ready depends on is True."
    # Accepted
    VALID = "Valid", "The spec keeps every rule."
    INVALID_SPEC = "InvalidSpec", "The spec breaks a rule."
    UNSUPPORTED_ACCELERATOR = "UnsupportedAccelerator", "An accelerator cannot do what is asked of it, or is not known."
    INCOMPATIBLE_TRANSFER = (
        "IncompatibleTransfer",
        "Transport or KV transfer cannot work the way they are put together.",
    )
    PRIVILEGES_REFUSED = "PrivilegesRefused", "Privileged engines are asked for, and may not be had."
    # Reconciled
    UP_TO_DATE = "UpToDate", "Every object is as the spec asks."
    ROLLING_OUT = "RollingOut", "Pods from before the last change are still there."
    PAUSED = "Paused", "The annotation asks the operator to leave the objects alone."
    SPEC_NOT_ACCEPTED = "SpecNotAccepted", "The objects are left as they are because the spec breaks a rule."
    APPLY_FAILED = "ApplyFailed", "The API server refused an object."
    CONFLICT = "Conflict", "Another writer changed an object at the same time; it is tried again."
    FORBIDDEN = "Forbidden", "The operator lacks a right."
    QUOTA_EXCEEDED = "QuotaExceeded", "A ResourceQuota has no room."
    FOREIGN_OBJECT = "ForeignObject", "An object of that name belongs to somebody else and is not touched."
    API_UNAVAILABLE = "ApiUnavailable", "The API server did not answer in time or asked to wait; it is tried again."
    INTERNAL_ERROR = "InternalError", "The operator has a fault; its log has the traceback."
    # Prefill-, Decode-, RouterAvailable
    ALL_READY = "AllReady", "All wanted pods are ready."
    MINIMUM_READY = "MinimumReady", "All wanted pods but one are ready."
    SCALED_TO_ZERO = "ScaledToZero", "No pod is wanted."
    PODS_MISSING = "PodsMissing", "Pods are not created yet, and nobody has said why."
    PODS_REFUSED = (
        "PodsRefused",
        "The API server refuses the pods: an admission policy, a LimitRange, a security profile.",
    )
    UNSCHEDULABLE = "Unschedulable", "No node fits a pod."
    IMAGE_PULL_FAILED = "ImagePullFailed", "An image cannot be pulled."
    CONTAINER_CONFIG_INVALID = "ContainerConfigInvalid", "A container names a Secret or ConfigMap that is not there."
    PREFLIGHT_REFUSED = "PreflightRefused", "The check before an engine's start refused the node or the image."
    OUT_OF_MEMORY = "OutOfMemory", "A container was killed because it took more memory than its limit."
    CRASH_LOOPING = "CrashLooping", "A container ends again and again soon after its start."
    INIT_FAILED = "InitFailed", "An init container failed."
    MODEL_LOADING = "ModelLoading", "An engine is starting: it loads the model and compiles."
    CONTAINER_STARTING = (
        "ContainerStarting",
        "A pod has a node and is being prepared: images, volumes, init containers.",
    )
    NOT_ANSWERING = "NotAnswering", "A container was started and does not answer its readiness check."
    NODE_LOST = "NodeLost", "The node of a pod does not report any more."
    POD_ENDED = "PodEnded", "A pod ended or was evicted."
    INSUFFICIENT_REPLICAS = "InsufficientReplicas", "Fewer pods are ready than are needed."
    # TransportReady
    EFA = "EFA", "Engines use EFA."
    SOCKET = "Socket", "Engines use sockets, as the spec asks."
    SOCKET_FALLBACK = "SocketFallback", "EFA was asked for and is not there; engines use sockets, as the spec allows."
    FABRIC_UNAVAILABLE = "FabricUnavailable", "An engine found no transport that it may use."
    MIXED_TRANSPORT = "MixedTransport", "Some engines use EFA and others sockets; they cannot read from each other."
    # ReuseActive
    BYTES_MOVED = "BytesMoved", "Bytes of earlier turns moved from decode to prefill."
    NOT_ASKED = "NotAsked", "The spec asks for the direction from prefill to decode alone."
    NO_TRAFFIC = "NoTraffic", "No prompt came in."
    NO_SECOND_TURNS = "NoSecondTurns", "Prompts came in, and none of them named an engine that has its history."
    PREFILL_ONLY = "PrefillOnly", "Prefill engines read from each other and not from decode engines."
    ALL_EMPTY = "AllEmpty", "Engines were asked for history and had none of it any more."
    CLAIMS_REFUSED = "ClaimsRefused", "Engines refused to hand out history."
    CLAIMS_LATE = "ClaimsLate", "Answers came too late, or kept blocks expired before the next turn."
    UNCONNECTED = "Unconnected", "Engines are not connected with those that hold the history."
    READS_FAILING = "ReadsFailing", "Reads of history fail or exceed their time limit."
    NOTHING_READ = "NothingRead", "Prompts came in and no history was read; the engines' counters do not say why."
    ENGINES_UNREACHABLE = "EnginesUnreachable", "No engine answered when its counters were read."
    # Stalled
    PROGRESSING = "Progressing", "It is on its way."
    COMPLETE = "Complete", "Nothing is left to do."
    PROGRESS_DEADLINE_EXCEEDED = (
        "ProgressDeadlineExceeded",
        "Nothing got better within rollout.progressDeadlineSeconds.",
    )


class EventReason(_Meant):
    """Reasons of events; each is written once per change."""

    APPLIED_OBJECTS = "AppliedObjects", "Objects were created or brought back to what the spec asks."
    CREATED_SECRETS = "CreatedSecrets", "Secrets with random content were made."
    CLAIM_KEY_REPLACED = "ClaimKeyReplaced", "A Secret that engines still use was gone and has new content."
    TENANT_SALT_REPLACED = (
        "TenantSaltReplaced",
        "The Secret with the tenants' salt was gone while routers ran and has new content.",
    )
    SECRET_FOUND = "SecretFound", "A Secret was there before anything that uses it, and its content is used as it is."
    LEFT_TO_ANOTHER = "LeftToAnother", "Another operator cares for this deployment, and this one leaves it alone."
    DELETED_OBJECTS = "DeletedObjects", "Objects that the spec asks for no longer were deleted."
    SCALED_OLD_REVISION = "ScaledOldRevision", "An older revision made room for the current one."
    SCALED_PREFILL = "ScaledPrefill", "The number of wanted prefill engines changed."
    SCALED_DECODE = "ScaledDecode", "The number of wanted decode engines changed."
    ROLLOUT_STARTED = "RolloutStarted", "A change of the spec makes a new revision group."
    ROLLOUT_FINISHED = "RolloutFinished", "The current revision is available and no older one is left."
    INVALID_SPEC = "InvalidSpec", "The spec breaks a rule; the objects are left as they are."
    SPEC_ACCEPTED = "SpecAccepted", "The spec keeps every rule again."
    FAILED_TO_APPLY = "FailedToApply", "An object could not be made as the spec asks."
    PAUSED = "Paused", "The operator leaves the objects alone from now on."
    RESUMED = "Resumed", "The operator takes care of the objects again."
    BECAME_READY = "BecameReady", "Ready became True."
    BECAME_UNREADY = "BecameUnready", "Ready was True and is not any more."
    PREFILL_UNAVAILABLE = "PrefillUnavailable", "Too few prefill engines are ready, for a new reason."
    DECODE_UNAVAILABLE = "DecodeUnavailable", "Too few decode engines are ready, for a new reason."
    ROUTER_UNAVAILABLE = "RouterUnavailable", "Too few router pods are ready, for a new reason."
    TRANSPORT_DEGRADED = "TransportDegraded", "Engines fell back to sockets, or found no transport, or different ones."
    REUSE_STARTED = "ReuseStarted", "Bytes of earlier turns move from decode to prefill."
    REUSE_STOPPED = "ReuseStopped", "Bytes of earlier turns moved and do not any more."
    STALLED = "Stalled", "It does not get better by itself."
