"""Rules of ``podTemplate``: what must not be taken from the operator or from the node. Pure."""

from __future__ import annotations

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
    for name in ("cpu", "memory"):
        request, limit = getattr(resources.requests, name), getattr(resources.limits, name)
        if request is not None and limit is not None and quantity_of(request) > quantity_of(limit):
            yield Problem(f"{field}.requests.{name}", f"`requests.{name}` must be at most `limits.{name}`")
