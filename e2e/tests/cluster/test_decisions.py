"""What the cluster package decides before it does anything."""

import shutil
from pathlib import Path

import pytest
import yaml

from pdd_e2e.cluster.docker_engine import lacks_sys_resource
from pdd_e2e.cluster.engine_files import volume_objects
from pdd_e2e.cluster.errors import ClusterError
from pdd_e2e.cluster.kind_provider import NAME, cluster_config, is_outdated, was_started_again
from pdd_e2e.cluster.kubectl import Kubectl
from pdd_e2e.cluster.node_image import KIND_FILES, mirror_of, node_image_name
from pdd_e2e.cluster.product_images import pip_settings
from pdd_e2e.cluster.programs import MODULES, PROGRAMS
from pdd_e2e.cluster.provider import (
    ALLOWED_VARIABLE,
    CONTEXT_VARIABLE,
    KubeconfigProvider,
    allowed_contexts,
    named_cluster,
)

DEB822 = "Types: deb\n# why\nURIs: http://mirror.example/debian\nSuites: bookworm\n"
ONE_LINE = "deb [signed-by=/k.gpg] http://mirror.example/debian bookworm main\n"
SECURITY = "Types: deb\nURIs: http://mirror.example/debian-security\n"


@pytest.mark.parametrize(
    ("lists", "mirror"),
    [(DEB822, True), (ONE_LINE, True), (SECURITY + DEB822, True), (SECURITY, False), ("", False)],
    ids=["deb822", "one line", "not security's", "security only", "none"],
)
def test_debian_comes_from_where_apt_gets_it(lists: str, mirror: bool) -> None:
    assert mirror_of(lists) == ("http://mirror.example/debian" if mirror else None)


def test_pip_in_a_build_is_set_up_as_here_but_for_files_of_this_machine() -> None:
    environment = {"PIP_DEFAULT_TIMEOUT": "9", "PIP_CERT": "/etc/here.crt", "HOME": "/home"}
    configured = {"global.index-url": "https://index.example", "global.default-timeout": "5", ":env:.cert": "/x"}
    assert pip_settings(environment, configured) == "[global]\ndefault-timeout = 9\nindex-url = https://index.example\n"


def test_a_context_that_is_not_allowed_is_never_asked_anything(tmp_path: Path) -> None:
    called = tmp_path / "called"
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(f'#!/bin/sh\necho "$@" > {called}\n')
    kubectl.chmod(0o755)
    allowed = allowed_contexts({ALLOWED_VARIABLE: "staging, test-1"})
    with pytest.raises(ClusterError, match="'production' is not among"):
        KubeconfigProvider(kubectl, tmp_path / "config", "production", allowed).up()
    assert not called.exists()
    assert KubeconfigProvider(kubectl, tmp_path / "config", "test-1", allowed).up().context == "test-1"
    assert called.read_text() == f"--kubeconfig={tmp_path}/config --context=test-1 get --raw /readyz\n"


def test_nothing_is_allowed_unless_named() -> None:
    assert allowed_contexts({}) == allowed_contexts({ALLOWED_VARIABLE: " , "}) == frozenset()


def test_kind_is_used_unless_a_context_is_named() -> None:
    assert named_cluster({ALLOWED_VARIABLE: "x"}, Path("kubectl")) is None
    environment = {CONTEXT_VARIABLE: "x", ALLOWED_VARIABLE: "x,y", "KUBECONFIG": "/k"}
    assert named_cluster(environment, Path("kubectl")) == KubeconfigProvider(
        Path("kubectl"), Path("/k"), "x", frozenset({"x", "y"})
    )


def test_every_call_of_kubectl_names_cluster_and_context(tmp_path: Path) -> None:
    kubectl = Kubectl(Path("kubectl"), tmp_path / "config", "kind-x")
    assert kubectl.command("get", "pods") == [
        "kubectl", f"--kubeconfig={tmp_path}/config", "--context=kind-x", "get", "pods",
    ]  # fmt: skip


@pytest.mark.parametrize("built_here", [True, False])
def test_nodes_get_the_folders_and_foreign_images_their_own_network(built_here: bool) -> None:
    base = yaml.safe_load((KIND_FILES / "kind.yaml").read_text())
    config = cluster_config(base, {"/inside": Path("/outside")}, built_here=built_here)
    assert config["name"] == NAME
    mount = {"hostPath": "/outside", "containerPath": "/inside", "readOnly": True}
    assert [node["extraMounts"] for node in config["nodes"]] == [[mount]]
    assert ("networking" in config) is built_here


def test_engines_files_are_claims_and_read_only() -> None:
    objects = volume_objects("agents")
    assert [item["kind"] for item in objects] == ["PersistentVolume", "PersistentVolumeClaim"] * 2
    assert all(item["spec"]["accessModes"] == ["ReadOnlyMany"] for item in objects)


def test_every_program_can_be_built_from_a_module_of_ours() -> None:
    for program in PROGRAMS.values():
        module = (MODULES / program.module / "go.mod").read_text()
        assert program.package.partition("/cmd/")[0] in module
        assert (MODULES / program.module / "go.sum").is_file()


@pytest.mark.parametrize(("bounding", "lacks"), [("000001ffffffffff", False), ("000001fffeffffff", True)])
def test_the_machine_says_whether_it_may(bounding: str, lacks: bool) -> None:
    assert lacks_sys_resource(f"Name:\tx\nCapBnd:\t{bounding}\n") is lacks


@pytest.mark.parametrize(
    ("running", "wanted", "outdated"),
    [
        ("localhost/pdd-kind-node:v1-b", None, False),
        ("localhost/pdd-kind-node:v1-a", None, True),
        ("kindest/node:v1", None, False),
        ("kindest/node:v1", "kindest/node:v1", False),
        ("kindest/node:v1", "kindest/node:v2", True),
        ("localhost/pdd-kind-node:v1-b", "kindest/node:v2", True),
    ],
)
def test_a_node_of_another_make_is_made_anew_and_a_foreign_one_only_for_another(
    running: str, wanted: str | None, outdated: bool
) -> None:
    assert is_outdated(running, wanted, "localhost/pdd-kind-node:v1-b") is outdated


@pytest.mark.parametrize(
    ("started", "again"), [("2026-11-30T23:59:58.9498586Z", False), ("2026-12-01T00:14:00.1Z", True)]
)
def test_a_node_that_was_started_again_is_known(started: str, again: bool) -> None:
    assert was_started_again("2026-11-30T23:59:57.083508726Z", started) is again


@pytest.mark.parametrize("file", ["node/start", "node/Dockerfile", "system/Dockerfile", "modules/containerd/go.sum"])
def test_the_name_of_a_node_changes_with_what_it_is_made_from(tmp_path: Path, file: str) -> None:
    files = tmp_path / "kind"
    shutil.copytree(KIND_FILES, files)
    assert node_image_name("v1", files) == node_image_name("v1") != node_image_name("v2")
    before = node_image_name("v1", files)
    (files / file).write_text((files / file).read_text() + "\n")
    assert node_image_name("v1", files) != before
