"""Headers: what may be said only once, and what answers do not say."""

import asyncio
import json
from typing import Any

import pytest

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
        host, port = c.router.url.removeprefix("http://").split(":")
        for raw in RAW:
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(raw)
            async with asyncio.timeout(5):
                answer = await reader.read()
            writer.close()
            assert b"\r\nServer: pdd-router\r\n" in answer, raw[:60]
            assert b"aiohttp" not in answer
