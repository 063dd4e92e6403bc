"""What a PDDeployment asks of a cluster, at a glance: pods, devices, images, transport. Pure: data in, renderable out.

Read from the rendered objects, so that it cannot say anything else than what would be created.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from pdd_cli.render.objects import Shown
from pdd_cli.render.text import name_of, notes
from pdd_operator.api.labels import ROLE, Component
from pdd_operator.api.objects import Manifest
from pdd_operator.api.v1alpha1 import Backend, PDDeployment, Role
from pdd_operator.render.catalog import EFA_RESOURCE, HUGE_PAGES, platform_of, transport_of

_DEVICES: Final = {"nvidia.com/gpu": "GPU", "aws.amazon.com/neuron": "Neuron"}


@dataclass(frozen=True, slots=True)
class PodsOfRole:
    """``count``: fewest pods; ``most``: with an autoscaler. ``requests``: of one pod's main container."""

    component: Component
    count: int
    most: int
    requests: Mapping[str, str]
    images: Mapping[str, str]

    @property
    def pods(self) -> str:
        return str(self.count) if self.count == self.most else f"{self.count} to {self.most}"

    def amount(self, resource: str) -> int:
        return int(self.requests.get(resource, 0))


def pods_of(shown: Shown) -> tuple[PodsOfRole, ...]:
    """Prefill, decode, router."""
    makers = {
        item["metadata"]["labels"][ROLE]: item
        for item in shown.manifests
        if item["kind"] in ("StatefulSet", "Deployment")
    }
    return tuple(_role(shown.deployment, component, makers[component]) for component in Component)


def _role(deployment: PDDeployment, component: Component, maker: Manifest) -> PodsOfRole:
    pod = maker["spec"]["template"]["spec"]
    scaling = None if component is Component.ROUTER else _spec_of(deployment, component).autoscaling
    count = int(maker["spec"]["replicas"]) if scaling is None else scaling.min_replicas
    return PodsOfRole(
        component=component,
        count=count,
        most=count if scaling is None else scaling.max_replicas,
        requests=pod["containers"][0].get("resources", {}).get("requests", {}),
        images={
            container["name"]: container["image"]
            for container in (*pod.get("initContainers", ()), *pod["containers"])
            if container["name"] != "preflight"
        },
    )


def _spec_of(deployment: PDDeployment, component: Component) -> Role:
    return deployment.spec.prefill if component is Component.PREFILL else deployment.spec.decode


def summary(shown: Shown) -> Tree:
    metadata, spec = shown.deployment.metadata, shown.deployment.spec
    tree = Tree(
        Text.assemble((f"{metadata.namespace}/{metadata.name}", "bold"), f"  revision group {shown.revision}"),
        guide_style="dim",
    )
    served = spec.model.served_name or spec.model.name
    tree.add(f"model {spec.model.name}" + (f", served as {served}" if served != spec.model.name else ""))
    roles = pods_of(shown)
    tree.add(_table(shown.deployment, roles))
    tree.add(_in_all(roles))
    tree.add(_transport(shown.deployment))
    images = tree.add("images")
    for line in _images(roles):
        images.add(line)
    objects = tree.add(f"{len(shown.manifests)} objects")
    counts = Counter(name_of(manifest).partition("/")[0].partition(".")[0] for manifest in shown.manifests)
    objects.add(", ".join(f"{count} {kind}" for kind, count in counts.items()))
    for secret in shown.secrets:
        tree.add(f"Secret {secret.manifest['metadata']['name']}: made once, random content")
    for note in list(notes(shown))[-2:]:
        tree.add(Text(note, style="dim"))
    return tree


def _table(deployment: PDDeployment, roles: Iterable[PodsOfRole]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("role", "pods", "accelerator per pod", "EFA", "cpu", "memory", "2 MiB pages"):
        table.add_column(heading, justify="left" if heading in ("role", "accelerator per pod") else "right")
    for role in roles:
        table.add_row(
            role.component.value,
            role.pods,
            _accelerator(deployment, role),
            str(role.amount(EFA_RESOURCE) or "-"),
            role.requests.get("cpu", "-"),
            role.requests.get("memory", "-"),
            role.requests.get(HUGE_PAGES, "-"),
        )
    return table


def _accelerator(deployment: PDDeployment, role: PodsOfRole) -> str:
    if role.component is Component.ROUTER:
        return "-"
    accelerator = _spec_of(deployment, role.component).accelerator
    devices = [f"{role.amount(resource)} {word} of" for resource, word in _DEVICES.items() if role.amount(resource)]
    return " ".join([*devices, accelerator.instance_type or "CPU"])


def _in_all(roles: Iterable[PodsOfRole]) -> str:
    """Devices of all pods; with autoscalers of the fewest and of the most."""
    least: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for role in roles:
        for resource, word in (*_DEVICES.items(), (EFA_RESOURCE, "EFA devices")):
            least[word] += role.count * role.amount(resource)
            most[word] += role.most * role.amount(resource)
    parts = [
        f"{most[word]} {word}" if least[word] == most[word] else f"{least[word]} to {most[word]} {word}"
        for word in most
        if most[word]
    ]
    return f"in all {', '.join(parts)}" if parts else "no devices"


def _transport(deployment: PDDeployment) -> str:
    spec = deployment.spec
    row = transport_of(platform_of(spec.prefill), spec.transport.backend)
    fallback = f", where it is missing: {spec.transport.fallback}" if spec.transport.backend is Backend.EFA else ""
    return (
        f"transport {spec.transport.backend} ({row.nixl_backend}){fallback}; reuse {spec.kv_transfer.direction} by "
        f"{spec.kv_transfer.mechanism}"
    )


def _images(roles: Iterable[PodsOfRole]) -> Iterator[Text]:
    for name, image in dict.fromkeys(pair for role in roles for pair in role.images.items()):
        yield Text(f"{name} {image}")
