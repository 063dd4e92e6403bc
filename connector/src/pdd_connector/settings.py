"""What an operator sets for the connector, as frozen types, and the parser that refuses everything else.

Read from `kv_connector_extra_config`, where upstream's own keys live too: those are judged in `kv_transfer_config`,
here they are only let through. Must import neither vLLM nor torch: the builder of the configuration, the router's tests
and the command line use it on machines without them. The claim key is a secret and never part of this (`PDD_CLAIM_KEY`).
"""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Final

UPSTREAM_EXTRA_KEYS: Final = frozenset(
    {
        "backends",
        "num_threads",
        "kv_lease_duration",
        "bidirectional_kv_xfer",
        "decoder_kv_blocks_ttl",
        "kv_recompute_threshold",
        "engine_ttl",
        "enforce_handshake_compat",
        "push_registration_timeout",
    }
)
"""Keys of `kv_connector_extra_config` that vLLM 0.32 and 0.33 read for NIXL."""

EXTRA_CONFIG: Final = "kv_connector_extra_config"


class Mechanism(StrEnum):
    """How an engine gets KV that another one holds."""

    CLAIM = "Claim"
    RETAIN = "Retain"


class Direction(StrEnum):
    """Whether prefill reads what decode generated, or only decode reads prefill."""

    BIDIRECTIONAL = "Bidirectional"
    PREFILL_TO_DECODE = "PrefillToDecode"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a configuration: the field's path and what it must be."""

    field: str
    message: str

    def __str__(self) -> str:
        return self.message


class SettingsError(ValueError):
    """The configuration is refused; `problems` has every reason, not only the first."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(str(problem) for problem in problems))
        self.problems: Final = tuple(problems)


def _integer(default: int, minimum: int, maximum: int) -> Any:
    return field(default=default, metadata={"minimum": minimum, "maximum": maximum})


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimSettings:
    """Limits of claims: how the owner is found, how long it may take, how much may be held."""

    port: int = _integer(6600, 1, 65535)
    """Claim channel of data-parallel rank 0; rank n listens on `port + n`."""
    timeout_milliseconds: int = _integer(150, 1, 10_000)
    hold_seconds: int = _integer(15, 1, 600)
    max_owners_asked: int = _integer(3, 1, 8)
    max_claims_per_reader: int = _integer(64, 1, 10_000)
    max_percent_of_blocks: int = _integer(50, 1, 90)
    """Share of the owner's blocks that all claims together may hold."""
    read_timeout_milliseconds: int = _integer(2000, 10, 600_000)
    connect_timeout_seconds: int = _integer(30, 1, 600)
    """Longest time for connecting with an owner and so for answering an introduction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainSettings:
    """Limits of retention: how long decode keeps a finished request's blocks, and how many of them."""

    # A reader declines what expires within 5 s, so a shorter time would never be read.
    decoder_blocks_ttl_seconds: int = _integer(480, 8, 86_400)
    lease_seconds: int = _integer(300, 8, 86_400)
    max_percent_of_blocks: int = _integer(30, 1, 90)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorSettings:
    """Everything both engines of a pair must agree on. Every field has a default."""

    mechanism: Mechanism = Mechanism.CLAIM
    direction: Direction = Direction.BIDIRECTIONAL
    recompute_threshold_tokens: int = _integer(64, 0, 1_000_000)
    """Fewer missing tokens than this are computed, not asked for; 0 asks always."""
    revision_group: str = field(default="", metadata={"max_length": 256})
    """What engines cannot see of each other and must share all the same: model revision, weights, templates."""
    backends: tuple[str, ...] = ("UCX",)
    claim: ClaimSettings = field(default_factory=ClaimSettings)
    retain: RetainSettings = field(default_factory=RetainSettings)


def parse_settings(extra: Mapping[str, Any]) -> ConnectorSettings:
    """Read `kv_connector_extra_config`.

    Raises `SettingsError` with one problem per unknown key, wrong type or value out of range. Upstream's own keys are
    let through unread, except `backends`, which is one key for both.
    """
    problems: list[Problem] = []
    own = {key: value for key, value in extra.items() if key not in UPSTREAM_EXTRA_KEYS or key == "backends"}
    values = _parse_object(
        own, EXTRA_CONFIG, _TOP_LEVEL, problems, known=UPSTREAM_EXTRA_KEYS - {"push_registration_timeout"}
    )
    if problems:
        raise SettingsError(problems)
    settings = ConnectorSettings(**values)
    if (problem := _check_hold(settings.claim)) is not None:
        raise SettingsError([problem])
    return settings


def promised_seconds(hold_seconds: float) -> float:
    """How long a reader is told that a claim is held: a little less, because two hosts' clocks do not run alike."""
    return max(0.0, 0.98 * hold_seconds - 0.1)


