"""Every rule of the CRD on a real API server: its bad example is refused in its own words, its good one accepted, and Python agrees."""

from __future__ import annotations

import re
from typing import Any

import pytest
from crd import Case, Example, base, crd, examples, manifest, merged, rules_of
from crd_server import CrdServer, Verdict

from pdd_e2e.control_plane.errors import ApiError
from pdd_operator.api.parse import InvalidSpecError, parse_deployment
from pdd_operator.api.rules import check_update

MESSAGES = sorted({rule["message"] for _, rule in rules_of(crd())})
EXAMPLES = examples()


def judge(server: CrdServer, case: Case) -> Verdict:
    if case.before is None:
        return server.judge(case.manifest)
    return server.judge_change(manifest(case.name, case.before), case.manifest)


def python_says(case: Case) -> set[tuple[str, str]]:
    try:
        after = parse_deployment(case.manifest)
    except InvalidSpecError as error:
        return {(problem.field, problem.message) for problem in error.problems}
    if case.before is None:
        return set()
    before = parse_deployment(manifest(case.name, case.before))
    return {(problem.field, problem.message) for problem in check_update(before.spec, after.spec)}


def message_of(example: Example) -> str:
    found = [message for message in MESSAGES if message.startswith(example.rule)]
    assert len(found) == 1, f"{example.rule} is the beginning of {found}"
    return found[0]


def test_each_rule_has_one_example() -> None:
    assert sorted(message_of(example) for example in EXAMPLES) == MESSAGES


def test_each_message_tells_what_the_field_must_be() -> None:
    for path, rule in rules_of(crd()):
        assert re.match(r"`[\w.]+` must ", rule["message"]), rule["message"]
        named = rule["message"].split("`")[1].split(".")[-1]
        assert named in (rule.get("fieldPath", "").split(".")[-1], *path[-2:]), f"{path} does not name {named}"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.rule)
def test_bad_example_is_refused(server: CrdServer, example: Example) -> None:
    verdict = judge(server, example.bad)
    assert verdict.names(example.field, message_of(example)), verdict
    assert set(verdict.causes) == python_says(example.bad)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.rule)
def test_good_example_is_accepted(server: CrdServer, example: Example) -> None:
    verdict = judge(server, example.good)
    assert verdict.accepted, verdict
    assert python_says(example.good) == set()


