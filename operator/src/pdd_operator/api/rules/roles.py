"""Rules of ``spec.prefill`` and ``spec.decode``: what an accelerator has and how an engine must use it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pdd_operator.api.accelerators import CPU, INSTANCE_TYPES
from pdd_operator.api.rules.problem import Problem
from pdd_operator.api.v1alpha1 import Accelerator, Autoscaling, Role, ScalingMetric

_MAX_COUNT: Final = 16
_MAX_EFA: Final = 32
_INSTANCE_TYPE_LABEL: Final = "node.kubernetes.io/instance-type"


def check_role(field: str, role: Role) -> Iterator[Problem]:
    """Everything in one role that can be judged without the rest. ``field``: ``spec.prefill`` or ``spec.decode``."""
    yield from _check_instance_type(field, role.accelerator)
    yield from _check_devices(field, role.accelerator)
    yield from _check_tensor_parallel(field, role)
    if role.accelerator.instance_type is not None and _INSTANCE_TYPE_LABEL in role.pod_template.node_selector:
        yield Problem(
            f"{field}.podTemplate.nodeSelector",
            f"`podTemplate.nodeSelector` must not have {_INSTANCE_TYPE_LABEL}: `accelerator.instanceType` says it",
        )
    if role.autoscaling is not None:
        yield from _check_autoscaling(field, role.replicas, role.autoscaling)


def _check_instance_type(field: str, accelerator: Accelerator) -> Iterator[Problem]:
    instance_type = accelerator.instance_type or ""
    if (accelerator.instance_type is None) == (accelerator.type is None):
        yield Problem(f"{field}.accelerator", "`accelerator` must have exactly one of `instanceType` and `type`")
    if instance_type and instance_type not in INSTANCE_TYPES:
        known = ", ".join(row.name for row in INSTANCE_TYPES.values() if row.refused is None)
        yield Problem(
            f"{field}.accelerator.instanceType",
            f'`instanceType` must be one of {known}, not "{instance_type}"',
        )
    if instance_type.startswith("trn1"):
        yield Problem(
            f"{field}.accelerator.instanceType",
            "`accelerator.instanceType` must not be trn1 or trn1n: vLLM's Neuron plugin runs on Trainium2 only. Use trn2.48xlarge",
        )
    if instance_type.startswith("inf2"):
        yield Problem(
            f"{field}.accelerator.instanceType",
            "`accelerator.instanceType` must not be inf2: there is no EFA and no other way to move KV cache between its devices. "
            "Use trn2.48xlarge",
        )


def _check_devices(field: str, accelerator: Accelerator) -> Iterator[Problem]:
    instance_type = accelerator.instance_type or ""
    row = INSTANCE_TYPES.get(instance_type)
    if accelerator.count > (row.accelerators if row else _MAX_COUNT):
        yield Problem(
            f"{field}.accelerator.count",
            "`accelerator.count` must be at most what the instance type has: 1 (p5.4xlarge), 4 (g6e.12xlarge, g6e.24xlarge), "
            "8 (p4d, p4de, p5.48xlarge, p5e, p5en, p6-b200, p6-b300, g6e.48xlarge, g7e) or 16 (trn2)",
        )
    if accelerator.type is not None and accelerator.count != 1:
        yield Problem(
            f"{field}.accelerator.count",
            "`accelerator.count` must be 1 on CPU: ask for more by `podTemplate.resources`",
        )
    most = CPU.efa_devices if accelerator.type is not None else row.efa_devices if row else _MAX_EFA
    if (accelerator.efa_devices or 0) > most:
        yield Problem(
            f"{field}.accelerator.efaDevices",
            "`accelerator.efaDevices` must be at most what the instance type has: 1 (p5.4xlarge, g6e.12xlarge), 2 (g6e.24xlarge), "
            "4 (p4d, p4de, g6e.48xlarge, g7e), 8 (p6-b200), 16 (p5en, p6-b300, trn2), 32 (p5.48xlarge, p5e), none on CPU. "
            "Leave it out to get the part that belongs to `count`",
        )
    efa_devices = accelerator.efa_devices
    if instance_type.startswith("trn2") and efa_devices is not None and efa_devices < accelerator.count:
        yield Problem(
            f"{field}.accelerator.efaDevices",
            "`accelerator.efaDevices` must be at least `accelerator.count` with Trainium: every Neuron device registers its memory "
            "with an EFA device of its own",
        )


def _check_tensor_parallel(field: str, role: Role) -> Iterator[Problem]:
    accelerator, size = role.accelerator, role.tensor_parallel_size
    instance_type = accelerator.instance_type or ""
    if instance_type and not instance_type.startswith(("trn", "inf")) and size != accelerator.count:
        yield Problem(
            f"{field}.tensorParallelSize",
            "`tensorParallelSize` must equal `accelerator.count` on GPU: one engine uses all GPUs of its pod",
        )
    row = INSTANCE_TYPES.get(instance_type)
    if row is not None and instance_type.startswith("trn2"):
        cores = row.cores_per_accelerator * accelerator.count
        if size > cores or size % accelerator.count:
            yield Problem(
                f"{field}.tensorParallelSize",
                "`tensorParallelSize` must be a multiple of `accelerator.count` and at most 4 times as much with Trainium: a device "
                "has 4 logical cores, and every device of the pod is used alike",
            )
    if accelerator.type is not None and size > CPU.cores_per_accelerator:
        yield Problem(
            f"{field}.tensorParallelSize",
            "`tensorParallelSize` must be at most 8 on CPU: a worker takes a NUMA node",
        )


def _check_autoscaling(field: str, replicas: int, autoscaling: Autoscaling) -> Iterator[Problem]:
    if replicas != 1:
        yield Problem(
            f"{field}.replicas",
            "`replicas` must be left out (or 1) where `autoscaling` is set: the autoscaler decides, between `minReplicas` and "
            "`maxReplicas`",
        )
    if autoscaling.min_replicas > autoscaling.max_replicas:
        yield Problem(f"{field}.autoscaling.minReplicas", "`minReplicas` must be at most `maxReplicas`")
    value = autoscaling.target.value
    percentage = value.isdecimal() and 1 <= int(value) <= 100
    if autoscaling.target.metric is ScalingMetric.CPU_UTILIZATION and not percentage:
        yield Problem(
            f"{field}.autoscaling.target.value",
            "`value` must be a whole percentage from 1 to 100 with metric CPUUtilization",
        )
