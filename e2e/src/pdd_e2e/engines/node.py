"""One running engine as the suite drives it: questions with everything that comparing needs, its cache emptied, its process signalled.

I/O only. Speaks HTTP as the router does (docs/protocol.md) and signals processes of the stack that it was made from, never others.
"""

import asyncio
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp

from pdd_cli.local.engine import Engine as Process
from pdd_cli.local.engines import HOST
from pdd_cli.local.process_groups import living_members
from pdd_cli.local.waiting import until
from pdd_e2e.engines.answers import TOP_LOGPROBS, Answer, Json, answer_of_body, answer_of_stream

Prompt = Sequence[int] | Sequence[Mapping[str, Any]]
"""Token ids (/v1/completions) or messages (/v1/chat/completions)."""

_POLL_SECONDS = 0.1
HELD_GAUGE = "vllm:kv_cache_usage_perc"


class Node:
    """An engine and its process."""

    def __init__(self, process: Process, session: aiohttp.ClientSession) -> None:
        self.process = process
        self.session = session
        self.stopped = False

    @property
    def name(self) -> str:
        return self.process.name

    @property
    def address(self) -> Json:
        """Its claim channel, as `owners` names it."""
        return {"host": HOST, "port": self.process.spec.claim_port}

    # ---- requests -------------------------------------------------------------------------------------------------------------

    def body(self, prompt: Prompt, max_tokens: int = 1, **fields: Any) -> Json:
        """Path-independent body: greedy, of exactly `max_tokens` tokens, with token ids and log-probabilities."""
        common = {
            "model": self.process.spec.served_name,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
        }
        if isinstance(prompt[0], int):
            return common | {"prompt": list(prompt), "logprobs": TOP_LOGPROBS} | fields
        return common | {"messages": list(prompt), "logprobs": True, "top_logprobs": TOP_LOGPROBS} | fields

    def path(self, body: Json) -> str:
        """Where a body goes."""
        return self.process.url + ("/v1/completions" if "prompt" in body else "/v1/chat/completions")

    async def ask(self, prompt: Prompt, max_tokens: int = 1, *, streamed: bool = False, **fields: Any) -> Answer:
        """The answer. Raises AssertionError unless it is a whole 200."""
        body = self.body(prompt, max_tokens, **fields)
        if streamed:
            body["stream"] = True
        async with self.session.post(self.path(body), json=body) as response:
            if response.status != 200:
                raise AssertionError(f"{self.name}: status {response.status}: {await response.text()}")
            if streamed:
                return answer_of_stream([line async for line in response.content])
            return answer_of_body(await response.json())

    async def introduce(self, owners: Sequence[Json]) -> list[Json]:
        """Have it connect with them; those that it is connected with."""
        claim = {"version": 1, "owners": list(owners), "introduce": True}
        answer = await self.ask([1], kv_transfer_params={"claim": claim})
        return list(answer.receipt["connected"])

    # ---- state ----------------------------------------------------------------------------------------------------------------

    async def forget(self) -> None:
        """Empty its prefix cache."""
        await self.process.empty_prefix_cache(self.session, timeout_seconds=60)

    async def metric(self, name: str) -> float:
        """A sample, summed over its labels; 0 where it is not shown (yet)."""
        return (await self.process.metrics(self.session)).get(name, 0.0)

    async def count(self, name: str, **labels: str) -> float:
        """A sample with just these labels, besides those that every sample of the engine has; 0 where it is not shown (yet)."""
        async with self.session.get(f"{self.process.url}/metrics") as response:
            lines = (await response.text()).splitlines()
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        found = [line for line in lines if line.startswith(f"{name}{{") and all(part in line for part in wanted)]
        return sum(float(line.rpartition(" ")[2]) for line in found)

    async def wait_metric(self, name: str, at_least: float, timeout_seconds: float = 60) -> None:
        """Raises AssertionError if the sample does not get there in time."""

        async def there() -> bool:
            return await self.metric(name) >= at_least

        if not await until(there, _POLL_SECONDS, timeout_seconds):
            raise AssertionError(f"{self.name}: {name} is {await self.metric(name)}, not {at_least}")

    async def wait_unheld(self, timeout_seconds: float = 30) -> None:
        """Returns when no block is held for anybody. Raises AssertionError with what is held if some are so after that time."""

        async def unheld() -> bool:
            return await self.metric(HELD_GAUGE) == 0.0

        if not await until(unheld, _POLL_SECONDS, timeout_seconds):
            raise AssertionError(f"{self.name}: {await self.metric(HELD_GAUGE):.4f} of its cache is still held")

    # ---- the process ----------------------------------------------------------------------------------------------------------

    def freeze(self) -> None:
        """Stop all its processes where they are."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let them go on."""
        self._signal(signal.SIGCONT)

    @contextmanager
    def frozen_workers(self, title: str = "Worker") -> Iterator[None]:
        """Its workers (or one, by its title) stand still meanwhile, so that a step stays in flight; scheduler, claim channel and server go on."""
        workers = self._titled(title)
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in workers:
                os.kill(pid, signal.SIGCONT)

    def terminate(self) -> None:
        """Ask its server process to end, as Kubernetes does."""
        if self.process.pid is not None:
            os.kill(self.process.pid, signal.SIGTERM)

    async def kill(self) -> None:
        """End all its processes at once, by SIGKILL."""
        self.stopped = True
        self._signal(signal.SIGKILL)
        await self.process.stop()

    def kill_worker(self, title: str) -> None:
        """End one of its workers at once, by SIGKILL. The engine does not outlive it."""
        self.stopped = True
        for pid in self._titled(title):
            os.kill(pid, signal.SIGKILL)

    def _titled(self, title: str) -> list[int]:
        """Processes of it with this in their title. Raises RuntimeError if there are none."""
        found = [pid for pid in self._members() if title in Path(f"/proc/{pid}/cmdline").read_text()]
        if not found:
            raise RuntimeError(f"{self.name} has no process called {title}")
        return found

    def _signal(self, number: signal.Signals) -> None:
        os.killpg(self._group(), number)

    def _members(self) -> list[int]:
        return living_members(self._group())

    def _group(self) -> int:
        if self.process.pid is None:
            raise RuntimeError(f"{self.name} does not run")
        return self.process.pid


async def all_unheld(nodes: Sequence[Node], timeout_seconds: float = 30) -> None:
    """`wait_unheld` of each."""
    await asyncio.gather(*(node.wait_unheld(timeout_seconds) for node in nodes))
