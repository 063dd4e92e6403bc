"""`python -m pdd_e2e.bench_claim`: starts two engines, measures, prints a table and writes JSON."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from pathlib import Path

import aiohttp
from rich.console import Console

from pdd_cli.local.engines import EngineOptions
from pdd_cli.local.environment import checkout_start, find_engine_python
from pdd_cli.local.model import default_cache, prepare_model
from pdd_cli.local.stack import LocalStack, StackSpec
from pdd_cli.terminal import TerminalProgress
from pdd_e2e.bench_claim.measure import FullBatch, Pair, measure_phase
from pdd_e2e.bench_claim.report import ClaimSample, Phase, Result, table, verdict

PROMPTS = 4


def parse_arguments() -> argparse.Namespace:
    """Options; exits with 2 on wrong ones."""
    parser = argparse.ArgumentParser(prog="make bench-claim", description=__doc__)
    parser.add_argument(
        "--claims", type=int, default=40, help="claims measured with the owner idle, and again at full batch"
    )
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--streams", type=int, default=8, help="requests that fill the owner's batch")
    parser.add_argument("--pairs", type=int, default=3, help="pairs of phases: not being read, being read")
    parser.add_argument("--phase-seconds", type=float, default=20.0)
    parser.add_argument("--out", type=Path, default=Path("out/bench-claim"))
    return parser.parse_args()


async def run(options: argparse.Namespace, console: Console) -> Result:
    """One whole run."""
    progress = TerminalProgress(console)
    options.out.mkdir(parents=True, exist_ok=True)
    python = find_engine_python(None, os.environ, checkout_start())
    model = await prepare_model(python, default_cache(os.environ), progress)
    engine = EngineOptions(development_api=True, max_num_seqs=options.streams, max_model_len=4096)
    spec = StackSpec(python, model, options.out, options=engine)
    async with (
        LocalStack(spec, progress) as stack,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as session,
    ):
        pair = Pair(session, stack.prefills[0], stack.decodes[0], options.prompt_tokens)
        with progress.task("Connecting the engines"):
            await pair.introduce()
        with progress.task("Computing prompts on the owner"):
            prompts = [await pair.seed() for _ in range(PROMPTS)]
        with progress.task(f"{options.claims} claims, owner idle"):
            idle = await claims(pair, prompts, options.claims)
        async with FullBatch(pair, options.streams).running() as batch:
            with progress.task(f"{options.claims} claims, owner at full batch"):
                busy = await claims(pair, prompts, options.claims)
            phases: list[Phase] = []
            for number in range(2 * options.pairs):
                with progress.task(
                    f"Phase {number + 1} of {2 * options.pairs}: {'being read' if number % 2 else 'not being read'}"
                ):
                    phases.append(
                        await measure_phase(pair, batch, prompts[0], options.phase_seconds, being_read=bool(number % 2))
                    )
    return Result(options.prompt_tokens, options.streams, idle, busy, phases)


async def claims(pair: Pair, prompts: list[list[int]], count: int) -> list[ClaimSample]:
    """So many claims, over the prompts in turn."""
    return [await pair.claim(prompts[number % len(prompts)]) for number in range(count)]


def main() -> None:
    """Entry point."""
    options, console = parse_arguments(), Console()
    result = asyncio.run(run(options, console))
    (options.out / "result.json").write_text(json.dumps(result.as_dict(), indent=2), encoding="utf-8")
    console.print(table(result))
    console.print(verdict(result))
    console.print(f"All numbers: {options.out / 'result.json'}")


if __name__ == "__main__":
    main()
