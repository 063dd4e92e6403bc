"""Our connector with three guards taken out, for the control of the suite: it must notice each. Loaded by test engines only, by its path.

- An owner lends blocks that a step in flight still writes.
- A reader takes a prompt for the one that it saw before if the first block is the same, and asks by that one's hashes.
- `cache_salt` is left out of the hashes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vllm.v1.core import kv_cache_utils

from pdd_connector import claim_scheduler, connector
from pdd_connector.claims.in_flight import InFlightSteps

_extra_keys = kv_cache_utils.generate_block_hash_extra_keys


def _without_salt(request: Any, *args: Any) -> Any:
    keys, next_multimodal = _extra_keys(request, *args)
    rest = tuple(key for key in keys or () if not (isinstance(key, tuple) and key[0] == "cache_salt"))
    return rest or None, next_multimodal


class _NothingInFlight(InFlightSteps):
    def __contains__(self, block: object) -> bool:
        return False


class _UnguardedScheduler(claim_scheduler.ClaimScheduler):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._seen: dict[bytes, Sequence[bytes]] = {}

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        hashes = request.block_hashes
        if hashes:
            hashes = self._seen.setdefault(hashes[0], list(hashes))
        tokens = self._reader.matched_tokens(
            request.request_id, request.kv_transfer_params, request.num_prompt_tokens, hashes, num_computed_tokens
        )
        return tokens, bool(tokens)


# Through their dictionaries: replacing what a module defines is no assignment that a type checker could approve of.
vars(kv_cache_utils).update(generate_block_hash_extra_keys=_without_salt)
vars(claim_scheduler).update(InFlightSteps=_NothingInFlight)
vars(connector).update(ClaimScheduler=_UnguardedScheduler)


class UnguardedConnector(connector.PddConnector):
    """What `kv_connector` names."""
