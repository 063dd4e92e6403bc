"""Judges one `--kv-transfer-config`: every rule that needs no second side.

Pure. vLLM itself refuses unknown top-level keys but lets any typo in `kv_connector_extra_config` through, so both
levels are judged here, by the key sets of vLLM 0.32 and 0.33 (which are the same).
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from pdd_connector.kv_transfer_config.build import CONNECTOR_CLASS, CONNECTOR_MODULE, KV_ROLES, upstream_extra
from pdd_connector.kv_transfer_config.facts import EngineFacts, Fabric, Platform, check_parallelism
from pdd_connector.settings import (
    EXTRA_CONFIG,
    UPSTREAM_EXTRA_KEYS,
    ConnectorSettings,
    Problem,
    SettingsError,
    check_integer,
    parse_settings,
    unknown_key,
)

TOP_LEVEL_KEYS: Final = frozenset(
    {
        "kv_connector",
        "engine_id",
        "kv_buffer_device",
        "kv_role",
        "kv_port",
        "kv_connector_extra_config",
        "kv_connector_module_path",
        "enable_permute_local_kv",
        "kv_load_failure_policy",
    }
)
REMOVED_KEYS: Final = frozenset({"kv_rank", "kv_parallel_size", "kv_ip", "kv_buffer_size"})

PUSH_CONNECTOR: Final = "NixlPushConnector"
UPSTREAM_CONNECTORS: Final = frozenset({"NixlConnector", "NixlPullConnector", PUSH_CONNECTOR, "NeuronNixlConnector"})


def check_kv_transfer_config(config: Mapping[str, Any], facts: EngineFacts | None = None) -> list[Problem]:
    """Everything that is wrong with one side's configuration, as JSON gives it; empty where nothing is.

    `facts` about the engine, where known, rule out more.
    """
    facts = facts or EngineFacts()
    problems: list[Problem] = []
    for check in (_check_keys, _check_connector, _check_role, _check_policy, _check_device, _check_extra):
        problems.extend(check(config, facts))
    problems.extend(_check_backends(config, facts))
    problems.extend(
        check_parallelism(
            facts,
            own_connector=is_own(config),
            producer=config.get("kv_role") == "kv_producer",
            both_ways=is_bidirectional(config),
        )
    )
    return problems


LOADED_KEYS: Final = ("kv_role", "kv_load_failure_policy", "enable_permute_local_kv", EXTRA_CONFIG)
"""Of `--kv-transfer-config`, what `load_settings` looks at: the rest vLLM has read, or filled in itself."""


def load_settings(config: Mapping[str, Any]) -> ConnectorSettings:
    """The settings that an engine starts with, from its `LOADED_KEYS`.

    Raises `SettingsError` also where upstream's keys, which the base class reads, say anything else.
    """
    extra, facts = extra_of(config), EngineFacts()
    settings = parse_settings(extra)
    agree = (*_check_upstream_agrees(extra, settings), *_check_upstream_types(extra))
    problems = [*_check_role(config, facts), *_check_policy(config, facts), *agree]
    if problems:
        raise SettingsError(problems)
    return settings


def is_own(config: Mapping[str, Any]) -> bool:
    """Whether this is the configuration of our connector rather than one of upstream's."""
    return bool(config.get("kv_connector") == CONNECTOR_CLASS)


def is_bidirectional(config: Mapping[str, Any]) -> bool:
    """Whether the base class may read from decode to prefill."""
    return extra_of(config).get("bidirectional_kv_xfer", False) is True


def extra_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """`kv_connector_extra_config`, or an empty one where it is no object."""
    extra = config.get(EXTRA_CONFIG, {})
    return extra if isinstance(extra, Mapping) else {}


def _check_keys(config: Mapping[str, Any], _: EngineFacts) -> Iterator[Problem]:
    for key in config:
        if key in REMOVED_KEYS:
            yield Problem(key, f"`{key}` must be left out: vLLM 0.32 and later refuse to start with it")
        elif key not in TOP_LEVEL_KEYS:
            yield unknown_key("", key, TOP_LEVEL_KEYS)
    if config.get("engine_id") is not None:
        yield Problem(
            "engine_id", "`engine_id` must be left out: a restarted engine with its old id is not connected with again"
        )
    port = config.get("kv_port")
    if port is not None and (problem := check_integer("kv_port", port, 1, 65535)) is not None:
        yield problem


