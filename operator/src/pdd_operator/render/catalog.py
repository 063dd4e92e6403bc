"""What an engine pod gets on its hardware: devices, cpu, memory, environment, connector, transport. Data with a source per row.

Pure. The table of instance types (accelerators, EFA devices, memory) is in ``api.accelerators``; here is what follows from
it for a part of a node. Sources in brackets: [EKS] Amazon EKS user guide, EFA on nodes; [dynamo] ai-dynamo, EFA guide;
[nixl] NIXL's sources, 1.5; [vllm] vLLM's sources, 0.32; [neuron] AWS Neuron SDK, vLLM guides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from pdd_operator.api.accelerators import InstanceType, Platform, find
from pdd_operator.api.parse import InvalidSpecError
from pdd_operator.api.rules import Problem
from pdd_operator.api.v1alpha1 import Accelerator, Backend, Role


class UnsupportedError(InvalidSpecError):
    """There is nothing known here that would do what the object asks: hardware that the rules let through, an image."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__((Problem(field, message),))


@dataclass(frozen=True, slots=True)
class PlatformRow:
    """``device_resource``: extended resource of one accelerator. ``own_connector``: whether ``PddConnector`` runs there."""

    device_resource: str | None
    toleration_key: str | None
    kv_buffer_device: str
    connector_class: str
    own_connector: bool
    default_env: Mapping[str, str]
    arguments: tuple[str, ...]
    source: str


@dataclass(frozen=True, slots=True)
class TransportRow:
    """How NIXL moves KV. ``env`` is part of the transport and not for a user to change; ``tuning`` is."""

    nixl_backend: str
    env: Mapping[str, str]
    tuning: Mapping[str, str]
    library_path: tuple[str, ...]
    source: str


@dataclass(frozen=True, slots=True)
class Share:
    """One pod's part of a node. ``devices``: extended resources and huge pages, request equal to limit.

    ``memory_limited``: whether the memory request is the limit too; not on CPU, where nobody knows what the weights take.
    """

    devices: Mapping[str, str]
    cpu: str
    memory_gib: int
    memory_limited: bool
    efa_devices: int
    huge_pages_mib: int
    shared_memory_gib: int


EFA_RESOURCE: Final = "vpc.amazonaws.com/efa"
EFA_TOLERATION: Final = "aws.amazon.com/efa"
"""[EKS] example of the EFA device plugin's chart."""
HUGE_PAGES: Final = "hugepages-2Mi"
_POD_HUGE_PAGES_MIB: Final = 5120
"""[EKS] EFA samples ask for 5120Mi a pod."""
_NODE_HUGE_PAGES_MIB: Final = 5128 * 2
"""[EKS] EFA AMIs allocate 5128 pages of 2 MiB at boot."""
_PERCENT_FOR_PODS: Final = 85
"""Of a node's cpu and memory: kubelet, system and device plugins need the rest."""
_SHARED_MEMORY_GIB_PER_ACCELERATOR: Final = 8
_CPU_CORES_PER_WORKER: Final = 4
_CPU_WEIGHTS_GIB: Final = 8
_ACCELERATORS: Final = "spec.prefill.accelerator, spec.decode.accelerator"

PLATFORMS: Final[Mapping[Platform, PlatformRow]] = MappingProxyType(
    {
        Platform.GPU: PlatformRow(
            device_resource="nvidia.com/gpu",
            toleration_key="nvidia.com/gpu",
            kv_buffer_device="cuda",
            connector_class="PddConnector",
            own_connector=True,
            default_env={},
            arguments=(),
            source="[vllm] kv_buffer_device must be the platform's own, or a read back waits for ever",
        ),
        Platform.NEURON: PlatformRow(
            device_resource="aws.amazon.com/neuron",
            toleration_key="aws.amazon.com/neuron",
            kv_buffer_device="cuda",
            connector_class="NeuronNixlConnector",
            own_connector=False,
            default_env={},
            arguments=("--no-disable-hybrid-kv-cache-manager",),
            source='[neuron] tutorial of disaggregated inference; kv_buffer_device "cuda" is literal there',
        ),
        Platform.CPU: PlatformRow(
            device_resource=None,
            toleration_key=None,
            kv_buffer_device="cpu",
            connector_class="PddConnector",
            own_connector=True,
            # Without the first, the first request for log-probabilities ends an engine whose image has no compiler, although it
            # runs eagerly. Without the others, the workers of an idle engine spin on every core that they are given.
            default_env={
                "TORCHDYNAMO_DISABLE": "1",
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                "VLLM_SLEEP_WHEN_IDLE": "1",
                "KMP_BLOCKTIME": "0",
                "OMP_WAIT_POLICY": "PASSIVE",
            },
            arguments=("--enforce-eager",),
            source="[vllm] CPU build; run by this project's own tests",
        ),
    }
)

