"""Made-up results, as the demo measures them."""

from collections.abc import Callable

import pytest

from pdd_cli.demo.receipt import Receipt
from pdd_cli.demo.results import Cache, LegResult, Pair, TurnResult

MakeLeg = Callable[..., LegResult]
PROMPTS = (400, 700, 740, 1040, 1080)
GENERATED = 12
BLOCK = 32


def _turn(index: int, reuse: bool, cache: Cache, ttft: float, prefills: int) -> TurnResult:
    prompt = PROMPTS[index]
    held = (PROMPTS[index - 1] + GENERATED - 1) // BLOCK * BLOCK if index else 0
    local = held if cache is Cache.KEPT else 0
    read = held - local if reuse else 0
    receipt = Receipt(
        prefill=f"prefill-{index % prefills}",
        decode="decode-0",
        outcome="Read" if read else "Empty",
        owner="decode-0" if reuse else None,
        prompt_tokens=prompt,
        local_tokens=local,
        read_tokens=read,
        read_bytes=read * 46_080,
        seconds=ttft * 0.8,
    )
    return TurnResult(
        number=index + 1,
        is_tool_result=index % 2 == 1,
        prompt_tokens=prompt,
        completion_tokens=GENERATED,
        cached_tokens=held,
        ttft_seconds=ttft,
        seconds=ttft + 3,
        text=f"reply {index + 1}",
        receipt=receipt,
        read_seconds=read * 0.0001,
        counted_bytes=float(read * 46_080),
    )


@pytest.fixture
def make_leg() -> MakeLeg:
    def make(reuse: bool, cache: Cache = Cache.EMPTIED, prefills: int = 1) -> LegResult:
        def ttft(prompt: int) -> float:
            return 1.0 if reuse or cache is Cache.KEPT else prompt / 100

        turns = tuple(_turn(index, reuse, cache, ttft(prompt), prefills) for index, prompt in enumerate(PROMPTS))
        return LegResult(reuse, cache, turns)

    return make


@pytest.fixture
def emptied(make_leg: MakeLeg) -> Pair:
    return Pair(make_leg(False), make_leg(True))


@pytest.fixture
def kept(make_leg: MakeLeg) -> Pair:
    return Pair(make_leg(False, Cache.KEPT), make_leg(True, Cache.KEPT))
