"""``PDDeployment`` of ``pdserve.io/v1alpha1``, typed. crds/pddeployments.yaml is the source; a test holds the two equal.

Parses what the API server has accepted and what a person has in a file (``pdd render``), so it knows every default and
every bound of the schema. Rules between fields are in ``rules``. Frozen; unknown fields are refused.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from pdd_operator.api.placement import Affinity, Toleration, TopologySpreadConstraint
from pdd_operator.api.section import AnnotationMap, LabelMap, ObjectName, Section
from pdd_operator.api.volumes import Volume, VolumeMount


class InstanceFamily(StrEnum):
    """Accelerators that need no instance type."""

    CPU = "CPU"


class DType(StrEnum):
    AUTO = "auto"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FLOAT32 = "float32"


class KVCacheDType(StrEnum):
    AUTO = "auto"
    BFLOAT16 = "bfloat16"
    FP8 = "fp8"
    FP8_E4M3 = "fp8_e4m3"
    FP8_E5M2 = "fp8_e5m2"


class ImagePullPolicy(StrEnum):
    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class Backend(StrEnum):
    EFA = "EFA"
    SOCKET = "Socket"


class Fallback(StrEnum):
    REFUSE = "Refuse"
    SOCKET = "Socket"


class Privileges(StrEnum):
    """What an engine's container may do to register accelerator memory with EFA."""

    IPC_LOCK = "IPCLock"
    PRIVILEGED = "Privileged"


class Mechanism(StrEnum):
    CLAIM = "Claim"
    RETAIN = "Retain"


class Direction(StrEnum):
    BIDIRECTIONAL = "Bidirectional"
    PREFILL_TO_DECODE = "PrefillToDecode"


class Strategy(StrEnum):
    SURGE = "Surge"
    IN_PLACE = "InPlace"


class OnPrefillFailure(StrEnum):
    RETRY = "Retry"
    AGGREGATE = "Aggregate"
    FAIL = "Fail"


class CacheIsolation(StrEnum):
    PER_TENANT = "PerTenant"
    SHARED = "Shared"


class ServiceType(StrEnum):
    CLUSTER_IP = "ClusterIP"
    NODE_PORT = "NodePort"
    LOAD_BALANCER = "LoadBalancer"


class Switch(StrEnum):
    """``Auto``: where the cluster has that kind."""

    AUTO = "Auto"
    NEVER = "Never"


class PolicyMode(StrEnum):
    ENABLED = "Enabled"
    DISABLED = "Disabled"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class ScalingMetric(StrEnum):
    """CPUUtilization is a resource metric; the others are pod metrics that a metrics adapter must serve (docs)."""

    CPU_UTILIZATION = "CPUUtilization"
    QUEUE_WAIT_SECONDS = "QueueWaitSeconds"
    RUNNING_REQUESTS = "RunningRequests"
    WAITING_REQUESTS = "WaitingRequests"


_NO_BLANKS = r"^\S+$"

ImageReference = Annotated[str, Field(min_length=1, max_length=512, pattern=_NO_BLANKS)]
ImageName = Annotated[str, Field(min_length=1, max_length=512)]


class HuggingFace(Section):
    token_secret_name: ObjectName | None = None
    """Secret with the key ``token``."""


class PersistentVolumeClaim(Section):
    claim_name: ObjectName
    path: Annotated[str, Field(max_length=1024, pattern=r"^[^/].*$|^$")] = ""
    """Folder of the model within the volume, relative."""


class ModelImage(Section):
    """An OCI image that is mounted as a read-only volume."""

    reference: ImageReference
    path: Annotated[str, Field(max_length=1024, pattern=r"^[^/].*$|^$")] = ""
    pull_policy: ImagePullPolicy = ImagePullPolicy.IF_NOT_PRESENT


class ModelSource(Section):
    hugging_face: HuggingFace | None = None
    persistent_volume_claim: PersistentVolumeClaim | None = None
    image: ModelImage | None = None


class Model(Section):
    name: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$")]
    served_name: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[^\s-]\S*$")] | None = None
    revision: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$")] | None = (
        None
    )
    source: ModelSource = ModelSource(hugging_face=HuggingFace())


class KeyReference(Section):
    name: ObjectName
    key: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")]


class EnvSource(Section):
    secret_key_ref: KeyReference | None = None
    config_map_key_ref: KeyReference | None = None


