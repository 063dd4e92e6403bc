"""The legs of the demo in front of one set of engines: who talks through which router, under which tenant, with what done to P before a turn."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp

from pdd_cli.demo.conversation import Turn
from pdd_cli.demo.conversation_run import Talk, hold_conversation, make_client
from pdd_cli.demo.results import Cache, LegResult, Pair, TurnResult
from pdd_cli.local.engine import Engine
from pdd_cli.local.engines import Role
from pdd_cli.local.progress import Progress, Task
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
        """The conversation with reuse off, then with reuse on. Raises CliError."""
        return Pair(off=await self._leg(False, cache), on=await self._leg(True, cache))

    async def held_at_the_end(self) -> dict[str, float]:
        """kv_cache_usage_perc by engine: as soon as all are 0, or as they are after ten seconds."""
        usage: dict[str, float] = {}

        async def nothing_held() -> bool:
            for engine in self._deployment.engines:
                usage[engine.name] = (await engine.metrics(self._deployment.session))[_USAGE]
            return not any(usage.values())

        await until(nothing_held, _POLL_SECONDS, _SETTLE_SECONDS)
        return usage

    async def _leg(self, reuse: bool, cache: Cache) -> LegResult:
        router = self._deployment.routers[ON if reuse else OFF]
        async with make_client(router.url, self._tenants[_tenant(reuse, cache)]) as client:
            with self._progress.task(f"Conversation with reuse {'on' if reuse else 'off'}, P's cache {cache}") as task:
                observer = _Observer(self, router, cache, len(self._turns), task)
                turns = await hold_conversation(client, self._turns, self._talk, observer.before, observer.after)
        return LegResult(reuse, cache, turns)

    async def move_on(self, router: Router, turn: Turn) -> None:
        """Several P: turn n lands on P number n, as when the one before is busy, drained or gone."""
        prefills = self._deployment.prefills
        if len(prefills) > 1:
            chosen = prefills[(turn.number - 1) % len(prefills)]
            others = [engine.spec for engine in self._deployment.engines if engine.spec.role is not Role.PREFILL]
            await router.use_engines([chosen.spec, *others], self._deployment.session)

    async def empty_prefill_caches(self) -> None:
        for engine in self._deployment.prefills:
            await engine.empty_prefix_cache(self._deployment.session)

    async def counted(self) -> _Counted:
        samples = [await engine.metrics(self._deployment.session) for engine in self._deployment.prefills]
        return _Counted(
            sum(sample.get(_BYTES, 0.0) for sample in samples), sum(sample.get(_SECONDS, 0.0) for sample in samples)
        )


class _Observer:
    """What happens around each turn of one leg."""

    def __init__(self, legs: Legs, router: Router, cache: Cache, turns: int, task: Task) -> None:
        self._legs = legs
        self._router = router
        self._cache = cache
        self._turns = turns
        self._task = task
        self._before = _Counted(0, 0)

    async def before(self, turn: Turn) -> None:
        self._task.note(f"turn {turn.number} of {self._turns}")
        await self._legs.move_on(self._router, turn)
        if self._cache is Cache.EMPTIED:
            await self._legs.empty_prefill_caches()
        self._before = await self._legs.counted()

    async def after(self, result: TurnResult) -> TurnResult:
        self._task.note(f"turn {result.number} of {self._turns}: first token after {result.ttft_seconds:.2f} s")
        now = self._before

        async def counted_all() -> bool:
            nonlocal now
            now = await self._legs.counted()
            return now.read_bytes - self._before.read_bytes >= result.receipt.read_bytes

        # An engine updates its counters a step later than it answers.
        await until(counted_all, _POLL_SECONDS, _COUNTED_SECONDS)
        return dataclasses.replace(
            result,
            read_seconds=now.seconds - self._before.seconds,
            counted_bytes=now.read_bytes - self._before.read_bytes,
        )


def tenant_names() -> list[str]:
    """One per leg, and the last for the person who tries it with --keep."""
    return [*(_tenant(reuse, cache) for cache in Cache for reuse in (False, True)), VISITOR]


def _tenant(reuse: bool, cache: Cache) -> str:
    return f"{ON if reuse else OFF}-{cache}"
