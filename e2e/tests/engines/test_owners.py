"""Whom a claim asks: several owners, tenants, and owners that are not what the router took them for."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
import zmq
import zmq.asyncio

from pdd_cli.local.ports import free_ports
from pdd_e2e.engines.answers import check_same
from pdd_e2e.engines.dialogues import base
from pdd_e2e.engines.node import Node
from pdd_e2e.engines.prompts import token_ids
from pdd_e2e.engines.sets import BYTES_PER_TOKEN, HOLD_SECONDS
from pdd_e2e.engines.world import World, claim

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]
BLOCK = 32


async def test_the_best_of_several_owners_wins_and_the_others_are_let_go(claims: World, salt: str) -> None:
    reader, other, decode = claims.prefill, claims.prefills[1], claims.decode
    prompt = token_ids(8 * BLOCK + 5)
    await asyncio.gather(
        decode.ask(prompt[: 3 * BLOCK + 1], cache_salt=salt), other.ask(prompt[: 6 * BLOCK + 1], cache_salt=salt)
    )
    answer = await reader.ask(prompt, cache_salt=salt, **claim(decode, other))
    assert (answer.receipt["outcome"], answer.receipt["read_tokens"]) == ("Read", 6 * BLOCK)
    assert answer.receipt["read_bytes"] == 6 * BLOCK * BYTES_PER_TOKEN
    assert answer.receipt["owner"] == other.address
    check_same(answer, await claims.reference.ask(prompt))
    await decode.wait_unheld(HOLD_SECONDS / 2)  # by the reader's word, not by the timer


async def test_what_is_read_moves_over_nixl(claims: World, salt: str) -> None:
    """The receipt is not taken at its word: vLLM's own counter of bytes transferred says the same."""
    name = "vllm:nixl_bytes_transferred_sum"
    prompt = token_ids(5 * BLOCK + 3)
    await claims.decode.ask(prompt, cache_salt=salt)
    before = await claims.prefill.metric(name)
    answer = await claims.prefill.ask(prompt, cache_salt=salt, **claim(claims.decode))
    assert answer.receipt["read_bytes"] == 5 * BLOCK * BYTES_PER_TOKEN
    await claims.prefill.wait_metric(name, before + answer.receipt["read_bytes"])
    assert await claims.prefill.metric(name) == before + answer.receipt["read_bytes"]


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_another_tenant_with_the_same_text_reads_nothing(claims: World, salt: str, streamed: bool) -> None:
    (await claims.turn(base(), salt, streamed=streamed)).check()
    for reader, owners in ((claims.prefill, [claims.decode]), (claims.decode, claims.prefills)):
        for stranger in ({"cache_salt": f"not-{salt}"}, {}):
            answer = await reader.ask(base(), 2, streamed=streamed, **claim(*owners), **stranger)
            assert (answer.receipt["outcome"], answer.receipt["read_bytes"], answer.receipt["local_tokens"]) == (
                "Empty",
                0,
                0,
            )
            check_same(answer, await claims.reference.ask(base(), 2))
        await claims.forget(reader)


