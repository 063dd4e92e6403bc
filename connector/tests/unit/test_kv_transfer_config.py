"""Builder and checker of `--kv-transfer-config`: one good pair, and one test per rule that breaks it."""

import copy
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pdd_connector.kv_transfer_config import (
    EngineFacts,
    Fabric,
    PairSettings,
    Platform,
    Role,
    build_kv_transfer_config,
    check_kv_transfer_config,
    check_pair,
    load_settings,
)
from pdd_connector.kv_transfer_config.__main__ import main
from pdd_connector.settings import ConnectorSettings, Direction, Mechanism, SettingsError

Config = dict[str, Any]

ROOT = Path(__file__).parents[3]

EXTRA = "kv_connector_extra_config"
CUDA = EngineFacts(platform=Platform.CUDA)


def _pair(settings: ConnectorSettings | None = None) -> tuple[Config, Config]:
    pair = PairSettings(settings=settings or ConnectorSettings())
    return build_kv_transfer_config(pair, Role.PREFILL), build_kv_transfer_config(pair, Role.DECODE)


def _stock(role: str = "kv_producer", connector: str = "NixlConnector", **extra: Any) -> Config:
    return {
        "kv_connector": connector,
        "kv_role": role,
        "kv_load_failure_policy": "recompute",
        EXTRA: {"backends": ["UCX"], **extra},
    }


def _changed(config: Config, path: str, value: Any) -> Config:
    """A copy with the value at the dotted path set; `...` takes it out."""
    changed = copy.deepcopy(config)
    *parents, last = path.split(".")
    target = changed
    for parent in parents:
        target = target[parent]
    if value is ...:
        del target[last]
    else:
        target[last] = value
    return changed


@pytest.mark.parametrize("mechanism", Mechanism)
@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("platform", Platform)
def test_built_pairs_are_accepted(mechanism: Mechanism, direction: Direction, platform: Platform) -> None:
    pair = PairSettings(settings=ConnectorSettings(mechanism=mechanism, direction=direction), platform=platform)
    prefill = build_kv_transfer_config(pair, Role.PREFILL)
    decode = build_kv_transfer_config(pair, Role.DECODE, claim_port=6601)
    facts = EngineFacts(platform=platform, fabric=Fabric.TCP)
    assert check_pair(prefill, decode, router_ttl_seconds=450, prefill_facts=facts, decode_facts=facts) == []
    assert load_settings(prefill) == pair.settings


def test_built_configuration() -> None:
    prefill, decode = _pair()
    assert prefill["kv_connector"] == "PddConnector"
    assert prefill["kv_connector_module_path"] == "pdd_connector.connector"
    assert (prefill["kv_role"], decode["kv_role"]) == ("kv_producer", "kv_consumer")
    assert prefill["kv_load_failure_policy"] == decode["kv_load_failure_policy"] == "recompute"
    assert "engine_id" not in prefill
    assert prefill[EXTRA] == decode[EXTRA]
    assert prefill[EXTRA]["bidirectional_kv_xfer"] is True
    assert json.loads(json.dumps(prefill)) == prefill


@pytest.mark.parametrize(
    ("path", "value", "field", "words"),
    [
        ("kv_rank", 0, "kv_rank", "must be left out"),
        ("kv_parallel_size", 2, "kv_parallel_size", "must be left out"),
        ("kv_ip", "127.0.0.1", "kv_ip", "must be left out"),
        ("kv_buffer_size", 1e9, "kv_buffer_size", "must be left out"),
        ("kv_roles", "x", "kv_roles", 'did you mean "kv_role"'),
        ("engine_id", "fixed", "engine_id", "must be left out"),
        ("kv_port", 0, "kv_port", "an integer from 1 to 65535"),
        ("kv_connector", "LMCacheConnector", "kv_connector", "must be"),
        ("kv_connector", ["PddConnector"], "kv_connector", "must be"),
        ("kv_connector_module_path", ..., "kv_connector_module_path", '"pdd_connector.connector"'),
        ("kv_role", "kv_both", "kv_role", '"kv_producer" on prefill or "kv_consumer" on decode'),
        ("kv_role", ..., "kv_role", "must be"),
        ("kv_load_failure_policy", "fail", "kv_load_failure_policy", '"recompute"'),
        ("kv_load_failure_policy", ..., "kv_load_failure_policy", '"recompute"'),
        ("enable_permute_local_kv", True, "enable_permute_local_kv", "must be false"),
        ("kv_buffer_device", "cpu", "kv_buffer_device", '"cuda" on that platform'),
        (EXTRA, [], EXTRA, "must be an object"),
        (f"{EXTRA}.mechanizm", "Claim", f"{EXTRA}.mechanizm", '"mechanism"'),
        (f"{EXTRA}.claim.port", 70000, f"{EXTRA}.claim.port", "an integer"),
        (f"{EXTRA}.bidirectional_kv_xfer", ..., f"{EXTRA}.bidirectional_kv_xfer", "must be true"),
        (f"{EXTRA}.bidirectional_kv_xfer", False, f"{EXTRA}.bidirectional_kv_xfer", "must be true"),
        (f"{EXTRA}.kv_recompute_threshold", 65, f"{EXTRA}.kv_recompute_threshold", "must be 64"),
        (f"{EXTRA}.kv_lease_duration", 30, f"{EXTRA}.kv_lease_duration", "must be 300"),
        (f"{EXTRA}.decoder_kv_blocks_ttl", 20, f"{EXTRA}.decoder_kv_blocks_ttl", "must be 480"),
        (f"{EXTRA}.push_registration_timeout", 9, f"{EXTRA}.push_registration_timeout", "must"),
        (f"{EXTRA}.num_threads", 0, f"{EXTRA}.num_threads", "from 1 to 256"),
        (f"{EXTRA}.engine_ttl", "1h", f"{EXTRA}.engine_ttl", "a number of seconds"),
    ],
)
def test_each_rule_refuses_and_names_its_field(path: str, value: Any, field: str, words: str) -> None:
    config = _changed(_pair()[0], path, value)
    problems = [problem for problem in check_kv_transfer_config(config, CUDA) if problem.field == field]
    assert problems, [str(problem) for problem in check_kv_transfer_config(config, CUDA)]
    assert all(f"`{field}`" in problem.message and "must" in problem.message for problem in problems)
    assert any(words in problem.message for problem in problems)


