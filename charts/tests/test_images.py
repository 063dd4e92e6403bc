"""Dockerfiles: what they promise, as far as that can be seen without building; and the connector's image, put together by hand."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path
from zipfile import ZipFile

import dockerfiles
import pytest
import yaml

from pdd_operator.api.v1alpha1 import PDDeployment
from pdd_operator.render import render
from pdd_operator.render.inputs import ClusterFacts, Images, Platform, RenderSettings, Replicas

ROOT = Path(__file__).parents[2]
FILES = sorted(ROOT.glob("*/Dockerfile"))
LOCKS = ("operator/requirements.lock", "router/requirements.lock", "images.lock")
NOBODY = 65534


def test_operator_and_connector_have_images() -> None:
    assert {path.parent.name for path in FILES} >= {"operator", "connector"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_nothing_is_wrong_with_the_image(path: Path) -> None:
    assert dockerfiles.problems(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_what_is_copied_is_there_and_not_ignored(path: Path) -> None:
    allowed = [
        line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line[:1] == "!"
    ]
    sources = dockerfiles.copied(dockerfiles.parse(path.read_text(encoding="utf-8")))
    assert sources
    for source in sources:
        assert (ROOT / source).exists(), source
        assert any(source == name or source.startswith(f"{name}/") for name in allowed), f"{source} is ignored"


@pytest.mark.parametrize(
    "path", [path for path in FILES if path.parent.name != "connector"], ids=lambda p: p.parent.name
)
def test_no_installer_stays_inside(path: Path) -> None:
    last = dockerfiles.stages(dockerfiles.parse(path.read_text(encoding="utf-8")))[-1]
    runs = " ".join(step.text for step in last if step.word == "RUN")
    assert "pip uninstall --yes pip" in runs
    assert "for tool in cc gcc g++ clang make pip pip3" in runs


GOOD = (ROOT / "operator" / "Dockerfile").read_text(encoding="utf-8")
MUTATIONS = [
    ("USER 65532:65532", "USER pdd", "must be a number"),
    ("USER 65532:65532", "USER 0", "must be a number"),
    ("USER 65532:65532\n", "", "must be a number"),
    ('ENTRYPOINT ["python", "-m", "pdd_operator"]', "ENTRYPOINT python -m pdd_operator", "must be a list"),
    ("=python:3.11-slim", "=registry.example/python:3.11", "names a registry"),
    ("=python:3.11-slim", "=python:latest", "not latest"),
    ("FROM ${BASE_IMAGE} AS build", "FROM python:3.11 AS build", "must be an ARG"),
    (
        "--require-hashes --no-deps --only-binary :all: -r requirements.lock",
        "-r requirements.lock",
        "not held by a lock",
    ),
    (" --no-build-isolation", "", "not held by a lock"),
    ("COPY operator/src", "ADD operator/src", "must be COPY"),
    ("RUN python -m venv", "RUN apt-get install gcc && python -m venv", "apt-get must not be used"),
]


@pytest.mark.parametrize(("old", "new", "says"), MUTATIONS, ids=[says for _, _, says in MUTATIONS])
def test_each_check_finds_what_it_is_for(old: str, new: str, says: str) -> None:
    assert old in GOOD
    assert [text for text in dockerfiles.problems(GOOD.replace(old, new)) if says in text]


@pytest.mark.parametrize("name", LOCKS)
def test_images_install_the_versions_that_are_tested(name: str) -> None:
    def pins(path: Path) -> set[str]:
        return {line.split()[0] for line in path.read_text(encoding="utf-8").splitlines() if "==" in line}

    own = pins(ROOT / name)
    assert own and own <= pins(ROOT / "requirements.lock")


def test_the_images_carry_nothing_of_tests_or_other_members() -> None:
    for name, foreign in (("operator", ("openai", "pytest", "hatchling")), ("router", ("kopf", "openai", "pytest"))):
        lock = (ROOT / name / "requirements.lock").read_text(encoding="utf-8")
        assert not [package for package in foreign if f"\n{package}==" in f"\n{lock}"]


@pytest.mark.parametrize("member", ["operator", "router"])
def test_a_wheel_holds_every_file_of_the_source(member: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run(
        [*command, "--wheel-dir", str(tmp_path), str(ROOT / member)],
        check=True,
        timeout=100,
        env={**os.environ, "PIP_NO_INDEX": "1"},
    )
    (wheel,) = tmp_path.glob("*.whl")
    source = ROOT / member / "src"
    files = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()}
    wanted = {name for name in files if "__pycache__" not in name and ".egg-info" not in name}
    with ZipFile(wheel) as archive:
        assert wanted <= set(archive.namelist())


def test_engine_pods_start_the_connectors_image_as_it_is_made() -> None:
    steps = dockerfiles.parse((ROOT / "connector" / "Dockerfile").read_text(encoding="utf-8"))
    (entry,) = (step.text for step in steps if step.word == "ENTRYPOINT")
    (defaults,) = (step.text for step in steps if step.word == "CMD")
    sample = yaml.safe_load((ROOT / "docs" / "samples" / "cpu-sockets.yaml").read_text(encoding="utf-8"))
    images = Images(router="router:1", connector="connector:1", engine={Platform.CPU: "engine:1"})
    deployment = PDDeployment.model_validate(sample)
    rendered = render(deployment, RenderSettings(images, "pdd-system"), ClusterFacts(), Replicas(1, 1))
    sets = [item for item in rendered.manifests if item["kind"] == "StatefulSet"]
    assert len(sets) == 2
    for item in sets:
        (container,) = (c for c in item["spec"]["template"]["spec"]["initContainers"] if c["name"] == "connector")
        assert container["image"] == "connector:1"
        assert container["command"] == [*json.loads(entry), *json.loads(defaults)]


@pytest.fixture(scope="module")
def connector_image() -> Iterator[Path]:
    """What the connector's image holds under /pdd-connector, put together by the step that its Dockerfile has.

    Not in pytest's folder: other users may not enter that.
    """
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield assembled(Path(folder) / "pdd-connector")


def assembled(target: Path) -> Path:
    flags = ["--quiet", "--no-deps", "--no-build-isolation", "--no-compile", "--target", str(target)]
    command = [sys.executable, "-m", "pip", "install", *flags, str(ROOT / "connector")]
    subprocess.run(command, check=True, timeout=100, env={**os.environ, "PIP_NO_INDEX": "1"})
    subprocess.run(["chmod", "-R", "u=rwX,go=rX", str(target)], check=True)  # noqa: S607  # coreutils from PATH
    return target


def copy(image: Path, target: Path, user: int) -> None:
    """What the image's ENTRYPOINT does, as ``user``."""
    script = (ROOT / "connector" / "copy.sh").read_text(encoding="utf-8").replace("/pdd-connector/", f"{image}/")
    command = ["/bin/sh", "-s", str(target)]
    environment = {"PATH": os.defpath}
    subprocess.run(
        command, input=script, text=True, check=True, env=environment, user=user, group=user, cwd="/", timeout=30
    )


def test_the_copy_works_for_any_user_and_again(connector_image: Path) -> None:
    user = os.geteuid() or NOBODY
    target = connector_image.parent / "volume"
    target.mkdir()
    os.chown(target, user, user)
    copy(connector_image, target, user)
    (target / "pdd_connector" / "__init__.py").write_text("cut off by a kill", encoding="utf-8")
    copy(connector_image, target, user)
    wanted = {path.relative_to(connector_image) for path in connector_image.rglob("*")}
    assert {path.relative_to(target) for path in target.rglob("*")} == wanted
    assert "cut off" not in (target / "pdd_connector" / "__init__.py").read_text(encoding="utf-8")
    assert all(path.stat().st_mode & 0o004 for path in target.rglob("*"))


def test_vllm_finds_the_plugin_by_its_metadata(connector_image: Path) -> None:
    (found,) = distributions(path=[str(connector_image)])
    names = {(entry.group, entry.name) for entry in found.entry_points}
    assert ("vllm.general_plugins", "pdd_connector") in names
    assert not list(connector_image.rglob("*.pyc"))
    assert {path.name for path in connector_image.iterdir() if not path.name.endswith(".dist-info")} == {
        "pdd_connector"
    }
