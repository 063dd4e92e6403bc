"""The reader's side of claims: whom to ask, how long to wait, what to read, and what the receipt says.

Everything that goes wrong ends in computing, with an outcome that says why; nothing here raises for a bad claim, a silent
owner or a broken transfer. Leaves blocks in the sequence only after a complete read.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

from pdd_e2e.fake_engine.blocks import Block, BlockPool, NoRoomError
from pdd_e2e.fake_engine.claims import (
    Address,
    Answer,
    ClaimOrder,
    Grant,
    Outcome,
    Reason,
    Receipt,
    best_grant,
    missing_blocks,
    nothing_granted,
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
        self._refusals: dict[Address, Reason] = {}
        self._connecting: dict[Address, asyncio.Task[None]] = {}

    @property
    def connected(self) -> frozenset[Address]:
        """Owners that this engine believes to be connected with; a replaced one is noticed at its next answer."""
        return frozenset(self._connections)

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
        connected = tuple(owner for owner in order.owners if owner in self._connections)
        return Receipt(Outcome.INTRODUCED, prompt_tokens, connected=connected)

    async def claim(self, order: ClaimOrder, sequence: TokenSequence) -> Receipt:
        """Ask, read, and put what was read into the sequence."""
        size = self._settings.block_size
        hashes = sequence.usable_hashes()
        local = self._pool.longest_run(hashes)
        receipt = Receipt(Outcome.LOCAL, len(sequence.prompt), local_tokens=len(local) * size)
        for owner in order.owners:
            self._greet(owner)
        if not order.owners:
            return replace(receipt, outcome=Outcome.EMPTY)
        if not self._worth(missing_blocks(len(sequence.prompt), len(local), size)):
            return receipt
        owners = [owner for owner in order.owners if owner in self._connections][: self._settings.max_owners_asked]
        if not owners:
            refusals = [self._refusals[owner] for owner in order.owners if owner in self._refusals]
            outcome = Outcome.REFUSED if refusals else Outcome.UNCONNECTED
            return replace(receipt, outcome=outcome, reason=next(iter(refusals), None))
        self._counters.external_queries += (len(hashes) - len(local)) * size
        started = time.monotonic()
        answers = await self._ask(owners, hashes[len(local) :])
        if answers:
            receipt = replace(receipt, answer_ms=(time.monotonic() - started) * 1000)
        grant = best_grant(answers)
        if grant is None:
            outcome, reason = nothing_granted(answers)
            return replace(receipt, outcome=outcome, reason=reason)
        # A read must be over before the owner may let go, by the time at which the question was asked.
        in_time = time.monotonic() - started + self._settings.read_timeout_seconds <= grant.hold_seconds
        if not in_time or not self._worth(len(grant.block_ids)):
            self._let_go(grant)
            return replace(receipt, outcome=Outcome.EMPTY if in_time else Outcome.LATE)
        return await self._read_for(receipt, grant, sequence, len(local))

    async def _read_for(self, receipt: Receipt, grant: Grant, sequence: TokenSequence, local_blocks: int) -> Receipt:
        started = time.monotonic()
        failure = await self._read(grant, sequence, local_blocks)
        if failure is not None:
            return replace(receipt, outcome=Outcome.FAILED, reason=failure)
        tokens = len(grant.block_ids) * self._settings.block_size
        return replace(
            receipt,
            outcome=Outcome.READ,
            owner=grant.owner,
            read_tokens=tokens,
            read_bytes=tokens * self._settings.bytes_per_token,
            read_ms=(time.monotonic() - started) * 1000,
        )

    def _worth(self, blocks: int) -> bool:
        return blocks > 0 and blocks * self._settings.block_size >= self._settings.threshold_tokens

    async def _ask(self, owners: Sequence[Address], hashes: Sequence[bytes]) -> list[Answer]:
        """Answers within the time limit, in the owners' order; a complete grant ends the waiting. All but the best are let go."""
        ask = Ask(self._engine_id, self._address, self._settings.group, tuple(hashes))
        tasks = [asyncio.ensure_future(self._fabric.ask(owner, ask)) for owner in owners]
        deadline = time.monotonic() + self._settings.answer_timeout_seconds
        try:
            while any(not task.done() for task in tasks) and time.monotonic() < deadline:
                waiting = [task for task in tasks if not task.done()]
                await asyncio.wait(waiting, timeout=deadline - time.monotonic(), return_when=asyncio.FIRST_COMPLETED)
                best = best_grant([task.result() for task in tasks if task.done()])
                if best is not None and len(best.block_ids) == len(hashes):
                    break
        except asyncio.CancelledError:
            for task in tasks:
                if not task.cancel():
                    self._let_go(task.result())
            raise
        for task in tasks:
            task.cancel()
        answers = [self._check(owner, task.result()) for owner, task in zip(owners, tasks, strict=True) if task.done()]
        best = best_grant(answers)
        for answer in answers:
            if answer is not best:
                self._let_go(answer)
        return answers

    def _check(self, owner: Address, answer: Answer) -> Answer:
        """The answer, unless it is from another incarnation than the one that we are connected with: then greet again."""
        if answer is None or (isinstance(answer, Grant) and answer.engine_id != self._connections[owner]):
            self._let_go(answer)
            self._connections.pop(owner, None)
            self._greet(owner)
            return None
        return answer

    def _let_go(self, answer: Answer) -> None:
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

    def _greet(self, address: Address) -> None:
        """Connect beside everything else, unless connected or connecting."""
        if address != self._address and address not in self._connections:
            self._connection(address).add_done_callback(lambda _: self._pulse.notify())

    def _connection(self, address: Address) -> asyncio.Task[None]:
        task = self._connecting.get(address)
        if task is None or task.done():
            task = self._connecting[address] = asyncio.ensure_future(self._connect(address))
        return task

    async def _connect(self, address: Address) -> None:
        if address in self._connections:
            return
        try:
            async with asyncio.timeout(self._settings.greeting_seconds):
                peer = await self._fabric.find(address)
        except TimeoutError:
            return
        await asyncio.sleep(self._settings.connect_seconds)
        refusal = peer.hello(self._engine_id, self._address, self._settings.group)
        if refusal is None:
            self._refusals.pop(address, None)
            self._connections[address] = peer.engine_id
        else:
            self._refusals[address] = refusal