@pytest.mark.parametrize(
    ("backends", "facts", "accepted"),
    [
        (["UCX"], EngineFacts(fabric=Fabric.TCP), True),
        (["UCX"], EngineFacts(fabric=Fabric.INFINIBAND), True),
        (["UCX"], EngineFacts(fabric=Fabric.EFA), False),
        (["LIBFABRIC"], EngineFacts(fabric=Fabric.EFA), True),
        (["LIBFABRIC"], EngineFacts(fabric=Fabric.TCP), False),
        (["LIBFABRIC"], EngineFacts(fabric=Fabric.INFINIBAND), False),
        (["LIBFABRIC"], EngineFacts(platform=Platform.CPU), False),
        (["LIBFABRIC"], EngineFacts(), True),
    ],
)
def test_backend_fits_the_fabric(backends: list[str], facts: EngineFacts, accepted: bool) -> None:
    config = _changed(_pair()[0], f"{EXTRA}.backends", backends)
    config.pop("kv_buffer_device")
    problems = check_kv_transfer_config(config, facts)
    assert [problem.field for problem in problems] == ([] if accepted else [f"{EXTRA}.backends"])


def test_threads_are_for_ucx_only() -> None:
    config = _changed(_changed(_pair()[0], f"{EXTRA}.num_threads", 8), f"{EXTRA}.backends", ["LIBFABRIC"])
    assert [problem.field for problem in check_kv_transfer_config(config)] == [f"{EXTRA}.num_threads"]


@pytest.mark.parametrize(
    ("facts", "field"),
    [
        (EngineFacts(prefill_context_parallel_size=2), "prefill_context_parallel_size"),
        (EngineFacts(decode_context_parallel_size=2), "decode_context_parallel_size"),
        (EngineFacts(pipeline_parallel_size=2, hybrid_kv_cache=True), "pipeline_parallel_size"),
    ],
)
def test_parallelism_of_our_connector(facts: EngineFacts, field: str) -> None:
    assert [problem.field for problem in check_kv_transfer_config(_pair()[0], facts)] == [field]


