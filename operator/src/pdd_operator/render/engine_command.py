"""What an engine is started with: vLLM's arguments and the script that runs them. Pure."""

from __future__ import annotations

import json
from typing import Any, Final

from pdd_operator.api.accelerators import Platform
from pdd_operator.api.labels import ENGINE_COMPONENTS, Component
from pdd_operator.api.v1alpha1 import Backend, Mechanism, Model, Spec
from pdd_operator.render.catalog import PLATFORMS, platform_of, transport_of
from pdd_operator.render.kv_transfer import backends_of, kv_transfer_config
from pdd_operator.render.payloads import fill, script
from pdd_operator.render.ports import ENGINE_PORT, MODEL_PATH, SCRIPTS_PATH, TRANSPORT_FILE

NOTICE_SECONDS: Final = 5
"""Between a pod's deletion and the moment when the last router has learned of it."""
_HASH_ALGORITHM: Final = "sha256"
"""The same in every process, so that chains of two engines can be compared; vLLM's xxhash is seeded per process."""
_CLAIM_MARGIN_SECONDS: Final = 5


def pinned_seconds(spec: Spec) -> int:
    """How long KV may be held for others after the last request, at most; vLLM ends no earlier (``--shutdown-timeout``)."""
    transfer = spec.kv_transfer
    if transfer.mechanism is Mechanism.CLAIM:
        return transfer.claim.hold_seconds + _CLAIM_MARGIN_SECONDS
    return max(transfer.retain.decoder_blocks_ttl_seconds, transfer.retain.lease_seconds)


def model_argument(model: Model) -> str:
    """What ``--model`` says: a repository's name, or the folder in the mounted volume."""
    source = model.source
    if source.persistent_volume_claim is not None:
        return f"{MODEL_PATH}/{source.persistent_volume_claim.path}".rstrip("/")
    if source.image is not None:
        return f"{MODEL_PATH}/{source.image.path}".rstrip("/")
    return model.name


def engine_arguments(spec: Spec, component: Component) -> list[tuple[str, ...]]:
    """vLLM's options that the operator decides, each with its value, without ``--kv-transfer-config`` and ``engine.extraArgs``."""
    role = spec.prefill if component is Component.PREFILL else spec.decode
    platform = platform_of(role)
    arguments: list[tuple[str, ...]] = [("--model", model_argument(spec.model))]
    arguments += [("--served-model-name", served_name(spec.model)), *_revision_arguments(spec.model)]
    arguments += [("--host", "0.0.0.0"), ("--port", str(ENGINE_PORT))]  # noqa: S104 - a NetworkPolicy says who reaches it
    arguments += [("--tensor-parallel-size", str(role.tensor_parallel_size)), *_memory_arguments(spec, platform)]
    arguments += [("--enable-prefix-caching",), ("--prefix-caching-hash-algo", _HASH_ALGORITHM)]
    arguments += [("--enable-prompt-tokens-details",), ("--shutdown-timeout", str(pinned_seconds(spec)))]
    if spec.engine.trust_remote_code:
        arguments.append(("--trust-remote-code",))
    return [*arguments, *((flag,) for flag in PLATFORMS[platform].arguments)]


def served_name(model: Model) -> str:
    """What clients ask for."""
    return model.served_name or model.name


def _revision_arguments(model: Model) -> list[tuple[str, ...]]:
    # A revision is one of a repository; what is mounted has none, and is told apart by the revision group alone.
    if model.revision is None or model.source.hugging_face is None:
        return []
    return [("--revision", model.revision)]


def _memory_arguments(spec: Spec, platform: Platform) -> list[tuple[str, ...]]:
    engine = spec.engine
    arguments: list[tuple[str, ...]] = [
        ("--dtype", engine.dtype.value),
        ("--kv-cache-dtype", engine.kv_cache_dtype.value),
    ]
    arguments.append(("--block-size", str(engine.block_size)))
    if engine.max_model_len is not None:
        arguments.append(("--max-model-len", str(engine.max_model_len)))
    if engine.max_num_seqs is not None:
        arguments.append(("--max-num-seqs", str(engine.max_num_seqs)))
    if platform is not Platform.CPU:
        arguments.append(("--gpu-memory-utilization", f"0.{engine.memory_utilization_percent:02}"))
    return arguments


def engine_files(spec: Spec, group: str) -> dict[str, str]:
    """Every file of the engines' ConfigMap: a start script per role, configurations per role and transport, shipped scripts."""
    contents = {"preflight.py": script("preflight.py"), "drain.py": script("drain.py")}
    for component in ENGINE_COMPONENTS:
        contents[f"start-{component}.sh"] = start_script(spec, component)
        for backend in backends_of(spec):
            config = kv_transfer_config(spec, group, component, backend)
            contents[f"kv-transfer-{component}-{backend}.json"] = json.dumps(config, indent=2) + "\n"
    return contents


def start_script(spec: Spec, component: Component) -> str:
    """POSIX shell; reads the transport that preflight found and becomes vLLM."""
    role = spec.prefill if component is Component.PREFILL else spec.decode
    platform = platform_of(role)
    return fill(
        "start.sh.j2",
        role=component.value,
        transport_file=TRANSPORT_FILE,
        scripts_path=SCRIPTS_PATH,
        transports=[_transport(spec, platform, backend) for backend in backends_of(spec)],
        arguments=engine_arguments(spec, component),
        extra_arguments=spec.engine.extra_args,
    )


def _transport(spec: Spec, platform: Platform, backend: Backend) -> dict[str, Any]:
    row = transport_of(platform, backend)
    env = dict(row.env)
    if backend is Backend.SOCKET:
        env["UCX_NET_DEVICES"] = spec.transport.interface
    return {
        "name": backend.value,
        "env": sorted(env.items()),
        "tuning": sorted(row.tuning.items()),
        "library_path": ":".join(row.library_path),
    }
