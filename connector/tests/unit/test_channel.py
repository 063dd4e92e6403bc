"""The claim channel over real sockets on loopback: who gets in, what comes back, and what a stranger can do."""

import queue
import socket
import threading
from collections.abc import Callable, Iterator

import msgspec
import pytest
import zmq

from pdd_connector.channel import Arrival, ClaimChannel, ClaimKeyError, derive_key_pair
from pdd_connector.claims.messages import (
    MAX_MESSAGE_BYTES,
    Ask,
    Grant,
    Hello,
    Refuse,
    RefuseReason,
    Release,
    ToOwner,
    ToReader,
    Welcome,
)
from pdd_connector.claims.params import Address

KEY = "a key of at least thirty-two characters"
ID = b"i" * 16
HELLO = Hello(id=ID, reader="r", host="h", port=1, group="g")
ASK = Ask(id=ID, reader="r", host="h", port=1, group="g", hashes=[b"h" * 32])


def free_address() -> Address:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return Address(host="127.0.0.1", port=probe.getsockname()[1])


class Node:
    """One channel with an owner that notes what it is asked."""

    def __init__(self, key: str = KEY, address: Address | None = None) -> None:
        self.address = address or free_address()
        self.seen: queue.SimpleQueue[ToOwner] = queue.SimpleQueue()
        self.refused: queue.SimpleQueue[RefuseReason] = queue.SimpleQueue()
        self.ticked = threading.Event()
        self.channel = ClaimChannel(
            self.address, derive_key_pair(key), self.handle, self.ticked.set, self.refused.put, lambda: None
        )
        self.channel.start()

    def handle(self, message: ToOwner) -> ToReader | None:
        self.seen.put(message)
        if isinstance(message, Hello):
            return Welcome(id=message.id, engine_id="e", role="Decode", host="h", port=1, tp_size=1)
        if isinstance(message, Ask):
            return Grant(id=message.id, engine_id="e", blocks=[7], claim_id="c", hold_seconds=15)
        return None

    def arrival(self, seconds: float = 5) -> Arrival:
        return self.channel.arrivals.get(timeout=seconds)


Make = Callable[..., Node]


@pytest.fixture
def node() -> Iterator[Make]:
    nodes: list[Node] = []

    def make(key: str = KEY, address: Address | None = None) -> Node:
        nodes.append(Node(key, address))
        return nodes[-1]

    yield make
    for each in nodes:
        each.channel.stop()


def connect(reader: Node, owner: Node) -> None:
    reader.channel.send(owner.address, HELLO)
    assert isinstance(reader.arrival().answer, Welcome)


def test_hello_ask_and_release_reach_the_owner(node: Make) -> None:
    reader, owner = node(), node()
    connect(reader, owner)
    reader.channel.send(owner.address, ASK)
    arrival = reader.arrival()
    assert arrival.address == owner.address
    assert isinstance(arrival.answer, Grant)
    reader.channel.send(owner.address, Release(reader="r", claim_id="c"))
    assert [type(owner.seen.get(timeout=5)) for _ in range(3)] == [Hello, Ask, Release]


