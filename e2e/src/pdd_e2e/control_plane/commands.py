"""The command lines of etcd, kube-apiserver and kube-controller-manager, and the audit policy: data from ports and files, no I/O.

As close to a cluster's defaults as one machine without a kubelet allows: RBAC on, default admission, default controllers. What differs is
said beside its line.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pdd_e2e.control_plane.certificates import KeyPair

FRONT_PROXY_USER = "pdd-front-proxy"

_CONTROL_PLANE_READERS = ("system:apiserver", "system:kube-controller-manager")


@dataclass(frozen=True, slots=True)
class Ports:
    """Loopback ports of the servers."""

    etcd: int
    etcd_peer: int
    api_server: int
    controller_manager: int

    @property
    def api_url(self) -> str:
        """Where clients connect."""
        return f"https://127.0.0.1:{self.api_server}"


@dataclass(frozen=True, slots=True)
class Credentials:
    """Files that the servers are started with."""

    authority: KeyPair
    serving: KeyPair
    service_account: KeyPair
    front_proxy_authority: KeyPair


def etcd_command(program: Path, ports: Ports, data: Path) -> list[str]:
    """A single member. Without fsync: what a test stores need not survive a power cut."""
    client, peer = f"http://127.0.0.1:{ports.etcd}", f"http://127.0.0.1:{ports.etcd_peer}"
    return [
        str(program),
        "--name=pdd-e2e",
        f"--data-dir={data}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=pdd-e2e={peer}",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def api_server_command(
    program: Path, ports: Ports, credentials: Credentials, *, audit_policy: Path, audit_log: Path
) -> list[str]:
    """RBAC, tokens, audit to a file, and a front proxy that may say who its client is (the fault proxy ends the client's TLS)."""
    return [
        str(program),
        f"--etcd-servers=http://127.0.0.1:{ports.etcd}",
        "--bind-address=127.0.0.1",
        f"--secure-port={ports.api_server}",
        "--advertise-address=127.0.0.1",
        "--endpoint-reconciler-type=none",  # an address of the loopback interface must not be in an EndpointSlice
        "--service-cluster-ip-range=10.96.0.0/16",
        "--authorization-mode=Node,RBAC",
        "--allow-privileged=true",  # as in every installer: pods are limited by Pod Security
        f"--client-ca-file={credentials.authority.certificate}",
        f"--tls-cert-file={credentials.serving.certificate}",
        f"--tls-private-key-file={credentials.serving.key}",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={credentials.service_account.certificate}",
        f"--service-account-signing-key-file={credentials.service_account.key}",
        f"--requestheader-client-ca-file={credentials.front_proxy_authority.certificate}",
        f"--requestheader-allowed-names={FRONT_PROXY_USER}",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--audit-policy-file={audit_policy}",
        f"--audit-log-path={audit_log}",
        "--audit-log-mode=blocking",
        "--audit-log-maxsize=0",  # no rotation: counts are over the whole run
        "--profiling=false",
    ]


def controller_manager_command(program: Path, ports: Ports, credentials: Credentials, kubeconfig: Path) -> list[str]:
    """The default controllers, each with its own ServiceAccount, but those that judge nodes: no node here has a kubelet to report."""
    return [
        str(program),
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--bind-address=127.0.0.1",
        f"--secure-port={ports.controller_manager}",
        f"--tls-cert-file={credentials.serving.certificate}",
        f"--tls-private-key-file={credentials.serving.key}",
        f"--client-ca-file={credentials.authority.certificate}",
        f"--root-ca-file={credentials.authority.certificate}",
        f"--service-account-private-key-file={credentials.service_account.key}",
        "--use-service-account-credentials=true",
        "--controllers=*,-node-lifecycle-controller,-taint-eviction-controller,-node-ipam-controller",
        "--leader-elect=false",
        "--kube-api-qps=200",  # a hundred deployments at once must not wait for the default 20
        "--kube-api-burst=400",
        "--profiling=false",
    ]


def audit_policy() -> dict[str, Any]:
    """Metadata of every finished write, and of every read that does not come from the control plane itself."""
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived", "ResponseStarted"],
        "omitManagedFields": True,
        "rules": [
            {"level": "None", "nonResourceURLs": ["*"]},
            {"level": "None", "users": list(_CONTROL_PLANE_READERS), "verbs": ["get", "list", "watch"]},
            {
                "level": "None",
                "userGroups": ["system:serviceaccounts:kube-system"],
                "verbs": ["get", "list", "watch"],
            },
            {"level": "Metadata"},
        ],
    }