_EFA_LIBRARIES: Final = ("/opt/amazon/efa/lib", "/opt/amazon/efa/lib64", "/opt/aws-ofi-nccl/lib")
_LIBFABRIC: Final = TransportRow(
    nixl_backend="LIBFABRIC",
    # Left to itself LIBFABRIC takes TCP where EFA does not answer, without a word.
    env={
        "FI_PROVIDER": "efa",
        "FI_EFA_USE_DEVICE_RDMA": "1",
        "FI_EFA_ENABLE_SHM_TRANSFER": "0",
        "FI_EFA_ENABLE_SHM": "0",
    },
    tuning={
        "FI_EFA_FORK_SAFE": "0",
        "FI_EFA_USE_HUGE_PAGE": "1",
        "FI_EFA_MR_MAX_CACHED_COUNT": "524288",
        "FI_EFA_MR_MAX_CACHED_SIZE": "0",
        "NIXL_LIBFABRIC_NUM_THREADS": "4",
    },
    library_path=_EFA_LIBRARIES,
    source="[dynamo] environment of NIXL on EFA; [nixl] libfabric_common.cpp: provider order cxi, efa, tcp",
)


def _sockets(transports: str, source: str) -> TransportRow:
    return TransportRow("UCX", {"UCX_TLS": transports}, {}, (), source)


TRANSPORTS: Final[Mapping[tuple[Platform, Backend], TransportRow]] = MappingProxyType(
    {
        (Platform.GPU, Backend.EFA): _LIBFABRIC,
        (Platform.NEURON, Backend.EFA): _LIBFABRIC,
        (Platform.GPU, Backend.SOCKET): _sockets(
            "tcp,cuda_copy", "[nixl] the UCX plugin refuses a UCX_TLS without CUDA where GPUs are present"
        ),
        (Platform.CPU, Backend.SOCKET): _sockets("tcp", "run by this project's own tests"),
    }
)
"""Absent: no way to move KV is documented. LIBFABRIC over TCP is never one: it hangs, and knows no device memory ([nixl] PR 2205)."""


def instance_of(accelerator: Accelerator) -> InstanceType:
    """Raises UnsupportedError for an instance type that is not in the table."""
    row = find(accelerator.instance_type)
    if row is None:
        raise UnsupportedError(
            _ACCELERATORS, f"`instanceType` must be one that is known, not {accelerator.instance_type!r}"
        )
    return row


def platform_of(role: Role) -> Platform:
    return instance_of(role.accelerator).platform


def transport_of(platform: Platform, backend: Backend) -> TransportRow:
    """Raises UnsupportedError where KV cannot be moved so."""
    row = TRANSPORTS.get((platform, backend))
    if row is None:
        raise UnsupportedError(
            "spec.transport", f"`backend` must not be {backend} on {platform}: there is no documented way to move KV so"
        )
    return row


def share_of(role: Role, backend: Backend, cpu_kv_cache_gib: int) -> Share:
    """What a pod of this role asks for by default. ``cpu_kv_cache_gib`` counts on CPU only."""
    instance, count = instance_of(role.accelerator), role.accelerator.count
    resource = PLATFORMS[instance.platform].device_resource
    if resource is None:
        cores = _CPU_CORES_PER_WORKER * role.tensor_parallel_size
        # Every worker has a cache of its own of that size; the weights are shared out.
        memory_gib = cpu_kv_cache_gib * role.tensor_parallel_size + _CPU_WEIGHTS_GIB
        return Share({}, str(cores), memory_gib, False, 0, 0, 2)
    devices = {resource: str(count)}
    efa, pages = 0, 0
    if backend is Backend.EFA:
        efa = role.accelerator.efa_devices or instance.efa_share(count)
        pages = min(_POD_HUGE_PAGES_MIB, _NODE_HUGE_PAGES_MIB * count // instance.accelerators // 2 * 2)
        devices |= {EFA_RESOURCE: str(efa), HUGE_PAGES: f"{pages}Mi"}
    return Share(
        devices=devices,
        cpu=f"{instance.vcpus * 1000 * count * _PERCENT_FOR_PODS // (100 * instance.accelerators)}m",
        memory_gib=max(1, instance.memory_gib * count * _PERCENT_FOR_PODS // (100 * instance.accelerators)),
        memory_limited=True,
        efa_devices=efa,
        huge_pages_mib=pages,
        shared_memory_gib=_SHARED_MEMORY_GIB_PER_ACCELERATOR * count,
    )
