"""What the demo promises, each as a pure function of what was measured. A promise that does not hold makes the command fail."""

from dataclasses import dataclass

from pdd_cli.demo.results import Check, LegResult, Pair

_TOO_SLOW = ("Late", "Failed")  # a time limit has ended the claim, not its content


@dataclass(frozen=True, slots=True)
class Thresholds:
    """`speedup`: TTFT off / on at the longest prompt, at least. `own_cache`: on / own cache, at most."""

    speedup: float = 5.0
    own_cache: float = 1.5

    @classmethod
    def of(cls, quick: bool) -> "Thresholds":
        """A quick conversation has less history to save: less is promised."""
        return cls(speedup=2.0) if quick else cls()


def check_same_replies(legs: list[LegResult]) -> Check:
    """Greedy replies do not depend on where the KV came from."""
    texts = [tuple(turn.text for turn in leg.turns) for leg in legs]
    for leg, other in zip(legs[1:], texts[1:], strict=True):
        for number, (expected, found) in enumerate(zip(texts[0], other, strict=True), start=1):
            if expected != found:
                detail = f"turn {number} says {found!r} with {leg.title}, but {expected!r} with {legs[0].title}"
                return Check("same replies", False, detail)
    return Check("same replies", True, f"all {len(texts[0])} replies are the same text in all {len(legs)} legs")


def whole_blocks_before(leg: LegResult, index: int, block_size: int) -> int:
    """Tokens in whole blocks that decode computed in the turn before turn `index`, as far as this prompt may use them.

    The last token a model says is not computed any more, and one token of a prompt always is computed afresh.
    """
    before, turn = leg.turns[index - 1], leg.turns[index]
    held = before.prompt_tokens + max(0, before.completion_tokens - 1)
    usable = min(held, turn.prompt_tokens - 1)
    return usable // block_size * block_size


def check_reads_everything(leg: LegResult, block_size: int, threshold_tokens: int) -> Check:
    """Every warm turn found all whole blocks of the turns before, by reading them or in P's own cache.

    What P's own cache lacks is not asked for if it is less than `threshold_tokens`: computing it is cheaper.
    """
    for index in range(1, len(leg.turns)):
        receipt = leg.turns[index].receipt
        found, wanted = receipt.read_tokens + receipt.local_tokens, whole_blocks_before(leg, index, block_size)
        worth_asking = wanted - receipt.local_tokens >= threshold_tokens
        if found < wanted and worth_asking:
            busy = "; is this machine busy with something else?" if receipt.outcome in _TOO_SLOW else ""
            detail = f"turn {index + 1} found {found} tokens of {wanted} ({receipt.outcome}){busy}"
            return Check("history reused", False, detail)
    return Check(
        "history reused",
        True,
        f"all {len(leg.turns) - 1} warm turns reused every whole block of the turns before that was worth reading",
    )


def check_read_bytes(leg: LegResult) -> Check:
    """Bytes were read, and the engines' own NIXL counters saw at least as many as the receipts say."""
    said, counted_by_engines = leg.read_bytes, leg.counted_bytes
    held = 0 < said <= counted_by_engines
    detail = f"P read {said / 1e6:.1f} MB by its receipts; NIXL counted {counted_by_engines / 1e6:.1f} MB into P"
    return Check("bytes read", held, detail)


def speedup(pair: Pair) -> float:
    """TTFT off / TTFT on at the longest prompt."""
    return pair.off.longest.ttft_seconds / pair.on.longest.ttft_seconds


def check_speedup(pair: Pair, at_least: float) -> Check:
    ratio = speedup(pair)
    detail = f"{ratio:.1f} times faster at {pair.on.longest.prompt_tokens} prompt tokens (promised: {at_least:g})"
    return Check("speed-up", ratio >= at_least, detail)


def check_growth(pair: Pair) -> Check:
    """The longer the history, the more it saves."""
    first, last = (pair.off.turns[index].ttft_seconds / pair.on.turns[index].ttft_seconds for index in (1, -1))
    return Check(
        "grows", last > first, f"from {first:.1f} times in turn 2 to {last:.1f} times in turn {len(pair.on.turns)}"
    )


def own_cache_ratios(emptied: Pair, kept: Pair) -> list[float]:
    """TTFT with everything read from elsewhere / TTFT with everything in P's own cache, for every warm turn."""
    turns = zip(emptied.on.turns[1:], kept.off.turns[1:], strict=True)
    return [read.ttft_seconds / own.ttft_seconds for read, own in turns]


def check_own_cache(emptied: Pair, kept: Pair, at_most: float) -> Check:
    """Reading is about as good as having. Judged at the longest prompt, where most is read."""
    ratios = own_cache_ratios(emptied, kept)
    detail = (
        f"{ratios[-1]:.2f} times own cache at the longest prompt (promised: {at_most:g}); worst turn {max(ratios):.2f}"
    )
    return Check("near own cache", ratios[-1] <= at_most, detail)


def check_less_computed(pair: Pair) -> Check:
    """Several P: reuse saves prompt tokens."""
    off, on = pair.off.computed_tokens, pair.on.computed_tokens
    return Check(
        "less computed",
        on < off,
        f"P engines computed {off} prompt tokens with reuse off, {on} with it on ({off / on:.2f} times)",
    )


def check_nothing_held(usage: dict[str, float]) -> Check:
    """`usage` is kv_cache_usage_perc by engine, after the last turn."""
    held = {name: share for name, share in usage.items() if share > 0}
    detail = "kv_cache_usage_perc is 0 on " + ", ".join(usage)
    if held:
        detail = "still held: " + ", ".join(f"{name} {share:.4f}" for name, share in held.items())
    return Check("nothing held", not held, detail)
