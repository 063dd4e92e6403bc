"""What the suite measures with, tried without engines: an instrument that cannot tell right from wrong would pass everything."""

import json
import struct
from pathlib import Path

import pytest

from pdd_e2e.engines.answers import Answer, answer_of_body, answer_of_stream, apart, check_same
from pdd_e2e.engines.derived_model import Tensor, read_tensors, write_tensors
from pdd_e2e.engines.even_heads import with_even_heads
from pdd_e2e.engines.held import Holdings
from pdd_e2e.engines.small_model import small_model


def an_answer(tokens: tuple[int, ...] = (5, 6), first: float = -1.0) -> Answer:
    return Answer((1, 2), tokens, "", ({"a": first, "b": -2.0}, {"c": -0.1}), None)


def test_apart_counts_tokens_that_only_one_side_lists() -> None:
    assert apart({"a": -1.0, "b": -2.0}, {"a": -1.0, "b": -2.5}) == 0.5
    assert apart({"a": -1.0, "b": -2.0}, {"a": -1.0, "c": -2.0}) == 0.0  # b and c may well be as likely as each other
    assert apart({"a": -1.0, "b": -2.0}, {"c": -1.0, "b": -9.0}) >= 7.0


@pytest.mark.parametrize("other", [an_answer(tokens=(5, 7)), an_answer(first=-1.002)], ids=["token", "log-probability"])
def test_check_same_sees_a_difference(other: Answer) -> None:
    check_same(an_answer(first=-1.0005), an_answer())
    with pytest.raises(AssertionError, match="not as computed afresh"):
        check_same(other, an_answer())


def test_streamed_and_whole_answers_read_alike() -> None:
    top = {"top_logprobs": [{"token": "token_id:7", "logprob": -0.5}]}
    whole = {
        "prompt_token_ids": [1, 2],
        "choices": [{"message": {"content": "hi"}, "token_ids": [7], "logprobs": {"content": [top]}}],
        "kv_transfer_params": {"claim": {"outcome": "Read"}},
    }
    parts = [
        {"prompt_token_ids": [1, 2], "choices": [{"delta": {"role": "assistant", "content": ""}}]},
        {"choices": [{"delta": {"content": "hi"}, "token_ids": [7], "logprobs": {"content": [top]}}]},
        {"choices": [], "kv_transfer_params": {"claim": {"outcome": "Read"}}},
    ]
    lines = [b"data: " + json.dumps(part).encode() + b"\n" for part in parts]
    assert answer_of_stream([*lines, b"\n", b"data: [DONE]\n"]) == answer_of_body(whole)
    with pytest.raises(AssertionError, match="DONE"):
        answer_of_stream(lines)


def test_holdings_are_whole_blocks_of_one_tenant_and_leave_a_token() -> None:
    holdings = Holdings()
    holdings.computed("d", "one", range(60), [100, 101, 102, 103, 104])
    longer = [*range(60), 100, 101, 102, 103, 104, 105]
    assert holdings.tokens("d", "one", longer) == 64
    assert holdings.tokens("d", "one", longer[:64]) == 32
    assert holdings.tokens("d", "one", [*range(33), 7]) == 32
    assert holdings.tokens("d", "other", longer) == 0
    holdings.emptied("d")
    assert holdings.tokens("d", "one", longer) == 0


def test_a_small_model_keeps_the_named_layers(tmp_path: Path) -> None:
    source = tmp_path / "whole"
    source.mkdir()
    (source / "config.json").write_text(json.dumps({"num_hidden_layers": 3, "hidden_size": 2}))
    (source / "tokenizer.json").write_text("{}")
    names = ["model.embed_tokens.weight", *(f"model.layers.{layer}.w" for layer in range(3)), "model.norm.weight"]
    header = {
        name: {"dtype": "F32", "shape": [1], "data_offsets": [4 * place, 4 * place + 4]}
        for place, name in enumerate(names)
    }
    encoded = json.dumps(header | {"__metadata__": {"format": "pt"}}).encode()
    (source / "model.safetensors").write_bytes(
        struct.pack("<Q", len(encoded)) + encoded + struct.pack("<5f", *range(5))
    )

    target = small_model(source, tmp_path / "small", (0, 2))

    data = (target / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    kept = json.loads(data[8 : 8 + length])
    values = {
        name: struct.unpack("<f", data[8 + length + entry["data_offsets"][0] :][:4])[0] for name, entry in kept.items()
    }
    assert values == {
        "model.embed_tokens.weight": 0.0,
        "model.layers.0.w": 1.0,
        "model.layers.1.w": 3.0,
        "model.norm.weight": 4.0,
    }
    assert json.loads((target / "config.json").read_text()) == {"num_hidden_layers": 2, "hidden_size": 2}
    assert (target / "tokenizer.json").exists()
    assert small_model(source, target, (1,)) == target  # made once


def test_a_head_more_gives_the_same_sum(tmp_path: Path) -> None:
    """One layer of one value per head: three query heads, each with a KV head of its own, of which the last is there twice at half the weight."""
    source = tmp_path / "odd"
    source.mkdir()
    config = {"num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 1, "hidden_size": 2}
    (source / "config.json").write_text(json.dumps(config))
    attention = "model.layers.0.self_attn"
    per_head = Tensor("F32", (3, 2), struct.pack("<6f", *range(6)))
    weights = {f"{attention}.{name}_proj.weight": per_head for name in "qkv"}
    weights[f"{attention}.o_proj.weight"] = Tensor("F32", (2, 3), struct.pack("<6f", *range(6)))
    weights["model.norm.weight"] = Tensor("F32", (2,), struct.pack("<2f", 1, 2))
    write_tensors(source / "model.safetensors", weights)

    target = with_even_heads(source, tmp_path / "even")

    wide = read_tensors(target / "model.safetensors")
    for name in "qkv":
        tensor = wide[f"{attention}.{name}_proj.weight"]
        assert tensor.shape == (4, 2)
        assert struct.unpack("<8f", tensor.data) == (0, 1, 2, 3, 4, 5, 4, 5)
    output = wide[f"{attention}.o_proj.weight"]
    assert output.shape == (2, 4)
    assert struct.unpack("<8f", output.data) == (0, 1, 1, 1, 3, 4, 2.5, 2.5)
    assert bytes(wide["model.norm.weight"].data) == weights["model.norm.weight"].data
    changed = json.loads((target / "config.json").read_text())
    assert changed == config | {"num_attention_heads": 4, "num_key_value_heads": 4}
