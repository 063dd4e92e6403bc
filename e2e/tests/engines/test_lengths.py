"""Prompts of every length, up to the model's limit and around every block boundary, of which the owner holds any part."""

import asyncio

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pdd_e2e.engines.answers import check_same
from pdd_e2e.engines.prompts import token_ids
from pdd_e2e.engines.sets import LIMIT_TOKENS
from pdd_e2e.engines.world import World

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]
BLOCK = 32
LONGEST = LIMIT_TOKENS - 1  # one token is generated

near_a_boundary = st.builds(
    lambda blocks, more: blocks * BLOCK + more, st.integers(1, LONGEST // BLOCK), st.integers(-1, 1)
).filter(lambda tokens: tokens <= LONGEST)
lengths = st.one_of(near_a_boundary, st.integers(1, LONGEST))


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # every example uses ids of its own
)
@given(prompt=lengths, owned=lengths, common=st.one_of(near_a_boundary, st.integers(0, LONGEST)))
@example(prompt=1, owned=1, common=1)
@example(prompt=BLOCK, owned=BLOCK, common=BLOCK)
@example(prompt=BLOCK + 1, owned=BLOCK, common=BLOCK)
@example(prompt=2 * BLOCK, owned=2 * BLOCK + 1, common=2 * BLOCK - 1)
@example(prompt=LONGEST, owned=LONGEST, common=LONGEST)
async def test_any_length(claims: World, prompt: int, owned: int, common: int) -> None:
    ids = token_ids(prompt)
    held = [*ids[:common], *token_ids(max(owned - common, 0))][:owned]
    reference = asyncio.ensure_future(claims.reference.ask(ids))
    salt = f"length-{ids[:4]}"
    await claims.leg(claims.decode, [], held, salt)
    answer, expected = await claims.leg(claims.prefill, [claims.decode], ids, salt)
    check_same(answer, await reference)
    expected.check(answer.receipt)
