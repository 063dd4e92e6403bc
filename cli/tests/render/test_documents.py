"""From text to PDDeployments: what is read, what is refused, and in which words."""

import pytest
import yaml

from pdd_cli.render.documents import Judged, judge, parse_documents

GOOD = """
apiVersion: pdserve.io/v1alpha1
kind: PDDeployment
metadata: {name: one}
spec:
  model: {name: Qwen/Qwen3-0.6B}
  prefill: {accelerator: {type: CPU}}
  decode: {accelerator: {type: CPU}}
  transport: {backend: Socket}
"""


def judged(text: str, namespace: str | None = None) -> Judged:
    return judge(parse_documents(text, "cr.yaml"), namespace)


def named(name: str, **metadata: str) -> str:
    return yaml.safe_dump(yaml.safe_load(GOOD) | {"metadata": {"name": name, **metadata}})


def test_several_documents_and_empty_ones() -> None:
    found = judged(f"---\n---\n{GOOD}\n---\n# nothing\n---\n{named('two', namespace='agents')}")
    assert not found.problems
    assert [(item.metadata.namespace, item.metadata.name) for item in found.deployments] == [
        ("default", "one"),
        ("agents", "two"),
    ]


def test_json_is_yaml() -> None:
    import json

    assert len(judged(json.dumps(yaml.safe_load(GOOD))).deployments) == 1


def test_a_list_is_unpacked() -> None:
    items = [yaml.safe_load(GOOD), yaml.safe_load(named("two"))]
    text = yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": items})
    assert [item.metadata.name for item in judged(text).deployments] == ["one", "two"]


def test_every_problem_of_every_document_is_told_on_a_line_of_its_own() -> None:
    bad = yaml.safe_load(named("two"))
    bad["spec"]["engine"] = {"blockSize": 17, "surprise": 1}
    bad["spec"]["prefill"]["replicas"] = -1
    worse = yaml.safe_load(named("three"))
    worse["spec"]["transport"] = {"backend": "EFA"}
    found = judged("\n---\n".join([GOOD, yaml.safe_dump(bad), yaml.safe_dump(worse)]))
    assert [item.metadata.name for item in found.deployments] == ["one"]
    second = [line for line in found.problems if line.startswith("cr.yaml, document 2 (PDDeployment two): spec.")]
    assert {line.split(": ")[1] for line in second} == {
        "spec.engine.blockSize",
        "spec.engine.surprise",
        "spec.prefill.replicas",
    }
    assert any(line.startswith("cr.yaml, document 3 (PDDeployment three): spec.") for line in found.problems)
    assert all(" must " in line and "\n" not in line for line in found.problems)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("kind: Pod\napiVersion: v1\nmetadata: {name: x}", 'cr.yaml (Pod x): kind: `kind` must be "PDDeployment", not "Pod"'),
        ("kind: PDDeployment\nmetadata: {name: x}", "(PDDeployment x): apiVersion: `apiVersion` must be"),
        ("just words", "cr.yaml: must be a PDDeployment, not str"),
        ("- 1\n- 2", "cr.yaml: must be a PDDeployment, not list"),
        ("apiVersion: pdserve.io/v1alpha1\nkind: PDDeployment", "metadata"),
        ("apiVersion: pdserve.io/v1alpha1\nkind: PDDeployment\nmetadata: x", "metadata"),
        (f"{GOOD}\n---\n{GOOD}", "document 2: metadata.name: `name` must not be there twice: default/one"),
    ],
)  # fmt: skip
def test_what_is_no_pddeployment_is_refused(text: str, says: str) -> None:
    problems = judged(text).problems
    assert [line for line in problems if says in line], problems
    assert all("must" in line for line in problems)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [1", "cr.yaml: must be YAML: line 1, column 6"),
        ("a: 1\nb: 2\na: 3", "line 3, column 1: `a` must not be there twice"),
        ("a: {b: {c: 1, c: 2}}", "`c` must not be there twice"),
        ("a: !!python/object:os.system x", "cr.yaml: must be YAML"),
        ("\x00", "cr.yaml: must be YAML"),
    ],
)
def test_what_is_no_yaml_is_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError, match="must") as caught:
        parse_documents(text, "cr.yaml")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_merge_keys_are_no_doubled_keys() -> None:
    (document,) = parse_documents("a: &a {x: 1}\nb: &b {z: 1}\nc: {<<: *a, x: 2}\nd: {<<: [*a, *b]}", "x")
    assert document.content["c"] == {"x": 2}


@pytest.mark.parametrize(
    ("own", "option", "wanted"),
    [(None, None, "default"), (None, "agents", "agents"), ("agents", None, "agents"), ("agents", "agents", "agents")],
)
def test_namespace(own: str | None, option: str | None, wanted: str) -> None:
    text = named("one", **({"namespace": own} if own else {}))
    (found,) = judged(text, option).deployments
    assert found.metadata.namespace == wanted


def test_another_namespace_is_refused() -> None:
    (problem,) = judged(named("one", namespace="agents"), "others").problems
    assert 'metadata.namespace: `namespace` must be "others", as --namespace says, not "agents"' in problem
