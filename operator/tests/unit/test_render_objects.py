"""Objects one by one: what the design decided, each with what it would look like otherwise."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import render_cases as cases

from pdd_connector.kv_transfer_config.build import PairSettings, build_kv_transfer_config
from pdd_connector.kv_transfer_config.build import Role as ConnectorRole
from pdd_connector.kv_transfer_config.facts import Platform as ConnectorPlatform
from pdd_connector.settings import ClaimSettings, ConnectorSettings, Direction, Mechanism, RetainSettings
from pdd_operator.api.accelerators import INSTANCE_TYPES
from pdd_operator.api.labels import Component
from pdd_operator.api.names import ObjectRef
from pdd_operator.api.parse import InvalidSpecError
from pdd_operator.api.v1alpha1 import Backend, PDDeployment
from pdd_operator.render import UnsupportedError, engine_command, render
from pdd_operator.render.catalog import Platform, platform_of, share_of
from pdd_operator.render.inputs import ClusterFacts, Replicas
from pdd_operator.render.kv_transfer import backends_of, kv_transfer_config

OWN = [name for name in cases.SAMPLE_NAMES if platform_of(cases.sample(name).spec.prefill) is not Platform.NEURON]


@pytest.mark.parametrize("name", OWN)
def test_kv_transfer_configs_equal_the_connectors_own_builder(name: str) -> None:
    spec = cases.sample(name).spec
    transfer = spec.kv_transfer
    for backend in backends_of(spec):
        settings = ConnectorSettings(
            mechanism=Mechanism(transfer.mechanism.value),
            direction=Direction(transfer.direction.value),
            recompute_threshold_tokens=transfer.recompute_threshold_tokens,
            revision_group="abc123",
            backends=("LIBFABRIC",) if backend is Backend.EFA else ("UCX",),
            claim=ClaimSettings(
                timeout_milliseconds=transfer.claim.timeout_milliseconds,
                hold_seconds=transfer.claim.hold_seconds,
                max_owners_asked=transfer.claim.max_owners_asked,
                max_percent_of_blocks=transfer.claim.max_percent_of_blocks,
                read_timeout_milliseconds=transfer.read_timeout_milliseconds,
            ),
            retain=RetainSettings(
                decoder_blocks_ttl_seconds=transfer.retain.decoder_blocks_ttl_seconds,
                lease_seconds=transfer.retain.lease_seconds,
                max_percent_of_blocks=transfer.retain.max_percent_of_blocks,
            ),
        )
        on_cpu = platform_of(spec.prefill) is Platform.CPU
        pair = PairSettings(settings=settings, platform=ConnectorPlatform.CPU if on_cpu else ConnectorPlatform.CUDA)
        for component, role in ((Component.PREFILL, ConnectorRole.PREFILL), (Component.DECODE, ConnectorRole.DECODE)):
            ours = kv_transfer_config(spec, "abc123", component, backend)
            assert json.dumps(ours) == json.dumps(build_kv_transfer_config(pair, role))


def test_neuron_has_upstreams_connector_and_keys_only() -> None:
    spec = cases.sample("trn2-retain").spec
    config = kv_transfer_config(spec, "abc123", Component.PREFILL, Backend.EFA)
    assert (config["kv_connector"], config["kv_buffer_device"]) == ("NeuronNixlConnector", "cuda")
    assert "kv_connector_module_path" not in config
    assert config["kv_connector_extra_config"] == {
        "backends": ["LIBFABRIC"],
        "bidirectional_kv_xfer": True,
        "kv_recompute_threshold": 64,
        "kv_lease_duration": 300,
        "decoder_kv_blocks_ttl": 480,
        "enforce_handshake_compat": True,
    }
    pod = engine_pod(cases.sample("trn2-retain"))
    assert [item["name"] for item in pod["initContainers"]] == ["preflight"]
    assert env_of(pod)["VLLM_NEURON_BIDIRECTIONAL_KV"] == "1"
    assert "PYTHONPATH" not in env_of(pod)


def engine_pod(target: PDDeployment, role: str = "prefill") -> dict[str, Any]:
    manifest = cases.find(cases.rendered(target), "StatefulSet", f"{target.metadata.name}-{role}")
    pod: dict[str, Any] = manifest["spec"]["template"]["spec"]
    return pod


def env_of(pod: dict[str, Any]) -> dict[str, Any]:
    return {item["name"]: item.get("value", item.get("valueFrom")) for item in pod["containers"][0]["env"]}


SHARES = {
    # instance, count: GPUs, EFA, huge pages, cpu, memory. EFA per accelerator: AWS's table of instance types.
    ("p5en.48xlarge", 8): ("8", "16", "5120Mi", "163200m", "1740Gi"),
    ("p5en.48xlarge", 4): ("4", "8", "5120Mi", "81600m", "870Gi"),
    ("p5en.48xlarge", 1): ("1", "2", "1282Mi", "20400m", "217Gi"),
    ("p5.48xlarge", 8): ("8", "32", "5120Mi", "163200m", "1740Gi"),
    ("p6-b200.48xlarge", 8): ("8", "8", "5120Mi", "163200m", "1740Gi"),
    ("p4d.24xlarge", 8): ("8", "4", "5120Mi", "81600m", "979Gi"),
    ("p4d.24xlarge", 1): ("1", "1", "1282Mi", "10200m", "122Gi"),
    ("g6e.12xlarge", 4): ("4", "1", "5120Mi", "40800m", "326Gi"),
}


@pytest.mark.parametrize("hardware", SHARES)
def test_a_part_of_a_node_gets_its_part_of_everything(hardware: tuple[str, int]) -> None:
    instance, count = hardware
    role = {"accelerator": {"instanceType": instance, "count": count}, "tensorParallelSize": count}
    pod = engine_pod(cases.deployment(prefill=role, decode=role))
    gpus, efa, pages, cpu, memory = SHARES[hardware]
    devices = {"nvidia.com/gpu": gpus, "vpc.amazonaws.com/efa": efa, "hugepages-2Mi": pages}
    preflight, engine = pod["initContainers"][1], pod["containers"][0]
    assert engine["resources"] == {
        "requests": {"cpu": cpu, "memory": memory} | devices,
        "limits": {"memory": memory} | devices,
    }
    assert preflight["resources"] == engine["resources"]
    command = preflight["command"]
    assert command[command.index("--efa-devices") + 1] == efa
    assert f"{command[command.index('--huge-pages-mib') + 1]}Mi" == pages
    assert pod["nodeSelector"] == {"node.kubernetes.io/instance-type": instance}


@pytest.mark.parametrize("name", cases.SAMPLE_NAMES)
def test_pods_of_a_full_node_fit_the_node(name: str) -> None:
    """As many pods as a node has accelerators for must not ask for more than the node has."""
    spec = cases.sample(name).spec
    accelerator = spec.prefill.accelerator
    if accelerator.instance_type is None:
        return
    row = INSTANCE_TYPES[accelerator.instance_type]
    share = share_of(spec.prefill, spec.transport.backend, 0)
    pods = row.accelerators // accelerator.count
    assert pods * int(share.cpu.removesuffix("m")) <= row.vcpus * 1000
    assert pods * share.memory_gib <= row.memory_gib
    assert pods * share.huge_pages_mib <= 5128 * 2
    if share.efa_devices > 1:
        assert pods * share.efa_devices <= row.efa_devices


def test_sockets_ask_for_no_efa_and_no_huge_pages() -> None:
    pod = engine_pod(cases.sample("gpu-sockets"))
    assert set(pod["containers"][0]["resources"]["limits"]) == {"memory", "nvidia.com/gpu"}
    assert "affinity" not in pod
    assert pod["topologySpreadConstraints"][0]["whenUnsatisfiable"] == "ScheduleAnyway"


def test_resources_of_the_user_replace_the_share_but_no_device() -> None:
    role = {"accelerator": {"instanceType": "p5en.48xlarge", "count": 8}, "tensorParallelSize": 8}
    for resources, requests, limits in (
        ({"requests": {"cpu": "4"}}, ("4", "1740Gi"), {"memory": "1740Gi"}),
        ({"requests": {"memory": "1900Gi"}}, ("163200m", "1900Gi"), {"memory": "1900Gi"}),
        ({"limits": {"memory": "64Gi"}}, ("163200m", "64Gi"), {"memory": "64Gi"}),
        (
            {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "2Gi"}},
            ("1", "1Gi"),
            {"cpu": "2", "memory": "2Gi"},
        ),
    ):
        target = cases.deployment(prefill=role | {"podTemplate": {"resources": resources}})
        found = engine_pod(target)["containers"][0]["resources"]
        assert (found["requests"]["cpu"], found["requests"]["memory"]) == requests
        assert {key: found["limits"][key] for key in ("cpu", "memory") if key in found["limits"]} == limits
        assert found["limits"]["nvidia.com/gpu"] == "8"


@pytest.mark.parametrize(
    ("size", "resources", "threads"),
    [(1, {}, "4"), (2, {}, "4"), (2, {"requests": {"cpu": "12"}}, "6"), (4, {"requests": {"cpu": "500m"}}, "1")],
)
def test_cpu_workers_share_the_cores(size: int, resources: dict[str, Any], threads: str) -> None:
    role = {"accelerator": {"type": "CPU"}, "tensorParallelSize": size, "podTemplate": {"resources": resources}}
    pod = engine_pod(cases.deployment(prefill=role, decode=role, transport={"backend": "Socket"}))
    assert env_of(pod)["OMP_NUM_THREADS"] == threads


def test_cpu_workers_have_a_cache_each() -> None:
    for size, memory in ((1, "11Gi"), (4, "20Gi")):
        role = {"accelerator": {"type": "CPU"}, "tensorParallelSize": size}
        target = cases.deployment(
            prefill=role, decode=role, transport={"backend": "Socket"}, engine={"cpuKVCacheGiB": 3}
        )
        resources = engine_pod(target)["containers"][0]["resources"]
        assert resources == {"requests": {"cpu": str(4 * size), "memory": memory}}


def test_efa_engines_of_a_group_share_a_zone_and_no_node() -> None:
    target = cases.sample("pod-template")
    revision = cases.rendered(target).revision
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    for role in ("prefill", "decode"):
        affinity = engine_pod(target, role)["affinity"]
        (zone,) = affinity["podAffinity"][required]
        node, users = affinity["podAntiAffinity"][required]
        assert (zone["topologyKey"], node["topologyKey"]) == ("topology.kubernetes.io/zone", "kubernetes.io/hostname")
        assert zone["labelSelector"] == node["labelSelector"]
        assert zone["labelSelector"]["matchLabels"]["pdserve.io/revision-group"] == revision
        assert users["labelSelector"] == {"matchLabels": {"app": "noisy"}}
        assert "nodeAffinity" in affinity


def test_a_spread_of_the_users_replaces_ours_of_the_same_kind() -> None:
    mine = {"maxSkew": 3, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
    target = cases.deployment(router={"podTemplate": {"topologySpreadConstraints": [mine]}})
    found = cases.find(cases.rendered(target), "Deployment", "chat-router")["spec"]["template"]["spec"]
    keys = [item["topologyKey"] for item in found["topologySpreadConstraints"]]
    assert keys == ["topology.kubernetes.io/zone", "kubernetes.io/hostname"]
    assert found["topologySpreadConstraints"][1] == mine


def test_an_accelerated_node_is_tolerated() -> None:
    keys = {item["key"] for item in engine_pod(cases.sample("trn2-retain"))["tolerations"]}
    assert keys == {"aws.amazon.com/neuron", "aws.amazon.com/efa"}
    assert "tolerations" not in engine_pod(cases.sample("cpu"))


def test_an_autoscaled_role_sends_no_replicas() -> None:
    target = cases.sample("autoscaled")
    result = cases.rendered(target)
    scaled = cases.find(result, "StatefulSet", "autoscaled-prefill")
    assert "replicas" not in scaled["spec"]
    autoscaler = cases.find(result, "HorizontalPodAutoscaler", "autoscaled-prefill")["spec"]
    assert autoscaler["scaleTargetRef"]["name"] == scaled["metadata"]["name"]
    assert autoscaler["metrics"] == [
        {
            "type": "Pods",
            "pods": {
                "metric": {"name": "pdd_queue_wait_seconds"},
                "target": {"type": "AverageValue", "averageValue": "0.5"},
            },
        }
    ]
    # A new group of an autoscaled role is started at the old one's size.
    given = render(target, cases.SETTINGS, ClusterFacts(), Replicas(3, None))
    assert cases.find(given, "StatefulSet", "autoscaled-prefill")["spec"]["replicas"] == 3
    # While the rollout decides on a role's size, no autoscaler works against it.
    scalers = [item["metadata"]["name"] for item in given.manifests if item["kind"] == "HorizontalPodAutoscaler"]
    assert scalers == ["autoscaled-decode"]


@pytest.mark.parametrize(("value", "percent"), [("70", 70), ("0.5", 1), ("70.2", 71), ("1500m", 2)])
def test_cpu_utilization_is_a_whole_percentage(value: str, percent: int) -> None:
    scaling = {"maxReplicas": 2, "target": {"metric": "CPUUtilization", "value": value}}
    role = {"accelerator": {"type": "CPU"}, "autoscaling": scaling}
    result = cases.rendered(cases.deployment(prefill=role, decode=role, transport={"backend": "Socket"}))
    (metric,) = cases.find(result, "HorizontalPodAutoscaler", "chat-decode")["spec"]["metrics"]
    assert metric["resource"]["target"] == {"type": "Utilization", "averageUtilization": percent}


def test_secrets_are_made_once_and_go_with_their_owner() -> None:
    result = cases.rendered(cases.deployment())
    key, salt = result.secrets
    group = ObjectRef("v1", "ConfigMap", f"chat-engine-{result.revision}")
    assert (key.manifest["metadata"]["name"], key.key, key.length_bytes) == (f"chat-claim-{result.revision}", "key", 32)
    assert (key.owner, salt.owner) == (group, None)
    assert (salt.manifest["metadata"]["name"], salt.key) == ("chat-tenant-salt", "salt")
    for secret in result.secrets:
        assert not {"data", "stringData"} & set(secret.manifest)
        assert "ownerReferences" not in secret.manifest["metadata"]
    assert [item.key for item in cases.rendered(cases.sample("retain-on-gpu")).secrets] == ["salt"]


def test_the_router_rolls_when_its_configuration_changes() -> None:
    def template(log_level: str) -> dict[str, Any]:
        result = cases.rendered(cases.deployment(router={"logLevel": log_level}))
        found: dict[str, Any] = cases.find(result, "Deployment", "chat-router")["spec"]["template"]
        return found

    assert template("info") == template("info")
    checksums = {
        template(level)["metadata"]["annotations"]["pdserve.io/config-checksum"] for level in ("info", "debug")
    }
    assert len(checksums) == 2


def test_engines_roll_when_a_newer_operator_writes_other_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def checksums() -> set[str]:
        sets = [item for item in cases.rendered(cases.sample("cpu")).manifests if item["kind"] == "StatefulSet"]
        return {item["spec"]["template"]["metadata"]["annotations"]["pdserve.io/files-checksum"] for item in sets}

    before = checksums()
    assert before == checksums()
    monkeypatch.setattr(engine_command, "_HASH_ALGORITHM", "sha512")
    assert len(before | checksums()) == 2


def test_every_container_of_an_engine_has_what_quotas_and_limit_ranges_ask_for() -> None:
    limits = {"cpu": "8", "memory": "32Gi"}
    role = {"accelerator": {"instanceType": "p5en.48xlarge", "count": 8}, "tensorParallelSize": 8}
    target = cases.deployment(prefill=role | {"podTemplate": {"resources": {"limits": limits}}})
    pod = engine_pod(target)
    for container in (*pod["initContainers"], *pod["containers"]):
        assert container["resources"]["limits"].items() >= limits.items(), container["name"]
        assert container["resources"]["requests"].items() >= limits.items(), container["name"]
    connector = pod["initContainers"][0]
    assert connector["name"] == "connector"
    assert set(connector["resources"]["requests"]) == {"cpu", "memory"}, "devices are the engine's"


def test_what_takes_over_keeps_no_node_of_what_serves_from_being_drained() -> None:
    """A budget for both groups would count engines that are wanted and not there as lost."""
    result = cases.rendered(cases.sample("cpu"))
    budgets = {
        item["metadata"]["name"]: item["spec"] for item in result.manifests if item["kind"] == "PodDisruptionBudget"
    }
    sets = {item["metadata"]["name"]: item["spec"] for item in result.manifests if item["kind"] == "StatefulSet"}
    assert set(budgets) == {*sets, "cpu-router"}
    assert all(budgets[name]["selector"] == sets[name]["selector"] for name in sets)
    assert {budget["unhealthyPodEvictionPolicy"] for budget in budgets.values()} == {"AlwaysAllow"}


def test_the_router_is_given_time_to_stop() -> None:
    target = cases.sample("api-keys")
    result = cases.rendered(target)
    pod = cases.find(result, "Deployment", "api-keys-router")["spec"]["template"]["spec"]
    text = cases.find(result, "ConfigMap", "api-keys-router")["data"]["router.yaml"]
    assert "readyDelaySeconds: 10" in text
    assert "graceSeconds: 300" in text
    assert pod["terminationGracePeriodSeconds"] > 10 + 300


def test_the_model_gets_in_by_every_source() -> None:
    token = engine_pod(cases.sample("hugging-face-token"))
    assert env_of(token)["HF_TOKEN"] == {"secretKeyRef": {"name": "hf-token", "key": "token"}}
    assert env_of(token)["HF_HOME"] == "/pdd/model-cache"
    assert "HF_HUB_OFFLINE" not in env_of(token)
    for name, volume in (
        ("model-on-volume", {"persistentVolumeClaim": {"claimName": "weights", "readOnly": True}}),
        (
            "model-image",
            {"image": {"reference": "registry.example.com/models/glm-5:fp8-3f1c9d2", "pullPolicy": "Always"}},
        ),
    ):
        pod = engine_pod(cases.sample(name))
        assert {"name": "pdd-model", **volume} in pod["volumes"]
        assert {"name": "pdd-model", "mountPath": "/pdd/model", "readOnly": True} in pod["containers"][0][
            "volumeMounts"
        ]
        assert env_of(pod)["HF_HUB_OFFLINE"] == "1"
        assert "HF_TOKEN" not in env_of(pod)


def test_variables_of_the_user_beat_defaults_and_not_what_the_operator_owns() -> None:
    env = [{"name": "USER", "value": "me"}, {"name": "HOME", "value": "/root"}, {"name": "MINE", "value": "1"}]
    found = env_of(engine_pod(cases.deployment(engine={"env": env})))
    assert (found["USER"], found["HOME"], found["MINE"]) == ("me", "/pdd/home", "1")


def test_the_startup_probe_lasts_as_long_as_the_object_says() -> None:
    pod = engine_pod(cases.deployment(engine={"startupTimeoutSeconds": 3605}))
    probe = pod["containers"][0]["startupProbe"]
    assert 3605 <= probe["periodSeconds"] * probe["failureThreshold"] < 3605 + probe["periodSeconds"]
    assert env_of(pod)["VLLM_ENGINE_READY_TIMEOUT_S"] == "3605"


def test_kinds_of_monitoring_are_rendered_only_where_they_are_known() -> None:
    def kinds(cluster: ClusterFacts, name: str = "cpu") -> set[str]:
        found = {item["kind"] for item in cases.rendered(cases.sample(name), cluster).manifests}
        return found & {"PodMonitor", "GrafanaDashboard"}

    assert kinds(ClusterFacts()) == set()
    assert kinds(ClusterFacts(pod_monitors=True)) == {"PodMonitor"}
    assert kinds(ClusterFacts(grafana_dashboards=True)) == {"GrafanaDashboard"}
    assert kinds(cases.EVERY_KIND, "monitoring-never") == set()


def test_a_platform_without_default_image_needs_one_in_the_object() -> None:
    images = replace(cases.SETTINGS.images, engine={Platform.CPU: "registry.example.com/vllm:1"})
    settings = replace(cases.SETTINGS, images=images)
    with pytest.raises(InvalidSpecError, match=r"spec\.engine\.image: `image` must be set: .*images\.engine\.gpu "):
        render(cases.deployment(), settings, ClusterFacts(), Replicas(1, 1))
    named = cases.deployment(engine={"image": "registry.example.com/mine:1"})
    assert render(named, settings, ClusterFacts(), Replicas(1, 1)).manifests


def test_hardware_that_is_not_known_is_refused() -> None:
    role = {"accelerator": {"instanceType": "m7i.large"}}
    with pytest.raises(UnsupportedError, match=r"m7i\.large"):
        cases.rendered(cases.deployment(prefill=role))
    with pytest.raises(UnsupportedError, match="no documented way"):
        cases.rendered(
            cases.deployment(
                transport={"backend": "EFA"},
                **{role: {"accelerator": {"type": "CPU"}} for role in ("prefill", "decode")},
            )
        )
