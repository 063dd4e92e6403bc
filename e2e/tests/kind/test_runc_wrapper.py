"""runc-without-sys-resource takes out what needs the capability, hands the rest on as it is, and never touches what it need not.

Here and not with the unit tests since it needs jq, which comes with the Docker engine.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pdd_e2e.cluster.docker_engine import NODE_FILES, RUNC

CAPABILITIES = {"bounding": ["CAP_CHOWN", "CAP_SYS_RESOURCE"], "effective": ["CAP_SYS_RESOURCE"]}
WITHOUT = {"bounding": ["CAP_CHOWN"], "effective": []}


def wrapped(folder: Path, *arguments: str) -> list[str]:
    """Calls the wrapper with a runc that says what it was asked."""
    runc = folder / "runc"
    runc.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    runc.chmod(0o755)
    command = ["sh", str(NODE_FILES / RUNC), *arguments]
    done = subprocess.run(command, env={**os.environ, "RUNC": str(runc)}, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def written(file: Path, content: dict[str, Any]) -> Path:
    file.write_text(json.dumps(content))
    return file


@pytest.mark.parametrize("option", [["--bundle", "{}"], ["-b", "{}"], ["--bundle={}"]], ids=lambda words: words[0])
def test_a_container_is_made_without_the_capability(tmp_path: Path, option: list[str]) -> None:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    process = {"capabilities": CAPABILITIES, "oomScoreAdj": -998, "rlimits": [{"type": "RLIMIT_NOFILE"}], "cwd": "/"}
    config = written(bundle / "config.json", {"process": process, "root": {"path": "rootfs"}})
    arguments = ["--root", "/run/x", "create", *(word.format(bundle) for word in option), "id"]
    assert wrapped(tmp_path, *arguments) == arguments
    assert json.loads(config.read_text()) == {
        "process": {"capabilities": WITHOUT, "oomScoreAdj": 0, "cwd": "/"},
        "root": {"path": "rootfs"},
    }


def test_what_is_run_in_a_container_is_without_it_too(tmp_path: Path) -> None:
    process = written(tmp_path / "process.json", {"capabilities": CAPABILITIES, "oomScoreAdj": 200, "args": ["ls"]})
    wrapped(tmp_path, "exec", "--process", str(process), "id")
    assert json.loads(process.read_text()) == {"capabilities": WITHOUT, "oomScoreAdj": 200, "args": ["ls"]}


def test_other_calls_change_nothing(tmp_path: Path) -> None:
    config = written(tmp_path / "config.json", {"process": {"capabilities": CAPABILITIES}})
    before = config.read_text()
    assert wrapped(tmp_path, "kill", "id", "KILL") == ["kill", "id", "KILL"]
    assert config.read_text() == before
