"""The settings that rendering needs are the chart's own, which Helm is asked for."""

import subprocess
import sys
from pathlib import Path

import pytest

from pdd_cli.cluster.installing import INSTALL, OPERATOR_NAMESPACE
from pdd_cli.render.settings import CHART_DEFAULTS, IMAGE_NAMES, settings_of_chart, with_images
from pdd_e2e.control_plane.helm import find_helm
from pdd_operator.render.inputs import Platform

CHART = Path(__file__).parents[3] / "charts" / "pdd-operator"
VALUES = sorted((CHART / "ci").glob("*.yaml"))


def template(*flags: str, release: str = "pdd-operator") -> str:
    helm = find_helm(say=lambda line: print(line, file=sys.stderr))
    command = [str(helm), "template", release, str(CHART), "--namespace", OPERATOR_NAMESPACE, *flags]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def test_the_defaults_are_what_helm_makes_of_the_chart_as_it_is_installed() -> None:
    assert "helm install pdd-operator charts/pdd-operator" in INSTALL
    assert settings_of_chart(template()) == CHART_DEFAULTS


def test_values_show() -> None:
    assert settings_of_chart(template("--set", "images.router.tag=9.9.9")) != CHART_DEFAULTS
    found = settings_of_chart(
        template("--set", "images.engine.cpu.repository=cpu", "--set-string", "images.engine.cpu.tag=1")
    )
    assert found.images.engine[Platform.CPU] == "cpu:1"


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_every_output_of_the_chart_is_understood(values: Path) -> None:
    found = settings_of_chart(template("--values", str(values), release="other"))
    assert found.operator_namespace == OPERATOR_NAMESPACE
    assert found.operator_labels["app.kubernetes.io/instance"] == "other"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the operator's Deployment"),
        ("kind: Deployment\nspec: {template: {spec: {containers: [{env: [{name: A, value: b}]}]}}}", "PDD_OPERATOR_*"),
        (
            "kind: Deployment\nspec: {template: {spec: {containers: [{env: [{name: PDD_OPERATOR_NEW, value: b}]}]}}}",
            "settings that this pdd knows: PDD_OPERATOR_",
        ),
        ("a: [", "must be YAML"),
        ("kind: Deployment\nspec:", "the operator's Deployment"),
        ("kind: Deployment\nspec: {template: null}", "the operator's Deployment"),
        ("kind: Deployment\nspec: 5", "must hold Deployments whose `spec` is an object"),
        ("kind: Deployment\nspec: {template: []}", "must hold Deployments whose `template` is an object"),
        (
            "kind: Deployment\nspec: {template: {spec: {containers: {}}}}",
            "must hold Deployments whose `containers` is a list of objects",
        ),
        (
            "kind: Deployment\nspec: {template: {spec: {containers: [{env: [5]}]}}}",
            "must hold Deployments whose `env` is a list of objects",
        ),
        (
            "kind: Deployment\nmetadata: x\nspec: {template: {spec: {containers: [{env: [{name: PDD_OPERATOR_A, value: 1}]}]}}}",
            "must hold Deployments whose `metadata` is an object",
        ),
    ],
)
def test_other_output_is_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError, match="must") as caught:
        settings_of_chart(text)
    assert says in str(caught.value)


def test_single_images() -> None:
    found = with_images(CHART_DEFAULTS, [f"{name}=registry.example/{name}:1" for name in IMAGE_NAMES]).images
    assert (found.router, found.connector) == ("registry.example/router:1", "registry.example/connector:1")
    assert dict(found.engine) == {platform: f"registry.example/engine-{platform.lower()}:1" for platform in Platform}


@pytest.mark.parametrize("text", ["router", "router=", "=x", "engine=x", "router=a b", "operator=x"])
def test_a_wrong_image_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be NAME=REFERENCE, with NAME one of router, connector, engine-gpu"):
        with_images(CHART_DEFAULTS, [text])
