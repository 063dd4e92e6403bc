"""``python -m pdd_router`` / ``pdd-router``: read the configuration, run until told to stop. Nothing else."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from pdd_router.app import check_files, running
from pdd_router.config import ConfigError, RouterConfig, load_config
from pdd_router.logs import configure_logs

_EXAMPLE = """\
example router.yaml:
  listen: {host: 0.0.0.0, port: 8000}
  enginesFile: engines.yaml        # followed while running
  mechanism: Claim

example engines.yaml:
  engines:
  - {name: prefill-0, role: Prefill, url: "http://127.0.0.1:8100", claim: {host: 127.0.0.1, port: 6600}}
  - {name: decode-0, role: Decode, url: "http://127.0.0.1:8200", claim: {host: 127.0.0.1, port: 6601}}

SIGTERM and SIGINT stop taking requests and let those in flight end (shutdown.graceSeconds).
Every setting is described in the router's README.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="pdd-router",
        description="OpenAI-compatible router in front of prefill and decode engines that reuse each other's KV cache.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="the router's configuration (YAML)")
    parser.add_argument(
        "--check", action="store_true", help="only check the configuration and the files that it names, then exit"
    )
    options = parser.parse_args(arguments)
    try:
        config = load_config(options.config)
        if options.check:
            check_files(config)
            return 0
        configure_logs(config.log_level)
        asyncio.run(_serve(config))
    except ConfigError as error:
        print(f"pdd-router: {options.config}: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"pdd-router: cannot listen: {error.strerror}", file=sys.stderr)
        return 1
    return 0


async def _serve(config: RouterConfig) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with running(config):
        await stop.wait()


if __name__ == "__main__":
    sys.exit(main())
