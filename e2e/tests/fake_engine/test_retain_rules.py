"""Retain inside the fake: time to live, single use, cap, lease."""

import asyncio
from typing import Any

import pytest

from pdd_e2e.fake_engine import SlowRead

IDS = [300 + position * 11 % 200 for position in range(70)]
KEEP: dict[str, Any] = {"retain": {"version": 1, "keep": True}}
REQUEST = {"do_remote_decode": True, "do_remote_prefill": False}


async def retain_pair(start: Any, **options: Any) -> tuple[Any, Any]:
    options = {"mechanism": "Retain", **options}
    # Without a prefix cache of its own, so that whatever prefill has cached was read.
    return await start("p", prefix_caching=False, **options), await start("d", role="Decode", **options)


async def keep(decode: Any) -> dict[str, Any]:
    handle = (await decode.http.complete(IDS, 2, kv_transfer_params=KEEP)).params
    assert handle is not None
    return dict(handle)


async def read(prefill: Any, handle: dict[str, Any]) -> int:
    return int((await prefill.http.complete(IDS, 2, kv_transfer_params=handle)).cached_tokens)


async def test_handle_is_good_until_shortly_before_its_end(start: Any, clock: Any) -> None:
    p, d = await retain_pair(start, ttl_seconds=100.0)
    handle = await keep(d)
    clock.now += 95.0
    assert await read(p, handle) == 64
    handle = await keep(d)
    clock.now += 95.1
    assert await read(p, handle) == 0
    assert d.inside.held_blocks == 5
    clock.now += 5.0
    assert d.inside.held_blocks == 0
    assert await d.http.metric("vllm:nixl_num_kv_expired_reqs_total") == 1.0


async def test_handle_is_good_once(start: Any) -> None:
    p, d = await retain_pair(start)
    handle = await keep(d)
    assert await read(p, handle) == 64
    assert d.inside.held_blocks == 0
    assert await read(p, handle) == 0


async def test_handle_is_good_for_one_of_two_readers_at_once(start: Any) -> None:
    p, d = await retain_pair(start)
    handle = await keep(d)
    d.inside.script(SlowRead(0.1))
    assert sorted(await asyncio.gather(read(p, handle), read(p, handle))) == [0, 64]
    assert d.inside.held_blocks == 0


async def test_handle_of_a_dead_or_replaced_engine(start: Any) -> None:
    p, d = await retain_pair(start)
    handle = await keep(d)
    await d.inside.kill()
    assert await read(p, handle) == 0
    await d.inside.restart()
    assert await read(p, handle) == 0


async def test_cap(start: Any) -> None:
    _, d = await retain_pair(start, cache_blocks=20, max_retained_share=0.3)
    await keep(d)
    assert (await d.http.complete(IDS, 2, kv_transfer_params=KEEP)).params is None
    assert d.inside.held_blocks == 5


async def test_prefill_holds_under_its_lease(start: Any, clock: Any) -> None:
    p, d = await retain_pair(start, lease_seconds=30.0)
    handle = (await p.http.complete(IDS, 1, kv_transfer_params=REQUEST)).params
    assert handle is not None
    assert p.inside.held_blocks == 5
    answer = await d.http.complete(IDS, 2, kv_transfer_params=handle)
    assert d.inside.requests[-1].read_tokens == 64
    assert answer.cached_tokens == 0, "decode reports what prefill had cached, as upstream does"
    assert p.inside.held_blocks == 0
    await p.http.complete(IDS, 1, kv_transfer_params=REQUEST)
    clock.now += 30.0
    assert p.inside.held_blocks == 0


async def test_below_the_threshold_nothing_is_read_and_all_is_freed(start: Any) -> None:
    p, d = await retain_pair(start, threshold_tokens=80)
    assert await read(p, await keep(d)) == 0
    assert d.inside.held_blocks == 0


async def test_prompt_without_a_whole_block_gives_no_handle(start: Any) -> None:
    p, _ = await retain_pair(start)
    assert (await p.http.complete(IDS[:10], 1, kv_transfer_params=REQUEST)).params is None
    assert p.inside.held_blocks == 0


@pytest.mark.parametrize(
    "change",
    [
        {"remote_block_ids": None},
        {"remote_block_ids": [[1], [2]]},
        {"remote_block_ids": ["a"]},
        {"remote_engine_id": 5},
        {"remote_request_id": ["r"]},
        {"remote_host": None},
        {"remote_port": "5600"},
        {"remote_num_tokens": True},
        {"remote_blocks_expiry_time": None},
        {"proof": "zz" * 32},
        {"proof": "00" * 32 * 9},
        {"tp_size": 0},
    ],
)
async def test_malformed_handle_is_not_used(start: Any, change: dict[str, Any], clock: Any) -> None:
    p, d = await retain_pair(start)
    assert await read(p, await keep(d) | change) == 0
    clock.now += 500.0
    assert d.inside.held_blocks == 0
