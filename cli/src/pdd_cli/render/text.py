"""Objects as YAML with comments, or as names. Pure; same objects, same bytes.

Secrets are comments: one without its random content must never be applied, because the operator leaves a Secret that is there alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import yaml

from pdd_cli.render.objects import Shown
from pdd_cli.yaml_scalars import plain
from pdd_operator.api.objects import Manifest, SecretOnce

_WIDTH = 160


def as_yaml(shown: Iterable[Shown]) -> str:
    """Documents that `kubectl apply --dry-run=server -f -` takes."""
    return "".join(document for one in shown for document in _documents(one))


def as_names(shown: Iterable[Shown]) -> str:
    """One line each, as `kubectl get -o name` has them; Secrets last."""
    lines = [name_of(manifest) for one in shown for manifest in one.manifests]
    lines += [name_of(secret.manifest) for one in shown for secret in one.secrets]
    return "".join(f"{line}\n" for line in lines)


def name_of(manifest: Manifest) -> str:
    group = manifest["apiVersion"].rpartition("/")[0]
    kind = manifest["kind"].lower() + (f".{group}" if group else "")
    return f"{kind}/{manifest['metadata']['name']}"


def notes(shown: Shown) -> Iterator[str]:
    """What to know of the objects that follow, and what is not among them."""
    metadata = shown.deployment.metadata
    yield (
        f"PDDeployment {metadata.namespace}/{metadata.name}, revision {shown.revision}: {len(shown.manifests)} objects and "
        f"{len(shown.secrets)} Secrets, in the order in which the operator applies them."
    )
    yield "For reading and comparing. Apply the PDDeployment, not these: the operator makes them and keeps them so."
    if not shown.has_uid:
        yield (
            "The PDDeployment has no uid yet, so these are not shown: ownerReferences, the label pdserve.io/owner-uid and "
            "the annotation pdserve.io/input-hash."
        )
    absent = [
        kind
        for kind, has in (
            ("PodMonitor", shown.cluster.pod_monitors),
            ("GrafanaDashboard", shown.cluster.grafana_dashboards),
        )
        if not has
    ]
    if absent:
        yield f"Taken to be a cluster without {' and '.join(absent)}: --has {' --has '.join(absent)} shows those too."
    yield "Not shown: objects of older revision groups, which the operator keeps until this one is available."


def _documents(shown: Shown) -> Iterator[str]:
    yield "".join(f"# {line}\n" for line in notes(shown))
    for secret in shown.secrets:
        yield _secret(secret)
    for manifest in shown.manifests:
        yield f"---\n{_dump(manifest)}"


def _secret(secret: SecretOnce) -> str:
    owner = "the PDDeployment" if secret.owner is None else str(secret.owner)
    told = (
        f"Made once, by the operator alone, and never read by it: {secret.length_bytes} random bytes in hex under the key "
        f"`{secret.key}`. Goes with {owner}."
    )
    lines = [told, *_dump(secret.manifest).splitlines()]
    return "#\n" + "".join(f"# {line}\n" for line in lines)


class _Dumper(yaml.SafeDumper):
    """No anchors, scripts as they are written, and quotes round text that kubectl would take for something else, as a revision like 123e45."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None if isinstance(plain(text), str) else "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def _dump(manifest: Manifest) -> str:
    return yaml.dump(manifest, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=_WIDTH)
