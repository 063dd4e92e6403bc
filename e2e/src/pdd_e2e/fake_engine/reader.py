"""The reader's side of claims: whom to ask, how long to wait, what to read, and what the receipt says.

Everything that goes wrong ends in computing, with an outcome that says why; nothing here raises for a bad claim, a silent
owner or a broken transfer. Leaves blocks in the sequence only after a complete read.
"""

import asyncio
import time
from collections.abc import Sequence

from pdd_e2e.fake_engine.blocks import Block, BlockPool, NoRoomError
from pdd_e2e.fake_engine.claims import (
    Address,
    ClaimOrder,
    Grant,
    Outcome,
    Reason,
    Receipt,
    Refusal,
    best_grant,
    missing_blocks,
)
from pdd_e2e.fake_engine.fabric import Ask, FakeFabric, ReadFailedError
from pdd_e2e.fake_engine.pulse import Pulse
from pdd_e2e.fake_engine.scheduler import Counters
from pdd_e2e.fake_engine.sequence import Sequence as TokenSequence
from pdd_e2e.fake_engine.settings import EngineSettings


class ClaimReader:
    """Claims that one engine incarnation makes."""

    def __init__(
        self,
        pool: BlockPool,
        settings: EngineSettings,
        fabric: FakeFabric,
        address: Address,
        engine_id: str,
        pulse: Pulse,
        counters: Counters,
    ) -> None:
        self._pool = pool
        self._settings = settings
        self._fabric = fabric
        self._address = address
        self._engine_id = engine_id
        self._pulse = pulse
        self._counters = counters
        self._connections: dict[Address, str] = {}
        self._connecting: dict[Address, asyncio.Task[bool]] = {}

    @property
    def connected(self) -> frozenset[Address]:
        """Owners that this engine is connected with, in their present incarnation."""
        return frozenset(address for address in self._connections if self._is_connected(address))

    async def close(self) -> None:
        """Stop connecting."""
        for task in self._connecting.values():
            task.cancel()
        await asyncio.gather(*self._connecting.values(), return_exceptions=True)

    async def introduce(self, order: ClaimOrder, prompt_tokens: int) -> Receipt:
        """Connect with every owner named; returns when all are connected or have failed, or the time is over."""
        tasks = [self._connection(owner) for owner in order.owners]
        if tasks:
            await asyncio.wait(tasks, timeout=self._settings.introduce_timeout_seconds)
        connected = self.connected
        return Receipt(
            Outcome.INTRODUCED, prompt_tokens, connected=tuple(owner for owner in order.owners if owner in connected)
        )

    async def claim(self, order: ClaimOrder, sequence: TokenSequence) -> Receipt:
        """Ask, read, and put what was read into the sequence."""
        size = self._settings.block_size
        hashes = sequence.usable_hashes()
        local = self._pool.longest_run(hashes)
        prompt_tokens, local_tokens = len(sequence.prompt), len(local) * size
        missing = missing_blocks(prompt_tokens, len(local), size)
        if missing == 0 or missing * size < self._settings.threshold_tokens:
            return Receipt(Outcome.LOCAL, prompt_tokens, local_tokens=local_tokens)
        self._counters.external_queries += missing * size
        started = time.monotonic()
        answers = await self._ask(order.owners[: self._settings.max_owners_asked], hashes[len(local) :])
        answer_ms = (time.monotonic() - started) * 1000
        grant = self._choose(answers)
        if grant is None:
            outcome, reason, owner = _nothing_granted(order, answers)
            return Receipt(outcome, prompt_tokens, reason, owner, local_tokens, answer_ms=answer_ms)
        if not self._is_connected(grant.owner):
            self._let_go(grant)
            self._start_connecting(grant.owner)
            return Receipt(Outcome.UNCONNECTED, prompt_tokens, None, grant.owner, local_tokens, answer_ms=answer_ms)
        started = time.monotonic()
        failure = await self._read(grant, sequence, len(local))
        read_ms = (time.monotonic() - started) * 1000
        tokens = 0 if failure else len(grant.block_ids) * size
        return Receipt(
            Outcome.FAILED if failure else Outcome.READ,
            prompt_tokens,
            failure,
            grant.owner,
            local_tokens,
            tokens,
            tokens * self._settings.bytes_per_token,
            answer_ms,
            read_ms,
        )

    async def _ask(self, owners: Sequence[Address], hashes: Sequence[bytes]) -> list[Grant | Refusal]:
        ask = Ask(self._engine_id, self._address, self._settings.group, tuple(hashes))
        tasks = [asyncio.ensure_future(self._fabric.ask(owner, ask)) for owner in owners if owner != self._address]
        if not tasks:
            return []
        try:
            done, pending = await asyncio.wait(tasks, timeout=self._settings.answer_timeout_seconds)
        except asyncio.CancelledError:
            for task in tasks:
                if not task.cancel() and not task.cancelled():
                    self._let_go(task.result())
            raise
        for task in pending:
            task.cancel()
        return [task.result() for task in tasks if task in done]

    def _choose(self, answers: Sequence[Grant | Refusal]) -> Grant | None:
        grants = [answer for answer in answers if isinstance(answer, Grant)]
        best = best_grant(grants, self.connected)
        for grant in grants:
            if grant is not best:
                self._let_go(grant)
        return best

    def _let_go(self, answer: Grant | Refusal) -> None:
        if isinstance(answer, Grant) and (peer := self._fabric.peer_at(answer.owner)) is not None:
            peer.release(answer.claim_id)

    async def _read(self, grant: Grant, sequence: TokenSequence, local_blocks: int) -> Reason | None:
        """Why the read failed, or None; the grant is let go in any case."""
        blocks: list[Block] = []
        try:
            async with asyncio.timeout(self._settings.read_timeout_seconds):
                await self._fetch(grant, sequence, local_blocks, blocks)
        except TimeoutError:
            return Reason.TIMEOUT
        except (ReadFailedError, NoRoomError):
            return Reason.TRANSFER
        else:
            sequence.read_tokens = len(grant.block_ids) * self._settings.block_size
            sequence.blocks, blocks = blocks, []
            return None
        finally:
            self._let_go(grant)
            self._pool.release(blocks)
            self._pulse.notify()

    async def _fetch(self, grant: Grant, sequence: TokenSequence, local_blocks: int, blocks: list[Block]) -> None:
        wanted = len(grant.block_ids)
        hashes = sequence.usable_hashes()
        await self._pulse.wait_until(lambda: self._pool.free >= wanted + local_blocks)
        local = self._pool.longest_run(hashes[:local_blocks])
        if len(local) < local_blocks:
            raise NoRoomError("the local prefix was evicted while owners were asked")
        self._pool.touch(local)
        blocks += local
        fresh = self._pool.allocate(wanted)
        blocks += fresh
        contents = await self._fabric.read(grant.owner, grant.engine_id, grant.block_ids)
        for block, kv, block_hash in zip(fresh, contents, hashes[local_blocks:], strict=False):
            block.overwrite(kv)
            block.computed = True
            self._pool.cache(block, block_hash)
        self._counters.reads += 1
        self._counters.read_bytes += wanted * self._settings.block_size * self._settings.bytes_per_token

    def _is_connected(self, address: Address) -> bool:
        peer = self._fabric.peer_at(address)
        return peer is not None and self._connections.get(address) == peer.engine_id

    def _start_connecting(self, address: Address) -> None:
        self._connection(address).add_done_callback(lambda _: self._pulse.notify())

    def _connection(self, address: Address) -> asyncio.Task[bool]:
        task = self._connecting.get(address)
        if task is None or task.done():
            task = self._connecting[address] = asyncio.ensure_future(self._shake_hands(address))
        return task

    async def _shake_hands(self, address: Address) -> bool:
        peer = self._fabric.peer_at(address)
        if self._is_connected(address):
            return True
        await asyncio.sleep(self._settings.connect_seconds)
        if peer is None or not peer.hello(self._engine_id, self._address, self._settings.group):
            return False
        self._connections[address] = peer.engine_id
        return True


def _nothing_granted(
    order: ClaimOrder, answers: Sequence[Grant | Refusal]
) -> tuple[Outcome, Reason | None, Address | None]:
    """Outcome when no owner has a block for us: an empty answer says more than a refusal, a refusal more than silence."""
    refusals = [answer for answer in answers if isinstance(answer, Refusal)]
    if not order.owners or len(refusals) < len(answers):
        return Outcome.EMPTY, None, None
    if refusals:
        return Outcome.REFUSED, refusals[0].reason, refusals[0].owner
    return Outcome.LATE, None, None
