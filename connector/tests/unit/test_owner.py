"""An owner's answers, against a pool that counts references."""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from pdd_connector.claims.in_flight import InFlightSteps
from pdd_connector.claims.ledger import ClaimLedger, LedgerLimits
from pdd_connector.claims.messages import Ask, Grant, Hello, Refuse, RefuseReason, Release, Welcome
from pdd_connector.owner import CLAIM_PREFIX, ClaimOwner, Identity
from pdd_connector.recorder import Recorder

HASHES = [bytes([n]) * 32 for n in range(10)]
ME = Identity("owner", "Decode", "10.0.0.2", 5601, 1, "g", lambda: "w1")


@dataclass
class FakeBlock:
    block_id: int
    ref_cnt: int = 0


class FakePool:
    def __init__(self, lock: threading.RLock) -> None:
        self.blocks: Sequence[FakeBlock] = [FakeBlock(number) for number in range(20)]
        self.cached = {block_hash: self.blocks[number + 1] for number, block_hash in enumerate(HASHES)}
        self._lock = lock

    def get_cached_block(self, block_hash: Any, kv_cache_group_ids: list[int]) -> list[FakeBlock] | None:
        self._must_be_locked()
        found = self.cached.get(block_hash)
        return [found] if found else None

    def touch(self, blocks: Sequence[FakeBlock]) -> None:
        self._must_be_locked()
        for block in blocks:
            block.ref_cnt += 1

    def free_blocks(self, ordered_blocks: Iterable[FakeBlock]) -> None:
        self._must_be_locked()
        for block in ordered_blocks:
            block.ref_cnt -= 1
            assert block.ref_cnt >= 0

    def _must_be_locked(self) -> None:
        def taken_by_another() -> None:
            self._free = self._lock.acquire(blocking=False)

        thread = threading.Thread(target=taken_by_another)
        thread.start()
        thread.join()
        assert not self._free, "the block pool is used without the engine's lock"


class Setup:
    def __init__(self, hold_seconds: float = 15, claims: int = 4, blocks: int = 100) -> None:
        self.lock = threading.RLock()
        self.pool = FakePool(self.lock)
        self.in_flight = InFlightSteps()
        self.unavailable: RefuseReason | None = None
        self.now = 0.0
        self.wakes = 0
        self.recorder = Recorder()
        ledger = ClaimLedger(LedgerLimits(hold_seconds, claims, blocks), ranks=1)
        self.owner = ClaimOwner(
            ME,
            ledger,
            self.in_flight,
            self.pool,
            self.lock,
            lambda: self.unavailable,
            self._wake,
            lambda: 3,
            self.recorder,
            lambda: self.now,
        )

    def _wake(self) -> None:
        self.wakes += 1

    def ask(
        self,
        *hashes: bytes,
        reader: str = "reader",
        group: str = "g/w1",
        version: int = 1,
        port: int = 5600,
        host: str = "10.0.0.1",
    ) -> Any:
        return self.owner.handle(
            Ask(
                version=version,
                id=b"i" * 16,
                reader=reader,
                host=host,
                port=port,
                group=group,
                hashes=list(hashes),
            )
        )

    @property
    def references(self) -> int:
        return sum(block.ref_cnt for block in self.pool.blocks)


def test_a_grant_references_what_it_names_and_wakes_the_engine() -> None:
    setup = Setup()
    grant = setup.ask(*HASHES[:3], b"x" * 32, HASHES[4])
    assert isinstance(grant, Grant)
    assert grant.blocks == [1, 2, 3]
    assert grant.claim_id.startswith(CLAIM_PREFIX)
    assert grant.registration == 3
    assert [setup.pool.blocks[n].ref_cnt for n in range(6)] == [0, 1, 1, 1, 0, 0]
    assert setup.owner.holding
    assert setup.wakes == 1, "an idle engine must step to see the completion notice"


def test_nothing_held_grants_nothing_and_holds_nothing() -> None:
    setup = Setup()
    grant = setup.ask(b"x" * 32)
    assert (grant.blocks, grant.claim_id) == ([], "")
    assert not setup.owner.holding


def test_a_block_under_computation_is_not_lent() -> None:
    setup = Setup()
    setup.in_flight.scheduled([2])
    assert setup.ask(*HASHES[:3]).blocks == [1]
    setup.in_flight.finished()
    assert setup.ask(*HASHES[:3]).blocks == [1, 2, 3]


