"""Run fake engines as a process: `python -m pdd_e2e.fake_engine --port 8100 --role Prefill --port 8200 --role Decode`.

All engines of one process share a fabric and so reach each other's claim channels; engines of two processes do not.
Prints one line of JSON per engine (role, url, claim_host, claim_port, model, block_size) once it serves: together, in a
list, they are what PDD_CONTRACT_ENGINES points to. SIGINT or SIGTERM ends it.
"""

import argparse
import asyncio
import json
import signal
import sys
from contextlib import AsyncExitStack

from pdd_e2e.fake_engine.engine import FakeEngine
from pdd_e2e.fake_engine.fabric import FakeFabric
from pdd_e2e.fake_engine.settings import Mechanism, Role


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pdd_e2e.fake_engine", description="Fake vLLM engines for tests.")
    parser.add_argument(
        "--port", type=int, action="append", required=True, help="HTTP port; once per engine, 0: a free one"
    )
    parser.add_argument("--role", type=Role, action="append", required=True, choices=list(Role), help="once per engine")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--model", default="fake", help="name of the model served (default: %(default)s)")
    parser.add_argument("--mechanism", type=Mechanism, choices=list(Mechanism), default=Mechanism.CLAIM)
    parser.add_argument("--block-size", type=int, default=16, help="tokens per block (default: %(default)s)")
    parser.add_argument("--cache-blocks", type=int, default=1024, help="blocks of the KV cache (default: %(default)s)")
    parser.add_argument("--seconds-per-prompt-token", type=float, default=0.0, help="time to compute a prompt token")
    parser.add_argument("--seconds-per-output-token", type=float, default=0.0, help="time to generate a token")
    return parser


async def _serve(options: argparse.Namespace) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    fabric = FakeFabric()
    async with AsyncExitStack() as stack:
        for index, (port, role) in enumerate(zip(options.port, options.role, strict=True)):
            engine = FakeEngine(
                fabric=fabric,
                role=role,
                name=f"{role.lower()}-{index}",
                model=options.model,
                block_size=options.block_size,
                cache_blocks=options.cache_blocks,
                seconds_per_prompt_token=options.seconds_per_prompt_token,
                seconds_per_output_token=options.seconds_per_output_token,
                host=options.host,
                port=port,
                mechanism=options.mechanism,
            )
            await stack.enter_async_context(engine)
            sys.stdout.write(json.dumps(engine.address_card()) + "\n")
        sys.stdout.flush()
        await stopped.wait()


def main() -> None:
    """Parse the command line and serve until a signal."""
    parser = _parser()
    options = parser.parse_args()
    if len(options.port) != len(options.role):
        parser.error("--port and --role must be given the same number of times")
    asyncio.run(_serve(options))


if __name__ == "__main__":
    main()
