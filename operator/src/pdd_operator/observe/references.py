"""Which field of the spec names a Secret or ConfigMap that the kubelet did not find. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pdd_operator.api.labels import Component
from pdd_operator.api.names import tenant_salt_name
from pdd_operator.api.v1alpha1 import Spec
from pdd_operator.observe.scheduling import PodContext

_MISSING_OBJECT = re.compile(r'(?P<kind>secret|configmap) "(?P<name>[^"]+)" not found', re.IGNORECASE)
_MISSING_KEY = re.compile(r"couldn't find key (?P<key>\S+) in (?P<kind>Secret|ConfigMap) (?:\S+/)?(?P<name>\S+)")


def field_of_reference(context: PodContext, message: str) -> str:
    """What to do about a missing Secret or ConfigMap, in one sentence; "" where the message names none."""
    match = _MISSING_OBJECT.search(message) or _MISSING_KEY.search(message)
    if match is None:
        return ""
    kind = "Secret" if match["kind"].lower() == "secret" else "ConfigMap"
    name, key = match["name"], match.groupdict().get("key")
    if context.spec is None:
        return ""
    fields = [path for kinds, found, path in _references(context.spec) if kinds == kind and found == name]
    if fields:
        missing = f"key {key} of {kind} {name}" if key else f"{kind} {name}"
        return f"`{fields[0]}` names it: create {missing}, or correct the field."
    if kind == "Secret" and _is_ours(context, name):
        if key:  # somebody took it out: what has a Secret in it, the operator leaves as it is
            return f"The operator made Secret {name} with key {key}: delete the Secret, and a new one is made."
        return f"The operator makes Secret {name}: see the condition Reconciled."
    return f"Create {kind} {name}, or take it out of `{context.field}.podTemplate`."


def objects_of_volumes(context: PodContext) -> list[str]:
    """Secrets and ConfigMaps that volumes of the pod cannot do without, but the operator's own, each with the field that names it."""
    named = {} if context.spec is None else {(kind, name): path for kind, name, path in _references(context.spec)}
    found: dict[str, None] = {}
    for volume in (context.pod.get("spec") or {}).get("volumes") or []:
        users = not str(volume.get("name")).startswith("pdd-")
        for kind, name in _objects_of(volume):
            if field := named.get((kind, name)) or (f"{context.field}.podTemplate.volumes" if users else ""):
                found[f"{kind} {name} (`{field}`)"] = None
    return list(found)


def _objects_of(volume: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for source in (volume, *((volume.get("projected") or {}).get("sources") or [])):
        secret, config_map = source.get("secret") or {}, source.get("configMap") or {}
        name = secret.get("secretName") or secret.get("name")
        if name and not secret.get("optional"):
            yield "Secret", str(name)
        if config_map.get("name") and not config_map.get("optional"):
            yield "ConfigMap", str(config_map["name"])


def _references(spec: Spec) -> Iterator[tuple[str, str, str]]:
    """Kind, name and the field that has it."""
    source = spec.model.source.hugging_face
    if source is not None and source.token_secret_name is not None:
        yield "Secret", source.token_secret_name, "spec.model.source.huggingFace.tokenSecretName"
    if spec.router.authentication.api_keys_secret_name is not None:
        name = spec.router.authentication.api_keys_secret_name
        yield "Secret", name, "spec.router.authentication.apiKeysSecretName"
    for index, variable in enumerate(spec.engine.env):
        where = f"spec.engine.env[{index}].valueFrom"
        if variable.value_from is None:
            continue
        if variable.value_from.secret_key_ref is not None:
            yield "Secret", variable.value_from.secret_key_ref.name, f"{where}.secretKeyRef"
        if variable.value_from.config_map_key_ref is not None:
            yield "ConfigMap", variable.value_from.config_map_key_ref.name, f"{where}.configMapKeyRef"


def _is_ours(context: PodContext, secret: str) -> bool:
    labels = context.pod["metadata"].get("labels") or {}
    deployment = str(labels.get("pdserve.io/deployment", ""))
    claim_keys = f"{deployment}-claim-"
    salt = context.component is Component.ROUTER and secret == tenant_salt_name(deployment)
    return bool(deployment) and (salt or secret.startswith(claim_keys))