@pytest.mark.parametrize("way", ["read", "release", "timer", "shutdown"])
def test_every_way_a_claim_ends_returns_its_references_once(way: str) -> None:
    setup = Setup()
    claim = setup.ask(*HASHES[:3]).claim_id
    for _ in range(2):
        if way == "read":
            setup.owner.read_by_rank(claim, 0)
        elif way == "release":
            setup.owner.handle(Release(reader="reader", claim_id=claim))
        elif way == "timer":
            setup.now = 15
            setup.owner.tick()
        else:
            setup.owner.close()
        assert setup.references == 0
        assert not setup.owner.holding
    by = {"read": "reader"}.get(way, way)
    numbers = setup.recorder.take()
    assert numbers is not None
    assert numbers[f"pdd:claims_released:{by}"] == 1


def test_another_readers_release_does_nothing() -> None:
    setup = Setup()
    claim = setup.ask(*HASHES[:3]).claim_id
    setup.owner.handle(Release(reader="thief", claim_id=claim))
    assert setup.references == 3


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"group": "other/w1"}, RefuseReason.GROUP),
        ({"group": "g/w2"}, RefuseReason.GROUP),
        ({"version": 2}, RefuseReason.VERSION),
        ({"host": "localhost"}, RefuseReason.PLACE),
        ({"host": "127.0.0.7"}, RefuseReason.PLACE),
        ({"host": "0.0.0.0"}, RefuseReason.PLACE),  # noqa: S104  # refused
        ({"host": "::"}, RefuseReason.PLACE),
        ({"host": "::ffff:127.0.0.1"}, RefuseReason.PLACE),
        ({"host": "LocalHost.localdomain"}, RefuseReason.PLACE),
    ],
)
def test_strangers_are_refused(change: dict[str, Any], reason: RefuseReason) -> None:
    setup = Setup()
    refusal = setup.ask(*HASHES[:3], **change)
    assert isinstance(refusal, Refuse)
    assert refusal.reason is reason
    assert setup.references == 0


@pytest.mark.parametrize("reason", [RefuseReason.STOPPING, RefuseReason.ASLEEP])
def test_an_engine_that_stops_or_sleeps_lends_nothing(reason: RefuseReason) -> None:
    setup = Setup()
    setup.unavailable = reason
    assert setup.ask(*HASHES[:3]).reason is reason
    assert setup.references == 0


def test_another_engine_with_the_same_address_ends_nothing() -> None:
    """Whoever reads counts on what it was promised, whatever somebody else says of the place where it runs."""
    setup = Setup()
    setup.ask(*HASHES[:3])
    setup.owner.handle(Hello(id=b"i" * 16, reader="successor", host="10.0.0.1", port=5600, group="g/w1"))
    setup.ask(HASHES[3], reader="successor")
    assert setup.references == 4


def test_one_block_asked_for_many_times_is_lent_once() -> None:
    setup = Setup()
    assert len(setup.ask(*HASHES[:2], *[HASHES[0]] * 90).blocks) == 2


def test_limits_refuse_and_shorten() -> None:
    setup = Setup(claims=2, blocks=5)
    assert len(setup.ask(*HASHES[:3]).blocks) == 3
    assert len(setup.ask(*HASHES[:3]).blocks) == 2, "only so much is left to lend"
    assert setup.ask(*HASHES[:3]).reason is RefuseReason.READER_FULL
    assert setup.ask(*HASHES[:3], reader="other", port=5700).reason is RefuseReason.OWNER_FULL


def test_a_hello_is_welcomed() -> None:
    welcome = Setup().owner.handle(Hello(id=b"i" * 16, reader="r", host="h", port=1, group="g/w1"))
    assert welcome == Welcome(id=b"i" * 16, engine_id="owner", role="Decode", host="10.0.0.2", port=5601, tp_size=1)


def test_a_reader_is_told_a_little_less_than_the_claim_is_held() -> None:
    grant = Setup(hold_seconds=15).ask(*HASHES[:3])
    assert 14 < grant.hold_seconds < 15


def test_an_engine_that_begins_to_sleep_between_question_and_lock_lends_nothing() -> None:
    setup = Setup()
    states = iter([None, RefuseReason.ASLEEP])
    setup.owner._unavailable = lambda: next(states)
    assert setup.ask(*HASHES[:3]).reason is RefuseReason.ASLEEP
    assert setup.references == 0
