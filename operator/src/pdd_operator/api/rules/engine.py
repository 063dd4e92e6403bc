"""Rules of ``spec.engine``: what ``extraArgs`` and ``env`` must leave to the operator. Pure.

vLLM's parser takes flags with underscores for hyphens, abbreviated as far as they are unambiguous, and with a part of a JSON
value after a dot. A flag is therefore judged by its key, and refused where it is the beginning of one that is owned.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from pdd_operator.api.rules.problem import Problem
from pdd_operator.api.v1alpha1 import Engine, EnvVar

FIELD_FLAGS: Final = (
    "--model",
    "--served-model-name",
    "--revision",
    "--hf-token",
    "--dtype",
    "--kv-cache-dtype",
    "--max-model-len",
    "--max-num-seqs",
    "--block-size",
    "--gpu-memory-utilization",
    "--device-memory-utilization",
    "--trust-remote-code",
    "--no-trust-remote-code",
    "--tensor-parallel-size",
    "--runner",
    "--convert",
)
OPERATOR_FLAGS: Final = (
    "--kv-transfer-config",
    "--host",
    "--port",
    "--uds",
    "--api-key",
    "--root-path",
    "--ssl-keyfile",
    "--ssl-certfile",
    "--ssl-ca-certs",
    "--ssl-cert-reqs",
    "--ssl-ciphers",
    "--enable-ssl-refresh",
    "--grpc",
    "--grpc-port",
    "--headless",
    "--api-server-count",
    "--tokens-only",
    "--shutdown-timeout",
    "--enable-prompt-tokens-details",
    "--no-enable-prompt-tokens-details",
    "--disable-hybrid-kv-cache-manager",
    "--no-disable-hybrid-kv-cache-manager",
    "--middleware",
    "--disable-log-stats",  # whoever drains an engine counts what runs by them
)
PARALLEL_FLAGS: Final = (
    "--pipeline-parallel-size",
    "--data-parallel-size",
    "--prefill-context-parallel-size",
    "--decode-context-parallel-size",
    "--nnodes",
    "--node-rank",
    "--master-addr",
    "--master-port",
    "--enable-elastic-ep",
)
CACHE_FLAGS: Final = (
    "--enable-prefix-caching",
    "--no-enable-prefix-caching",
    "--prefix-caching-hash-algo",
    "--kv-offloading-size",
    "--kv-offloading-backend",
)
UNSUPPORTED_FLAGS: Final = (
    "--speculative-config",
    "--spec-method",
    "--spec-model",
    "--spec-tokens",
    "--enable-sleep-mode",
    "--enable-return-routed-experts",
    "--scheduler-cls",
    "--worker-cls",
)
CONFIG_FLAGS: Final = ("--config",)

_SHORT: Final = re.compile(r"-([A-Za-z]|\Z)")
_LONG: Final = re.compile(r"--[A-Za-z0-9][A-Za-z0-9._+-]*(=|\Z)")
_DATA_PARALLEL: Final = re.compile(r"--(no[-_])?data[-_]parallel[-_]")
_OWNED_NAME: Final = re.compile(
    "PDD_.*|VLLM_NIXL_.*|VLLM_NEURON_BIDIRECTIONAL_KV|UCX_.*|FI_PROVIDER|FI_EFA_.*|NIXL_PLUGIN_DIR|PYTHONHASHSEED|PYTHONPATH"
    "|PYTHONHOME|PYTHONSTARTUP|LD_PRELOAD|LD_LIBRARY_PATH|LD_AUDIT|VLLM_PLUGINS|VLLM_SERVER_DEV_MODE|VLLM_API_KEY"
    "|VLLM_HOST_IP|VLLM_PORT|VLLM_CPU_KVCACHE_SPACE|HOME|PATH|HF_HOME|HF_TOKEN|HUGGING_FACE_HUB_TOKEN|CUDA_VISIBLE_DEVICES"
    "|NVIDIA_VISIBLE_DEVICES|NEURON_VISIBLE_DEVICES|NEURON_RT_VISIBLE_CORES"
)
_ALLOCATOR: Final = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")

_FORM: Final = (
    "`extraArgs` must begin with a flag and have one long flag an item, as `--flag` or `--flag=value`, with its value as the next "
    "item if not after `=`; short flags such as `-tp` are refused"
)
_MESSAGES: Final = (
    (
        FIELD_FLAGS,
        "`extraArgs` must not contain a flag that a field of this object sets, in full or abbreviated (--model, "
        "--served-model-name, --revision, --hf-token, --dtype, --kv-cache-dtype, --max-model-len, --max-num-seqs, --block-size, "
        "--gpu-memory-utilization, --trust-remote-code, --tensor-parallel-size) or that makes the engine no generator "
        "(--runner, --convert): set the field instead",
    ),
    (
        OPERATOR_FLAGS,
        "`extraArgs` must not contain a flag that the operator sets or that its router and probes depend on, in full or "
        "abbreviated (--kv-transfer-config, --host, --port, --uds, --api-key, --root-path, --ssl-*, --grpc, --headless, "
        "--api-server-count, --tokens-only, --shutdown-timeout, --enable-prompt-tokens-details, "
        "--disable-hybrid-kv-cache-manager, --middleware, --disable-log-stats): leave it out",
    ),
    (
        PARALLEL_FLAGS,
        "`extraArgs` must not switch on pipeline, data or context parallelism or engines over several nodes: a block of KV cache "
        "must be whole in one engine. Use `tensorParallelSize` within an engine and `replicas` for more of them",
    ),
    (
        CACHE_FLAGS,
        "`extraArgs` must not touch the prefix cache (--enable-prefix-caching, --no-enable-prefix-caching, "
        "--prefix-caching-hash-algo, --kv-offloading-*): reuse stands on it, hashed alike by every engine",
    ),
    (
        UNSUPPORTED_FLAGS,
        "`extraArgs` must not switch on speculative decoding, sleep mode, returning of routed experts, or another scheduler or "
        "worker: the connector is not correct with them and refuses to start",
    ),
    (
        CONFIG_FLAGS,
        "`extraArgs` must not name a file of flags (--config): what is in it cannot be checked. List the flags",
    ),
)
_NAME: Final = (
    "`name` must not be a variable that the operator sets or that changes which code runs: PDD_*, VLLM_NIXL_*, "
    "VLLM_NEURON_BIDIRECTIONAL_KV, UCX_*, FI_PROVIDER, FI_EFA_*, NIXL_PLUGIN_DIR, PYTHONHASHSEED, PYTHONPATH, PYTHONHOME, "
    "PYTHONSTARTUP, LD_PRELOAD, LD_LIBRARY_PATH, LD_AUDIT, VLLM_PLUGINS, VLLM_SERVER_DEV_MODE, VLLM_API_KEY, VLLM_HOST_IP, "
    "VLLM_PORT, VLLM_CPU_KVCACHE_SPACE (use `cpuKVCacheGiB`), HOME, PATH, HF_HOME, HF_TOKEN and HUGGING_FACE_HUB_TOKEN (use "
    "`model.source.huggingFace.tokenSecretName`), *_VISIBLE_DEVICES and *_VISIBLE_CORES"
)


def check_engine(engine: Engine) -> Iterator[Problem]:
    """Everything in ``spec.engine`` that can be judged without the rest."""
    if engine.max_model_len is not None and engine.max_model_len < engine.block_size:
        yield Problem(
            "spec.engine.maxModelLen", "`maxModelLen` must be at least `blockSize`: only whole blocks are reused"
        )
    yield from _check_extra_args(engine.extra_args)
    for index, variable in enumerate(engine.env):
        yield from _check_variable(f"spec.engine.env[{index}]", variable)


def _check_extra_args(arguments: tuple[str, ...]) -> Iterator[Problem]:
    field = "spec.engine.extraArgs"
    long = [argument for argument in arguments if argument.startswith("--")]
    if not _is_well_formed(arguments, long):
        yield Problem(field, _FORM)
    keys = {argument.replace("=", ".").replace("_", "-").split(".")[0] for argument in long}
    for flags, message in _MESSAGES:
        owned = any(flag.startswith(key) for flag in flags for key in keys)
        if owned or (flags is PARALLEL_FLAGS and any(_DATA_PARALLEL.match(argument) for argument in long)):
            yield Problem(field, message)


def _is_well_formed(arguments: tuple[str, ...], long: list[str]) -> bool:
    if arguments and not arguments[0].startswith("--"):
        return False
    return all(_LONG.match(argument) for argument in long) and not any(_SHORT.match(argument) for argument in arguments)


def _check_variable(field: str, variable: EnvVar) -> Iterator[Problem]:
    if (variable.value is None) == (variable.value_from is None):
        yield Problem(field, "`env` must have exactly one of `value` and `valueFrom` in every item")
    if _OWNED_NAME.fullmatch(variable.name):
        yield Problem(f"{field}.name", _NAME)
    if variable.name in _ALLOCATOR and "expandable_segments:True" in (variable.value or ""):
        yield Problem(
            f"{field}.value",
            "`value` must not have expandable_segments:True: vLLM does not start with it where KV cache is transferred",
        )
    source = variable.value_from
    if source is not None and (source.secret_key_ref is None) == (source.config_map_key_ref is None):
        yield Problem(f"{field}.valueFrom", "`valueFrom` must have exactly one of `secretKeyRef` and `configMapKeyRef`")
