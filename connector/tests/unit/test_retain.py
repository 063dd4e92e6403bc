"""Retain's pure parts: the proof, the cap, and the parameters that a client might have sent."""

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdd_connector.recorder import BY_NAME
from pdd_connector.retain.keep import may_keep
from pdd_connector.retain.params import Refused, Turn, parse_turn, write_params
from pdd_connector.retain.proof import ProofError, decode_proof, encode_proof, provable_blocks, proven_blocks

HASHES = st.lists(st.binary(min_size=32, max_size=32), max_size=12)


# ---- proof ----------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(HASHES)
def test_a_proof_is_read_back(hashes: list[bytes]) -> None:
    assert list(decode_proof(encode_proof(hashes), 12)) == hashes


@pytest.mark.parametrize(
    "text",
    ["g" * 64, "00" * 31, "00" * 33, "0", "00 " * 32, "00" * 32 * 13, "\u0660" * 64, "0x" + "00" * 31, "\n" * 64],
)
def test_what_is_no_proof_is_refused(text: str) -> None:
    with pytest.raises(ProofError):
        decode_proof(text, 12)


@settings(deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_a_proof_or_refused(text: str) -> None:
    try:
        hashes = decode_proof(text, 12)
    except ProofError:
        return
    assert encode_proof(hashes) == text.lower()


def test_short_hashes_prove_nothing() -> None:
    with pytest.raises(ProofError):
        encode_proof([b"x" * 16])


@settings(deadline=None)
@given(HASHES, HASHES, HASHES, st.integers(0, 500), st.integers(1, 40), st.integers(0, 500))
def test_only_the_common_prefix_is_proven(
    common: list[bytes], ours: list[bytes], theirs: list[bytes], remote: int, block: int, prompt: int
) -> None:
    own, proof = common + ours, common + theirs
    proven = proven_blocks(proof, own, remote, block, prompt)
    assert own[:proven] == proof[:proven]
    assert proven * block <= remote
    assert proven == 0 or proven * block < prompt  # a token is left to compute
    longer = proven + 1
    if longer * block <= remote and longer * block < prompt and longer <= min(len(own), len(proof)):
        assert own[:longer] != proof[:longer]


@settings(deadline=None)
@given(HASHES.filter(bool), st.integers(0, 11), st.integers(0, 31))
def test_one_flipped_bit_ends_the_proof_there(hashes: list[bytes], block: int, byte: int) -> None:
    block %= len(hashes)
    changed = bytearray(hashes[block])
    changed[byte] ^= 1
    forged = [*hashes[:block], bytes(changed), *hashes[block + 1 :]]
    assert proven_blocks(forged, hashes, 10_000, 1, 10_000) == block


@pytest.mark.parametrize(
    ("computed", "known", "expected"),
    [
        (32, 33, 2),  # the last token was sampled and is not computed
        (33, 33, 2),  # computed ahead: the step may still run
        (32, 32, 1),  # the block's last token is the sampled one
        (31, 40, 1),
        (0, 1, 0),
    ],
)
def test_the_sampled_token_is_not_vouched_for(computed: int, known: int, expected: int) -> None:
    assert provable_blocks(computed, known, 16, num_hashes=9, num_blocks=9) == expected


def test_no_more_than_hashes_and_blocks_is_vouched_for() -> None:
    assert provable_blocks(160, 161, 16, num_hashes=3, num_blocks=9) == 3
    assert provable_blocks(160, 161, 16, num_hashes=9, num_blocks=4) == 4


# ---- cap ------------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.integers(1, 60), max_size=40), st.integers(1, 200), st.integers(1, 90))
def test_the_cap_is_never_passed(wishes: list[int], total: int, percent: int) -> None:
    kept = 0
    for blocks in wishes:
        if may_keep(blocks, kept_blocks=kept, total_blocks=total, max_percent=percent):
            kept += blocks
            assert kept * 100 <= total * percent
        else:
            assert (kept + blocks) * 100 > total * percent - 100


# ---- parameters -----------------------------------------------------------------------------------------------------


def handle(**changes: Any) -> dict[str, Any]:
    """A handle as a decode engine returns it, two blocks and a half."""
    return {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": "engine-1",
        "remote_request_id": "request-1",
        "remote_host": "10.0.0.7",
        "remote_port": 5600,
        "tp_size": 1,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_block_ids": [[4, 5, 6]],
        "remote_num_tokens": 40,
        "remote_blocks_expiry_time": 1234.5,
        "transfer_mode": "pull",
        "proof": "ab" * 64,
        **changes,
    }


PREFILL_HANDLE = handle(do_remote_decode=False, do_remote_prefill=True)


def test_handle_of_decode() -> None:
    turn = parse_turn(handle(), 100)
    assert turn is not None and turn.handle is not None
    assert (turn.prefill, turn.keep, turn.refused) == (True, False, None)
    assert turn.handle.block_ids == (4, 5, 6)
    assert turn.handle.proof == (b"\xab" * 32,) * 2
    written = write_params(turn)
    assert written["do_remote_decode"] is True and written["do_remote_prefill"] is False
    assert written["remote_block_ids"] == [[4, 5, 6]]
    assert "proof" not in written


def test_handle_of_prefill_and_the_wish_to_keep() -> None:
    turn = parse_turn({**PREFILL_HANDLE, "retain": {"version": 1, "keep": True}}, 100)
    assert turn is not None and turn.handle is not None
    assert (turn.prefill, turn.keep, turn.refused) == (False, True, None)
    assert write_params(turn)["do_remote_prefill"] is True


def test_plain_prefill() -> None:
    request = dict.fromkeys(["remote_engine_id", "remote_block_ids", "remote_host", "remote_port"])
    turn = parse_turn({"do_remote_decode": True, "do_remote_prefill": False, **request}, 100)
    assert turn == Turn(prefill=True)
    assert write_params(turn) == {"do_remote_decode": True, "do_remote_prefill": False}


def test_0_33s_registration_is_passed_on() -> None:
    turn = parse_turn(handle(remote_registration_generation=3), 100)
    assert turn is not None
    assert write_params(turn)["remote_registration_generation"] == 3


@pytest.mark.parametrize(
    "params",
    [None, {}, {"foo": 1}, {"do_remote_prefill": False}, {"do_remote_decode": False}, {"remote_block_ids": [[1]]},
     {"claim": {"version": 1}}, {"retain": {"version": 1, "keep": False}}, {"retain": {"version": 1}}],
)  # fmt: skip
def test_junk_says_nothing(params: dict[str, Any] | None) -> None:
    assert parse_turn(params, 100) is None


@pytest.mark.parametrize(
    ("retain", "refused"),
    [
        ([], Refused.MALFORMED),
        ({}, Refused.VERSION),
        ({"version": 2, "keep": True}, Refused.VERSION),
        ({"version": True, "keep": True}, Refused.VERSION),
        ({"version": 1, "keep": "yes"}, Refused.MALFORMED),
        ({"version": 1, "keep": 1}, Refused.MALFORMED),
    ],
)
def test_a_malformed_wish_keeps_nothing(retain: object, refused: Refused) -> None:
    assert parse_turn({"retain": retain}, 100) == Turn(refused=refused)


_BAD: list[tuple[str, Any]] = [
    ("remote_block_ids", [[1, -1]]),
    ("remote_block_ids", [[0, 1]]),
    ("remote_block_ids", [[1, 1]]),
    ("remote_block_ids", [[1.0, 2]]),
    ("remote_block_ids", [[True, 2]]),
    ("remote_block_ids", [["1", 2]]),
    ("remote_block_ids", [[1 << 40, 2]]),
    ("remote_block_ids", [list(range(1, 102))]),
    ("remote_block_ids", [[]]),
    ("remote_block_ids", [[1, 2], [3, 4]]),
    ("remote_block_ids", [1, 2]),
    ("remote_block_ids", "12"),
    ("remote_block_ids", {"0": [1]}),
    ("remote_engine_id", None),
    ("remote_engine_id", ""),
    ("remote_engine_id", "x" * 257),
    ("remote_request_id", 7),
    ("remote_request_id", "a\nb"),
    ("remote_host", ["10.0.0.7"]),
    ("remote_port", "5600"),
    ("remote_port", 0),
    ("remote_port", 65_536),
    ("tp_size", 0),
    ("tp_size", None),
    ("dcp_size", 2),
    ("pp_size", -1),
    ("remote_num_tokens", None),
    ("remote_num_tokens", -1),
    ("remote_num_tokens", 0),
    ("remote_num_tokens", True),
    ("remote_blocks_expiry_time", None),
    ("remote_blocks_expiry_time", math.inf),
    ("remote_blocks_expiry_time", math.nan),
    ("remote_blocks_expiry_time", "soon"),
    ("remote_registration_generation", -1),
    ("proof", ""),
    ("proof", "ab" * 31),
    ("proof", "zz" * 32),
    ("proof", "ab" * 32 * 4),
    ("proof", 5),
    ("proof", ["ab" * 32]),
]


@pytest.mark.parametrize("base", [handle(), PREFILL_HANDLE], ids=["decode", "prefill"])
@pytest.mark.parametrize(("key", "value"), _BAD, ids=[f"{key}={value!r:.24}" for key, value in _BAD])
def test_malformed_handles_are_refused_and_the_turn_goes_on(base: dict[str, Any], key: str, value: Any) -> None:
    turn = parse_turn({**base, key: value}, 100)
    assert turn == Turn(prefill=base["do_remote_decode"], refused=Refused.MALFORMED)
    assert set(write_params(turn)) == {"do_remote_decode", "do_remote_prefill"}


def test_a_handle_without_proof_is_not_used() -> None:
    assert parse_turn(handle(proof=None), 100) == Turn(prefill=True, refused=Refused.NO_PROOF)


@pytest.mark.parametrize("flags", [(True, True), ("yes", False), (1, False), (False, 1), (None, "x")])
def test_flags_that_are_none_are_refused(flags: tuple[Any, Any]) -> None:
    turn = parse_turn(handle(do_remote_decode=flags[0], do_remote_prefill=flags[1]), 100)
    assert turn == Turn(refused=Refused.MALFORMED)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 40), 1 << 40) | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(
    st.dictionaries(st.sampled_from([*handle(), "retain"]), _JSON, max_size=6),
    st.sets(st.sampled_from([*handle()]), max_size=2),
)
def test_any_parameters_are_parsed_or_refused(changes: dict[str, Any], missing: set[str]) -> None:
    params = {key: value for key, value in {**handle(), **changes}.items() if key not in missing}
    turn = parse_turn(params, 100)
    if turn is not None:
        written = write_params(turn)
        assert json.loads(json.dumps(written)) == written
        assert turn.handle is None or len(turn.handle.proof) <= len(turn.handle.block_ids) <= 100


def test_every_reason_is_a_label_of_the_metric() -> None:
    assert set(BY_NAME["retain_refused"].values) == {reason.value for reason in Refused}
