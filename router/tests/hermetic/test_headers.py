"""Headers: what may be said only once, and what answers do not say."""

import asyncio
import json
import re
from collections.abc import Mapping
from typing import Any

import pytest
from structlog.testing import capture_logs

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "fake", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
GOOD = json.dumps(BODY).encode()
RAW = [
    b"GET / HTTP/9.9\r\n\r\n",
    b"nonsense\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * 70_000 + b"\r\n\r\n",
]


@pytest.mark.parametrize("name", ["Authorization", "X-Session-ID", "x-conversation-id"])
async def test_header_that_says_who_may_not_be_given_twice(cluster: Any, name: str) -> None:
    """Two of them would be two tenants or two conversations, and a proxy may have looked at the other one."""
    async with cluster() as c:
        for values, status in ((["Bearer a", "Bearer b"], 400), (["Bearer a", "Bearer a"], 400), (["Bearer a"], 200)):
            headers = [("Content-Type", "application/json"), *((name, value) for value in values)]
            async with c.session.post(c.router.url + CHAT, data=GOOD, headers=headers) as response:
                assert response.status == status
                if status == 400:
                    assert (await response.json())["error"]["param"].lower() == name.lower()
        assert len(c.legs(c.decodes[0])) == 1


async def test_no_answer_names_versions(cluster: Any) -> None:
    async with cluster() as c:
        seen = [await c.get(path) for path in ("/health", "/ready", "/metrics", "/v1/models", "/nothing")]
        seen += [await c.post(CHAT, {**BODY, "stream": stream}) for stream in (False, True)]
        seen.append(await c.post(CHAT, b"{"))
        assert {reply.headers["Server"] for reply in seen} == {"pdd-router"}
        for request in RAW:
            answer = await raw_answer(c.router.url, request)
            assert "\r\nServer: pdd-router\r\n" in answer, request[:60]
            assert "aiohttp" not in answer


async def raw_answer(url: str, request: bytes) -> str:
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    async with asyncio.timeout(5):
        answer = await reader.read()
    writer.close()
    return answer.decode()


def id_of(headers: Mapping[str, str]) -> str:
    (found,) = (value for name, value in headers.items() if name.lower() == "x-request-id")
    return found


async def test_every_answer_has_an_id_of_its_own(cluster: Any) -> None:
    """Also where the request was refused, by whom ever, and whatever id the client gave it."""
    chosen = {"X-Request-Id": "chosen"}
    async with cluster() as c:
        seen = [
            await c.get(path, chosen) for path in ("/health", "/ready", "/metrics", "/v1/models", "/v1/models/fake")
        ]
        seen += [await c.post(CHAT, {**BODY, "stream": stream}, chosen) for stream in (False, True)]
        assert {reply.status for reply in seen} == {200}
        refused = [
            await c.get("/nothing", chosen),
            await c.get("/v1/models/other"),
            await c.get(CHAT),
            await c.post(CHAT, b"{", chosen),
            await c.post(CHAT, {**BODY, "model": "other"}),
            await c.post(CHAT, GOOD, {"Content-Type": "text/plain"}),
            await c.post(CHAT, GOOD, {"Expect": "something"}),
        ]
        assert [reply.status for reply in refused] == [404, 404, 405, 400, 404, 415, 417]
        raw = [await raw_answer(c.router.url, request) for request in RAW]
        await c.decodes[0].kill()
        refused.append(await c.post(CHAT, GOOD))
        assert refused[-1].status == 503
    ids = [id_of(reply.headers) for reply in [*seen, *refused]]
    ids += [found for answer in raw for found in re.findall(r"^X-Request-Id: (.*)\r$", answer, re.MULTILINE)]
    assert len(ids) == len(set(ids)) == len(seen) + len(refused) + len(RAW)
    assert all(re.fullmatch("[0-9a-f]{32}", found) for found in ids)


async def test_an_answer_has_the_id_that_is_logged(cluster: Any) -> None:
    """That of a turn, that of one which was refused after it was read, and the one that engines get."""
    async with cluster(config={"limits": {"maxConcurrentRequests": 1, "maxQueuedRequests": 0}}) as c:
        with capture_logs() as logs:
            good = await c.post(CHAT, BODY)
            async with c.router.services.admission.place("somebody"):
                refused = await c.post(CHAT, BODY)
        assert (good.status, refused.status) == (200, 429)
        ended = [line["request_id"] for line in logs if line["event"] == "Ended request"]
        assert [id_of(reply.headers) for reply in (good, refused)] == ended
        (leg,) = c.legs(c.decodes[0])
        assert id_of(leg.headers) == ended[0]


async def test_an_anonymous_client_is_told_the_id_of_its_refusal(cluster: Any) -> None:
    async with cluster(
        config={"authentication": {"apiKeysFile": "keys.yaml"}}, files={"keys.yaml": "key-of-alice: alice\n"}
    ) as c:
        for reply in (await c.post(CHAT, BODY), await c.get("/v1/models")):
            assert reply.status == 401
            assert re.fullmatch("[0-9a-f]{32}", id_of(reply.headers))