BAD_ARGUMENTS = {
    "full": ["--kv-transfer-config", "{}"],
    "equals": ["--port=9000"],
    "underscores": ["--kv_transfer_config={}"],
    "mixed": ["--served_model-name", "x"],
    "abbreviated": ["--tensor", "4"],
    "abbreviated-and-underscored": ["--max_model=1"],
    "abbreviated-and-equals": ["--kv-t={}"],
    "part-of-a-value": ["--kv-transfer-config.kv_role=kv_both"],
    "part-appended": ["--speculative-config.methods+", "ngram"],
    "after-others": ["--seed", "1", "--host", "localhost"],
    "short": ["-tp", "4"],
    "short-with-value": ["-n2"],
    "nothing": ["-"],
    "no-flag": ["enforce-eager"],
    "value-first": ["1", "--seed"],
    "end-of-flags": ["--", "x"],
    "blank": ["--port 9000"],
    "tab": ["--port\t9000"],
    "newline": ["--port\n"],
    "negated": ["--no-enable-prefix-caching"],
    "negated-and-abbreviated": ["--no_enable_prefix"],
    "redundant": ["--enable-prefix-caching=true"],
    "seeded-hash": ["--prefix-caching-hash-algo", "xxhash"],
    "seeded-hash-equals": ["--prefix_caching_hash_algo=xxhash_cbor"],
    "key": ["--api-key", "secret"],
    "revision": ["--revision", "main"],
    "dtype": ["--dtype=float16"],
    "length": ["--max-model-len", "1k"],
    "blocks": ["--block-size", "16"],
    "pipeline": ["--pipeline_parallel_size=2"],
    "data": ["--data-parallel-size", "2"],
    "data-of-another-node": ["--data_parallel_address=10.0.0.1"],
    "data-negated": ["--no-data-parallel-hybrid-lb"],
    "context": ["--decode-context-parallel-size", "2"],
    "nodes": ["--nnodes=2"],
    "drafts": ["--speculative_config", "{}"],
    "drafts-of-a-model": ["--spec-model=x"],
    "sleep": ["--enable-sleep-mode"],
    "file": ["--config=flags.yaml"],
    "memory": ["--gpu_memory_utilization=0.5"],
    "memory-by-its-other-name": ["--device-memory-utilization", "0.5"],
    "socket": ["--uds", "/run/socket"],
    "certificate": ["--ssl-certfile", "cert.pem"],
    "offloading": ["--kv-offloading-size=1"],
    "no-numbers": ["--disable_log_stats"],
}
GOOD_ARGUMENTS = [
    "--attention-backend=FLASH_ATTN",
    "--chat-template",
    "/pdd-templates/chat template.jinja",
    '--compilation-config={"mode": 3}',
    "--compilation-config.mode=3",
    "--config-format=hf",
    "--data_type_of_nothing",
    "--default-chat-template-kwargs",
    '{"enable_thinking": false}',
    "--enable-auto-tool-choice",
    "--enable-expert-parallel",
    "--enforce-eager",
    "--generation-config=vllm",
    "--gpu-memory-utilization-of-nothing",
    "--hf-overrides={}",
    "--hf-config-path=x",
    "--kv-cache-dtype-skip-layers=1",
    "--kv-cache-metrics",
    "--kv-events-config={}",
    "--limit-mm-per-prompt={}",
    "--load-format=runai_streamer",
    "--max-num-batched-tokens=8192",
    "--max-num-queued-reqs=64",
    "--model-impl=vllm",
    "--model-loader-extra-config={}",
    "--no-enable-chunked-prefill",
    "--num-gpu-blocks-override=4096",
    "--quantization=fp8",
    "--reasoning-parser=qwen3",
    "--scheduling-policy=priority",
    "--seed",
    "-1",
    "--tokenizer-mode=auto",
    "--tool-call-parser=hermes",
    "--worker-extension-cls=x.Y",
]


@pytest.mark.parametrize("arguments", BAD_ARGUMENTS.values(), ids=BAD_ARGUMENTS.keys())
def test_arguments_that_are_not_the_users(server: CrdServer, arguments: list[str]) -> None:
    """In every spelling that vLLM's parser takes."""
    case = Case("example", merged(base("gpu"), {"engine": {"extraArgs": arguments}}))
    verdict = server.judge(case.manifest)
    assert {field for field, _ in verdict.causes} == {"spec.engine.extraArgs"}
    assert set(verdict.causes) == python_says(case)


def test_arguments_that_are_the_users(server: CrdServer) -> None:
    case = Case("example", merged(base("gpu"), {"engine": {"extraArgs": GOOD_ARGUMENTS}}))
    assert server.judge(case.manifest).accepted
    assert python_says(case) == set()


BAD_NAMES = (
    "PDD_CLAIM_KEY VLLM_NIXL_X VLLM_NEURON_BIDIRECTIONAL_KV UCX_TLS FI_PROVIDER FI_EFA_USE_DEVICE_RDMA NIXL_PLUGIN_DIR "
    + (
        "PYTHONHASHSEED PYTHONPATH PYTHONHOME PYTHONSTARTUP LD_PRELOAD LD_LIBRARY_PATH LD_AUDIT VLLM_PLUGINS VLLM_SERVER_DEV_MODE "
        "VLLM_API_KEY VLLM_HOST_IP VLLM_PORT VLLM_CPU_KVCACHE_SPACE HOME PATH HF_HOME HF_TOKEN HUGGING_FACE_HUB_TOKEN "
        "CUDA_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES NEURON_VISIBLE_DEVICES NEURON_RT_VISIBLE_CORES"
    )
)
GOOD_NAMES = "VLLM_LOGGING_LEVEL VLLM_PLUGINS_OF_NOTHING MY_PATH NIXL_LOG_LEVEL HF_ENDPOINT OMP_NUM_THREADS NCCL_DEBUG"


