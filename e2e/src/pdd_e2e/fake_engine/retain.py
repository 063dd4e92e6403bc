"""Retain, upstream's protocol with our proof: holding finished requests' blocks, handles, and reading by handle.

A handle is good once and until its time is over; the reader reads the common prefix of its proof and of the reader's own
prompt, in whole blocks that leave a token to compute, and nothing else. Decode holds blocks only when asked (`keep`) and
under a cap; prefill holds them under a lease when upstream's request object says so.
"""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pdd_e2e.fake_engine.blocks import Block, BlockPool
from pdd_e2e.fake_engine.claims import VERSION, Address
from pdd_e2e.fake_engine.fabric import FakeFabric, ReadFailedError
from pdd_e2e.fake_engine.pulse import Pulse
from pdd_e2e.fake_engine.scheduler import Counters
from pdd_e2e.fake_engine.sequence import Sequence as TokenSequence
from pdd_e2e.fake_engine.settings import EngineSettings

_HASH_HEX = 64
_PROOF = re.compile(rf"(?:[0-9a-f]{{{_HASH_HEX}}})+")


@dataclass(frozen=True, slots=True)
class Handle:
    """What a reader makes of another engine's handle. `expiry_time` is on the owner's clock; `proof` has 32 bytes a block."""

    address: Address
    engine_id: str
    request_id: str
    block_ids: tuple[int, ...]
    num_tokens: int
    expiry_time: float
    proof: tuple[bytes, ...]


@dataclass(slots=True)
class _Held:
    blocks: list[Block]
    until: float
    reading: bool = False


