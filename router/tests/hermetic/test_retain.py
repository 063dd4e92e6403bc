"""Mechanism Retain: upstream's handles on both legs, each used at most once and only by its own conversation."""

import asyncio
from typing import Any

import pytest

from pdd_e2e.fake_engine import ResetBeforeHeaders, Status

SYSTEM = {"role": "system", "content": "You are a patient librarian who answers at length. " * 4}
REQUEST = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
RETAIN: dict[str, Any] = {"mechanism": "Retain"}


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text + " and tell me everything about it, please. " * 4}


def params(request: Any) -> Any:
    return request.body.get("kv_transfer_params")


async def turn(c: Any, history: list[Any], text: str, **fields: Any) -> Any:
    history.append(user(text))
    reply = await c.chat(history, **fields)
    assert reply.status == 200
    history.append({"role": "assistant", "content": reply.text})
    return reply


@pytest.mark.parametrize("stream", [False, True])
async def test_handles_go_round(cluster: Any, stream: bool) -> None:
    async with cluster(config=RETAIN, engine={"prefix_caching": False}) as c:
        history: list[Any] = [SYSTEM]
        for text in ("one", "two", "three"):
            reply = await turn(c, history, text, stream=stream)
            assert "kv_transfer_params" not in str(reply.body) + str(reply.events)
            await c.until_idle()
        first, second, third = c.legs(c.prefills[0])
        assert params(first) == REQUEST
        used = [params(leg) for leg in (second, third)]
        assert all(handle["do_remote_decode"] and handle["proof"] for handle in used)
        assert used[0]["remote_request_id"] != used[1]["remote_request_id"]
        assert second.read_tokens > 100
        for leg in c.legs(c.decodes[0]):
            assert params(leg)["do_remote_prefill"] is True
            assert params(leg)["retain"] == {"version": 1, "keep": True}
            assert leg.read_tokens > 100
        assert await c.metric("retained_handles_total", event="Taken") == 2


async def test_handle_is_used_once_even_by_branches_at_once(cluster: Any) -> None:
    async with cluster(config=RETAIN) as c:
        history: list[Any] = [SYSTEM]
        await turn(c, history, "one")
        branches = [c.chat([*history, user(f"branch {at}")]) for at in range(8)]
        assert {reply.status for reply in await asyncio.gather(*branches)} == {200}
        handles = [params(leg) for leg in c.legs(c.prefills[0])[1:]]
        assert sum(handle != REQUEST for handle in handles) == 1
        every = [
            handle["remote_request_id"]
            for engine in c.engines
            for leg in c.legs(engine)
            if (handle := params(leg)) and handle.get("remote_request_id")
        ]
        assert len(every) == len(set(every)), "no handle is ever sent twice, to anybody"


@pytest.mark.parametrize("shared_turns", [0, 1], ids=["preamble", "turns"])
async def test_conversations_that_begin_alike_have_their_own_handles(cluster: Any, shared_turns: int) -> None:
    async with cluster(config=RETAIN, engine={"prefix_caching": False}) as c:
        begun: list[Any] = [SYSTEM]
        for _ in range(shared_turns):
            begun += [user("an example"), {"role": "assistant", "content": "so it goes"}]
        one, other = [*begun], [*begun]
        for text in ("first", "second", "third"):
            for history, name in ((one, "one"), (other, "other")):
                held = sum(len(message["content"]) for message in history)
                await turn(c, history, f"{text} of {name}")
                await c.until_idle()
                leg = c.legs(c.prefills[0])[-1]
                if text == "first":
                    assert params(leg) == REQUEST, "nothing of its own to read yet"
                else:
                    assert leg.read_tokens * 4 > held * 0.8, "all of its own history"
        assert await c.metric("retained_handles_total", event="Taken") == 4


@pytest.mark.parametrize("fault", [Status(500), ResetBeforeHeaders()], ids=repr)
async def test_handle_is_not_used_on_a_retry(cluster: Any, fault: Any) -> None:
    async with cluster(prefills=2, decodes=2, config=RETAIN) as c:
        history: list[Any] = [SYSTEM]
        await turn(c, history, "one")
        for engine in c.prefills:
            engine.script(fault)
        await turn(c, history, "two")
        legs = sorted((leg for engine in c.prefills for leg in c.legs(engine)), key=lambda leg: leg.received_at)
        assert params(legs[1])["proof"], "control: the first try had it"
        assert params(legs[2]) == REQUEST


async def test_no_other_handle_is_used_on_a_retry_either(cluster: Any) -> None:
    async with cluster(prefills=2, config=RETAIN) as c:
        named: list[Any] = [SYSTEM]
        await turn(c, named, "one", conversation_id="x")
        other: list[Any] = [user("quite another text")]
        await turn(c, other, "two")
        for engine in c.prefills:
            engine.script(Status(500))
        await turn(c, other, "three", conversation_id="x")  # by its name the first handle, by its text the second
        legs = sorted((leg for engine in c.prefills for leg in c.legs(engine)), key=lambda leg: leg.received_at)
        assert params(legs[2])["proof"]
        assert params(legs[3]) == REQUEST


