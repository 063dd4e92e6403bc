"""Retain against vLLM's own scheduler: each trap of the stock connector with the stock one falling in and ours not."""

import dataclasses
import random
from collections.abc import Callable
from hashlib import sha256
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import base_scheduler

from pdd_connector.engine_facts import UnsupportedEngineError
from pdd_connector.settings import ConnectorSettings, Direction, Mechanism, RetainSettings

Make = Callable[..., Any]

PLAIN = {"do_remote_decode": True, "do_remote_prefill": False, "remote_block_ids": None}
KEEP = {"retain": {"version": 1, "keep": True}}
RETAIN = ConnectorSettings(mechanism=Mechanism.RETAIN)
JUNK = [
    {"foo": 1}, {"do_remote_prefill": False}, {"do_remote_decode": False},
    {"retain": {"version": 1}}, {"retain": {"version": 2, "keep": True}}, {"retain": {"keep": True}},
]  # fmt: skip

pytestmark = pytest.mark.timeout(180)  # the first engine of a run imports torch


def tokens_of(length: int, seed: int = 0) -> list[int]:
    return [(seed * 7919 + index * 31 + 5) % 1000 for index in range(length)]


PROMPT = tokens_of(100)


def answer(tokens: list[int], count: int = 1) -> list[int]:
    """What an engine that has computed everything itself says after these tokens."""
    kv, out = 0, list[int]()
    for token in [*tokens, *[None] * count]:
        if token is None:
            token = kv % 1000
            out.append(token)
        kv = int.from_bytes(sha256(f"{kv},{token}".encode()).digest()[:6])
    return out


def taken(engine: Any) -> dict[str, Any]:
    return {key.removeprefix("pdd:"): value for key, value in (engine.recorder.take() or {}).items()}


def first_turn(prefill: Any, decode: Any, prompt: list[int], keep: dict[str, Any] | None = None) -> Any:
    """The prompt through prefill, then decode with prefill's handle; decode's result."""
    handed = prefill.run(prompt, PLAIN)
    assert handed.tokens == answer(prompt)
    result = decode.run(prompt, handed.params | (KEEP if keep is None else keep), max_tokens=20)
    prefill.step()
    assert prefill.held == 0
    return result


# ---- what must work -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 15, 16, 17, 31, 32, 33, 100, 128])
def test_both_directions_are_exact_around_every_block_boundary(make_engine: Make, length: int) -> None:
    settings = dataclasses.replace(RETAIN, recompute_threshold_tokens=0)
    prefill, decode = make_engine("Prefill", settings=settings), make_engine("Decode", settings=settings)
    prompt = tokens_of(length)
    handed = prefill.run(prompt, PLAIN)
    result = decode.run(prompt, (handed.params or {}) | KEEP, max_tokens=20)
    assert result.tokens == answer(prompt, 20)
    assert decode.blocks_read == (length - 1) // 16
    history = prompt + result.tokens
    second = [*history, *tokens_of(9, seed=3)]
    follow = prefill.run(second, result.params)
    assert follow.tokens == answer(second)
    # All of it but what is no whole block, and the last token, which was sampled and never computed.
    assert prefill.blocks_read == (len(history) - 1) // 16
    decode.step()
    assert decode.held == 0
    assert decode.run(second, follow.params, max_tokens=3).tokens == answer(second, 3)
    prefill.step()
    assert (prefill.held, decode.held) == (0, 0)


def test_what_prefill_has_itself_is_not_read(make_engine: Make) -> None:
    prefill, decode = make_engine("Prefill", prefix_caching=True), make_engine("Decode")
    prompt = tokens_of(160)
    result = first_turn(prefill, decode, prompt)
    second = [*prompt, *result.tokens, *tokens_of(70, seed=3)]
    assert prefill.run(second, result.params).tokens == answer(second)
    assert prefill.blocks_read == 0  # one block is less than the threshold
    decode.step()
    assert decode.held == 0  # and was given back all the same


