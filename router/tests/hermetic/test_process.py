"""The process: start, drain."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pdd_e2e.fake_engine import FakeEngine, FakeFabric, SlowChunks


async def test_sigterm_fails_nobody(tmp_path: Path) -> None:
    """R13."""
    async with FakeEngine(fabric=FakeFabric(), role="Decode", name="d0") as engine:
        (tmp_path / "engines.yaml").write_text(f"engines: [{{name: d0, role: Decode, url: '{engine.url}'}}]")
        (tmp_path / "router.yaml").write_text(
            "enginesFile: engines.yaml\nlisten: {port: 0}\nshutdown: {readyDelaySeconds: 0.5, graceSeconds: 10}\n"
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "pdd_router", "--config", str(tmp_path / "router.yaml"),
            stderr=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        try:
            assert process.stderr is not None
            url = await read_url(process.stderr)
            async with aiohttp.ClientSession() as session:
                await wait_ready(session, url)
                engine.script(SlowChunks(0.1))
                body: dict[str, Any] = {
                    "model": "fake",
                    "messages": [{"role": "user", "content": "hello"}],
                    "max_tokens": 8,
                    "stream": True,
                }
                async with session.post(url + "/v1/chat/completions", json=body) as response:
                    assert response.status == 200
                    process.send_signal(signal.SIGTERM)
                    await asyncio.sleep(0.1)
                    async with session.get(url + "/ready") as ready:
                        assert (ready.status, (await ready.json())["reason"]) == (503, "Draining")
                    # Whoever has not noticed yet is served, and told not to come back on this connection.
                    async with session.post(url + "/v1/chat/completions", json={**body, "stream": False}) as late:
                        assert (late.status, late.headers["Connection"]) == (200, "close")
                    assert (await response.read()).endswith(b"data: [DONE]\n\n")
            async with asyncio.timeout(5):
                assert await process.wait() == 0
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def read_url(stream: asyncio.StreamReader) -> str:
    import json

    async with asyncio.timeout(15):
        while True:
            line = json.loads(await stream.readline())
            if line["event"] == "Started router":
                return str(line["url"])


async def wait_ready(session: aiohttp.ClientSession, url: str) -> None:
    async with asyncio.timeout(10):
        while True:
            async with session.get(url + "/ready") as response:
                if response.status == 200:
                    return
            await asyncio.sleep(0.02)
