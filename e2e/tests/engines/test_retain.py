"""Mechanism Retain: handles with proof. What is read is what the handle proves of exactly this history, once; everything else is computed."""

import asyncio
from typing import Any

import pytest

from pdd_e2e.engines.answers import check_same
from pdd_e2e.engines.dialogues import NEXT_TURNS, base, edited, extended, other_conversation
from pdd_e2e.engines.handles import PREFILL_FOR_ANOTHER, HandlePair, Held, changed
from pdd_e2e.engines.node import all_unheld
from pdd_e2e.engines.sets import RETAIN_SECONDS

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]


async def nothing_held(pair: HandlePair) -> None:
    """Both engines are idle and hold nothing, and have read what they had to."""
    await all_unheld([pair.prefill, pair.decode], 2 * RETAIN_SECONDS)
    await pair.check_bytes()


async def held_turn(pair: HandlePair, salt: str, max_tokens: int = 24) -> tuple[Held, str]:
    """A first turn that decode keeps, and prefill forgets."""
    turn = await pair.turn(base(), salt, max_tokens)
    turn.check_answers()
    assert turn.held is not None
    await pair.prefill.wait_unheld()
    await pair.forget(pair.prefill)
    return turn.held, turn.decode.text


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("kind", NEXT_TURNS)
async def test_next_turn(retain_pair: HandlePair, salt: str, kind: str, streamed: bool) -> None:
    first = await retain_pair.turn(base(), salt, 24, streamed=streamed)
    first.check_answers()
    assert first.held is not None
    await retain_pair.prefill.wait_unheld()
    await retain_pair.forget(retain_pair.prefill)
    second = await retain_pair.turn(
        NEXT_TURNS[kind](first.decode.text), salt, held=first.held, keep=None, streamed=streamed
    )
    second.check_answers()
    if kind in ("extended", "reasoning stripped"):
        assert second.prefill_bytes > 0
    assert second.held is None
    await nothing_held(retain_pair)


async def test_without_keep_there_is_no_handle_and_nothing_is_held(retain_pair: HandlePair, salt: str) -> None:
    for keep in (
        None,
        {"retain": {"version": 1, "keep": False}},
        {"retain": {"version": 2, "keep": True}},
        {"retain": "yes"},
    ):
        turn = await retain_pair.turn(base(), salt, keep=keep)
        turn.check_answers()
        assert turn.held is None
    await nothing_held(retain_pair)


async def test_an_expired_handle_is_computed(retain_pair: HandlePair, salt: str) -> None:
    held, text = await held_turn(retain_pair, salt)
    await retain_pair.decode.wait_unheld(2 * RETAIN_SECONDS)
    before = dict(retain_pair.owed)
    turn = await retain_pair.turn(extended(text), salt, held=held, keep=None)
    turn.check_answers()
    retain_pair.owed[retain_pair.prefill.name] = before[retain_pair.prefill.name]  # prefill has read nothing
    await nothing_held(retain_pair)


async def test_a_replayed_handle_reads_once(retain_pair: HandlePair, salt: str) -> None:
    held, text = await held_turn(retain_pair, salt)
    reference = await retain_pair.reference.ask(extended(text))
    first, read = await retain_pair.prefill_leg(extended(text), salt, held)
    assert read > 0
    check_same(first, reference)
    await all_unheld([retain_pair.decode])
    await retain_pair.prefill.wait_unheld(2 * RETAIN_SECONDS)
    await retain_pair.forget(retain_pair.prefill)
    owed = dict(retain_pair.owed)
    again, _ = await retain_pair.prefill_leg(extended(text), salt, held)
    check_same(again, reference)
    retain_pair.owed = owed
    await nothing_held(retain_pair)


async def test_foreign_handles_read_nothing(retain_pair: HandlePair, salt: str) -> None:
    """Another tenant's for the same text; another conversation's."""
    held, text = await held_turn(retain_pair, salt)
    turn = await retain_pair.turn(extended(text), f"not-{salt}", held=held, keep=None)
    turn.check_answers()
    assert turn.prefill_bytes == 0
    await nothing_held(retain_pair)
    await retain_pair.forget(retain_pair.prefill, retain_pair.decode)
    held, text = await held_turn(retain_pair, f"second-{salt}")
    for messages in (other_conversation(text), edited(text)):
        turn = await retain_pair.turn(messages, f"third-{salt}", held=Held(held.params, (), ""), keep=None)
        turn.check_answers()
    await nothing_held(retain_pair)


