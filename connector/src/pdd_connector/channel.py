"""The claim channel's sockets: one thread that serves other engines' messages and carries this engine's own.

Sits beside the engine thread and never takes part in a decision: what a message means is decided by `owner.py` (messages to this engine) and
`reader.py` (answers to this engine). Sockets are touched by this thread alone.

CURVE gives secrecy, integrity and authentication: both ends use the key pair derived from the deployment's claim key, and the server admits no other
public key (ZAP). Replays are impossible because every connection has its own session keys.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from pdd_connector.claims.messages import (
    MAX_MESSAGE_BYTES,
    Ask,
    Grant,
    Hello,
    MalformedMessageError,
    Refuse,
    RefuseReason,
    Release,
    ToOwner,
    ToReader,
    Welcome,
    decode_for_owner,
    decode_for_reader,
    encode,
)
from pdd_connector.claims.params import Address

log = logging.getLogger(__name__)

MIN_KEY_CHARACTERS = 32
_MAX_PEERS = 256  # sockets kept open towards other engines; the least recently used is closed
_TICK_MILLISECONDS = 200
_GREETING_SECONDS = 10.0  # how long a hello waits for its connection
_STRANGER_SECONDS = 60.0  # so long after one is told of in the log, no other is
# What a client with another claim key comes to, and mostly one with none: it fails before it could be asked for its public key.
_STRANGE = (zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC, zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH)


class ClaimKeyError(ValueError):
    """The deployment's claim key is missing or too short."""


@dataclass(frozen=True)
class KeyPair:
    """CURVE keys, Z85."""

    public: bytes
    secret: bytes


def derive_key_pair(claim_key: str | None) -> KeyPair:
    """The key pair that all engines with this claim key share; ClaimKeyError where the key is missing or short."""
    if claim_key is None or len(claim_key) < MIN_KEY_CHARACTERS:
        raise ClaimKeyError(
            f"`PDD_CLAIM_KEY` must have at least {MIN_KEY_CHARACTERS} characters, the same on every engine of the deployment"
        )
    if not zmq.has("curve"):
        raise ClaimKeyError("this pyzmq has no CURVE: install the wheel from PyPI, which brings libsodium")
    secret = z85.encode(hmac.new(b"pdd claim channel 1", claim_key.encode(), hashlib.sha256).digest())
    return KeyPair(zmq.curve_public(secret), secret)


@dataclass(frozen=True)
class Arrival:
    """An answer to this engine, or the news that a message could not be sent (`answer` None). Monotonic seconds."""

    address: Address
    ask_id: bytes
    answer: Welcome | Grant | Refuse | None
    at: float


class _OneKey:
    """ZAP credentials provider: admits the deployment's own public key."""

    def __init__(self, public: bytes, on_stranger: Callable[[], None]) -> None:
        self._public = z85.decode(public)
        self._on_stranger = on_stranger

    def callback(self, _domain: str, key: bytes) -> bool:
        known = hmac.compare_digest(z85.decode(key), self._public)
        if not known:
            self._on_stranger()
        return known


