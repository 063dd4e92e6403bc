"""Configuration: strict, every refusal one line that names the field; the README's example and reference are true."""

import re
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel

from pdd_router.__main__ import main
from pdd_router.config import ConfigError, Mechanism, RouterConfig, load_config, parse_config
from pdd_router.endpoints.discovery import parse_engines
from pdd_router.errors import QueueFullError, UnavailableError
from pdd_router.flow.attempts import Progress, refused
from pdd_router.policy.decide import Refusal, RefusalReason
from pdd_router.tenancy import parse_api_keys

README_FILE = Path(__file__).parents[2] / "README.md"
README = README_FILE.read_text(encoding="utf-8")
GOOD = "enginesFile: engines.yaml\nlisten: {port: 0}\n"
KUBERNETES = "discovery: {kubernetes: {namespace: models, deployment: qwen}}\n"
RETAIN = GOOD + "mechanism: Retain\n"


@pytest.mark.parametrize(
    "value",
    [
        "2024-99-99", "9" * 5000, "[" * 3000, "!!int x", "!!float x", "!!bool x", "!!timestamp x", "&a [*a", "1:" * 200 + "1.5",
    ],
)  # fmt: skip
def test_text_that_yaml_cannot_convert_is_refused_like_any_other(value: str) -> None:
    for parse in (parse_config, parse_engines, parse_api_keys):
        with pytest.raises(ConfigError, match="valid YAML"):
            parse(f"x: {value}")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("enginesFile: [", "valid YAML (line"),
        ("- a", "mapping"),
        ("listen: {port: 1}", "exactly one of enginesFile and discovery must be set"),
        (GOOD + KUBERNETES, "exactly one of enginesFile and discovery must be set"),
        ("discovery: {}", "discovery.kubernetes: Field required"),
        ("discovery: {kubernetes: {namespace: a}}", "discovery.kubernetes.deployment: Field required"),
        ("discovery: {kubernetes: {namespace: A_b, deployment: d}}", "discovery.kubernetes.namespace"),
        ("discovery: {kubernetes: {namespace: a, deployment: 'd,x=y'}}", "discovery.kubernetes.deployment"),
        (KUBERNETES.replace("}}", ", enginePort: 0}}"), "discovery.kubernetes.enginePort"),
        (KUBERNETES.replace("}}", ", claimPort: 0}}"), "discovery.kubernetes.claimPort must not be 0"),
        (GOOD + "nonsense: 1", "nonsense: there is no such setting"),
        (GOOD + "engines_file: x", "engines_file: there is no such setting"),
        (GOOD + "mechanism: Magic", "mechanism: Input should be 'Claim' or 'Retain'"),
        (GOOD + "direction: Sideways", "direction: Input should be"),
        (GOOD + "onPrefillFailure: Panic", "onPrefillFailure: Input should be"),
        (GOOD + "limits: {maxBodyBytes: lots}", "limits.maxBodyBytes"),
        (GOOD + "limits: {maxBodyBytes: '1000000'}", "limits.maxBodyBytes"),
        (GOOD + "limits: {maxBodyByte: 1}", "limits.maxBodyByte: there is no such setting"),
        (GOOD + "claim: {maxOwnersAsked: 9}", "claim.maxOwnersAsked"),
        (GOOD + "runOnDecodeBelowTokens: -1", "runOnDecodeBelowTokens"),
        (GOOD + "exposeReceipt: 1", "exposeReceipt"),
        (GOOD + "listen: {port: 70000}", "listen.port"),
        (RETAIN + "conversationTTLSeconds: 480", "conversationTTLSeconds must be less than"),
        (
            RETAIN + "conversationTTLSeconds: 60\nretain: {decoderBlocksTTLSeconds: 60}",
            "conversationTTLSeconds must be",
        ),
    ],
)
def test_bad_configuration_is_one_line_and_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, says: str
) -> None:
    file = tmp_path / "router.yaml"
    file.write_text(text)
    assert main(["--config", str(file), "--check"]) == 2
    written = capsys.readouterr().err
    assert says in written
    assert written.count("\n") == 1


def test_missing_files_are_one_line_and_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", str(tmp_path / "none.yaml")]) == 2
    with pytest.raises(ConfigError, match="cannot read"):
        load_config(tmp_path / "none.yaml")
    assert "cannot read" in capsys.readouterr().err


