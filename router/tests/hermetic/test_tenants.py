"""Tenants do not meet: neither in the engines' caches nor in the router's memory nor in the queue."""

import asyncio
from typing import Any

import pytest

from pdd_e2e.fake_engine import SlowChunks
from pdd_router import bodies

KEYS = {
    "config": {"authentication": {"apiKeysFile": "keys.yaml"}},
    "files": {"keys.yaml": "key-of-alice: alice\nsecond-key-of-alice: alice\nkey-of-bob: bob\n"},
}
ALICE, BOB = {"Authorization": "Bearer key-of-alice"}, {"Authorization": "Bearer key-of-bob"}
TEXT = [{"role": "user", "content": "The very same words of two tenants. " * 20}]


async def test_key_is_needed_and_checked(cluster: Any) -> None:
    async with cluster(**KEYS) as c:
        for headers in (
            {},
            {"Authorization": "Bearer nobody-knows"},
            {"Authorization": "Basic key-of-bob"},
            {"Authorization": "key-of-bob"},
            {"Authorization": "Bearer "},
        ):
            reply = await c.chat(TEXT, headers=headers)
            assert (reply.status, reply.body["error"]["type"]) == (401, "authentication_error")
            assert (await c.get("/v1/models", headers)).status == 401
        assert all(not c.legs(engine) for engine in c.engines)
        assert (await c.chat(TEXT, headers={"Authorization": "bearer key-of-bob"})).status == 200


@pytest.mark.parametrize(("isolation", "shared"), [("PerTenant", False), ("Shared", True)])
async def test_same_text_of_another_tenant_reads_nothing(cluster: Any, isolation: str, shared: bool) -> None:
    """S3, with its control: shared isolation does hit."""
    config = {**KEYS["config"], "tenancy": {"cacheIsolation": isolation}}
    async with cluster(config=config, files=KEYS["files"]) as c:
        await c.chat(TEXT, headers=ALICE)
        again = await c.chat(TEXT, headers={"Authorization": "Bearer second-key-of-alice"})
        assert again.receipt["prefill"]["local_tokens"] > 0, "another key of the same tenant hits"
        other = await c.chat(TEXT, headers=BOB)
        assert (other.receipt["prefill"]["local_tokens"] > 0) is shared
        assert other.receipt["prefill"]["read_tokens"] == 0
        legs = c.legs(c.prefills[0])
        assert (legs[2].body["cache_salt"] == legs[0].body["cache_salt"]) is shared
        assert "alice" not in legs[0].body["cache_salt"]
        assert legs[0].body["cache_salt"] == legs[1].body["cache_salt"] == c.legs(c.decodes[0])[0].body["cache_salt"]


async def test_hints_of_another_tenant_are_not_used(cluster: Any) -> None:
    async with cluster(decodes=2, **KEYS) as c:
        first = await c.chat(TEXT, headers=ALICE, conversation_id="shared-name")
        theirs = await c.chat(TEXT, headers=BOB, conversation_id="shared-name")
        assert c.legs(c.prefills[0])[1].body["kv_transfer_params"]["claim"]["owners"] == []
        assert theirs.receipt["decode"] != first.receipt["decode"]
        mine = await c.chat(TEXT, headers=ALICE, conversation_id="shared-name")
        assert c.legs(c.prefills[0])[2].body["kv_transfer_params"]["claim"]["owners"] != []
        assert mine.receipt["decode"] == first.receipt["decode"]


async def test_salt_of_the_client_is_replaced(cluster: Any) -> None:
    async with cluster(**KEYS) as c:
        await c.chat(TEXT, headers=ALICE)
        salt = c.legs(c.prefills[0])[0].body["cache_salt"]
        await c.chat(TEXT, headers=BOB, cache_salt=salt)
        assert c.legs(c.prefills[0])[1].body["cache_salt"] != salt


async def test_salt_is_the_same_in_every_replica_that_shares_the_secret(cluster: Any) -> None:
    salts = []
    for _ in range(2):
        files = {"salt": "s" * 40, **KEYS["files"]}
        config = {**KEYS["config"], "tenancy": {"saltSecretFile": "salt"}}
        async with cluster(config=config, files=files) as c:
            await c.chat(TEXT, headers=ALICE)
            salts.append(c.legs(c.prefills[0])[0].body["cache_salt"])
    assert salts[0] == salts[1]
    async with cluster(**KEYS) as c:
        await c.chat(TEXT, headers=ALICE)
        assert c.legs(c.prefills[0])[0].body["cache_salt"] != salts[0], "control: another secret, another salt"


