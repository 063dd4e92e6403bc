"""Start scripts, run by a real shell with a python3 that only says what it was given: no value of a user is ever shell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import render_cases as cases
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pdd_operator.api.labels import Component
from pdd_operator.api.v1alpha1 import PDDeployment
from pdd_operator.render.engine_command import engine_arguments, engine_files

PROGRAM = f"""#!{sys.executable}
import json, os, sys
print(json.dumps({{"argv": sys.argv[1:], "env": dict(os.environ)}}))
"""
HOSTILE = [
    "$(touch pwned)",
    "`touch pwned`",
    "'; touch pwned; '",
    '"; touch pwned; "',
    "a\nb; touch pwned",
    "\\",
    "\\'",
    "${HOME}",
    "*",
    "~",
    "--x={{ 7 * 7 }}",
    "#",
    " leading and trailing ",
    "é日本🎉",
    "",
]


@dataclass
class Machine:
    folder: Path

    def start(
        self, target: PDDeployment, transport: str, role: Component = Component.PREFILL, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs the script as the pod would, with /pdd moved into the test's folder."""
        for path in ("bin", "pdd/scripts", "pdd/run"):
            (self.folder / path).mkdir(parents=True, exist_ok=True)
        program = self.folder / "bin" / "python3"
        program.write_text(PROGRAM, encoding="utf-8")
        program.chmod(0o755)
        for name, text in engine_files(target.spec, "abc123").items():
            moved = text.replace("/pdd/", f"{self.folder}/pdd/") if name.endswith(".sh") else text
            (self.folder / "pdd/scripts" / name).write_text(moved, encoding="utf-8")
        (self.folder / "pdd/run/transport").write_text(transport, encoding="utf-8")
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        return subprocess.run(
            ["/bin/sh", str(self.folder / f"pdd/scripts/start-{role}.sh")],
            cwd=self.folder,
            env={"PATH": path} | environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def told(self, target: PDDeployment, transport: str, **environment: str) -> dict[str, Any]:
        ended = self.start(target, transport, **environment)
        assert ended.returncode == 0, ended.stderr
        told: dict[str, Any] = json.loads(ended.stdout)
        return told


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def expected_arguments(target: PDDeployment, folder: Path, transport: str) -> list[str]:
    arguments = [part for option in engine_arguments(target.spec, Component.PREFILL) for part in option]
    arguments = [part.replace("/pdd/", f"{folder}/pdd/") for part in arguments]
    config = engine_files(target.spec, "abc123")[f"kv-transfer-prefill-{transport}.json"].rstrip("\n")
    module = ["-m", "vllm.entrypoints.openai.api_server"]
    return [*module, *arguments, "--kv-transfer-config", config, *target.spec.engine.extra_args]


@pytest.mark.parametrize("value", HOSTILE)
def test_a_hostile_value_arrives_as_it_is(machine: Machine, value: str) -> None:
    target = cases.deployment(engine={"extraArgs": ["--a", value or "x", f"--b={value}"]})
    told = machine.told(target, "EFA")
    assert told["argv"] == expected_arguments(target, machine.folder, "EFA")
    assert told["argv"][-1] == f"--b={value}"
    assert not (machine.folder / "pwned").exists()


def test_hostile_names_and_paths_arrive_as_they_are(machine: Machine) -> None:
    path = "it's $(touch pwned)/`touch pwned`"
    source = {"persistentVolumeClaim": {"claimName": "weights", "path": path}}
    target = cases.deployment(model={"name": "a/b", "servedName": "x';touch${IFS}pwned;'", "source": source})
    told = machine.told(target, "EFA")
    assert told["argv"] == expected_arguments(target, machine.folder, "EFA")
    assert not (machine.folder / "pwned").exists()


def test_without_quoting_it_would_have_been_shell(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    from pdd_operator.render import payloads

    monkeypatch.setitem(payloads._environment().filters, "quote", str)
    machine.start(cases.deployment(engine={"extraArgs": ["--a=$(touch pwned)"]}), "EFA")
    assert (machine.folder / "pwned").exists()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1), max_size=4))
def test_any_text_arrives_as_it_is(machine: Machine, values: list[str]) -> None:
    target = cases.deployment(engine={"extraArgs": values})
    given_arguments = machine.told(target, "EFA")["argv"]
    assert given_arguments[len(given_arguments) - len(values) :] == values


def test_efa_is_named_and_user_libraries_stay(machine: Machine) -> None:
    env = machine.told(cases.deployment(), "EFA", LD_LIBRARY_PATH="/cuda", NIXL_LIBFABRIC_NUM_THREADS="8")["env"]
    assert env["FI_PROVIDER"] == "efa"
    assert env["FI_EFA_USE_DEVICE_RDMA"] == "1"
    assert env["FI_EFA_ENABLE_SHM_TRANSFER"] == "0"
    assert env["NIXL_LIBFABRIC_NUM_THREADS"] == "8"
    assert env["LD_LIBRARY_PATH"] == "/opt/amazon/efa/lib:/opt/amazon/efa/lib64:/opt/aws-ofi-nccl/lib:/cuda"
    assert "UCX_TLS" not in env


@pytest.mark.parametrize(
    ("sample", "tls", "interface"), [("gpu-sockets", "tcp,cuda_copy", "ens5"), ("cpu", "tcp", "eth0")]
)
def test_sockets_are_ucx_over_tcp(machine: Machine, sample: str, tls: str, interface: str) -> None:
    told = machine.told(cases.sample(sample), "Socket")
    assert (told["env"]["UCX_TLS"], told["env"]["UCX_NET_DEVICES"]) == (tls, interface)
    assert "FI_PROVIDER" not in told["env"]
    config = json.loads(told["argv"][told["argv"].index("--kv-transfer-config") + 1])
    assert config["kv_connector_extra_config"]["backends"] == ["UCX"]


def test_a_fallback_changes_backend_and_environment_together(machine: Machine) -> None:
    target = cases.sample("efa-fallback-socket")
    for transport, backend in (("EFA", "LIBFABRIC"), ("Socket", "UCX")):
        told = machine.told(target, transport)
        config = json.loads(told["argv"][told["argv"].index("--kv-transfer-config") + 1])
        assert config["kv_connector_extra_config"]["backends"] == [backend]
        assert ("UCX_TLS" in told["env"]) == (backend == "UCX")


@pytest.mark.parametrize("transport", ["Socket", "", "EFA; touch pwned"])
def test_a_transport_that_is_not_configured_does_not_start(machine: Machine, transport: str) -> None:
    ended = machine.start(cases.deployment(), transport)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "preflight wrote no transport" in ended.stderr
    assert not (machine.folder / "pwned").exists()
