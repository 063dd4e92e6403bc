"""The definition in the chart is crds/ and nothing else, in all three ways in which values may ask for it."""

from pathlib import Path

import pytest
import sync_crds
import yaml
from chart import Chart

CRD = """\
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
# Why this is so.
metadata:
  name: things.example.com
spec:
  group: example.com
  versions:
    - name: v1
      schema:
        openAPIV3Schema:
          description: "Text with {{ braces }}."
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "crds"
    folder.mkdir()
    (folder / "things.yaml").write_text(CRD, encoding="utf-8")
    return folder


def test_the_chart_has_what_crds_has() -> None:
    assert sync_crds.wanted(sync_crds.SOURCES)
    assert sync_crds.differing(sync_crds.SOURCES, sync_crds.COPIES) == []


def test_an_old_a_missing_and_a_left_over_copy_are_noticed(source: Path, tmp_path: Path) -> None:
    copies = tmp_path / "copies"
    copies.mkdir()
    (copies / "gone.yaml").write_text("left over", encoding="utf-8")
    assert sync_crds.differing(source, copies) == ["gone.yaml", "things.yaml"]
    sync_crds.sync(source, copies)
    assert sync_crds.differing(source, copies) == []
    (source / "things.yaml").write_text(CRD.replace("Text", "Other text"), encoding="utf-8")
    assert sync_crds.differing(source, copies) == ["things.yaml"]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("kind: CustomResourceDefinition", "kind: ConfigMap", "exactly one"),
        ("metadata:\n  name: things.example.com\n", "metadata: {name: things.example.com}\n", "a line of its own"),
        ("  name: things.example.com\n", "  name: things.example.com\n  labels: {a: b}\n", "nothing else"),
    ],
)
def test_what_cannot_be_wrapped_is_refused(old: str, new: str, says: str) -> None:
    with pytest.raises(sync_crds.SourceError, match=says):
        sync_crds.wrap("things.yaml", CRD.replace(old, new))


def definitions(chart: Chart, *flags: str) -> list[dict[str, object]]:
    return [item for item in chart.objects(*flags) if item["kind"] == "CustomResourceDefinition"]


def test_helm_writes_the_definition_as_it_is_in_crds(chart: Chart) -> None:
    source = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(sync_crds.SOURCES.glob("*.yaml"))]
    assert [item["spec"] for item in definitions(chart)] == [item["spec"] for item in source]


def test_braces_in_descriptions_survive_helm(chart: Chart, source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "chart"
    (folder / "templates").mkdir(parents=True)
    (folder / "Chart.yaml").write_text("apiVersion: v2\nname: x\nversion: 1.0.0\n", encoding="utf-8")
    (folder / "values.yaml").write_text("crds: {enabled: true, keep: true}\n", encoding="utf-8")
    (folder / "templates" / "_l.tpl").write_text('{{ define "pdd-operator.labels" }}a: b{{ end }}', encoding="utf-8")
    sync_crds.sync(source, folder / "templates")
    (item,) = definitions(Chart(chart.helm, folder))
    assert item["spec"] == yaml.safe_load(CRD)["spec"]


def test_keep_and_enabled_do_what_they_say(chart: Chart) -> None:
    keep = {"helm.sh/resource-policy": "keep"}
    assert [item["metadata"]["annotations"] for item in definitions(chart)] == [keep]  # type: ignore[index]  # untyped YAML
    assert ["annotations" in item["metadata"] for item in definitions(chart, "--set", "crds.keep=false")] == [False]  # type: ignore[operator]  # untyped YAML
    assert definitions(chart, "--set", "crds.enabled=false") == []
