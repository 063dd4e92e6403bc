"""What is written: YAML that holds exactly the objects, names, a summary."""

import json
from collections.abc import Iterable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from rendering import DOCUMENTED, EVERY_KIND, ROOT, SAMPLES, SETTINGS, sample, shown
from rich.console import Console
from scalars import AS_VALUES

from pdd_cli.render.objects import Shown
from pdd_cli.render.summary import pods_of, summary
from pdd_cli.render.text import as_names, as_yaml
from pdd_cli.yaml_text import load_all
from pdd_operator.api.parse import parse_deployment
from pdd_operator.render import render
from pdd_operator.render.inputs import ClusterFacts, Replicas

UID = "6f9d3c1e-0000-4000-8000-000000000001"
P5EN = ROOT / "docs" / "samples" / "p5en-efa.yaml"
AUTOSCALED = next(path for path in SAMPLES if path.stem == "autoscaled")


def documents(text: str) -> list[dict[str, Any]]:
    return list(yaml.load_all(text, Loader=yaml.CSafeLoader))


def seen(one: Shown, width: int = 140) -> str:
    console = Console(file=StringIO(), width=width, no_color=True)
    console.print(summary(one))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]  # it is the StringIO


@pytest.mark.parametrize("path", [*DOCUMENTED, *SAMPLES], ids=lambda path: path.stem)
def test_the_yaml_is_the_objects(path: Path) -> None:
    one = shown(sample(path))
    assert documents(as_yaml([one])) == list(one.manifests)


def test_text_that_kubectl_would_take_for_a_number_has_quotes() -> None:
    """A revision is six characters of hex: in 3 of 100 they read like 123e45."""
    item = sample(P5EN)
    values = [*AS_VALUES, "123e45", "a: b", "plain"]
    item["spec"]["engine"]["env"] = [{"name": f"V{number}", "value": value} for number, value in enumerate(values)]
    one = replace(shown(item), revision="123e45")
    text = as_yaml([replace(one, manifests=tuple(renamed(one.manifests, shown(item).revision, one.revision)))])
    assert "pdserve.io/revision-group: '123e45'" in text
    assert [document for document in load_all(text) if document] == documents(text)
    for value in values[:-2]:
        assert f"value: '{value}'" in text


def renamed(manifests: Iterable[Any], old: str, new: str) -> list[Any]:
    return [json.loads(json.dumps(manifest).replace(old, new)) for manifest in manifests]


def test_the_same_object_gives_the_same_bytes() -> None:
    assert as_yaml([shown(sample(P5EN))]) == as_yaml([shown(sample(P5EN))])


@pytest.mark.parametrize("path", DOCUMENTED, ids=lambda path: path.stem)
def test_an_object_of_a_cluster_is_rendered_as_the_operator_does(path: Path) -> None:
    one = shown(sample(path), uid=UID)
    roles = (one.deployment.spec.prefill, one.deployment.spec.decode)
    prefill, decode = (None if role.autoscaling else role.replicas for role in roles)  # an autoscaler's are left alone
    operators = render(one.deployment, SETTINGS, EVERY_KIND, Replicas(prefill, decode))
    assert documents(as_yaml([one])) == list(operators.manifests)
    assert one.secrets == operators.secrets
    assert "has no uid" not in as_yaml([one])


def test_what_depends_on_a_uid_is_left_out_and_said_where_there_is_none() -> None:
    text = as_yaml([shown(sample(P5EN))])
    body = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))
    for word in ("ownerReferences", "owner-uid", "input-hash"):
        assert word not in body
        assert word in text
    assert "emptyDir: {}" in body  # an empty mapping that means something stays


def test_secrets_are_comments() -> None:
    """A Secret without content, once applied, would stay empty: the operator never touches one that is there."""
    one = shown(sample(P5EN))
    assert "Secret" not in {item["kind"] for item in documents(as_yaml([one]))}
    names = [secret.manifest["metadata"]["name"] for secret in one.secrets]
    assert names == [f"glm-5-claim-{one.revision}", "glm-5-tenant-salt"]
    for name in names:
        assert f"#   name: {name}" in as_yaml([one])
    assert "32 random bytes in hex under the key `key`" in as_yaml([one])


def test_what_is_not_shown_is_said() -> None:
    assert "older revision groups" in as_yaml([shown(sample(P5EN))])
    assert "--has" not in as_yaml([shown(sample(P5EN))])
    assert "--has PodMonitor --has GrafanaDashboard" in as_yaml([shown(sample(P5EN), ClusterFacts())])
    assert "without GrafanaDashboard:" in as_yaml([shown(sample(P5EN), ClusterFacts(pod_monitors=True))])


def test_scripts_are_written_as_they_are() -> None:
    assert "\n  start-decode.sh: |\n    #!/bin/sh\n" in as_yaml([shown(sample(P5EN))])


def test_names() -> None:
    one = shown(sample(P5EN))
    lines = as_names([one]).splitlines()
    assert len(lines) == len(one.manifests) + len(one.secrets)
    assert {
        "service/glm-5-router",
        f"statefulset.apps/glm-5-prefill-{one.revision}",
        "podmonitor.monitoring.coreos.com/glm-5-engine",
        "secret/glm-5-tenant-salt",
    } <= set(lines)


def test_summary_has_pods_devices_images_and_revision() -> None:
    one = shown(sample(P5EN))
    text = seen(one)
    assert f"default/glm-5  revision group {one.revision}" in text
    row = next(line.split() for line in text.splitlines() if " prefill " in line)
    assert row[1:9] == ["prefill", "2", "8", "GPU", "of", "p5en.48xlarge", "16", "163200m"]
    assert "in all 32 GPU, 64 EFA devices" in text
    assert "engine registry.example/vllm-efa:0.32.0" in text
    assert "transport EFA (LIBFABRIC), where it is missing: Refuse; reuse Bidirectional by Claim" in text


def test_summary_of_an_autoscaled_role_has_both_ends() -> None:
    one = shown(sample(AUTOSCALED))
    scaled = [role for role in pods_of(one) if role.count != role.most]
    assert scaled
    assert all(f"{role.count} to {role.most}" in seen(one) for role in scaled)
    kinds = [item["kind"] for item in one.manifests]
    assert kinds.count("HorizontalPodAutoscaler") == len(scaled)
    least, most = (sum(size * role.amount("nvidia.com/gpu") for role, size in sizes) for sizes in (
        [(role, role.count) for role in scaled], [(role, role.most) for role in scaled]
    ))  # fmt: skip
    assert f"in all {least} to {most} GPU" in seen(one)


@pytest.mark.parametrize("path", [*DOCUMENTED, *SAMPLES], ids=lambda path: path.stem)
def test_every_sample_has_a_summary(path: Path) -> None:
    one = shown(sample(path))
    text = seen(one)
    assert parse_deployment(sample(path)).spec.model.name in text
    assert all(role.component in text for role in pods_of(one))