def junk(held: Held) -> list[dict[str, Any]]:
    """What a handle could be and must not be used for."""
    good = held.params
    proof = good["proof"]
    return [
        {},
        {**PREFILL_FOR_ANOTHER, "remote_block_ids": "all"},
        {key: value for key, value in good.items() if key != "proof"},
        good | {"proof": proof[:-1]},
        good | {"proof": "00" * (len(proof) // 2)},
        good | {"proof": proof + proof},
        good | {"remote_block_ids": []},
        good | {"remote_block_ids": [[-1, 2]]},
        good | {"remote_block_ids": [[1 << 40]]},
        good | {"remote_block_ids": good["remote_block_ids"] * 2},
        good | {"remote_port": 70_000},
        good | {"remote_host": 5},
        good | {"tp_size": 0},
        good | {"remote_num_tokens": -1},
        good | {"remote_blocks_expiry_time": "never"},
        good | {"do_remote_prefill": True},
        good | {"do_remote_decode": "yes"},
        {"do_remote_decode": 1, "transfer_mode": []},
    ]


async def test_junk_handles_are_computed(retain_pair: HandlePair, salt: str) -> None:
    held, text = await held_turn(retain_pair, salt)
    reference = await retain_pair.reference.ask(extended(text))
    for number, params in enumerate(junk(held)):
        answer = await retain_pair.prefill.ask(extended(text), cache_salt=f"{salt}-{number}", kv_transfer_params=params)
        check_same(answer, reference)
    await nothing_held(retain_pair)


async def test_more_than_the_cap_is_not_kept(retain_pair: HandlePair, salt: str) -> None:
    """Half of decode's blocks may be kept; what is more is answered without a handle, not refused."""
    turns = [await retain_pair.turn(base(), f"{salt}-{number}") for number in range(6)]
    for turn in turns:
        turn.check_answers()
    assert turns[0].held is not None
    assert turns[-1].held is None
    assert await retain_pair.decode.metric("vllm:kv_cache_usage_perc") <= 0.5
    await nothing_held(retain_pair)


@pytest.mark.ends_engines(1)
async def test_handles_of_dead_engines_are_computed(retain_pair: HandlePair, salt: str) -> None:
    """Both die and start again in the same places: neither's handle is good for anything, and both are good for new ones."""
    held, text = await held_turn(retain_pair, salt)
    first, _ = await retain_pair.prefill_leg(base(), f"second-{salt}", None)
    assert first.params is not None
    await asyncio.gather(retain_pair.prefill.kill(), retain_pair.decode.kill())
    retain_pair.prefill.process.start()
    retain_pair.decode.process.start()
    await retain_pair.stack.wait_ready([retain_pair.prefill.process, retain_pair.decode.process])
    retain_pair.started_again(retain_pair.prefill, retain_pair.decode)
    dead = Held(held.params, (), "")
    turn = await retain_pair.turn(extended(text), salt, held=dead, keep=None)
    turn.check_answers()
    answer = await retain_pair.decode.ask(base(), 2, cache_salt=f"second-{salt}", kv_transfer_params=first.params)
    check_same(answer, await retain_pair.reference.ask(base(), 2))
    held, text = await held_turn(retain_pair, f"third-{salt}")
    turn = await retain_pair.turn(extended(text), f"third-{salt}", held=held, keep=None)
    turn.check_answers()
    assert turn.prefill_bytes > 0
    await nothing_held(retain_pair)


async def test_a_handle_that_leads_nowhere_is_computed(retain_pair: HandlePair, salt: str) -> None:
    held, text = await held_turn(retain_pair, salt)
    nowhere = changed(held, remote_engine_id="another", remote_port=1)
    answer = await retain_pair.prefill.ask(extended(text), cache_salt=salt, kv_transfer_params=nowhere.params)
    check_same(answer, await retain_pair.reference.ask(extended(text)))
    await nothing_held(retain_pair)
