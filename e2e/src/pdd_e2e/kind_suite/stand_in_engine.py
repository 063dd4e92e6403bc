"""What a pod runs in vLLM's place where there is no accelerator: the fake engine, with vLLM's command line as the operator writes it.

Mounted as `vllm.entrypoints.openai.api_server` into a pod whose image has aiohttp, beside `pdd_e2e.fake_engine`. It starts only on the
transport that the start script and the KV transfer's configuration agree on, and logs it in one line.
"""

import argparse
import asyncio
import json
import os
import signal
import sys

from pdd_e2e.fake_engine.engine import FakeEngine
from pdd_e2e.fake_engine.fabric import FakeFabric
from pdd_e2e.fake_engine.settings import Role

_ROLES = {"kv_producer": Role.PREFILL, "kv_consumer": Role.DECODE}


def main() -> None:
    """Serve until a signal. Exits with a message where configuration and environment mean different transports."""
    parser = argparse.ArgumentParser(
        description="Stands in for a vLLM server; options that it does not know are passed over."
    )
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--served-model-name", required=True)
    parser.add_argument("--block-size", type=int, required=True)
    parser.add_argument("--kv-transfer-config", type=json.loads, required=True)
    options, _ = parser.parse_known_args()
    config = options.kv_transfer_config
    backends = config["kv_connector_extra_config"]["backends"]
    moved_by = {"UCX": "UCX_TLS", "LIBFABRIC": "FI_PROVIDER"}
    told = {name: os.environ[name] for name in moved_by.values() if name in os.environ}
    sys.stdout.write(json.dumps({"backends": backends, "environment": told}) + "\n")
    sys.stdout.flush()
    if [moved_by[name] for name in backends] != list(told):
        parser.error(f"NIXL's backends {backends} do not fit the environment {told}")
    asyncio.run(_serve(options, _ROLES.get(config["kv_role"], Role.DECODE)))


async def _serve(options: argparse.Namespace, role: Role) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    engine = FakeEngine(
        fabric=FakeFabric(),
        role=role,
        name=os.environ["HOSTNAME"],
        model=options.served_model_name,
        block_size=options.block_size,
        host=options.host,
        port=options.port,
    )
    async with engine:
        await stopped.wait()


if __name__ == "__main__":
    main()
