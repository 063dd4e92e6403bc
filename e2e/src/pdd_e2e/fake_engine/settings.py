"""What a fake engine is set to. Plain data; limits default to the real ones, but the threshold is 0 (tests use short prompts)."""

from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256


class Role(StrEnum):
    """What the router uses the engine for; both run the same code."""

    PREFILL = "Prefill"
    DECODE = "Decode"


class Mechanism(StrEnum):
    """How KV is reused."""

    CLAIM = "Claim"
    RETAIN = "Retain"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Settings of one fake engine. Sizes in blocks or tokens, times in seconds."""

    role: Role
    name: str
    model: str = "fake"
    mechanism: Mechanism = Mechanism.CLAIM
    revision: str = "1"
    block_size: int = 16
    cache_blocks: int = 1024
    prefix_caching: bool = True
    max_model_len: int | None = None
    max_running: int = 256
    bytes_per_token: int = 46_080
    # timing
    seconds_per_prompt_token: float = 0.0
    seconds_per_output_token: float = 0.0
    seconds_per_read_token: float = 0.0
    connect_seconds: float = 0.0
    # claims, as reader
    threshold_tokens: int = 0
    answer_timeout_seconds: float = 0.15
    read_timeout_seconds: float = 2.0
    greeting_seconds: float = 10.0
    introduce_timeout_seconds: float = 30.0
    max_owners_asked: int = 3
    # claims, as owner
    hold_seconds: float = 15.0
    max_claims_per_reader: int = 64
    max_held_share: float = 0.5
    # retain
    lease_seconds: float = 300.0
    ttl_seconds: float = 480.0
    expiry_margin_seconds: float = 5.0
    max_retained_share: float = 0.3
    # HTTP
    stream_params: bool = True
    prompt_tokens_details: bool = True

    @property
    def context_tokens(self) -> int:
        """The longest sequence that is accepted; never more than the cache can hold."""
        capacity = self.cache_blocks * self.block_size
        return min(capacity, 8192 if self.max_model_len is None else self.max_model_len)

    @property
    def group(self) -> str:
        """Hash of all that must be equal on both sides of a claim."""
        parts = ("fake", self.model, self.revision, self.block_size, self.bytes_per_token)
        return sha256(repr(parts).encode()).hexdigest()[:16]
