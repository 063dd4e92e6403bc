"""The router in front of the engines: its configuration files, its process.

The files are plain text in the router's own format; the end-to-end tests load what is rendered here through the router's parser.
"""

import os
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from pdd_cli.local.engines import HOST, EngineSpec, Role
from pdd_cli.local.ports import free_ports
from pdd_cli.local.processes import ChildProcess, Command
from pdd_cli.local.progress import Progress, Silent
from pdd_cli.local.readiness import wait_until_ready
from pdd_cli.local.reaper import Reaper

_ROLES = {Role.PREFILL: "Prefill", Role.DECODE: "Decode"}
_READY_SECONDS = 180.0  # the first contact of two engines may take 30 s
_FOLLOW_SECONDS = 0.2
_QUICK = aiohttp.ClientTimeout(total=10)


@dataclass(frozen=True, slots=True)
class RouterSpec:
    """`direction`: Bidirectional or PrefillToDecode. `settings` go into the configuration file as they are and win.

    `api_keys` maps keys to tenants; without any, everybody is one tenant.
    """

    name: str
    direction: str = "Bidirectional"
    api_keys: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    port: int = 0  # 0: a free one


def render_engines(engines: list[EngineSpec]) -> str:
    """The engines file. Aggregates are nobody's business here."""
    listed = [
        {
            "name": spec.name,
            "role": _ROLES[spec.role],
            "url": spec.url,
            "claim": {"host": HOST, "port": spec.claim_port},
        }
        for spec in engines
        if spec.role in _ROLES
    ]
    return yaml.safe_dump({"engines": listed}, sort_keys=False)


def render_config(spec: RouterSpec, port: int, engines_file: Path, keys_file: Path | None) -> str:
    """The router's configuration file."""
    config: dict[str, Any] = {
        "listen": {"host": HOST, "port": port},
        "enginesFile": str(engines_file),
        "direction": spec.direction,
        "followFilesSeconds": _FOLLOW_SECONDS,
        "exposeReceipt": True,
    }
    if keys_file is not None:
        config["authentication"] = {"apiKeysFile": str(keys_file)}
    return yaml.safe_dump(config | dict(spec.settings), sort_keys=False)


class Router:
    """One router process of a stack."""

    def __init__(
        self, spec: RouterSpec, engines: list[EngineSpec], private: Path, logs: Path, reaper: Reaper | None
    ) -> None:
        self.spec = spec
        self.port = spec.port or free_ports(1)[0]
        self.log = logs / f"router-{spec.name}.log"
        self._folder = private / f"router-{spec.name}"
        self._engines = engines
        self._reaper = reaper
        self._child: ChildProcess | None = None

    @property
    def name(self) -> str:
        return f"router-{self.spec.name}"

    @property
    def url(self) -> str:
        """http://127.0.0.1:PORT, without /v1."""
        return f"http://{HOST}:{self.port}"

    def start(self) -> None:
        """Write its files and start it. Raises RuntimeError if it was started and not stopped."""
        if self._child is not None:
            raise RuntimeError(f"{self.name} is started already")
        self._folder.mkdir(mode=0o700, exist_ok=True)
        keys = self._write("api-keys.yaml", yaml.safe_dump(dict(self.spec.api_keys))) if self.spec.api_keys else None
        engines = self._write("engines.yaml", render_engines(self._engines))
        config = self._write("router.yaml", render_config(self.spec, self.port, engines, keys))
        argv = (sys.executable, "-m", "pdd_router", "--config", str(config))
        self._child = ChildProcess.start(Command(self.name, argv, self.log, os.environ), self._reaper)

    def _rewrite(self) -> None:
        partial = self._write("engines.yaml.new", render_engines(self._engines))
        partial.replace(self._folder / "engines.yaml")

    async def wait_ready(self, session: aiohttp.ClientSession, progress: Progress) -> None:
        """Returns when it takes traffic, and all its engines are healthy and connected with each other. Raises StartError."""
        if self._child is None:
            raise RuntimeError(f"{self.name} is not started")
        with progress.task(f"Starting {self.name}") as task:
            await wait_until_ready(self._child, lambda: self._connected(session), task, _READY_SECONDS, _hint)

    async def use_engines(self, engines: list[EngineSpec], session: aiohttp.ClientSession) -> None:
        """Have it use exactly these from now on; returns when it does, as `wait_ready`. Raises StartError.

        What it knew of prefill engines is forgotten, as if each were new: they leave for a moment, so that their coming is seen.
        """
        self._engines = [spec for spec in engines if spec.role is not Role.PREFILL]
        self._rewrite()
        await self.wait_ready(session, Silent())
        self._engines = engines
        self._rewrite()
        await self.wait_ready(session, Silent())

    async def _connected(self, session: aiohttp.ClientSession) -> bool:
        async with session.get(f"{self.url}/ready", timeout=_QUICK) as answer:
            state = await answer.json()
        listed = Counter(_ROLES[spec.role].lower() for spec in self._engines if spec.role in _ROLES)
        pairs = state["pairs"]
        return bool(
            state["ready"]
            and all(state["available"][role] == listed[role] for role in ("prefill", "decode"))
            and pairs["introduced"] == pairs["wanted"]
        )

    async def wait_end(self) -> int:
        """The exit code, when the process ends. Raises RuntimeError if it is not started."""
        if self._child is None:
            raise RuntimeError(f"{self.name} is not started")
        return await self._child.wait()

    async def stop(self, grace_seconds: float = 10.0) -> None:
        """End it. Nothing happens if it does not run."""
        child = self._child
        if child is not None:
            await child.stop(grace_seconds)
            self._child = None

    def _write(self, name: str, text: str) -> Path:
        path = self._folder / name
        path.write_text(text)
        path.chmod(0o600)
        return path


def _hint(exit_code: int, lines: list[str]) -> str:
    if any("No module named" in line for line in lines):
        return "the router is not installed: run `make setup`"
    return "the log says why"
