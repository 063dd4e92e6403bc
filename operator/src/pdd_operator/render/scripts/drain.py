"""Holds an engine's end back until it has nothing to do: the preStop hook of the engine's container.

Runs in the engine's image: Python 3.9 and its standard library only. First it waits until the routers have noticed that
the pod is leaving, then until the engine's own metrics show no request running or waiting, at most so long. What it
cannot read, it does not wait for. Always exits 0: the stop goes on either way.
"""

from __future__ import annotations

import argparse
import sys
import time
import urllib.error
import urllib.request

POLL_SECONDS = 1.0
ANSWER_TIMEOUT_SECONDS = 5.0
FAILURES_ALLOWED = 3
BUSY = ("vllm:num_requests_running", "vllm:num_requests_waiting")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Wait until an engine is idle.")
    parser.add_argument("--notice-seconds", type=float, required=True)
    parser.add_argument("--timeout-seconds", type=float, required=True)
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args(arguments)
    time.sleep(options.notice_seconds)
    print(f"drain: {drain(f'http://127.0.0.1:{options.port}/metrics', options.timeout_seconds)}", flush=True)
    return 0


def drain(url: str, timeout_seconds: float) -> str:
    """How it ended."""
    deadline = time.monotonic() + timeout_seconds
    failures = 0
    left = "an unknown number of"
    while time.monotonic() < deadline:
        try:
            requests = busy_requests(url)
        except (OSError, ValueError) as error:
            failures += 1
            if failures >= FAILURES_ALLOWED:
                return f"the engine does not answer ({error})"
        else:
            failures = 0
            if requests == 0:
                return "the engine is idle"
            left = f"{requests:g}"
        time.sleep(min(POLL_SECONDS, max(0.0, deadline - time.monotonic())))
    return f"{left} requests are left after {timeout_seconds:g} seconds"


def busy_requests(url: str) -> float:
    """Running and waiting requests of all engines behind this server. Raises ValueError where the metrics are others'."""
    with urllib.request.urlopen(url, timeout=ANSWER_TIMEOUT_SECONDS) as answer:  # noqa: S310 - a loopback address
        text = answer.read().decode("utf-8", "replace")
    found = [line for line in text.splitlines() if line.split("{")[0].split(" ")[0] in BUSY]
    if not found:
        raise ValueError("its metrics do not tell how many requests it has")
    return sum(float(line.rsplit(" ", 1)[1]) for line in found)


if __name__ == "__main__":
    sys.exit(main())