class EnvVar(Section):
    name: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
    value: Annotated[str, Field(max_length=4096)] | None = None
    value_from: EnvSource | None = None


class Engine(Section):
    """What prefill and decode must share, hence not per role."""

    image: ImageName | None = None
    image_pull_policy: ImagePullPolicy = ImagePullPolicy.IF_NOT_PRESENT
    image_pull_secret_names: Annotated[tuple[ObjectName, ...], Field(max_length=8)] = ()
    dtype: DType = DType.AUTO
    kv_cache_dtype: Annotated[KVCacheDType, Field(alias="kvCacheDtype")] = KVCacheDType.AUTO
    max_model_len: Annotated[int, Field(ge=16, le=10_000_000)] | None = None
    max_num_seqs: Annotated[int, Field(ge=1, le=4096)] | None = None
    block_size: Annotated[int, Field(ge=16, le=128, multiple_of=16)] = 64
    memory_utilization_percent: Annotated[int, Field(ge=10, le=98)] = 90
    """Share of an accelerator's memory that vLLM takes. Nothing on CPU."""
    cpu_kv_cache_gib: Annotated[int, Field(alias="cpuKVCacheGiB", ge=1, le=1024)] = 4
    trust_remote_code: bool = False
    extra_args: Annotated[tuple[Annotated[str, Field(min_length=1, max_length=2048)], ...], Field(max_length=64)] = ()
    env: Annotated[tuple[EnvVar, ...], Field(max_length=64)] = ()
    startup_timeout_seconds: Annotated[int, Field(ge=60, le=14_400)] = 3600
    drain_timeout_seconds: Annotated[int, Field(ge=0, le=3600)] = 120


class Accelerator(Section):
    """Exactly one of ``instanceType`` and ``type``. ``count``: GPUs or Neuron devices per pod."""

    instance_type: Annotated[str, Field(min_length=1, max_length=32)] | None = None
    type: InstanceFamily | None = None
    count: Annotated[int, Field(ge=1, le=16)] = 1
    efa_devices: Annotated[int, Field(ge=1, le=32)] | None = None
    """Default: the part of the instance's EFA devices that belongs to ``count``."""


class ScalingTarget(Section):
    metric: ScalingMetric
    value: Annotated[
        str,
        Field(
            min_length=1, max_length=16, pattern=r"^([1-9][0-9]{0,8}|[0-9]{1,9}\.[0-9]{0,2}[1-9]|[1-9][0-9]{0,11}m)$"
        ),
    ]


class Autoscaling(Section):
    min_replicas: Annotated[int, Field(ge=1, le=256)] = 1
    max_replicas: Annotated[int, Field(ge=1, le=256)]
    target: ScalingTarget


class ResourceList(Section):
    cpu: Annotated[str, Field(max_length=16)] | None = None
    memory: Annotated[str, Field(max_length=16)] | None = None


class Resources(Section):
    requests: ResourceList = ResourceList()
    limits: ResourceList = ResourceList()


class PodTemplate(Section):
    """The part of a pod that a user may set. There is no security context here: none can be lowered."""

    labels: LabelMap = Field(default={})
    annotations: AnnotationMap = Field(default={})
    node_selector: LabelMap = Field(default={})
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=32)] = ()
    affinity: Affinity = Affinity()
    topology_spread_constraints: Annotated[tuple[TopologySpreadConstraint, ...], Field(max_length=16)] = ()
    priority_class_name: ObjectName | None = None
    runtime_class_name: ObjectName | None = None
    scheduler_name: ObjectName | None = None
    resources: Resources = Resources()
    volumes: Annotated[tuple[Volume, ...], Field(max_length=32)] = ()
    volume_mounts: Annotated[tuple[VolumeMount, ...], Field(max_length=32)] = ()


class Role(Section):
    replicas: Annotated[int, Field(ge=0, le=256)] = 1
    accelerator: Accelerator
    tensor_parallel_size: Annotated[int, Field(ge=1, le=128)] = 1
    autoscaling: Autoscaling | None = None
    pod_template: PodTemplate = PodTemplate()


