"""What an engine is started with: a typed description, and from it the command line and the environment. Pure.

What is in `--kv-transfer-config` is the connector's business (`kv_config`); what flags a CPU engine wants is known here.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

HOST = "127.0.0.1"

# Settings of the person's shell that would change what the engines do, or let them reach the network.
_DROPPED_PREFIXES = ("VLLM_", "UCX_", "NIXL_", "OMP_", "KMP_", "PDD_")

_HINTS = (
    (re.compile(r"Address already in use|EADDRINUSE"), "another program took the port in the meantime: start again"),
    (
        re.compile(r"No module named '(vllm|nixl|pdd_connector)"),
        "the engine environment is not whole: run `make setup`",
    ),
    (re.compile(r"No space left on device"), "the disk (or /dev/shm) is full: make room"),
    (
        re.compile(r"Cannot allocate memory|MemoryError|DefaultCPUAllocator"),
        "memory ran out: one engine needs about 3 GB",
    ),
)


class Role(StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"
    AGGREGATE = "aggregate"  # one engine that does both and exchanges nothing: what others are compared with


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What may differ between engines of a stack. `cache_blocks` overrides the number of KV blocks that `cache_gib` would give."""

    block_size: int = 32  # attention on CPU wants a multiple of 32
    cache_gib: int = 1
    cache_blocks: int | None = None
    max_model_len: int = 8192
    max_num_seqs: int = 8
    prefix_caching: bool = True
    tensor_parallel: int = 1
    threads: int = 1  # more make the workers' busy loops compete for the cores
    development_api: bool = False  # POST /reset_prefix_cache and the like: only ever on loopback
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One engine, complete. `kv_transfer_config` is JSON, or None for an aggregate."""

    name: str
    role: Role
    model: Path
    served_name: str
    port: int
    side_channel_port: int
    claim_port: int
    kv_transfer_config: str | None
    options: EngineOptions = field(default_factory=EngineOptions)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"


def engine_command(spec: EngineSpec, python: Path) -> tuple[str, ...]:
    """The command line. Not the `vllm` command: it looks for a distribution of that name, which the CPU build has not."""
    options = spec.options
    argv = [str(python), "-m", "vllm.entrypoints.openai.api_server"]
    argv += [
        "--model",
        str(spec.model),
        "--served-model-name",
        spec.served_name,
        "--host",
        HOST,
        "--port",
        str(spec.port),
    ]
    argv += ["--dtype", "float32", "--enforce-eager", "--max-model-len", str(options.max_model_len)]
    argv += ["--max-num-seqs", str(options.max_num_seqs), "--block-size", str(options.block_size)]
    argv += ["--enable-prefix-caching" if options.prefix_caching else "--no-enable-prefix-caching"]
    argv += ["--enable-prompt-tokens-details"]
    if options.tensor_parallel > 1:
        argv += ["--tensor-parallel-size", str(options.tensor_parallel)]
    if options.cache_blocks is not None:
        argv += ["--num-gpu-blocks-override", str(options.cache_blocks)]
    if spec.kv_transfer_config is not None:
        argv += ["--kv-transfer-config", spec.kv_transfer_config]
    return (*argv, *options.arguments)


def engine_environment(spec: EngineSpec, inherited: Mapping[str, str], claim_key: str) -> dict[str, str]:
    """The whole environment: what is inherited without what would interfere, and what a CPU engine on loopback wants."""
    kept = {name: value for name, value in inherited.items() if not name.startswith(_DROPPED_PREFIXES)}
    options = spec.options
    ours = {
        "VLLM_CPU_KVCACHE_SPACE": str(options.cache_gib),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(options.threads),
        "KMP_BLOCKTIME": "0",
        "OMP_WAIT_POLICY": "PASSIVE",
        "VLLM_SLEEP_WHEN_IDLE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_HOST_IP": HOST,
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "PYTHONDONTWRITEBYTECODE": "",  # compiling vLLM and torch anew in each of an engine's three processes costs minutes
    }
    if options.development_api:
        ours["VLLM_SERVER_DEV_MODE"] = "1"
    if spec.kv_transfer_config is not None:
        ours |= {
            "VLLM_NIXL_SIDE_CHANNEL_HOST": HOST,
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(spec.side_channel_port),
            "UCX_TLS": "tcp",
            "UCX_NET_DEVICES": "lo",
            "PDD_CLAIM_KEY": claim_key,
        }
    return kept | ours | dict(options.environment)


def failure_hint(exit_code: int, lines: list[str]) -> str:
    """What to do about an engine that ended early, from its exit code and the end of its log."""
    if exit_code == -9:
        return "it was killed, most likely because memory ran out: one engine needs about 3 GB"
    text = "\n".join(lines)
    for pattern, hint in _HINTS:
        if pattern.search(text):
            return hint
    return "the log says why"
