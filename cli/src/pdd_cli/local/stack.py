"""A whole deployment on this machine: prefill, decode and aggregate engines, and routers in front of them.

    async with LocalStack(spec, progress) as stack: ...

Entering returns when everything serves; leaving, however it happens, ends every process and removes the private folder (keys and
configuration). Logs stay in `run_folder`.
"""

import asyncio
import secrets
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from pdd_cli.errors import StartError
from pdd_cli.local.engine import Engine
from pdd_cli.local.engines import EngineOptions, EngineSpec, Role
from pdd_cli.local.kv_config import Connector, build_config, stock_config
from pdd_cli.local.ports import free_ports
from pdd_cli.local.progress import Progress, Silent
from pdd_cli.local.reaper import Reaper
from pdd_cli.local.router import Router, RouterSpec

_PORTS_PER_ENGINE = 3


@dataclass(frozen=True, slots=True)
class StackSpec:
    """What to run. `python` is the engine interpreter, `model` a folder that vLLM serves, `run_folder` gets the logs.

    `connector` holds settings that all engines must share, as the connector's settings file has them.
    """

    python: Path
    model: Path
    run_folder: Path
    prefills: int = 1
    decodes: int = 1
    aggregates: int = 0
    routers: tuple[RouterSpec, ...] = ()
    options: EngineOptions = field(default_factory=EngineOptions)
    options_of: Mapping[Role, EngineOptions] = field(default_factory=dict)
    connector: Mapping[str, Any] = field(default_factory=dict)
    connector_kind: Connector = Connector.PDD
    served_name: str = "smollm2"
    ready_timeout_seconds: float = 420.0


class LocalStack:
    """The running stack. `session` may be used for requests to it while it runs."""

    def __init__(self, spec: StackSpec, progress: Progress | None = None) -> None:
        self.spec = spec
        self.engines: list[Engine] = []
        self.routers: dict[str, Router] = {}
        self._progress: Progress = progress or Silent()
        self._exit = AsyncExitStack()
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "LocalStack":
        try:
            await self._start()
        except BaseException:
            await self._exit.aclose()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        with self._progress.task("Stopping engines and routers"):
            await self._exit.aclose()

    @property
    def session(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("the stack is not running")
        return self._session

    @property
    def prefills(self) -> list[Engine]:
        return self._of(Role.PREFILL)

    @property
    def decodes(self) -> list[Engine]:
        return self._of(Role.DECODE)

    @property
    def aggregates(self) -> list[Engine]:
        return self._of(Role.AGGREGATE)

    async def wait_ready(self, engines: list[Engine]) -> None:
        """Returns when all of them serve; the first that fails cancels the waiting for the others. Raises StartError."""
        limit = self.spec.ready_timeout_seconds
        try:
            async with asyncio.TaskGroup() as group:
                for engine in engines:
                    group.create_task(engine.wait_ready(self.session, self._progress, limit))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def restart(self, engine: Engine) -> None:
        """Stop it and start it again under the same name and ports. Returns when it serves."""
        await engine.stop()
        engine.start()
        await self.wait_ready([engine])

    async def wait_for_an_end(self) -> None:
        """Returns never; raises StartError as soon as an engine or router ends by itself."""
        children: list[Router | Engine] = [*self.routers.values(), *self.engines]
        waiting = {asyncio.ensure_future(child.wait_end()): child for child in children}
        try:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)  # each watches a descriptor
        ended = done.pop()
        child = waiting[ended]
        raise StartError(f"{child.name} ended by itself with exit code {ended.result()}; its log is {child.log}")

    def _of(self, role: Role) -> list[Engine]:
        return [engine for engine in self.engines if engine.spec.role is role]

    async def _start(self) -> None:
        reaper = self._exit.enter_context(Reaper())
        private = Path(tempfile.mkdtemp(prefix="pdd-"))
        reaper.watch_folder(private)
        self._exit.callback(reaper.forget_folder, private)
        self._exit.callback(shutil.rmtree, private)
        self._session = await self._exit.enter_async_context(aiohttp.ClientSession())
        claim_key = secrets.token_urlsafe(32)
        specs = await self._engine_specs(private)
        for spec in specs:
            engine = Engine(spec, self.spec.python, self.spec.run_folder, claim_key, reaper)
            engine.log.unlink(missing_ok=True)  # what an earlier run said would be taken for this one
            self.engines.append(engine)
        self._exit.push_async_callback(self._stop_all)
        for engine in self.engines:
            engine.start()
        await self.wait_ready(self.engines)
        for router_spec in self.spec.routers:
            self.routers[router_spec.name] = Router(router_spec, specs, private, self.spec.run_folder, reaper)
        for router in self.routers.values():
            router.start()
            await router.wait_ready(self.session, self._progress)

    async def _stop_all(self) -> None:
        # Together: each may take seconds. What one cannot do must not keep the others from ending.
        children: list[Router | Engine] = [*self.routers.values(), *self.engines]
        results = await asyncio.gather(*(child.stop() for child in children), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _engine_specs(self, private: Path) -> list[EngineSpec]:
        counts = {
            Role.PREFILL: self.spec.prefills,
            Role.DECODE: self.spec.decodes,
            Role.AGGREGATE: self.spec.aggregates,
        }
        ports = free_ports(_PORTS_PER_ENGINE * sum(counts.values()))
        specs = []
        for role, count in counts.items():
            for number in range(count):
                http, side_channel, claim = (ports.pop() for _ in range(_PORTS_PER_ENGINE))
                config = await self._kv_config(role, claim, private)
                options = self.spec.options_of.get(role, self.spec.options)
                specs.append(
                    EngineSpec(
                        f"{role}-{number}",
                        role,
                        self.spec.model,
                        self.spec.served_name,
                        http,
                        side_channel,
                        claim,
                        config,
                        options,
                    )
                )
        return specs

    async def _kv_config(self, role: Role, claim_port: int, private: Path) -> str | None:
        if role is Role.AGGREGATE:
            return None
        if self.spec.connector_kind is Connector.STOCK:
            return stock_config(role, self.spec.connector)
        return await build_config(self.spec.python, role, self.spec.connector, claim_port, private)
