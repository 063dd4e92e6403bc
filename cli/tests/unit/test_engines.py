"""Command lines and environments of engines."""

from pathlib import Path

import pytest

from pdd_cli.local.engines import EngineOptions, EngineSpec, Role, engine_command, engine_environment, failure_hint

PYTHON = Path("engine/bin/python")
KEY = "k" * 43


def make_spec(role: Role = Role.PREFILL, **options: object) -> EngineSpec:
    config = None if role is Role.AGGREGATE else '{"kv_connector":"PddConnector"}'
    return EngineSpec("e", role, Path("model"), "smol", 8101, 5601, 6601, config, EngineOptions(**options))  # type: ignore[arg-type]  # a table of fields


def value_of(argv: tuple[str, ...], flag: str) -> str:
    return argv[argv.index(flag) + 1]


def test_command_of_a_prefill_engine() -> None:
    argv = engine_command(make_spec(), PYTHON)
    assert argv[:3] == (str(PYTHON), "-m", "vllm.entrypoints.openai.api_server")
    assert value_of(argv, "--port") == "8101"
    assert value_of(argv, "--host") == "127.0.0.1"
    assert value_of(argv, "--dtype") == "float32"
    assert value_of(argv, "--block-size") == "32"
    assert value_of(argv, "--kv-transfer-config") == '{"kv_connector":"PddConnector"}'
    assert "--enable-prefix-caching" in argv
    assert "--enable-prompt-tokens-details" in argv
    assert "--num-gpu-blocks-override" not in argv
    assert "--tensor-parallel-size" not in argv


def test_command_of_an_unusual_engine() -> None:
    argv = engine_command(
        make_spec(prefix_caching=False, cache_blocks=40, tensor_parallel=2, arguments=("--seed", "7")), PYTHON
    )
    assert "--no-enable-prefix-caching" in argv
    assert value_of(argv, "--num-gpu-blocks-override") == "40"
    assert value_of(argv, "--tensor-parallel-size") == "2"
    assert argv[-2:] == ("--seed", "7")


def test_an_aggregate_exchanges_nothing() -> None:
    spec = make_spec(Role.AGGREGATE)
    assert "--kv-transfer-config" not in engine_command(spec, PYTHON)
    environment = engine_environment(spec, {}, KEY)
    assert not {"PDD_CLAIM_KEY", "VLLM_NIXL_SIDE_CHANNEL_PORT"} & environment.keys()


def test_environment_of_an_engine() -> None:
    environment = engine_environment(make_spec(environment={"VLLM_LOGGING_LEVEL": "DEBUG"}), {"PATH": "/bin"}, KEY)
    assert environment["PATH"] == "/bin"
    assert environment["PDD_CLAIM_KEY"] == KEY
    assert environment["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "127.0.0.1"
    assert environment["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "5601"
    assert environment["UCX_NET_DEVICES"] == "lo"
    assert environment["HF_HUB_OFFLINE"] == "1"
    assert environment["VLLM_LOGGING_LEVEL"] == "DEBUG"


def test_settings_of_the_shell_do_not_reach_engines() -> None:
    shell = {
        "VLLM_ATTENTION_BACKEND": "x",
        "UCX_TLS": "rc",
        "PDD_CLAIM_KEY": "old",
        "OMP_NUM_THREADS": "64",
        "HOME": "h",
    }
    environment = engine_environment(make_spec(), shell, KEY)
    assert "VLLM_ATTENTION_BACKEND" not in environment
    assert environment["UCX_TLS"] == "tcp"
    assert environment["OMP_NUM_THREADS"] == "1"
    assert environment["PDD_CLAIM_KEY"] == KEY
    assert environment["HOME"] == "h"


def test_development_api_only_when_asked_for() -> None:
    assert "VLLM_SERVER_DEV_MODE" not in engine_environment(make_spec(), {"VLLM_SERVER_DEV_MODE": "1"}, KEY)
    assert engine_environment(make_spec(development_api=True), {}, KEY)["VLLM_SERVER_DEV_MODE"] == "1"


def test_the_claim_key_is_on_no_command_line() -> None:
    assert KEY not in " ".join(engine_command(make_spec(), PYTHON))


@pytest.mark.parametrize(
    ("code", "line", "hint"),
    [
        (1, "OSError: [Errno 98] Address already in use", "start again"),
        (1, "ModuleNotFoundError: No module named 'nixl'", "make setup"),
        (1, "OSError: [Errno 28] No space left on device", "make room"),
        (1, "MemoryError", "3 GB"),
        (-9, "", "memory ran out"),
        (1, "something else", "the log says why"),
    ],
)
def test_hints(code: int, line: str, hint: str) -> None:
    assert hint in failure_hint(code, ["INFO fine", line])
