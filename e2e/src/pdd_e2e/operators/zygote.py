"""Starts processes of one module quickly: a process that has imported it, and forks a child for every order.

A kill test starts the operator a hundred times, and importing takes longer than all the rest. A child is a process like any other: own pid,
own environment, own memory from then on. Run as `python -m pdd_e2e.operators.zygote MODULE`; orders are lines of JSON on standard input.
"""

import contextlib
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from pdd_e2e.control_plane.errors import ControlPlaneError

_STOP_SECONDS = 10.0
_UNEXPECTED_END = 70


class Zygote:
    """Works while its context lasts. `start` may be called from any thread."""

    def __init__(self, module: str, log: Path) -> None:
        self._command = [sys.executable, "-m", "pdd_e2e.operators.zygote", module]
        self._log = log
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603  # this module
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate(timeout=_STOP_SECONDS)

    def start(self, environment: Mapping[str, str], log: Path) -> int:
        """The pid of a new child, whose output goes to `log`."""
        order = json.dumps({"environment": dict(environment), "log": str(log)})
        with self._lock:
            if self._process.stdin is None or self._process.stdout is None:
                raise ControlPlaneError("the zygote was not started")
            self._process.stdin.write(order + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        if not answer:
            raise ControlPlaneError(f"the zygote ended: {self._log.read_text()[-2000:]}")
        return int(answer)


def _serve(module: str) -> None:
    importlib.import_module(f"{module}.__main__")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps
    children = []
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _become(module, order["environment"], order["log"])
        children.append(pid)
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()
    for pid in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _become(module: str, environment: Mapping[str, str], log: str) -> None:
    """Never returns."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [module]
    warnings.simplefilter("ignore", RuntimeWarning)  # runpy: that the module is imported already is the point
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except BaseException:  # the interpreter's own handler is the parent's
        traceback.print_exc()
        raise
    finally:
        sys.stderr.flush()
        os._exit(_UNEXPECTED_END)


if __name__ == "__main__":
    _serve(sys.argv[1])