SALTED = GOOD + "tenancy: {saltSecretFile: salt}\nauthentication: {apiKeysFile: keys.yaml}\n"
FILES = {
    "engines.yaml": "engines: []",
    "keys.yaml": "first-key: alice",
    "salt": "s" * 32,
}


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("engines.yaml", None, "enginesFile: cannot read"),
        ("engines.yaml", "engines: 5", "enginesFile: engines: Input should be"),
        (
            "engines.yaml",
            "engines: [{name: a, role: Decode, url: 'http://x:99999'}]",
            "enginesFile: engines.0.url: must",
        ),
        ("keys.yaml", None, "authentication.apiKeysFile: cannot read"),
        ("keys.yaml", "short: alice", "authentication.apiKeysFile: the API keys file: every key"),
        ("salt", None, "tenancy.saltSecretFile: cannot read"),
        ("salt", "s" * 31, "tenancy.saltSecretFile: the secret must be"),
        ("salt", "\udcff" * 32, "tenancy.saltSecretFile: cannot read"),
    ],
)
def test_check_reads_the_files_that_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: str | None, says: str
) -> None:
    (tmp_path / "router.yaml").write_text(SALTED)
    for file, text in FILES.items():
        (tmp_path / file).write_text(text)
    check = ["--config", str(tmp_path / "router.yaml"), "--check"]
    assert main(check) == 0, "the control"
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content.encode("utf-8", "surrogateescape"))
    assert main(check) == 2
    written = capsys.readouterr().err
    assert says in written
    assert written.count("\n") == 1
    assert "alice" not in written


def test_ttl_only_matters_where_handles_expire() -> None:
    assert parse_config(GOOD + "conversationTTLSeconds: 480").mechanism is Mechanism.CLAIM
    assert parse_config(RETAIN + "conversationTTLSeconds: 479").conversation_ttl_seconds == 479


def test_engines_come_from_kubernetes() -> None:
    config = parse_config(KUBERNETES)
    assert config.engines_file is None
    assert config.discovery is not None
    assert (config.discovery.kubernetes.engine_port, config.discovery.kubernetes.claim_port) == (8000, 6600)
    assert config.relative_to(Path("somewhere")).engines_file is None
    without_claims = "mechanism: Retain\n" + KUBERNETES.replace("}}", ", claimPort: 0}}")
    assert parse_config(without_claims).discovery is not None


def test_refusals_do_not_show_values() -> None:
    with pytest.raises(ConfigError) as refused:
        parse_config(GOOD + "tenancy: {saltSecretFile: 5, secret: hunter2}")
    assert "hunter2" not in str(refused.value)


def test_paths_are_taken_from_the_files_folder(tmp_path: Path) -> None:
    (tmp_path / "router.yaml").write_text(GOOD + "authentication: {apiKeysFile: keys.yaml}")
    config = load_config(tmp_path / "router.yaml")
    assert config.engines_file == tmp_path / "engines.yaml"
    assert config.authentication.api_keys_file == tmp_path / "keys.yaml"
    assert config.tenancy.salt_secret_file is None


def test_readme_documents_every_setting_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `([A-Za-z.]+)` \| `?([^|`]*)`? \|", README.split("## Configuration")[1], re.MULTILINE))
    expected = dict(flatten(RouterConfig, ""))
    assert rows.keys() == expected.keys()
    for name, default in expected.items():
        assert rows[name].strip() == default, name


def test_definition_and_readme_say_with_what_status_the_router_refuses() -> None:
    """Whoever waits too long, or finds the queue full, or no prefill engine: the CRD's words follow the router's defaults."""
    crd = " ".join((README_FILE.parents[1] / "crds" / "pddeployments.yaml").read_text(encoding="utf-8").split())
    limits = parse_config(GOOD).limits
    assert (
        f"Up to {limits.max_queued_requests} more wait, for at most {limits.queue_timeout_seconds:g} s, "
        f"then they are answered {UnavailableError.status}; where so many wait already, {QueueFullError.status}."
    ) in crd
    found = {
        reason: (error.status, error.code)
        for reason in (RefusalReason.NO_PREFILL, RefusalReason.PREFILL_FAILED)
        for error in (refused(Refusal(reason), Progress()),)
    }
    assert found == {
        RefusalReason.NO_PREFILL: (503, "no_engine"),
        RefusalReason.PREFILL_FAILED: (502, "prefill_failed"),
    }
    assert "Fail answers 503 (`no_engine`) while there is none, and 502 (`prefill_failed`) where one failed." in crd
    assert "`Fail`: 503 `no_engine` while there is none, 502 `prefill_failed` where one failed" in README


def flatten(model: type[BaseModel], prefix: str) -> Any:
    for field in model.model_fields.values():
        name = prefix + str(field.alias)
        inner = [kind for kind in (field.annotation, *get_args(field.annotation)) if is_section(kind)]
        if inner:
            yield from flatten(inner[0], name + ".")
        elif field.is_required():
            yield name, "required"
        elif field.default is None:
            yield name, "none"
        else:
            yield (
                name,
                yaml.safe_dump(field.default.value if hasattr(field.default, "value") else field.default).split("\n")[
                    0
                ],
            )


def is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def test_readme_example_works() -> None:
    router, engines, on_kubernetes = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    assert parse_config(router).listen.port == 8000
    assert parse_config(on_kubernetes).discovery is not None
    assert [engine.role for engine in parse_engines(engines)] == ["Prefill", "Decode"]
