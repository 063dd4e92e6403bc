"""A prefill engine's scheduler in a process of its own, with two steps in flight: python scheduler_alone.py MODEL GUARDED

A request is aborted while its step is in flight, and the next one reads from another engine. Last line on standard output, in JSON: the blocks
that the step in flight writes, and those that are read into.
"""

import json
import os
import socket
import sys

import torch
from vllm.config import CacheConfig, DeviceConfig, KVTransferConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.plugins import load_general_plugins
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from pdd_connector.kv_transfer_config import PairSettings, Platform, Role, build_kv_transfer_config
from pdd_connector.settings import parse_settings

BLOCK, BLOCKS = 16, 101
READ = 2 * BLOCK


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def make_scheduler(model: str) -> AsyncScheduler:
    settings = parse_settings({"claim": {"port": free_port()}})
    transfer = build_kv_transfer_config(PairSettings(settings=settings, platform=Platform.CPU), Role.PREFILL)
    config = VllmConfig(
        model_config=ModelConfig(model, skip_tokenizer_init=True, dtype="float32", max_model_len=2048),
        scheduler_config=SchedulerConfig(
            max_num_seqs=16, max_num_batched_tokens=2048, max_model_len=2048, is_encoder_decoder=False
        ),
        cache_config=CacheConfig(block_size=BLOCK, enable_prefix_caching=True),
        kv_transfer_config=KVTransferConfig(**transfer),
        device_config=DeviceConfig("cpu"),
    )
    config.cache_config.num_gpu_blocks = BLOCKS
    config.scheduler_config.async_scheduling = True  # which vLLM turns off on CPU, and on elsewhere
    assert config.max_concurrent_batches > 1
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=16, dtype=torch.float32)
    groups = [KVCacheGroupSpec(["layer"], spec)]
    cache = KVCacheConfig(num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=groups)
    return AsyncScheduler(config, cache, StructuredOutputManager(config), BLOCK)


def main(model: str, guarded: bool) -> None:
    load_general_plugins()  # as every process of vLLM does
    init_none_hash(sha256)
    hasher = get_request_block_hasher(BLOCK, sha256)
    scheduler = make_scheduler(model)
    if not guarded:
        type(scheduler.connector).reads_into_freed_blocks = False
    read_into: list[int] = []
    reader = scheduler.connector.connector_scheduler._reader
    reader.matched_tokens = lambda name, *_: READ if name == "second" and not read_into else 0
    reader.allocated = lambda name, ids, tokens: read_into.extend(ids[: tokens // BLOCK]) if tokens else None

    def add(name: str, first_token: int) -> None:
        prompt = list(range(first_token, first_token + 40))
        scheduler.add_request(Request(name, prompt, SamplingParams(max_tokens=4), None, block_hasher=hasher))

    add("first", 100)
    scheduler.schedule()  # its output is not back
    written = scheduler.kv_cache_manager.get_block_ids("first")[0]
    scheduler.finish_requests("first", RequestStatus.FINISHED_ABORTED)
    add("second", 300)
    scheduler.schedule()
    print(json.dumps([written, read_into]), flush=True)
    scheduler.shutdown()


if __name__ == "__main__":
    os.environ |= {
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port()),
        "PDD_CLAIM_KEY": "k" * 40,
    }
    main(sys.argv[1], sys.argv[2] == "True")
