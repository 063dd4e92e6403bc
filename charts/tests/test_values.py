"""values.yaml, its schema and the README's table are one, and nothing unknown or out of bounds passes."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import values_reference
import yaml
from chart import FOLDER, Chart, HelmError, environment

SCHEMA = json.loads((FOLDER / "values.schema.json").read_text(encoding="utf-8"))


def test_schema_and_readme_follow_from_the_values() -> None:
    assert values_reference.differing(FOLDER) == []


@pytest.mark.parametrize("name", ["values.schema.json", "README.md"])
def test_a_change_in_the_comments_is_noticed(tmp_path: Path, name: str) -> None:
    for file in ("values.yaml", "values.schema.json", "README.md"):
        (tmp_path / file).write_text((FOLDER / file).read_text(encoding="utf-8"), encoding="utf-8")
    values = tmp_path / "values.yaml"
    values.write_text(values.read_text(encoding="utf-8").replace("# Operator pods.", "# Pods."), encoding="utf-8")
    assert name in values_reference.differing(tmp_path)


def test_a_key_without_a_comment_is_refused() -> None:
    with pytest.raises(values_reference.ValuesError, match=r"top\.bare must have a comment"):
        values_reference.parse("top:\n  # Said.\n  said: 1\n  bare: 2\n")


@pytest.mark.parametrize("default", ["[]", "{}", "null"])
def test_a_default_that_says_nothing_needs_a_schema(default: str) -> None:
    keys = values_reference.parse(f"# Said.\nkey: {default}\n")
    with pytest.raises(values_reference.ValuesError, match="in @schema"):
        values_reference.schema_of(keys)


def test_a_kind_that_nobody_knows_is_refused() -> None:
    with pytest.raises(values_reference.ValuesError, match="is must be one of name"):
        values_reference.parse('# Said.\n# @schema {is: nam}\nkey: ""\n')


def objects_of(schema: Any) -> list[dict[str, Any]]:
    if isinstance(schema, list):
        return [found for part in schema for found in objects_of(part)]
    if not isinstance(schema, dict):
        return []
    own = [schema] if schema.get("type") == "object" else []
    return own + [found for part in schema.values() for found in objects_of(part)]


def test_every_object_says_what_it_takes() -> None:
    found = objects_of(SCHEMA)
    assert len(found) > 20
    for schema in found:
        assert "additionalProperties" in schema or schema is SCHEMA["properties"]["global"]
    ours = [schema for schema in found if "properties" in schema]
    assert all(schema["additionalProperties"] is False for schema in ours)


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("replica=3", "replica"),
        ("images.operator.name=x", "name"),
        ("images.engine.tpu.repository=x", "tpu"),
        ("monitoring.podMonitor.scrape=x", "scrape"),
        ("affinity.nodeAffinities.x=y", "nodeAffinities"),
        ("networkPolicy.egress=x", "egress"),
        ("replicas=-1", "replicas"),
        ("replicas=two", "replicas"),
        ("logLevel=loud", "logLevel"),
        ("images.operator.tag=latest", "tag"),
        ("images.operator.digest=sha256:abc", "digest"),
        ("securityContext.runAsUser=0", "runAsUser"),
        ("watchNamespaces={Agents}", "watchNamespaces"),
        ("leaderElection.leaseDurationSeconds=0", "leaseDurationSeconds"),
        ("images.registry=http://foo/", "images/registry"),
        ("images.registry=foo/Bar", "images/registry"),
        ("images.engineRegistry=foo:port", "images/engineRegistry"),
        ("images.operator.registry=foo//bar", "images/operator/registry"),
        ("images.operator.repository=PDServe/operator", "images/operator/repository"),
        ("images.router.repository=pdserve/pdd-router:0.1.0", "images/router/repository"),
        ("images.engine.gpu.repository=vllm@sha256:00", "images/engine/gpu/repository"),
        ("images.connector.repository=pdserve/", "images/connector/repository"),
        ("images.connector.repository=", "images/connector/repository"),
        ("images.operator.tag=-abc", "images/operator/tag"),
        ("images.engine.cpu.tag=0.32.0+cpu", "images/engine/cpu/tag"),
        ("extraEnv[0].name=MY VARIABLE", "extraEnv/0/name"),
        ("extraEnv[0].name=1A", "extraEnv/0/name"),
        ("extraEnv[0].name=PDD_OPERATOR_WORKERS", "extraEnv/0/name"),
        ("extraEnv[0].name=PDD_OPERATOR_IMAGE_ENGINE_NEURON", "extraEnv/0/name"),
        ("commonLabels.a b=c", "commonLabels"),
        ("commonLabels.-team=c", "commonLabels"),
        ("commonLabels.example\\.com/a/b=c", "commonLabels"),
        ("commonLabels.team=of two", "commonLabels/team"),
        ("commonLabels.team=-a", "commonLabels/team"),
        ("podLabels.team=a/b", "podLabels/team"),
        ("nodeSelector.zone=a b", "nodeSelector/zone"),
        ("podAnnotations.a b=c", "podAnnotations"),
        ("monitoring.podMonitor.labels.release=a:b", "labels/release"),
        ("images.pullSecrets={My_Secret}", "pullSecrets"),
        ("priorityClassName=High", "priorityClassName"),
        ("serviceAccount.name=-operator", "serviceAccount/name"),
    ],
)
def test_lint_and_template_refuse_what_the_schema_does_not_know(chart: Chart, setting: str, says: str) -> None:
    for command in (("lint", str(FOLDER)), ("template", "pdd", str(FOLDER))):
        with pytest.raises(HelmError) as refused:
            chart.run(*command, "--set", setting)
        assert says in str(refused.value)


@pytest.mark.parametrize(
    "settings",
    [
        ["images.registry=REGISTRY"],
        ["images.registry=123456789012.dkr.ecr.eu-west-1.amazonaws.com/team/", "images.engineRegistry=[::1]:5000"],
        ["images.registry=localhost:5000", "images.operator.tag=_a-B.c", "images.router.repository=a/b__c/d--e"],
        ["images.operator.repository=registry.example:5000/pdd-operator"],
        ["extraEnv[0].name=PDD_OPERATOR_SAMPLE_SECONDS", "extraEnv[1].name=https_proxy", "extraEnv[2].name=a.b-c"],
        ["commonLabels.example\\.com/Team_a=", "podLabels.team=Of_two.B", "podAnnotations.example\\.com/a=any: thing"],
    ],
    ids=lambda settings: settings[0],
)
def test_what_a_cluster_takes_is_not_refused(chart: Chart, settings: list[str]) -> None:
    assert chart.objects(*(part for setting in settings for part in ("--set-string", setting)))


def test_no_variable_that_the_chart_sets_can_be_set_beside_it(chart: Chart) -> None:
    platforms = [part for name in ("neuron", "cpu") for part in ("--set", f"images.engine.{name}.repository=x")]
    tags = [part for name in ("neuron", "cpu") for part in ("--set-string", f"images.engine.{name}.tag=1")]
    (pattern,) = SCHEMA["properties"]["extraEnv"]["items"]["properties"]["name"]["not"].values()
    for name in environment(chart.objects(*platforms, *tags)):
        assert re.search(pattern, name), name


def paths_of(keys: tuple[values_reference.Key, ...]) -> list[tuple[str, ...]]:
    return [path for key in keys for path in (key.path, *paths_of(key.children))]


def test_every_key_may_be_null_or_is_required() -> None:
    """Helm takes a key that is null out of the defaults: the schema sees that it is missing."""
    paths = paths_of(values_reference.parse((FOLDER / "values.yaml").read_text(encoding="utf-8")))
    assert len(paths) > 80
    nullable = set()
    for *parents, name in paths:
        schema = SCHEMA
        for parent in parents:
            schema = schema["properties"][parent]
        if "null" in schema["properties"][name]["type"]:
            nullable.add(name)
        assert (name in schema.get("required", [])) is (name not in nullable)
    assert nullable == {"runAsUser", "runAsGroup"}


@pytest.mark.parametrize(
    "key",
    [
        "images",
        "images.operator",
        "images.router",
        "images.engine.gpu",
        "images.operator.repository",
        "crds",
        "crds.enabled",
        "rbac",
        "securityContext",
        "watchNamespaces",
        "serviceAccount",
        "leaderElection",
        "monitoring.podMonitor",
        "networkPolicy.apiServerPorts",
        "replicas",
        "extraEnv",
    ],
)
def test_null_is_refused_by_name(chart: Chart, key: str) -> None:
    for command in (("lint", str(FOLDER)), ("template", "pdd", str(FOLDER))):
        with pytest.raises(HelmError) as refused:
            chart.run(*command, "--set", f"{key}=null")
        assert f"missing property '{key.rpartition('.')[2]}'" in str(refused.value)


def test_lint_finds_nothing_with_any_values_file(chart: Chart) -> None:
    for path in chart.values_files():
        assert "0 chart(s) failed" in chart.run("lint", str(FOLDER), "--strict", "--values", str(path))


def test_the_table_names_every_key() -> None:
    keys = values_reference.parse((FOLDER / "values.yaml").read_text(encoding="utf-8"))
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    paths = [".".join(key.path) for key in values_reference.leaves(keys)]
    assert len(paths) > 60
    assert all(f"| `{path}` |" in readme for path in paths)


def test_no_image_is_called_latest() -> None:
    images = yaml.safe_load((FOLDER / "values.yaml").read_text(encoding="utf-8"))["images"]
    assert "latest" not in json.dumps(images)
