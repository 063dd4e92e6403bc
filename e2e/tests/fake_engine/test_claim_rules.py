"""What a claim meets: silent, refusing, broken, replaced and full owners, and the limits of both sides."""

import asyncio
from typing import Any

import pytest

from pdd_e2e.engine_pair import claim_from
from pdd_e2e.fake_engine import Address, BrokenRead, LateAnswer, Reason, RefuseClaim, SlowRead
from pdd_e2e.fake_engine.claims import Refusal
from pdd_e2e.fake_engine.fabric import Ask

IDS = [300 + position * 7 % 200 for position in range(70)]


async def pair(start: Any, introduce: Any, **options: Any) -> tuple[Any, Any]:
    """A reader and an owner that holds IDS (64 tokens of it)."""
    p, d = await start("p", **options), await start("d", role="Decode", **options)
    await introduce(p, d)
    await d.http.complete(IDS)
    return p, d


async def claim(reader: Any, *owners: Any, **fields: Any) -> Any:
    return await reader.http.complete(IDS, 3, **claim_from(*(owner.http for owner in owners)), **fields)


async def test_unconnected_then_connected(start: Any) -> None:
    p, d = await start("p", connect_seconds=0.05), await start("d", role="Decode")
    await d.http.complete(IDS)
    answer = await claim(p, d)
    assert answer.receipt["outcome"] == "Unconnected"
    await p.inside.core.pulse.wait_until(lambda: d.inside.claim_address in p.inside.core.reader.connected)
    assert (await p.http.complete([*IDS, 301], **claim_from(d.http))).receipt["local_tokens"] == 64
    assert p.inside.prefix_cache.reset()
    assert (await claim(p, d)).receipt["outcome"] == "Read"


async def test_late_answer_is_computed_and_its_grant_let_go(start: Any, introduce: Any) -> None:
    p, d = await pair(start, introduce, answer_timeout_seconds=0.02)
    d.inside.script(LateAnswer(0.1))
    answer = await claim(p, d)
    assert (answer.receipt["outcome"], answer.receipt["answer_ms"]) == ("Late", None)
    assert d.inside.held_blocks == 4, "granted, and on its way"
    await d.inside.core.pulse.wait_until(lambda: d.inside.held_blocks == 0)


@pytest.mark.parametrize("reason", [Reason.STOPPING, Reason.ASLEEP, Reason.OWNER_FULL])
async def test_refused(start: Any, introduce: Any, reason: Reason) -> None:
    p, d = await pair(start, introduce)
    d.inside.script(RefuseClaim(reason))
    answer = await claim(p, d)
    assert (answer.receipt["outcome"], answer.receipt["reason"]) == ("Refused", reason)
    assert len(answer.token_ids) == 3


@pytest.mark.parametrize(("fault", "reason"), [(BrokenRead(), "Transfer"), (SlowRead(5.0), "Timeout")])
async def test_failed_read_is_computed(start: Any, introduce: Any, fault: Any, reason: str) -> None:
    p, d = await pair(start, introduce, read_timeout_seconds=0.05)
    d.inside.script(fault)
    answer = await claim(p, d)
    assert (answer.receipt["outcome"], answer.receipt["reason"]) == ("Failed", reason)
    assert answer.cached_tokens == 0
    assert answer.token_ids == (await claim(p, d, cache_salt="fresh")).token_ids
    assert p.inside.held_blocks == d.inside.held_blocks == 0


async def test_dead_owner_and_its_successor(start: Any, introduce: Any) -> None:
    p, d = await pair(start, introduce)
    before = d.inside.engine_id
    await d.inside.kill()
    assert (await claim(p, d)).receipt["outcome"] == "Unconnected"
    assert p.inside.prefix_cache.reset()
    await d.inside.restart()
    assert d.inside.engine_id != before
    await p.inside.core.pulse.wait_until(lambda: d.inside.claim_address in p.inside.core.reader.connected)
    assert (await claim(p, d)).receipt["outcome"] == "Empty", "the successor has an empty cache"


async def test_owner_replaced_unnoticed(start: Any, introduce: Any) -> None:
    p, d = await pair(start, introduce)
    await d.inside.restart()
    await d.http.complete(IDS)
    assert (await claim(p, d)).receipt["outcome"] == "Unconnected"
    assert d.inside.held_blocks == 0
    assert p.inside.prefix_cache.reset()
    await p.inside.core.pulse.wait_until(lambda: d.inside.claim_address in p.inside.core.reader.connected)
    assert (await claim(p, d)).receipt["outcome"] == "Read"