def test_nothing_is_kept_unless_the_router_asks(make_engine: Make) -> None:
    prefill, decode = make_engine("Prefill"), make_engine("Decode")
    for keep in ({}, {"retain": {"version": 1, "keep": False}}):
        result = first_turn(prefill, decode, tokens_of(100), keep)
        assert result.params is None
        assert decode.held == 0
    assert taken(decode) == {}
    assert decode.worker._reqs_to_process == set()
    result = first_turn(prefill, decode, tokens_of(100))
    assert result.params is not None
    assert decode.held == 8
    assert taken(decode) == {"retained": 1, "blocks_retained": 8}


def test_decode_alone_is_kept_too(make_engine: Make) -> None:
    """Prefill failed and decode computed everything: the next turn can read it all the same."""
    prefill, decode = make_engine("Prefill"), make_engine("Decode")
    prompt = tokens_of(100)
    result = decode.run(prompt, KEEP, max_tokens=20)
    second = [*prompt, *result.tokens, 7]
    assert prefill.run(second, result.params).tokens == answer(second)
    assert prefill.blocks_read == 7
    decode.step()
    assert decode.held == 0
    assert taken(decode) == {"retained": 1, "blocks_retained": 0}


def test_kept_blocks_stay_under_the_cap(make_engine: Make) -> None:
    settings = dataclasses.replace(RETAIN, retain=RetainSettings(max_percent_of_blocks=20))
    decode = make_engine("Decode", settings=settings)
    results = [decode.run(tokens_of(100, seed), KEEP, max_tokens=20) for seed in range(4)]
    assert [result.params is not None for result in results] == [True, True, False, False]
    assert decode.held == 16
    assert taken(decode) == {"retained": 2, "retain_refused:Cap": 2, "blocks_retained": 16}
    # What was refused is not watched either: no reader's notice would ever end that.
    decode.step()
    assert len(decode.worker._reqs_to_process) == 2


def test_time_to_live_ends_what_nobody_reads(make_engine: Make, clock: Any) -> None:
    decode = make_engine("Decode")
    decode.run(tokens_of(100), KEEP, max_tokens=20)
    clock.now += 479
    decode.step()
    assert decode.held == 8
    clock.now += 2
    decode.step()
    assert decode.held == 0
    assert taken(decode) == {"retained": 1, "retain_expired": 1, "blocks_retained": 0}


def test_an_idle_engine_steps_once_more_for_its_gauges(make_engine: Make) -> None:
    decode = make_engine("Decode")
    assert not decode.scheduler.has_requests()
    decode.recorder.held(1, 1)
    assert decode.scheduler.has_requests()
    taken(decode)
    assert not decode.scheduler.has_requests()


@pytest.mark.parametrize("stock", [True, False])
def test_prefill_aborted_before_it_was_scheduled_lets_decode_go(make_engine: Make, stock: bool) -> None:
    prefill, decode = make_engine("Prefill", stock=stock), make_engine("Decode")
    result = decode.run(tokens_of(100), KEEP, max_tokens=20)
    prefill.abort(prefill.submit([*tokens_of(100), *result.tokens], result.params))
    prefill.step()
    decode.step()
    assert decode.held == (8 if stock else 0)


# ---- trap 1 and 2: a request that waits for ever --------------------------------------------------------------------


def test_trap_1_bidirectional_off_on_prefill(make_engine: Make) -> None:
    decode = make_engine("Decode")
    prompt = tokens_of(100)
    result = decode.run(prompt, KEEP, max_tokens=20)
    second = [*prompt, *result.tokens, 7]
    stock = make_engine("Prefill", stock=True, bidirectional_kv_xfer=False)
    assert not stock.run(second, result.params).finished
    with pytest.raises(UnsupportedEngineError, match="`bidirectional_kv_xfer` must be true"):
        make_engine("Prefill", bidirectional_kv_xfer=False)


