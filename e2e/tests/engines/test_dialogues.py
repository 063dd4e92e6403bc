"""Conversations over claims: what is read is what the other engine holds of exactly this history, and the answer is the reference's."""

import asyncio

import pytest

from pdd_e2e.engines.answers import apart
from pdd_e2e.engines.dialogues import NEXT_TURNS, after, base, edited, extended, other_conversation
from pdd_e2e.engines.node import Node
from pdd_e2e.engines.world import World

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]


async def test_the_model_depends_on_its_history(reference: Node) -> None:
    """Without this, wrong KV would go unseen and everything else here would prove nothing."""
    one, other, word = await asyncio.gather(
        *(reference.ask(make("Yes, I do.")) for make in (extended, other_conversation, edited))
    )
    assert apart(one.tops[0], other.tops[0]) > 1
    assert apart(one.tops[0], word.tops[0]) > 0.01


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("kind", NEXT_TURNS)
async def test_next_turn(claims: World, salt: str, kind: str, streamed: bool) -> None:
    first = await claims.turn(base(), salt, 24, streamed=streamed)
    first.check()
    await claims.forget(claims.prefill)  # it has lost the conversation, as one of many prefill engines has
    messages = NEXT_TURNS[kind](first.decode.text)
    second = await claims.turn(messages, salt, streamed=streamed)
    second.check()
    third = await claims.turn(after(messages, second.decode.text), salt, streamed=streamed)
    third.check()
