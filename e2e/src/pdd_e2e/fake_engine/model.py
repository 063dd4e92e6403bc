"""The fake's model: what the KV of a token is, and what comes next.

The KV of a token is a digest of the KV of every token before it *as stored in the blocks that the request uses*, and of
the token itself. The next token is a digest of all of that KV. So a block that is foreign, corrupted, shifted or not yet
computed changes what is generated, as it would with real attention. Pure: blocks come in as bytes.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

from pdd_e2e.fake_engine.tokens import END, FIRST_WORD, VOCABULARY

SLOT_BYTES = 8
CANDIDATES = 20
_END_SHARE = 64  # about one token in so many ends the answer


@dataclass(frozen=True, slots=True)
class Candidate:
    """A possible next token with its log-probability."""

    token: int
    logprob: float


def block_digest(kv: bytes) -> bytes:
    """Digest of what one block holds. Shape: any bytes to 16 bytes."""
    return blake2b(kv, digest_size=16).digest()


def context_digest(block_digests: Iterable[bytes]) -> bytes:
    """Digest of a whole context, from the digests of its blocks in order."""
    return blake2b(b"".join(block_digests), digest_size=16).digest()


def slot_kv(earlier_blocks: bytes, this_block: bytes, token: int) -> bytes:
    """KV of one token (8 bytes): from the digest of the blocks before, the slots before it in its block, and itself."""
    return blake2b(earlier_blocks + this_block + token.to_bytes(4, "big"), digest_size=SLOT_BYTES).digest()


def candidates(context: bytes, *, end_allowed: bool = True) -> tuple[Candidate, ...]:
    """The likeliest next tokens, best first, with falling log-probabilities; a pure function of the context."""
    noise = blake2b(context, digest_size=64, person=b"next").digest()
    chosen: list[int] = []
    if end_allowed and noise[0] % _END_SHARE == 0:
        chosen.append(END)
    words = VOCABULARY - FIRST_WORD
    position = 1
    while len(chosen) < CANDIDATES:
        token = FIRST_WORD + int.from_bytes(noise[position : position + 2], "big") % words
        position += 2
        if token not in chosen:
            chosen.append(token)
        if position + 2 > len(noise):
            noise, position = blake2b(noise, digest_size=64, person=b"more").digest(), 0
    weights = [1 / (rank + 1) ** 2 for rank in range(len(chosen))]
    sharpness = 1 + noise[-1] / 255
    total = sum(weight**sharpness for weight in weights)
    return tuple(
        Candidate(token, math.log(weight**sharpness / total)) for token, weight in zip(chosen, weights, strict=True)
    )


def choose(possible: tuple[Candidate, ...], context: bytes, *, temperature: float, seed: int) -> Candidate:
    """The next token: the best one at temperature 0, otherwise drawn by a hash of context and seed."""
    if temperature == 0:
        return possible[0]
    draw = int.from_bytes(blake2b(context + seed.to_bytes(8, "big"), digest_size=8, person=b"draw").digest(), "big")
    share = draw / 2**64
    for candidate in possible:
        share -= math.exp(candidate.logprob)
        if share <= 0:
            return candidate
    return possible[-1]
