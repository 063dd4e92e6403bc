"""One incarnation of a fake engine: pool, scheduler, claims and retention put together, as one fabric peer.

It turns a job into a stream of deltas. It knows nothing of HTTP; a killed engine is replaced by a new core.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from pdd_e2e.fake_engine.blocks import BlockPool
from pdd_e2e.fake_engine.claims import Address, Grant, Outcome, Reason, Receipt, Refusal, parse_claim
from pdd_e2e.fake_engine.errors import GenerationFailedError
from pdd_e2e.fake_engine.fabric import Ask, FakeFabric, ReadFailedError
from pdd_e2e.fake_engine.faults import BrokenRead, LateAnswer, RefuseClaim, Script, SlowRead
from pdd_e2e.fake_engine.owner import ClaimOwner
from pdd_e2e.fake_engine.pulse import Pulse
from pdd_e2e.fake_engine.reader import ClaimReader
from pdd_e2e.fake_engine.requests import Job
from pdd_e2e.fake_engine.retain import HandleReader, Retention
from pdd_e2e.fake_engine.scheduler import Counters, Scheduler
from pdd_e2e.fake_engine.sequence import Sampling
from pdd_e2e.fake_engine.sequence import Sequence as TokenSequence
from pdd_e2e.fake_engine.settings import EngineSettings, Mechanism
from pdd_e2e.fake_engine.text import Output, TextStream


@dataclass(slots=True)
class Progress:
    """What a request has come to so far; complete once its deltas have ended.

    `kv_transfer_params` is what the answer carries: a receipt (Claim), a handle (Retain) or nothing.
    """

    cached_tokens: int = 0
    read_tokens: int = 0
    receipt: Receipt | None = None
    kv_transfer_params: dict[str, Any] | None = None
    completion_tokens: int = 0
    fetched: asyncio.Event = field(default_factory=asyncio.Event)


class EngineCore:
    """Pool and all that works on it, under one engine id."""

    def __init__(
        self,
        settings: EngineSettings,
        fabric: FakeFabric,
        address: Address,
        script: Script,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self._engine_id = f"{settings.name}-{uuid4().hex}"
        self.pool = BlockPool(settings.cache_blocks, caching=settings.prefix_caching)
        self.pulse = Pulse()
        self.counters = Counters()
        self._fabric = fabric
        self._address = address
        self._script = script
        self.owner = ClaimOwner(self.pool, settings, address, self._engine_id, clock)
        self.retention = Retention(self.pool, settings, address, self._engine_id, clock)
        self.scheduler = Scheduler(self.pool, settings, self.pulse, self.counters, self.expire)
        self.reader = ClaimReader(self.pool, settings, fabric, address, self._engine_id, self.pulse, self.counters)
        self._handles = HandleReader(self.pool, settings, fabric, self.pulse, self.counters, clock)

    @property
    def engine_id(self) -> str:
        """Incarnation: new with every core."""
        return self._engine_id

    def expire(self) -> None:
        """Let go what has run out of time."""
        self.owner.expire()
        self.retention.expire()

    async def start(self) -> None:
        """Become reachable."""
        self._fabric.join(self._address, self)

    async def stop(self) -> None:
        """Become unreachable and stop connecting."""
        self._fabric.leave(self._address, self)
        await self.reader.close()

    # -- the peer's side -----------------------------------------------------------------------------------------------

    def hello(self, reader: str, reader_address: Address, group: str) -> Reason | None:
        """Accept a reader of our group, or say why not; its predecessor's grants are let go."""
        self.owner.replaced(reader, reader_address)
        self.pulse.notify()
        return None if group == self.settings.group else Reason.GROUP

    def answer(self, ask: Ask) -> tuple[Grant | Refusal, float]:
        """The owner's answer, or what the script says instead."""
        late = self._script.take(LateAnswer)
        delay = late.seconds if late else 0.0
        if refuse := self._script.take(RefuseClaim):
            return Refusal(self._address, refuse.reason), delay
        answer = self.owner.answer(ask)
        # The timer frees the blocks; whoever waits for room must be woken then.
        asyncio.get_running_loop().call_later(self.settings.hold_seconds, self._timer)
        self.pulse.notify()
        return answer, delay

    def _timer(self) -> None:
        self.expire()
        self.pulse.notify()

    def release(self, claim_id: str) -> None:
        """A reader lets a grant go."""
        self.owner.release(claim_id)
        self.pulse.notify()

    def read_delay(self, blocks: int) -> float:
        """Seconds for a transfer of so many blocks; raises `ReadFailedError` if the script breaks it."""
        if self._script.take(BrokenRead):
            raise ReadFailedError("scripted")
        slow = self._script.take(SlowRead)
        self.pulse.notify()
        rate = self.settings.seconds_per_read_token
        return blocks * self.settings.block_size * rate + (slow.seconds if slow else 0.0)

    def contents(self, block_ids: Sequence[int]) -> list[bytes]:
        """What the blocks hold now."""
        return [bytes(self.pool.blocks[block_id].kv) for block_id in block_ids]

    def take_retained(self, request_id: str) -> bool:
        """A handle's reader begins."""
        return self.retention.take(request_id)

    def free_retained(self, request_id: str) -> None:
        """A handle's reader is done."""
        self.retention.free(request_id)
        self.pulse.notify()

    # -- generation ----------------------------------------------------------------------------------------------------

    async def generate(
        self,
        job: Job,
        index: int,
        progress: Progress,
        *,
        forced: tuple[int, ...] | None = None,
        fail_after: int | None = None,
    ) -> AsyncGenerator[Output, None]:
        """Generate choice `index` (prompt * n + choice). Raises `GenerationFailedError` after `fail_after` tokens.

        Closing the iterator aborts: blocks are free when `aclose` returns. Only choice 0 fetches KV from elsewhere; the
        others wait for that and find it in the cache.
        """
        sequence = self._sequence(job, index, forced)
        try:
            await self._fetch_kv(job, index, sequence, progress)
            progress.fetched.set()
            async with self.scheduler.admitted(sequence):
                if index == 0:
                    progress.cached_tokens = _reported_cached(job, sequence)
                async with aclosing(self._decode(job, sequence, fail_after)) as outputs:
                    async for output in outputs:
                        progress.completion_tokens += 1
                        if output.finish_reason and index == 0:
                            self._finish(job, sequence, progress)
                        yield output
        finally:
            progress.fetched.set()
            # A claim's blocks belong to the sequence until it is admitted, and it may never be.
            self.pool.release(sequence.blocks)
            sequence.blocks = []
            self.pulse.notify()

    async def _decode(self, job: Job, sequence: TokenSequence, fail_after: int | None) -> AsyncGenerator[Output, None]:
        text = TextStream(job.stop, job.max_tokens, self.settings.context_tokens - len(sequence.prompt))
        while True:
            if fail_after is not None and sequence.generated >= fail_after:
                raise GenerationFailedError
            token, rivals = await self.scheduler.step(sequence)
            output = text.feed(token, rivals)
            yield output
            if output.finish_reason:
                return

    def _sequence(self, job: Job, index: int, forced: tuple[int, ...] | None) -> TokenSequence:
        seed = (job.seed or 0) + index
        sampling = Sampling(job.max_tokens, job.temperature, seed % 2**63, job.min_tokens, job.ignore_eos, forced)
        return TokenSequence(job.prompts[index // job.n], self.settings.block_size, sampling, job.salt)

    async def _fetch_kv(self, job: Job, index: int, sequence: TokenSequence, progress: Progress) -> None:
        if index:
            await progress.fetched.wait()
            return
        async with self.scheduler.fetching():
            if self.settings.mechanism is Mechanism.RETAIN:
                progress.read_tokens = await self._handles.read(job.kv_transfer_params, sequence)
                return
            sequence.receipt = progress.receipt = await self._claim(job.kv_transfer_params, sequence)
        if progress.receipt is not None:
            progress.read_tokens = progress.receipt.read_tokens
            progress.kv_transfer_params = {"claim": progress.receipt.as_json()}

    async def _claim(self, params: Mapping[str, Any], sequence: TokenSequence) -> Receipt | None:
        order = parse_claim(params)
        if order is None:
            return None
        if isinstance(order, Reason):
            return Receipt(Outcome.REFUSED, len(sequence.prompt), order)
        if order.introduce:
            return await self.reader.introduce(order, len(sequence.prompt))
        return await self.reader.claim(order, sequence)

    def _finish(self, job: Job, sequence: TokenSequence, progress: Progress) -> None:
        if self.settings.mechanism is Mechanism.RETAIN:
            handle = self.retention.finish(sequence, f"req-{uuid4().hex}", job.kv_transfer_params)
            progress.kv_transfer_params = handle


def _reported_cached(job: Job, sequence: TokenSequence) -> int:
    """Cached tokens as usage shows them: upstream's decode reports what prefill found in its cache."""
    reported = job.kv_transfer_params.get("remote_prefill_cached_tokens")
    if job.kv_transfer_params.get("do_remote_prefill") and isinstance(reported, int):
        return reported
    return sequence.cached_tokens or 0
