"""What docs/samples/ holds is what the operator takes, and renders with the chart's default images."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from chart import Chart, environment, one

from pdd_operator.api.parse import InvalidSpecError, parse_deployment
from pdd_operator.render import render
from pdd_operator.render.inputs import ClusterFacts, Replicas
from pdd_operator.settings import Settings

SAMPLES = sorted((Path(__file__).parents[2] / "docs" / "samples").glob("*.yaml"))


def loaded(path: Path) -> dict[str, Any]:
    sample: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return sample


def test_there_are_samples() -> None:
    assert {path.stem for path in SAMPLES} >= {"cpu-sockets", "gpu-sockets", "p5en-efa"}


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_the_operator_takes_the_sample(chart: Chart, path: Path) -> None:
    settings = Settings.from_environment(environment(chart.objects()))
    deployment = parse_deployment(loaded(path))
    rendered = render(deployment, settings.render, ClusterFacts(), Replicas(1, 1))
    assert len([item for item in rendered.manifests if item["kind"] == "StatefulSet"]) == 2


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_a_misspelt_field_in_it_is_refused(path: Path) -> None:
    wrong = loaded(path)
    wrong["spec"]["prefil"] = wrong["spec"].pop("prefill")
    with pytest.raises(InvalidSpecError, match="prefil"):
        parse_deployment(wrong)


def test_the_smallest_says_what_it_asks_for(chart: Chart) -> None:
    (path,) = (sample for sample in SAMPLES if sample.stem == "cpu-sockets")
    settings = Settings.from_environment(environment(chart.objects()))
    manifests = render(parse_deployment(loaded(path)), settings.render, ClusterFacts(), Replicas(1, 1)).manifests
    asked = [
        container["resources"]["requests"]
        for item in manifests
        if item["kind"] in ("StatefulSet", "Deployment")
        for container in item["spec"]["template"]["spec"]["containers"]
    ]
    assert len(asked) == 3, "two engines and a router, one of each"
    cpus = sum(int(each["cpu"][:-1]) / 1000 if each["cpu"].endswith("m") else int(each["cpu"]) for each in asked)
    gib = sum(int(each["memory"].removesuffix("Gi")) for each in asked)
    assert f"Asks for {cpus:g} CPUs and {gib} GiB in all" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", sorted((Chart(Path()).folder / "ci").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_operator_takes_the_environment_that_the_chart_gives(chart: Chart, path: Path) -> None:
    settings = Settings.from_environment(environment(chart.objects("--values", str(path))))
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert settings.watch_namespaces == tuple(values.get("watchNamespaces", ()))
    assert settings.leader_election is values.get("leaderElection", {}).get("enabled", True)
    selector = one(chart.objects("--values", str(path)), "Deployment")["spec"]["selector"]["matchLabels"]
    assert dict(settings.pod_labels) == selector
    assert settings.http_port == 8080
