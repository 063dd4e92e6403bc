"""Runs programs for the cluster: output kept, failures as ClusterError with what was said last. No shell is involved."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from pdd_e2e.cluster.errors import ClusterError

_LAST_CHARACTERS = 2000


def run(
    command: Sequence[str | Path],
    *,
    timeout_seconds: float = 120,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> str:
    """Its standard output. Raises ClusterError if it fails or takes longer than `timeout_seconds`."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(  # noqa: S603  # programs that this package found or made
            words,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            input=stdin if stdin is not None else "",
            env=None if env is None else {**os.environ, **env},
            cwd=cwd,
        )
    except FileNotFoundError:
        raise ClusterError(f"{words[0]} is not installed") from None
    except subprocess.TimeoutExpired:
        raise ClusterError(f"{' '.join(words[:4])} did not end within {timeout_seconds:.0f} s") from None
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip())[-_LAST_CHARACTERS:]
        raise ClusterError(f"{' '.join(words[:4])} ended with {done.returncode}: {said}")
    return done.stdout


def succeeds(command: Sequence[str | Path], *, timeout_seconds: float = 30) -> bool:
    """Whether it ends with 0 in time."""
    try:
        run(command, timeout_seconds=timeout_seconds)
    except ClusterError:
        return False
    return True
