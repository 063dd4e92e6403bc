"""The proof in a handle: which of the blocks it names hold exactly the beginning of this prompt.

Pure. A block's hash is chained: it covers all tokens before it, LoRA, multimodal inputs and `cache_salt`. So the longest
common prefix of the owner's and the reader's hashes is what may be read, and nothing behind it.
"""

from collections.abc import Sequence
from typing import Final

HASH_BYTES: Final = 32


class ProofError(ValueError):
    """The text is no proof."""


def encode_proof(hashes: Sequence[bytes]) -> str:
    """Chained hashes of full blocks, in order, as hex. Raises `ProofError` for a hash of another length than 32 bytes."""
    if any(len(item) != HASH_BYTES for item in hashes):
        raise ProofError(f"every hash must have {HASH_BYTES} bytes")
    return b"".join(hashes).hex()


def decode_proof(text: str, max_blocks: int) -> tuple[bytes, ...]:
    """The hashes again. Raises `ProofError` for what is not hex, not whole hashes, or more than `max_blocks` of them."""
    if len(text) > max_blocks * HASH_BYTES * 2:
        raise ProofError(f"a proof must cover at most {max_blocks} blocks")
    if text and not (text.isascii() and text.isalnum()):
        raise ProofError("a proof must be hex")
    try:
        raw = bytes.fromhex(text)
    except ValueError as error:
        raise ProofError("a proof must be hex") from error
    if len(raw) % HASH_BYTES:
        raise ProofError(f"a proof must be whole hashes of {HASH_BYTES} bytes")
    return tuple(raw[start : start + HASH_BYTES] for start in range(0, len(raw), HASH_BYTES))


def proven_blocks(
    proof: Sequence[bytes], own_hashes: Sequence[bytes], remote_num_tokens: int, block_size: int, prompt_tokens: int
) -> int:
    """How many of the owner's blocks, from the first on, hold this prompt; at least one token is left to compute."""
    limit = min(len(proof), len(own_hashes), remote_num_tokens // block_size, max(prompt_tokens - 1, 0) // block_size)
    for index in range(limit):
        if proof[index] != own_hashes[index]:
            return index
    return limit


def provable_blocks(
    num_computed_tokens: int, num_tokens: int, block_size: int, num_hashes: int, num_blocks: int
) -> int:
    """How many full blocks a finished request can vouch for.

    The last token is sampled, not computed: with asynchronous scheduling `num_computed_tokens` may count it although
    the step that computes it still runs.
    """
    return min(min(num_computed_tokens, num_tokens - 1) // block_size, num_hashes, num_blocks)
