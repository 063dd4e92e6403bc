"""Every values file of ci/: the same objects as before, valid, and kept to what a release must keep to."""

import copy
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from chart import FOLDER, KUBERNETES, Chart, HelmError, environment, one
from manifest_checks import problems
from syrupy.assertion import SnapshotAssertion

FILES = sorted((FOLDER / "ci").glob("*.yaml"))
FOREIGN_GROUPS = ("monitoring.coreos.com/",)  # kinds that Kubernetes has no schemas for


def rendered(chart: Chart, path: Path) -> list[dict[str, Any]]:
    return chart.objects("--values", str(path))


def test_there_are_values_files_enough() -> None:
    assert len(FILES) >= 8


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_objects_are_as_recorded(chart: Chart, path: Path, snapshot: SnapshotAssertion) -> None:
    objects = [item for item in rendered(chart, path) if item["kind"] != "CustomResourceDefinition"]
    assert yaml.safe_dump_all(objects, sort_keys=False, width=140) == snapshot


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_object_is_valid(chart: Chart, path: Path) -> None:
    for item in rendered(chart, path):
        if not item["apiVersion"].startswith(FOREIGN_GROUPS):
            kubernetes_validate.validate(item, KUBERNETES, strict=True)


def test_a_misspelt_field_is_not_valid(chart: Chart) -> None:
    deployment = one(chart.objects(), "Deployment")
    deployment["spec"]["template"]["spec"]["containers"][0]["imagePolicy"] = "Always"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, KUBERNETES, strict=True)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_nothing_is_wrong_with_the_release(chart: Chart, path: Path) -> None:
    objects = [item for item in rendered(chart, path) if not item["metadata"]["name"].endswith("-extra")]
    assert problems(objects) == []


def pod_of(objects: list[dict[str, Any]]) -> dict[str, Any]:
    pod: dict[str, Any] = one(objects, "Deployment")["spec"]["template"]["spec"]
    return pod


def container_of(objects: list[dict[str, Any]]) -> dict[str, Any]:
    container: dict[str, Any] = pod_of(objects)["containers"][0]
    return container


