"""Device plugins as DaemonSets: which are there, of which version, and what of theirs gets in the way. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pdd_cli.doctor.finding import Finding, passed, warned
from pdd_cli.doctor.snapshot import Snapshot, Unread
from pdd_operator.api.accelerators import Platform
from pdd_operator.api.objects import Manifest
from pdd_operator.render.catalog import EFA_RESOURCE, PLATFORMS

MOFED_SINCE: Final = (0, 19)
"""From this version on NVIDIA's plugin mounts every InfiniBand device into every GPU pod, unless it is told not to."""


@dataclass(frozen=True, slots=True)
class PluginKind:
    """``marks``: parts of the image's name by which it is known. ``install``: how to get it."""

    title: str
    marks: tuple[str, ...]
    install: str


NVIDIA: Final = PluginKind(
    "NVIDIA device plugin",
    ("k8s-device-plugin", "nvidia-device-plugin"),
    "Install the NVIDIA device plugin (chart nvidia-device-plugin) or the NVIDIA GPU operator.",
)
NEURON: Final = PluginKind(
    "Neuron device plugin", ("neuron-device-plugin",), "Install the Neuron device plugin (AWS's neuron-helm-chart)."
)
EFA: Final = PluginKind(
    "EFA device plugin",
    ("aws-efa-k8s-device-plugin", "efa-device-plugin"),
    "Install the EFA device plugin (chart aws-efa-k8s-device-plugin of AWS's eks-charts).",
)
PLUGIN_OF: Final = {
    PLATFORMS[Platform.GPU].device_resource: NVIDIA,
    PLATFORMS[Platform.NEURON].device_resource: NEURON,
    EFA_RESOURCE: EFA,
}


@dataclass(frozen=True, slots=True)
class Plugin:
    """``ready`` of ``wanted`` nodes run it."""

    namespace: str
    name: str
    image: str
    ready: int
    wanted: int
    manifest: Manifest

    def __str__(self) -> str:
        return f"DaemonSet {self.namespace}/{self.name}, ready on {self.ready} of {self.wanted} nodes"


def find_plugin(kind: PluginKind, snapshot: Snapshot) -> Plugin | None:
    """None: there is none, or DaemonSets could not be read."""
    if isinstance(snapshot.daemon_sets, Unread):
        return None
    for item in snapshot.daemon_sets:
        for container in item["spec"]["template"]["spec"].get("containers") or []:
            image = str(container.get("image"))
            # EFA's plugin has the words of NVIDIA's in its name.
            if any(mark in image for mark in kind.marks) and (
                kind is EFA or not any(mark in image for mark in EFA.marks)
            ):
                status = item.get("status") or {}
                return Plugin(
                    namespace=str(item["metadata"]["namespace"]),
                    name=str(item["metadata"]["name"]),
                    image=image,
                    ready=int(status.get("numberReady") or 0),
                    wanted=int(status.get("desiredNumberScheduled") or 0),
                    manifest=item,
                )
    return None


def check_mofed(snapshot: Snapshot) -> Iterator[Finding]:
    """For GPUs with EFA; nothing where NVIDIA's plugin is not found, or is told not to."""
    plugin = find_plugin(NVIDIA, snapshot)
    if plugin is None:
        return
    subject = f"{NVIDIA.title} beside EFA"
    version = re.search(r":v?(\d+)\.(\d+)", plugin.image)
    if _mofed_disabled(plugin.manifest):
        yield passed(subject, "--mofed-enabled is false")
    elif version is None:
        yield warned(subject, f"version of {plugin.image} unknown; {_MOFED}", _MOFED_TODO)
    elif (int(version[1]), int(version[2])) >= MOFED_SINCE:
        yield warned(subject, f"version {version[1]}.{version[2]}: {_MOFED}", _MOFED_TODO)
    else:
        yield passed(subject, f"version {version[1]}.{version[2]} leaves EFA's devices alone")


_MOFED: Final = "from 0.19 on it mounts every EFA device of a node into every pod with a GPU"
_MOFED_TODO: Final = (
    "Start it with --mofed-enabled=false (environment MOFED_ENABLED=false), or engines may use devices of other pods."
)


def _mofed_disabled(manifest: Manifest) -> bool:
    for container in manifest["spec"]["template"]["spec"].get("containers") or []:
        arguments = [*(container.get("command") or []), *(container.get("args") or [])]
        if "--mofed-enabled=false" in arguments:
            return True
        if any(
            item.get("name") == "MOFED_ENABLED" and item.get("value") == "false" for item in container.get("env") or []
        ):
            return True
    return False