def _check_connector(config: Mapping[str, Any], _: EngineFacts) -> Iterator[Problem]:
    name = config.get("kv_connector")
    module = config.get("kv_connector_module_path")
    if name == CONNECTOR_CLASS:
        if module != CONNECTOR_MODULE:
            yield Problem(
                "kv_connector_module_path",
                f'`kv_connector_module_path` must be "{CONNECTOR_MODULE}" with {CONNECTOR_CLASS}, not {module!r:.80}',
            )
    elif not isinstance(name, str) or name not in UPSTREAM_CONNECTORS:
        wanted = ", ".join(f'"{known}"' for known in sorted(UPSTREAM_CONNECTORS))
        yield Problem("kv_connector", f'`kv_connector` must be "{CONNECTOR_CLASS}" (or {wanted}), not {name!r:.80}')
    elif module is not None:
        yield Problem("kv_connector_module_path", f"`kv_connector_module_path` must be left out with {name}")
    if name == PUSH_CONNECTOR and is_bidirectional(config):
        yield Problem(
            f"{EXTRA_CONFIG}.bidirectional_kv_xfer",
            f"`{EXTRA_CONFIG}.bidirectional_kv_xfer` must be false with {PUSH_CONNECTOR}: it cannot read back",
        )


def _check_role(config: Mapping[str, Any], _: EngineFacts) -> Iterator[Problem]:
    role = config.get("kv_role")
    if role not in KV_ROLES.values():
        yield Problem(
            "kv_role", f'`kv_role` must be "kv_producer" on prefill or "kv_consumer" on decode, not {role!r:.80}'
        )


def _check_policy(config: Mapping[str, Any], _: EngineFacts) -> Iterator[Problem]:
    policy = config.get("kv_load_failure_policy")
    if policy != "recompute":
        yield Problem(
            "kv_load_failure_policy",
            f'`kv_load_failure_policy` must be "recompute": a read that fails or expired is then a miss and no error, not {policy!r:.80}',
        )
    if config.get("enable_permute_local_kv", False) is not False:
        yield Problem(
            "enable_permute_local_kv",
            "`enable_permute_local_kv` must be false: both sides read, so layouts must be equal",
        )


def _check_device(config: Mapping[str, Any], facts: EngineFacts) -> Iterator[Problem]:
    device = config.get("kv_buffer_device")
    if facts.platform is None:
        known = [platform.value for platform in Platform]
        if device is not None and device not in known:
            yield Problem(
                "kv_buffer_device", f"`kv_buffer_device` must be one of {', '.join(known)}, not {device!r:.80}"
            )
        return
    reads_back = is_own(config) or is_bidirectional(config)
    # Left out, vLLM takes the platform's own.
    if reads_back and device is not None and device != facts.platform.value:
        yield Problem(
            "kv_buffer_device",
            f'`kv_buffer_device` must be "{facts.platform.value}" on that platform: through another buffer a request that reads back waits for ever, not {device!r:.80}',
        )


def _check_extra(config: Mapping[str, Any], _: EngineFacts) -> Iterator[Problem]:
    extra = config.get(EXTRA_CONFIG, {})
    if not isinstance(extra, Mapping):
        yield Problem(EXTRA_CONFIG, f"`{EXTRA_CONFIG}` must be an object, not {extra!r:.80}")
        return
    if is_own(config):
        try:
            settings = parse_settings(extra)
        except SettingsError as error:
            yield from error.problems
        else:
            yield from _check_upstream_agrees(extra, settings)
    else:
        known = UPSTREAM_EXTRA_KEYS - (set() if config.get("kv_connector") == PUSH_CONNECTOR else {_PUSH_KEY})
        yield from (unknown_key(EXTRA_CONFIG, key, frozenset(known)) for key in extra if key not in known)
    yield from _check_upstream_types(extra)


