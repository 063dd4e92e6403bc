"""Each promise, with measurements that keep it and the smallest change that breaks it."""

import dataclasses

import pytest

from pdd_cli.demo import checks
from pdd_cli.demo.results import LegResult, Pair, TurnResult


def with_turn(leg: LegResult, index: int, **changes: object) -> LegResult:
    turns = list(leg.turns)
    turns[index] = dataclasses.replace(turns[index], **changes)
    return dataclasses.replace(leg, turns=tuple(turns))


def with_receipt(leg: LegResult, index: int, **changes: object) -> LegResult:
    return with_turn(leg, index, receipt=dataclasses.replace(leg.turns[index].receipt, **changes))


def test_same_replies(emptied: Pair) -> None:
    assert checks.check_same_replies([emptied.off, emptied.on]).held
    other = checks.check_same_replies([emptied.off, with_turn(emptied.on, 2, text="another reply")])
    assert not other.held
    assert "turn 3 says 'another reply'" in other.detail


@pytest.mark.parametrize(
    ("prompt_before", "generated", "prompt", "expected"),
    [
        (400, 12, 700, 384),  # 411 tokens computed: 12 whole blocks
        (405, 12, 700, 416),  # 416: the last token said is just not needed
        (405, 11, 700, 384),
        (400, 0, 700, 384),
        (640, 12, 641, 640),
        (640, 12, 640, 608),  # one token must be left to compute
        (10, 5, 100, 0),
    ],
)
def test_whole_blocks_before(emptied: Pair, prompt_before: int, generated: int, prompt: int, expected: int) -> None:
    leg = with_turn(emptied.on, 0, prompt_tokens=prompt_before, completion_tokens=generated)
    leg = with_turn(leg, 1, prompt_tokens=prompt)
    assert checks.whole_blocks_before(leg, 1, block_size=32) == expected


def test_reads_everything(emptied: Pair, kept: Pair) -> None:
    assert checks.check_reads_everything(emptied.on, 32, 64).held
    assert checks.check_reads_everything(kept.off, 32, 64).held
    assert not checks.check_reads_everything(emptied.off, 32, 64).held
    one_block_less = with_receipt(emptied.on, 3, read_tokens=emptied.on.turns[3].receipt.read_tokens - 32)
    found = checks.check_reads_everything(one_block_less, 32, 64)
    assert not found.held
    assert found.detail.startswith("turn 4 found")


def test_read_bytes(emptied: Pair) -> None:
    assert checks.check_read_bytes(emptied.on).held
    assert not checks.check_read_bytes(emptied.off).held, "nothing was read at all"
    assert not checks.check_read_bytes(with_turn(emptied.on, 2, counted_bytes=0.0)).held, "the engines saw less"


def test_speedup(emptied: Pair) -> None:
    assert checks.speedup(emptied) == pytest.approx(10.8)
    assert checks.check_speedup(emptied, 10.8 - 1e-9).held
    assert not checks.check_speedup(emptied, 10.9).held


def test_growth(emptied: Pair) -> None:
    assert checks.check_growth(emptied).held
    assert not checks.check_growth(Pair(emptied.off, with_turn(emptied.on, 4, ttft_seconds=2.0))).held


def test_own_cache(emptied: Pair, kept: Pair) -> None:
    assert checks.check_own_cache(emptied, kept, 1.5).held
    slow = Pair(emptied.off, with_turn(emptied.on, 4, ttft_seconds=1.6))
    assert not checks.check_own_cache(slow, kept, 1.5).held


def test_less_computed(emptied: Pair, kept: Pair) -> None:
    assert checks.check_less_computed(emptied).held
    assert not checks.check_less_computed(kept).held


def test_nothing_held() -> None:
    assert checks.check_nothing_held({"prefill-0": 0.0, "decode-0": 0.0}).held
    found = checks.check_nothing_held({"prefill-0": 0.0, "decode-0": 0.01})
    assert not found.held
    assert "decode-0 0.0100" in found.detail


def test_quick_promises_less() -> None:
    assert checks.Thresholds.of(quick=True).speedup < checks.Thresholds.of(quick=False).speedup == 5.0


def test_longest_turn_counts(emptied: Pair) -> None:
    turn: TurnResult = emptied.on.longest
    assert turn.number == 5


def test_a_claim_that_was_too_slow_asks_about_the_machine(emptied: Pair) -> None:
    late = with_receipt(emptied.on, 2, read_tokens=0, outcome="Late")
    assert "busy" in checks.check_reads_everything(late, 32, 64).detail
    empty = with_receipt(emptied.on, 2, read_tokens=0, outcome="Empty")
    assert "busy" not in checks.check_reads_everything(empty, 32, 64).detail


def test_what_is_not_worth_asking_for_is_not_missed(kept: Pair) -> None:
    """P's own cache lacks one block of 32 tokens: less than the threshold of 64 is computed."""
    own = kept.on.turns[4].receipt.local_tokens
    one_block = with_receipt(kept.on, 4, local_tokens=own - 32)
    assert checks.check_reads_everything(one_block, 32, 64).held
    two_blocks = with_receipt(kept.on, 4, local_tokens=own - 64)
    assert not checks.check_reads_everything(two_blocks, 32, 64).held