@pytest.mark.parametrize(
    ("config", "facts", "fields"),
    [
        (_stock(), EngineFacts(prefill_context_parallel_size=2), []),
        (_stock("kv_consumer"), EngineFacts(prefill_context_parallel_size=2), ["prefill_context_parallel_size"]),
        (
            _stock(bidirectional_kv_xfer=True),
            EngineFacts(prefill_context_parallel_size=2),
            ["prefill_context_parallel_size"],
        ),
        (_stock(), EngineFacts(decode_context_parallel_size=2, mla=True), []),
        (_stock(), EngineFacts(decode_context_parallel_size=2), ["decode_context_parallel_size"]),
        (
            _stock(),
            EngineFacts(decode_context_parallel_size=2, prefill_context_parallel_size=4, mla=True),
            ["decode_context_parallel_size"],
        ),
        (_stock(connector="NixlPushConnector", push_registration_timeout=9), None, []),
        (_stock(connector="NixlPushConnector", bidirectional_kv_xfer=True), None, [f"{EXTRA}.bidirectional_kv_xfer"]),
        (_stock(push_registration_timeout=9), None, [f"{EXTRA}.push_registration_timeout"]),
        (_stock(enforce_handshake_compat=False), None, [f"{EXTRA}.enforce_handshake_compat"]),
        (_stock(kv_lease_duration=5), None, [f"{EXTRA}.kv_lease_duration"]),
        (_stock(decoder_kv_blocks_ttl=5), None, [f"{EXTRA}.decoder_kv_blocks_ttl"]),
        (_stock(kv_recompute_threshold=-1), None, [f"{EXTRA}.kv_recompute_threshold"]),
        (_stock(bidirectional_kv_xfer="yes"), None, [f"{EXTRA}.bidirectional_kv_xfer"]),
        (_stock(backends="UCX"), None, [f"{EXTRA}.backends"]),
        (_stock(claim={}), None, [f"{EXTRA}.claim"]),
        (_stock() | {"kv_connector_module_path": "other"}, None, ["kv_connector_module_path"]),
        (_stock() | {"kv_buffer_device": "cpu"}, CUDA, []),
        (_stock(bidirectional_kv_xfer=True) | {"kv_buffer_device": "cpu"}, CUDA, ["kv_buffer_device"]),
        (_stock() | {"kv_buffer_device": "disk"}, None, ["kv_buffer_device"]),
    ],
)
def test_rules_of_upstreams_connectors(config: Config, facts: EngineFacts | None, fields: list[str]) -> None:
    assert [problem.field for problem in check_kv_transfer_config(config, facts)] == fields


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        (f"{EXTRA}.mechanism", "Retain", f"{EXTRA}.mechanism"),
        (f"{EXTRA}.direction", "PrefillToDecode", f"{EXTRA}.direction"),
        (f"{EXTRA}.revision_group", "other", f"{EXTRA}.revision_group"),
        (f"{EXTRA}.backends", ["UCX", "GDS"], f"{EXTRA}.backends"),
        (f"{EXTRA}.claim.hold_seconds", 16, f"{EXTRA}.claim.hold_seconds"),
        (f"{EXTRA}.retain.max_percent_of_blocks", 31, f"{EXTRA}.retain.max_percent_of_blocks"),
        ("kv_buffer_device", "xpu", "kv_buffer_device"),
        ("kv_role", "kv_producer", "decode.kv_role"),
    ],
)
def test_unequal_sides_are_refused(path: str, value: Any, field: str) -> None:
    prefill, decode = _pair()
    problems = check_pair(prefill, _changed(decode, path, value))
    assert [problem.field for problem in problems] == [field]


def test_a_side_with_its_own_fault_is_named() -> None:
    prefill, decode = _pair()
    problems = check_pair(_changed(prefill, f"{EXTRA}.claim.port", 0), decode)
    assert [problem.field for problem in problems] == [f"prefill.{EXTRA}.claim.port"]
    assert f"`prefill.{EXTRA}.claim.port` must" in problems[0].message


def test_claim_ports_may_differ() -> None:
    prefill, decode = _pair()
    assert check_pair(prefill, _changed(decode, f"{EXTRA}.claim.port", 6601)) == []


@pytest.mark.parametrize(
    ("ttl", "accepted"), [(479.9, True), (450, True), (480, False), (481, False), (0, False), (float("nan"), False)]
)
def test_router_forgets_before_decode_frees(ttl: float, accepted: bool) -> None:
    retain = _pair(ConnectorSettings(mechanism=Mechanism.RETAIN))
    stock = _stock(bidirectional_kv_xfer=True), _stock("kv_consumer", bidirectional_kv_xfer=True)
    for prefill, decode in (retain, stock):
        problems = check_pair(prefill, decode, router_ttl_seconds=ttl)
        assert [problem.field for problem in problems] == ([] if accepted else ["router_ttl_seconds"])
    # With claims nothing is held between turns, so there is nothing to outlive.
    assert check_pair(*_pair(), router_ttl_seconds=ttl) == []


def test_trap_of_one_sided_bidirectional_is_refused() -> None:
    problems = check_pair(_stock(), _stock("kv_consumer", bidirectional_kv_xfer=True))
    assert [problem.field for problem in problems] == [f"{EXTRA}.bidirectional_kv_xfer"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"vllm_version": "0.33.0"}, "vllm_version"),
        ({"model": "other"}, "model"),
        ({"dtype": "float16"}, "dtype"),
        ({"cache_dtype": "fp8"}, "cache_dtype"),
        ({"attention_backend": "FLASHINFER"}, "attention_backend"),
        ({"block_size": 32}, "block_size"),
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size"),
        ({"hybrid_kv_cache": True}, "hybrid_kv_cache"),
        ({"tensor_parallel_size": 3}, "tensor_parallel_size"),
        ({"tensor_parallel_size": 16}, "tensor_parallel_size"),
    ],
)
def test_engines_that_cannot_read_each_other(change: dict[str, Any], field: str) -> None:
    facts = EngineFacts(
        vllm_version="0.32.0",
        model="m",
        dtype="bfloat16",
        cache_dtype="auto",
        attention_backend="FLASH_ATTN",
        block_size=16,
        tensor_parallel_size=2,
        total_kv_heads=8,
    )
    assert check_pair(*_pair(), prefill_facts=facts, decode_facts=facts) == []
    problems = check_pair(*_pair(), prefill_facts=facts, decode_facts=replace(facts, **change))
    assert [problem.field for problem in problems] == [field]


