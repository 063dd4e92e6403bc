"""A real router on a real port before fake engines on real ports: what every hermetic test starts from."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from fake_api_server import DEPLOYMENT, NAMESPACE, FakeApiServer, pod

from pdd_e2e.fake_engine import FakeEngine, FakeFabric, Mechanism, RecordedRequest
from pdd_router.app import Router, running
from pdd_router.config import load_config
from pdd_router.pods.watching import Pace

# Quick enough for tests, and every prompt is long enough to be split.
FAST: dict[str, Any] = {
    "listen": {"host": "127.0.0.1", "port": 0},
    "enginesFile": "engines.yaml",
    "recomputeThresholdTokens": 0,
    "runOnDecodeBelowTokens": 0,
    "health": {"intervalSeconds": 0.1, "timeoutSeconds": 2.0, "unhealthyAfter": 2},
    "introductions": {"retryBaseSeconds": 0.05, "retryMaxSeconds": 0.2},
    "followFilesSeconds": 0.05,
    "shutdown": {"graceSeconds": 2.0},
    "timeouts": {"connectSeconds": 1.0},
}


@dataclass
class Reply:
    """A whole answer. ``events``: of a stream, without ``[DONE]``; ``done``: whether that came; ``cut``: whether the
    connection ended before the message did."""

    status: int
    headers: Mapping[str, str]
    body: Any = None
    events: list[Any] = field(default_factory=list)
    done: bool = False
    cut: bool = False

    @property
    def receipt(self) -> Any:
        return json.loads(self.headers["X-PDD-Receipt"])

    @property
    def text(self) -> str:
        if self.body is not None:
            return str(self.body["choices"][0]["message"]["content"])
        deltas = (choice["delta"] for event in self.events for choice in event.get("choices", ()))
        return "".join(delta.get("content") or "" for delta in deltas)


@dataclass
class Cluster:
    router: Router
    folder: Path
    prefills: list[FakeEngine]
    decodes: list[FakeEngine]
    session: aiohttp.ClientSession
    retired: list[FakeEngine] = field(default_factory=list)

    @property
    def engines(self) -> list[FakeEngine]:
        return [*self.prefills, *self.decodes]

    @property
    def registry(self) -> Any:
        return self.router.services.registry

    async def post(self, path: str, body: Any, headers: Mapping[str, str] | None = None) -> Reply:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        given = {"Content-Type": "application/json", **(headers or {})}
        async with self.session.post(self.router.url + path, data=data, headers=given) as response:
            return await read_reply(response)

    async def chat(self, messages: list[Any], *, headers: Mapping[str, str] | None = None, **fields: Any) -> Reply:
        body = {"model": "fake", "messages": messages, "max_tokens": 4, "temperature": 0, **fields}
        return await self.post("/v1/chat/completions", body, headers)

    async def get(self, path: str, headers: Mapping[str, str] | None = None) -> Reply:
        async with self.session.get(self.router.url + path, headers=headers) as response:
            return await read_reply(response)

    async def metric(self, name: str, **labels: str) -> float:
        self.router.services.metrics.render()
        return self.router.services.metrics.registry.get_sample_value(f"pdd_router_{name}", labels) or 0.0

    def legs(self, engine: FakeEngine) -> list[RecordedRequest]:
        """Requests that traffic made of an engine: neither health checks nor introductions."""
        return [request for request in engine.requests if request.method == "POST" and not is_introduction(request)]

    def write_engines(self, engines: list[FakeEngine] | None = None, **changed: str) -> None:
        write_engines(self.folder, self.engines if engines is None else engines, changed)

    async def until(self, condition: Callable[[], bool], seconds: float = 15.0) -> None:
        """Wait for something that happens in the background."""
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110  # what is waited for is in engines and counters that signal nothing
                await asyncio.sleep(0.005)

    async def until_introduced(self) -> None:
        """Every wanted pair of engines is connected."""
        introductions = self.registry.introductions

        def introduced() -> bool:
            wanted = introductions.wanted(self.registry.snapshot().engines)
            return bool(wanted) and wanted <= introductions.introduced

        await self.until(introduced, seconds=10)

    async def until_idle(self) -> None:
        """Nothing in flight anywhere: router's counts, engines' batches and blocks."""
        admission = self.router.services.admission
        await self.until(
            lambda: (
                admission.in_flight == 0
                and admission.queued == 0
                and all(state.in_flight == 0 and state.in_flight_tokens == 0 for state in self.registry.states())
                and all(engine.running == 0 and engine.waiting == 0 for engine in self.engines)
            )
        )


@dataclass
class KubeCluster(Cluster):
    """Engines are pods of a fake API server, at addresses of their own on loopback."""

    api: FakeApiServer = field(default_factory=FakeApiServer)

    def pod_of(self, engine: FakeEngine, **changes: Any) -> dict[str, Any]:
        given = {"group": engine.settings.revision, "ip": engine.claim_host, **changes}
        return pod(engine.settings.name, str(engine.settings.role).lower(), **given)

    async def show(self, *engines: FakeEngine, **changes: Any) -> None:
        await self.api.put(*(self.pod_of(engine, **changes) for engine in engines))

    def state(self, name: str) -> Any:
        return next((state for state in self.registry.states() if state.engine.id.name == name), None)

    async def until_state(self, name: str, condition: Callable[[Any], bool]) -> None:
        await self.until(lambda: (state := self.state(name)) is not None and condition(state))


def is_introduction(request: RecordedRequest) -> bool:
    params = request.body.get("kv_transfer_params") if isinstance(request.body, dict) else None
    return bool(params and params.get("claim", {}).get("introduce"))


async def read_reply(response: aiohttp.ClientResponse) -> Reply:
    reply = Reply(response.status, dict(response.headers))
    if response.content_type == "text/event-stream":
        raw = b""
        try:
            async for chunk in response.content.iter_any():
                raw += chunk
        except aiohttp.ClientPayloadError:
            reply.cut = True
        for part in raw.decode().split("\n\n"):
            if part.strip() == "data: [DONE]":
                reply.done = True
            elif part.strip():
                reply.events.append(json.loads(part.removeprefix("data: ")))
    elif response.content_type == "application/json":
        reply.body = await response.json()
    else:
        reply.body = await response.text()
    return reply


def write_engines(folder: Path, engines: list[FakeEngine], incarnations: Mapping[str, str]) -> None:
    entries = [
        {
            "name": engine.settings.name,
            "role": str(engine.settings.role),
            "url": engine.url,
            "claim": {"host": engine.claim_host, "port": engine.claim_port},
            "group": engine.settings.revision,
            "incarnation": incarnations.get(engine.settings.name, ""),
        }
        for engine in engines
    ]
    fresh = folder / "engines.yaml.new"
    fresh.write_text(yaml.safe_dump({"engines": entries}))
    fresh.rename(folder / "engines.yaml")


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in changes.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return result


@pytest.fixture
def cluster(tmp_path: Path) -> Any:
    """``async with cluster(prefills=2, config={...}, engine={...}) as c``: up and, with claims, introduced."""

    @asynccontextmanager
    async def start(
        *,
        prefills: int = 1,
        decodes: int = 1,
        config: Mapping[str, Any] | None = None,
        engine: Mapping[str, Any] | None = None,
        files: Mapping[str, str] | None = None,
        wait: bool = True,
    ) -> AsyncIterator[Cluster]:
        fabric = FakeFabric()
        settings = merged(FAST, config or {})
        options = {"mechanism": Mechanism(settings.get("mechanism", "Claim")), **(engine or {})}
        async with AsyncExitStack() as stack:
            made = []
            for role, count in (("Prefill", prefills), ("Decode", decodes)):
                for at in range(count):
                    name = f"{role[0].lower()}{at}"
                    made.append(
                        await stack.enter_async_context(FakeEngine(fabric=fabric, role=role, name=name, **options))
                    )
            write_engines(tmp_path, made, {})
            for name, text in (files or {}).items():
                (tmp_path / name).write_text(text)
            (tmp_path / "router.yaml").write_text(yaml.safe_dump(settings))
            router = await stack.enter_async_context(running(load_config(tmp_path / "router.yaml")))
            session = await stack.enter_async_context(aiohttp.ClientSession())
            here = Cluster(router, tmp_path, made[:prefills], made[prefills:], session)
            if wait:
                await here.until(lambda: all(state.healthy for state in here.registry.states()))
                if settings.get("mechanism", "Claim") == "Claim" and prefills:
                    await here.until_introduced()
            yield here

    return start


# Quick enough for tests: a silent connection is noticed after a second and a half.
PACE = Pace(
    connect_seconds=1.0, list_seconds=0.5, watch_seconds=1, grace_seconds=0.5, settled_seconds=0.3,
    backoff_base_seconds=0.05, backoff_max_seconds=0.2,
)  # fmt: skip


@pytest.fixture
def kube_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """``async with kube_cluster(["p0", "d0"], groups={"d1": "g2"}) as c``: engines run; ``shown`` ones are ready pods."""

    @asynccontextmanager
    async def start(
        names: list[str],
        *,
        groups: Mapping[str, str] | None = None,
        shown: list[str] | None = None,
        config: Mapping[str, Any] | None = None,
        pace: Pace = PACE,
        api_is_up: bool = True,
    ) -> AsyncIterator[KubeCluster]:
        fabric, port = FakeFabric(), 0
        made: dict[str, FakeEngine] = {}
        async with AsyncExitStack() as stack:
            api = await stack.enter_async_context(FakeApiServer())
            for at, name in enumerate(names):
                role, revision = "Prefill" if name[0] == "p" else "Decode", (groups or {}).get(name, "g1")
                engine = FakeEngine(
                    fabric=fabric, role=role, name=name, host=f"127.0.0.{at + 10}", port=port, claim_port=6600,
                    revision=revision, mechanism=Mechanism((config or {}).get("mechanism", "Claim")),
                )  # fmt: skip
                made[name] = await stack.enter_async_context(engine)
                port = int(engine.url.rsplit(":", 1)[1])
            monkeypatch.setenv("KUBECONFIG", str(api.write_kubeconfig(tmp_path)))
            where = {"namespace": NAMESPACE, "deployment": DEPLOYMENT, "enginePort": port}
            settings = merged({**FAST, "discovery": {"kubernetes": where}}, config or {})
            del settings["enginesFile"]
            (tmp_path / "router.yaml").write_text(yaml.safe_dump(settings))
            prefills = [engine for name, engine in made.items() if name[0] == "p"]
            decodes = [engine for name, engine in made.items() if name[0] == "d"]
            ready = [made[name] for name in (names if shown is None else shown)]
            if not api_is_up:
                await api.down()
            router = await stack.enter_async_context(running(load_config(tmp_path / "router.yaml"), pace=pace))
            session = await stack.enter_async_context(aiohttp.ClientSession())
            here = KubeCluster(router, tmp_path, prefills, decodes, session, api=api)
            if api_is_up:
                await here.until(lambda: api.watches == 1)
            await here.show(*ready)
            if api_is_up:
                await here.until(lambda: sum(state.view().available for state in here.registry.states()) == len(ready))
                if any(engine in prefills for engine in ready) and here.router.services.config.mechanism == "Claim":
                    await here.until_introduced()
            yield here

    return start
