"""Whom this engine may read from: only who is connected, and what leads there and back."""

from pdd_connector.claims.messages import RefuseReason, Welcome
from pdd_connector.claims.params import Address
from pdd_connector.claims.peers import PeerBook

A = Address(host="127.0.0.1", port=6601)


def welcome(engine_id: str = "e1") -> Welcome:
    return Welcome(id=b"i" * 16, engine_id=engine_id, role="Decode", host="127.0.0.1", port=5601, tp_size=1)


def connected_book() -> PeerBook:
    book = PeerBook(connect_seconds=30, retry_seconds=5)
    assert book.greet(A, 0)
    book.welcomed(A, welcome())
    book.workers_connected({"e1"})
    return book


def test_the_way_to_a_connection() -> None:
    book = PeerBook(connect_seconds=30, retry_seconds=5)
    assert book.greet(A, 0)
    assert not book.greet(A, 1), "greeted once"
    assert book.undecided([A])
    book.welcomed(A, welcome())
    assert book.connected(A) is None, "welcomed is not connected"
    assert book.connecting
    assert book.take_orders() == [welcome()]
    assert book.take_orders() == []
    book.workers_connected({"e1"})
    assert book.connected(A) == welcome()
    assert not book.connecting
    assert not book.undecided([A])


def test_a_failed_peer_is_greeted_again_after_a_while() -> None:
    book = PeerBook(connect_seconds=30, retry_seconds=5)
    book.greet(A, 0)
    book.failed(A, 1)
    assert not book.undecided([A]), "failed is decided: an introduction need not wait for it"
    assert not book.greet(A, 5.9)
    assert book.greet(A, 6)


def test_greeting_and_connecting_end_by_time() -> None:
    book = PeerBook(connect_seconds=30, retry_seconds=5)
    book.greet(A, 0)
    assert book.expire(29.9) == []
    assert book.expire(30) == [A]
    book.greet(A, 40)
    book.welcomed(A, welcome())
    assert book.expire(70) == [A]
    assert not book.connecting


def test_workers_that_cannot_connect_fail_the_peer() -> None:
    book = PeerBook(connect_seconds=30, retry_seconds=5)
    book.greet(A, 0)
    book.welcomed(A, welcome())
    book.workers_failed({"e1"}, 1)
    assert not book.connecting
    book.workers_connected({"e1"})
    assert book.connected(A) is None


def test_a_connection_that_the_workers_lost_is_not_used() -> None:
    book = connected_book()
    book.workers_connected(set())
    assert book.connected(A) is None
    assert book.greet(A, 1)


def test_another_engine_at_the_place_is_not_connected() -> None:
    book = connected_book()
    book.forget(A)
    assert book.connected(A) is None
    assert book.greet(A, 1)
    book.welcomed(A, welcome("e2"))
    book.workers_connected({"e1"})
    assert book.connected(A) is None, "the old engine's connection is not the new one's"
    book.workers_connected({"e1", "e2"})
    assert book.connected(A) == welcome("e2")


def test_a_late_welcome_of_a_peer_given_up_changes_nothing() -> None:
    book = PeerBook(connect_seconds=30, retry_seconds=5)
    book.greet(A, 0)
    book.failed(A, 1)
    book.welcomed(A, welcome())
    assert book.take_orders() == []


def test_what_failed_long_ago_is_forgotten() -> None:
    book = PeerBook(connect_seconds=30, retry_seconds=5)
    book.greet(A, 0)
    book.failed(A, 0)
    book.expire(34.9)
    assert not book.undecided([A])
    book.expire(35)
    assert book.undecided([A]), "unknown again"


def test_a_refusal_is_known_until_the_peer_welcomes_or_cannot_be_reached() -> None:
    book = PeerBook(connect_seconds=30, retry_seconds=5)
    book.greet(A, 0)
    assert book.refusal(A) is None
    book.not_welcomed(A, 1, RefuseReason.GROUP)
    assert book.refusal(A) is RefuseReason.GROUP
    assert book.greet(A, 6)
    assert book.refusal(A) is RefuseReason.GROUP, "greeted again, it has not said anything else"
    book.not_welcomed(A, 7)
    assert book.refusal(A) is None
    book.greet(A, 20)
    book.not_welcomed(A, 21, RefuseReason.STOPPING)
    book.greet(A, 30)
    book.welcomed(A, welcome())
    assert book.refusal(A) is None
