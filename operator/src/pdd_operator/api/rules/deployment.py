"""Rules between the parts of a PDDeployment, and of the small parts that have no module of their own. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from pdd_operator.api.accelerators import CPU, INSTANCE_TYPES
from pdd_operator.api.names import MAX_NAME_LENGTH
from pdd_operator.api.rules.problem import Problem
from pdd_operator.api.v1alpha1 import (
    Accelerator,
    Backend,
    Fallback,
    KVCacheDType,
    KVTransfer,
    Mechanism,
    Model,
    Privileges,
    Spec,
)

_NAME: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_FP8: Final = (KVCacheDType.FP8, KVCacheDType.FP8_E4M3, KVCacheDType.FP8_E5M2)


def check_name(name: str) -> Iterator[Problem]:
    """``metadata.name``."""
    if len(name) > MAX_NAME_LENGTH or not _NAME.fullmatch(name):
        yield Problem(
            "metadata.name",
            "`metadata.name` must be at most 37 lower-case letters, digits and hyphens, begin with a letter and not end with a "
            "hyphen: Services and StatefulSets are named after it",
        )


def check_model(model: Model) -> Iterator[Problem]:
    """``spec.model``."""
    source = model.source
    if source.hugging_face is not None and not re.fullmatch(r"[^/]+(/[^/]+)?", model.name):
        yield Problem("spec.model.name", "`name` must be `MODEL` or `OWNER/MODEL` where it is loaded from Hugging Face")
    if ".." in model.name or "//" in model.name:
        yield Problem("spec.model.name", "`name` must not contain `..` or `//`")
    kinds = (source.hugging_face, source.persistent_volume_claim, source.image)
    if sum(kind is not None for kind in kinds) != 1:
        yield Problem(
            "spec.model.source",
            "`source` must have exactly one of `huggingFace`, `persistentVolumeClaim` and `image`",
        )
    for field, volume in (("persistentVolumeClaim", source.persistent_volume_claim), ("image", source.image)):
        if volume is not None and ".." in volume.path.split("/"):
            yield Problem(f"spec.model.source.{field}.path", "`path` must not lead out of the volume by `..`")


def check_between(spec: Spec) -> Iterator[Problem]:
    """Rules that look at several parts of the specification."""
    yield from _check_platforms(spec)
    yield from _check_transport(spec)
    yield from _check_mechanism(spec)
    yield from _check_transfer(spec.kv_transfer)
    yield from _check_cpu(spec)
    if spec.rollout.progress_deadline_seconds <= spec.engine.startup_timeout_seconds:
        yield Problem(
            "spec.rollout.progressDeadlineSeconds",
            "`rollout.progressDeadlineSeconds` must be greater than `engine.startupTimeoutSeconds`: an engine may take that long to "
            "load",
        )


def _accelerators(spec: Spec) -> tuple[Accelerator, Accelerator]:
    return spec.prefill.accelerator, spec.decode.accelerator


def _is_neuron(accelerator: Accelerator) -> bool:
    return (accelerator.instance_type or "").startswith(("trn", "inf"))


def _on_trainium2(spec: Spec) -> bool:
    return any((accelerator.instance_type or "").startswith("trn2") for accelerator in _accelerators(spec))


def _check_platforms(spec: Spec) -> Iterator[Problem]:
    prefill, decode = _accelerators(spec)
    if (prefill.type is None) != (decode.type is None) or _is_neuron(prefill) != _is_neuron(decode):
        yield Problem(
            "spec.decode.accelerator",
            "`decode.accelerator` must be of the same platform as `prefill.accelerator` (GPU, Neuron or CPU): engines of different "
            "platforms cannot read each other's KV cache",
        )


def _has_efa(accelerator: Accelerator) -> bool:
    row = CPU if accelerator.type is not None else INSTANCE_TYPES.get(accelerator.instance_type or "")
    return row is None or row.efa_devices > 0


def _check_transport(spec: Spec) -> Iterator[Problem]:
    transport = spec.transport
    for role in ("prefill", "decode"):
        accelerator = getattr(spec, role).accelerator
        if transport.backend is Backend.EFA and not _has_efa(accelerator):
            yield Problem(
                "spec.transport.backend",
                "`transport.backend` must be Socket: CPU, trn1.2xlarge and inf2 have no EFA",
            )
        if transport.backend is not Backend.EFA and accelerator.efa_devices is not None:
            yield Problem(
                f"spec.{role}.accelerator.efaDevices",
                f"`{role}.accelerator.efaDevices` must be left out where `transport.backend` is Socket",
            )
    strict = transport.backend is Backend.EFA and transport.fallback is Fallback.REFUSE
    if _on_trainium2(spec) and not strict:
        yield Problem(
            "spec.transport",
            "`transport` must have backend EFA and fallback Refuse with Trainium: nothing else moves the memory of Neuron devices",
        )
    if transport.privileges is not Privileges.IPC_LOCK and transport.backend is not Backend.EFA:
        yield Problem(
            "spec.transport.privileges",
            "`privileges` must be IPCLock where `backend` is Socket: only EFA may need more",
        )


def _check_mechanism(spec: Spec) -> Iterator[Problem]:
    prefill, decode = spec.prefill.tensor_parallel_size, spec.decode.tensor_parallel_size
    if spec.kv_transfer.mechanism is Mechanism.CLAIM:
        if _on_trainium2(spec):
            yield Problem(
                "spec.kvTransfer.mechanism",
                "`kvTransfer.mechanism` must be Retain with Trainium: NeuronNixlConnector speaks upstream's protocol and cannot answer "
                "claims",
            )
        if prefill != decode:
            yield Problem(
                "spec.decode.tensorParallelSize",
                "`decode.tensorParallelSize` must equal `prefill.tensorParallelSize` with mechanism Claim: a claimed block has the same "
                "parts on every rank",
            )
        return
    if prefill % decode and decode % prefill:
        yield Problem(
            "spec.decode.tensorParallelSize",
            "`decode.tensorParallelSize` must divide `prefill.tensorParallelSize` or be a multiple of it with mechanism Retain",
        )
    if spec.router.conversation_ttl_seconds >= spec.kv_transfer.retain.decoder_blocks_ttl_seconds:
        yield Problem(
            "spec.router.conversationTTLSeconds",
            "`router.conversationTTLSeconds` must be less than `kvTransfer.retain.decoderBlocksTTLSeconds` with mechanism Retain: the "
            "router must forget a handle before decode does",
        )


def _check_transfer(transfer: KVTransfer) -> Iterator[Problem]:
    claim, retain = transfer.claim, transfer.retain
    # What an owner promises of it (the connector's `promised_seconds`), in milliseconds.
    if claim.hold_seconds * 980 - 100 <= claim.timeout_milliseconds + transfer.read_timeout_milliseconds:
        yield Problem(
            "spec.kvTransfer.claim.holdSeconds",
            "`claim.holdSeconds` must be longer than `claim.timeoutMilliseconds` and `readTimeoutMilliseconds` together, and 2 % and "
            "100 ms more for clocks that differ: a claim must outlast its answer and its read",
        )
    if retain.lease_seconds > retain.decoder_blocks_ttl_seconds:
        yield Problem("spec.kvTransfer.retain.leaseSeconds", "`leaseSeconds` must be at most `decoderBlocksTTLSeconds`")


def _check_cpu(spec: Spec) -> Iterator[Problem]:
    if all(accelerator.type is None for accelerator in _accelerators(spec)):
        return
    if spec.engine.block_size % 32:
        yield Problem(
            "spec.engine.blockSize",
            "`engine.blockSize` must be a multiple of 32 on CPU: attention on CPU takes no other",
        )
    if spec.engine.kv_cache_dtype in _FP8:
        yield Problem(
            "spec.engine.kvCacheDtype",
            "`engine.kvCacheDtype` must be auto or bfloat16 on CPU: there is no fp8 KV cache",
        )
