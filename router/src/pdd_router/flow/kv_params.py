"""``kv_transfer_params`` in both directions, as docs/protocol.md section 1 says. Pure.

What an engine answers is untrusted here: a receipt that does not read as one is treated as absent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pdd_router.endpoints.engine import ClaimAddress, EngineView

VERSION = 1
KEY = "kv_transfer_params"

JsonObject = dict[str, object]


@dataclass(frozen=True, slots=True)
class Receipt:
    """What the connector says it did. Tokens and bytes of this leg; ``owner`` is whom it read from or asked."""

    outcome: str
    reason: str | None
    owner: ClaimAddress | None
    prompt_tokens: int | None
    local_tokens: int | None
    read_tokens: int
    read_bytes: int
    connected: tuple[ClaimAddress, ...] = ()


def claim_params(owners: Iterable[EngineView], *, introduce: bool = False) -> JsonObject:
    listed = [
        {"host": view.engine.claim.host, "port": view.engine.claim.port}
        for view in owners
        if view.engine.claim is not None
    ]
    claim: JsonObject = {"version": VERSION, "owners": listed}
    if introduce:
        claim["introduce"] = True
    return {"claim": claim}


def retain_request() -> JsonObject:
    """Upstream's request object: prefill, and keep the blocks for a decode engine."""
    return {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": None,
        "remote_port": None,
    }


def with_keep(handle: JsonObject) -> JsonObject:
    """Prefill's handle as decode gets it when its blocks shall be held afterwards."""
    return {**handle, "retain": {"version": VERSION, "keep": True}}


def parse_prefill_handle(params: object) -> JsonObject | None:
    """Prefill's answer (Retain), unchanged, if decode can read by it."""
    return params if isinstance(params, dict) and params.get("do_remote_prefill") is True else None


def parse_decode_handle(params: object) -> JsonObject | None:
    """Decode's answer (Retain), unchanged, if it is a handle with its proof; without proof it must not be used."""
    if not isinstance(params, dict) or params.get("do_remote_decode") is not True:
        return None
    proof = params.get("proof")
    return params if isinstance(proof, str) and proof else None


def parse_receipt(params: object) -> Receipt | None:
    claim = params.get("claim") if isinstance(params, dict) else None
    if not isinstance(claim, dict) or claim.get("version") != VERSION:
        return None
    outcome = claim.get("outcome")
    if not isinstance(outcome, str) or not outcome.isalpha() or len(outcome) > 32:
        return None
    reason = claim.get("reason")
    connected = claim.get("connected")
    return Receipt(
        outcome=outcome,
        reason=reason if isinstance(reason, str) and reason.isalpha() and len(reason) <= 32 else None,
        owner=_parse_address(claim.get("owner")),
        prompt_tokens=_parse_count(claim.get("prompt_tokens")),
        local_tokens=_parse_count(claim.get("local_tokens")),
        read_tokens=_parse_count(claim.get("read_tokens")) or 0,
        read_bytes=_parse_count(claim.get("read_bytes")) or 0,
        connected=tuple(
            address
            for item in (connected if isinstance(connected, list) else ())
            if (address := _parse_address(item)) is not None
        ),
    )


def _parse_address(value: object) -> ClaimAddress | None:
    if not isinstance(value, dict):
        return None
    host, port = value.get("host"), value.get("port")
    if isinstance(host, str) and isinstance(port, int) and not isinstance(port, bool):
        return ClaimAddress(host, port)
    return None


def _parse_count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
