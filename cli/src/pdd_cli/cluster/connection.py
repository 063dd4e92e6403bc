"""From kubeconfig, context and namespace, as kubectl takes them, to a client. Reads files; asks no API server."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kubernetes import client, config
from kubernetes.config import kube_config

from pdd_cli.errors import ClusterReadError
from pdd_cli.names import is_namespace
from pdd_cli.yaml_text import load_all
from pdd_operator import __version__
from pdd_operator.kube.errors import without_userinfo


class _KubeconfigError(Exception):
    """With the file, and what it must be."""


_ODD_SHAPE = (TypeError, AttributeError, LookupError, ValueError)
_UNREADABLE = (_KubeconfigError, config.ConfigException, OSError, *_ODD_SHAPE)
"""What comes of a kubeconfig that is none."""


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

    @property
    def server(self) -> str:
        """For a person."""
        return without_userinfo(str(self.api.configuration.host))


def connect(options: ClusterOptions) -> Connection:
    """Credentials and namespace. Outside of a pod from the kubeconfig; runs its credential plugin, if it has one.

    Raises ClusterReadError.
    """
    settings = client.Configuration()
    try:
        namespace = _load(options, settings)
    except _UNREADABLE as error:
        if options.kubeconfig or options.context or not _in_cluster(settings):
            raise ClusterReadError(_no_kubeconfig(options, _said(error))) from None
        namespace = ""
    namespace = options.namespace or namespace or "default"
    if not is_namespace(namespace):
        raise ClusterReadError(
            _no_kubeconfig(options, f"its context names the namespace {namespace[:80]!r}, which is none")
        )
    _strip_token(settings)
    settings.retries = False
    api = client.ApiClient(settings)
    api.user_agent = f"pdd/{__version__}"
    return Connection(api, namespace)


def _load(options: ClusterOptions, settings: client.Configuration) -> str:
    """Fills ``settings``; the namespace of the context, "" where it has none."""
    path = str(options.kubeconfig) if options.kubeconfig else kube_config.KUBE_CONFIG_DEFAULT_LOCATION
    _check_files(path)
    merged = kube_config.KubeConfigMerger(path).config
    loader = kube_config.KubeConfigLoader(merged, active_context=options.context, config_base_path=None)
    loader.load_and_set(settings)
    return str(loader.current_context["context"].get("namespace") or "")


def _check_files(paths: str) -> None:
    """Those that the client is about to read, because of a file that is none it says nothing that helps. Raises _KubeconfigError.

    As with kubectl some of several may be absent, and not all.
    """
    files = [Path(path).expanduser() for path in paths.split(kube_config.ENV_KUBECONFIG_PATH_SEPARATOR) if path]
    there = [file for file in files if file.exists()]
    if not there:
        raise _KubeconfigError(f"{', '.join(map(str, files)) or 'KUBECONFIG'}: file does not exist")
    for file in filter(Path.is_file, there):  # a pipe can be read once
        try:
            documents = load_all(file.read_text(encoding="utf-8"), doubled_keys=True)
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            raise _KubeconfigError(f"{file}: line {line} is not UTF-8") from None
        except ValueError as error:
            raise _KubeconfigError(f"{file}: {error}") from None
        if len(documents) != 1 or not isinstance(documents[0], Mapping):
            raise _KubeconfigError(f"{file} must be a kubeconfig: a mapping")


def _strip_token(settings: client.Configuration) -> None:
    """A file of a token mostly ends in a newline, which no header may hold. The client reads it as it is, and before every request anew."""
    refresh = settings.refresh_api_key_hook

    def refreshed(current: client.Configuration) -> None:
        if refresh is not None:
            refresh(current)  # which puts itself in place of this
        current.api_key = {name: " ".join(value.split()) for name, value in current.api_key.items()}
        current.refresh_api_key_hook = refreshed

    refreshed(settings)


def _in_cluster(settings: client.Configuration) -> bool:
    try:
        config.load_incluster_config(client_configuration=settings)
    except config.ConfigException:
        return False
    return True


def _said(error: Exception) -> str:
    """The client quotes whole entries, with their tokens and keys."""
    if isinstance(error, _ODD_SHAPE):
        return f"something in it has an odd shape ({type(error).__name__})"
    return re.sub(r"\{.*\}", "{...}", " ".join(str(error).split()))


def _no_kubeconfig(options: ClusterOptions, said: str) -> str:
    which = f"--kubeconfig {options.kubeconfig}" if options.kubeconfig else "the kubeconfig"
    context = f" with --context {options.context}" if options.context else ""
    return (
        f"{which}{context} names no cluster: {said}. Set KUBECONFIG, or give --kubeconfig and --context as to kubectl."
    )