class Transport(Section):
    backend: Backend = Backend.EFA
    fallback: Fallback = Fallback.REFUSE
    privileges: Privileges = Privileges.IPC_LOCK
    interface: Annotated[str, Field(min_length=1, max_length=15, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = "eth0"
    """Network interface of sockets."""


class Claim(Section):
    timeout_milliseconds: Annotated[int, Field(ge=1, le=10_000)] = 150
    hold_seconds: Annotated[int, Field(ge=1, le=600)] = 15
    max_owners_asked: Annotated[int, Field(ge=1, le=8)] = 3
    max_percent_of_blocks: Annotated[int, Field(ge=1, le=90)] = 50


class Retain(Section):
    decoder_blocks_ttl_seconds: Annotated[int, Field(alias="decoderBlocksTTLSeconds", ge=8, le=86_400)] = 480
    lease_seconds: Annotated[int, Field(ge=8, le=86_400)] = 300
    max_percent_of_blocks: Annotated[int, Field(ge=1, le=90)] = 30


class KVTransfer(Section):
    direction: Direction = Direction.BIDIRECTIONAL
    mechanism: Mechanism = Mechanism.CLAIM
    recompute_threshold_tokens: Annotated[int, Field(ge=0, le=1_000_000)] = 64
    read_timeout_milliseconds: Annotated[int, Field(ge=10, le=600_000)] = 2000
    claim: Claim = Claim()
    retain: Retain = Retain()


class Rollout(Section):
    strategy: Strategy = Strategy.SURGE
    progress_deadline_seconds: Annotated[int, Field(ge=60, le=86_400)] = 7200


class Authentication(Section):
    api_keys_secret_name: ObjectName | None = None
    """Secret with the key ``keys.yaml``: API key to tenant (router/README.md). None: everybody is one tenant."""


class RouterLimits(Section):
    max_body_bytes: Annotated[int, Field(ge=1024, le=1 << 30)] = 32 << 20
    max_concurrent_requests: Annotated[int, Field(ge=1, le=1_000_000)] = 512
    request_timeout_seconds: Annotated[int, Field(ge=1, le=86_400)] = 1800


class RouterService(Section):
    type: ServiceType = ServiceType.CLUSTER_IP
    port: Annotated[int, Field(ge=1, le=65_535)] = 8000
    annotations: AnnotationMap = Field(default={})


class Router(Section):
    replicas: Annotated[int, Field(ge=0, le=64)] = 2
    image: ImageName | None = None
    image_pull_policy: ImagePullPolicy = ImagePullPolicy.IF_NOT_PRESENT
    image_pull_secret_names: Annotated[tuple[ObjectName, ...], Field(max_length=8)] = ()
    conversation_ttl_seconds: Annotated[int, Field(alias="conversationTTLSeconds", ge=1, le=86_400)] = 450
    on_prefill_failure: OnPrefillFailure = OnPrefillFailure.RETRY
    run_on_decode_below_tokens: Annotated[int, Field(ge=0, le=1_000_000)] = 256
    authentication: Authentication = Authentication()
    limits: RouterLimits = RouterLimits()
    service: RouterService = RouterService()
    log_level: LogLevel = LogLevel.INFO
    pod_template: PodTemplate = PodTemplate()


class Tenancy(Section):
    cache_isolation: CacheIsolation = CacheIsolation.PER_TENANT


class Monitoring(Section):
    pod_monitor: Switch = Switch.AUTO
    dashboards: Switch = Switch.AUTO


class NetworkPolicy(Section):
    mode: PolicyMode = PolicyMode.ENABLED


class Spec(Section):
    model: Model
    engine: Engine = Engine()
    prefill: Role
    decode: Role
    transport: Transport = Transport()
    kv_transfer: KVTransfer = KVTransfer()
    rollout: Rollout = Rollout()
    router: Router = Router()
    tenancy: Tenancy = Tenancy()
    monitoring: Monitoring = Monitoring()
    network_policy: NetworkPolicy = NetworkPolicy()


class Metadata(BaseModel):
    """The part of an object's metadata that the operator reads; the rest is ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, alias_generator=to_camel, populate_by_name=True)

    name: Annotated[str, Field(min_length=1, max_length=253)]
    namespace: str = "default"
    uid: str = ""
    generation: int = 1
    annotations: dict[str, str] = {}


class PDDeployment(Section):
    api_version: str = "pdserve.io/v1alpha1"
    kind: str = "PDDeployment"
    metadata: Metadata
    spec: Spec
    status: dict[str, Any] = Field(default={})
