"""What the pages promise is what is rendered."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import render_cases as cases
import yaml
from kubernetes_schemas import problems_of

from pdd_operator.api.rules import check_spec
from pdd_operator.render.availability import POD_METRICS
from pdd_operator.render.dashboard import dashboard
from pdd_operator.render.inputs import ClusterFacts
from pdd_operator.render.monitoring import INSTANCE_SELECTOR
from pdd_operator.render.network import SCRAPER_NAMESPACE
from pdd_operator.render.ports import CLAIM_PORT, ENGINE_PORT, SIDE_CHANNEL_PORT

DOCS = Path(__file__).parents[3] / "docs"


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def test_every_metric_has_a_row_and_a_rule_of_the_adapter() -> None:
    text = page("autoscaling.md")
    (block,) = (found for found in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if found.startswith("rules:"))
    rules = yaml.safe_load(block)["rules"]["custom"]
    assert {rule["name"]["as"] for rule in rules} == set(POD_METRICS.values())
    for metric, name in POD_METRICS.items():
        assert f"| `{metric}` | pods `{name}` |" in text
    assert "| `CPUUtilization` | resource `cpu` |" in text


def test_labels_for_prometheus_and_grafana_are_those_in_the_objects() -> None:
    text = page("monitoring.md")
    assert all(f"{key}={value}" in text for key, value in SCRAPER_NAMESPACE.items())
    assert all(f"{key}: {value}" in text for key, value in INSTANCE_SELECTOR.items())
    words = {"Twelve": 12}
    assert any(text.count(word) and len(dashboard("a", "b")["panels"]) == number for word, number in words.items())


def test_the_list_of_exceptions_is_the_whole_list() -> None:
    """The rows of the page's table against what the rendered containers have beyond the socket engines' own."""
    text = page("security.md")
    rows = re.findall(r"^\| `transport\.(\w+): (\w+)`.*?\| (.*?) \|", text, re.MULTILINE)
    listed = {(field, value): set(re.findall(r"`([A-Za-z_]+)`", what)) for field, value, what in rows}
    socket, efa, privileged = (_engine_context(name) for name in ("gpu-sockets", "part-of-a-node", "privileged"))
    assert set(listed) == {("backend", "EFA"), ("privileges", "Privileged")}
    assert efa == socket | {"capabilities": {"drop": ["ALL"], "add": sorted(listed["backend", "EFA"])}}
    values = {"privileged": True, "allowPrivilegeEscalation": True, "runAsNonRoot": False, "runAsUser": 0}
    assert listed["privileges", "Privileged"] == set(values)
    assert privileged == socket | values


def _engine_context(name: str) -> dict[str, object]:
    manifest = cases.find(cases.rendered(cases.sample(name)), "StatefulSet", f"{name}-decode")
    context: dict[str, object] = manifest["spec"]["template"]["spec"]["containers"][0]["securityContext"]
    return context


def test_ports_of_the_page_are_the_ports() -> None:
    text = page("security.md")
    assert f"side channel {SIDE_CHANNEL_PORT}, claim channel {CLAIM_PORT}" in text
    assert f"all but {ENGINE_PORT}" in text


@pytest.mark.parametrize("path", sorted((DOCS / "samples").glob("*.yaml")), ids=lambda path: path.stem)
def test_samples_for_users_are_valid_and_render_to_valid_objects(path: Path) -> None:
    for data in yaml.safe_load_all(path.read_text(encoding="utf-8")):
        target = cases.parsed(data)
        assert check_spec(target.metadata.name, target.spec) == ()
        for manifest in cases.rendered(target, ClusterFacts()).manifests:
            assert problems_of(manifest) == []
