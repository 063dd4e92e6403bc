"""A running set of claiming engines with its reference, and one turn over them as the router would drive it.

Each turn is served by prefill (one token, asking decode and the other prefill engines), by decode (asking prefill) and by the reference; what was
read is compared with what the engines must hold, what was answered with the reference.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from pdd_cli.local.engine import Engine
from pdd_cli.local.stack import LocalStack
from pdd_cli.local.waiting import until
from pdd_e2e.engines.answers import Answer, Json, check_same
from pdd_e2e.engines.held import BLOCK, Holdings, whole_blocks
from pdd_e2e.engines.node import Node, Prompt
from pdd_e2e.engines.sets import BYTES_PER_TOKEN

DECODED_TOKENS = 6


def claim(*owners: Node | Json) -> Json:
    """`kv_transfer_params` as a field of a request: a claim on these owners."""
    addresses = [owner.address if isinstance(owner, Node) else owner for owner in owners]
    return {"kv_transfer_params": {"claim": {"version": 1, "owners": addresses}}}


@dataclass(frozen=True, slots=True)
class Expected:
    """What a receipt must say."""

    local: int
    read: int
    outcome: str
    bytes_per_token: int

    def check(self, receipt: Json) -> None:
        """Raises AssertionError with both."""
        seen = (receipt["outcome"], receipt["local_tokens"], receipt["read_tokens"], receipt["read_bytes"])
        wanted = (self.outcome, self.local, self.read, self.read * self.bytes_per_token)
        if seen != wanted:
            raise AssertionError(f"outcome, local tokens, read tokens, read bytes are {seen}, not {wanted}: {receipt}")


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn: both legs, the reference, and what each leg had to read."""

    prefill: Answer
    decode: Answer
    reference: Answer
    of_prefill: Expected
    of_decode: Expected

    def check(self) -> None:
        """Everything: what was read and what was answered."""
        self.check_answers()
        self.of_prefill.check(self.prefill.receipt)
        self.of_decode.check(self.decode.receipt)

    def check_answers(self) -> None:
        """What was answered."""
        check_same(self.prefill, self.reference)
        check_same(self.decode, self.reference)


async def connect(reader: Node, owners: Sequence[Json]) -> None:
    """Introduce a reader to these owners until it is connected with all of them. Raises AssertionError if it is not within two minutes."""

    async def connected() -> bool:
        answered = await reader.introduce(owners)
        return all(owner in answered for owner in owners)

    if not await until(connected, every_seconds=1.0, timeout_seconds=120):
        raise AssertionError(f"{reader.name} cannot be connected with all of {owners}")


class World:
    """Engines by role. `holdings` is what they must hold. Engines that take no part in turns are not among `prefills`."""

    def __init__(
        self,
        stack: LocalStack,
        reference: Node,
        session: aiohttp.ClientSession,
        prefills: Sequence[Engine] | None = None,
        bytes_per_token: int = BYTES_PER_TOKEN,
    ) -> None:
        self.stack = stack
        self.reference = reference
        self.prefills = [Node(process, session) for process in (stack.prefills if prefills is None else prefills)]
        self.decode = Node(stack.decodes[0], session)
        self.holdings = Holdings()
        self._bytes_per_token = bytes_per_token
        self._introduced = False

    @property
    def prefill(self) -> Node:
        return self.prefills[0]

    @property
    def nodes(self) -> list[Node]:
        """All but the reference."""
        return [*self.prefills, self.decode]

    async def ready(self) -> None:
        """What every test starts from: all engines run, know each other and hold nothing."""
        ended = [node for node in self.nodes if node.stopped]
        await self.restart(ended)
        if not self._introduced or ended:
            await self.introduce()
        await self.forget(*self.nodes)

    async def restart(self, nodes: Sequence[Node]) -> None:
        """Start these again, in the same places."""
        for node in nodes:
            node.process.start()
            node.stopped = False
            self.holdings.emptied(node.name)
        await self.stack.wait_ready([node.process for node in nodes])

    async def introduce(self) -> None:
        """Connect every pair; AssertionError if one cannot be within two minutes (a handshake that fails is tried again, as by the router)."""
        for node in self.nodes:
            others = [other.address for other in self.nodes if other is not node]
            await connect(node, others)
        self._introduced = True

    async def forget(self, *nodes: Node) -> None:
        """Empty their prefix caches."""
        for node in nodes:
            await node.forget()
            self.holdings.emptied(node.name)

    async def leg(
        self,
        reader: Node,
        owners: Sequence[Node],
        prompt: Prompt,
        salt: str,
        max_tokens: int = 1,
        *,
        streamed: bool = False,
        **fields: Any,
    ) -> tuple[Answer, Expected]:
        """One leg, and what it had to read: by what was held before it began."""
        before = self.holdings.copy()
        answer = await reader.ask(prompt, max_tokens, streamed=streamed, cache_salt=salt, **claim(*owners), **fields)
        expected = self._expected(before, reader, owners, salt, answer.prompt)
        self.holdings.computed(reader.name, salt, answer.prompt, answer.tokens)
        return answer, expected

    async def turn(
        self,
        prompt: Prompt,
        salt: str,
        max_tokens: int = DECODED_TOKENS,
        *,
        streamed: bool = False,
        prefill: Node | None = None,
    ) -> Turn:
        """Both legs and, beside them, the reference."""
        prefill = prefill or self.prefill
        others = [node for node in self.prefills if node is not prefill]
        reference = asyncio.ensure_future(self.reference.ask(prompt, max_tokens))
        try:
            first, of_prefill = await self.leg(prefill, [self.decode, *others], prompt, salt)
            second, of_decode = await self.leg(self.decode, [prefill], prompt, salt, max_tokens, streamed=streamed)
            return Turn(first, second, await reference, of_prefill, of_decode)
        finally:
            reference.cancel()

    def _expected(
        self, holdings: Holdings, reader: Node, owners: Sequence[Node], salt: str, prompt: Sequence[int]
    ) -> Expected:
        local = holdings.tokens(reader.name, salt, prompt)
        held = max((holdings.tokens(owner.name, salt, prompt) for owner in owners), default=0)
        read = max(held - local, 0)
        outcome = "Read" if read else "Local" if whole_blocks(len(prompt) - 1) - local < BLOCK else "Empty"
        return Expected(local, read, outcome, self._bytes_per_token)
