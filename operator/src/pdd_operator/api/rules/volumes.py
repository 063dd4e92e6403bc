"""Rules of volumes and their mounts: what must not be taken from the operator or from the node. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from pdd_operator.api.rules.problem import Problem, check_unique
from pdd_operator.api.v1alpha1 import PodTemplate
from pdd_operator.api.volumes import PodFiles, ProjectedVolume, Volume, VolumeMount

_OPERATORS_VOLUMES: Final = "pdd-"
_UNPLAIN: Final = re.compile(r"^/(/|\Z)|//|/[.]{1,2}(/|\Z)")
_TAKEN: Final = re.compile(r"/((pdd|dev|proc|sys)(/|\Z)|tmp/?\Z)")


def check_volumes(field: str, template: PodTemplate) -> Iterator[Problem]:
    """``field``: the path of the template."""
    for index, volume in enumerate(template.volumes):
        yield from _check_volume(f"{field}.volumes[{index}]", volume)
    for index, mount in enumerate(template.volume_mounts):
        yield from _check_mount(f"{field}.volumeMounts[{index}]", mount)
    names = [volume.name for volume in template.volumes]
    yield from check_unique(f"{field}.volumes", names)
    yield from check_unique(f"{field}.volumeMounts", [mount.mount_path for mount in template.volume_mounts])
    if any(mount.name not in names for mount in template.volume_mounts):
        yield Problem(f"{field}.volumeMounts", "`volumeMounts` must name volumes of `volumes`")


def _check_volume(field: str, volume: Volume) -> Iterator[Problem]:
    if len(volume.as_given()) != len(("name", "kind")):
        yield Problem(
            field,
            "`volumes` must have exactly one of configMap, csi, downwardAPI, emptyDir, ephemeral, persistentVolumeClaim, projected and "
            "secret in every item; other kinds, such as hostPath, are not taken",
        )
    if volume.name.startswith(_OPERATORS_VOLUMES):
        yield Problem(f"{field}.name", "`name` must not begin with `pdd-`: those volumes are the operator's")
    if volume.downward_api is not None:
        yield from _check_pod_files(f"{field}.downwardAPI", volume.downward_api)
    if volume.ephemeral is not None:
        spec = volume.ephemeral.volume_claim_template.spec
        yield from check_unique(f"{field}.ephemeral.volumeClaimTemplate.spec.accessModes", spec.access_modes)
    if volume.projected is not None:
        yield from _check_projected(f"{field}.projected", volume.projected)


def _check_pod_files(field: str, files: PodFiles) -> Iterator[Problem]:
    for index, file in enumerate(files.items or ()):
        if (file.field_ref is None) == (file.resource_field_ref is None):
            yield Problem(
                f"{field}.items[{index}]",
                "`items` must have exactly one of `fieldRef` and `resourceFieldRef` in every item of downwardAPI",
            )


def _check_projected(field: str, projected: ProjectedVolume) -> Iterator[Problem]:
    for index, source in enumerate(projected.sources):
        here = f"{field}.sources[{index}]"
        if len(source.as_given()) != 1:
            yield Problem(
                here,
                "`sources` must have exactly one of configMap, downwardAPI and secret in every item; tokens of service accounts are "
                "not taken",
            )
        if source.downward_api is not None:
            yield from _check_pod_files(f"{here}.downwardAPI", source.downward_api)


def _check_mount(field: str, mount: VolumeMount) -> Iterator[Problem]:
    if _UNPLAIN.search(mount.mount_path) or _TAKEN.match(mount.mount_path):
        yield Problem(
            f"{field}.mountPath",
            "`mountPath` must be a plain absolute path, neither / nor /tmp, and not in /pdd, /dev, /proc or /sys: connector, scripts "
            "and devices are there",
        )
