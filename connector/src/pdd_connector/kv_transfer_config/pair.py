"""Judges a pair of `--kv-transfer-config`: both sides, their equality, and the router's memory against decode's.

Pure.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, Final

from pdd_connector.kv_transfer_config.build import KV_ROLES, Role
from pdd_connector.kv_transfer_config.check import check_kv_transfer_config, extra_of, is_bidirectional, is_own
from pdd_connector.kv_transfer_config.facts import EngineFacts, check_equal_facts
from pdd_connector.settings import EXTRA_CONFIG, ConnectorSettings, Mechanism, Problem, SettingsError, parse_settings

UPSTREAM_TTL_SECONDS: Final = 480
"""vLLM's default of `decoder_kv_blocks_ttl`."""


def check_pair(
    prefill: Mapping[str, Any],
    decode: Mapping[str, Any],
    *,
    router_ttl_seconds: float | None = None,
    prefill_facts: EngineFacts | None = None,
    decode_facts: EngineFacts | None = None,
) -> list[Problem]:
    """Everything that is wrong with the two configurations together, each side's own problems first.

    `router_ttl_seconds` is how long the router remembers a handle (mechanism Retain).
    """
    problems = [_of_side("prefill", problem) for problem in check_kv_transfer_config(prefill, prefill_facts)]
    problems += [_of_side("decode", problem) for problem in check_kv_transfer_config(decode, decode_facts)]
    problems += _check_roles(prefill, decode)
    problems += _check_equal(prefill, decode)
    if router_ttl_seconds is not None:
        problems += _check_router_ttl(decode, router_ttl_seconds)
    problems += check_equal_facts(prefill_facts or EngineFacts(), decode_facts or EngineFacts())
    return problems


def _of_side(side: str, problem: Problem) -> Problem:
    path = f"{side}.{problem.field}"
    return Problem(path, problem.message.replace(f"`{problem.field}`", f"`{path}`"))


def _check_roles(prefill: Mapping[str, Any], decode: Mapping[str, Any]) -> Iterator[Problem]:
    for side, config, wanted in (
        ("prefill", prefill, KV_ROLES[Role.PREFILL]),
        ("decode", decode, KV_ROLES[Role.DECODE]),
    ):
        role = config.get("kv_role")
        if role in KV_ROLES.values() and role != wanted:
            yield Problem(f"{side}.kv_role", f'`{side}.kv_role` must be "{wanted}", not "{role}"')


def _check_equal(prefill: Mapping[str, Any], decode: Mapping[str, Any]) -> Iterator[Problem]:
    for key in ("kv_connector", "kv_buffer_device"):
        if prefill.get(key) != decode.get(key):
            yield Problem(
                key,
                f"`{key}` must be equal on both sides, not {prefill.get(key)!r:.80} on prefill and {decode.get(key)!r:.80} on decode",
            )
    if is_own(prefill) and is_own(decode):
        ours, theirs = _settings_of(prefill), _settings_of(decode)
        if ours is not None and theirs is not None:
            yield from _check_equal_settings(ours, theirs)
    elif is_bidirectional(prefill) != is_bidirectional(decode):
        path = f"{EXTRA_CONFIG}.bidirectional_kv_xfer"
        yield Problem(path, f"`{path}` must be equal on both sides: a request waits for ever where only decode has it")
    elif extra_of(prefill).get("backends", ["UCX"]) != extra_of(decode).get("backends", ["UCX"]):
        path = f"{EXTRA_CONFIG}.backends"
        yield Problem(path, f"`{path}` must be equal on both sides")


def _settings_of(config: Mapping[str, Any]) -> ConnectorSettings | None:
    """None where the side's own check has said already what is wrong."""
    try:
        return parse_settings(extra_of(config))
    except SettingsError:
        return None


def _check_equal_settings(prefill: ConnectorSettings, decode: ConnectorSettings) -> Iterator[Problem]:
    # Engines that share an address listen on ports of their own.
    aligned = replace(decode, claim=replace(decode.claim, port=prefill.claim.port))
    yield from _unequal_fields(prefill, aligned, EXTRA_CONFIG)
    yield from _unequal_fields(prefill.claim, aligned.claim, f"{EXTRA_CONFIG}.claim")
    yield from _unequal_fields(prefill.retain, aligned.retain, f"{EXTRA_CONFIG}.retain")


def _unequal_fields(ours: Any, theirs: Any, path: str) -> Iterator[Problem]:
    for item in fields(ours):
        left, right = getattr(ours, item.name), getattr(theirs, item.name)
        if item.name not in {"claim", "retain"} and left != right:
            full = f"{path}.{item.name}"
            yield Problem(
                full, f"`{full}` must be equal on both sides, not {left!s:.80} on prefill and {right!s:.80} on decode"
            )


def _check_router_ttl(decode: Mapping[str, Any], router_ttl_seconds: float) -> Iterator[Problem]:
    if is_own(decode):
        settings = _settings_of(decode)
        if settings is None or settings.mechanism is not Mechanism.RETAIN:
            return
        ttl: float = settings.retain.decoder_blocks_ttl_seconds
    elif is_bidirectional(decode):
        value = extra_of(decode).get("decoder_kv_blocks_ttl", UPSTREAM_TTL_SECONDS)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return
        ttl = value
    else:
        return
    if not 0 < router_ttl_seconds < ttl:
        yield Problem(
            "router_ttl_seconds",
            f"`router_ttl_seconds` must be above 0 and below decode's time to live of {ttl:g} s, not {router_ttl_seconds:g}: the router must forget a handle first",
        )