def role_of(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rules: list[dict[str, Any]] = one(objects, "Role")["rules"]
    return rules


MUTATIONS = {
    "runAsNonRoot must be true": lambda o: pod_of(o)["securityContext"].pop("runAsNonRoot"),
    "runAsUser must not be 0": lambda o: pod_of(o)["securityContext"].update(runAsUser=0),
    "seccompProfile must be RuntimeDefault": lambda o: pod_of(o)["securityContext"].pop("seccompProfile"),
    "readOnlyRootFilesystem must be True": lambda o: container_of(o)["securityContext"].pop("readOnlyRootFilesystem"),
    "allowPrivilegeEscalation must be False": lambda o: container_of(o)["securityContext"].update(
        allowPrivilegeEscalation=True
    ),
    "capabilities must be": lambda o: container_of(o)["securityContext"]["capabilities"].update(add=["NET_RAW"]),
    "resources.limits.memory must be set": lambda o: container_of(o)["resources"].pop("limits"),
    "livenessProbe is missing": lambda o: container_of(o).pop("livenessProbe"),
    "must have a tag": lambda o: container_of(o).update(image="registry:5000/pdd-operator"),
    "not latest": lambda o: container_of(o).update(image="pdd-operator:latest"),
    "secrets must be files": lambda o: container_of(o)["env"].append({"name": "API_TOKEN", "value": "x"}),
    "hostNetwork must not be set": lambda o: pod_of(o).update(hostNetwork=True),
    "is the host's": lambda o: pod_of(o)["volumes"].append({"name": "host", "hostPath": {"path": "/"}}),
    "nothing keeps its replicas apart": lambda o: pod_of(o).pop("affinity"),
    "say whether a token is mounted": lambda o: pod_of(o).pop("automountServiceAccountToken"),
    "selector does not match its own pods": lambda o: one(o, "Deployment")["spec"]["selector"]["matchLabels"].update(
        x="y"
    ),
    "it must be rolled": lambda o: one(o, "Deployment")["spec"]["strategy"].update(type="Recreate"),
    "alphabetical": lambda o: role_of(o)[0]["verbs"].extend(["watch", "list"]),
    "must not be granted": lambda o: role_of(o)[0]["verbs"].insert(0, "*"),
    "['create'] on ['pods/exec'] must not": lambda o: role_of(o)[0].update(resources=["pods/exec"]),
    "nothing but create": lambda o: role_of(o).append({"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}),
    "selects no pod of the release": lambda o: one(o, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"].update(
        x="y"
    ),
    "there is no Role": lambda o: one(o, "RoleBinding")["roleRef"].update(name="nobody"),
    "is not the operator's account": lambda o: one(o, "RoleBinding")["subjects"][0].update(name="default"),
    "longer than 63": lambda o: one(o, "Role")["metadata"].update(name="x" * 64),
    "if and only if its kind has one": lambda o: one(o, "Deployment")["metadata"].pop("namespace"),
    "lacks the labels helm.sh/chart": lambda o: one(o, "Deployment")["metadata"]["labels"].pop("helm.sh/chart"),
    ".spec.replicas is null": lambda o: one(o, "PodDisruptionBudget")["spec"].update(replicas=None),
}


@pytest.mark.parametrize("problem", MUTATIONS)
def test_each_check_finds_what_it_is_for(chart: Chart, problem: str) -> None:
    objects = copy.deepcopy(chart.objects())
    MUTATIONS[problem](objects)
    assert [text for text in problems(objects) if problem in text], problems(objects)


def test_two_replicas_without_a_lease_are_refused(chart: Chart) -> None:
    with pytest.raises(HelmError, match="two operators would both write"):
        chart.text("--set", "leaderElection.enabled=false")


def test_renewing_too_seldom_is_refused(chart: Chart) -> None:
    with pytest.raises(HelmError, match="at most a third of"):
        chart.text("--set", "leaderElection.renewSeconds=6")


def test_an_account_from_elsewhere_needs_a_name(chart: Chart) -> None:
    with pytest.raises(HelmError, match=r"serviceAccount\.name must be set"):
        chart.text("--set", "serviceAccount.create=false")


def test_a_registry_before_a_registry_is_refused(chart: Chart) -> None:
    with pytest.raises(HelmError, match=r"pdd-router names a registry, and there is other\.example"):
        chart.text(
            "--set",
            "images.registry=other.example",
            "--set",
            "images.router.repository=registry.example:5000/pdd-router",
        )


@pytest.mark.parametrize("cut", ["a" * 50 + "-bc", "a" * 49 + "--bc", "a" * 48 + "---bc"])
def test_a_name_that_is_cut_does_not_end_in_a_hyphen(chart: Chart, cut: str) -> None:
    objects = chart.objects("--set", f"fullnameOverride={cut}", "--set", "crds.enabled=false")
    assert one(objects, "Deployment")["metadata"]["name"] == cut[: cut.index("-")]
    long = "b" * 55 + "-" * 6 + "cd"
    labels = one(chart.objects("--set", f"nameOverride={long}"), "Deployment")["spec"]["selector"]["matchLabels"]
    assert labels["app.kubernetes.io/name"] == long
    assert all(not name.endswith("-") for item in objects for name in [item["metadata"]["name"]])


def test_an_engine_image_needs_a_tag(chart: Chart) -> None:
    with pytest.raises(HelmError, match="must have a tag or a digest"):
        chart.text("--set", "images.engine.neuron.repository=vllm-neuron")


def test_an_old_cluster_is_refused(chart: Chart) -> None:
    with pytest.raises(HelmError, match="kubeVersion"):
        chart.text("--kube-version", "1.30.0")


ODD = {  # names that YAML takes for something else where nobody quotes them
    "a number": ("123", "456"),
    "a boolean": ("true", "no"),
    "a float": ("1e3", "0x1f"),
    "nothing": ("null", "y"),
}
NAMED = ["nameOverride", "fullnameOverride", "serviceAccount.name", "priorityClassName"]
ALL_ON = ["monitoring.podMonitor.enabled", "monitoring.serviceMonitor.enabled", "networkPolicy.enabled"]


@pytest.mark.parametrize("scope", ["cluster", "namespaces"])
@pytest.mark.parametrize("odd", ODD)
def test_a_name_that_looks_like_something_else_stays_a_name(chart: Chart, odd: str, scope: str) -> None:
    release, namespace = ODD[odd]
    names = {**dict.fromkeys(NAMED, release), "images.pullSecrets[0]": release, "podLabels.own": release}
    if scope == "namespaces":
        names["watchNamespaces[0]"] = namespace
    strings = [part for key, value in names.items() for part in ("--set-string", f"{key}={value}")]
    switches = [part for key in ALL_ON for part in ("--set", f"{key}=true")]
    objects = chart.objects(*strings, *switches, release=release, namespace=namespace)
    objects = [item for item in objects if item["kind"] != "CustomResourceDefinition"]
    kinds = {item["kind"] for item in objects}
    assert kinds >= {"PodMonitor", "ServiceMonitor", "NetworkPolicy", "PodDisruptionBudget", "Role", "RoleBinding"}
    for item in objects:
        if not item["apiVersion"].startswith(FOREIGN_GROUPS):
            kubernetes_validate.validate(item, KUBERNETES, strict=True)
        assert all(type(value) is str for value in names_of(item)), item
    assert problems(objects) == []
    settings = environment(objects)
    assert settings["PDD_OPERATOR_POD_LABELS"] == (
        f"app.kubernetes.io/component=operator,app.kubernetes.io/instance={release},app.kubernetes.io/name={release}"
    )
    assert settings["PDD_OPERATOR_LEASE_NAME"] == release


@pytest.mark.parametrize("release", ["123", "true"])
def test_a_release_of_such_a_name_needs_no_overrides(chart: Chart, release: str) -> None:
    objects = chart.objects("--set", "crds.enabled=false", release=release, namespace="2024-01-01")
    assert f"instance={release}," in environment(objects)["PDD_OPERATOR_POD_LABELS"]
    assert all(type(value) is str for item in objects for value in names_of(item))


def names_of(value: Any) -> list[Any]:
    """What stands where Kubernetes wants a name, or the key or value of a label."""
    if isinstance(value, list):
        return [found for part in value for found in names_of(part)]
    if not isinstance(value, dict):
        return []
    own = [
        part for key, part in value.items() if key in ("name", "namespace", "serviceAccountName", "priorityClassName")
    ]
    for key in ("labels", "matchLabels"):
        if isinstance(value.get(key), dict):
            own += [part for pair in value[key].items() for part in pair]
    own += value.get("resourceNames") or []
    return [part for part in own if not isinstance(part, dict)] + [
        found for part in value.values() for found in names_of(part)
    ]


def test_two_releases_of_one_name_do_not_meet(chart: Chart) -> None:
    def cluster_names(namespace: str) -> set[str]:
        objects = chart.objects("--set", "crds.enabled=false", namespace=namespace)
        return {item["metadata"]["name"] for item in objects if "namespace" not in item["metadata"]}

    assert cluster_names("one") and not cluster_names("one") & cluster_names("two")


def test_namespaced_means_no_cluster_role_for_the_operator(chart: Chart) -> None:
    objects = chart.objects("--set", "watchNamespaces={agents,research}")
    assert not [item for item in objects if item["kind"] == "ClusterRoleBinding"]
    roles = [item for item in objects if item["kind"] == "Role" and item["metadata"]["namespace"] != "pdd-system"]
    assert [role["metadata"]["namespace"] for role in roles] == ["agents", "research"]
    assert roles[0]["rules"] == roles[1]["rules"] == cluster_role(chart.objects())["rules"]


def cluster_role(objects: list[dict[str, Any]]) -> dict[str, Any]:
    name = one(objects, "ClusterRoleBinding")["roleRef"]["name"]
    (role,) = (item for item in objects if item["kind"] == "ClusterRole" and item["metadata"]["name"] == name)
    return role


def test_the_notes_name_three_commands_that_fit_the_release(chart: Chart) -> None:
    text = chart.run(
        "install", "pdd", str(chart.folder), "--dry-run=client", "--namespace", "pdd-system", "--set", "watchNamespaces={agents}"
    )  # fmt: skip
    notes = text.split("NOTES:")[1]
    commands = [line.strip() for line in notes.splitlines() if line.strip().startswith("kubectl ")]
    assert len(commands) == 3
    assert "deployment/pdd-pdd-operator --namespace pdd-system" in commands[0]
    assert all("--namespace agents" in command for command in commands[1:])
    sample = commands[1].split("--filename ")[1]
    assert (FOLDER.parents[1] / sample).is_file()


def test_the_guide_names_every_right(chart: Chart) -> None:
    """Those in the namespaces that are watched by their file, those on the lease in words."""
    guide = (FOLDER.parents[1] / "docs" / "install.md").read_text(encoding="utf-8")
    (paragraph,) = (text for text in guide.split("\n\n") if text.startswith("What the operator may do"))
    rules = role_of(chart.objects())
    assert "_rules.tpl" in paragraph and len(rules) == 2
    for word in {text for rule in rules for key in ("apiGroups", "resources", "verbs") for text in rule[key]}:
        assert word in paragraph
    (rbac,) = (
        line for line in (FOLDER / "values.yaml").read_text(encoding="utf-8").splitlines() if "_rules.tpl" in line
    )
    assert "leases (create, get, update)" in rbac
