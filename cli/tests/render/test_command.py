"""`pdd render` as a person runs it."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from ran import Done
from rendering import ROOT

Pdd = Callable[..., Done]
CPU = ROOT / "docs" / "samples" / "cpu-sockets.yaml"
P5EN = ROOT / "docs" / "samples" / "p5en-efa.yaml"


def test_files_and_standard_input_together(pdd: Pdd) -> None:
    done = pdd("render", "-f", str(P5EN), "-f", "-", stdin=CPU.read_text())
    assert (done.code, done.err) == (0, "")
    names = {item["metadata"]["name"] for item in yaml.safe_load_all(done.out)}
    assert {"glm-5-router", "tiny-router"} <= names
    assert pdd("render", "-f", str(P5EN), "-f", "-", stdin=CPU.read_text()).out == done.out


@pytest.mark.parametrize("flag", [("--summary",), ("-o", "summary")])
def test_summary(pdd: Pdd, flag: tuple[str, ...]) -> None:
    done = pdd("render", "-f", str(P5EN), *flag)
    assert done.code == 0
    assert "in all 32 GPU, 64 EFA devices" in done.out


def test_options_show(pdd: Pdd) -> None:
    done = pdd(
        "render", "-f", str(CPU), "-n", "agents", "--has", "PodMonitor", "--image", "router=registry.example/r:1"
    )
    objects = list(yaml.safe_load_all(done.out))
    assert {item["metadata"]["namespace"] for item in objects} == {"agents"}
    assert "PodMonitor" in {item["kind"] for item in objects}
    assert "GrafanaDashboard" not in {item["kind"] for item in objects}
    assert "image: registry.example/r:1" in done.out


def test_problems_are_on_standard_error_one_a_line_and_nothing_is_shown(pdd: Pdd, tmp_path: Path) -> None:
    bad = yaml.safe_load(CPU.read_text())
    bad["spec"]["decode"]["replicas"] = "many"
    bad["spec"]["engine"]["blockSize"] = 7
    (tmp_path / "bad.yaml").write_text(f"{yaml.safe_dump(bad)}\n---\nkind: Service\napiVersion: v1\n")
    (tmp_path / "broken.yaml").write_text("a: [")
    done = pdd("render", "-f", str(CPU), "-f", str(tmp_path / "bad.yaml"), "-f", str(tmp_path / "broken.yaml"))
    assert (done.code, done.out) == (2, "")
    lines = done.err.splitlines()
    assert lines[-1] == "pdd: 5 problems, so nothing is shown."
    assert len(lines) == 6
    assert all("must" in line for line in lines[:-1])
    for word in (
        "spec.decode.replicas",
        "spec.engine.blockSize",
        '"PDDeployment", not "Service"',
        "broken.yaml: must be YAML",
    ):
        assert [line for line in lines if word in line], word


def test_an_engine_image_that_nobody_names(pdd: Pdd) -> None:
    spec = yaml.safe_load(CPU.read_text())
    del spec["spec"]["engine"]["image"]
    text = yaml.safe_dump(spec)
    done = pdd("render", "-f", "-", stdin=text)
    assert (done.code, done.out) == (2, "")
    assert "default/tiny: spec.engine.image: `image` must be set" in done.err
    done = pdd("render", "-f", "-", "--image", "engine-cpu=registry.example/cpu:1", stdin=text)
    assert done.code == 0
    assert "image: registry.example/cpu:1" in done.out


def test_the_charts_output_counts(pdd: Pdd, tmp_path: Path) -> None:
    variables = {"IMAGE_ROUTER": "r:1", "IMAGE_CONNECTOR": "c:2", "POD_LABELS": "a=b"}
    container = {"env": [{"name": f"PDD_OPERATOR_{name}", "value": value} for name, value in variables.items()]}
    deployment = {
        "kind": "Deployment",
        "metadata": {"namespace": "ops"},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }
    (tmp_path / "chart.yaml").write_text(yaml.safe_dump(deployment))
    done = pdd("render", "-f", str(CPU), "--chart-output", str(tmp_path / "chart.yaml"))
    assert done.code == 0
    assert "image: c:2" in done.out
    assert "kubernetes.io/metadata.name: ops" in done.out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "--file"),
        (("-f", "nowhere.yaml"), "-f nowhere.yaml cannot be read: No such file"),
        (("-f", str(CPU), "--image", "router"), "--image 'router' must be NAME=REFERENCE"),
        (("-f", str(CPU), "--chart-output", "nowhere"), "--chart-output nowhere cannot be read"),
        (("-f", str(CPU), "--chart-output", str(CPU)), "must hold the operator's Deployment"),
        (("-f", "-", "--chart-output", "-"), "cannot both read standard input"),
        (("-f", str(CPU), "-o", "xml"), "'xml' is not one of"),
        (("-f", str(CPU), "--has", "Ingress"), "'Ingress' is not one of"),
        (("-f", "-"), "- must hold a PDDeployment, and has no object"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(pdd: Pdd, arguments: tuple[str, ...], says: str) -> None:
    done = pdd("render", *arguments)
    assert (done.code, done.out) == (2, "")
    assert says in done.err
    assert done.err.startswith("pdd: ")
    assert len(done.err.strip().splitlines()) == 1


@pytest.mark.parametrize("option", ["-f", "--chart-output"])
def test_what_is_no_utf_8_is_told_with_its_line(pdd: Pdd, tmp_path: Path, option: str) -> None:
    (tmp_path / "latin.yaml").write_bytes("a: b\nc: é\n".encode("latin-1"))
    done = pdd("render", "-f", str(CPU), option, str(tmp_path / "latin.yaml"))
    assert (done.code, done.out) == (2, "")
    assert "latin.yaml cannot be read: line 2 is not UTF-8" in done.err


def test_a_bomb_is_refused_at_once(pdd: Pdd, tmp_path: Path) -> None:
    lines = [f"  a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    text = "\n".join(("apiVersion: pdserve.io/v1alpha1", "kind: PDDeployment", "spec:", "  a0: &a0 [x]", *lines))
    done = pdd("render", "-f", "-", stdin=text)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("standard input: must be YAML: line 1, column 1: aliases must not repeat")