_PUSH_KEY: Final = "push_registration_timeout"


def _check_upstream_agrees(extra: Mapping[str, Any], settings: ConnectorSettings) -> Iterator[Problem]:
    """Upstream's keys are written out, and say what ours say: the base class would take its own defaults."""
    for key, wanted in upstream_extra(settings).items():
        value = extra.get(key)
        if value != wanted or isinstance(value, bool) != isinstance(wanted, bool):
            path = f"{EXTRA_CONFIG}.{key}"
            literal = str(wanted).lower() if isinstance(wanted, bool) else wanted
            found = f"{value!r:.80}" if key in extra else "absent"
            yield Problem(
                path, f"`{path}` must be {literal} to agree with the connector's own settings, but is {found}"
            )
    if _PUSH_KEY in extra:
        yield Problem(
            f"{EXTRA_CONFIG}.{_PUSH_KEY}", f"`{EXTRA_CONFIG}.{_PUSH_KEY}` must be left out: nothing is pushed"
        )


def _is_seconds(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


_UPSTREAM_TYPES: Final[dict[str, tuple[Callable[[object], bool], str]]] = {
    "bidirectional_kv_xfer": (lambda value: isinstance(value, bool), "true or false"),
    "enforce_handshake_compat": (lambda value: value is True, "true: engines that do not fit must refuse each other"),
    "num_threads": (
        lambda value: isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 256,
        "an integer from 1 to 256",
    ),
    "kv_recompute_threshold": (
        lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= 0,
        "an integer of at least 0",
    ),
    "kv_lease_duration": (
        lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= 6,
        "an integer of at least 6: it is renewed every sixth of it",
    ),
    "decoder_kv_blocks_ttl": (
        lambda value: _is_seconds(value) and float(str(value)) > 5,
        "more than 5 seconds: a read is declined 5 seconds before it ends",
    ),
    "engine_ttl": (
        lambda value: isinstance(value, int | float) and not isinstance(value, bool),
        "a number of seconds",
    ),
    _PUSH_KEY: (_is_seconds, "a number of seconds above 0"),
}


def _check_upstream_types(extra: Mapping[str, Any]) -> Iterator[Problem]:
    for key, (fits, wanted) in _UPSTREAM_TYPES.items():
        if key in extra and not fits(extra[key]):
            yield Problem(f"{EXTRA_CONFIG}.{key}", f"`{EXTRA_CONFIG}.{key}` must be {wanted}, not {extra[key]!r:.80}")


def _check_backends(config: Mapping[str, Any], facts: EngineFacts) -> Iterator[Problem]:
    """LIBFABRIC falls back to TCP without a word, and hangs there; UCX on EFA is emulated at a tenth of the speed."""
    path = f"{EXTRA_CONFIG}.backends"
    extra = extra_of(config)
    backends = extra.get("backends", ["UCX"])
    if not isinstance(backends, list) or not backends or not all(isinstance(name, str) and name for name in backends):
        if not is_own(config):
            yield Problem(path, f'`{path}` must be a list of NIXL backends such as ["UCX"], not {backends!r:.80}')
        return
    has_libfabric = "LIBFABRIC" in backends
    if has_libfabric and facts.platform is Platform.CPU:
        yield Problem(path, f'`{path}` must be ["UCX"] on CPU: LIBFABRIC does not load without a GPU driver')
    elif has_libfabric and facts.fabric is not None and facts.fabric is not Fabric.EFA:
        yield Problem(path, f'`{path}` must be ["UCX"] over {facts.fabric.value}: LIBFABRIC is for EFA only')
    elif not has_libfabric and facts.fabric is Fabric.EFA:
        yield Problem(path, f'`{path}` must be ["LIBFABRIC"] on EFA, or every byte goes over sockets')
    if "num_threads" in extra and backends != ["UCX"]:
        yield Problem(
            f"{EXTRA_CONFIG}.num_threads", f'`{EXTRA_CONFIG}.num_threads` must be left out unless `{path}` is ["UCX"]'
        )
