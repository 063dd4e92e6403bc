"""A node that says it is an EFA instance and is none: labels, devices and huge pages, put there and taken back.

Devices are extended resources in the node's status, which kubelet leaves to others and hands out by counting; there is no device
behind them, which is what preflight is there to find out. Huge pages kubelet counts itself when it starts: in a node of kind it is
shown another number and started again, which no running pod notices. Only for clusters that are made for tests.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from pdd_cli.doctor.snapshot import parse_amount
from pdd_e2e.cluster.errors import ClusterError
from pdd_e2e.cluster.kubectl import Kubectl
from pdd_e2e.cluster.shell import run
from pdd_e2e.kind_suite.deployment import wait_until

HUGE_PAGES: Final = "hugepages-2Mi"
LABELS: Final = {"node.kubernetes.io/instance-type": "p5en.48xlarge", "topology.kubernetes.io/zone": "us-east-1a"}
DEVICES: Final = {"nvidia.com/gpu": "8", "vpc.amazonaws.com/efa": "16"}
_PAGES: Final = 5128  # of 2 MiB, as EKS images with EFA set aside
_COUNT: Final = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
_SHOW_PAGES: Final = f"echo {_PAGES} > /run/pretended-pages && mount --bind /run/pretended-pages {_COUNT}"
_HIDE_PAGES: Final = f"while umount {_COUNT} 2> /dev/null; do :; done"
_END_KUBELET: Final = (
    'for task in /proc/[0-9]*; do [ "$(cat "$task/comm" 2> /dev/null)" != kubelet ] || kill "${task#/proc/}"; done'
)
_KUBELET_SECONDS: Final = 60


@dataclass(frozen=True, slots=True)
class PretendedNode:
    """The node `name`, which is a container of that name where it is kind's."""

    kubectl: Kubectl
    name: str

    def say_what_it_is(self, labels: Mapping[str, str] = LABELS) -> None:
        """An instance type and a zone, as a cloud's controller labels a node."""
        self.kubectl("label", "node", self.name, "--overwrite", *(f"{key}={value}" for key, value in labels.items()))

    def offer(self, devices: Mapping[str, str] = DEVICES) -> None:
        """Extended resources, as a device plugin makes kubelet offer them."""
        self._patch(devices)

    def take_back(self) -> None:
        """Labels and devices. Nothing happens where they are not."""
        self.kubectl("label", "node", self.name, *(f"{key}-" for key in LABELS))
        self._patch(dict.fromkeys(DEVICES))

    @contextmanager
    def huge_pages(self) -> Iterator[None]:
        """The node has them meanwhile. Raises ClusterError where it has none and is no node of kind's."""
        if self._has_pages():
            yield
            return
        if not self.kubectl.context.startswith("kind-"):
            raise ClusterError(f"node {self.name} needs {_PAGES} huge pages of 2 MiB for this test")
        self._restart_kubelet(f"{_HIDE_PAGES}; {_SHOW_PAGES}")
        try:
            wait_until(self._has_pages, f"huge pages on {self.name}", _KUBELET_SECONDS)
            yield
        finally:
            self._restart_kubelet(_HIDE_PAGES)
            wait_until(lambda: not self._has_pages(), f"no huge pages on {self.name}", _KUBELET_SECONDS)

    def _restart_kubelet(self, first: str) -> None:
        run(["docker", "exec", self.name, "sh", "-ec", f"{first}; {_END_KUBELET}"])

    def _has_pages(self) -> bool:
        allocatable = self.kubectl.get("node", self.name)["status"]["allocatable"]
        return parse_amount(allocatable.get(HUGE_PAGES, "0")) >= parse_amount(f"{2 * _PAGES}Mi")

    def _patch(self, devices: Mapping[str, str | None]) -> None:
        patch = {"status": {"capacity": devices, "allocatable": devices}}
        self.kubectl("patch", "node", self.name, "--subresource=status", "--type=merge", "--patch", json.dumps(patch))


def only_node(kubectl: Kubectl) -> PretendedNode:
    """Raises ClusterError where there are several: what fits on one would be told of another."""
    nodes = kubectl.get("nodes")["items"]
    if len(nodes) != 1:
        raise ClusterError(f"this test needs a cluster of one node, not of {len(nodes)}")
    return PretendedNode(kubectl, nodes[0]["metadata"]["name"])
