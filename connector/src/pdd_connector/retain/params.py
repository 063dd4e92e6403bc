"""What a request's `kv_transfer_params` say about Retain, parsed as what they are: untrusted.

Pure. Whatever does not fit is refused with a reason and forgotten; the base connector only ever sees parameters that were
written here. Upstream tests only whether keys are present, and holds blocks for any object that is not empty.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from pdd_connector.claims.messages import PROTOCOL_VERSION
from pdd_connector.retain.proof import ProofError, decode_proof

_MAX_NAME: Final = 256
_MAX_PARALLEL: Final = 4096


class Refused(StrEnum):
    """Why a handle is not used, or nothing is kept."""

    CAP = "Cap"
    DIRECTION = "Direction"
    MALFORMED = "Malformed"
    NO_PROOF = "NoProof"
    REPLAYED = "Replayed"
    VERSION = "Version"


@dataclass(frozen=True, slots=True)
class Handle:
    """Blocks that another engine holds for one reader. `expiry_time` is on the owner's own clock."""

    engine_id: str
    request_id: str
    host: str
    port: int
    tp_size: int
    dcp_size: int
    pp_size: int
    block_ids: tuple[int, ...]
    num_tokens: int
    expiry_time: float
    registration_generation: int
    proof: tuple[bytes, ...]

    @property
    def key(self) -> tuple[str, str]:
        """What is the same in every copy of this handle and in no other."""
        return self.engine_id, self.request_id


@dataclass(frozen=True, slots=True)
class Turn:
    """What a request is to this engine: prefill for another one or not, with a handle or none, to be kept or not."""

    prefill: bool = False
    handle: Handle | None = None
    keep: bool = False
    refused: Refused | None = None


class _MalformedError(ValueError):
    """A value is not what a handle has there."""


def parse_turn(params: Mapping[str, Any] | None, max_blocks: int) -> Turn | None:
    """The turn that the parameters describe; None where they say nothing about Retain.

    `max_blocks` is how many blocks the longest prompt can have. A handle that is refused leaves the rest of its turn
    standing: prefill still computes for decode, and what is asked to be kept is.
    """
    if not params:
        return None
    prefill, reads = params.get("do_remote_decode", False), params.get("do_remote_prefill", False)
    keep, refused = _parse_keep(params.get("retain"))
    if not isinstance(prefill, bool) or not isinstance(reads, bool) or (prefill and reads):
        return Turn(keep=keep, refused=Refused.MALFORMED)
    handle = None
    if reads or (prefill and params.get("remote_block_ids")):
        try:
            handle = _parse_handle(params, max_blocks)
        except _MalformedError:
            refused = Refused.NO_PROOF if params.get("proof") is None else Refused.MALFORMED
    if not prefill and not keep and handle is None and refused is None:
        return None
    return Turn(prefill, handle, keep and not prefill, refused)


def write_params(turn: Turn) -> dict[str, Any]:
    """The parameters that the base connector is given for a turn: its own keys, nothing that was not parsed."""
    params: dict[str, Any] = {"do_remote_decode": turn.prefill, "do_remote_prefill": False}
    handle = turn.handle
    if handle is not None:
        params |= {
            "do_remote_prefill": not turn.prefill,
            "remote_engine_id": handle.engine_id,
            "remote_request_id": handle.request_id,
            "remote_host": handle.host,
            "remote_port": handle.port,
            "tp_size": handle.tp_size,
            "dcp_size": handle.dcp_size,
            "pp_size": handle.pp_size,
            "remote_block_ids": [list(handle.block_ids)],
            "remote_num_tokens": handle.num_tokens,
            "remote_blocks_expiry_time": handle.expiry_time,
            "remote_registration_generation": handle.registration_generation,
        }
    return params


def _parse_keep(retain: object) -> tuple[bool, Refused | None]:
    if retain is None:
        return False, None
    if not isinstance(retain, Mapping):
        return False, Refused.MALFORMED
    if retain.get("version") != PROTOCOL_VERSION or isinstance(retain.get("version"), bool):
        return False, Refused.VERSION
    keep = retain.get("keep", False)
    return (keep, None) if isinstance(keep, bool) else (False, Refused.MALFORMED)


def _parse_handle(params: Mapping[str, Any], max_blocks: int) -> Handle:
    block_ids = _block_ids(params.get("remote_block_ids"), max_blocks)
    proof = params.get("proof")
    if not isinstance(proof, str):
        raise _MalformedError("proof")
    try:
        hashes = decode_proof(proof, len(block_ids))
    except ProofError as error:
        raise _MalformedError("proof") from error
    if not hashes:
        raise _MalformedError("proof")
    return Handle(
        engine_id=_name(params.get("remote_engine_id")),
        request_id=_name(params.get("remote_request_id")),
        host=_name(params.get("remote_host")),
        port=_integer(params.get("remote_port"), 1, 65_535),
        tp_size=_integer(params.get("tp_size"), 1, _MAX_PARALLEL),
        dcp_size=_integer(params.get("dcp_size", 1), 1, 1),
        pp_size=_integer(params.get("pp_size", 1), 1, _MAX_PARALLEL),
        block_ids=block_ids,
        num_tokens=_integer(params.get("remote_num_tokens"), 1, 1 << 31),
        expiry_time=_seconds(params.get("remote_blocks_expiry_time")),
        registration_generation=_integer(params.get("remote_registration_generation", 0), 0, 1 << 31),
        proof=hashes,
    )


def _block_ids(groups: object, max_blocks: int) -> tuple[int, ...]:
    """One group's ids. Another model's several groups pair with blocks in ways that one chain of hashes cannot prove."""
    if not isinstance(groups, list | tuple) or len(groups) != 1 or not isinstance(groups[0], list | tuple):
        raise _MalformedError("remote_block_ids")
    if not 0 < len(groups[0]) <= max_blocks:
        raise _MalformedError("remote_block_ids")
    ids = tuple(_integer(item, 1, 1 << 31) for item in groups[0])  # 0 is vLLM's null block, which nobody owns
    if len(set(ids)) != len(ids):
        raise _MalformedError("remote_block_ids")
    return ids


def _name(value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_NAME or not value.isprintable():
        raise _MalformedError
    return value


def _integer(value: object, minimum: int, maximum: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
        raise _MalformedError
    return value


def _seconds(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise _MalformedError
    return float(value)
