"""10,000 random claims on vLLM's own block pool, while an engine allocates, computes, frees and evicts.

Several readers ask for what they may and may not know, read, let go, die, are replaced, or never come back. Afterwards every reference is where it was,
and no grant named a block that was not filed under the asked hash, or was still being computed.
"""

import random
import threading
from collections.abc import Iterator

import pytest
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import KVCacheBlock, make_block_hash_with_group_id

from pdd_connector.claims.in_flight import InFlightSteps
from pdd_connector.claims.ledger import ClaimLedger, LedgerLimits
from pdd_connector.claims.messages import Ask, Grant, Hello, RefuseReason, Release
from pdd_connector.owner import ClaimOwner, Identity
from pdd_connector.recorder import Recorder

BLOCKS = 120
CLAIMS = 10_000
HOLD_SECONDS = 15.0


class Engine:
    """What an engine does to its pool: requests that allocate, file, compute and free blocks; sometimes nothing fits and old ones are evicted."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.pool = BlockPool(num_gpu_blocks=BLOCKS, enable_caching=True, hash_block_size=32)
        self.in_flight = InFlightSteps()
        self.running: list[list[KVCacheBlock]] = []
        self.chains: list[list[bytes]] = []

    def schedule(self) -> None:
        wanted = self.rng.randint(1, 8)
        if self.pool.get_num_free_blocks() < wanted:
            self.in_flight.scheduled([])
            return
        blocks = self.pool.get_new_blocks(wanted)
        self.chains.append([])
        for block in blocks[: self.rng.randint(1, wanted)]:
            block_hash = self.rng.randbytes(32)
            self.chains[-1].append(block_hash)
            self.pool._insert_block_hash(make_block_hash_with_group_id(block_hash, 0), block, num_tokens=32)
        self.in_flight.scheduled([block.block_id for block in blocks])
        self.running.append(blocks)

    def finish_step(self) -> None:
        if len(self.in_flight):
            self.in_flight.finished()

    def end_request(self) -> None:
        """Finished, aborted or preempted: also while its step is still in flight."""
        if self.running:
            self.pool.free_blocks(reversed(self.running.pop(self.rng.randrange(len(self.running)))))


class World:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.engine = Engine(self.rng)
        self.now = 0.0
        self.recorder = Recorder()
        ledger = ClaimLedger(LedgerLimits(HOLD_SECONDS, max_claims_per_reader=8, max_blocks=BLOCKS // 2), ranks=1)
        self.owner = ClaimOwner(
            Identity("owner", "Decode", "h", 1, 1, "g", lambda: "w"),
            ledger,
            self.engine.in_flight,
            self.engine.pool,
            threading.RLock(),
            lambda: None,
            lambda: None,
            lambda: 0,
            self.recorder,
            lambda: self.now,
        )
        self.readers = {place: f"reader-{place}-0" for place in range(5)}
        self.open: dict[str, tuple[str, list[int]]] = {}
        self.asked = self.granted = 0

    def ask(self) -> None:
        place = self.rng.choice(list(self.readers))
        hashes = [*self.rng.choice(self.engine.chains[-20:] or [[]])]
        if not hashes or self.rng.random() < 0.2:
            hashes.insert(self.rng.randint(0, len(hashes)), self.rng.randbytes(32))
        message = Ask(id=b"i" * 16, reader=self.readers[place], host="h", port=5600 + place, group="g/w", hashes=hashes)
        before = {block.block_id: block.ref_cnt for block in self.engine.pool.blocks}
        answer = self.owner.handle(message)
        self.asked += 1
        if not isinstance(answer, Grant):
            assert answer is not None
            assert getattr(answer, "reason", None) in (RefuseReason.READER_FULL, RefuseReason.OWNER_FULL)
            return
        self._check(hashes, answer, before)
        if answer.claim_id:
            self.granted += 1
            self.open[answer.claim_id] = (self.readers[place], answer.blocks)

    def _check(self, hashes: list[bytes], grant: Grant, before: dict[int, int]) -> None:
        assert len(grant.blocks) <= len(hashes)
        for block_hash, number in zip(hashes, grant.blocks, strict=False):
            block = self.engine.pool.blocks[number]
            assert block.block_hash == make_block_hash_with_group_id(block_hash, 0), "granted what was not asked"
            assert number not in self.engine.in_flight, "granted what is still being computed"
        for block in self.engine.pool.blocks:
            assert block.ref_cnt == before[block.block_id] + grant.blocks.count(block.block_id)

    def end_one(self) -> None:
        if not self.open:
            return
        claim_id, (reader, _) = self.rng.choice(list(self.open.items()))
        how = self.rng.choice(["read", "release", "release by a stranger", "read twice", "die"])
        if how in ("read", "read twice"):
            for _ in range(1 + (how == "read twice")):
                self.owner.read_by_rank(claim_id, 0)
        elif how == "release":
            self.owner.handle(Release(reader=reader, claim_id=claim_id))
        elif how == "release by a stranger":
            self.owner.handle(Release(reader="stranger", claim_id=claim_id))
        else:
            place = int(reader.split("-")[1])
            self.readers[place] = f"reader-{place}-{self.asked}"
            held = self.owner.holding
            self.owner.handle(Hello(id=b"i" * 16, reader=self.readers[place], host="h", port=5600 + place, group="g/w"))
            assert self.owner.holding == held, "nobody's word ends another's claim"

    def settle(self) -> None:
        """Requests end, steps finish, and whoever still holds a claim never comes back."""
        while self.engine.running:
            self.engine.end_request()
        while len(self.engine.in_flight):
            self.engine.finish_step()
        self.now += HOLD_SECONDS
        self.owner.tick()


@pytest.fixture(params=range(2))
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    yield World(request.param)


def test_references_are_back_after_ten_thousand_claims(world: World) -> None:
    actions = (
        [world.ask] * 6
        + [world.end_one] * 5
        + [world.engine.schedule, world.engine.finish_step, world.engine.end_request]
    )
    while world.asked < CLAIMS // 2:
        world.rng.choice(actions)()
        if world.rng.random() < 0.05:
            world.now += world.rng.uniform(0, HOLD_SECONDS)
            world.owner.tick()
    assert world.granted > CLAIMS // 10, "a run that grants nothing proves nothing"
    world.settle()
    assert not world.owner.holding
    assert [block.ref_cnt for block in world.engine.pool.blocks if not block.is_null] == [0] * (BLOCKS - 1)
    assert world.engine.pool.get_num_free_blocks() == BLOCKS - 1
    numbers = world.recorder.take()
    assert numbers is not None
    ended = sum(count for key, count in numbers.items() if key.startswith("pdd:claims_released:"))
    assert ended == numbers["pdd:claims_granted"] == world.granted
    assert {key.rsplit(":")[-1] for key in numbers if key.startswith("pdd:claims_released:")} == {
        "reader",
        "release",
        "timer",
    }
