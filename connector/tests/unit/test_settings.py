"""The settings: what is read, and that everything else is refused by name."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdd_connector.settings import (
    ClaimSettings,
    ConnectorSettings,
    Direction,
    Mechanism,
    RetainSettings,
    SettingsError,
    parse_settings,
    promised_seconds,
    settings_as_dict,
)


def _problems(extra: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(SettingsError) as error:
        parse_settings(extra)
    return {problem.field: problem.message for problem in error.value.problems}


def test_nothing_set_is_every_default() -> None:
    assert parse_settings({}) == ConnectorSettings()


def test_defaults_are_the_documented_ones() -> None:
    settings = ConnectorSettings()
    assert (settings.mechanism, settings.direction) == (Mechanism.CLAIM, Direction.BIDIRECTIONAL)
    assert settings.recompute_threshold_tokens == 64
    assert dataclasses.asdict(settings.claim) == {
        "port": 6600,
        "timeout_milliseconds": 150,
        "hold_seconds": 15,
        "max_owners_asked": 3,
        "max_claims_per_reader": 64,
        "max_percent_of_blocks": 50,
        "read_timeout_milliseconds": 2000,
        "connect_timeout_seconds": 30,
    }
    assert dataclasses.asdict(settings.retain) == {
        "decoder_blocks_ttl_seconds": 480,
        "lease_seconds": 300,
        "max_percent_of_blocks": 30,
    }


def test_every_value_is_read_from_its_key() -> None:
    extra = {
        "mechanism": "Retain",
        "direction": "PrefillToDecode",
        "recompute_threshold_tokens": 0,
        "revision_group": "main@abc",
        "backends": ["LIBFABRIC"],
        "claim": {item.name: item.metadata["minimum"] for item in dataclasses.fields(ClaimSettings)},
        "retain": {item.name: item.metadata["maximum"] for item in dataclasses.fields(RetainSettings)},
        "kv_lease_duration": 30,
    }
    settings = parse_settings(extra)
    assert settings.mechanism is Mechanism.RETAIN
    assert settings.direction is Direction.PREFILL_TO_DECODE
    assert settings.backends == ("LIBFABRIC",)
    assert settings.revision_group == "main@abc"
    assert settings.claim.port == 1
    assert settings.retain.max_percent_of_blocks == 90


@pytest.mark.parametrize(
    ("extra", "field", "words"),
    [
        ({"mechanisms": "Claim"}, "kv_connector_extra_config.mechanisms", 'did you mean "mechanism"'),
        ({"claim": {"prot": 1}}, "kv_connector_extra_config.claim.prot", 'did you mean "port"'),
        ({"retain": {"zzz": 1}}, "kv_connector_extra_config.retain.zzz", "known keys are"),
        ({"kv_lease_durations": 3}, "kv_connector_extra_config.kv_lease_durations", '"kv_lease_duration"'),
        ({"mechanism": "claim"}, "kv_connector_extra_config.mechanism", 'must be "Claim" or "Retain"'),
        ({"mechanism": ["Claim"]}, "kv_connector_extra_config.mechanism", 'must be "Claim" or "Retain"'),
        ({"direction": None}, "kv_connector_extra_config.direction", 'must be "Bidirectional"'),
        ({"claim": {"port": 0}}, "kv_connector_extra_config.claim.port", "an integer from 1 to 65535"),
        ({"claim": {"port": "6600"}}, "kv_connector_extra_config.claim.port", "an integer from 1 to 65535"),
        ({"claim": {"port": True}}, "kv_connector_extra_config.claim.port", "not True"),
        ({"claim": {"hold_seconds": 1.5}}, "kv_connector_extra_config.claim.hold_seconds", "an integer"),
        ({"claim": []}, "kv_connector_extra_config.claim", "must be an object"),
        ({"revision_group": "x" * 257}, "kv_connector_extra_config.revision_group", "at most 256"),
        ({"revision_group": 3}, "kv_connector_extra_config.revision_group", "must be a string"),
        ({"backends": "UCX"}, "kv_connector_extra_config.backends", "must be a list"),
        ({"backends": []}, "kv_connector_extra_config.backends", "must be a list"),
        ({"backends": [""]}, "kv_connector_extra_config.backends", "must be a list"),
    ],
)
def test_refusal_names_the_key_and_says_what_it_must_be(extra: dict[str, Any], field: str, words: str) -> None:
    problems = _problems(extra)
    assert list(problems) == [field]
    assert f"`{field}` must" in problems[field]
    assert words in problems[field]


def test_every_problem_is_reported_at_once() -> None:
    assert set(_problems({"mechanism": 1, "claim": {"port": 0, "x": 1}})) == {
        "kv_connector_extra_config.mechanism",
        "kv_connector_extra_config.claim.port",
        "kv_connector_extra_config.claim.x",
    }


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        ConnectorSettings().claim.port = 1  # type: ignore[misc]  # that it is refused is the test


def _section(kind: type[ClaimSettings] | type[RetainSettings]) -> st.SearchStrategy[Any]:
    ranges = {f.name: st.integers(f.metadata["minimum"], f.metadata["maximum"]) for f in dataclasses.fields(kind)}
    return st.builds(kind, **ranges)


_SETTINGS = st.builds(
    ConnectorSettings,
    mechanism=st.sampled_from(Mechanism),
    direction=st.sampled_from(Direction),
    recompute_threshold_tokens=st.integers(0, 1_000_000),
    revision_group=st.text(max_size=256),
    backends=st.lists(st.sampled_from(["UCX", "LIBFABRIC"]), min_size=1).map(tuple),
    claim=_section(ClaimSettings).filter(
        lambda claim: (
            promised_seconds(claim.hold_seconds) * 1000 > claim.timeout_milliseconds + claim.read_timeout_milliseconds
        )
    ),
    retain=_section(RetainSettings),
)


@settings(deadline=None)
@given(_SETTINGS)
def test_what_is_written_is_read_back(settings: ConnectorSettings) -> None:
    assert parse_settings(settings_as_dict(settings)) == settings


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(settings_as_dict(ConnectorSettings()))) | st.text(max_size=9), _JSON))
def test_any_json_is_read_or_refused(extra: dict[str, Any]) -> None:
    try:
        settings = parse_settings(extra)
    except SettingsError as error:
        assert error.problems
    else:
        assert parse_settings(settings_as_dict(settings)) == settings


def test_a_claim_must_outlast_its_answer_and_its_read() -> None:
    with pytest.raises(SettingsError, match=r"`kv_connector_extra_config.claim.hold_seconds`, less 2 %"):
        parse_settings({"claim": {"hold_seconds": 2}})
    for hold, read in ((15, 14_650), (600, 590_000)):  # longer than both, and yet every grant would come too late
        with pytest.raises(SettingsError, match="hold_seconds"):
            parse_settings({"claim": {"hold_seconds": hold, "read_timeout_milliseconds": read}})
    assert parse_settings({"claim": {"hold_seconds": 3}}).claim.hold_seconds == 3
