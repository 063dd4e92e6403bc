"""Which engines this one is connected with, and what to do about the others.

Pure: times are handed in. A peer is an address (claim channel); what runs there is known by the engine id it welcomes with. Reads go only to
connected peers, because a first contact costs seconds that no request should wait for.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from pdd_connector.claims.messages import RefuseReason, Welcome
from pdd_connector.claims.params import Address


class PeerState(StrEnum):
    """Life of a peer."""

    GREETING = "Greeting"  # hello sent, no welcome yet
    CONNECTING = "Connecting"  # the workers connect and try a read
    CONNECTED = "Connected"
    FAILED = "Failed"  # not to be tried again before `until`


@dataclass(frozen=True)
class _Peer:
    state: PeerState
    until: float  # GREETING, CONNECTING: give up then; FAILED: may be tried again then
    welcome: Welcome | None = None
    refusal: RefuseReason | None = None  # GREETING, FAILED: what it said to the last hello that it answered


class PeerBook:
    """Peers by address."""

    def __init__(self, connect_seconds: float, retry_seconds: float) -> None:
        self._connect_seconds = connect_seconds
        self._retry_seconds = retry_seconds
        self._peers: dict[Address, _Peer] = {}
        self._orders: list[Welcome] = []

    def greet(self, address: Address, now: float) -> bool:
        """Whether a hello is to be sent now; if so, it is taken as sent."""
        peer = self._peers.get(address)
        if peer is not None and (peer.state is not PeerState.FAILED or now < peer.until):
            return False
        refusal = peer.refusal if peer is not None else None
        self._peers[address] = _Peer(PeerState.GREETING, now + self._connect_seconds, refusal=refusal)
        return True

    def welcomed(self, address: Address, welcome: Welcome) -> None:
        """The peer answered: its engine is to be connected by the workers."""
        peer = self._peers.get(address)
        if peer is None or peer.state is not PeerState.GREETING:
            return
        self._peers[address] = _Peer(PeerState.CONNECTING, peer.until, welcome)
        self._orders.append(welcome)

    def take_orders(self) -> list[Welcome]:
        """Engines that the workers have not been told to connect yet."""
        orders, self._orders = self._orders, []
        return orders

    def workers_connected(self, engine_ids: Collection[str]) -> None:
        """What all workers are connected with. A connected engine that is no longer among them has to be greeted again."""
        for address, peer in list(self._peers.items()):
            if peer.welcome is None:
                continue
            there = peer.welcome.engine_id in engine_ids
            if peer.state is PeerState.CONNECTING and there:
                self._peers[address] = _Peer(PeerState.CONNECTED, peer.until, peer.welcome)
            elif peer.state is PeerState.CONNECTED and not there:
                del self._peers[address]

    def failed(self, address: Address, now: float, refusal: RefuseReason | None = None) -> None:
        """The peer cannot be reached, refuses, or another engine runs there now; it may be greeted again after a while."""
        self._peers[address] = _Peer(PeerState.FAILED, now + self._retry_seconds, refusal=refusal)

    def not_welcomed(self, address: Address, now: float, refusal: RefuseReason | None = None) -> None:
        """A hello had no answer, or was refused. One sent earlier than the peer's welcome says nothing about it."""
        peer = self._peers.get(address)
        if peer is not None and peer.state is PeerState.GREETING:
            self.failed(address, now, refusal)

    def forget(self, address: Address) -> None:
        """Another engine runs there now: greet it at the next occasion."""
        self._peers.pop(address, None)

    def workers_failed(self, engine_ids: Collection[str], now: float) -> None:
        """Engines that some worker could not be connected with."""
        for address, peer in list(self._peers.items()):
            if peer.state is PeerState.CONNECTING and peer.welcome is not None and peer.welcome.engine_id in engine_ids:
                self.failed(address, now)

    def expire(self, now: float) -> list[Address]:
        """Give up what took too long, and return it; forget what failed long ago, since engines come and go."""
        for address, peer in list(self._peers.items()):
            if peer.state is PeerState.FAILED and now >= peer.until + self._connect_seconds:
                del self._peers[address]
        overdue = [
            a
            for a, p in self._peers.items()
            if p.state in (PeerState.GREETING, PeerState.CONNECTING) and now >= p.until
        ]
        for address in overdue:
            self.failed(address, now)
        return overdue

    def connected(self, address: Address) -> Welcome | None:
        """How a connected peer is reached; None for any other."""
        peer = self._peers.get(address)
        return peer.welcome if peer is not None and peer.state is PeerState.CONNECTED else None

    def refusal(self, address: Address) -> RefuseReason | None:
        """Why a peer that is not connected did not welcome this engine, where it said so."""
        peer = self._peers.get(address)
        return peer.refusal if peer is not None else None

    @property
    def connecting(self) -> bool:
        """Whether the workers have connections to make, so that the engine must keep stepping."""
        return any(peer.state is PeerState.CONNECTING for peer in self._peers.values())

    def undecided(self, addresses: Collection[Address]) -> bool:
        """Whether any of them is neither connected nor failed yet."""
        return any(
            (peer := self._peers.get(address)) is None or peer.state in (PeerState.GREETING, PeerState.CONNECTING)
            for address in addresses
        )