async def test_owner_that_dies_during_the_read(start: Any, introduce: Any) -> None:
    p, d = await pair(start, introduce)
    d.inside.script(SlowRead(0.1))
    request = asyncio.create_task(claim(p, d))
    await d.inside.core.pulse.wait_until(lambda: d.inside.script_queue.pending == 0)
    await d.inside.kill()
    answer = await request
    assert (answer.receipt["outcome"], answer.receipt["reason"]) == ("Failed", "Transfer")
    assert len(answer.token_ids) == 3


async def test_another_revision_is_never_connected(start: Any) -> None:
    p, d = await start("p", introduce_timeout_seconds=1.0), await start("d", role="Decode", revision="2")
    answer = await p.http.complete([300], **claim_from(d.http, introduce=True))
    assert (answer.receipt["outcome"], answer.receipt["connected"]) == ("Introduced", [])
    await d.http.complete(IDS)
    receipt = (await claim(p, d)).receipt
    assert (receipt["outcome"], receipt["reason"]) == ("Refused", "Group")


async def test_a_question_from_another_revision_is_refused(start: Any) -> None:
    """A second guard: the greeting already keeps such readers away."""
    d = await start("d", role="Decode")
    ask = Ask("reader", Address("127.0.0.1", 9), "another group", (b"h",))
    assert d.inside.core.owner.answer(ask) == Refusal(d.inside.claim_address, Reason.GROUP)


async def test_introduction_waits_for_an_engine_that_is_starting(start: Any) -> None:
    p, d = await start("p"), await start("d", role="Decode")
    await d.inside.kill()
    request = asyncio.create_task(p.http.complete([300], **claim_from(d.http, introduce=True)))
    await p.inside.core.pulse.wait_until(lambda: p.inside.waiting == 1)
    await d.inside.restart()
    assert (await request).receipt["connected"] == [d.http.card.address()]


async def test_introduction_ends_at_its_time_limit(start: Any) -> None:
    p = await start("p", introduce_timeout_seconds=0.05)
    answer = await p.http.complete([300], **claim_from({"host": "127.0.0.1", "port": 9}, introduce=True))
    assert (answer.receipt["outcome"], answer.receipt["connected"]) == ("Introduced", [])


async def test_longest_grant_wins_and_the_other_is_let_go(start: Any, introduce: Any) -> None:
    p, d = await pair(start, introduce)
    other = await start("o")
    await introduce(p, other)
    await other.http.complete(IDS[:40])
    answer = await claim(p, other, d)
    assert answer.receipt["owner"] == d.http.card.address()
    assert answer.receipt["read_tokens"] == 64
    assert other.inside.held_blocks == d.inside.held_blocks == 0
    assert p.inside.read_tokens_from == {d.inside.claim_address: 64}


async def test_only_so_many_owners_are_asked(start: Any, introduce: Any) -> None:
    p, d = await pair(start, introduce, max_owners_asked=1)
    other = await start("o")
    await introduce(p, other)
    assert (await claim(p, other, d)).receipt["outcome"] == "Empty"


async def test_complete_grant_ends_the_waiting(start: Any, introduce: Any) -> None:
    p, d = await pair(start, introduce, answer_timeout_seconds=5.0)
    slow = await start("s")
    await introduce(p, slow)
    slow.inside.script(LateAnswer(4.0))
    answer = await claim(p, slow, d)
    assert answer.receipt["outcome"] == "Read"
    assert answer.receipt["answer_ms"] < 2_000


async def test_threshold(start: Any, introduce: Any) -> None:
    p, d = await pair(start, introduce, threshold_tokens=64)
    assert (await p.http.complete(IDS[:60], **claim_from(d.http))).receipt["outcome"] == "Local"
    assert p.inside.prefix_cache.reset()
    changed = [*IDS[:33], 499, *IDS[34:]]
    assert (await p.http.complete(changed, **claim_from(d.http))).receipt["outcome"] == "Empty", "32 tokens are no gain"
    assert p.inside.prefix_cache.reset()
    assert (await claim(p, d)).receipt["read_tokens"] == 64


