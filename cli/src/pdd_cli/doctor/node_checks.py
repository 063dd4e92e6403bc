"""Checks of nodes for one accelerator: how many, in which zones, and whether they offer devices and huge pages. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from pdd_cli.doctor.finding import Finding, failed, passed, warned
from pdd_cli.doctor.plugins import EFA, PLUGIN_OF, Plugin, PluginKind, check_mofed, find_plugin
from pdd_cli.doctor.snapshot import INSTANCE_TYPE, ZONE, Node, Snapshot, Unread, parse_amount
from pdd_operator.api.accelerators import CPU, INSTANCE_TYPES, InstanceType, Platform
from pdd_operator.api.v1alpha1 import Accelerator, Backend, InstanceFamily, Role
from pdd_operator.render.catalog import EFA_RESOURCE, EFA_TOLERATION, HUGE_PAGES, PLATFORMS, share_of

_CPU_KV_CACHE_GIB: Final = 4
"""The default of `spec.engine.cpuKVCacheGiB`."""
_AUTOSCALERS: Final = ("karpenter.sh", "eks.amazonaws.com")
ENGINES: Final = 2
"""The smallest deployment: one prefill, one decode."""


@dataclass(frozen=True, slots=True)
class Target:
    """What is to be run: instance type (or CPU) and transport."""

    row: InstanceType
    backend: Backend


def targets_of(snapshot: Snapshot) -> tuple[Target, ...]:
    """Of the accelerators that nodes have and that can run engines; CPU where there is none."""
    if isinstance(snapshot.nodes, Unread):
        return ()
    found = sorted({node.instance_type for node in snapshot.nodes} & INSTANCE_TYPES.keys())
    rows = [row for row in map(INSTANCE_TYPES.__getitem__, found) if row.refused is None] or [CPU]
    return tuple(Target(row, default_backend(row)) for row in rows)


def default_backend(row: InstanceType) -> Backend:
    return Backend.EFA if row.efa_devices else Backend.SOCKET


def check_nodes(snapshot: Snapshot, target: Target) -> Iterator[Finding]:
    nodes, row = snapshot.nodes, target.row
    if row.refused is not None:
        yield failed(row.name, row.refused, "Choose another instance type: crds/README.md lists them.")
    elif isinstance(nodes, Unread):
        yield warned(
            f"nodes {row.name}", f"could not be read: {nodes.why}", "Ask an administrator to run `pdd doctor`."
        )
    elif row is CPU:
        yield _check_cpu(nodes)
    else:
        yield from _check_accelerated(snapshot, target, [node for node in nodes if node.instance_type == row.name])


def _check_cpu(nodes: Sequence[Node]) -> Finding:
    role = Role(accelerator=Accelerator(type=InstanceFamily.CPU))
    share = share_of(role, Backend.SOCKET, _CPU_KV_CACHE_GIB)
    cores, memory = parse_amount(share.cpu), parse_amount(f"{share.memory_gib}Gi")
    room = sum(int(min(node.amount("cpu") // cores, node.amount("memory") // memory)) for node in nodes if node.usable)
    asked = f"{share.cpu} CPUs and {share.memory_gib} GiB each, as engines ask for by default"
    if room >= ENGINES:
        return passed("nodes CPU", f"room for {room} engines of {asked}")
    return failed(
        "nodes CPU",
        f"room for {room} engines of {asked}; the smallest deployment has {ENGINES}",
        "Add nodes, or ask for less with spec.prefill.podTemplate.resources, the same in spec.decode, and spec.engine.cpuKVCacheGiB.",
    )


def _check_accelerated(snapshot: Snapshot, target: Target, nodes: Sequence[Node]) -> Iterator[Finding]:
    usable = [node for node in nodes if node.usable]
    offers = _offers(target)
    whole = [node for node in usable if all(node.amount(offer.resource) >= offer.wanted for offer in offers)]
    yield _check_count(snapshot, target, nodes, usable)
    yield from _check_taints(target, usable)
    for offer in offers:
        yield from _check_offer(snapshot, target, offer, usable, enough=_is_enough(target, whole))
    if target.backend is Backend.EFA and target.row.platform is Platform.GPU:
        yield from check_mofed(snapshot)


def _check_taints(target: Target, usable: Sequence[Node]) -> Iterator[Finding]:
    """Taints of accelerators are tolerated by the engines that use them."""
    tolerated = {PLATFORMS[target.row.platform].toleration_key}
    tolerated |= {EFA_TOLERATION} if target.backend is Backend.EFA else set()
    tainted = [node for node in usable if set(node.taints) - tolerated]
    if tainted:
        keys = sorted({key for node in tainted for key in node.taints} - tolerated)
        yield warned(
            f"taints {target.row.name}",
            f"{len(tainted)} of {len(usable)} nodes keep engines away by {', '.join(keys)}",
            "Add tolerations to spec.prefill.podTemplate and spec.decode.podTemplate, or take the taints off.",
        )


@dataclass(frozen=True, slots=True)
class _Offer:
    """What a node must offer. ``plugin``: who makes it do so; None: the kernel."""

    resource: str
    wanted: Decimal
    told: str
    plugin: PluginKind | None


def _offers(target: Target) -> tuple[_Offer, ...]:
    row = target.row
    found: list[_Offer] = []
    resource = PLATFORMS[row.platform].device_resource
    if resource is not None:
        found.append(_Offer(resource, Decimal(row.accelerators), str(row.accelerators), PLUGIN_OF[resource]))
    if target.backend is Backend.EFA:
        found.append(_Offer(EFA_RESOURCE, Decimal(row.efa_devices), str(row.efa_devices), EFA))
        role = Role(accelerator=Accelerator(instance_type=row.name, count=row.accelerators))
        pages = f"{share_of(role, Backend.EFA, _CPU_KV_CACHE_GIB).huge_pages_mib}Mi"
        found.append(_Offer(HUGE_PAGES, parse_amount(pages), pages, None))
    return tuple(found)


def _is_enough(target: Target, nodes: Sequence[Node]) -> bool:
    """Whether the smallest deployment has room on these nodes: with EFA two of one zone, else two accelerators anywhere."""
    if target.backend is Backend.EFA:
        return max(Counter(node.zone for node in nodes if node.zone).values(), default=0) >= ENGINES
    return len(nodes) * target.row.accelerators >= ENGINES


def _check_count(snapshot: Snapshot, target: Target, nodes: Sequence[Node], usable: Sequence[Node]) -> Finding:
    row, subject = target.row, f"nodes {target.row.name}"
    if not usable:
        return _no_node(snapshot, subject, row, len(nodes))
    zones = Counter(node.zone or f"without the label {ZONE}" for node in usable)
    seen = f"{len(usable)} ready ({', '.join(f'{zone}: {count}' for zone, count in sorted(zones.items()))})"
    if len(nodes) > len(usable):
        seen += f", {len(nodes) - len(usable)} not ready or cordoned"
    if target.backend is Backend.EFA:
        return _one_zone(subject, row, seen, [node.zone for node in usable])
    resource = PLATFORMS[row.platform].device_resource or ""
    devices = sum(int(node.amount(resource)) for node in usable)
    if devices < ENGINES:
        return failed(
            subject, f"{seen}, with {devices} {resource}", f"Prefill and decode need one each: add nodes of {row.name}."
        )
    return passed(subject, seen)


def _one_zone(subject: str, row: InstanceType, seen: str, zones: Sequence[str]) -> Finding:
    named = Counter(zone for zone in zones if zone)
    if max(named.values(), default=0) >= ENGINES:
        return passed(subject, seen)
    if len(named) == 0:
        todo = f"Label nodes with {ZONE}: prefill and decode are kept in one zone by it."
    else:
        best = named.most_common(1)[0][0]
        todo = f"Prefill and decode must be on different nodes of one zone, as EFA does not leave it: add nodes of {row.name} in {best}."
    return failed(subject, seen, todo)


def _no_node(snapshot: Snapshot, subject: str, row: InstanceType, broken: int) -> Finding:
    seen = f"none is ready ({broken} not ready or cordoned)" if broken else "none"
    todo = f"Add a node group of {row.name}; nodes carry the label {INSTANCE_TYPE}."
    if any(group in snapshot.served for group in _AUTOSCALERS):
        return warned(
            subject,
            f"{seen} now; the cluster makes nodes on demand",
            f"Make sure a node pool may make {row.name}. Otherwise: {todo}",
        )
    return failed(subject, seen, todo)


def _check_offer(
    snapshot: Snapshot, target: Target, offer: _Offer, usable: Sequence[Node], *, enough: bool
) -> Iterator[Finding]:
    """``enough``: nodes that offer everything carry the smallest deployment, so that others are no obstacle."""
    plugin = None if offer.plugin is None else find_plugin(offer.plugin, snapshot)
    name = target.row.name
    lacking = [node for node in usable if node.amount(offer.resource) < offer.wanted]
    if lacking:
        told = ", ".join(f"{node.name} {node.allocatable.get(offer.resource, '0')}" for node in lacking[:3])
        more = f" and {len(lacking) - 3} more" if len(lacking) > 3 else ""
        seen = f"{len(lacking)} of {len(usable)} nodes of {name} offer less than {offer.told}: {told}{more}"
        yield (warned if enough else failed)(offer.resource, seen, _todo(offer, plugin))
    elif usable:
        yield passed(offer.resource, f"at least {offer.told} on each of {len(usable)} nodes of {name}")
    elif plugin is not None:
        yield passed(offer.resource, f"{plugin}; no node of {name} to offer any")
    elif offer.plugin is not None:
        yield warned(offer.resource, f"no {offer.plugin.title} found, and no node of {name}", offer.plugin.install)


def _todo(offer: _Offer, plugin: Plugin | None) -> str:
    if offer.plugin is None:
        return "Set them aside at boot: EKS's images with EFA do; elsewhere sysctl vm.nr_hugepages=5128, and restart the kubelet."
    todo = (
        offer.plugin.install if plugin is None else f"Its plugin is there ({plugin}): look at its logs on these nodes."
    )
    if offer.plugin is EFA:
        todo += (
            " The node group must attach EFA interfaces, and the security group must let all traffic to itself pass."
        )
    return todo
