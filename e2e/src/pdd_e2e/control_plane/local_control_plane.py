"""A real etcd, kube-apiserver and kube-controller-manager on this machine: what tests judge the CRD and the operator against.

There is no kubelet and no scheduler: `FakeKubelet` stands in for both. Every server has its own process group and is ended with the context,
after Ctrl-C, after a start that fails, and (by the reaper) after this process was killed.
"""

import os
import re
import shutil
import signal
import ssl
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import uuid4

import yaml

from pdd_cli.local.ports import free_ports
from pdd_cli.local.reaper import Reaper
from pdd_e2e.control_plane.api import KubeApi
from pdd_e2e.control_plane.audit import AuditLog
from pdd_e2e.control_plane.binaries import Binaries, find_binaries
from pdd_e2e.control_plane.certificates import Authority, service_account_key
from pdd_e2e.control_plane.commands import (
    FRONT_PROXY_USER,
    Credentials,
    Ports,
    api_server_command,
    audit_policy,
    controller_manager_command,
    etcd_command,
)
from pdd_e2e.control_plane.errors import ApiError, ControlPlaneError
from pdd_e2e.control_plane.kubeconfig import certificate_user, token_user, write_kubeconfig
from pdd_e2e.control_plane.server import HttpProbe, Server

_READY_SECONDS = 60.0  # on an idle machine everything is ready within 15
_GRACE_SECONDS = 5.0
_POLL_SECONDS = 0.05
_TOKEN_SECONDS = 24 * 3600
ADMIN_USER = "pdd-admin"
ADMIN_GROUP = "system:masters"


def _silent(line: str) -> None:
    """Says nothing."""