def test_one_direction_only_is_a_setting_and_never_waits(make_engine: Make) -> None:
    settings = dataclasses.replace(RETAIN, direction=Direction.PREFILL_TO_DECODE)
    prefill, decode = make_engine("Prefill", settings=settings), make_engine("Decode", settings=settings)
    prompt = tokens_of(100)
    kept = make_engine("Decode").run(prompt, KEEP, max_tokens=20)
    assert first_turn(prefill, decode, prompt).params is None
    assert (decode.blocks_read, decode.held) == (6, 0)
    second = [*prompt, *kept.tokens, 7]
    assert prefill.run(second, kept.params).tokens == answer(second)
    assert prefill.blocks_read == 0
    assert taken(prefill) == taken(decode) == {"retain_refused:Direction": 1}


def test_trap_2_host_buffer(make_engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    decode = make_engine("Decode")
    prompt = tokens_of(100)
    result = decode.run(prompt, KEEP, max_tokens=20)
    # The CPU buffer on a platform that is none.
    monkeypatch.setattr(base_scheduler, "current_platform", SimpleNamespace(device_type="cuda"))
    stock = make_engine("Prefill", stock=True)
    assert not stock.run([*prompt, *result.tokens, 7], result.params).finished
    with pytest.raises(UnsupportedEngineError, match="`kv_buffer_device` must"):
        make_engine("Prefill")


# ---- trap 3: junk pins blocks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("junk", JUNK, ids=str)
def test_trap_3_junk_pins_no_block(make_engine: Make, clock: Any, junk: dict[str, Any]) -> None:
    engines = {stock: make_engine("Decode", stock=stock) for stock in (True, False)}
    for engine in engines.values():
        assert engine.run(tokens_of(100), junk, max_tokens=20).tokens == answer(tokens_of(100), 20)
    assert engines[False].held == 0
    for _ in range(3):
        clock.now += 10_000
        for engine in engines.values():
            engine.step()
    assert engines[True].held == 8
    assert engines[False].held == 0


def test_trap_3_junk_ends_no_engine(make_engine: Make) -> None:
    """A request that says it may read but not what: the stock engine core dies of it, and every request with it."""
    junk = {"do_remote_prefill": "x"}
    with pytest.raises(AssertionError):
        make_engine("Decode", stock=True).run(PROMPT, junk)
    engine = make_engine("Decode")
    assert engine.run(PROMPT, junk, max_tokens=3).tokens == answer(PROMPT, 3)
    assert engine.run(PROMPT, {"do_remote_prefill": True}, max_tokens=3).tokens == answer(PROMPT, 3)
    assert engine.held == 0


# ---- trap 4: nothing looks at a token -------------------------------------------------------------------------------


SECOND_TURNS: dict[str, Callable[[list[int]], list[int]]] = {
    "half of the answer stripped": lambda history: [*history[:110], *tokens_of(40, seed=5)],
    "a word of the first message edited": lambda history: [history[0] + 1, *history[1:], 7],
    "a word put in": lambda history: [*history[:40], 7, *history[40:], 8],
    "a word taken out": lambda history: [*history[:40], *history[41:], 8],
    "another conversation": lambda history: tokens_of(len(history) + 9, seed=9),
    "cut short": lambda history: history[:90],
    "the same again": lambda history: history[:100],
}


@pytest.mark.parametrize("change", SECOND_TURNS.values(), ids=SECOND_TURNS)
def test_trap_4_only_what_is_proven_is_read(make_engine: Make, change: Callable[[list[int]], list[int]]) -> None:
    answers = {}
    for stock in (True, False):
        prefill, decode = make_engine("Prefill", stock=stock), make_engine("Decode")
        result = decode.run(PROMPT, KEEP, max_tokens=20)
        second = change([*PROMPT, *result.tokens])
        answers[stock] = prefill.run(second, result.params).tokens == answer(second)
        if not stock:
            decode.step()
            assert decode.held == 0
    assert answers == {True: False, False: True}


def test_trap_4_another_tenants_text(make_engine: Make) -> None:
    """The stock connector reads it, and so tells one tenant what another one asked."""
    read = {}
    for stock in (True, False):
        prefill, decode = make_engine("Prefill", stock=stock), make_engine("Decode")
        result = decode.run(PROMPT, KEEP, max_tokens=20, salt="tenant-a")
        second = [*PROMPT, *result.tokens, 7]
        assert prefill.run(second, result.params, salt="tenant-b").tokens == answer(second)
        read[stock] = prefill.blocks_read
    assert read == {True: 8, False: 0}
    assert taken(prefill)["proof_mismatch"] == 1


def test_handle_of_prefill_is_proven_too(make_engine: Make) -> None:
    """The control of the other direction: decode is handed another prompt's handle."""
    for stock in (True, False):
        prefill, decode = make_engine("Prefill"), make_engine("Decode", stock=stock)
        handed = prefill.run(tokens_of(100, seed=9), PLAIN)
        result = decode.run(PROMPT, handed.params, max_tokens=5)
        assert (result.tokens == answer(PROMPT, 5)) is not stock


@pytest.mark.parametrize("proven", [True, False])
def test_the_lease_of_what_is_given_back_unread_is_not_renewed(make_engine: Make, proven: bool) -> None:
    prefill, decode = make_engine("Prefill"), make_engine("Decode")
    handed = prefill.run(PROMPT if proven else tokens_of(100, seed=9), PLAIN)
    decode.submit(PROMPT, handed.params, max_tokens=20)
    scheduler = decode.scheduler.connector.connector_scheduler
    assert scheduler._heartbeat_req_engine  # while it waits, it is
    decode.scheduler.schedule()
    assert bool(scheduler._heartbeat_req_engine) is proven


# ---- trap 5: a handle used twice ------------------------------------------------------------------------------------


def test_trap_5_a_handle_is_good_for_one_request(make_engine: Make) -> None:
    for stock in (True, False):
        prefill, decode = make_engine("Prefill", stock=stock), make_engine("Decode", num_blocks=40)
        result = decode.run(PROMPT, KEEP, max_tokens=20)
        second = [*PROMPT, *result.tokens, 7]
        assert prefill.run(second, result.params).tokens == answer(second)
        decode.step()
        for seed in range(5):  # decode's blocks belong to others now
            decode.run(tokens_of(100, seed=20 + seed), max_tokens=2)
        replayed = prefill.run(second, result.params)
        assert (replayed.tokens == answer(second)) is not stock
    assert taken(prefill)["retain_refused:Replayed"] == 1


def test_a_handle_is_forgotten_when_no_owner_can_hold_it(make_engine: Make, clock: Any) -> None:
    prefill, decode = make_engine("Prefill"), make_engine("Decode")
    result = decode.run(PROMPT, KEEP, max_tokens=20)
    second = [*PROMPT, *result.tokens, 7]
    prefill.run(second, result.params)
    clock.now += 481
    # Past its time it is declined by the worker, which computes instead.
    assert prefill.run(second, result.params).tokens == answer(second)
    assert len(prefill.scheduler.connector.connector_scheduler._used) == 1


def test_prefills_lease_is_over_before_decode_reads(make_engine: Make, clock: Any) -> None:
    for stock in (True, False):
        prefill, decode = make_engine("Prefill", stock=stock, num_blocks=20), make_engine("Decode", stock=stock)
        handed = prefill.run(PROMPT, PLAIN)
        clock.now += 301
        prefill.step()
        assert prefill.held == 0
        for seed in range(3):
            prefill.run(tokens_of(200, seed=20 + seed))
        result = decode.run(PROMPT, handed.params, max_tokens=5)
        assert (result.tokens == answer(PROMPT, 5)) is not stock


@pytest.mark.parametrize("stock", [True, False])
def test_a_failed_read_is_computed_and_not_waited_for(make_engine: Make, stock: bool) -> None:
    """The stock scheduler asks again, is told to wait for a read that nobody starts, and waits for ever."""
    prefill, decode = make_engine("Prefill", stock=stock), make_engine("Decode")
    result = decode.run(PROMPT, KEEP, max_tokens=20)
    second = [*PROMPT, *result.tokens, 7]
    prefill.worker.fail_next_read = True
    follow = prefill.run(second, result.params)
    assert follow.finished is not stock
    if not stock:
        assert follow.tokens == answer(second)


def test_fifty_random_turns_are_exact_and_leave_nothing(make_engine: Make) -> None:
    """Conversations that grow, are edited, cut, branched and mixed up, with handles of the right and of the wrong one."""
    rng = random.Random(7)
    shared = {"num_blocks": 401, "settings": dataclasses.replace(RETAIN, recompute_threshold_tokens=0)}
    prefill, decode = make_engine("Prefill", **shared), make_engine("Decode", prefix_caching=True, **shared)
    histories, handles = [tokens_of(40, seed) for seed in range(4)], [dict[str, Any](PLAIN)]
    for turn in range(50):
        history = histories[rng.choice([0, 0, 0, 1, 2, 3])]
        kept = history[: rng.choice([len(history), len(history), rng.randrange(1, len(history))])]
        prompt = [*kept, *tokens_of(rng.randrange(1, 60), seed=turn)][-1500:]
        handed = prefill.run(prompt, handles.pop(rng.choice([-1, -1, 0])) if handles else PLAIN)
        assert handed.tokens == answer(prompt)
        result = decode.run(prompt, (handed.params or {}) | KEEP, max_tokens=rng.randrange(1, 40))
        assert result.tokens == answer(prompt, len(result.tokens))
        histories[rng.choice([0, 0, 0, 1, 2, 3])] = prompt + result.tokens
        if result.params is not None:
            handles.append(result.params)
        prefill.step()
        decode.step()
    assert prefill.blocks_read > 20 and decode.blocks_read > 20
    for handle in handles:
        prefill.run([1], handle)
    decode.step()
    assert (prefill.held, decode.held) == (0, 0)


MALFORMED: list[dict[str, Any]] = [
    {"remote_block_ids": [[-1, 2]]}, {"remote_block_ids": [[1], [2]]}, {"remote_block_ids": [list(range(1, 5000))]},
    {"remote_num_tokens": None}, {"remote_engine_id": None}, {"remote_blocks_expiry_time": None},
    {"proof": None}, {"proof": "00"},
]  # fmt: skip


@pytest.mark.parametrize("change", MALFORMED, ids=lambda change: f"{change!r:.40}")
def test_malformed_handles_change_nothing(make_engine: Make, change: dict[str, Any]) -> None:
    prefill, decode = make_engine("Prefill"), make_engine("Decode")
    result = decode.run(PROMPT, KEEP, max_tokens=20)
    second = [*PROMPT, *result.tokens, 7]
    follow = prefill.run(second, result.params | change)
    assert follow.tokens == answer(second)
    assert prefill.blocks_read == 0
    assert follow.params is not None  # it still prefills for decode
    assert sum(value for key, value in taken(prefill).items() if key.startswith("retain_refused")) == 1


def test_settings_that_cannot_be_retained_are_refused(make_engine: Make) -> None:
    engine = make_engine("Decode")
    engine.kv_cache_config = dataclasses.replace(
        engine.kv_cache_config, kv_cache_groups=engine.kv_cache_config.kv_cache_groups * 2
    )
    with pytest.raises(UnsupportedEngineError, match="one group of full-attention KV cache"):
        engine.retain(RETAIN)
