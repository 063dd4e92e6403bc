"""What is wrong with a PDDeployment, as far as it can be said without a cluster: every rule of the CRD once more, in Python.

The API server judges by the CRD's own rules; these serve ``pdd render``, which has no API server, and are the operator's second line
for objects that an older CRD has let through. A test holds both to the same verdict, field and message. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

from pdd_operator.api.rules.deployment import check_between, check_model, check_name
from pdd_operator.api.rules.engine import check_engine
from pdd_operator.api.rules.pods import check_annotations, check_pod_template
from pdd_operator.api.rules.problem import Problem, check_image, check_unique
from pdd_operator.api.rules.roles import check_role
from pdd_operator.api.v1alpha1 import Spec

__all__ = ["Problem", "check_spec", "check_update"]


def check_spec(name: str, spec: Spec) -> tuple[Problem, ...]:
    """Everything that is wrong with the specification of the PDDeployment ``name``; empty where nothing is."""
    return tuple(dict.fromkeys((*check_name(name), *_check_parts(spec), *check_between(spec))))


def check_update(old: Spec, new: Spec) -> tuple[Problem, ...]:
    """What must not be changed, beside what ``check_spec`` says of the new specification."""
    if old.model.name == new.model.name:
        return ()
    message = "`name` must not be changed: make another PDDeployment for another model (`revision` and `source` can be changed)"
    return (Problem("spec.model.name", message),)


def _check_parts(spec: Spec) -> Iterator[Problem]:
    yield from check_model(spec.model)
    yield from check_engine(spec.engine)
    yield from check_unique("spec.engine.env", [variable.name for variable in spec.engine.env])
    for field, secrets in (("engine", spec.engine), ("router", spec.router)):
        yield from check_image(f"spec.{field}.image", secrets.image)
        yield from check_unique(f"spec.{field}.imagePullSecretNames", secrets.image_pull_secret_names)
    for name, role in (("prefill", spec.prefill), ("decode", spec.decode)):
        yield from check_role(f"spec.{name}", role)
        yield from check_pod_template(f"spec.{name}.podTemplate", role.pod_template)
    yield from check_pod_template("spec.router.podTemplate", spec.router.pod_template)
    yield from check_annotations("spec.router.service.annotations", spec.router.service.annotations)
