"""Kubeconfig files: who connects to which API server, as data."""

from pathlib import Path
from typing import Any

import yaml

from pdd_e2e.control_plane.certificates import KeyPair


def certificate_user(pair: KeyPair) -> dict[str, Any]:
    """Credentials: a client certificate, named by path."""
    return {"client-certificate": str(pair.certificate), "client-key": str(pair.key)}


def token_user(token: str) -> dict[str, Any]:
    """Credentials: a bearer token."""
    return {"token": token}


def write_kubeconfig(path: Path, *, server: str, authority: Path, user: dict[str, Any], namespace: str) -> Path:
    """One cluster, one user, one context, all named `pdd-e2e`; readable by the owner only."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "pdd-e2e",
        "clusters": [{"name": "pdd-e2e", "cluster": {"server": server, "certificate-authority": str(authority)}}],
        "users": [{"name": "pdd-e2e", "user": user}],
        "contexts": [{"name": "pdd-e2e", "context": {"cluster": "pdd-e2e", "user": "pdd-e2e", "namespace": namespace}}],
    }
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def with_server(kubeconfig: Path, path: Path, *, server: str) -> Path:
    """A copy of `kubeconfig` at `path` that connects to `server`; the serving certificate must come from the same authority."""
    content = yaml.safe_load(kubeconfig.read_text())
    for cluster in content["clusters"]:
        cluster["cluster"]["server"] = server
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path
