"""The engines file: text → engines. Pure; ``following`` does the reading.

engines:
- {name: p0, role: Prefill, url: "http://10.0.0.1:8000", group: v1, claim: {host: 10.0.0.1, port: 6600}}
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated
from urllib.parse import SplitResult, urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from pdd_router.config import ConfigError, describe_validation, parse_yaml
from pdd_router.endpoints.engine import ClaimAddress, Engine, EngineId, Role


class _Claim(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    host: Annotated[str, Field(min_length=1, max_length=253)]
    port: Annotated[int, Field(ge=1, le=65535)]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?$")]
    role: Annotated[Role, Field(strict=False)]
    url: Annotated[str, Field(max_length=2048)]
    claim: _Claim | None = None
    group: Annotated[str, Field(max_length=253)] = ""
    incarnation: Annotated[str, Field(max_length=253)] = ""

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("must be an http or https URL")
        if parts.query or parts.fragment or parts.username:
            raise ValueError("must not have a query, a fragment or credentials")
        if not _has_valid_port(parts):
            raise ValueError("must have a port of 1 to 65535, or none")
        return url.rstrip("/")


def _has_valid_port(parts: SplitResult) -> bool:
    try:
        return parts.port != 0
    except ValueError:
        return False


def _canonical(url: str) -> str:
    """Equal for two spellings of one address."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return f"{parts.scheme}://{parts.hostname}:{port}{parts.path}"


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    engines: list[_Entry]


def parse_engines(text: str) -> tuple[Engine, ...]:
    """Raises ConfigError with one line; an empty list is valid (everything drained)."""
    data = parse_yaml(text, "the engines file")
    if not isinstance(data, dict):
        raise ConfigError("the engines file must hold `engines`")
    try:
        entries = _File.model_validate(data).engines
    except ValidationError as error:
        raise ConfigError(describe_validation(error)) from None
    for what, values in (
        ("name", [entry.name for entry in entries]),
        ("url", [_canonical(entry.url) for entry in entries]),
    ):
        repeated = [value for value, count in Counter(values).items() if count > 1]
        if repeated:
            raise ConfigError(f"engines: the {what} {min(repeated)!r} must be used once")
    return tuple(
        Engine(
            id=EngineId(entry.name, entry.url, entry.incarnation),
            role=entry.role,
            group=entry.group,
            claim=ClaimAddress(entry.claim.host, entry.claim.port) if entry.claim else None,
        )
        for entry in entries
    )
