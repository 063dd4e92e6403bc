"""What cannot claim is refused with the reason, and what must be equal makes the group."""

from dataclasses import replace

import pytest

from pdd_connector.claims.support import EngineFacts, revision_group, unsupported

GOOD = EngineFacts(
    vllm_version="0.32.0",
    nixl_connector_version=14,
    model="m",
    model_revision="r",
    model_config="c",
    dtype="float32",
    cache_dtype="auto",
    quantization="None",
    block_size=32,
    hash_block_size=32,
    hash_algorithm="sha256",
    kv_groups=("FullAttentionSpec",),
    tp_size=1,
    revision_group="",
    prefix_caching=True,
    pp_size=1,
    dp_size=1,
    context_parallel_size=1,
    speculative=False,
    sleep_mode=False,
    load_failure_policy="recompute",
    host_buffer=False,
)


def test_an_ordinary_engine_claims() -> None:
    assert unsupported(GOOD) == []
    assert unsupported(replace(GOOD, kv_groups=("MLAAttentionSpec",), tp_size=8)) == []


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"prefix_caching": False}, "`enable_prefix_caching`"),
        ({"hash_algorithm": "xxhash"}, "`prefix_caching_hash_algo`"),
        ({"kv_groups": ("FullAttentionSpec", "SlidingWindowSpec")}, "SlidingWindowSpec"),
        ({"kv_groups": ("SlidingWindowSpec",)}, "SlidingWindowSpec"),
        ({"kv_groups": ("MambaSpec",)}, "MambaSpec"),
        ({"kv_groups": ()}, "none"),
        ({"hash_block_size": 16}, "`hash_block_size`"),
        ({"pp_size": 2}, "`pipeline_parallel_size`"),
        ({"dp_size": 2}, "`data_parallel_size`"),
        ({"context_parallel_size": 2}, "context_parallel_size`"),
        ({"speculative": True}, "`speculative_config`"),
        ({"load_failure_policy": "fail"}, "`kv_load_failure_policy`"),
        ({"host_buffer": True}, "`kv_buffer_device`"),
        ({"sleep_mode": True}, "`enable_sleep_mode`"),
    ],
)
def test_each_reason_names_what_must_change(change: dict[str, object], names: str) -> None:
    (reason,) = unsupported(replace(GOOD, **change))  # type: ignore[arg-type]  # a table of fields
    assert names in reason
    assert "must" in reason


@pytest.mark.parametrize(
    "change",
    [
        {"vllm_version": "0.33.0"},
        {"nixl_connector_version": 15},
        {"model": "n"},
        {"model_revision": "s"},
        {"model_config": "yarn"},
        {"dtype": "bfloat16"},
        {"cache_dtype": "fp8"},
        {"quantization": "fp8"},
        {"block_size": 64},
        {"hash_algorithm": "sha256_cbor"},
        {"tp_size": 2},
        {"revision_group": "rev-2"},
    ],
)
def test_engines_that_differ_are_of_different_groups(change: dict[str, object]) -> None:
    assert revision_group(replace(GOOD, **change)) != revision_group(GOOD)  # type: ignore[arg-type]  # a table of fields


def test_what_may_differ_between_prefill_and_decode_does_not_split_the_group() -> None:
    assert revision_group(replace(GOOD, host_buffer=True)) == revision_group(GOOD)
