"""`python -m pdd_e2e.contract_on_engines`: runs the contract suite, which the fake engine passes, against real engines of both mechanisms.

Starts a prefill and a decode engine with claims and a pair with handles, writes their addresses into a file, and runs pytest on `tests/contract` with it; further
arguments go to pytest. Exits with pytest's code.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from pdd_cli.local.engine import Engine
from pdd_cli.local.engines import HOST, EngineOptions
from pdd_cli.local.stack import LocalStack, StackSpec
from pdd_cli.terminal import TerminalProgress
from pdd_e2e.engines.sets import Ground, prepare_ground

MEMBER = Path(__file__).resolve().parents[2]
_LIMITS = {"timeout_milliseconds": 4_000, "read_timeout_milliseconds": 10_000, "hold_seconds": 20}
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "Claim": {"mechanism": "Claim", "recompute_threshold_tokens": 0, "claim": _LIMITS},
    "Retain": {
        "mechanism": "Retain",
        "recompute_threshold_tokens": 0,
        "retain": {"decoder_blocks_ttl_seconds": 20, "lease_seconds": 20, "max_percent_of_blocks": 90},
    },
}


async def run(arguments: list[str]) -> int:
    """One mechanism after the other, so that four engines never share two cores."""
    progress = TerminalProgress(Console())
    with tempfile.TemporaryDirectory() as folder:
        ground = await prepare_ground(Path(folder))
        for mechanism in SETTINGS:
            async with LocalStack(stack_spec(ground, mechanism), progress) as stack:
                cards = [card(engine, mechanism) for engine in (*stack.prefills, *stack.decodes)]
                file = Path(folder) / f"{mechanism}.json"
                file.write_text(json.dumps(cards), encoding="utf-8")
                code = await run_pytest(file, arguments)
                if code:
                    print("== once more, what failed", flush=True)
                    code = await run_pytest(file, ["--last-failed", *arguments])
            if code:
                return code
    return 0


def stack_spec(ground: Ground, mechanism: str) -> StackSpec:
    """A pair with this mechanism, as the contract wants it."""
    options = EngineOptions(max_model_len=1024, development_api=True)
    logs = ground.logs / mechanism
    logs.mkdir()
    return replace(StackSpec(ground.python, ground.model, logs), options=options, connector=SETTINGS[mechanism])


def card(engine: Engine, mechanism: str) -> dict[str, Any]:
    """What the suite has to know of an engine."""
    return {
        "role": engine.spec.role.value.capitalize(),
        "url": engine.url,
        "claim_host": HOST,
        "claim_port": engine.spec.claim_port,
        "model": engine.spec.served_name,
        "block_size": engine.spec.options.block_size,
        "mechanism": mechanism,
        "threshold_tokens": 0,
    }


async def run_pytest(engines: Path, arguments: list[str]) -> int:
    """The suite, against the engines in the file."""
    environment = {**os.environ, "PDD_CONTRACT_ENGINES": str(engines)}
    command = [sys.executable, "-m", "pytest", "-q", "tests/contract", *arguments]
    process = await asyncio.create_subprocess_exec(*command, cwd=MEMBER, env=environment)
    return await process.wait()


if __name__ == "__main__":
    sys.exit(asyncio.run(run(sys.argv[1:])))
