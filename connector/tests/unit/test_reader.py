"""A reader's life with a channel that the test plays: every grant is read or released, whatever happens to its request."""

import queue
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pdd_connector.channel import Arrival
from pdd_connector.claims.messages import Ask, Grant, Hello, Refuse, RefuseReason, Release, ToOwner, Welcome
from pdd_connector.claims.params import Address, Outcome, Receipt
from pdd_connector.claims.peers import PeerBook
from pdd_connector.owner import Identity
from pdd_connector.reader import ClaimReader, Read, ReaderLimits
from pdd_connector.recorder import Recorder

BLOCK = 32
ME = Identity("me", "Prefill", "10.0.0.1", 5600, 1, "g", lambda: "w")
OWNERS = [Address(host=f"10.0.0.{n}", port=6600) for n in range(2, 7)]
HASHES = [bytes([n]) * 32 for n in range(20)]
LIMITS = ReaderLimits(threshold_tokens=64, answer_seconds=0.15, read_seconds=2, connect_seconds=30, max_owners_asked=3)


class Bench:
    """A reader, its channel, and a clock."""

    def __init__(self) -> None:
        self.arrivals: queue.SimpleQueue[Arrival] = queue.SimpleQueue()
        self.sent: list[tuple[Address, ToOwner]] = []
        self.now = 100.0
        self.peers = PeerBook(30, 5)
        self.reader = ClaimReader(ME, LIMITS, self, self.peers, BLOCK, 1000, Recorder(), lambda: self.now)

    def send(self, address: Address, message: ToOwner) -> None:
        self.sent.append((address, message))

    def connect(self, *owners: Address) -> None:
        for owner in owners:
            self.reader.matched_tokens(f"intro-{owner.port}-{owner.host}", params(owner, introduce=True), 1, [], 0)
            hello = next(m for a, m in self.sent if a == owner and isinstance(m, Hello))
            self.answer(
                owner,
                Welcome(
                    id=hello.id, engine_id=f"at-{owner.host}", role="Decode", host=owner.host, port=5600, tp_size=1
                ),
            )
        self.reader.pump()
        self.peers.take_orders()
        self.peers.workers_connected({f"at-{owner.host}" for owner in OWNERS})
        for owner in owners:
            self.reader.matched_tokens(f"intro-{owner.port}-{owner.host}", params(owner, introduce=True), 1, [], 0)
            self.reader.request_ended(f"intro-{owner.port}-{owner.host}")
        self.sent.clear()

    def answer(self, address: Address, answer: Any, after: float = 0.0) -> None:
        self.arrivals.put(
            Arrival(address, answer.id if answer is not None else self.ask().id, answer, self.now + after)
        )

    def ask(self) -> Ask:
        return [m for _, m in self.sent if isinstance(m, Ask)][-1]

    def grant(self, owner: Address, blocks: int, claim_id: str = "", engine_id: str = "") -> Grant:
        ask = self.ask()
        ids = list(range(500, 500 + blocks))
        claim = (claim_id or f"claim-{owner.host}") if blocks else ""
        return Grant(
            id=ask.id,
            engine_id=engine_id or f"at-{owner.host}",
            blocks=ids,
            claim_id=claim,
            hold_seconds=15 if blocks else 0,
        )

    def matched(self, request: str = "r", local: int = 0, prompt: int = 330, owners: Any = OWNERS[:1]) -> int | None:
        return self.reader.matched_tokens(request, params(*owners), prompt, HASHES[: prompt // BLOCK], local)

    def released(self) -> list[str]:
        return [m.claim_id for _, m in self.sent if isinstance(m, Release)]


def params(*owners: Address, introduce: bool = False) -> dict[str, Any]:
    entry: dict[str, Any] = {"version": 1, "owners": [{"host": o.host, "port": o.port} for o in owners]}
    return {"claim": entry | ({"introduce": True} if introduce else {})}


def receipt(bench: Bench, request: str = "r") -> Receipt:
    result = bench.reader.request_ended(request)
    assert result is not None
    return result


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    bench.connect(*OWNERS[:4])
    yield bench


def test_a_read_from_question_to_receipt(bench: Bench) -> None:
    assert bench.matched(local=64) is None
    assert bench.ask().hashes == HASHES[2:10], "all full blocks behind the local ones, one token left to compute"
    bench.answer(OWNERS[0], bench.grant(OWNERS[0], 8), after=0.01)
    assert bench.matched(local=64) == 256
    bench.reader.allocated("r", list(range(30, 41)), 256)
    (read,) = bench.reader.take_reads()
    assert read.remote_blocks == tuple(range(500, 508))
    assert read.local_blocks == tuple(range(32, 40)), "block by block at the place where the local prefix ends"
    assert read.give_up_at == pytest.approx(bench.now + 2)
    assert read.proven_until == pytest.approx(bench.now + 15)
    bench.now += 0.05
    bench.reader.read_ended("r", None)
    got = receipt(bench)
    assert (got.outcome, got.owner, got.read_tokens, got.read_bytes) == (Outcome.READ, OWNERS[0], 256, 8000)
    assert got.local_tokens == 64
    assert got.answer_ms == pytest.approx(10)
    assert got.read_ms == pytest.approx(50)
    assert bench.released() == [], "a claim that was read ends by its completion notice"


def test_nothing_is_asked_that_is_cheaper_to_compute(bench: Bench) -> None:
    assert bench.matched(local=288, prompt=330) == 0
    assert receipt(bench).outcome is Outcome.LOCAL
    assert bench.sent == []


def test_at_most_so_many_owners_are_asked_and_each_once(bench: Bench) -> None:
    bench.matched(owners=[OWNERS[0], OWNERS[0], *OWNERS[1:4]])
    assert [address for address, message in bench.sent if isinstance(message, Ask)] == OWNERS[:3]


def test_the_best_answer_wins_and_the_others_are_let_go(bench: Bench) -> None:
    bench.matched(owners=OWNERS[:3])
    bench.answer(OWNERS[0], bench.grant(OWNERS[0], 4))
    bench.answer(OWNERS[1], bench.grant(OWNERS[1], 10))
    assert bench.matched(owners=OWNERS[:3]) == 320
    assert bench.released() == [f"claim-{OWNERS[0].host}"]
    bench.answer(OWNERS[2], bench.grant(OWNERS[2], 10))
    bench.reader.pump()
    assert bench.released()[1:] == [f"claim-{OWNERS[2].host}"], "an answer after the verdict is let go too"


def test_an_answer_that_arrives_late_is_let_go_and_computed(bench: Bench) -> None:
    bench.matched()
    bench.answer(OWNERS[0], bench.grant(OWNERS[0], 10), after=0.2)
    bench.now += 0.3
    assert bench.matched() == 0
    assert receipt(bench).outcome is Outcome.LATE
    assert bench.released() == [f"claim-{OWNERS[0].host}"]


def test_an_answer_in_time_counts_although_the_engine_was_busy_when_it_came(bench: Bench) -> None:
    bench.matched()
    bench.answer(OWNERS[0], bench.grant(OWNERS[0], 10), after=0.1)
    bench.now += 8  # a long step
    assert bench.matched() == 320


def test_a_grant_that_is_nearly_over_is_let_go(bench: Bench) -> None:
    bench.matched()
    bench.answer(OWNERS[0], bench.grant(OWNERS[0], 10))
    assert bench.matched() == 320
    bench.now += 14  # there was no room for so long
    assert bench.matched() == 0
    assert bench.released() == [f"claim-{OWNERS[0].host}"]
    assert receipt(bench).outcome is Outcome.LATE


def test_a_grant_behind_an_evicted_prefix_is_let_go(bench: Bench) -> None:
    bench.matched(local=64)
    bench.answer(OWNERS[0], bench.grant(OWNERS[0], 8))
    assert bench.matched(local=0) == 0
    assert bench.released() == [f"claim-{OWNERS[0].host}"]


def test_a_grant_is_let_go_when_the_scheduler_does_not_load(bench: Bench) -> None:
    bench.matched()
    bench.answer(OWNERS[0], bench.grant(OWNERS[0], 10))
    assert bench.matched() == 320
    bench.reader.allocated("r", list(range(11)), 0)
    assert bench.reader.take_reads() == []
    assert bench.released() == [f"claim-{OWNERS[0].host}"]


@pytest.mark.parametrize("when", ["asked", "answered", "decided"])
def test_an_aborted_request_lets_its_grant_go(bench: Bench, when: str) -> None:
    bench.matched()
    if when != "asked":
        bench.answer(OWNERS[0], bench.grant(OWNERS[0], 10))
    if when == "decided":
        assert bench.matched() == 320
    bench.reader.pump()
    bench.reader.request_ended("r")
    if when == "asked":
        bench.answer(OWNERS[0], bench.grant(OWNERS[0], 10))
        bench.reader.pump()
    assert bench.released() == [f"claim-{OWNERS[0].host}"]


def test_a_request_aborted_while_it_is_read_keeps_its_blocks_known_until_the_read_ends(bench: Bench) -> None:
    bench.matched()
    bench.answer(OWNERS[0], bench.grant(OWNERS[0], 10))
    bench.matched()
    bench.reader.allocated("r", list(range(11)), 320)
    bench.reader.request_ended("r")
    assert isinstance(bench.reader.reading("r"), Read)
    assert bench.reader.busy
    bench.reader.read_ended("r", None)
    assert bench.reader.reading("r") is None


def test_a_failed_read_is_computed_and_the_owner_told(bench: Bench) -> None:
    bench.matched()
    bench.answer(OWNERS[0], bench.grant(OWNERS[0], 10))
    bench.matched()
    bench.reader.allocated("r", list(range(11)), 320)
    bench.reader.read_ended("r", "Timeout")
    assert bench.matched() == 0, "asked once"
    got = receipt(bench)
    assert (got.outcome, got.reason, got.read_tokens, got.owner) == (Outcome.FAILED, "Timeout", 0, None)
    assert bench.released() == [f"claim-{OWNERS[0].host}"]


def test_an_unconnected_owner_is_greeted_not_asked(bench: Bench) -> None:
    assert bench.matched(owners=OWNERS[4:5]) == 0
    assert receipt(bench).outcome is Outcome.UNCONNECTED
    assert [type(message) for _, message in bench.sent] == [Hello]


@pytest.mark.parametrize("reason", [RefuseReason.GROUP, RefuseReason.PLACE])
def test_an_owner_that_refused_the_greeting_is_why_nothing_is_read(
    bench: Bench, reason: RefuseReason, caplog: pytest.LogCaptureFixture
) -> None:
    """Else a pair that can never be connected would look like one that is about to be."""
    refusing, silent = OWNERS[4], Address(host="10.0.0.99", port=6600)
    bench.matched("first", owners=[silent, refusing])
    assert receipt(bench, "first").outcome is Outcome.UNCONNECTED
    for _ in range(2):
        hello = next(m for a, m in reversed(bench.sent) if a == refusing and isinstance(m, Hello))
        bench.answer(refusing, Refuse(id=hello.id, reason=reason, message="of another kind"))
        assert bench.matched("second", owners=[silent, refusing]) == 0
        got = receipt(bench, "second")
        assert (got.outcome, got.reason, got.read_tokens) == (Outcome.REFUSED, reason.value, 0)
        bench.now += 6
        bench.matched("third", owners=[refusing])  # greets again
        assert receipt(bench, "third").reason == reason.value
    assert [record.message for record in caplog.records if "refuses" in record.message] == [
        f"The engine at {refusing.host}:{refusing.port} refuses: of another kind ({reason.value})"
    ]


def test_a_grant_of_another_engine_at_the_place_is_not_used(bench: Bench) -> None:
    bench.matched()
    bench.answer(OWNERS[0], bench.grant(OWNERS[0], 10, engine_id="restarted"))
    assert bench.matched() == 0
    assert receipt(bench).outcome is Outcome.UNCONNECTED
    assert bench.released() == [f"claim-{OWNERS[0].host}"]
    assert any(isinstance(message, Hello) for _, message in bench.sent), "the new engine is greeted at once"


@pytest.mark.parametrize("what", ["lost", "replaced"])
def test_a_grant_whose_owner_is_gone_by_the_time_there_is_room_is_not_offered(bench: Bench, what: str) -> None:
    bench.matched()
    bench.answer(OWNERS[0], bench.grant(OWNERS[0], 10))
    assert bench.matched() == 320
    bench.peers.forget(OWNERS[0])
    if what == "replaced":
        bench.peers.greet(OWNERS[0], bench.now)
        bench.peers.welcomed(
            OWNERS[0], Welcome(id=b"i" * 16, engine_id="e2", role="Decode", host="h", port=1, tp_size=1)
        )
        bench.peers.workers_connected({"e2"})
    assert bench.matched() == 0, "blocks of these numbers on another engine are other blocks"
    assert receipt(bench).outcome is Outcome.UNCONNECTED
    assert bench.released() == [f"claim-{OWNERS[0].host}"]


def test_a_read_that_was_offered_is_queued_even_if_the_owner_is_lost_meanwhile(bench: Bench) -> None:
    """The scheduler has parked the request until its read ends: one that is not queued would never end."""
    bench.matched()
    bench.answer(OWNERS[0], bench.grant(OWNERS[0], 10))
    assert bench.matched() == 320
    bench.peers.forget(OWNERS[0])
    bench.reader.allocated("r", list(range(11)), 320)
    (read,) = bench.reader.take_reads()
    assert read.welcome.engine_id == f"at-{OWNERS[0].host}", "of the engine that granted, whatever runs there now"


def test_a_late_answer_to_an_older_hello_says_nothing_about_a_connected_peer(bench: Bench) -> None:
    bench.peers.not_welcomed(OWNERS[0], bench.now)
    assert bench.peers.connected(OWNERS[0]) is not None


def test_the_owner_of_an_aborted_requests_failed_read_is_told(bench: Bench) -> None:
    bench.matched()
    bench.answer(OWNERS[0], bench.grant(OWNERS[0], 10))
    bench.matched()
    bench.reader.allocated("r", list(range(11)), 320)
    bench.reader.request_ended("r")
    bench.reader.read_ended("r", "Timeout")
    assert bench.released() == [f"claim-{OWNERS[0].host}"]


def test_a_refusal_and_an_unreachable_owner_end_the_question(bench: Bench) -> None:
    bench.matched(request="refused")
    bench.answer(OWNERS[0], Refuse(id=bench.ask().id, reason=RefuseReason.OWNER_FULL, message="full"))
    assert bench.matched(request="refused") == 0
    assert receipt(bench, "refused").reason == "OwnerFull"
    bench.matched(request="gone")
    bench.answer(OWNERS[0], None)
    assert bench.matched(request="gone") == 0
    assert receipt(bench, "gone").outcome is Outcome.UNCONNECTED


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ({"version": 2, "owners": []}, "Version"),
        ({}, "Version"),
        ("claim", "Malformed"),
        ({"version": 1, "owners": "me"}, "Malformed"),
        ({"version": 1, "owners": [{"host": "h"}]}, "Malformed"),
        ({"version": 1, "owners": [{"host": "h", "port": 0}]}, "Malformed"),
        ({"version": 1, "owners": [{"host": "h", "port": 1}] * 9}, "Malformed"),
        ({"version": 1, "owners": [], "extra": 1}, "Malformed"),
    ],
)
def test_a_malformed_claim_is_computed_and_says_so(bench: Bench, raw: Any, reason: str) -> None:
    assert bench.reader.matched_tokens("r", {"claim": raw}, 330, HASHES, 0) == 0
    got = receipt(bench)
    assert (got.outcome, got.reason) == (Outcome.REFUSED, reason)
    assert bench.sent == []


