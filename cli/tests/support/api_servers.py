"""Something on loopback that answers as an API server should, or as none ever would; and kubeconfigs that name it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml


@dataclass
class Server:
    """``authorizations``: what requests had as their header. ``url``: without a path."""

    url: str
    authorizations: list[str] = field(default_factory=list)


@contextmanager
def answering(body: bytes, code: int = 200, paths: Mapping[str, Any] | None = None) -> Iterator[Server]:
    """``paths``: JSON of single ones; all others get ``body`` with ``code``."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server.authorizations.append(self.headers.get("Authorization", ""))
            path = self.path.partition("?")[0]
            known = (paths or {}).get(path)
            answer = body if known is None else json.dumps(known).encode()
            self.send_response(code if known is None else 200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *arguments: object) -> None:
            """Nobody reads it."""

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server = Server(f"http://127.0.0.1:{listening.server_port}")
    thread = threading.Thread(target=listening.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        listening.shutdown()
        listening.server_close()
        thread.join()


def kubeconfig(folder: Path, server: str, user: Mapping[str, Any] | None = None, namespace: str = "agents") -> Path:
    path = folder / "kubeconfig"
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": namespace}}],
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": dict(user or {})}],
    }
    path.write_text(yaml.safe_dump(content))
    return path
