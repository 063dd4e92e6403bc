"""Volumes that a user may give to pods, and their mounts, as Kubernetes has them, bounded. Pure.

A list of what is taken: a kind that is not here could bring a part of the node, a device or a token into the pod. Rendered as they are
given, so what is absent stays absent: nothing here has a default of its own.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pdd_operator.api.section import Bytes, DNSLabel, LabelValue, ObjectName, Section

_RELATIVE_PATH = r"^([^/.:][^/:]*|\.[^/.:][^/:]*)(/([^/.:][^/:]*|\.[^/.:][^/:]*))*$"
_POD_FIELD = r"^metadata\.(name|namespace|uid|(labels|annotations)(\['[-A-Za-z0-9_./]+'\])?)$"

RelativePath = Annotated[str, Field(min_length=1, max_length=1024, pattern=_RELATIVE_PATH)]
Mode = Annotated[int, Field(ge=0, le=0o777)]
Text = Annotated[str, Field(max_length=4096)]


class KeyToPath(Section):
    key: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")]
    path: RelativePath
    mode: Mode | None = None


KeysToPaths = Annotated[tuple[KeyToPath, ...], Field(max_length=64)]


class ProjectedObject(Section):
    name: ObjectName
    items: KeysToPaths | None = None
    optional: bool | None = None


class ConfigMapVolume(ProjectedObject):
    default_mode: Mode | None = None


class SecretVolume(Section):
    secret_name: ObjectName
    items: KeysToPaths | None = None
    default_mode: Mode | None = None
    optional: bool | None = None


class SecretName(Section):
    name: ObjectName


class CSIVolume(Section):
    driver: Annotated[ObjectName, Field(max_length=63)]
    fs_type: Annotated[str, Field(min_length=1, max_length=32, pattern=r"^[a-z0-9]+$")] | None = None
    read_only: bool | None = None
    volume_attributes: Annotated[dict[str, Text], Field(max_length=32)] | None = None
    node_publish_secret_ref: SecretName | None = None


class PodField(Section):
    field_path: Annotated[str, Field(min_length=1, max_length=400, pattern=_POD_FIELD)]


class ContainerResource(Section):
    container_name: DNSLabel
    resource: Literal[
        "limits.cpu",
        "limits.memory",
        "limits.ephemeral-storage",
        "requests.cpu",
        "requests.memory",
        "requests.ephemeral-storage",
    ]


class PodFile(Section):
    path: RelativePath
    field_ref: PodField | None = None
    resource_field_ref: ContainerResource | None = None
    mode: Mode | None = None


class PodFiles(Section):
    items: Annotated[tuple[PodFile, ...], Field(max_length=32)] | None = None


class DownwardAPIVolume(PodFiles):
    default_mode: Mode | None = None


class EmptyDirVolume(Section):
    medium: Literal["Memory"] | None = None
    size_limit: Bytes | None = None


class ClaimVolume(Section):
    claim_name: ObjectName
    read_only: bool | None = None


class StorageRequests(Section):
    storage: Bytes


class StorageResources(Section):
    requests: StorageRequests


class ClaimSpec(Section):
    access_modes: Annotated[
        tuple[Literal["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"], ...],
        Field(min_length=1, max_length=4),
    ]
    resources: StorageResources
    storage_class_name: ObjectName | None = None


class ClaimMetadata(Section):
    labels: Annotated[dict[str, LabelValue], Field(max_length=16)] | None = None
    annotations: Annotated[dict[str, Text], Field(max_length=16)] | None = None


class ClaimTemplate(Section):
    metadata: ClaimMetadata | None = None
    spec: ClaimSpec


class EphemeralVolume(Section):
    volume_claim_template: ClaimTemplate


class ProjectedSource(Section):
    config_map: ProjectedObject | None = None
    downward_api: Annotated[PodFiles | None, Field(alias="downwardAPI")] = None
    secret: ProjectedObject | None = None


class ProjectedVolume(Section):
    sources: Annotated[tuple[ProjectedSource, ...], Field(min_length=1, max_length=16)]
    default_mode: Mode | None = None


class Volume(Section):
    """Exactly one of the kinds."""

    name: DNSLabel
    config_map: ConfigMapVolume | None = None
    csi: CSIVolume | None = None
    downward_api: Annotated[DownwardAPIVolume | None, Field(alias="downwardAPI")] = None
    empty_dir: EmptyDirVolume | None = None
    ephemeral: EphemeralVolume | None = None
    persistent_volume_claim: ClaimVolume | None = None
    projected: ProjectedVolume | None = None
    secret: SecretVolume | None = None


class VolumeMount(Section):
    name: DNSLabel
    mount_path: Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^/[^:]*$")]
    sub_path: RelativePath | None = None
    read_only: bool | None = None
    mount_propagation: Literal["None"] | None = None
