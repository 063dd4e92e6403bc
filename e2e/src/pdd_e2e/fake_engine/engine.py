"""A fake vLLM engine on a real port: start, script, observe, kill, restart.

The one class that tests use. It owns the HTTP server and one core per incarnation; what the engine does is in core.py,
what it says in http.py.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack

from aiohttp import web

from pdd_e2e.fake_engine.blocks import BlockPool
from pdd_e2e.fake_engine.claims import Address, Reason
from pdd_e2e.fake_engine.core import EngineCore
from pdd_e2e.fake_engine.fabric import FakeFabric
from pdd_e2e.fake_engine.faults import Fault, RefuseClaim, Script
from pdd_e2e.fake_engine.http import Handlers, RecordedRequest
from pdd_e2e.fake_engine.settings import EngineSettings, Mechanism, Role


class EngineOptions(TypedDict, total=False):
    """Keyword arguments of `FakeEngine` beyond the usual: see `EngineSettings`."""

    revision: str
    prefix_caching: bool
    max_model_len: int | None
    max_running: int
    bytes_per_token: int
    seconds_per_read_token: float
    connect_seconds: float
    threshold_tokens: int
    answer_timeout_seconds: float
    read_timeout_seconds: float
    greeting_seconds: float
    introduce_timeout_seconds: float
    max_owners_asked: int
    hold_seconds: float
    max_claims_per_reader: int
    max_held_share: float
    lease_seconds: float
    ttl_seconds: float
    expiry_margin_seconds: float
    max_retained_share: float
    stream_params: bool
    prompt_tokens_details: bool


class FakeEngine:
    """An engine that listens on `host:port` (0: a free one) while its context is entered.

    `clock` (monotonic seconds) rules holds, leases and expiry; everything that takes time really takes it.
    """

    def __init__(
        self,
        *,
        fabric: FakeFabric,
        role: Role | str,
        name: str,
        model: str = "fake",
        block_size: int = 16,
        cache_blocks: int = 1024,
        seconds_per_prompt_token: float = 0.0,
        seconds_per_output_token: float = 0.0,
        host: str = "127.0.0.1",
        port: int = 0,
        claim_port: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        mechanism: Mechanism | str = Mechanism.CLAIM,
        **options: Unpack[EngineOptions],
    ) -> None:
        self.settings = EngineSettings(
            role=Role(role),
            mechanism=Mechanism(mechanism),
            name=name,
            model=model,
            block_size=block_size,
            cache_blocks=cache_blocks,
            seconds_per_prompt_token=seconds_per_prompt_token,
            seconds_per_output_token=seconds_per_output_token,
            **options,
        )
        self.script_queue = Script()
        self.requests: list[RecordedRequest] = []
        self.claim_host = host
        self.claim_port = fabric.next_port() if claim_port is None else claim_port
        self._fabric = fabric
        self._host = host
        self._port = port
        self._clock = clock
        self._core = self._new_core()
        self._runner: web.AppRunner | None = None
        self._dying: asyncio.Task[None] | None = None

    # -- life ----------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.dead()
        await self.kill()

    async def start(self) -> None:
        """Listen; the first time on a free port if none was given, later on the same one."""
        runner = web.AppRunner(
            Handlers(self).application(), handler_cancellation=True, shutdown_timeout=0.0, access_log=None
        )
        await runner.setup()
        site = web.TCPSite(runner, self._host, self._port, reuse_address=True)
        await site.start()
        self._port = int(runner.addresses[0][1])
        self._runner = runner
        await self._core.start()

    async def kill(self) -> None:
        """Die at once: listener closed, connections reset, nothing kept. Does nothing to a dead engine."""
        runner, self._runner = self._runner, None
        if runner is None:
            return
        await self._core.stop()
        for connection in runner.server.connections if runner.server else ():
            if connection.transport is not None:
                connection.transport.abort()
        await runner.cleanup()

    async def restart(self) -> None:
        """Die if still alive, and come back on the same port as a new incarnation with an empty cache."""
        await self.dead()
        await self.kill()
        self._core = self._new_core()
        await self.start()

    async def dead(self) -> None:
        """Wait until a scripted death is over."""
        if self._dying is not None:
            await self._dying
            self._dying = None

    def die_soon(self) -> None:
        """Kill the engine from inside one of its own handlers."""
        self._dying = asyncio.ensure_future(self.kill())

    def _new_core(self) -> EngineCore:
        return EngineCore(self.settings, self._fabric, self.claim_address, self.script_queue, self._clock)

    # -- scripting -----------------------------------------------------------------------------------------------------

    def script(
        self,
        *faults: Fault,
        path: str | None = None,
        when: Callable[[Mapping[str, Any]], bool] | None = None,
        times: int = 1,
    ) -> None:
        """Queue faults, each for `times` matching requests (or questions, for those of the claim channel).

        `path` None means either completion path; `when` looks at the JSON body.
        """
        for fault in faults:
            self.script_queue.add(fault, path=path, when=when, times=times)

    def refuse_claims(self, reason: Reason | str, *, times: int = 1) -> None:
        """As owner, refuse the next `times` questions."""
        self.script(RefuseClaim(Reason(reason)), times=times)

    # -- observing -----------------------------------------------------------------------------------------------------

    @property
    def core(self) -> EngineCore:
        """The present (or last) incarnation."""
        return self._core

    @property
    def url(self) -> str:
        """Base URL, without a slash at its end."""
        return f"http://{self._host}:{self._port}"

    @property
    def claim_address(self) -> Address:
        """Where its claim channel listens on the fabric."""
        return Address(self.claim_host, self.claim_port)

    def address_card(self) -> dict[str, Any]:
        """One entry of the file that PDD_CONTRACT_ENGINES names."""
        return {
            "role": str(self.settings.role),
            "mechanism": str(self.settings.mechanism),
            "url": self.url,
            "claim_host": self.claim_host,
            "claim_port": self.claim_port,
            "model": self.settings.model,
            "block_size": self.settings.block_size,
        }

    @property
    def engine_id(self) -> str:
        """The present incarnation."""
        return self._core.engine_id

    @property
    def group(self) -> str:
        """Its revision group."""
        return self.settings.group

    @property
    def running(self) -> int:
        """Sequences in the batch."""
        return self._core.scheduler.running

    @property
    def waiting(self) -> int:
        """Sequences that wait or whose KV is on its way."""
        return self._core.scheduler.waiting

    @property
    def held_blocks(self) -> int:
        """Blocks that anything references: requests, grants, handles."""
        self._core.expire()
        return self._core.pool.held

    @property
    def prefix_cache(self) -> BlockPool:
        """The block pool, for looking into it and for corrupting it."""
        return self._core.pool

    @property
    def read_tokens_from(self) -> dict[Address, int]:
        """Tokens read so far, by owner; of all incarnations, from the receipts of finished requests."""
        totals: dict[Address, int] = {}
        for request in self.requests:
            if request.receipt is not None and request.receipt.owner is not None and request.receipt.read_tokens:
                owner = request.receipt.owner
                totals[owner] = totals.get(owner, 0) + request.receipt.read_tokens
        return totals
