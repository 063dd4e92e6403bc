"""The fake's scheduler: admission, prefill, decode, preemption and release of sequences.

First come, first served; a sequence waits until there is a place in the batch and room for all its tokens; one that
cannot grow gives all its blocks back and starts over. A step that has begun always ends, also when its request is
aborted, so a block whose hash is visible is computed in the end. What a sequence brings along (blocks that a claim read)
counts as computed. Knows nothing of HTTP and claims.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from pdd_e2e.fake_engine.blocks import BlockPool
from pdd_e2e.fake_engine.model import Candidate
from pdd_e2e.fake_engine.pulse import Pulse
from pdd_e2e.fake_engine.sequence import Sequence as TokenSequence
from pdd_e2e.fake_engine.settings import EngineSettings


@dataclass(slots=True)
class Counters:
    """What /metrics counts, since start."""

    prefix_queries: int = 0
    prefix_hits: int = 0
    external_queries: int = 0
    external_hits: int = 0
    computed_prompt_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    reads: int = 0
    read_bytes: int = 0
    finished: int = 0


class Scheduler:
    """Sequences of one engine incarnation on one pool. `expire` frees what has run out before room is judged."""

    def __init__(
        self, pool: BlockPool, settings: EngineSettings, pulse: Pulse, counters: Counters, expire: Callable[[], None]
    ) -> None:
        self._pool = pool
        self._settings = settings
        self._pulse = pulse
        self._counters = counters
        self._expire = expire
        self._queue: deque[TokenSequence] = deque()
        self._running: list[TokenSequence] = []
        self._fetching = 0

    @property
    def running(self) -> int:
        """Sequences in the batch."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Sequences in the queue, and those whose KV is being asked for or read."""
        return len(self._queue) + self._fetching

    @asynccontextmanager
    async def fetching(self) -> AsyncIterator[None]:
        """Count a sequence as waiting while a claim is made for it."""
        self._fetching += 1
        self._pulse.notify()
        try:
            yield
        finally:
            self._fetching -= 1
            self._pulse.notify()

    @asynccontextmanager
    async def admitted(self, sequence: TokenSequence) -> AsyncIterator[None]:
        """Wait for a place, run the body with the sequence in the batch, and give back everything at its end."""
        try:
            await self._admit(sequence)
            yield
            self._counters.finished += 1
        finally:
            self._leave(sequence)

    async def step(self, sequence: TokenSequence) -> tuple[Candidate, Sequence[Candidate]]:
        """Compute what is not computed yet and generate one token; returns it with its rivals."""
        await self._grow(sequence)
        await self._compute(sequence)
        token, rivals = sequence.next_token()
        sequence.tokens.append(token.token)
        self._counters.generated_tokens += 1
        return token, rivals

    async def _admit(self, sequence: TokenSequence) -> None:
        # Blocks that wait in the queue are room that nobody else has: their sequences go first.
        if sequence.blocks:
            self._queue.appendleft(sequence)
        else:
            self._queue.append(sequence)
        self._pulse.notify()
        try:
            await self._pulse.wait_until(lambda: self._queue[0] is sequence and self._has_room(sequence))
        finally:
            self._queue.remove(sequence)
            self._pulse.notify()
        hits = self._pool.longest_run(sequence.usable_hashes()[len(sequence.blocks) :])
        local = len(hits)
        if sequence.cached_tokens is None:
            self._count_prompt(sequence, local)
        self._pool.touch(hits)
        sequence.blocks += hits
        sequence.computed = len(sequence.blocks) * self._settings.block_size
        sequence.blocks += self._pool.allocate(sequence.blocks_needed() - len(sequence.blocks))
        self._running.append(sequence)

    def _count_prompt(self, sequence: TokenSequence, hits: int) -> None:
        size = self._settings.block_size
        sequence.cached_tokens = (len(sequence.blocks) + hits) * size
        self._counters.prefix_queries += len(sequence.prompt)
        self._counters.prefix_hits += sequence.cached_tokens - sequence.read_tokens
        self._counters.external_hits += sequence.read_tokens

    def _has_room(self, sequence: TokenSequence) -> bool:
        self._expire()
        hits = self._pool.longest_run(sequence.usable_hashes()[len(sequence.blocks) :])
        referenced = sum(block.references > 0 for block in hits)
        needed = sequence.blocks_needed() - len(sequence.blocks) - referenced
        if self._pool.free < needed and not self._running:
            self._take_back(sequence)
        return len(self._running) < self._settings.max_running and self._pool.free >= needed

    def _take_back(self, sequence: TokenSequence) -> None:
        """Nothing runs and the first in the queue does not fit: the others give up what they have read."""
        for other in self._queue:
            if other is not sequence:
                self._pool.release(other.blocks)
                other.blocks, other.read_tokens = [], 0

    async def _grow(self, sequence: TokenSequence) -> None:
        if len(sequence.blocks) == sequence.blocks_needed():
            return
        if self._pool.free:
            sequence.blocks += self._pool.allocate(1)
            return
        self._counters.preemptions += 1
        self._leave(sequence)
        await self._admit(sequence)

    async def _compute(self, sequence: TokenSequence) -> None:
        reused = sequence.blocks[: sequence.computed // self._settings.block_size]
        await self._pulse.wait_until(lambda: all(block.computed for block in reused))
        missing = len(sequence.tokens) - sequence.computed
        decoding = missing == 1 and sequence.generated > 0
        for block, block_hash in zip(
            sequence.blocks, sequence.hashes(len(sequence.tokens) // self._settings.block_size), strict=False
        ):
            self._pool.cache(block, block_hash)
        self._pulse.notify()
        rate = self._settings.seconds_per_output_token if decoding else self._settings.seconds_per_prompt_token
        try:
            await asyncio.sleep(missing * rate)
        finally:
            sequence.write()
            if not decoding:
                self._counters.computed_prompt_tokens += missing
            self._pulse.notify()

    def _leave(self, sequence: TokenSequence) -> None:
        if sequence in self._running:
            self._running.remove(sequence)
        self._pool.release(sequence.blocks)
        sequence.blocks, sequence.computed = [], 0
        self._pulse.notify()