class ClaimChannel:
    """Serves `host:port` and sends to others. `handle` answers a reader's message; `arrivals` collects the answers to ours."""

    def __init__(
        self,
        bind: Address,
        keys: KeyPair,
        handle: Callable[[ToOwner], ToReader | None],
        tick: Callable[[], None],
        refused: Callable[[RefuseReason], None],
        arrived: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.arrivals: queue.SimpleQueue[Arrival] = queue.SimpleQueue()
        self._bind = bind
        self._keys = keys
        self._handle = handle
        self._tick = tick
        self._refused = refused
        self._arrived = arrived
        self._clock = clock
        self._silent_until = float("-inf")
        self._outbox: queue.SimpleQueue[tuple[Address, ToOwner] | None] = queue.SimpleQueue()
        self._context: zmq.Context[Any] = zmq.Context()
        self._wake_to = self._context.socket(zmq.PAIR)
        self._wake_from = self._context.socket(zmq.PAIR)
        self._wake_lock = threading.Lock()
        self._greetings: list[tuple[float, Address, Hello]] = []
        self._peers: OrderedDict[Address, zmq.Socket[bytes]] = OrderedDict()
        self._poller = zmq.Poller()
        self._thread = threading.Thread(target=self._run, name="pdd-claim-channel", daemon=True)
        self._auth: ThreadAuthenticator | None = None

    def start(self) -> None:
        """Bind and serve; zmq.ZMQError where the address cannot be bound."""
        self._wake_from.bind("inproc://wake")
        self._wake_to.connect("inproc://wake")
        self._auth = ThreadAuthenticator(self._context)
        self._auth.start()
        self._auth.configure_curve_callback(
            domain="*", credentials_provider=_OneKey(self._keys.public, self._on_stranger)
        )
        self._server = self._context.socket(zmq.ROUTER)
        self._secure(self._server)
        self._server.curve_server = True
        self._server.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        self._server.setsockopt(zmq.HANDSHAKE_IVL, 5_000)
        self._handshakes = self._server.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
        self._server.bind(endpoint(self._bind))
        self._thread.start()

    def stop(self) -> None:
        """End the thread and close every socket; the second time it does nothing."""
        if not self._thread.is_alive():
            return
        self._post(None)
        self._thread.join(timeout=5)
        if self._auth is not None:
            self._auth.stop()
        self._context.destroy(linger=0)

    def send(self, address: Address, message: ToOwner) -> None:
        """Hand a message to the thread; its answer, or the failure to send it, comes as an Arrival."""
        self._post((address, message))

    # ---- the thread ---------------------------------------------------------------------------------------------------------

    def _post(self, item: tuple[Address, ToOwner] | None) -> None:
        self._outbox.put(item)
        # Callers are several threads and the socket is for one at a time. It is full where so many wakes are waiting that the thread will look anyway.
        with self._wake_lock, contextlib.suppress(zmq.Again):
            self._wake_to.send(b"", zmq.NOBLOCK)

    def _run(self) -> None:
        self._poller.register(self._server, zmq.POLLIN)
        self._poller.register(self._wake_from, zmq.POLLIN)
        self._poller.register(self._handshakes, zmq.POLLIN)
        running = True
        while running:
            try:
                running = self._turn()
            except Exception:  # claims would be held for ever if this thread died of one message
                log.exception("An error on the claim channel; going on")
        self._server.disable_monitor()
        for socket in [*self._peers.values(), self._server, self._wake_from]:
            socket.close(linger=0)

    def _turn(self) -> bool:
        """Wait for something and deal with it; False once told to stop."""
        ready = dict(self._poller.poll(_TICK_MILLISECONDS))
        if self._wake_from in ready:
            self._wake_from.recv()
            if not self._send_outbox():
                return False
        if self._server in ready:
            self._serve()
        if self._handshakes in ready and recv_monitor_message(self._handshakes)["value"] in _STRANGE:
            self._on_stranger()
        for address, socket in list(self._peers.items()):
            if socket in ready:
                self._receive(address, socket)
        self._send_greetings()
        self._tick()
        return True

    def _serve(self) -> None:
        frames = self._server.recv_multipart()
        if len(frames) != 2:
            self._refused(RefuseReason.MALFORMED)
            return
        reader, body = frames
        answer: ToReader | None
        try:
            answer = self._handle(decode_for_owner(body))
        except MalformedMessageError as error:
            self._refused(error.reason)
            answer = Refuse(id=error.ask_id, reason=error.reason, message=str(error)[:512])
        if answer is not None:
            try:
                self._server.send_multipart([reader, encode(answer)], zmq.NOBLOCK)
            except zmq.ZMQError as error:  # the reader is gone or does not read; its claim ends by time
                log.warning("Could not answer on the claim channel: %s", error)

    def _send_outbox(self) -> bool:
        while True:
            try:
                item = self._outbox.get_nowait()
            except queue.Empty:
                return True
            if item is None:
                return False
            address, message = item
            if isinstance(message, Hello):
                self._greetings.append((self._clock() + _GREETING_SECONDS, address, message))
            elif not self._try_send(address, message) and isinstance(message, Ask):
                self._deliver(address, message.id, None)

    def _send_greetings(self) -> None:
        """A hello opens the connection, so it is tried again until there is one; everything else goes out at once or not at all."""
        waiting, self._greetings = self._greetings, []
        for until, address, hello in waiting:
            if self._try_send(address, hello):
                continue
            if self._clock() < until:
                self._greetings.append((until, address, hello))
            else:
                log.warning(
                    "No claim channel answers at %s:%d: nobody is there, or it has another claim key",
                    address.host,
                    address.port,
                )
                self._deliver(address, hello.id, None)

    def _try_send(self, address: Address, message: Hello | Ask | Release) -> bool:
        try:
            self._peer(address).send(encode(message), zmq.NOBLOCK)
        except (zmq.ZMQError, UnicodeError):  # not there, or no name that a resolver takes
            return False
        return True

    def _peer(self, address: Address) -> zmq.Socket[bytes]:
        socket = self._peers.get(address)
        if socket is None:
            socket = self._context.socket(zmq.DEALER)
            self._secure(socket)
            socket.curve_serverkey = self._keys.public
            socket.setsockopt(zmq.IMMEDIATE, 1)  # nothing is queued for an engine that is not there
            socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
            socket.setsockopt(zmq.RECONNECT_IVL, 100)
            socket.setsockopt(zmq.RECONNECT_IVL_MAX, 2_000)
            socket.setsockopt(zmq.HEARTBEAT_IVL, 2_000)  # a peer whose machine is gone is noticed, not queued for
            socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 6_000)
            socket.connect(endpoint(address))
            self._peers[address] = socket
            self._poller.register(socket, zmq.POLLIN)
            if len(self._peers) > _MAX_PEERS:
                _, oldest = self._peers.popitem(last=False)
                self._poller.unregister(oldest)
                oldest.close(linger=0)
        self._peers.move_to_end(address)
        return socket

    def _receive(self, address: Address, socket: zmq.Socket[bytes]) -> None:
        try:
            answer = decode_for_reader(socket.recv(zmq.NOBLOCK))
        except zmq.Again:
            return
        except MalformedMessageError as error:
            log.warning("Ignored a malformed answer from %s:%d: %s", address.host, address.port, error)
            return
        self._deliver(address, answer.id, answer)

    def _deliver(self, address: Address, ask_id: bytes, answer: ToReader | None) -> None:
        self.arrivals.put(Arrival(address, ask_id, answer, self._clock()))
        self._arrived()

    def _secure(self, socket: zmq.Socket[bytes]) -> None:
        socket.setsockopt(zmq.LINGER, 0)
        socket.curve_publickey = self._keys.public
        socket.curve_secretkey = self._keys.secret

    def _on_stranger(self) -> None:
        self._refused(RefuseReason.UNAUTHENTICATED)
        now = self._clock()
        if now >= self._silent_until:
            self._silent_until = now + _STRANGER_SECONDS
            log.warning("Refused a connection to the claim channel: its key is not this deployment's")


def endpoint(address: Address) -> str:
    """As ZeroMQ names it."""
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"tcp://{host}:{address.port}"
