"""What every object of the chart must keep to, beyond Kubernetes' schemas: the checks that linters of manifests make, and ours.

Pure: objects in, problems out. An empty list means that nothing was found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

Object = dict[str, Any]

FORBIDDEN_VERBS = {"*", "bind", "escalate", "impersonate"}
FORBIDDEN_RESOURCES = {"*", "pods/exec", "pods/attach", "pods/portforward", "pods/ephemeralcontainers", "nodes/proxy"}
RULE_KINDS = {"ClusterRole", "Role"}
CLUSTER_KINDS = {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}


def problems(objects: list[Object]) -> list[str]:
    """Everything that is wrong with ``objects``, which are a whole release."""
    found: list[str] = []
    for item in objects:
        name = f"{item['kind']}/{item['metadata']['name']}"
        found += [f"{name}: {text}" for text in _object(item)]
    return [*found, *_selectors(objects), *_bindings(objects)]


def _object(item: Object) -> Iterator[str]:
    yield from _metadata(item)
    yield from (f"{path} is null" for path in _nulls(item, ""))
    if item["kind"] == "Deployment":
        yield from _workload(item)
    if item["kind"] in RULE_KINDS:
        yield from _rules(item["rules"])


def _metadata(item: Object) -> Iterator[str]:
    metadata = item["metadata"]
    if len(metadata["name"]) > 63 and item["kind"] not in CLUSTER_KINDS:
        yield "its name is longer than 63 characters"
    if (item["kind"] in CLUSTER_KINDS) == ("namespace" in metadata):
        yield "it must have a namespace if and only if its kind has one"
    missing = {"app.kubernetes.io/name", "app.kubernetes.io/instance", "helm.sh/chart"} - metadata.get(
        "labels", {}
    ).keys()
    if missing:
        yield f"it lacks the labels {', '.join(sorted(missing))}"


def _nulls(value: Any, path: str) -> Iterator[str]:
    if value is None:
        yield path
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from _nulls(part, f"{path}.{key}")
    elif isinstance(value, list):
        for part in value:
            yield from _nulls(part, f"{path}[]")


def _workload(item: Object) -> Iterator[str]:
    pod = item["spec"]["template"]["spec"]
    labels = item["spec"]["template"]["metadata"]["labels"]
    if not item["spec"]["selector"]["matchLabels"].items() <= labels.items():
        yield "its selector does not match its own pods"
    if "automountServiceAccountToken" not in pod:
        yield "it must say whether a token is mounted"
    if not pod.get("affinity") and not pod.get("topologySpreadConstraints"):
        yield "nothing keeps its replicas apart"
    yield from (f"{field} must not be set" for field in ("hostNetwork", "hostPID", "hostIPC") if pod.get(field))
    yield from (f"volume {volume['name']} is the host's" for volume in pod.get("volumes", ()) if "hostPath" in volume)
    if item["spec"]["replicas"] > 1 and item["spec"]["strategy"]["type"] != "RollingUpdate":
        yield "with several replicas it must be rolled"
    yield from _pod_security(pod.get("securityContext", {}))
    for container in pod["containers"]:
        yield from (f"container {container['name']}: {text}" for text in _container(container))


def _pod_security(context: Object) -> Iterator[str]:
    if context.get("runAsNonRoot") is not True:
        yield "pod: runAsNonRoot must be true"
    if context.get("runAsUser") == 0:
        yield "pod: runAsUser must not be 0"
    if context.get("seccompProfile") != {"type": "RuntimeDefault"}:
        yield "pod: seccompProfile must be RuntimeDefault"


def _container(container: Object) -> Iterator[str]:
    wanted = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "privileged": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    context = container.get("securityContext", {})
    yield from (f"{field} must be {value}" for field, value in wanted.items() if context.get(field) != value)
    resources = container.get("resources", {})
    for kind, resource in (("requests", "cpu"), ("requests", "memory"), ("limits", "memory")):
        if resource not in resources.get(kind, {}):
            yield f"resources.{kind}.{resource} must be set"
    yield from (f"{probe} is missing" for probe in ("livenessProbe", "readinessProbe") if probe not in container)
    yield from _image(container["image"])
    for variable in container.get("env", ()):
        if any(word in variable["name"].upper() for word in ("SECRET", "PASSWORD", "TOKEN")):
            yield f"secrets must be files, not environment: {variable['name']}"


def _image(image: str) -> Iterator[str]:
    last = image.rsplit("/", 1)[-1]
    if "@sha256:" not in last and (":" not in last or last.endswith((":", ":latest"))):
        yield f"image {image} must have a tag that is not latest, or a digest"


def _rules(rules: list[Object]) -> Iterator[str]:
    for rule in rules:
        verbs, resources = rule["verbs"], rule["resources"]
        if verbs != sorted(set(verbs)):
            yield f"verbs of {resources} must be in alphabetical order, each once"
        if FORBIDDEN_VERBS & set(verbs) or FORBIDDEN_RESOURCES & set(resources) or "*" in rule["apiGroups"]:
            yield f"{verbs} on {resources} must not be granted"
        if "secrets" in resources and verbs != ["create"]:
            yield "of secrets nothing but create may be granted"


def _selectors(objects: list[Object]) -> Iterator[str]:
    """What selects pods must select the release's own."""
    pods = [item["spec"]["template"]["metadata"]["labels"] for item in objects if item["kind"] == "Deployment"]
    for item in objects:
        selector = _selector(item)
        if selector is not None and not any(selector and selector.items() <= labels.items() for labels in pods):
            yield f"{item['kind']}/{item['metadata']['name']}: selects no pod of the release"


def _selector(item: Object) -> Object | None:
    match item["kind"]:
        case "Service":
            return dict(item["spec"]["selector"])
        case "PodDisruptionBudget" | "PodMonitor":
            return dict(item["spec"]["selector"]["matchLabels"])
        case "NetworkPolicy":
            return dict(item["spec"]["podSelector"]["matchLabels"])
        case _:
            return None


def _bindings(objects: list[Object]) -> Iterator[str]:
    """A binding without its role or account grants nothing, and says nothing about it."""
    roles = {(item["kind"], item["metadata"]["name"], item["metadata"].get("namespace")) for item in objects}
    for item in objects:
        if item["kind"] not in {"RoleBinding", "ClusterRoleBinding"}:
            continue
        reference, namespace = item["roleRef"], item["metadata"].get("namespace")
        if (reference["kind"], reference["name"], namespace) not in roles:
            yield f"{item['kind']}/{item['metadata']['name']}: there is no {reference['kind']} {reference['name']}"
        yield from _subjects(item, _accounts_used(objects))


def _accounts_used(objects: Iterable[Object]) -> set[tuple[str, str]]:
    return {
        (item["metadata"].get("namespace", ""), item["spec"]["template"]["spec"]["serviceAccountName"])
        for item in objects
        if item["kind"] == "Deployment"
    }


def _subjects(binding: Object, accounts: set[tuple[str, str]]) -> Iterator[str]:
    for subject in binding["subjects"]:
        if subject["kind"] != "ServiceAccount" or (subject["namespace"], subject["name"]) not in accounts:
            yield f"{binding['kind']}/{binding['metadata']['name']}: {subject['name']} is not the operator's account"