class Retention:
    """Blocks that outlive their request."""

    def __init__(
        self, pool: BlockPool, settings: EngineSettings, address: Address, engine_id: str, clock: Callable[[], float]
    ) -> None:
        self._pool = pool
        self._settings = settings
        self._address = address
        self._engine_id = engine_id
        self._clock = clock
        self._held: dict[str, _Held] = {}
        self.expired = 0

    @property
    def held_blocks(self) -> int:
        """Blocks held for handles now."""
        return sum(len(held.blocks) for held in self._held.values())

    def finish(self, sequence: TokenSequence, request_id: str, params: Mapping[str, Any]) -> dict[str, Any] | None:
        """Hold a finished sequence's blocks if the request asks for it and the cap allows; the handle, or None."""
        prefilled = is_prefill(params)
        if not prefilled and not wants_keep(params):
            return None
        self.expire()
        cap = int(self._settings.max_retained_share * self._pool.size)
        hashes = sequence.hashes(sequence.computed // self._settings.block_size)
        if not hashes or (not prefilled and self.held_blocks + len(sequence.blocks) > cap):
            return None
        until = self._clock() + (self._settings.lease_seconds if prefilled else self._settings.ttl_seconds)
        self._pool.touch(sequence.blocks)
        self._held[request_id] = _Held(list(sequence.blocks), until)
        return {
            "do_remote_prefill": prefilled,
            "do_remote_decode": not prefilled,
            "remote_block_ids": [[block.id for block in sequence.blocks]],
            "remote_engine_id": self._engine_id,
            "remote_request_id": request_id,
            "remote_host": self._address.host,
            "remote_port": self._address.port,
            "tp_size": 1,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": sequence.computed,
            "remote_blocks_expiry_time": until,
            "transfer_mode": "pull",
            "remote_prefill_cached_tokens": sequence.cached_tokens or 0,
            "proof": b"".join(hashes).hex(),
        }

    def take(self, request_id: str) -> bool:
        """A reader begins: False when the handle is unknown, used or expired."""
        self.expire()
        held = self._held.get(request_id)
        if held is None or held.reading:
            return False
        held.reading = True
        return True

    def free(self, request_id: str) -> None:
        """The reader's notice."""
        held = self._held.pop(request_id, None)
        if held is not None:
            self._pool.release(held.blocks)

    def expire(self) -> None:
        """Free what has been held past its time."""
        now = self._clock()
        for request_id, held in list(self._held.items()):
            if held.until <= now:
                self.expired += 1
                self.free(request_id)


class HandleReader:
    """Reads by handle. Any flaw of the handle, or a failed read, leaves the sequence to be computed."""

    def __init__(
        self,
        pool: BlockPool,
        settings: EngineSettings,
        fabric: FakeFabric,
        pulse: Pulse,
        counters: Counters,
        clock: Callable[[], float],
    ) -> None:
        self._pool = pool
        self._settings = settings
        self._fabric = fabric
        self._pulse = pulse
        self._counters = counters
        self._clock = clock

    async def read(self, params: Mapping[str, Any], sequence: TokenSequence) -> int:
        """Read what the handle proves; returns the tokens read (0: computed afresh)."""
        handle = parse_handle(params)
        if handle is None:
            return 0
        peer = self._fabric.peer_at(handle.address)
        late = handle.expiry_time - self._clock() < self._settings.expiry_margin_seconds
        if peer is None or peer.engine_id != handle.engine_id or late or not peer.take_retained(handle.request_id):
            return 0
        hashes = sequence.usable_hashes()
        local = len(self._pool.longest_run(hashes))
        proven = proven_blocks(handle, hashes, self._settings.block_size)
        try:
            wanted = proven - local
            if wanted <= 0 or wanted * self._settings.block_size < self._settings.threshold_tokens:
                return 0
            async with asyncio.timeout(self._settings.read_timeout_seconds):
                return await self._fetch(handle, handle.block_ids[local:proven], sequence, local)
        except (TimeoutError, ReadFailedError):
            return 0
        finally:
            peer.free_retained(handle.request_id)
            self._pulse.notify()

    async def _fetch(self, handle: Handle, block_ids: Sequence[int], sequence: TokenSequence, local_blocks: int) -> int:
        hashes = sequence.usable_hashes()
        await self._pulse.wait_until(lambda: self._pool.free >= len(block_ids) + local_blocks)
        local = self._pool.longest_run(hashes[:local_blocks])
        if len(local) < local_blocks:
            return 0
        self._pool.touch(local)
        fresh = self._pool.allocate(len(block_ids))
        try:
            contents = await self._fabric.read(handle.address, handle.engine_id, block_ids)
        except BaseException:
            self._pool.release([*local, *fresh])
            raise
        for block, kv, block_hash in zip(fresh, contents, hashes[local_blocks:], strict=False):
            block.overwrite(kv)
            block.computed = True
            self._pool.cache(block, block_hash)
        sequence.blocks = [*local, *fresh]
        self._counters.reads += 1
        self._counters.read_bytes += len(fresh) * self._settings.block_size * self._settings.bytes_per_token
        sequence.read_tokens = len(fresh) * self._settings.block_size
        return sequence.read_tokens


def is_prefill(params: Mapping[str, Any]) -> bool:
    """Whether the request is prefill for a decode engine to come."""
    return params.get("do_remote_decode") is True and params.get("do_remote_prefill") is not True


def wants_keep(params: Mapping[str, Any]) -> bool:
    """Whether the router asks decode to hold this request's blocks."""
    retain = params.get("retain")
    return isinstance(retain, Mapping) and retain.get("version") == VERSION and retain.get("keep") is True


def parse_handle(params: Mapping[str, Any]) -> Handle | None:
    """The handle in the parameters; None where there is none or anything in it is not what a handle has there."""
    groups, proof = params.get("remote_block_ids"), params.get("proof")
    names = [params.get(key) for key in ("remote_engine_id", "remote_request_id", "remote_host")]
    numbers = [params.get(key) for key in ("remote_port", "remote_num_tokens", "tp_size")]
    expiry = params.get("remote_blocks_expiry_time")
    if not isinstance(groups, list) or len(groups) != 1 or not _is_ids(groups[0]):
        return None
    if not all(isinstance(name, str) and name for name in names) or not all(_is_count(number) for number in numbers):
        return None
    if not isinstance(expiry, int | float) or not isinstance(proof, str) or not _PROOF.fullmatch(proof):
        return None
    hashes = tuple(bytes.fromhex(proof[start : start + _HASH_HEX]) for start in range(0, len(proof), _HASH_HEX))
    if len(hashes) > len(groups[0]):
        return None
    engine_id, request_id, host = (str(name) for name in names)
    port, tokens, _ = (int(number or 0) for number in numbers)
    return Handle(Address(host, port), engine_id, request_id, tuple(groups[0]), tokens, float(expiry), hashes)


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 1


def _is_ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int and item >= 0 for item in value)


def proven_blocks(handle: Handle, hashes: Sequence[bytes], block_size: int) -> int:
    """Blocks that the handle's proof and the prompt have in common."""
    common = 0
    for theirs, ours in zip(handle.proof[: handle.num_tokens // block_size], hashes, strict=False):
        if theirs != ours:
            break
        common += 1
    return common
