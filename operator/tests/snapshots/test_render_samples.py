"""Every named sample: its whole set of objects is as recorded, and valid for those who will read it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import render_cases as cases
import yaml
from kubernetes_schemas import problems_of
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

from pdd_connector.kv_transfer_config.facts import EngineFacts, Fabric
from pdd_connector.kv_transfer_config.facts import Platform as ConnectorPlatform
from pdd_connector.kv_transfer_config.pair import check_pair
from pdd_operator.api.objects import Manifest, Rendered
from pdd_operator.api.rules import check_spec
from pdd_operator.api.v1alpha1 import Backend
from pdd_operator.render.catalog import Platform, platform_of
from pdd_operator.render.kv_transfer import backends_of
from pdd_router.config import parse_config

CUSTOM_KINDS = {"PodMonitor", "GrafanaDashboard"}


class _YamlExtension(SingleFileSnapshotExtension):
    """One file a sample, as ``kubectl`` would print it."""

    _write_mode = WriteMode.TEXT
    file_extension = "yaml"


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


@pytest.fixture(params=cases.SAMPLE_NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def result(name: str) -> Rendered:
    return cases.rendered(cases.sample(name))


def _documents(result: Rendered) -> list[Manifest]:
    secrets = [{"once": item.key, "bytes": item.length_bytes, **item.manifest} for item in result.secrets]
    documents = []
    for manifest in [*result.manifests, *secrets]:
        # Python shipped as it is has tests of its own; here it would be the same in every file.
        data = {key: "..." if key.endswith(".py") else value for key, value in manifest.get("data", {}).items()}
        documents.append(manifest | {"data": data} if data else manifest)
    return documents


def test_the_sample_is_one_that_the_crd_accepts(name: str) -> None:
    target = cases.sample(name)
    assert check_spec(target.metadata.name, target.spec) == ()


def test_the_objects_are_as_recorded(result: Rendered, snapshot: SnapshotAssertion) -> None:
    text = yaml.dump_all(_documents(result), Dumper=_Dumper, sort_keys=False, width=160, allow_unicode=True)
    assert text == snapshot(extension_class=_YamlExtension)


def test_kubernetes_schemas_accept_every_object(result: Rendered) -> None:
    secrets = [item.manifest for item in result.secrets]
    for manifest in [*result.manifests, *secrets]:
        if manifest["kind"] not in CUSTOM_KINDS:
            assert problems_of(manifest) == []


def test_kubernetes_schemas_would_refuse_a_slip() -> None:
    manifest = cases.find(cases.rendered(cases.sample("cpu")), "StatefulSet", "cpu-prefill")
    manifest["spec"]["template"]["spec"]["containers"][0]["imagePullPolcy"] = "Always"
    assert any("imagePullPolcy" in problem for problem in problems_of(manifest))


def test_the_router_loads_its_configuration(name: str, result: Rendered) -> None:
    text = cases.find(result, "ConfigMap", f"{name}-router")["data"]["router.yaml"]
    spec = cases.sample(name).spec
    config = parse_config(text)
    assert config.discovery is not None
    assert config.discovery.kubernetes.deployment == name
    assert config.mechanism.value == spec.kv_transfer.mechanism.value
    assert config.limits.max_body_bytes == spec.router.limits.max_body_bytes


def test_the_connectors_checker_accepts_every_pair(name: str, result: Rendered) -> None:
    target = cases.sample(name)
    files = cases.find(result, "ConfigMap", f"{name}-engine")["data"]
    for backend in backends_of(target.spec):
        prefill, decode = (json.loads(files[f"kv-transfer-{role}-{backend}.json"]) for role in ("prefill", "decode"))
        facts = _facts(target.spec, backend)
        ttl = target.spec.router.conversation_ttl_seconds
        assert check_pair(prefill, decode, router_ttl_seconds=ttl, prefill_facts=facts, decode_facts=facts) == []


def _facts(spec: Any, backend: Backend) -> EngineFacts:
    platforms = {Platform.GPU: ConnectorPlatform.CUDA, Platform.CPU: ConnectorPlatform.CPU}
    return EngineFacts(
        platform=platforms.get(platform_of(spec.prefill)),
        fabric=Fabric.EFA if backend is Backend.EFA else Fabric.TCP,
        block_size=spec.engine.block_size,
        tensor_parallel_size=spec.prefill.tensor_parallel_size,
    )


def test_the_shell_reads_every_start_script(name: str, result: Rendered, tmp_path: Path) -> None:
    files = cases.find(result, "ConfigMap", f"{name}-engine")["data"]
    for role in ("prefill", "decode"):
        script = tmp_path / f"{role}.sh"
        script.write_text(files[f"start-{role}.sh"], encoding="utf-8")
        subprocess.run(["/bin/sh", "-n", str(script)], check=True)


def test_custom_kinds_have_what_their_controllers_need() -> None:
    result = cases.rendered(cases.sample("cpu"))
    monitor = cases.find(result, "PodMonitor", "cpu-engine")
    ports = cases.find(result, "StatefulSet", "cpu-decode")["spec"]["template"]["spec"]["containers"][0]["ports"]
    assert monitor["spec"]["podMetricsEndpoints"][0]["port"] in {port["name"] for port in ports}
    board = json.loads(cases.find(result, "GrafanaDashboard", "cpu-dashboard")["spec"]["json"])
    assert len(board["panels"]) == 12
    assert len({panel["id"] for panel in board["panels"]}) == 12
