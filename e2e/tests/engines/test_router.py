"""The real router in front of real engines: whole conversations as a client has them, and nothing held afterwards."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from pdd_cli.demo.receipt import HEADER, Receipt, parse_receipt
from pdd_cli.local.progress import Silent
from pdd_cli.local.router import Router, RouterSpec
from pdd_e2e.engines.answers import Answer, answer_of_body, answer_of_stream, check_same
from pdd_e2e.engines.dialogues import Messages, after, base, edited, extended, reasoning_stripped
from pdd_e2e.engines.held import whole_blocks
from pdd_e2e.engines.node import all_unheld
from pdd_e2e.engines.sets import HOLD_SECONDS
from pdd_e2e.engines.world import World

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]
KEYS = {"key-of-one-tenant": "one", "key-of-another-tenant": "another"}
ONE, ANOTHER = KEYS
_ALWAYS_PREFILL = {"runOnDecodeBelowTokens": 0, "recomputeThresholdTokens": 32}


@pytest_asyncio.fixture(loop_scope="session")
async def router(claims: World, tmp_path: Path) -> AsyncIterator[Router]:
    """Fresh, and connected with every engine."""
    specs = [node.process.spec for node in claims.nodes]
    router = Router(RouterSpec("suite", api_keys=KEYS, settings=_ALWAYS_PREFILL), specs, tmp_path, tmp_path, None)
    router.start()
    try:
        await router.wait_ready(claims.reference.session, Silent())
        yield router
    finally:
        await router.stop()


async def ask(
    claims: World, router: Router, messages: Messages, key: str, max_tokens: int = 6, *, streamed: bool = False
) -> tuple[Answer, Receipt]:
    """A client's question, and what the router says of it."""
    body = claims.decode.body(messages, max_tokens, stream=streamed)
    url, headers = f"{router.url}/v1/chat/completions", {"Authorization": f"Bearer {key}"}
    async with claims.decode.session.post(url, json=body, headers=headers) as response:
        assert response.status == 200, await response.text()
        receipt = parse_receipt(response.headers.get(HEADER), 0)
        if streamed:
            return answer_of_stream([line async for line in response.content]), receipt
        return answer_of_body(await response.json()), receipt


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("change", [extended, reasoning_stripped, edited])
async def test_a_conversation(claims: World, router: Router, change: Callable[[str], Messages], streamed: bool) -> None:
    first, _ = await ask(claims, router, base(), ONE, 24, streamed=streamed)
    check_same(first, await claims.reference.ask(base(), 24))
    await claims.forget(*claims.prefills)
    messages = change(first.text)
    second, receipt = await ask(claims, router, messages, ONE, streamed=streamed)
    check_same(second, await claims.reference.ask(messages, 6))
    if change is not edited:
        assert receipt.outcome == "Read"
        assert receipt.read_tokens >= whole_blocks(len(first.prompt) - 1)
    messages = after(messages, second.text)
    third, receipt = await ask(claims, router, messages, ONE, streamed=streamed)
    check_same(third, await claims.reference.ask(messages, 6))
    assert receipt.local_tokens + receipt.read_tokens >= whole_blocks(len(second.prompt) - 1)
    await all_unheld(claims.nodes, HOLD_SECONDS / 2)


async def test_two_tenants_with_the_same_text(claims: World, router: Router) -> None:
    reference = await claims.reference.ask(base(), 6)
    first, _ = await ask(claims, router, base(), ONE)
    other, receipt = await ask(claims, router, base(), ANOTHER)
    check_same(first, reference)
    check_same(other, reference)
    assert (receipt.read_bytes, receipt.local_tokens) == (0, 0)


async def test_clients_that_leave_at_any_byte(claims: World, router: Router) -> None:
    source = random.Random(17)
    url, headers = f"{router.url}/v1/chat/completions", {"Authorization": f"Bearer {ONE}"}

    async def one(cut: int) -> None:
        body = claims.decode.body(base(), 40, stream=True)
        async with aiohttp.ClientSession() as own, own.post(url, json=body, headers=headers) as response:
            seen = 0
            while seen < cut and (piece := await response.content.read(cut - seen)):
                seen += len(piece)
            response.close()

    for _ in range(3):
        await asyncio.gather(*(one(source.randrange(4_000)) for _ in range(4)))
    await all_unheld(claims.nodes, HOLD_SECONDS / 2)
    answer, _ = await ask(claims, router, base(), ONE)
    check_same(answer, await claims.reference.ask(base(), 6))