class LocalControlPlane:
    """Started on entry, gone on exit. `keep_logs=True` (set by whoever sees a failure) leaves the folder with logs and audit log."""

    def __init__(
        self,
        binaries: Binaries | None = None,
        *,
        say: Callable[[str], None] = _silent,
        parent: Path | None = None,
        crds: Sequence[Path] = (),
    ) -> None:
        """Its folder is made in `parent`, or in the system's folder for temporary files.

        `crds` (files, or folders of them) are served before the controllers start: the garbage collector looks for new kinds only every
        30 s, and until then the children of such an object outlive it.
        """
        self._binaries = binaries
        self._crds = crds
        self._parent = parent
        self._say = say
        self._stack = ExitStack()
        self.keep_logs = False

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException as error:  # also Ctrl-C: nothing may be left running
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.keep_logs = self.keep_logs or error is not None
        self._stack.close()

    def _start(self) -> None:
        self.binaries = self._binaries or find_binaries(say=self._say)
        reaper = self._stack.enter_context(Reaper())
        self.folder = Path(tempfile.mkdtemp(prefix="pdd-control-plane-", dir=self._parent))
        reaper.watch_folder(self.folder)
        self._stack.callback(self._remove_folder, reaper)
        self._prepare_files()
        self._make_servers(reaper)
        self._start_servers()
        self.audit = AuditLog(self._audit_log, self._flush_audit)
        self.wait_for_service_account("default")

    def _prepare_files(self) -> None:
        secrets = self.folder / "secrets"
        secrets.mkdir(mode=0o700)
        self._secrets = secrets
        self._ports = Ports(*free_ports(4))
        self.url = self._ports.api_url
        self._authority = Authority(secrets, "pdd-e2e-ca")
        front_proxy = Authority(secrets, "pdd-e2e-front-proxy-ca")
        self.serving = self._authority.server("serving", ["kubernetes", "kubernetes.default.svc"])
        self.front_proxy = front_proxy.client("front-proxy", FRONT_PROXY_USER)
        self.authority = self._authority.certificate
        self._credentials = Credentials(
            authority=self._authority.files,
            serving=self.serving,
            service_account=service_account_key(secrets),
            front_proxy_authority=front_proxy.files,
        )
        self._audit_log = self.folder / "audit.log"
        self.kubeconfig = self.kubeconfig_for(user=ADMIN_USER, groups=[ADMIN_GROUP])

    def _make_servers(self, reaper: Reaper) -> None:
        policy = self.folder / "audit-policy.yaml"
        policy.write_text(yaml.safe_dump(audit_policy()))
        manager = self.kubeconfig_for(user="system:kube-controller-manager", groups=[])
        folder, programs, ports, credentials = self.folder, self.binaries, self._ports, self._credentials
        commands = {
            "etcd": etcd_command(programs.path("etcd"), ports, folder / "etcd"),
            "kube-apiserver": api_server_command(
                programs.path("kube-apiserver"), ports, credentials, audit_policy=policy, audit_log=self._audit_log
            ),
            "kube-controller-manager": controller_manager_command(
                programs.path("kube-controller-manager"), ports, credentials, manager
            ),
        }
        self._servers = {
            name: Server(name, command, folder / f"{name}.log", reaper) for name, command in commands.items()
        }

    def _start_servers(self) -> None:
        trust = ssl.create_default_context(cafile=str(self.authority))
        self._api_ready = HttpProbe(self._ports.api_server, "/readyz", trust)
        probes = {
            "etcd": HttpProbe(self._ports.etcd, "/health"),
            "kube-apiserver": self._api_ready,
            "kube-controller-manager": HttpProbe(self._ports.controller_manager, "/healthz", trust),
        }
        for name, probe in probes.items():
            server = self._servers[name]
            self._stack.callback(server.end, _GRACE_SECONDS)
            server.start()
            server.wait_until(probe, _READY_SECONDS)
            if server is self._servers["kube-apiserver"]:
                self.api = self._stack.enter_context(KubeApi(self.kubeconfig))
                self._install_crds()

    def _install_crds(self) -> None:
        if not self._crds:
            return
        files = [f"--filename={path}" for path in self._crds]
        for applied in self.kubectl("apply", "--server-side", "--output=name", *files).split():
            self.wait_for_definition(applied.rpartition("/")[2])

    def wait_for_definition(self, name: str) -> None:
        """Returns when the API server has established a CustomResourceDefinition. `kubectl wait` fails at one without conditions yet."""
        path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"

        def established() -> bool:
            conditions = self.api.get(path).get("status", {}).get("conditions") or ()
            return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)

        self._wait_for(established, f"{name} is not established", "kube-apiserver")

    def wait_for_service_account(self, namespace: str) -> None:
        """Returns when the controller has made the namespace's default ServiceAccount, without which no pod is admitted."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"

        def made() -> bool:
            try:
                self.api.get(path)
            except ApiError as error:
                if error.code != 404:
                    raise
                return False
            return True

        self._wait_for(made, "no default ServiceAccount", "kube-controller-manager")

    def _wait_for(self, look: Callable[[], bool], complaint: str, server: str) -> None:
        deadline = time.monotonic() + _READY_SECONDS
        while not look():
            if time.monotonic() > deadline:
                raise ControlPlaneError(f"{complaint}: {self._servers[server].tail()}")
            time.sleep(_POLL_SECONDS)

    def _remove_folder(self, reaper: Reaper) -> None:
        if self.keep_logs:
            shutil.rmtree(self.folder / "etcd", ignore_errors=True)  # large, and says little
            shutil.rmtree(self._secrets, ignore_errors=True)
            self._say(f"logs of the control plane are kept in {self.folder}")
        else:
            shutil.rmtree(self.folder)
        reaper.forget_folder(self.folder)

    # ---- who connects -------------------------------------------------------------------------------------------

    def kubeconfig_for(
        self,
        *,
        service_account: tuple[str, str] | None = None,
        user: str | None = None,
        groups: Sequence[str] = (),
        namespace: str = "default",
    ) -> Path:
        """A kubeconfig file for a ServiceAccount (namespace, name; it must exist) by token, or for a user by certificate.

        Neither may do anything that RBAC does not grant. Valid for a day.
        """
        if (service_account is None) == (user is None):
            raise ValueError("give either service_account or user")
        if service_account is not None:
            namespace = service_account[0]
            who = "-".join(service_account)
            credentials = token_user(self.token_for(*service_account))
        else:
            who = re.sub(r"[^a-zA-Z0-9.-]", "-", str(user))
            pair = self._authority.client(f"{who}-{uuid4().hex[:8]}", str(user), groups)
            credentials = certificate_user(pair)
        path = self._secrets / f"{who}-{uuid4().hex[:8]}.kubeconfig"
        return write_kubeconfig(path, server=self.url, authority=self.authority, user=credentials, namespace=namespace)

    def token_for(self, namespace: str, service_account: str) -> str:
        """A bearer token of an existing ServiceAccount, from the TokenRequest API."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{service_account}/token"
        answer = self.api.create(
            path,
            {
                "apiVersion": "authentication.k8s.io/v1",
                "kind": "TokenRequest",
                "spec": {"expirationSeconds": _TOKEN_SECONDS},
            },
        )
        return str(answer["status"]["token"])

    def kubectl(self, *arguments: str, stdin: str = "", kubeconfig: Path | None = None) -> str:
        """Standard output of kubectl as the administrator, or as `kubeconfig` says. Raises ControlPlaneError with its stderr."""
        command = [str(self.binaries.path("kubectl")), *arguments]
        environment = {
            "PATH": os.defpath,
            "HOME": str(self.folder),
            "KUBECONFIG": str(kubeconfig or self.kubeconfig),
        }
        done = subprocess.run(  # noqa: S603  # our own kubectl, no shell
            command, input=stdin, env=environment, capture_output=True, text=True, timeout=60
        )
        if done.returncode != 0:
            raise ControlPlaneError(f"kubectl {' '.join(arguments)} ended with {done.returncode}: {done.stderr}")
        return done.stdout

    # ---- faults -------------------------------------------------------------------------------------------------

    def server_pids(self) -> dict[str, int]:
        """Name → pid of the servers that run now."""
        return {name: server.pid for name, server in self._servers.items() if server.pid is not None}

    def pause_api_server(self) -> None:
        """Stops it in its tracks: connections stay open and nobody answers, until `resume_api_server`."""
        self._servers["kube-apiserver"].signal(signal.SIGSTOP)

    def resume_api_server(self) -> None:
        """Lets it run on; what was asked meanwhile is answered."""
        self._servers["kube-apiserver"].signal(signal.SIGCONT)

    def kill_api_server(self) -> None:
        """SIGKILL: connections break, new ones are refused, until `restart_api_server`."""
        server = self._servers["kube-apiserver"]
        server.signal(signal.SIGKILL)
        server.end(_GRACE_SECONDS)

    def restart_api_server(self) -> None:
        """Ends it if it runs, starts it on the same port, and returns when it is ready."""
        server = self._servers["kube-apiserver"]
        server.end(_GRACE_SECONDS)
        server.start()
        server.wait_until(self._api_ready, _READY_SECONDS)

    def _flush_audit(self) -> None:
        """Makes a request that only we make and waits until it is in the log: what was answered before it is there as well."""
        name = f"flush-{uuid4().hex}"
        try:
            self.api.get(f"/api/v1/namespaces/default/configmaps/{name}")
        except ApiError as error:
            if error.code != 404:
                raise
        deadline = time.monotonic() + _READY_SECONDS
        needle = name.encode()
        while needle not in self._tail_of_audit_log():
            if time.monotonic() > deadline:
                raise ControlPlaneError(f"the audit log {self._audit_log} does not grow")
            time.sleep(_POLL_SECONDS)

    def _tail_of_audit_log(self) -> bytes:
        with self._audit_log.open("rb") as log:
            log.seek(max(0, self._audit_log.stat().st_size - 256 * 1024))
            return log.read()
