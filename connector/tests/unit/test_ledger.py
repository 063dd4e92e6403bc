"""The owner's book: every claim ends exactly once, limits hold, nothing is granted that was not asked."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pdd_connector.claims.ledger import ClaimLedger, LedgerLimits, longest_run
from pdd_connector.claims.messages import RefuseReason

HASHES = [bytes([n]) * 32 for n in range(40)]


def ledger(hold_seconds: float = 10.0, claims: int = 2, blocks: int = 8, ranks: int = 1) -> ClaimLedger:
    return ClaimLedger(LedgerLimits(hold_seconds, claims, blocks), ranks)


def test_a_run_ends_at_the_first_block_that_is_not_held() -> None:
    held = {HASHES[0]: 7, HASHES[1]: 3, HASHES[3]: 9}
    assert longest_run(HASHES[:4], held.get, set(), 10) == [7, 3]


def test_a_run_ends_at_a_block_that_is_being_computed() -> None:
    held = {HASHES[0]: 7, HASHES[1]: 3, HASHES[2]: 9}
    assert longest_run(HASHES[:3], held.get, {3}, 10) == [7]
    assert longest_run(HASHES[:3], held.get, set(), 10) == [7, 3, 9]


@given(
    st.lists(st.sampled_from(HASHES), max_size=20),
    st.dictionaries(st.sampled_from(HASHES), st.integers(0, 99)),
    st.integers(0, 12),
)
def test_a_run_is_a_prefix_of_what_was_asked(asked: list[bytes], held: dict[bytes, int], limit: int) -> None:
    run = longest_run(asked, held.get, set(), limit)
    assert len(run) <= limit
    assert run == [held[block_hash] for block_hash in asked[: len(run)]]


def test_a_reader_is_bounded_and_others_are_not_its_victims() -> None:
    book = ledger(claims=2)
    book.open("a", "greedy", [1], now=0)
    book.open("b", "greedy", [2], now=0)
    assert book.room_for("greedy") is RefuseReason.READER_FULL
    assert book.room_for("modest") == 6


def test_what_is_lent_in_all_is_bounded() -> None:
    book = ledger(blocks=3)
    book.open("a", "r", [1, 2, 3], now=0)
    assert book.room_for("other") is RefuseReason.OWNER_FULL
    book.release("a", "r")
    assert book.room_for("other") == 3


def test_a_claim_is_read_when_every_rank_says_so() -> None:
    book = ledger(ranks=2)
    book.open("a", "r", [1, 2], now=0)
    assert book.read_by_rank("a", 0) is None
    assert book.read_by_rank("a", 0) is None, "the same rank twice is not two ranks"
    claim = book.read_by_rank("a", 1)
    assert claim is not None
    assert claim.blocks == (1, 2)
    assert book.read_by_rank("a", 1) is None


def test_only_its_reader_releases_a_claim() -> None:
    book = ledger()
    book.open("a", "r", [1], now=0)
    assert book.release("a", "somebody else") is None
    assert book.release("a", "r") is not None


def test_a_claim_expires_at_its_deadline_and_not_before() -> None:
    book = ledger(hold_seconds=10)
    book.open("a", "r", [1], now=5)
    assert book.expire(14.9) == []
    assert [claim.claim_id for claim in book.expire(15.0)] == ["a"]


def test_an_id_is_used_once() -> None:
    book = ledger()
    book.open("a", "r", [1], now=0)
    with pytest.raises(ValueError, match="open already"):
        book.open("a", "r", [2], now=0)


class Book(RuleBasedStateMachine):
    """Whatever happens in whatever order: references lent = references returned + references of open claims."""

    def __init__(self) -> None:
        super().__init__()
        self.book = ledger(hold_seconds=5, claims=3, blocks=20, ranks=2)
        self.lent: dict[str, tuple[int, ...]] = {}
        self.returned: set[str] = set()
        self.now = 0.0
        self.next = 0

    def _back(self, *claims: object) -> None:
        for claim in claims:
            if claim is not None:
                claim_id = claim.claim_id  # type: ignore[attr-defined]  # Claim
                assert claim_id in self.lent, "never lent"
                assert claim_id not in self.returned, "returned twice"
                self.returned.add(claim_id)

    @rule(reader=st.sampled_from("abc"), wanted=st.integers(1, 9))
    def lend(self, reader: str, wanted: int) -> None:
        room = self.book.room_for(reader)
        if isinstance(room, int):
            blocks = tuple(range(min(room, wanted)))
            self.next += 1
            self.lent[str(self.next)] = blocks
            self.book.open(str(self.next), reader, blocks, self.now)

    @rule(number=st.integers(1, 40), rank=st.integers(0, 1))
    def read(self, number: int, rank: int) -> None:
        self._back(self.book.read_by_rank(str(number), rank))

    @rule(number=st.integers(1, 40), reader=st.sampled_from("abc"))
    def release(self, number: int, reader: str) -> None:
        self._back(self.book.release(str(number), reader))

    @rule(seconds=st.floats(0, 3))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self._back(*self.book.expire(self.now))

    @invariant()
    def books_balance(self) -> None:
        open_claims = self.lent.keys() - self.returned
        assert self.book.held_claims == len(open_claims)
        assert self.book.held_blocks == sum(len(self.lent[claim]) for claim in open_claims) <= 20

    def teardown(self) -> None:
        self._back(*self.book.close())
        assert self.returned == self.lent.keys()


TestBook = Book.TestCase
