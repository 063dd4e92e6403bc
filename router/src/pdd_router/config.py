"""The router's configuration: typed, strict, with every default in one place.

The router owns this schema; the operator renders it and its tests load every rendered file through ``load_config``.
YAML keys are camelCase and, where the PDDeployment has the same knob, carry its name. Must not open any file but the
configuration itself.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel


class ConfigError(Exception):
    """One line that says which field must be what."""


class Mechanism(StrEnum):
    CLAIM = "Claim"
    RETAIN = "Retain"


class Direction(StrEnum):
    BIDIRECTIONAL = "Bidirectional"
    PREFILL_TO_DECODE = "PrefillToDecode"


class OnPrefillFailure(StrEnum):
    RETRY = "Retry"
    AGGREGATE = "Aggregate"
    FAIL = "Fail"


class CacheIsolation(StrEnum):
    PER_TENANT = "PerTenant"
    SHARED = "Shared"


class Keep(StrEnum):
    """When decode is asked to hold a finished turn's blocks (Retain)."""

    ALWAYS = "Always"
    WHEN_CONVERSATION_KNOWN = "WhenConversationKnown"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def _alias(name: str) -> str:
    # Kubernetes' spelling: conversationTTLSeconds, decoderBlocksTTLSeconds.
    return to_camel(name).replace("Ttl", "TTL")


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, alias_generator=_alias)


Seconds = Annotated[float, Field(gt=0, le=86_400)]
Count = Annotated[int, Field(ge=1, le=10_000_000)]


class Listen(_Section):
    host: Annotated[str, Field(min_length=1, max_length=253)] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000


class KubernetesDiscovery(_Section):
    """Engines are the pods of one PDDeployment. ``claimPort`` matters with mechanism Claim alone."""

    namespace: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
    deployment: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?$")]
    engine_port: Annotated[int, Field(ge=1, le=65535)] = 8000
    claim_port: Annotated[int, Field(ge=0, le=65535)] = 6600


class Discovery(_Section):
    kubernetes: KubernetesDiscovery


class Claim(_Section):
    max_owners_asked: Annotated[int, Field(ge=1, le=8)] = 3


class Retain(_Section):
    decoder_blocks_ttl_seconds: Annotated[int, Field(alias="decoderBlocksTTLSeconds", ge=2, le=86_400)] = 480
    keep: Annotated[Keep, Field(strict=False)] = Keep.ALWAYS


class Tenancy(_Section):
    cache_isolation: Annotated[CacheIsolation, Field(strict=False)] = CacheIsolation.PER_TENANT
    salt_secret_file: Annotated[Path | None, Field(strict=False)] = None


class Authentication(_Section):
    api_keys_file: Annotated[Path | None, Field(strict=False)] = None


class Limits(_Section):
    """What one request, one tenant and all together may use."""

    max_body_bytes: Annotated[int, Field(ge=1024, le=1 << 30)] = 32 << 20
    max_header_bytes: Annotated[int, Field(ge=1024, le=1 << 16)] = 16 << 10
    max_answer_bytes: Annotated[int, Field(ge=1024, le=1 << 30)] = 64 << 20
    max_event_bytes: Annotated[int, Field(ge=1024, le=1 << 26)] = 4 << 20
    max_json_depth: Annotated[int, Field(ge=4, le=256)] = 64
    max_json_values: Count = 1_000_000
    max_messages: Count = 4096
    max_tools: Count = 256
    max_choices: Annotated[int, Field(ge=1, le=1024)] = 16
    max_sequences: Annotated[int, Field(ge=1, le=1024)] = 64
    max_tokens: Count = 131_072
    max_stop: Annotated[int, Field(ge=1, le=1024)] = 16
    max_logprobs: Annotated[int, Field(ge=0, le=1024)] = 20
    max_concurrent_requests: Count = 512
    max_queued_requests: Annotated[int, Field(ge=0, le=1_000_000)] = 1024
    max_conversations: Count = 200_000
    queue_timeout_seconds: Seconds = 30.0
    idle_timeout_seconds: Seconds = 75.0
    body_timeout_seconds: Seconds = 60.0
    client_write_timeout_seconds: Seconds = 60.0
    request_timeout_seconds: Seconds = 1800.0


class Timeouts(_Section):
    """How long an engine may take."""

    connect_seconds: Seconds = 2.0
    prefill_seconds: Seconds = 300.0
    first_event_seconds: Seconds = 300.0
    between_events_seconds: Seconds = 60.0


class Retries(_Section):
    """``budgetPercent``: retries allowed per hundred requests, over all; ``burst`` on top of it when things are calm."""

    max_per_request: Annotated[int, Field(ge=0, le=16)] = 2
    budget_percent: Annotated[int, Field(ge=0, le=100)] = 20
    burst: Annotated[int, Field(ge=0, le=10_000)] = 10


class Health(_Section):
    interval_seconds: Seconds = 2.0
    timeout_seconds: Seconds = 5.0
    unhealthy_after: Annotated[int, Field(ge=1, le=100)] = 2