def test_a_reader_with_another_key_is_not_served(
    node: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pdd_connector.channel._GREETING_SECONDS", 1.0)
    owner = node()
    stranger = node("another key of at least thirty-two characters")
    stranger.channel.send(owner.address, HELLO)
    assert stranger.arrival().answer is None
    assert owner.seen.empty()
    assert owner.refused.get(timeout=5) is RefuseReason.UNAUTHENTICATED
    assert caplog.text.count("its key is not this deployment's") == 1, "once a minute, however often it tries"
    assert "another claim key" in caplog.text, "on the reader's side"


def test_a_client_that_knows_the_public_key_but_not_the_secret_is_not_served(node: Make) -> None:
    owner = node()
    with zmq.Context() as context, context.socket(zmq.DEALER) as client:
        client.linger = 0
        client.curve_publickey, client.curve_secretkey = zmq.curve_keypair()
        client.curve_serverkey = derive_key_pair(KEY).public
        client.connect(f"tcp://127.0.0.1:{owner.address.port}")
        client.send(msgspec.msgpack.encode(ASK))
        assert owner.refused.get(timeout=5) is RefuseReason.UNAUTHENTICATED
        assert not client.poll(300)
    assert owner.seen.empty()


def test_a_client_without_curve_is_not_served(node: Make) -> None:
    owner = node()
    with zmq.Context() as context, context.socket(zmq.DEALER) as client:
        client.linger = 0
        client.connect(f"tcp://127.0.0.1:{owner.address.port}")
        client.send(msgspec.msgpack.encode(ASK))
        assert not client.poll(300)
    with socket.create_connection(("127.0.0.1", owner.address.port)) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\n\r\n" * 1000)
    reader = node()
    connect(reader, owner)
    assert owner.seen.qsize() == 1


@pytest.fixture
def member(node: Make) -> Iterator[tuple[Node, zmq.Socket[bytes]]]:
    """An owner, and a bare socket that has the key: a member gone wrong."""
    owner = node()
    keys = derive_key_pair(KEY)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    client = context.socket(zmq.DEALER)
    client.linger = 0
    client.curve_publickey, client.curve_secretkey, client.curve_serverkey = keys.public, keys.secret, keys.public
    client.connect(f"tcp://127.0.0.1:{owner.address.port}")
    yield owner, client
    context.destroy(linger=0)


def refusal(reason: str) -> dict[str, object]:
    return {"type": "refuse", "version": 1, "id": ID, "reason": reason, "message": ""}


def test_malformed_messages_are_refused_and_the_owner_goes_on(member: tuple[Node, zmq.Socket[bytes]]) -> None:
    owner, client = member
    for body in (b"", b"\xc1\xc1", b"\x80", msgspec.msgpack.encode({"type": "ask"})):
        client.send(body)
        assert client.poll(5000)
        assert msgspec.msgpack.decode(client.recv())["reason"] == "Malformed"
        assert owner.refused.get(timeout=5) is RefuseReason.MALFORMED
    client.send(msgspec.msgpack.encode({"type": "hello", "id": ID, "host": 7}))
    assert client.poll(5000)
    assert msgspec.msgpack.decode(client.recv()) | {"message": ""} == refusal("Malformed"), "whoever asked is told"
    client.send(msgspec.msgpack.encode({"type": "greeting", "id": ID, "version": 2}))
    assert client.poll(5000)
    assert msgspec.msgpack.decode(client.recv()) | {"message": ""} == refusal("Version")
    assert [owner.refused.get(timeout=5) for _ in range(2)] == [RefuseReason.MALFORMED, RefuseReason.VERSION]
    client.send_multipart([b"", b"", b""])
    assert owner.refused.get(timeout=5) is RefuseReason.MALFORMED
    client.send(msgspec.msgpack.encode(ASK))
    assert client.poll(5000)
    assert msgspec.msgpack.decode(client.recv())["type"] == "grant"


def test_a_message_over_the_limit_does_not_reach_the_owner(member: tuple[Node, zmq.Socket[bytes]], node: Make) -> None:
    owner, client = member
    client.send(b"x" * (MAX_MESSAGE_BYTES + 1))
    assert not client.poll(300)
    assert owner.seen.empty()
    reader = node()
    connect(reader, owner)


def test_an_ask_to_an_engine_that_is_not_there_fails_at_once(node: Make) -> None:
    reader = node()
    reader.channel.send(free_address(), ASK)
    arrival = reader.arrival()
    assert arrival.answer is None
    assert arrival.ask_id == ID


def test_a_hello_waits_for_an_engine_that_starts_later(node: Make) -> None:
    reader = node()
    address = free_address()
    reader.channel.send(address, HELLO)
    owner = node(address=address)
    assert isinstance(reader.arrival(10).answer, Welcome)
    assert owner.address == address


def test_an_owner_that_restarts_is_reached_again(node: Make) -> None:
    reader, owner = node(), node()
    connect(reader, owner)
    owner.channel.stop()
    node(address=owner.address)
    reader.channel.send(owner.address, HELLO)
    assert isinstance(reader.arrival(10).answer, Welcome)


def test_an_error_in_an_answer_does_not_end_the_channel(node: Make, caplog: pytest.LogCaptureFixture) -> None:
    reader, owner = node(), node()
    connect(reader, owner)

    def fail(_message: ToOwner) -> ToReader | None:
        raise RuntimeError("on purpose")

    owner.channel._handle, good = fail, owner.channel._handle
    reader.channel.send(owner.address, ASK)
    assert not _arrives(reader, 0.3)
    assert "on purpose" in caplog.text
    owner.channel._handle = good
    reader.channel.send(owner.address, ASK)
    assert isinstance(reader.arrival().answer, Grant)


def _arrives(reader: Node, seconds: float) -> bool:
    try:
        reader.arrival(seconds)
    except queue.Empty:
        return False
    return True


def test_the_owner_ticks_without_traffic(node: Make) -> None:
    owner = node()
    owner.ticked.clear()
    assert owner.ticked.wait(5)


def test_refusals_travel(node: Make) -> None:
    reader, owner = node(), node()
    connect(reader, owner)
    refusal = Refuse(id=ID, reason=RefuseReason.GROUP, message="no")
    owner.channel._handle = lambda _message: refusal
    reader.channel.send(owner.address, ASK)
    assert reader.arrival().answer == refusal


@pytest.mark.parametrize("key", [None, "", "short"])
def test_a_key_must_be_there_and_long_enough(key: str | None) -> None:
    with pytest.raises(ClaimKeyError, match=r"`PDD_CLAIM_KEY` must have at least 32 characters"):
        derive_key_pair(key)
