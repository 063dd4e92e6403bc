"""The legs of the demo in front of one set of engines: who talks through which router, under which tenant, with what done to P before a turn."""

import dataclasses
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass

import aiohttp

from pdd_cli.demo.conversation import Turn
from pdd_cli.demo.conversation_run import Conversation, Talk, make_client
from pdd_cli.demo.results import Cache, LegResult, Pair, TurnResult
from pdd_cli.local.engine import Engine
from pdd_cli.local.engines import Role
from pdd_cli.local.progress import Progress
from pdd_cli.local.router import Router
from pdd_cli.local.waiting import until

_BYTES = "vllm:nixl_bytes_transferred_sum"
_SECONDS = "vllm:nixl_xfer_time_seconds_sum"
_USAGE = "vllm:kv_cache_usage_perc"
_SETTLE_SECONDS = 10.0
_POLL_SECONDS = 0.2
_COUNTED_SECONDS = 2.0

OFF, ON, VISITOR = "off", "on", "visitor"


@dataclass(frozen=True, slots=True)
class Deployment:
    """What is talked to. Routers by name: OFF never lets P read from D, ON does."""

    engines: tuple[Engine, ...]
    routers: Mapping[str, Router]
    session: aiohttp.ClientSession
    served_name: str
    block_size: int

    @property
    def prefills(self) -> list[Engine]:
        return [engine for engine in self.engines if engine.spec.role is Role.PREFILL]


@dataclass(frozen=True, slots=True)
class _Counted:
    """What the prefill engines' NIXL counters say, all together."""

    read_bytes: float
    seconds: float


@dataclass(frozen=True, slots=True)
class _Side:
    reuse: bool
    router: Router
    conversation: Conversation


class Legs:
    """`tenants` maps each name of `tenant_names()` to its API key: a leg must find nothing of another leg."""

    def __init__(
        self,
        deployment: Deployment,
        tenants: Mapping[str, str],
        turns: tuple[Turn, ...],
        max_tokens: int,
        progress: Progress,
    ) -> None:
        self._deployment = deployment
        self._tenants = tenants
        self._turns = turns
        self._talk = Talk(deployment.served_name, max_tokens)
        self._progress = progress

    async def hold(self, cache: Cache) -> Pair:
        """The conversation with reuse off and on, turn by turn in alternation, so that a machine that gets busier hits both alike.

        Raises CliError.
        """
        results: dict[bool, list[TurnResult]] = {False: [], True: []}
        async with AsyncExitStack() as exits:
            sides = [await self._open_side(reuse, cache, exits) for reuse in (False, True)]
            task = exits.enter_context(self._progress.task(f"Conversation, reuse off and on, P's cache {cache}"))
            for turn in self._turns:
                for side in sides:
                    title = f"turn {turn.number} of {len(self._turns)}, reuse {ON if side.reuse else OFF}"
                    task.note(title)
                    result = await self._take(turn, side, cache)
                    results[side.reuse].append(result)
                    task.note(f"{title}: first token after {result.ttft_seconds:.2f} s")
        off, on = (LegResult(reuse, cache, tuple(results[reuse])) for reuse in (False, True))
        return Pair(off, on)

    async def held_at_the_end(self) -> dict[str, float]:
        """kv_cache_usage_perc by engine: as soon as all are 0, or as they are after ten seconds."""
        usage: dict[str, float] = {}

        async def nothing_held() -> bool:
            for engine in self._deployment.engines:
                usage[engine.name] = (await engine.metrics(self._deployment.session))[_USAGE]
            return not any(usage.values())

        await until(nothing_held, _POLL_SECONDS, _SETTLE_SECONDS)
        return usage

    async def _open_side(self, reuse: bool, cache: Cache, exits: AsyncExitStack) -> _Side:
        router = self._deployment.routers[ON if reuse else OFF]
        client = await exits.enter_async_context(make_client(router.url, self._tenants[_tenant(reuse, cache)]))
        return _Side(reuse, router, Conversation(client, self._talk))

    async def _take(self, turn: Turn, side: _Side, cache: Cache) -> TurnResult:
        await self._move_on(side.router, turn)
        if cache is Cache.EMPTIED:
            for engine in self._deployment.prefills:
                await engine.empty_prefix_cache(self._deployment.session)
        before = await self._counted()
        result = await side.conversation.take(turn)
        now = before

        async def counted_all() -> bool:
            nonlocal now
            now = await self._counted()
            return now.read_bytes - before.read_bytes >= result.receipt.read_bytes

        # An engine updates its counters a step later than it answers.
        await until(counted_all, _POLL_SECONDS, _COUNTED_SECONDS)
        return dataclasses.replace(
            result, read_seconds=now.seconds - before.seconds, counted_bytes=now.read_bytes - before.read_bytes
        )

    async def _move_on(self, router: Router, turn: Turn) -> None:
        """Several P: turn n lands on P number n, as when the one before is busy, drained or gone."""
        prefills = self._deployment.prefills
        if len(prefills) > 1:
            chosen = prefills[(turn.number - 1) % len(prefills)]
            others = [engine.spec for engine in self._deployment.engines if engine.spec.role is not Role.PREFILL]
            await router.use_engines([chosen.spec, *others], self._deployment.session)

    async def _counted(self) -> _Counted:
        samples = [await engine.metrics(self._deployment.session) for engine in self._deployment.prefills]
        return _Counted(
            sum(sample.get(_BYTES, 0.0) for sample in samples), sum(sample.get(_SECONDS, 0.0) for sample in samples)
        )


def tenant_names() -> list[str]:
    """One per leg, and the last for the person who tries it with --keep."""
    return [*(_tenant(reuse, cache) for cache in Cache for reuse in (False, True)), VISITOR]


def _tenant(reuse: bool, cache: Cache) -> str:
    return f"{ON if reuse else OFF}-{cache}"