async def test_two_branches_and_a_regeneration_at_once(claims: World, salt: str) -> None:
    prompt = token_ids(6 * BLOCK)
    await claims.decode.ask(prompt, cache_salt=salt)
    branches = [prompt + token_ids(40), prompt + token_ids(70), prompt]

    async def branch(number: int) -> None:
        node = claims.prefills[number % 2]
        answer = await node.ask(branches[number], 4, streamed=number == 1, cache_salt=salt, **claim(claims.decode))
        held = min(6, (len(branches[number]) - 1) // BLOCK) * BLOCK
        assert answer.receipt["local_tokens"] + answer.receipt["read_tokens"] == held, answer.receipt
        check_same(answer, await claims.reference.ask(branches[number], 4))

    await asyncio.gather(*(branch(number) for number in range(3)))


async def _stranger_with_another_key() -> zmq.asyncio.Socket:
    public, secret = zmq.curve_keypair()
    socket = zmq.asyncio.Context.instance().socket(zmq.ROUTER)
    socket.linger = 0
    socket.curve_server, socket.curve_publickey, socket.curve_secretkey = True, public, secret
    return socket


@pytest_asyncio.fixture(loop_scope="session")
async def stranger() -> AsyncIterator[dict[str, Any]]:
    """The claim channel of somebody else's deployment."""
    socket = await _stranger_with_another_key()
    yield {"host": "127.0.0.1", "port": socket.bind_to_random_port("tcp://127.0.0.1")}
    socket.close()


async def test_owners_that_are_none(claims: World, salt: str, stranger: dict[str, Any]) -> None:
    """Nobody there, something else there, another deployment, an engine that holds nothing: computed, at once, and right."""
    nobody = {"host": "127.0.0.1", "port": free_ports(1)[0]}
    web_server = {"host": "127.0.0.1", "port": claims.reference.process.spec.port}
    prompt = token_ids(4 * BLOCK + 9)
    reference = await claims.reference.ask(prompt, 3)
    for number, owner in enumerate((nobody, web_server, stranger)):
        answer = await claims.prefill.ask(prompt, 3, cache_salt=f"{salt}-{number}", **claim(owner))
        assert (answer.receipt["outcome"], answer.receipt["read_bytes"]) == ("Unconnected", 0)
        check_same(answer, reference)
    answer = await claims.prefill.ask(prompt, 3, cache_salt=salt, **claim(nobody, claims.decode, stranger))
    assert (answer.receipt["outcome"], answer.receipt["read_bytes"]) == ("Empty", 0)
    check_same(answer, reference)


async def test_an_engine_asked_to_ask_itself(claims: World, salt: str) -> None:
    prompt = token_ids(3 * BLOCK + 1)
    answer = await claims.prefill.ask(prompt, 3, cache_salt=salt, **claim(claims.prefill))
    assert (answer.receipt["outcome"], answer.receipt["read_bytes"]) == ("Unconnected", 0)
    check_same(answer, await claims.reference.ask(prompt, 3))


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"version": 2, "owners": []}, "Version"),
        ({"version": 1, "owners": "all"}, "Malformed"),
        ({"version": 1, "owners": [{"host": "127.0.0.1", "port": 0}]}, "Malformed"),
        ({"version": 1, "owners": [], "lease": 9}, "Malformed"),
        (["claim"], "Malformed"),
    ],
)
async def test_claims_that_are_none(claims: World, salt: str, wrong: object, reason: str) -> None:
    prompt = token_ids(2 * BLOCK + 1)
    answer = await claims.prefill.ask(prompt, cache_salt=salt, kv_transfer_params={"claim": wrong})
    assert (answer.receipt["outcome"], answer.receipt["reason"], answer.receipt["read_bytes"]) == ("Refused", reason, 0)
    check_same(answer, await claims.reference.ask(prompt))


async def test_upstreams_own_parameters_pin_and_read_nothing(claims: World, salt: str) -> None:
    """A client that gets past the router must not be able to hold blocks or to read by position."""
    prompt = token_ids(4 * BLOCK + 1)
    await claims.decode.ask(prompt, cache_salt=salt)
    for params in (
        {"do_remote_decode": True, "do_remote_prefill": False},
        _upstreams_handle(claims.decode),
    ):
        answer = await claims.prefill.ask(prompt, cache_salt=f"other-{salt}", kv_transfer_params=params)
        assert answer.params is None
        check_same(answer, await claims.reference.ask(prompt))
        await claims.forget(claims.prefill)


def _upstreams_handle(owner: Node) -> dict[str, Any]:
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": "somebody",
        "remote_request_id": "cmpl-1",
        "remote_host": "127.0.0.1",
        "remote_port": owner.process.spec.side_channel_port,
        "remote_block_ids": [[1, 2, 3, 4]],
        "tp_size": 1,
        "remote_num_tokens": 4 * BLOCK,
    }