async def test_handle_outlives_a_turn_that_had_no_use_for_it(cluster: Any) -> None:
    async with cluster(config=RETAIN) as c:
        history: list[Any] = [SYSTEM]
        await turn(c, history, "one")
        reply = await turn(c, history, "two", n=2, temperature=0.5)
        assert reply.receipt["arm"] == "DecodeOnly"
        await turn(c, history, "three")
        assert params(c.legs(c.prefills[0])[1])["proof"]
        await turn(c, history, "four")
        used = [params(leg)["remote_request_id"] for leg in c.legs(c.prefills[0])[1:]]
        assert len(set(used)) == 2


async def test_decode_retry_prefills_afresh(cluster: Any) -> None:
    """Prefill's handle may have been read from by the decode that failed."""
    async with cluster(decodes=2, config=RETAIN) as c:
        c.decodes[0].script(ResetBeforeHeaders())
        reply = await c.chat([SYSTEM, user("one")])
        assert reply.receipt["decode"]["engine"] == "d1"
        handles = [params(leg)["remote_request_id"] for engine in c.decodes for leg in c.legs(engine)]
        assert len(handles) == len(set(handles)) == 2
        assert [params(leg) for leg in c.legs(c.prefills[0])] == [REQUEST, REQUEST]


async def test_old_handle_is_not_used(cluster: Any) -> None:
    config = {**RETAIN, "conversationTTLSeconds": 1, "retain": {"decoderBlocksTTLSeconds": 10}}
    async with cluster(config=config) as c:
        history: list[Any] = [SYSTEM]
        await turn(c, history, "one")
        await asyncio.sleep(1.1)
        await turn(c, history, "two")
        assert params(c.legs(c.prefills[0])[1]) == REQUEST


async def test_handle_of_a_decode_that_went_away_is_not_used(cluster: Any) -> None:
    async with cluster(config=RETAIN) as c:
        history: list[Any] = [SYSTEM]
        await turn(c, history, "one")
        await c.decodes[0].kill()
        await c.until(lambda: not c.registry.states()[1].healthy)
        await c.decodes[0].restart()
        await c.until(lambda: c.registry.states()[1].healthy)
        await turn(c, history, "two")
        assert params(c.legs(c.prefills[0])[1]) == REQUEST


async def test_handle_of_a_replaced_decode_is_not_used(cluster: Any) -> None:
    async with cluster(config=RETAIN) as c:
        history: list[Any] = [SYSTEM]
        await turn(c, history, "one")
        c.write_engines(d0="second")
        await c.until(lambda: any(s.engine.id.incarnation == "second" and s.healthy for s in c.registry.states()))
        await turn(c, history, "two")
        assert params(c.legs(c.prefills[0])[1]) == REQUEST


async def test_handle_of_another_tenant_is_not_used(cluster: Any) -> None:
    config = {**RETAIN, "authentication": {"apiKeysFile": "keys.yaml"}}
    async with cluster(config=config, files={"keys.yaml": "key-of-alice: alice\nkey-of-bob: bob\n"}) as c:
        history: list[Any] = [SYSTEM]
        await turn(c, history, "one", headers={"Authorization": "Bearer key-of-alice"}, conversation_id="x")
        await turn(c, history, "two", headers={"Authorization": "Bearer key-of-bob"}, conversation_id="x")
        assert params(c.legs(c.prefills[0])[1]) == REQUEST


async def test_one_way_holds_nothing(cluster: Any) -> None:
    async with cluster(config={**RETAIN, "direction": "PrefillToDecode"}) as c:
        history: list[Any] = [SYSTEM]
        for text in ("one", "two"):
            await turn(c, history, text)
        assert [params(leg) for leg in c.legs(c.prefills[0])] == [REQUEST, REQUEST]
        assert all("retain" not in params(leg) for leg in c.legs(c.decodes[0]))


async def test_decode_holds_only_known_conversations_where_so_configured(cluster: Any) -> None:
    async with cluster(config={**RETAIN, "retain": {"keep": "WhenConversationKnown"}}) as c:
        history: list[Any] = [SYSTEM]
        for text in ("one", "two"):
            await turn(c, history, text)
        await c.chat([user("with a name")], conversation_id="abc")
        assert ["retain" in params(leg) for leg in c.legs(c.decodes[0])] == [False, True, True]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": [SYSTEM, user("several answers")], "n": 2, "temperature": 0.5}),
        ("/v1/completions", {"prompt": ["one prompt " * 20, "another " * 20]}),
    ],
)
async def test_single_use_handle_is_not_given_to_several_sequences(cluster: Any, path: str, fields: Any) -> None:
    async with cluster(config=RETAIN) as c:
        reply = await c.post(path, {"model": "fake", "max_tokens": 2, **fields})
        assert (reply.status, reply.receipt["why"]) == (200, "Unsplittable")
        assert params(c.legs(c.decodes[0])[0]) is None