def test_variables(server: CrdServer) -> None:
    for names, accepted in ((BAD_NAMES, False), (GOOD_NAMES, True)):
        for name in names.split():
            case = Case("example", merged(base("gpu"), {"engine": {"env": [{"name": name, "value": "1"}]}}))
            verdict = server.judge(case.manifest)
            assert verdict.accepted is accepted, name
            assert set(verdict.causes) == python_says(case)


BAD_PATHS = "/ // /pdd /pdd/ /pdd/run //pdd /x/../pdd /./pdd /dev/shm /proc /sys/fs /tmp /tmp/ /x//y /x/."
GOOD_PATHS = "/models /pddx /x/pdd /tmp/x /devices /x/..y /x/"


def test_mounts(server: CrdServer) -> None:
    for paths, accepted in ((BAD_PATHS, False), (GOOD_PATHS, True)):
        for path in paths.split():
            template = {"volumes": [{"name": "x", "emptyDir": {}}], "volumeMounts": [{"name": "x", "mountPath": path}]}
            case = Case("example", merged(base("gpu"), {"router": {"podTemplate": template}}))
            verdict = server.judge(case.manifest)
            assert verdict.accepted is accepted, path
            assert set(verdict.causes) == python_says(case)


@pytest.mark.parametrize("name", ["a", "a-b", "a" * 37])
def test_names_that_fit(server: CrdServer, name: str) -> None:
    assert server.judge(manifest(name, base("gpu"))).accepted


@pytest.mark.parametrize("name", ["a" * 38, "1a", "a.b"])
def test_names_that_overflow(server: CrdServer, name: str) -> None:
    case = Case(name, base("gpu"))
    verdict = server.judge(case.manifest)
    assert {field for field, _ in verdict.causes} == {"metadata.name"}
    assert set(verdict.causes) == python_says(case)