async def test_flood_of_one_tenant_does_not_hold_up_another(cluster: Any) -> None:
    """S6. Bob waits for one place to become free, not for Alice's whole queue."""
    async with cluster(config={**KEYS["config"], "limits": {"maxConcurrentRequests": 2}}, files=KEYS["files"]) as c:
        c.decodes[0].script(SlowChunks(0.02), times=1000)
        flood = [asyncio.create_task(c.chat(TEXT, headers=ALICE, stream=True)) for _ in range(30)]
        await c.until(lambda: c.router.services.admission.queued == 28)
        reply = await c.chat(TEXT, headers=BOB, stream=True)
        assert reply.status == 200
        done = sum(task.done() for task in flood)
        assert done <= 6
        replies = await asyncio.gather(*flood)
        assert {reply.status for reply in replies} == {200}


async def test_full_queue_refuses_the_tenant_that_fills_it(cluster: Any) -> None:
    limits = {"maxConcurrentRequests": 1, "maxQueuedRequests": 4}
    async with cluster(config={**KEYS["config"], "limits": limits}, files=KEYS["files"]) as c:
        c.decodes[0].script(SlowChunks(0.05), times=1000)
        flood = [asyncio.create_task(c.chat(TEXT, headers=ALICE, stream=True)) for _ in range(10)]
        await c.until(lambda: sum(task.done() for task in flood) == 5)
        assert {task.result().status for task in flood if task.done()} == {429}
        assert (await c.chat(TEXT, headers=BOB, stream=True)).status == 200
        replies = await asyncio.gather(*flood)
        assert sorted(reply.status for reply in replies) == [200] * 4 + [429] * 6


async def test_bodies_of_one_tenant_leave_memory_for_another(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They count from their first byte, before there is a place to ask for, and until they are answered or their client leaves."""
    monkeypatch.setattr(bodies, "_LEAST_BYTES", 0)
    config = {**KEYS["config"], "limits": {"maxBodyBytes": 100_000}}
    async with cluster(config=config, files=KEYS["files"]) as c:
        host, port = c.router.url.removeprefix("http://").split(":")
        uploads = []
        for _ in range(3):
            _, writer = await asyncio.open_connection(host, int(port))
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: r\r\nAuthorization: {ALICE['Authorization']}\r\n"
            writer.write(
                f"{head}Content-Type: application/json\r\nContent-Length: 100000\r\n\r\n".encode() + b" " * 99_999
            )
            uploads.append(writer)
        await c.until(lambda: c.router.services.bodies.held == 299_997)
        refused = await c.chat(TEXT, headers=ALICE)
        assert (refused.status, refused.body["error"]["code"]) == (429, "too_many_bytes")
        assert (await c.chat(TEXT, headers=BOB)).status == 200
        for writer in uploads:
            writer.close()
        await c.until(lambda: c.router.services.bodies.held == 0)
        assert (await c.chat(TEXT, headers=ALICE)).status == 200


async def test_what_a_body_was_parsed_to_counts_until_it_is_answered(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small objects take many times what their JSON does: few such bodies would be all of a pod's memory."""
    monkeypatch.setattr(bodies, "_LEAST_BYTES", 0)
    async with cluster(config={"limits": {"maxBodyBytes": 100_000}}) as c:
        c.decodes[0].script(SlowChunks(0.1), times=1000)
        held = c.router.services.bodies
        text = asyncio.create_task(c.chat(TEXT, stream=True, metadata={"x": "{,[" * 20_000}))
        await c.until(lambda: c.router.services.admission.in_flight == 1)
        assert 60_000 < held.held < 65_000, "control: a text is what it is"
        await text
        objects = [{"a": 1}] * 900
        flood = [asyncio.create_task(c.chat(TEXT, stream=True, metadata={"x": objects})) for _ in range(3)]
        replies = await asyncio.gather(*flood)
        assert sorted(reply.status for reply in replies) == [200, 429, 429]
        assert {reply.body["error"]["code"] for reply in replies if reply.status == 429} == {"too_many_bytes"}
        await c.until(lambda: held.held == 0)
        assert (await c.chat(TEXT, stream=True, metadata={"x": objects})).status == 200


async def test_logs_hold_no_prompt_no_key_and_no_salt(cluster: Any, capfd: Any) -> None:
    """S9, at the most talkative level."""
    import structlog

    from pdd_router.logs import configure_logs

    configure_logs("debug")
    try:
        async with cluster(**KEYS) as c:
            canary = [{"role": "user", "content": "canary-prompt " * 40}]
            await c.chat(canary, headers=ALICE, conversation_id="canary-id")
            await c.chat(canary, headers=ALICE, stream=True)
            await c.chat(canary, headers={"Authorization": "Bearer canary-key-x"})
            await c.post("/v1/chat/completions", b'{"model": "canary-model" ]', ALICE)
            await c.post("/v1/chat/completions", b"{}", {**ALICE, "X-Big": "canary-header" * 9000})
            await c.chat(canary, headers=ALICE, n="canary-field")
            salt = c.legs(c.prefills[0])[0].body["cache_salt"]
    finally:
        structlog.reset_defaults()
    written = "".join(capfd.readouterr())
    assert "Ended request" in written, "control: there are logs"
    for secret in ("canary", "key-of-alice", "alice", salt):
        assert secret not in written
