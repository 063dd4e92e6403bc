"""The operator's settings that show in objects: the chart's defaults, those of a chart's output, single images. Pure.

The defaults are those of `helm install pdd-operator charts/pdd-operator --namespace pdd-system`; a test asks Helm whether they still are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pdd_cli.yaml_text import load_all
from pdd_operator.errors import SettingsError
from pdd_operator.render.inputs import Images, Platform, RenderSettings
from pdd_operator.settings import PREFIX, Settings

CHART_DEFAULTS: Final = RenderSettings(
    images=Images(
        router="pdserve/pdd-router:0.1.0",
        connector="pdserve/pdd-connector:0.1.0",
        engine={Platform.GPU: "vllm/vllm-openai:v0.32.0"},
    ),
    operator_namespace="pdd-system",
    operator_labels={
        "app.kubernetes.io/component": "operator",
        "app.kubernetes.io/instance": "pdd-operator",
        "app.kubernetes.io/name": "pdd-operator",
    },
)

_ENGINES: Final = {f"engine-{platform.lower()}": platform for platform in Platform}
IMAGE_NAMES: Final = ("router", "connector", *_ENGINES)


def settings_of_chart(text: str) -> RenderSettings:
    """From what `helm template` prints, or from the operator's Deployment. Raises ValueError."""
    documents = [document for document in load_all(text) if isinstance(document, Mapping)]
    for document in documents:
        environment = _environment(document)
        if environment:
            try:
                return Settings.from_environment(environment).render
            except SettingsError as error:
                raise ValueError(f"must hold settings that this pdd knows: {error}") from error
    raise ValueError(f"must hold the operator's Deployment, with environment variables {PREFIX}*")


def with_images(settings: RenderSettings, images: Iterable[str]) -> RenderSettings:
    """``images``: NAME=REFERENCE each. Raises ValueError."""
    for text in images:
        name, _, reference = text.partition("=")
        if name not in IMAGE_NAMES or not reference or reference != "".join(reference.split()):
            raise ValueError(f"{text!r} must be NAME=REFERENCE, with NAME one of {', '.join(IMAGE_NAMES)}")
        settings = replace(settings, images=_with_image(settings.images, name, reference))
    return settings


def _with_image(images: Images, name: str, reference: str) -> Images:
    if name == "router":
        return replace(images, router=reference)
    if name == "connector":
        return replace(images, connector=reference)
    return replace(images, engine={**images.engine, _ENGINES[name]: reference})


def _environment(document: Mapping[str, Any]) -> dict[str, str]:
    """What the container of an operator's Deployment gets; empty for every other object. Raises ValueError."""
    if document.get("kind") != "Deployment":
        return {}
    pod: Mapping[str, Any] = document
    for name in ("spec", "template", "spec"):
        pod = _object(pod.get(name), name)
    variables = [
        item
        for container in _objects(pod.get("containers"), "containers")
        for item in _objects(container.get("env"), "env")
        if str(item.get("name")).startswith(PREFIX)
    ]
    values = {str(item["name"]): str(item["value"]) for item in variables if item.get("value") is not None}
    if not values:
        return {}
    # What the node fills in: the namespace is the Deployment's, the pod's name does not show.
    return values | {
        f"{PREFIX}NAMESPACE": str(_object(document.get("metadata"), "metadata").get("namespace") or "default")
    }


def _object(value: object, name: str) -> Mapping[str, Any]:
    """Empty where it is absent."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"must hold Deployments whose `{name}` is an object")
    return value


def _objects(value: object, name: str) -> Sequence[Mapping[str, Any]]:
    """Empty where it is absent."""
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        raise ValueError(f"must hold Deployments whose `{name}` is a list of objects")
    return value
