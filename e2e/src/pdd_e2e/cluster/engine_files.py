"""What engines in pods consist of here: the packages of `connector/.venv` and the demo's model, as folders of this machine.

Nodes mount them (`MOUNTS`), and a namespace gets them as read-only volume claims (`volume_objects`): Pod Security's restricted profile lets
pods mount claims, and no folder of their node.
"""

import asyncio
import os
from pathlib import Path
from typing import Any

from pdd_cli.local.model import default_cache, prepare_model
from pdd_cli.local.progress import Silent
from pdd_e2e.cluster.errors import ClusterError
from pdd_e2e.cluster.shell import run
from pdd_e2e.control_plane.binaries import Say

_ENGINE_ENVIRONMENT = Path(__file__).parents[4] / "connector" / ".venv"
# Pods mount the packages read-only: each of an engine's processes would compile all that it imports, at every start, and vLLM would have one
# more process import it to look at the model's class, if its cache (VLLM_CACHE_ROOT in cpu.yaml: in a folder that goes with that vLLM) was empty.
_PREPARES = """
import vllm.entrypoints.openai.api_server, vllm.v1.engine.core, vllm.v1.worker.cpu_worker
from vllm.model_executor.models.registry import ModelRegistry
ModelRegistry.models["LlamaForCausalLM"].inspect_model_cls()
"""
_CACHE = "vllm/__pycache__"
_PREPARED = f"{_CACHE}/modelinfos/vllm-model_executor-models-llama-LlamaForCausalLM.json"  # made last
PACKAGES_IN_NODE = "/pdd/packages"
MODEL_IN_NODE = "/pdd/model"


def engine_mounts(say: Say) -> dict[str, Path]:
    """Folders of this machine by where nodes have them; makes the model first if need be, and compiles. Raises ClusterError, CliError."""
    python = _ENGINE_ENVIRONMENT / "bin" / "python"
    packages = _ENGINE_ENVIRONMENT / "lib" / "python3.11" / "site-packages"
    if not packages.is_dir():
        raise ClusterError(f"{packages} is missing: run `make setup`")
    if not (packages / _PREPARED).exists():
        say("compiling what engines import (once, half a minute)")
        env = {"PYTHONDONTWRITEBYTECODE": "", "VLLM_CACHE_ROOT": str(packages / _CACHE)}
        run([python, "-W", "ignore", "-c", _PREPARES], env=env, timeout_seconds=300)
    model = asyncio.run(prepare_model(python, default_cache(os.environ), Silent()))
    for file in (packages / _PREPARED, *model.iterdir()):
        file.chmod(0o644)  # engines in pods are another user
    return {PACKAGES_IN_NODE: packages, MODEL_IN_NODE: model}


def volume_objects(namespace: str) -> list[dict[str, Any]]:
    """A claim `model` and a claim `vllm` in `namespace`, each bound to a volume of its own."""
    places = {"model": MODEL_IN_NODE, "vllm": PACKAGES_IN_NODE}
    return [item for name, path in places.items() for item in _volume(namespace, name, path)]


def _volume(namespace: str, name: str, path: str) -> tuple[dict[str, Any], dict[str, Any]]:
    common = {"storageClassName": "", "accessModes": ["ReadOnlyMany"]}
    volume_name = f"{namespace}-{name}"
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": volume_name},
        "spec": {
            **common,
            "capacity": {"storage": "10Gi"},
            "hostPath": {"path": path, "type": "Directory"},
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {"namespace": namespace, "name": name},
        },
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {**common, "resources": {"requests": {"storage": "10Gi"}}, "volumeName": volume_name},
    }
    return volume, claim