def _check_hold(claim: ClaimSettings) -> Problem | None:
    """What a reader is promised must outlast the answer and the read, or every grant comes too late to be used."""
    needed = claim.timeout_milliseconds + claim.read_timeout_milliseconds
    if promised_seconds(claim.hold_seconds) * 1000 > needed:
        return None
    path = f"{EXTRA_CONFIG}.claim.hold_seconds"
    return Problem(
        path,
        f"`{path}`, less 2 % and 100 ms for clocks that differ, must be longer than `timeout_milliseconds` and "
        f"`read_timeout_milliseconds` together ({needed} ms)",
    )


def settings_as_dict(settings: ConnectorSettings) -> dict[str, Any]:
    """The settings as `parse_settings` reads them: plain JSON types, every value written out."""
    return {
        "mechanism": settings.mechanism.value,
        "direction": settings.direction.value,
        "recompute_threshold_tokens": settings.recompute_threshold_tokens,
        "revision_group": settings.revision_group,
        "backends": list(settings.backends),
        "claim": {item.name: getattr(settings.claim, item.name) for item in fields(ClaimSettings)},
        "retain": {item.name: getattr(settings.retain, item.name) for item in fields(RetainSettings)},
    }


def unknown_key(path: str, key: object, known: frozenset[str]) -> Problem:
    """The problem of a key that nobody reads, with the nearest one that somebody does."""
    near = difflib.get_close_matches(str(key), sorted(known), n=1)
    hint = f': did you mean "{near[0]}"?' if near else f"; known keys are {', '.join(sorted(known))}"
    full = f"{path}.{key}" if path else str(key)
    return Problem(full, f"`{full}` must not be set, nothing reads it{hint}")


def check_integer(path: str, value: object, minimum: int, maximum: int) -> Problem | None:
    """Refuse what is no whole number in the range; `true` is not 1."""
    if isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= maximum:
        return None
    return Problem(path, f"`{path}` must be an integer from {minimum} to {maximum}, not {value!r:.80}")


# A reader takes (path, value, problems) and returns the typed value, or None with a problem added.
_Reader = Callable[[str, object, list[Problem]], Any]


def _parse_object(
    value: object,
    path: str,
    readers: Mapping[str, _Reader],
    problems: list[Problem],
    known: frozenset[str] = frozenset(),
) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        problems.append(Problem(path, f"`{path}` must be an object, not {value!r:.80}"))
        return {}
    parsed: dict[str, Any] = {}
    for key, item in value.items():
        reader = readers.get(key)
        if reader is None:
            problems.append(unknown_key(path, key, frozenset(readers) | known))
        else:
            parsed[key] = reader(f"{path}.{key}", item, problems)
    return parsed


def _integer_reader(minimum: int, maximum: int) -> _Reader:
    def read(path: str, value: object, problems: list[Problem]) -> Any:
        problem = check_integer(path, value, minimum, maximum)
        if problem is not None:
            problems.append(problem)
        return value

    return read


def _enum_reader(kind: type[Mechanism] | type[Direction]) -> _Reader:
    def read(path: str, value: object, problems: list[Problem]) -> Any:
        names = [member.value for member in kind]
        if value in names:
            return kind(str(value))
        wanted = " or ".join(f'"{name}"' for name in names)
        problems.append(Problem(path, f"`{path}` must be {wanted}, not {value!r:.80}"))
        return None

    return read


def _text_reader(max_length: int) -> _Reader:
    def read(path: str, value: object, problems: list[Problem]) -> Any:
        if not isinstance(value, str) or len(value) > max_length:
            problems.append(Problem(path, f"`{path}` must be a string of at most {max_length} characters"))
        return value

    return read


def _read_backends(path: str, value: object, problems: list[Problem]) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not value or not all(isinstance(name, str) and name for name in value):
        problems.append(Problem(path, f'`{path}` must be a list of NIXL backends such as ["UCX"], not {value!r:.80}'))
        return ()
    return tuple(value)


def _integer_readers(kind: type[ClaimSettings] | type[RetainSettings]) -> dict[str, _Reader]:
    return {item.name: _integer_reader(item.metadata["minimum"], item.metadata["maximum"]) for item in fields(kind)}


def _section_reader(kind: type[ClaimSettings] | type[RetainSettings]) -> _Reader:
    readers = _integer_readers(kind)

    def read(path: str, value: object, problems: list[Problem]) -> Any:
        before = len(problems)
        values = _parse_object(value, path, readers, problems)
        return kind(**values) if len(problems) == before else None

    return read


def _top_level_readers() -> dict[str, _Reader]:
    metadata = {item.name: item.metadata for item in fields(ConnectorSettings)}
    threshold = metadata["recompute_threshold_tokens"]
    return {
        "mechanism": _enum_reader(Mechanism),
        "direction": _enum_reader(Direction),
        "recompute_threshold_tokens": _integer_reader(threshold["minimum"], threshold["maximum"]),
        "revision_group": _text_reader(metadata["revision_group"]["max_length"]),
        "backends": _read_backends,
        "claim": _section_reader(ClaimSettings),
        "retain": _section_reader(RetainSettings),
    }


_TOP_LEVEL: Final = _top_level_readers()
