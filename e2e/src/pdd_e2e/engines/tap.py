"""A claim channel between a reader and an owner that a test can hold up: it passes every message on, after what the test wants done first.

So what happens between an owner's grant and the reader's read (a death, a standstill) happens exactly there, whatever the machine's speed.
It holds the deployment's claim key, as both ends do; without that there would be no getting in between.
"""

import asyncio
import hashlib
import hmac
from collections.abc import Awaitable, Callable
from typing import Any, Self

import msgspec
import zmq
import zmq.asyncio
from zmq.utils import z85

from pdd_cli.local.engines import HOST
from pdd_e2e.engines.answers import Json

Before = Callable[[Json], Awaitable[None]]


class ClaimTap:
    """Readers use `address` as the owner's. `before[type]` is awaited with each message of that type before it is passed on."""

    def __init__(self, owner: Json, claim_key: str) -> None:
        self.before: dict[str, Before] = {}
        self.seen: list[Json] = []
        self._owner = owner
        self._secret = z85.encode(hmac.new(b"pdd claim channel 1", claim_key.encode(), hashlib.sha256).digest())
        self._public = zmq.curve_public(self._secret)
        self._context = zmq.asyncio.Context()
        self._server = self._socket(zmq.ROUTER)
        self._server.curve_server = True
        self._port = self._server.bind_to_random_port(f"tcp://{HOST}")
        self._owners: dict[bytes, zmq.asyncio.Socket] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> Json:
        return {"host": HOST, "port": self._port}

    async def __aenter__(self) -> Self:
        self._spawn(self._serve())
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in self._tasks:
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        self._context.destroy(linger=0)
        for result in results:
            if isinstance(result, Exception):  # cancelling is not among them
                raise result

    def _spawn(self, work: Any) -> None:
        self._tasks.add(asyncio.ensure_future(work))

    def _socket(self, kind: int) -> zmq.asyncio.Socket:
        socket = self._context.socket(kind)
        socket.linger = 0
        socket.curve_publickey = self._public
        socket.curve_secretkey = self._secret
        return socket

    async def _serve(self) -> None:
        while True:
            reader, message = await self._server.recv_multipart()
            if reader not in self._owners:
                owner = self._owners[reader] = self._socket(zmq.DEALER)
                owner.curve_serverkey = self._public
                owner.connect(f"tcp://{self._owner['host']}:{self._owner['port']}")
                self._spawn(self._return(reader, owner))
            await self._look(message)
            await self._owners[reader].send(message)

    async def _return(self, reader: bytes, owner: zmq.asyncio.Socket) -> None:
        while True:
            message = await owner.recv()
            await self._look(message)
            await self._server.send_multipart([reader, message])

    async def _look(self, message: bytes) -> None:
        decoded: Json = msgspec.msgpack.decode(message)
        self.seen.append(decoded)
        before = self.before.get(decoded["type"])
        if before is not None:
            await before(decoded)
