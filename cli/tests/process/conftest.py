"""A stand-in for the engine interpreter: starts in no time, and answers what the real one is asked in the demo's course."""

import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pdd_cli.local.process_groups import end_groups

STAND_IN = """
    import http.server, json, os, pathlib, signal, subprocess, sys, time

    argv, mode = sys.argv[1:], os.environ.get("STAND_IN", "")
    here = pathlib.Path(__file__).parent

    def value(flag):
        return argv[argv.index(flag) + 1]

    def locate():
        print(json.dumps({"file": str(here / "Model.gguf"), "version": "1.0"}))

    def convert():
        if mode == "slow-convert":
            mark("converting")
            time.sleep(60)
        if mode == "failing-convert":
            sys.exit("cannot read it")
        out = pathlib.Path(argv[-1])
        out.mkdir()
        (out / "config.json").write_text("{}")

    def mark(what):
        (here / f"{what}-{os.getpid()}").write_text("")

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(503 if mode == "never-ready" else 200)
            self.end_headers()

        def log_message(self, *arguments):
            return

    def serve():
        if mode == "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if mode == "dies":
            print("OSError: [Errno 98] Address already in use", flush=True)
            sys.exit(9)
        if mode == "grandchild":
            subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)"])
        mark("engine")
        http.server.HTTPServer((value("--host"), int(value("--port"))), Answers).serve_forever()

    if argv[0] == "-c":
        locate()
    elif argv[0].endswith("convert_model.py"):
        convert()
    elif argv[1] == "pdd_connector.kv_transfer_config":
        print(json.dumps({"kv_role": value("--role"), "port": int(value("--claim-port")), **json.load(open(value("--settings")))}))
    else:
        serve()
"""


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    """Path of the stand-in. It marks what it does by files beside it: `engine-PID`, `converting-PID`."""
    path = tmp_path / "engine-python"
    path.write_text(f"#!{sys.executable}\n{textwrap.dedent(STAND_IN)}")
    path.chmod(0o755)
    return path


@pytest.fixture
def marked(tmp_path: Path) -> Iterator[Callable[[str], list[int]]]:
    """Pids by mark. What a failing test leaves is ended afterwards, so that it does not outlive the run."""

    def pids(mark: str) -> list[int]:
        return [int(path.name.rpartition("-")[2]) for path in tmp_path.glob(f"{mark}-[0-9]*")]

    yield pids
    end_groups([*pids("engine"), *pids("converting")], grace_seconds=0)
