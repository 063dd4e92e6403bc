"""Samples for large machines as they are applied to a small one: another image, less cpu and memory, all else as the file has it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from pdd_e2e.cluster.product_images import ROOT
from pdd_e2e.kind_suite import stand_in_engine

USER_SAMPLES: Final = ROOT / "docs" / "samples"
_PACKAGES: Final = (
    "/opt/pdd/lib/python3.11/site-packages"  # of the router's image, which the stand-in needs for aiohttp
)
_SMALL: Final = {"requests": {"cpu": "50m", "memory": "96Mi"}, "limits": {"memory": "512Mi"}}
_STAND_IN: Final = {
    "vllm": f"{_PACKAGES}/vllm/entrypoints/openai",
    "fake-engine": f"{_PACKAGES}/pdd_e2e/fake_engine",
}


def sample(name: str) -> dict[str, Any]:
    """The one PDDeployment of a file in docs/samples."""
    found: dict[str, Any] = yaml.safe_load((USER_SAMPLES / name).read_text())
    return found


def shrunk(deployment: Mapping[str, Any], image: str) -> dict[str, Any]:
    """With engines that are stood in for, in `image`, and one router."""
    spec = deployment["spec"]
    template = {
        "resources": _SMALL,
        "volumes": [{"name": name, "configMap": {"name": name}} for name in _STAND_IN],
        "volumeMounts": [{"name": name, "mountPath": path, "readOnly": True} for name, path in _STAND_IN.items()],
    }
    roles = {role: spec[role] | {"podTemplate": template} for role in ("prefill", "decode")}
    router = {"replicas": 1, "podTemplate": {"resources": _SMALL}}
    engine = spec["engine"] | {"image": image, "drainTimeoutSeconds": 0}
    return {**deployment, "spec": spec | roles | {"engine": engine, "router": router}}


def stand_in_objects() -> list[dict[str, Any]]:
    """ConfigMaps with the program that stands in for an engine."""
    program = Path(stand_in_engine.__file__)
    engine = program.parents[1] / "fake_engine"
    files = {
        "vllm": {"api_server.py": program.read_text()},
        "fake-engine": {file.name: file.read_text() for file in sorted(engine.glob("*.py"))},
    }
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
        for name, data in files.items()
    ]
