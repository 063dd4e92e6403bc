"""Situations that the suite and its controls both put engines into. They return what was seen; the tests judge."""

import asyncio

from pdd_e2e.engines.answers import Answer
from pdd_e2e.engines.node import Node
from pdd_e2e.engines.prompts import token_ids
from pdd_e2e.engines.world import claim

STEP_TOKENS = 128  # --max-num-batched-tokens: a longer prompt is computed in several steps
_IN_FLIGHT_SECONDS = 1.0
_WRONG_GRANT_SECONDS = 6.0


async def asked_while_computing(reader: Node, owner: Node, salt: str) -> tuple[Answer, list[int]]:
    """The reader's answer (three tokens) to a prompt whose first step the owner has scheduled and, its workers being stopped, not computed."""
    prompt = token_ids(3 * STEP_TOKENS + 7)
    with owner.frozen_workers():
        computing = asyncio.ensure_future(owner.ask(prompt, cache_salt=salt))
        # Nothing tells when a step is scheduled. If it is not yet, the owner has nothing to grant either, and the control fails.
        await asyncio.sleep(_IN_FLIGHT_SECONDS)
        asking = asyncio.ensure_future(reader.ask(prompt, 3, cache_salt=salt, **claim(owner)))
        await asyncio.wait(
            [asking], timeout=_WRONG_GRANT_SECONDS
        )  # what is wrongly granted is read when the workers go on
    await computing
    return await asking, prompt