def test_without_a_claim_there_is_no_receipt(bench: Bench) -> None:
    assert bench.reader.matched_tokens("r", {"do_remote_prefill": True, "foo": 1}, 330, HASHES, 0) == 0
    assert bench.reader.request_ended("r") is None


def test_an_introduction_waits_for_connections_but_not_for_ever() -> None:
    bench = Bench()
    wanted = params(*OWNERS[:2], introduce=True)
    assert bench.reader.matched_tokens("r", wanted, 1, [], 0) is None
    hello = next(m for a, m in bench.sent if a == OWNERS[0])
    assert isinstance(hello, Hello)
    bench.answer(OWNERS[0], Welcome(id=hello.id, engine_id="e", role="Decode", host="h", port=1, tp_size=1))
    assert bench.reader.matched_tokens("r", wanted, 1, [], 0) is None
    bench.peers.workers_connected({"e"})
    bench.now += 30
    assert bench.reader.matched_tokens("r", wanted, 1, [], 0) == 0
    got = receipt(bench)
    assert (got.outcome, got.connected) == (Outcome.INTRODUCED, (OWNERS[0],))


events = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "matched",
                "answer",
                "foreign",
                "refuse",
                "lost",
                "allocate",
                "ended",
                "failed",
                "abort",
                "time",
                "peers lost",
            ]
        ),
        st.sampled_from(["r1", "r2", "r3"]),
        st.integers(0, 3),
        st.integers(0, 12),
    ),
    max_size=60,
)


