"""A chat on a socket of its own, for clients that do what no library does."""

import asyncio
import json
from typing import Any

LONG = [{"role": "user", "content": "Tell me all that you know of lighthouses. " * 12}]


async def raw_chat(c: Any, *, stream: bool, max_tokens: int = 8) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A request on a socket of its own."""
    host, port = c.router.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps({"model": "fake", "messages": LONG, "max_tokens": max_tokens, "stream": stream}).encode()
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: router\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body) + body
    )
    await writer.drain()
    return reader, writer
