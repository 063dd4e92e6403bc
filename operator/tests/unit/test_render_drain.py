"""drain.py: waits for what is running, for as long as it may, and for nothing that it cannot see."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import pdd_operator.render

PATH = Path(pdd_operator.render.__file__).parent / "scripts" / "drain.py"


class _Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def drain(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("pdd_drain", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "time", _Clock())
    return module


class _Engine:
    """Serves one metrics page after another; the last for ever."""

    def __init__(self) -> None:
        self.pages = [""]
        self.asked = 0
        engine = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                page = engine.pages[min(engine.asked, len(engine.pages) - 1)]
                engine.asked += 1
                self.send_response(200 if page else 500)
                self.end_headers()
                self.wfile.write(page.encode())

            def log_message(self, *_: Any) -> None:
                return

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/metrics"

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def engine() -> Iterator[_Engine]:
    engine = _Engine()
    yield engine
    engine.close()


def page(running: float, waiting: float = 0.0) -> str:
    return (
        "# HELP vllm:num_requests_running Requests in batches\n"
        f'vllm:num_requests_running{{engine="0",model_name="a b"}} {running}\n'
        f'vllm:num_requests_waiting{{engine="0",model_name="a b"}} {waiting}\n'
        'vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 7.0\n'
    )


def test_an_idle_engine_is_not_waited_for(drain: ModuleType, engine: _Engine) -> None:
    engine.pages = [page(0)]
    assert drain.drain(engine.url, 60.0) == "the engine is idle"
    assert drain.time.now == 0


def test_running_and_waiting_requests_are_waited_for(drain: ModuleType, engine: _Engine) -> None:
    engine.pages = [page(2, 1), page(0, 1), page(1), page(0)]
    assert drain.drain(engine.url, 60.0) == "the engine is idle"
    assert (engine.asked, drain.time.now) == (4, 3.0)


def test_the_wait_is_bounded(drain: ModuleType, engine: _Engine) -> None:
    engine.pages = [page(3)]
    assert drain.drain(engine.url, 7.5) == "3 requests are left after 7.5 seconds"
    assert drain.time.now == 7.5


def test_an_engine_that_does_not_answer_is_not_waited_for(drain: ModuleType, engine: _Engine) -> None:
    assert "does not answer" in drain.drain(engine.url, 60.0)
    assert drain.time.now == 2.0


def test_one_failure_is_not_the_end(drain: ModuleType, engine: _Engine) -> None:
    engine.pages = ["", "", page(1), "", "", page(0)]
    assert drain.drain(engine.url, 60.0) == "the engine is idle"


def test_foreign_metrics_are_not_waited_for(drain: ModuleType, engine: _Engine) -> None:
    engine.pages = ["process_cpu_seconds_total 1\n"]
    assert "do not tell" in drain.drain(engine.url, 60.0)


def test_as_a_hook_it_ends_well_either_way(engine: _Engine) -> None:
    engine.pages = [page(0)]
    command = [sys.executable, str(PATH), "--notice-seconds", "0", "--timeout-seconds", "5", "--port"]
    ended = subprocess.run([*command, str(engine.server.server_port)], check=True, capture_output=True, text=True)
    assert ended.stdout == "drain: the engine is idle\n"