@given(events)
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_every_grant_ends_read_or_released(steps: list[tuple[str, str, int, int]]) -> None:
    """Random orders of everything that can happen: at the end no claim is left that nobody reads and nobody let go."""
    bench = Bench()
    bench.connect(*OWNERS[:4])
    run = _Run(bench)
    for step in steps:
        run.step(*step)
    run.finish()
    used = {read.claim_id for read in run.reads}
    assert run.granted == used | set(bench.released())


class _Run:
    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.granted: set[str] = set()
        self.reads: list[Read] = []
        self.loading: dict[str, int] = {}
        self.open: set[str] = set()
        self.serial = 0

    def step(self, kind: str, request: str, owner_number: int, number: int) -> None:
        bench, owner = self.bench, OWNERS[owner_number]
        asks = [m for a, m in bench.sent if isinstance(m, Ask) and a == owner]
        if kind in ("answer", "foreign", "refuse", "lost"):
            if asks:
                self._answer(kind, owner, asks[-1], number)
        elif kind == "matched" and request not in self.loading:
            self._match(request, number)
        elif kind in ("ended", "failed") and request in self.loading:
            del self.loading[request]
            bench.reader.read_ended(request, "Transfer" if kind == "failed" else None)
        elif kind == "abort" and request in self.open:
            self.open.discard(request)
            bench.reader.request_ended(request)
        elif kind == "time":
            bench.now += 0.05 * number
        elif kind == "peers lost" and number == 7:
            bench.peers.workers_connected(set())

    def _match(self, request: str, number: int) -> None:
        self.open.add(request)
        tokens = self.bench.matched(request, local=BLOCK * (number % 3), owners=OWNERS[:3])
        if tokens and number % 2:
            self._allocate(request, tokens)

    def _answer(self, kind: str, owner: Address, ask: Ask, number: int) -> None:
        if kind == "lost":
            self.bench.arrivals.put(Arrival(owner, ask.id, None, self.bench.now))
            return
        if kind == "refuse":
            self.bench.answer(owner, Refuse(id=ask.id, reason=RefuseReason.GROUP, message=""))
            return
        self.serial += 1
        claim = f"c{self.serial}" if number else ""
        if claim:
            self.granted.add(claim)
        engine = "other" if kind == "foreign" else f"at-{owner.host}"
        grant = Grant(id=ask.id, engine_id=engine, blocks=list(range(number)), claim_id=claim, hold_seconds=15)
        self.bench.answer(owner, grant, after=0.01 * number)

    def _allocate(self, request: str, tokens: int) -> None:
        self.bench.reader.allocated(request, list(range(20)), tokens)
        reads = self.bench.reader.take_reads()
        self.reads += reads
        if reads:
            self.loading[request] = tokens

    def finish(self) -> None:
        self.bench.reader.pump()
        for request in list(self.loading):
            self.bench.reader.read_ended(request, None)
        for request in list(self.open):
            self.bench.reader.request_ended(request)
        self.bench.reader.pump()
