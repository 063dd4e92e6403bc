"""Valid specifications at random: hypothesis strategies that keep to every rule."""

from __future__ import annotations

from typing import Any

from crd import base, crd, merged, schema_of
from crd_faults import VOLUMES, full
from hypothesis import strategies as st

from pdd_operator.api.accelerators import INSTANCE_TYPES, Platform

_GPUS = [row for row in INSTANCE_TYPES.values() if row.platform is Platform.GPU and row.refused is None]
_SPEC = schema_of(crd())["properties"]["spec"]["properties"]
_KINDS = st.lists(st.sampled_from(sorted(VOLUMES)), min_size=3, max_size=3)
_NAMES = st.from_regex(r"[a-z]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True)


def names() -> st.SearchStrategy[str]:
    return _NAMES


def _integer(schema: dict[str, Any]) -> st.SearchStrategy[int]:
    step = schema.get("multipleOf", 1)
    return st.integers(schema["minimum"] // step, schema["maximum"] // step).map(lambda number: number * step)


def _some(properties: dict[str, Any], *fields: str) -> st.SearchStrategy[dict[str, Any]]:
    """Any of these fields, with any value within their schemas: numbers, words and truth values."""

    def value(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
        if "enum" in schema:
            return st.sampled_from(schema["enum"])
        return st.booleans() if schema["type"] == "boolean" else _integer(schema)

    return st.fixed_dictionaries({}, optional={field: value(properties[field]) for field in fields})


@st.composite
def _accelerators(draw: st.DrawFn, efa: bool) -> dict[str, Any]:
    row = draw(st.sampled_from(_GPUS))
    accelerator = {"instanceType": row.name, "count": draw(st.integers(1, row.accelerators))}
    if efa and draw(st.booleans()):
        accelerator["efaDevices"] = draw(st.integers(1, row.efa_devices))
    return accelerator


@st.composite
def _platforms(draw: st.DrawFn) -> dict[str, Any]:
    """Accelerators, transport and mechanism that go together."""
    platform = draw(st.sampled_from(["gpu", "gpu", "gpu", "cpu", "trainium"]))
    if platform == "cpu":
        size = draw(st.integers(1, 8))
        changes: dict[str, Any] = {role: {"tensorParallelSize": size} for role in ("prefill", "decode")}
        changes["engine"] = {"blockSize": draw(st.sampled_from([32, 64, 96, 128]))}
    elif platform == "trainium":
        count = draw(st.integers(1, 16))
        size = count * draw(st.integers(1, 4))
        accelerator = {"count": count, **draw(st.sampled_from([{}, {"efaDevices": count}, {"efaDevices": 16}]))}
        changes = {role: {"accelerator": accelerator, "tensorParallelSize": size} for role in ("prefill", "decode")}
    else:
        changes = draw(_gpu_roles())
    spec: dict[str, Any] = merged(base(platform), changes)
    return spec


@st.composite
def _gpu_roles(draw: st.DrawFn) -> dict[str, Any]:
    backend = draw(st.sampled_from(["EFA", "Socket"]))
    prefill = draw(_accelerators(backend == "EFA"))
    roles = {role: {"accelerator": prefill, "tensorParallelSize": prefill["count"]} for role in ("prefill", "decode")}
    transport = {"backend": backend, "fallback": draw(st.sampled_from(["Refuse", "Socket"]))}
    if backend == "EFA":
        transport["privileges"] = draw(st.sampled_from(["IPCLock", "Privileged"]))
    mechanism = draw(st.sampled_from(["Claim", "Retain"]))
    return {**roles, "transport": transport, "kvTransfer": {"mechanism": mechanism}}


@st.composite
def _engines(draw: st.DrawFn) -> dict[str, Any]:
    engine = draw(
        _some(_SPEC["engine"]["properties"], "dtype", "maxNumSeqs", "memoryUtilizationPercent", "cpuKVCacheGiB")
    )
    engine |= draw(_some(_SPEC["engine"]["properties"], "trustRemoteCode", "imagePullPolicy", "drainTimeoutSeconds"))
    if draw(st.booleans()):
        engine["maxModelLen"] = draw(st.integers(128, 10_000_000))
    engine["extraArgs"] = draw(
        st.lists(st.sampled_from(["--enforce-eager", "--seed=1", "--load-format=dummy"]), max_size=3)
    )
    variables = draw(st.lists(st.from_regex(r"MY_[A-Z]{1,8}", fullmatch=True), unique=True, max_size=3))
    engine["env"] = [{"name": name, "value": draw(st.text(max_size=20))} for name in variables]
    engine["imagePullSecretNames"] = draw(st.lists(_NAMES, unique=True, max_size=3))
    return engine


@st.composite
def _templates(draw: st.DrawFn) -> dict[str, Any]:
    full_template = full()["router"]["podTemplate"]
    volumes = draw(st.lists(_NAMES.filter(lambda name: not name.startswith("pdd-")), unique=True, max_size=3))
    template: dict[str, Any] = {
        "labels": draw(st.dictionaries(_NAMES, _NAMES, max_size=3)),
        "annotations": draw(st.dictionaries(_NAMES, st.text(max_size=20), max_size=3)),
        "volumes": [{"name": name, kind: VOLUMES[kind]} for name, kind in zip(volumes, draw(_KINDS), strict=False)],
        "volumeMounts": [{"name": name, "mountPath": f"/mnt/{name}", "readOnly": True} for name in volumes],
        "tolerations": draw(st.sampled_from([[], [{"operator": "Exists"}], full_template["tolerations"]])),
        "affinity": draw(st.sampled_from([{}, full_template["affinity"]])),
        "topologySpreadConstraints": draw(st.sampled_from([[], full_template["topologySpreadConstraints"]])),
    }
    if draw(st.booleans()):
        template["resources"] = {"requests": {"cpu": "500m", "memory": "1G"}, "limits": {"memory": "1Gi"}}
    return template


@st.composite
def _roles(draw: st.DrawFn) -> dict[str, Any]:
    role: dict[str, Any] = {"podTemplate": draw(_templates())} if draw(st.booleans()) else {}
    if draw(st.booleans()):
        fewest = draw(st.integers(1, 256))
        target = draw(
            st.sampled_from([("CPUUtilization", "70"), ("QueueWaitSeconds", "0.5"), ("RunningRequests", "500m")])
        )
        role["autoscaling"] = {
            "minReplicas": fewest,
            "maxReplicas": draw(st.integers(fewest, 256)),
            "target": {"metric": target[0], "value": target[1]},
        }
    else:
        role["replicas"] = draw(st.integers(0, 256))
    return role


@st.composite
def _transfers(draw: st.DrawFn) -> dict[str, Any]:
    properties = _SPEC["kvTransfer"]["properties"]
    transfer = draw(_some(properties, "direction", "recomputeThresholdTokens"))
    hold = draw(st.integers(2, 600))
    promised = hold * 980 - 100  # milliseconds
    timeout = draw(st.integers(1, min(10_000, promised - 11)))
    transfer["readTimeoutMilliseconds"] = draw(st.integers(10, promised - timeout - 1))
    transfer["claim"] = {"holdSeconds": hold, "timeoutMilliseconds": timeout}
    transfer["claim"] |= draw(_some(properties["claim"]["properties"], "maxOwnersAsked", "maxPercentOfBlocks"))
    ttl = draw(st.integers(480, 86_400))
    transfer["retain"] = {"decoderBlocksTTLSeconds": ttl, "leaseSeconds": draw(st.integers(8, ttl))}
    return transfer


@st.composite
def _routers(draw: st.DrawFn) -> dict[str, Any]:
    properties = _SPEC["router"]["properties"]
    router = draw(
        _some(properties, "replicas", "onPrefillFailure", "runOnDecodeBelowTokens", "logLevel", "imagePullPolicy")
    )
    router["conversationTTLSeconds"] = draw(st.integers(1, 479))
    router["limits"] = draw(_some(properties["limits"]["properties"], *properties["limits"]["properties"]))
    router["service"] = draw(_some(properties["service"]["properties"], "type", "port"))
    return router


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    """A valid specification; parts are left out at random, so that their defaults are filled in."""
    spec: dict[str, Any] = draw(_platforms())
    parts = {
        "engine": _engines(),
        "prefill": _roles(),
        "decode": _roles(),
        "kvTransfer": _transfers(),
        "router": _routers(),
    }
    for name, part in parts.items():
        if draw(st.booleans()):
            spec = merged(spec, {name: draw(part)})
    sources = [
        {"huggingFace": {"tokenSecretName": "hf"}},
        {"persistentVolumeClaim": {"claimName": "x"}},
        {"image": {"reference": "x:1"}},
    ]
    if draw(st.booleans()):
        spec["model"] = {**spec["model"], "source": draw(st.sampled_from(sources))}
    if draw(st.booleans()):
        spec["rollout"] = {"strategy": draw(st.sampled_from(["Surge", "InPlace"])), "progressDeadlineSeconds": 86_400}
    spec["tenancy"] = {"cacheIsolation": draw(st.sampled_from(["PerTenant", "Shared"]))}
    return spec
