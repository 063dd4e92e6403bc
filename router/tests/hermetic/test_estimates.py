"""What numbers of an engine are taken for: those of one prompt, of text, and of nothing else."""

from typing import Any

import pytest

from pdd_router.config import Limits
from pdd_router.openai.request import Endpoint, parse_request
from pdd_router.policy.chain import CHARS_PER_MEDIA, Chain, chain_of
from pdd_router.policy.estimate import INITIAL_CHARS_PER_TOKEN

COMPLETIONS = "/v1/completions"
PROMPTS = [f"Prompt {at} of several, all of which are longer than what one block holds. " * 4 for at in range(4)]


def chat(*parts: dict[str, Any]) -> Chain:
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": list(parts)}]}
    return chain_of(parse_request(Endpoint.CHAT, body, (None, None), Limits()))


def image(base64_chars: int) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * base64_chars}}


def test_media_are_a_constant_whatever_their_bytes_are() -> None:
    text = {"type": "text", "text": "What is this? " * 10}
    absent = {**text, "image_url": None}
    small, large, two = chat(text, image(4)), chat(text, image(400_000)), chat(text, image(4), image(400_000))
    assert small.chars == large.chars
    assert CHARS_PER_MEDIA < small.chars < CHARS_PER_MEDIA + 400
    assert 0 < two.chars - large.chars - CHARS_PER_MEDIA < 50
    assert small.links != chat(text, image(8)).links, "control: another image is another prompt"
    assert [chain.is_one_text for chain in (small, chat(text, text), chat(text, absent))] == [False, True, True]


@pytest.mark.parametrize("decode_alone", [False, True])
async def test_nothing_is_learned_from_several_prompts(cluster: Any, decode_alone: bool) -> None:
    """The characters are of all, a receipt's tokens of the first."""
    async with cluster(config={"recomputeThresholdTokens": 100_000} if decode_alone else {}) as c:
        estimator = c.router.services.estimator
        for _ in range(5):
            reply = await c.post(COMPLETIONS, {"model": "fake", "prompt": PROMPTS, "max_tokens": 2})
            assert (reply.status, reply.receipt["prefill"] is None) == (200, decode_alone)
        assert estimator.ratio("fake") == INITIAL_CHARS_PER_TOKEN
        await c.post(COMPLETIONS, {"model": "fake", "prompt": PROMPTS[0], "max_tokens": 2})
        assert estimator.ratio("fake") != INITIAL_CHARS_PER_TOKEN, "control: one prompt teaches"


async def test_usage_of_several_prompts_is_decodes_own(cluster: Any) -> None:
    """Prefill's receipt is of the first only."""
    async with cluster() as c:
        for prompts, own in ((PROMPTS, True), (PROMPTS[:1], False)):
            for engine in c.engines:
                engine.prefix_cache.reset()
            reply = await c.post(COMPLETIONS, {"model": "fake", "prompt": prompts, "max_tokens": 2})
            cached = reply.body["usage"]["prompt_tokens_details"]["cached_tokens"]
            prefill, decode = reply.receipt["prefill"], c.legs(c.decodes[0])[-1]
            of_prefill = prefill["local_tokens"] + prefill["read_tokens"]
            assert of_prefill != decode.cached_tokens, "control: they can be told apart"
            assert cached == (decode.cached_tokens if own else of_prefill)