class Breaker(_Section):
    failures: Annotated[int, Field(ge=1, le=1000)] = 3
    base_seconds: Seconds = 5.0
    max_seconds: Seconds = 60.0


class Introductions(_Section):
    concurrency: Annotated[int, Field(ge=1, le=64)] = 2
    timeout_seconds: Seconds = 40.0
    retry_base_seconds: Seconds = 1.0
    retry_max_seconds: Seconds = 60.0


class Balance(_Section):
    """``stickySlack``: how many more requests than the idlest one a conversation's decode engine may have and keep it."""

    sticky_slack: Annotated[int, Field(ge=0, le=10_000)] = 8
    max_concurrent_per_engine: Count = 256


class Shutdown(_Section):
    ready_delay_seconds: Annotated[float, Field(ge=0, le=3600)] = 0.0
    grace_seconds: Seconds = 60.0


class RouterConfig(_Section):
    """The whole file. Relative paths are taken from the folder that the file is in."""

    listen: Listen = Listen()
    engines_file: Annotated[Path | None, Field(strict=False)] = None
    discovery: Discovery | None = None
    mechanism: Annotated[Mechanism, Field(strict=False)] = Mechanism.CLAIM
    direction: Annotated[Direction, Field(strict=False)] = Direction.BIDIRECTIONAL
    recompute_threshold_tokens: Annotated[int, Field(ge=0, le=1_000_000)] = 64
    claim: Claim = Claim()
    retain: Retain = Retain()
    conversation_ttl_seconds: Annotated[int, Field(alias="conversationTTLSeconds", ge=1, le=86_400)] = 450
    on_prefill_failure: Annotated[OnPrefillFailure, Field(strict=False)] = OnPrefillFailure.RETRY
    run_on_decode_below_tokens: Annotated[int, Field(ge=0, le=1_000_000)] = 256
    tenancy: Tenancy = Tenancy()
    authentication: Authentication = Authentication()
    limits: Limits = Limits()
    timeouts: Timeouts = Timeouts()
    retries: Retries = Retries()
    health: Health = Health()
    breaker: Breaker = Breaker()
    introductions: Introductions = Introductions()
    balance: Balance = Balance()
    shutdown: Shutdown = Shutdown()
    follow_files_seconds: Seconds = 1.0
    expose_receipt: bool = True
    log_level: Annotated[LogLevel, Field(strict=False)] = LogLevel.INFO

    @model_validator(mode="after")
    def _check_source_of_engines(self) -> RouterConfig:
        if (self.engines_file is None) == (self.discovery is None):
            raise ValueError("exactly one of enginesFile and discovery must be set")
        if self.discovery and self.mechanism is Mechanism.CLAIM and not self.discovery.kubernetes.claim_port:
            raise ValueError("discovery.kubernetes.claimPort must not be 0 with mechanism Claim")
        return self

    @model_validator(mode="after")
    def _check_ttl(self) -> RouterConfig:
        ttl = self.retain.decoder_blocks_ttl_seconds
        if self.mechanism is Mechanism.RETAIN and self.conversation_ttl_seconds >= ttl:
            raise ValueError(
                f"conversationTTLSeconds must be less than retain.decoderBlocksTTLSeconds ({ttl}) with mechanism Retain"
            )
        return self

    def relative_to(self, folder: Path) -> RouterConfig:
        """The same with every path resolved from ``folder``."""

        def resolved(path: Path | None) -> Path | None:
            return None if path is None else folder / path

        return self.model_copy(
            update={
                "engines_file": resolved(self.engines_file),
                "tenancy": self.tenancy.model_copy(
                    update={"salt_secret_file": resolved(self.tenancy.salt_secret_file)}
                ),
                "authentication": self.authentication.model_copy(
                    update={"api_keys_file": resolved(self.authentication.api_keys_file)}
                ),
            }
        )


def parse_yaml(text: str, what: str) -> object:
    """``what`` is the subject of the ConfigError that is raised where the text cannot be read, for whatever reason."""
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError) as error:
        # PyYAML lets its converters' own errors out: 2024-99-99, !!bool x, !!timestamp x, a number of 5000 digits.
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark else ""
        raise ConfigError(f"{what} must be valid YAML{where}") from None


def parse_config(text: str) -> RouterConfig:
    """Raises ConfigError with one line that names the field."""
    data = parse_yaml(text, "the file")
    if not isinstance(data, dict):
        raise ConfigError("the file must hold a mapping of settings")
    try:
        return RouterConfig.model_validate(data)
    except ValidationError as error:
        raise ConfigError(describe_validation(error)) from None


def describe_validation(error: ValidationError) -> str:
    """The first problem as ``field: what is wrong``, with how many more there are. Never shows a value."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        message = "there is no such setting"
    more = error.error_count() - 1
    return f"{where + ': ' if where else ''}{message}{f' (and {more} more)' if more else ''}"


def load_config(path: Path) -> RouterConfig:
    """Raises ConfigError, also where the file cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {type(error).__name__}") from None
    return parse_config(text).relative_to(path.resolve().parent)