def test_unequal_tensor_parallel_within_the_heads_is_accepted() -> None:
    left, right = EngineFacts(tensor_parallel_size=2, total_kv_heads=8), EngineFacts(tensor_parallel_size=8)
    assert check_pair(*_pair(), prefill_facts=left, decode_facts=right) == []


def test_running_engine_with_upstream_keys_left_out_is_refused() -> None:
    config = _pair()[0]
    del config[EXTRA]["bidirectional_kv_xfer"]
    with pytest.raises(SettingsError, match="bidirectional_kv_xfer` must be true"):
        load_settings(config)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"kv_role": "kv_both"}, "kv_role"),
        ({"enable_permute_local_kv": True}, "enable_permute_local_kv"),
        ({"kv_load_failure_policy": "fail"}, "kv_load_failure_policy"),
    ],
)
def test_running_engine_is_refused_for_what_the_checker_refuses(change: dict[str, Any], field: str) -> None:
    with pytest.raises(SettingsError, match=f"`{field}` must be"):
        load_settings(_pair()[0] | change)


def test_running_engine_is_refused_for_upstream_keys_of_another_type() -> None:
    config = _pair()[0]
    config[EXTRA]["num_threads"] = "four"
    with pytest.raises(SettingsError, match="num_threads` must be an integer"):
        load_settings(config)


def test_command_line_builds_and_checks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = tmp_path / "settings.json"
    own.write_text(json.dumps({"mechanism": "Retain"}))
    files = []
    for role in ("prefill", "decode"):
        assert main(["--role", role, "--settings", str(own), "--platform", "cpu"]) == 0
        files.append(tmp_path / f"{role}.json")
        files[-1].write_text(capsys.readouterr().out)
    assert main(["--check", *map(str, files), "--router-ttl-seconds", "450"]) == 0
    assert main(["--check", *map(str, reversed(files))]) == 1
    assert '`prefill.kv_role` must be "kv_producer"' in capsys.readouterr().err
    assert main(["--check", str(files[0])]) == 0
    assert main(["--check", *map(str, files), str(own)]) == 2
    own.write_text(json.dumps({"mechanism": "Retained"}))
    assert main(["--role", "prefill", "--settings", str(own)]) == 1
    assert main(["--role", "prefill", "--claim-port", "0"]) == 1
    own.write_text("[]")
    assert main(["--role", "prefill", "--settings", str(own)]) == 2


COMMAND = re.compile(r"^python -m pdd_connector\.kv_transfer_config (--role .*?) > ", re.MULTILINE)
ENGINE_PORTS = re.compile(r"url: \"http://127\.0\.0\.1:(\d+)\", claim: \{host: 127\.0\.0\.1, port: (\d+)\}")


@pytest.mark.parametrize("document", ["README.md", "connector/README.md"])
def test_the_commands_of_the_documents_build(document: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    commands = COMMAND.findall(text)
    assert commands and "export VLLM_NIXL_SIDE_CHANNEL_HOST=" in text
    for command in commands:
        assert main(command.split()) == 0
        assert check_kv_transfer_config(json.loads(capsys.readouterr().out)) == []


def test_two_engines_on_one_machine_have_the_ports_of_the_routers_example() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    said = re.findall(r"--claim-port (\d+) .*\nvllm serve MODEL --port (\d+) ", text)
    router = (ROOT / "router" / "README.md").read_text(encoding="utf-8")
    assert [(port, claim) for claim, port in said] == ENGINE_PORTS.findall(router) != []
    side = re.findall(r"VLLM_NIXL_SIDE_CHANNEL_PORT=(\d+)", text)
    assert len(side) == len(set(side)) == len(said)


def test_runs_where_neither_vllm_nor_torch_is_installed() -> None:
    script = """
import runpy, sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"vllm", "torch", "nixl", "zmq", "prometheus_client"}:
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Blocked())
sys.argv = ["kv_transfer_config", "--role", "decode"]
runpy.run_module("pdd_connector.kv_transfer_config", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["kv_connector"] == "PddConnector"
