"""Rules of ``podTemplate``: what must not be taken from the operator or from the node. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from pdd_operator.api.quantities import quantity_of
from pdd_operator.api.rules.placement import check_placement
from pdd_operator.api.rules.problem import Problem, check_keys
from pdd_operator.api.rules.volumes import check_volumes
from pdd_operator.api.v1alpha1 import PodTemplate, Resources

_UNCONFINED: Final = (
    "container.apparmor.security.beta.kubernetes.io",
    "seccomp.security.alpha.kubernetes.io",
    "container.seccomp.security.alpha.kubernetes.io",
    "io.kubernetes.cri-o.",
)
_QUANTITIES: Final[Mapping[str, tuple[re.Pattern[str], str]]] = {
    "cpu": (
        re.compile(r"[0-9]{1,6}(\.[0-9]{1,3})?|[0-9]{1,9}m"),
        "a number of cores or of thousandths: `8`, `0.5` or `500m`",
    ),
    "memory": (
        re.compile(
            r"[0-9]{1,15}|[0-9]{1,9}(Ki|Mi|Gi|k|M|G)|[0-9]{1,6}(Ti|T)"
            r"|[0-9]{1,6}\.(5|25|75)(Ki|Mi|Gi|Ti)|[0-9]{1,6}\.[0-9]{1,3}(k|M|G|T)"
        ),
        "a whole number of bytes as Kubernetes writes it: `512Mi`, `24Gi`, `1.5Gi`, `24G`; units are Ki, Mi, Gi, Ti, k, M, G and T",
    ),
}


def check_pod_template(field: str, template: PodTemplate) -> Iterator[Problem]:
    """``field``: the path of the template."""
    yield from _check_maps(field, template)
    yield from check_placement(field, template)
    yield from _check_resources(f"{field}.resources", template.resources)
    yield from check_volumes(field, template)


def check_annotations(field: str, annotations: Mapping[str, str]) -> Iterator[Problem]:
    """Also of Services."""
    if _has_prefix(annotations, "pdserve.io/"):
        yield Problem(field, "`annotations` must not have keys of pdserve.io/: they are the operator's")
    yield from check_keys(field, annotations)


def _check_maps(field: str, template: PodTemplate) -> Iterator[Problem]:
    if _has_prefix(template.labels, "pdserve.io/") or _has_prefix(template.labels, "app.kubernetes.io/"):
        yield Problem(
            f"{field}.labels",
            "`labels` must not have keys of pdserve.io/ or app.kubernetes.io/: selectors stand on them",
        )
    yield from check_keys(f"{field}.labels", template.labels)
    yield from check_annotations(f"{field}.annotations", template.annotations)
    if any(_has_prefix(template.annotations, prefix) for prefix in _UNCONFINED):
        yield Problem(
            f"{field}.annotations",
            "`annotations` must not have keys of container.apparmor.security.beta.kubernetes.io, "
            "seccomp.security.alpha.kubernetes.io or io.kubernetes.cri-o: they lower what confines a container",
        )
    yield from check_keys(f"{field}.nodeSelector", template.node_selector)


def _has_prefix(keys: Iterable[str], prefix: str) -> bool:
    return any(key.startswith(prefix) for key in keys)


def _check_resources(field: str, resources: Resources) -> Iterator[Problem]:
    for name, (form, must) in _QUANTITIES.items():
        given = {kind: getattr(getattr(resources, kind), name) for kind in ("requests", "limits")}
        wrong = [kind for kind, value in given.items() if value is not None and not form.fullmatch(value)]
        for kind in wrong:
            yield Problem(f"{field}.{kind}.{name}", f"`{name}` must be {must}")
        if not wrong and None not in given.values() and quantity_of(given["requests"]) > quantity_of(given["limits"]):
            yield Problem(f"{field}.requests.{name}", f"`requests.{name}` must be at most `limits.{name}`")
