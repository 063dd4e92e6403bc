"""What an accelerator instance has: one row per instance type, each with its source. Pure data, the lowest layer.

The rules of the CRD carry the same numbers (a test holds the two equal); the renderer's catalog adds environment, images and
resources on top. A type that is not here is refused, because nobody could say how many EFA devices a part of it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class Platform(StrEnum):
    """What an engine image is built for."""

    GPU = "GPU"
    NEURON = "Neuron"
    CPU = "CPU"


@dataclass(frozen=True, slots=True)
class InstanceType:
    """One row. ``accelerators``: GPUs or Neuron devices of the whole instance, 0 on CPU.

    ``cores_per_accelerator``: what tensor parallelism divides: 1 per GPU; logical NeuronCores per device at the default
    configuration; on CPU workers per engine. ``accelerator_memory_gib``: per accelerator, as its vendor sells it. ``network_gbps``: 0 where nothing is
    published. ``refused``: why prefill and decode cannot run here, None where they can.
    """

    name: str
    platform: Platform
    accelerators: int
    cores_per_accelerator: int
    accelerator_memory_gib: int
    efa_devices: int
    network_gbps: int
    vcpus: int
    memory_gib: int
    refused: str | None
    source: str

    def efa_share(self, count: int) -> int:
        """EFA devices that belong to ``count`` of the instance's accelerators: the whole number below the even share, at least 1.

        0 where the instance has none. What is left over by small parts is given to nobody.
        """
        if self.efa_devices == 0 or self.accelerators == 0:
            return 0
        return max(1, self.efa_devices * count // self.accelerators)


_KARPENTER: Final = "Karpenter's reference of instance types (aws/karpenter-provider-aws 1d927085, 2026-08-21)"
_NEURON_LNC: Final = f"{_KARPENTER}; cores: 128 physical, two to a logical core by default (AWS Neuron, Trainium2)"
_TRN1: Final = (
    "vLLM's Neuron plugin runs on Trainium2 only, and what transferred KV blocks on Trainium1 spoke another protocol "
    "and had no prefix cache"
)
_INF2: Final = "Inferentia2 has no EFA and no other documented way to transfer KV blocks between its devices"
_TRN1_2XLARGE: Final = "trn1.2xlarge has no EFA and vLLM's Neuron plugin does not run on Trainium1"


def _gpu(
    name: str, accelerators: int, memory: int, efa: int, gbps: int, vcpus: int, ram: int, source: str = _KARPENTER
) -> InstanceType:
    return InstanceType(name, Platform.GPU, accelerators, 1, memory, efa, gbps, vcpus, ram, None, source)


def _neuron(
    name: str, devices: int, cores: int, memory: int, efa: int, gbps: int, vcpus: int, ram: int, refused: str | None
) -> InstanceType:
    source = _KARPENTER if refused else _NEURON_LNC
    return InstanceType(name, Platform.NEURON, devices, cores, memory, efa, gbps, vcpus, ram, refused, source)


_ROWS: Final = (
    _gpu("p4d.24xlarge", 8, 40, 4, 400, 96, 1152),
    _gpu("p4de.24xlarge", 8, 80, 4, 400, 96, 1152),
    _gpu("p5.4xlarge", 1, 80, 1, 100, 16, 256),
    _gpu("p5.48xlarge", 8, 80, 32, 3200, 192, 2048),
    _gpu("p5e.48xlarge", 8, 141, 32, 3200, 192, 2048),
    _gpu("p5en.48xlarge", 8, 141, 16, 3200, 192, 2048),
    _gpu("p6-b200.48xlarge", 8, 179, 8, 3200, 192, 2048),
    _gpu("p6-b300.48xlarge", 8, 288, 16, 6400, 192, 4096, f"{_KARPENTER}; memory per GPU: NVIDIA's data sheet of B300"),
    _gpu("g6e.12xlarge", 4, 48, 1, 100, 48, 384),
    _gpu("g6e.24xlarge", 4, 48, 2, 200, 96, 768),
    _gpu("g6e.48xlarge", 8, 48, 4, 400, 192, 1536),
    _gpu("g7e.48xlarge", 8, 96, 4, 1600, 192, 2048),
    _neuron("trn2.48xlarge", 16, 4, 96, 16, 3200, 192, 2048, None),
    _neuron("trn1.2xlarge", 1, 2, 32, 0, 3, 8, 32, _TRN1_2XLARGE),
    _neuron("trn1.32xlarge", 16, 2, 32, 8, 800, 128, 512, _TRN1),
    _neuron("trn1n.32xlarge", 16, 2, 32, 16, 1600, 128, 512, _TRN1),
    _neuron("inf2.xlarge", 1, 2, 32, 0, 0, 4, 16, _INF2),
    _neuron("inf2.8xlarge", 1, 2, 32, 0, 0, 32, 128, _INF2),
    _neuron("inf2.24xlarge", 6, 2, 32, 0, 0, 96, 384, _INF2),
    _neuron("inf2.48xlarge", 12, 2, 32, 0, 0, 192, 768, _INF2),
)

INSTANCE_TYPES: Final[Mapping[str, InstanceType]] = MappingProxyType({row.name: row for row in _ROWS})
"""By name of the instance type."""

CPU: Final = InstanceType(
    "CPU", Platform.CPU, 0, 8, 0, 0, 0, 0, 0, None, "any node; a worker per NUMA node, of which servers have at most 8"
)
"""``accelerator.type: CPU``: no device; the size of a pod is what ``podTemplate.resources`` asks for."""


def find(instance_type: str | None) -> InstanceType | None:
    """The row of ``accelerator.instanceType``, ``CPU`` for None, and None where the type is not known."""
    return CPU if instance_type is None else INSTANCE_TYPES.get(instance_type)
