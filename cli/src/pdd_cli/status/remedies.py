"""What to do about each reason of a condition: the words of docs/conditions.md, to which a test holds them. Data."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from pdd_operator.observe.reasons import Reason

REMEDIES: Final[Mapping[Reason, str]] = MappingProxyType(
    {
        Reason.NOT_OBSERVED: "Wait. For TransportReady: no engine has passed its preflight. For ReuseActive: counters are read every half minute, twice before a verdict.",
        Reason.ALL_AVAILABLE: "Nothing.",
        Reason.VALID: "Nothing.",
        Reason.INVALID_SPEC: "Change the fields that the message names. crds/README.md has every rule with an example.",
        Reason.UNSUPPORTED_ACCELERATOR: "Choose another `accelerator.instanceType`, `accelerator.count` or `tensorParallelSize`; the message says what it must be.",
        Reason.INCOMPATIBLE_TRANSFER: "Change `spec.transport` or `spec.kvTransfer` as the message says.",
        Reason.PRIVILEGES_REFUSED: "Leave `spec.transport.privileges` at IPCLock and raise the nodes' limit of locked memory; or let whoever installed the operator set the chart value `allowPrivileged`. It is for EFA only.",
        Reason.UP_TO_DATE: "Nothing.",
        Reason.ROLLING_OUT: "Wait. For a new revision the message counts its ready engines; to go back apply the old spec, whose engines are there until the new ones are available. What is no part of the revision (pod template, router) is replaced pod by pod. Stalled tells when it takes too long.",
        Reason.PAUSED: "Remove the annotation `pdserve.io/reconcile: paused` when you are done.",
        Reason.SPEC_NOT_ACCEPTED: "See Accepted.",
        Reason.APPLY_FAILED: "The message has the API server's words: often an admission policy, or a field of `podTemplate` that Kubernetes refuses.",
        Reason.CONFLICT: "Nothing; it is tried again. If it stays, another controller writes the same fields: look at `metadata.managedFields` of the object.",
        Reason.FORBIDDEN: "Give the operator the right that the message names: install the chart of the same release, or repair its Role.",
        Reason.QUOTA_EXCEEDED: "Raise the ResourceQuota of the namespace, or lower `replicas`. Everything that needs no room is still done.",
        Reason.FOREIGN_OBJECT: "Give this PDDeployment another name, or move what uses that object elsewhere. Pods that would run with a foreign ServiceAccount, Role or ConfigMap are neither made nor changed meanwhile; the message names them. An object that only lost its `ownerReferences` is taken back by itself as long as it has its label `pdserve.io/owner-uid`.",
        Reason.API_UNAVAILABLE: "Nothing; it is tried again. If it stays, look at the API server.",
        Reason.INTERNAL_ERROR: "Report the traceback from the operator's log. Traffic is not touched.",
        Reason.ALL_READY: "Nothing.",
        Reason.MINIMUM_READY: "Nothing urgent; the message says why one is not ready.",
        Reason.SCALED_TO_ZERO: "Raise `replicas` when you need it.",
        Reason.PODS_MISSING: "Wait a moment: what refuses them is said within half a minute (PodsRefused, QuotaExceeded).",
        Reason.PODS_REFUSED: "The message has the refusal and the field or object that helps. Engines that use EFA need IPC_LOCK (or `spec.transport.privileges: Privileged`), which a namespace that enforces Pod Security's baseline or restricted level does not allow.",
        Reason.UNSCHEDULABLE: "The message names the missing resource, the field that asks for it and the nodes to add. `pdd doctor` shows what nodes have.",
        Reason.IMAGE_PULL_FAILED: "Correct the image or `imagePullSecretNames` that the message names.",
        Reason.CONTAINER_CONFIG_INVALID: "Create the Secret or ConfigMap, or correct the field that names it.",
        Reason.PREFLIGHT_REFUSED: "The message says what the node or the image lacks: devices, huge pages, locked memory, the provider, the plugin.",
        Reason.OUT_OF_MEMORY: "Raise the memory limit, or lower `spec.engine.maxModelLen` (on CPU: `cpuKVCacheGiB`).",
        Reason.CRASH_LOOPING: "`kubectl logs POD --previous`. The message has exit code and last words; often `extraArgs`, a model that does not fit, or a driver.",
        Reason.INIT_FAILED: "`kubectl logs POD -c CONTAINER`.",
        Reason.MODEL_LOADING: "Wait. If it ends in CrashLooping with no error, raise `spec.engine.startupTimeoutSeconds`.",
        Reason.CONTAINER_STARTING: "Wait. If it stays, create what the message says that volumes need; or see `kubectl describe pod`, which has the reason of any other volume.",
        Reason.NOT_ANSWERING: "Look at the log: the process runs and does not serve. It gets no traffic meanwhile.",
        Reason.NODE_LOST: "Repair or remove the node; the pod is replaced when the node is gone.",
        Reason.POD_ENDED: "Nothing if it happens once; the pod is replaced. Evictions again and again: the node is short of memory or disk.",
        Reason.INSUFFICIENT_REPLICAS: "Wait: pods are being made or ended.",
        Reason.EFA: "Nothing.",
        Reason.SOCKET: "Nothing; for tests and CPU. On instances with EFA set `spec.transport.backend: EFA`.",
        Reason.SOCKET_FALLBACK: "Repair what the message says is missing; then restart the engines (delete the pods). Or set `fallback: Refuse` to have no slow engines.",
        Reason.FABRIC_UNAVAILABLE: "Repair what the message says, or allow sockets with `spec.transport.fallback: Socket`.",
        Reason.MIXED_TRANSPORT: "Put all engines on nodes of one kind, or replace the nodes whose EFA is missing.",
        Reason.BYTES_MOVED: "Nothing. The share is the part of prefill's prompt tokens that was read instead of computed.",
        Reason.NOT_ASKED: "Set `spec.kvTransfer.direction: Bidirectional` to reuse history.",
        Reason.NO_TRAFFIC: "Nothing.",
        Reason.NO_SECOND_TURNS: "Nothing if prompts are single turns. Else: clients reach the engines past the router, or `conversationTTLSeconds` is too short.",
        Reason.PREFILL_ONLY: "Raise decode's KV cache: more replicas, more memory, fewer or shorter conversations.",
        Reason.ALL_EMPTY: "As PrefillOnly; or prompts differ from the history (a template that drops reasoning, an edited message).",
        Reason.CLAIMS_REFUSED: "As the message says for the refusal that is most frequent.",
        Reason.CLAIMS_LATE: "Claim: raise `claim.timeoutMilliseconds`, or give engines more CPU. Retain: raise `decoderBlocksTTLSeconds`.",
        Reason.UNCONNECTED: "Open ports 5600 and 6600 between engine pods, both ways (NetworkPolicies of others, security groups).",
        Reason.READS_FAILING: "See the engines' logs and TransportReady; raise `readTimeoutMilliseconds` if reads are merely slow.",
        Reason.NOTHING_READ: "See the logs of prefill and decode.",
        Reason.ENGINES_UNREACHABLE: "Let the operator reach port 8000 of engine pods: NetworkPolicies of others, a service mesh.",
        Reason.PROGRESSING: "Wait.",
        Reason.COMPLETE: "Nothing.",
        Reason.PROGRESS_DEADLINE_EXCEEDED: "Repair what the message says; it has the reason of Ready.",
    }
)