async def test_held_claims_of_one_reader_are_limited(start: Any, introduce: Any) -> None:
    p, d = await pair(start, introduce, max_claims_per_reader=1)
    d.inside.script(SlowRead(0.2))
    slow = asyncio.create_task(claim(p, d))
    await d.inside.core.pulse.wait_until(lambda: d.inside.held_blocks == 4)
    second = await claim(p, d)
    assert (second.receipt["outcome"], second.receipt["reason"]) == ("Refused", "ReaderFull")
    assert (await slow).receipt["outcome"] == "Read"


async def test_held_blocks_are_limited(start: Any, introduce: Any) -> None:
    p, d = await pair(start, introduce, cache_blocks=12, max_held_share=0.25)
    d.inside.script(SlowRead(0.2))
    slow = asyncio.create_task(claim(p, d))
    await d.inside.core.pulse.wait_until(lambda: d.inside.held_blocks == 3)
    second = await claim(p, d)
    assert (second.receipt["outcome"], second.receipt["reason"]) == ("Refused", "OwnerFull")
    assert (await slow).receipt["read_tokens"] == 48, "what there was room for"


async def test_hold_ends_by_time(start: Any, introduce: Any, clock: Any) -> None:
    p, d = await pair(start, introduce, answer_timeout_seconds=0.02, hold_seconds=15.0)
    d.inside.script(LateAnswer(3600.0))
    await claim(p, d)
    clock.now += 14.9
    assert d.inside.held_blocks == 4
    clock.now += 0.1
    assert d.inside.held_blocks == 0


async def test_a_grant_that_may_end_before_the_read_is_not_used(start: Any, introduce: Any) -> None:
    p, d = await pair(start, introduce, hold_seconds=1.0, read_timeout_seconds=1.0)
    assert (await claim(p, d)).receipt["outcome"] == "Late"
    assert d.inside.held_blocks == 0


async def test_a_readers_successor_frees_what_it_held(start: Any, introduce: Any) -> None:
    p, d = await pair(start, introduce, answer_timeout_seconds=0.02)
    d.inside.script(LateAnswer(3600.0))
    await claim(p, d)
    assert d.inside.held_blocks == 4
    await p.inside.restart()
    await introduce(p, d)
    assert d.inside.held_blocks == 0


async def test_a_successors_first_question_frees_too(start: Any) -> None:
    d = await start("d", role="Decode")
    await d.http.complete(IDS)
    hashes = tuple(block.hash for block in d.inside.prefix_cache.blocks if block.hash is not None)
    for reader in ("first", "second", "second"):
        d.inside.core.owner.answer(Ask(reader, Address("127.0.0.1", 9), d.inside.group, hashes))
    assert d.inside.core.owner.held_blocks == 8, "both of the second, none of the first"
    d.inside.core.owner.replaced("third", Address("127.0.0.1", 9))
    assert d.inside.held_blocks == 0


async def test_held_blocks_survive_pressure_at_the_owner(start: Any, introduce: Any) -> None:
    p, d = await pair(start, introduce, cache_blocks=12)
    right = (await d.http.complete(IDS, 3)).token_ids
    d.inside.script(SlowRead(0.2))
    reading = asyncio.create_task(claim(p, d))
    await d.inside.core.pulse.wait_until(lambda: d.inside.held_blocks == 4)
    for seed in range(4):
        await d.http.complete([300 + seed] * 100)
    answer = await reading
    assert answer.receipt["outcome"] == "Read"
    assert answer.token_ids == right


async def test_without_the_hold_the_reader_gets_foreign_blocks(start: Any, introduce: Any) -> None:
    """Control of the test above: the owner lets go at once."""
    p, d = await pair(start, introduce, cache_blocks=12)
    right = (await d.http.complete(IDS, 3)).token_ids
    d.inside.script(SlowRead(0.2))
    reading = asyncio.create_task(claim(p, d))
    await d.inside.core.pulse.wait_until(lambda: d.inside.held_blocks == 4)
    d.inside.core.owner.replaced("somebody else", p.inside.claim_address)
    for seed in range(4):
        await d.http.complete([300 + seed] * 100)
    answer = await reading
    assert answer.receipt["outcome"] == "Read"
    assert answer.token_ids != right
