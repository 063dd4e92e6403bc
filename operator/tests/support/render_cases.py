"""What tests of rendering share: settings, the named samples, and a generator of valid specs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from pdd_operator.api.objects import Manifest, Rendered
from pdd_operator.api.v1alpha1 import PDDeployment
from pdd_operator.render import render
from pdd_operator.render.inputs import ClusterFacts, Images, Platform, RenderSettings, Replicas

SETTINGS: Final = RenderSettings(
    images=Images(
        router="registry.example.com/pdserve/router:0.1.0",
        connector="registry.example.com/pdserve/connector:0.1.0",
        engine={platform: f"registry.example.com/vllm-{platform.lower()}:0.32.0" for platform in Platform},
    ),
    operator_namespace="pdd-system",
    operator_labels={"app.kubernetes.io/name": "pdd-operator"},
)
EVERY_KIND: Final = ClusterFacts(pod_monitors=True, grafana_dashboards=True)
UID: Final = "6f9d3c1e-0000-4000-8000-000000000001"

_SAMPLES: Final = Path(__file__).parents[1] / "snapshots" / "samples"
SAMPLE_NAMES: Final = tuple(sorted(path.stem for path in _SAMPLES.glob("*.yaml")))


def sample_object(name: str) -> dict[str, Any]:
    """The file as YAML gives it."""
    loaded: dict[str, Any] = yaml.safe_load((_SAMPLES / f"{name}.yaml").read_text(encoding="utf-8"))
    return loaded


def sample(name: str) -> PDDeployment:
    return parsed(sample_object(name))


def parsed(data: dict[str, Any]) -> PDDeployment:
    return PDDeployment.model_validate(data | {"metadata": data["metadata"] | {"uid": UID}})


def deployment(spec: dict[str, Any] | None = None, **sections: Any) -> PDDeployment:
    """A valid object on p5en; ``sections`` replace whole parts of its spec."""
    role = {"accelerator": {"instanceType": "p5en.48xlarge", "count": 8}, "tensorParallelSize": 8}
    whole = {"model": {"name": "Qwen/Qwen3-32B"}, "prefill": role, "decode": role} | (spec or {}) | sections
    return parsed({"metadata": {"name": "chat", "namespace": "agents"}, "spec": whole})


def replicas_of(target: PDDeployment) -> Replicas:
    """As the reconciler gives them: None where an autoscaler decides."""
    spec = target.spec
    return Replicas(
        prefill=None if spec.prefill.autoscaling else spec.prefill.replicas,
        decode=None if spec.decode.autoscaling else spec.decode.replicas,
    )


def rendered(target: PDDeployment, cluster: ClusterFacts = EVERY_KIND) -> Rendered:
    return render(target, SETTINGS, cluster, replicas_of(target))


def find(result: Rendered, kind: str, name: str) -> Manifest:
    """The object whose name begins so: a revision group may follow."""
    found = [
        item
        for item in result.manifests
        if item["kind"] == kind and item["metadata"]["name"] in {name, f"{name}-{result.revision}"}
    ]
    assert len(found) == 1, (kind, name, [item["metadata"]["name"] for item in result.manifests])
    return found[0]


def pod_specs(result: Rendered) -> list[tuple[Manifest, dict[str, Any]]]:
    """Every object that makes pods, with the spec of its pods."""
    kinds = ("StatefulSet", "Deployment")
    return [(item, item["spec"]["template"]["spec"]) for item in result.manifests if item["kind"] in kinds]


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod.get("initContainers", []), *pod["containers"]]


_GPU_INSTANCES: Final = {"p5en.48xlarge": 8, "p5.48xlarge": 8, "p4d.24xlarge": 8, "g6e.12xlarge": 4, "p5.4xlarge": 1}
_TEXT: Final = st.text(
    st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters="\x7f"), min_size=1, max_size=40
)
_NAME: Final = st.from_regex(r"\A[a-z]([-a-z0-9]{0,35}[a-z0-9])?\Z")
_LABELS: Final = st.dictionaries(st.sampled_from(["team", "example.com/pool", "tier"]), st.sampled_from(["a", "b"]))


@st.composite
def _pod_template(draw: Any) -> dict[str, Any]:
    volumes = draw(st.sampled_from([[], [{"name": "scratch", "emptyDir": {}}]]))
    mounts = [{"name": "scratch", "mountPath": "/scratch"}] if volumes else []
    memory = draw(st.sampled_from([{}, {"requests": {"cpu": "2"}}, {"limits": {"memory": "8Gi", "cpu": "1500m"}}]))
    anti = {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone", "labelSelector": {}}]}
    return {
        "labels": draw(_LABELS),
        "annotations": draw(_LABELS),
        "nodeSelector": draw(_LABELS),
        "tolerations": draw(st.sampled_from([[], [{"operator": "Exists"}]])),
        "affinity": draw(st.sampled_from([{}, {"podAntiAffinity": anti}, {"nodeAffinity": {}}])),
        "resources": memory,
        "volumes": volumes,
        "volumeMounts": mounts,
    }


@st.composite
def _role(draw: Any, accelerator: dict[str, Any], tensor_parallel: int) -> dict[str, Any]:
    scaled = {"maxReplicas": 4, "target": {"metric": "CPUUtilization", "value": "60"}}
    role = {
        "accelerator": accelerator,
        "tensorParallelSize": tensor_parallel,
        "podTemplate": draw(_pod_template()),
    }
    if draw(st.booleans()):
        return role | {"autoscaling": scaled}
    return role | {"replicas": draw(st.integers(0, 256))}


@st.composite
def _hardware(draw: Any) -> dict[str, Any]:
    """Accelerator, transport and what follows from them."""
    platform = draw(st.sampled_from(["GPU", "GPU", "CPU", "Neuron"]))
    if platform == "CPU":
        size = draw(st.integers(1, 8))
        return {
            "roles": ({"type": "CPU"}, size),
            "transport": {"backend": "Socket"},
            "mechanisms": ["Claim", "Retain"],
        }
    if platform == "Neuron":
        count = draw(st.sampled_from([1, 4, 16]))
        accelerator = {"instanceType": "trn2.48xlarge", "count": count}
        return {"roles": (accelerator, count * 4), "transport": {}, "mechanisms": ["Retain"]}
    instance = draw(st.sampled_from(sorted(_GPU_INSTANCES)))
    count = draw(st.integers(1, _GPU_INSTANCES[instance]))
    backend = draw(st.sampled_from(["EFA", "Socket"]))
    transport = {"backend": backend, "fallback": draw(st.sampled_from(["Refuse", "Socket"]))}
    if backend == "EFA":
        transport["privileges"] = draw(st.sampled_from(["IPCLock", "Privileged"]))
    accelerator = {"instanceType": instance, "count": count}
    return {"roles": (accelerator, count), "transport": transport, "mechanisms": ["Claim", "Retain"]}


@st.composite
def _model(draw: Any) -> dict[str, Any]:
    source = draw(
        st.sampled_from(
            [
                {"huggingFace": {}},
                {"huggingFace": {"tokenSecretName": "token"}},
                {"persistentVolumeClaim": {"claimName": "weights", "path": "a b/c"}},
                {"image": {"reference": "registry.example.com/model:1"}},
            ]
        )
    )
    served = draw(st.none() | st.from_regex(r"\A[^\s-]\S{0,39}\Z").filter(lambda text: text.isprintable()))
    model = {
        "name": "owner/model",
        "source": source,
        "servedName": served,
        "revision": draw(st.none() | st.just("abc")),
    }
    return {key: value for key, value in model.items() if value is not None}


def deployments() -> SearchStrategy[PDDeployment]:
    """Objects that the CRD accepts, over every platform, transport, source and mechanism."""
    return _deployments().map(parsed)


@st.composite
def _deployments(draw: Any) -> dict[str, Any]:
    hardware = draw(_hardware())
    accelerator, size = hardware["roles"]
    mechanism = draw(st.sampled_from(hardware["mechanisms"]))
    args = draw(st.lists(_TEXT, max_size=4))
    env = draw(st.lists(st.sampled_from(["A", "VLLM_LOGGING_LEVEL", "USER"]), unique=True))
    return {
        "metadata": {"name": draw(_NAME), "namespace": "agents"},
        "spec": {
            "model": draw(_model()),
            "engine": {
                "blockSize": draw(st.sampled_from([32, 64, 128])),
                "extraArgs": [f"--x={text}" for text in args],
                "env": [{"name": name, "value": draw(_TEXT)} for name in env],
                "drainTimeoutSeconds": draw(st.integers(0, 3600)),
                "trustRemoteCode": draw(st.booleans()),
            },
            "prefill": draw(_role(accelerator, size)),
            "decode": draw(_role(accelerator, size)),
            "transport": hardware["transport"],
            "kvTransfer": {
                "mechanism": mechanism,
                "direction": draw(st.sampled_from(["Bidirectional", "PrefillToDecode"])),
            },
            "router": {
                "replicas": draw(st.integers(0, 64)),
                "podTemplate": draw(_pod_template()),
                "authentication": draw(st.sampled_from([{}, {"apiKeysSecretName": "keys"}])),
                "service": {"type": draw(st.sampled_from(["ClusterIP", "NodePort", "LoadBalancer"]))},
            },
            "networkPolicy": {"mode": draw(st.sampled_from(["Enabled", "Disabled"]))},
        },
    }