BAD_TEMPLATES: dict[str, dict[str, Any]] = {
    "misspelled-field-of-a-toleration": {"tolerations": [{"opperator": "Exists"}]},
    "seconds-that-are-no-number": {"tolerations": [{"operator": "Exists", "tolerationSeconds": "soon"}]},
    "affinity-of-nothing-known": {"affinity": {"nodeAfinity": {}}},
    "affinity-that-is-text": {"affinity": {"podAffinity": "x"}},
    "spreading-twice": {
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}] * 2
    },
    "spreading-over-a-list": {
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": ["zone"], "whenUnsatisfiable": "DoNotSchedule"}]
    },
    "spreading-without-a-key": {"topologySpreadConstraints": [{"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]},
    "misspelled-kind-of-volume": {"volumes": [{"name": "x", "emptydir": {}}]},
    "path-of-the-node": {"volumes": [{"name": "x", "hostPath": {"path": "/"}}]},
    "network-file-system": {"volumes": [{"name": "x", "nfs": {"server": "x", "path": "/"}}]},
    "token": {"volumes": [{"name": "x", "projected": {"sources": [{"serviceAccountToken": {"path": "x"}}]}}]},
    "path-out-of-the-volume": {
        "volumes": [{"name": "x", "emptyDir": {}}],
        "volumeMounts": [{"name": "x", "mountPath": "/x", "subPath": "a/../../b"}],
    },
    "text-for-a-flag": {
        "volumes": [{"name": "x", "emptyDir": {}}],
        "volumeMounts": [{"name": "x", "mountPath": "/x", "readOnly": "yes"}],
    },
    "mounts-that-spread": {
        "volumes": [{"name": "x", "emptyDir": {}}],
        "volumeMounts": [{"name": "x", "mountPath": "/x", "mountPropagation": "Bidirectional"}],
    },
    "without-seccomp": {"annotations": {"seccomp.security.alpha.kubernetes.io/pod": "unconfined"}},
    "without-seccomp-of-a-container": {"annotations": {"container.seccomp.security.alpha.kubernetes.io/engine": "x"}},
    "another-runtime's-options": {"annotations": {"io.kubernetes.cri-o.userns-mode": "host"}},
}


@pytest.mark.parametrize("template", BAD_TEMPLATES.values(), ids=BAD_TEMPLATES.keys())
def test_parts_of_pods_that_no_pod_may_have(server: CrdServer, template: dict[str, Any]) -> None:
    case = Case("example", merged(base("gpu"), {"prefill": {"podTemplate": template}}))
    assert not server.judge(case.manifest).accepted
    assert python_says(case)


def test_what_is_not_known_is_never_stored(server: CrdServer) -> None:
    """Of a client that asks for no strict validation."""
    template = {"tolerations": [{"operator": "Exists", "opperator": "x"}]}
    body = manifest("example", merged(base("gpu"), {"prefill": {"podTemplate": template}}))
    stored = server.api.create(server.path, body, dryRun="All", fieldValidation="Ignore")
    assert stored["spec"]["prefill"]["podTemplate"]["tolerations"] == [{"operator": "Exists"}]

    body["spec"]["prefill"]["podTemplate"] = BAD_TEMPLATES["path-of-the-node"]
    with pytest.raises(ApiError, match="`volumes` must have exactly one of"):
        server.api.create(server.path, body, dryRun="All", fieldValidation="Ignore")


BAD_QUANTITIES = {
    "cpu": "0.1m 0.0001 1k 1e3 -1 9999999 m",
    "memory": "1.5 0.1Ki 0.3Mi 1.2345k 100m 1n 1u 1E 1P 9999999Ti 10000000000Gi -1 1e3",
}
GOOD_QUANTITIES = {
    "cpu": "0 1 007 0.001 1m 1.5 1500m 999999",
    "memory": "0 1 1.5Gi 0.25Ki 1.2k 64Gi 67108864Ki 999999Ti",
}


@pytest.mark.parametrize("name", ["cpu", "memory"])
def test_quantities(server: CrdServer, name: str) -> None:
    """What the API server would store as another number is refused: a comparison with it would never come to rest."""
    for quantities, accepted in ((BAD_QUANTITIES, False), (GOOD_QUANTITIES, True)):
        for text in quantities[name].split():
            resources = {"limits": {name: text}}
            case = Case("example", merged(base("gpu"), {"decode": {"podTemplate": {"resources": resources}}}))
            assert server.judge(case.manifest).accepted is accepted, text
            assert bool(python_says(case)) is not accepted, text


@pytest.mark.parametrize("value", ["0.0001", "0.1m", "100u", "10000000000", "0"])
def test_targets_finer_than_they_are_stored(server: CrdServer, value: str) -> None:
    scaling = {"maxReplicas": 2, "target": {"metric": "QueueWaitSeconds", "value": value}}
    case = Case("example", merged(base("gpu"), {"decode": {"autoscaling": scaling}}))
    assert not server.judge(case.manifest).accepted
    assert python_says(case)


@pytest.mark.parametrize(
    "change",
    [
        {"model": {"servedName": "--api-key=x"}},
        {"model": {"servedName": "-x"}},
        {"model": {"name": "-x"}},
        {"model": {"revision": "--host"}},
        {"transport": {"interface": "-x"}},
    ],
    ids=str,
)
def test_no_value_can_be_taken_for_a_flag(server: CrdServer, change: dict[str, Any]) -> None:
    case = Case("example", merged(base("gpu"), change))
    assert not server.judge(case.manifest).accepted
    assert python_says(case)
