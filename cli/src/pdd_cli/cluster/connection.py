"""From kubeconfig, context and namespace, as kubectl takes them, to a client. Reads files; asks no API server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kubernetes import client, config

from pdd_cli.errors import ClusterReadError
from pdd_operator import __version__


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """What the person said; None: as the kubeconfig has it. ``timeout_seconds``: for all of the reading."""

    kubeconfig: Path | None
    context: str | None
    namespace: str | None
    timeout_seconds: float

    def for_kubectl(self) -> str:
        """The options that a printed kubectl line needs to mean the same cluster, with a space in front."""
        parts = [f"--kubeconfig {self.kubeconfig}"] if self.kubeconfig else []
        parts += [f"--context {self.context}"] if self.context else []
        return "".join(f" {part}" for part in parts)


@dataclass(frozen=True, slots=True)
class Connection:
    api: client.ApiClient
    namespace: str


def connect(options: ClusterOptions) -> Connection:
    """Credentials and namespace. Outside of a pod from the kubeconfig; runs its credential plugin, if it has one.

    Raises ClusterReadError.
    """
    settings = client.Configuration()
    named = None if options.kubeconfig is None else str(options.kubeconfig)
    try:
        config.load_kube_config(named, options.context, client_configuration=settings, persist_config=False)
        namespace = options.namespace or _namespace(named, options.context)
    except config.ConfigException as error:
        if named or options.context or not _in_cluster(settings):
            raise ClusterReadError(_no_kubeconfig(options, str(error))) from None
        namespace = options.namespace or "default"
    settings.retries = False
    api = client.ApiClient(settings)
    api.user_agent = f"pdd/{__version__}"
    return Connection(api, namespace)


def _in_cluster(settings: client.Configuration) -> bool:
    try:
        config.load_incluster_config(client_configuration=settings)
    except config.ConfigException:
        return False
    return True


def _namespace(kubeconfig: str | None, context: str | None) -> str:
    contexts, current = config.list_kube_config_contexts(kubeconfig)
    chosen = current if context is None else next(item for item in contexts if item["name"] == context)
    return str(chosen["context"].get("namespace") or "default")


def _no_kubeconfig(options: ClusterOptions, said: str) -> str:
    which = f"--kubeconfig {options.kubeconfig}" if options.kubeconfig else "the kubeconfig"
    context = f" with --context {options.context}" if options.context else ""
    return (
        f"{which}{context} names no cluster: {said}. Set KUBECONFIG, or give --kubeconfig and --context as to kubectl."
    )
