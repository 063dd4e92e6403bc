"""A pair of engines that hand blocks over by handles (Retain, or vLLM's own connector), and one turn over it as the router would drive it.

There are no receipts here: what was read is vLLM's own counter of bytes transferred.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

import aiohttp

from pdd_cli.local.stack import LocalStack
from pdd_e2e.engines.answers import Answer, Json, check_same
from pdd_e2e.engines.held import BLOCK, Holdings, common_prefix, whole_blocks
from pdd_e2e.engines.node import Node, Prompt
from pdd_e2e.engines.prompts import token_ids
from pdd_e2e.engines.sets import BYTES_PER_TOKEN

_BYTES = "vllm:nixl_bytes_transferred_sum"

PREFILL_FOR_ANOTHER: Json = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
KEEP: Json = {"retain": {"version": 1, "keep": True}}


@dataclass(frozen=True, slots=True)
class Held:
    """A handle, and the tokens whose blocks it names."""

    params: Json
    tokens: tuple[int, ...]
    salt: str


@dataclass(frozen=True, slots=True)
class HandleTurn:
    """One turn, and the bytes that each leg has to read by the rules of Retain."""

    prefill: Answer
    decode: Answer
    reference: Answer
    prefill_bytes: int
    decode_bytes: int
    held: Held | None

    def check_answers(self) -> None:
        """Raises AssertionError where an answer is not the reference's."""
        check_same(self.prefill, self.reference)
        check_same(self.decode, self.reference)


class HandlePair:
    """Prefill, decode and the reference. `owed` is what each has to have read so far."""

    def __init__(
        self,
        stack: LocalStack,
        reference: Node,
        session: aiohttp.ClientSession,
        bytes_per_token: int = BYTES_PER_TOKEN,
    ) -> None:
        self.stack = stack
        self._bytes_per_token = bytes_per_token
        self.reference = reference
        self.prefill = Node(stack.prefills[0], session)
        self.decode = Node(stack.decodes[0], session)
        self.holdings = Holdings()
        self.owed = {self.prefill.name: 0, self.decode.name: 0}

    async def forget(self, *nodes: Node) -> None:
        """Empty their prefix caches; possible when nothing is held."""
        for node in nodes:
            await node.forget()
            self.holdings.emptied(node.name)

    async def turn(
        self,
        prompt: Prompt,
        salt: str,
        max_tokens: int = 6,
        *,
        held: Held | None = None,
        keep: Json | None = KEEP,
        streamed: bool = False,
    ) -> HandleTurn:
        """Prefill reads by `held`, decode by prefill's handle; decode keeps with `keep`. The reference answers beside them."""
        reference = asyncio.ensure_future(self.reference.ask(prompt, max_tokens))
        try:
            first, prefill_bytes = await self.prefill_leg(prompt, salt, held)
            if first.params is None:
                raise AssertionError("prefill answered without a handle")
            second = await self.decode.ask(
                prompt, max_tokens, streamed=streamed, cache_salt=salt, kv_transfer_params=first.params | (keep or {})
            )
            decode_bytes = self._owe(self.decode, first.prompt, salt, first.prompt)
            self.holdings.computed(self.decode.name, salt, second.prompt, second.tokens)
            tokens = (*second.prompt, *second.tokens[:-1])
            next_held = None if second.params is None else Held(second.params, tokens, salt)
            return HandleTurn(first, second, await reference, prefill_bytes, decode_bytes, next_held)
        finally:
            reference.cancel()

    async def meet(self, prompt: Prompt, salt: str, unheld_seconds: float) -> None:
        """A read in each direction that is not judged: the first contact of two engines takes seconds, in which a handle may expire."""
        first = await self.turn(prompt, salt)
        await self.prefill.wait_unheld(unheld_seconds)
        await self.forget(self.prefill)
        await self.turn(prompt, salt, held=first.held, keep=None)
        for node in (self.prefill, self.decode):
            await node.wait_unheld(unheld_seconds)
            await node.ask(token_ids(3))  # an engine tells its numbers with its steps
            self.owed[node.name] = int(await node.metric(_BYTES))

    async def prefill_leg(self, prompt: Prompt, salt: str, held: Held | None) -> tuple[Answer, int]:
        """Prefill's answer, and the bytes it has to read."""
        params = PREFILL_FOR_ANOTHER if held is None else held.params
        answer = await self.prefill.ask(prompt, cache_salt=salt, kv_transfer_params=params)
        proven = () if held is None or held.salt != salt else held.tokens
        owed = self._owe(self.prefill, answer.prompt, salt, proven)
        self.holdings.computed(self.prefill.name, salt, answer.prompt, ())
        return answer, owed

    def _owe(self, reader: Node, prompt: tuple[int, ...], salt: str, held: tuple[int, ...]) -> int:
        local = self.holdings.tokens(reader.name, salt, prompt)
        proven = whole_blocks(min(common_prefix(held, prompt), len(prompt) - 1))
        tokens = proven - local if proven - local >= BLOCK else 0
        self.owed[reader.name] += tokens * self._bytes_per_token
        return tokens * self._bytes_per_token

    async def check_bytes(self) -> None:
        """All that was read since the engines started is all that had to be. Raises AssertionError with both."""
        for node in (self.prefill, self.decode):
            await node.wait_metric(_BYTES, self.owed[node.name])
            read = await node.metric(_BYTES)
            if read != self.owed[node.name]:
                raise AssertionError(f"{node.name} has read {read} bytes, not {self.owed[node.name]}")

    async def read_so_far(self, node: Node) -> float:
        """Bytes."""
        return await node.metric(_BYTES)

    def started_again(self, *nodes: Node) -> None:
        """These are new processes: they hold nothing and have read nothing."""
        for node in nodes:
            self.holdings.emptied(node.name)
            self.owed[node.name] = 0


def changed(held: Held, **fields: Any) -> Held:
    """A handle with some of its fields replaced."""
    return Held(held.params | fields, held.tokens, held.salt)
