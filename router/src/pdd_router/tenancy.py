"""Who asks, and what keeps one tenant's KV from another: API keys → tenants, tenant → cache salt. No I/O.

Keys are held hashed under a key of this process; salts are keyed hashes, so that a client can neither choose nor guess
another tenant's. Neither may ever be logged.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from typing import TypeGuard

from pdd_router.config import CacheIsolation, ConfigError, parse_yaml
from pdd_router.errors import UnauthorizedError

ANONYMOUS = "anonymous"
_MAX_TENANT_CHARS = 253


def most_of(total: int, tenant: str) -> int:
    """How much of what all share one tenant may have: three of four. Without keys there is one tenant, and nobody to keep any for."""
    return total if tenant == ANONYMOUS else total - total // 4


class ApiKeys:
    """Immutable; a changed file makes a new one."""

    def __init__(self, tenants: Mapping[str, str]) -> None:
        self._pepper = secrets.token_bytes(32)
        self._tenants = {self._hash(key.encode()): tenant for key, tenant in tenants.items()}

    def tenant_of(self, authorization: str | None) -> str:
        """The tenant of an ``Authorization`` header. Raises UnauthorizedError.

        The table is searched by a keyed hash, so what its comparisons take tells nothing about any key.
        """
        scheme, _, key = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise UnauthorizedError("An API key must be given as `Authorization: Bearer <key>`", code="missing_api_key")
        presented = self._hash(key.strip().encode("utf-8", "surrogateescape"))
        for known, tenant in self._tenants.items():
            if hmac.compare_digest(known, presented):
                return tenant
        raise UnauthorizedError("The API key is not known", code="invalid_api_key")

    def _hash(self, key: bytes) -> bytes:
        return hashlib.blake2b(key, key=self._pepper, digest_size=32).digest()


def parse_api_keys(text: str) -> ApiKeys:
    """``key: tenant`` a line. Raises ConfigError, which never shows a key."""
    data = parse_yaml(text, "the API keys file")
    if not isinstance(data, dict) or not data:
        raise ConfigError("the API keys file must be a mapping of keys to tenants")
    for key, tenant in data.items():
        if not _is_text(key) or len(key) < 8 or any(char.isspace() for char in key):
            raise ConfigError("the API keys file: every key must be a string of at least 8 characters without spaces")
        if not _is_text(tenant) or not 0 < len(tenant) <= _MAX_TENANT_CHARS:
            raise ConfigError(
                f"the API keys file: every tenant must be a string of 1 to {_MAX_TENANT_CHARS} characters"
            )
    return ApiKeys(data)


def _is_text(value: object) -> TypeGuard[str]:
    """Not so a string with half a surrogate pair, which YAML can have and UTF-8 cannot."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def parse_salt_secret(text: str) -> bytes:
    secret = text.strip().encode()
    if len(secret) < 32:
        raise ConfigError("the secret must be at least 32 characters")
    return secret


class Salts:
    """tenant → ``cache_salt``. With one secret, every replica of the router gives the same."""

    def __init__(self, secret: bytes, isolation: CacheIsolation) -> None:
        self._secret = secret
        self._isolation = isolation

    def salt_of(self, tenant: str) -> str:
        label = b"tenant\0" + tenant.encode() if self._isolation is CacheIsolation.PER_TENANT else b"shared"
        return base64.urlsafe_b64encode(hmac.new(self._secret, label, hashlib.sha256).digest()).rstrip(b"=").decode()


def tenant_hash(secret: bytes, tenant: str) -> str:
    """What logs say instead of the tenant's name."""
    return hmac.new(secret, b"log\0" + tenant.encode(), hashlib.sha256).hexdigest()[:12]
