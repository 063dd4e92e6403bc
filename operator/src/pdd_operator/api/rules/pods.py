"""Rules of ``podTemplate``: what must not be taken from the operator or from the node. Pure.

Parts that are passed on as they are (tolerations, affinity ...) are judged by the API server when the pod's owner is applied.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from pdd_operator.api.rules.problem import Problem
from pdd_operator.api.v1alpha1 import PodTemplate, Resources

_OPERATORS_VOLUMES: Final = "pdd-"
_VOLUME_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_UNPLAIN: Final = re.compile(r"^/(/|\Z)|//|/[.]{1,2}(/|\Z)")
_TAKEN: Final = re.compile(r"/((pdd|dev|proc|sys)(/|\Z)|tmp/?\Z)")
_QUALIFIED_NAME: Final = re.compile(
    r"([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)
_MAX_PREFIX: Final = 253
_UNITS: Final[Mapping[str, Decimal]] = {
    "": Decimal(1),
    "m": Decimal("0.001"),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
}


def check_pod_template(field: str, template: PodTemplate) -> Iterator[Problem]:
    """``field``: the path of the template."""
    yield from _check_maps(field, template)
    yield from _check_resources(f"{field}.resources", template.resources)
    for index, volume in enumerate(template.volumes):
        yield from _check_volume(f"{field}.volumes[{index}]", volume)
    for index, mount in enumerate(template.volume_mounts):
        yield from _check_mount(f"{field}.volumeMounts[{index}]", mount)
    names = [volume.get("name") for volume in template.volumes]
    yield from check_unique(f"{field}.volumes", names)
    yield from check_unique(f"{field}.volumeMounts", [mount.get("mountPath") for mount in template.volume_mounts])
    if any(mount.get("name") not in names for mount in template.volume_mounts):
        yield Problem(f"{field}.volumeMounts", "`volumeMounts` must name volumes of `volumes`")


def check_unique(field: str, keys: Sequence[Any]) -> Iterator[Problem]:
    """What the API server says of a list that is a set or a map."""
    for index, key in enumerate(keys):
        if key in keys[:index]:
            yield Problem(f"{field}[{index}]", f'must not repeat "{key}": every item must be another')


def check_annotations(field: str, annotations: Mapping[str, str]) -> Iterator[Problem]:
    """Also of Services."""
    if _has_prefix(annotations, "pdserve.io/"):
        yield Problem(field, "`annotations` must not have keys of pdserve.io/: they are the operator's")
    yield from _check_keys(field, annotations)


def _check_maps(field: str, template: PodTemplate) -> Iterator[Problem]:
    if _has_prefix(template.labels, "pdserve.io/") or _has_prefix(template.labels, "app.kubernetes.io/"):
        yield Problem(
            f"{field}.labels",
            "`labels` must not have keys of pdserve.io/ or app.kubernetes.io/: selectors stand on them",
        )
    yield from _check_keys(f"{field}.labels", template.labels)
    yield from check_annotations(f"{field}.annotations", template.annotations)
    yield from _check_keys(f"{field}.nodeSelector", template.node_selector)


def _has_prefix(keys: Iterable[str], prefix: str) -> bool:
    return any(key.startswith(prefix) for key in keys)


def _check_keys(field: str, keys: Iterable[str]) -> Iterator[Problem]:
    if not all(_is_qualified_name(key) for key in keys):
        yield Problem(
            field,
            f"`{field.rpartition('.')[2]}` must have qualified names as keys: `NAME` or `DOMAIN/NAME`, with at most 63 characters in "
            "`NAME`",
        )


def _is_qualified_name(key: str) -> bool:
    return bool(_QUALIFIED_NAME.fullmatch(key)) and len(key.rpartition("/")[0]) <= _MAX_PREFIX


def _check_resources(field: str, resources: Resources) -> Iterator[Problem]:
    for name in ("cpu", "memory"):
        request, limit = getattr(resources.requests, name), getattr(resources.limits, name)
        if request is not None and limit is not None and _quantity(request) > _quantity(limit):
            yield Problem(f"{field}.requests.{name}", f"`requests.{name}` must be at most `limits.{name}`")


def _quantity(text: str) -> Decimal:
    """``text`` matches the schema's pattern."""
    number = text.rstrip("KMGTikm")
    return Decimal(number) * _UNITS[text[len(number) :]]


def _check_volume(field: str, volume: Mapping[str, Any]) -> Iterator[Problem]:
    yield from _check_volume_name(field, volume)
    if "hostPath" in volume:
        yield Problem(
            field,
            "`volumes` must not have `hostPath`: a pod with a part of its node is no longer restricted. Use a persistentVolumeClaim, "
            "csi or ephemeral volume",
        )
    if str(volume.get("name", "")).startswith(_OPERATORS_VOLUMES):
        yield Problem(f"{field}.name", "`name` must not begin with `pdd-`: those volumes are the operator's")


def _check_volume_name(field: str, item: Mapping[str, Any]) -> Iterator[Problem]:
    name = item.get("name")
    if not isinstance(name, str) or not _VOLUME_NAME.fullmatch(name) or len(name) > 63:
        yield Problem(
            f"{field}.name", "`name` must be the name of a volume: at most 63 lower-case letters, digits and hyphens"
        )


def _check_mount(field: str, mount: Mapping[str, Any]) -> Iterator[Problem]:
    yield from _check_volume_name(field, mount)
    path = mount.get("mountPath")
    if not isinstance(path, str) or not path.startswith("/") or ":" in path or len(path) > 1024:
        yield Problem(f"{field}.mountPath", "`mountPath` must be an absolute path without colons")
    elif _UNPLAIN.search(path) or _TAKEN.match(path):
        yield Problem(
            f"{field}.mountPath",
            "`mountPath` must be a plain absolute path, neither / nor /tmp, and not in /pdd, /dev, /proc or /sys: connector, scripts "
            "and devices are there",
        )
