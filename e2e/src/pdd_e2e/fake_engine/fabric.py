"""The wire between fakes of one process: claim channels and NIXL reads, without sockets.

It stands in for ZeroMQ and NIXL: a question to an address where nobody listens is not delivered, a greeting is tried again
until somebody does, a read from an engine that has died or been replaced fails, and what arrives is what the owner's blocks hold when the transfer
ends. It decides nothing about claims: that is owner.py and reader.py.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Protocol

from pdd_e2e.fake_engine.claims import Address, Answer, Grant, Reason, Refusal
from pdd_e2e.fake_engine.pulse import Pulse


@dataclass(frozen=True, slots=True)
class Ask:
    """A reader's question. `hashes` run from the first block that the reader lacks."""

    reader: str
    reader_address: Address
    group: str
    hashes: tuple[bytes, ...]


class Peer(Protocol):
    """What an engine offers to the others over the fabric."""

    @property
    def engine_id(self) -> str:
        """Incarnation."""
        ...

    def hello(self, reader: str, reader_address: Address, group: str) -> Reason | None:
        """Accept a connection, or say why not."""
        ...

    def answer(self, ask: Ask) -> tuple[Grant | Refusal, float]:
        """The answer, and the seconds that it takes to arrive."""
        ...

    def release(self, claim_id: str) -> None:
        """Drop a grant; unknown ids are ignored."""
        ...

    def read_delay(self, blocks: int) -> float:
        """Seconds that a transfer of so many blocks takes; raises `ReadFailedError` when it breaks."""
        ...

    def contents(self, block_ids: Sequence[int]) -> list[bytes]:
        """What the blocks hold now."""
        ...

    def take_retained(self, request_id: str) -> bool:
        """Retain: mark a handle's blocks as being read; False when it is unknown, used or expired."""
        ...

    def free_retained(self, request_id: str) -> None:
        """Retain: the reader's notice; frees the handle's blocks."""
        ...


class ReadFailedError(Exception):
    """The transfer broke or its owner is gone."""


class FakeFabric:
    """Everything that can reach everything else. One per test; share it between the engines."""

    def __init__(self) -> None:
        self._peers: dict[Address, Peer] = {}
        self._ports = count(20_001)
        self._joined = Pulse()

    def next_port(self) -> int:
        """A claim or side-channel port that no other engine of this fabric has."""
        return next(self._ports)

    def join(self, address: Address, peer: Peer) -> None:
        """Make an engine reachable; the last one to join an address has it."""
        self._peers[address] = peer
        self._joined.notify()

    def leave(self, address: Address, peer: Peer) -> None:
        """Make it unreachable again."""
        if self._peers.get(address) is peer:
            del self._peers[address]

    def peer_at(self, address: Address) -> Peer | None:
        """The engine that listens there."""
        return self._peers.get(address)

    async def find(self, address: Address) -> Peer:
        """The engine that listens there, as soon as there is one: the caller sets the time limit."""
        await self._joined.wait_until(lambda: address in self._peers)
        return self._peers[address]

    async def ask(self, address: Address, ask: Ask) -> Answer:
        """Ask an owner; None where nobody listens. May take for ever: the caller sets the time limit and cancels."""
        peer = self._peers.get(address)
        if peer is None:
            return None
        answer, delay = peer.answer(ask)
        try:
            await asyncio.sleep(delay)
        except asyncio.CancelledError:
            # The reader gave up, the answer is still under way: it lets the grant go when it gets there.
            if isinstance(answer, Grant):
                asyncio.get_running_loop().call_later(delay, peer.release, answer.claim_id)
            raise
        return answer if self._peers.get(address) is peer else None

    async def read(self, address: Address, engine_id: str, block_ids: Sequence[int]) -> list[bytes]:
        """Transfer blocks. Raises `ReadFailedError` if the owner is not, or no longer, that incarnation."""
        peer = self._incarnation(address, engine_id)
        await asyncio.sleep(peer.read_delay(len(block_ids)))
        return self._incarnation(address, engine_id).contents(block_ids)

    def _incarnation(self, address: Address, engine_id: str) -> Peer:
        peer = self._peers.get(address)
        if peer is None or peer.engine_id != engine_id:
            raise ReadFailedError(f"engine {engine_id} is not at {address.host}:{address.port}")
        return peer
