"""The router's header: what is read from it, and what is not believed."""

import json

import pytest

from pdd_cli.demo.receipt import parse_receipt
from pdd_cli.errors import BrokenPromiseError

GOOD = {
    "arm": "PrefillDecode",
    "prefill": {
        "engine": "prefill-0",
        "outcome": "Read",
        "reason": None,
        "owner": "decode-0",
        "prompt_tokens": 1455,
        "local_tokens": 32,
        "read_tokens": 1376,
        "read_bytes": 63406080,
        "seconds": 1.25,
    },
    "decode": {"engine": "decode-0"},
}


def test_a_good_one() -> None:
    receipt = parse_receipt(json.dumps(GOOD), 3)
    assert (receipt.prefill, receipt.decode, receipt.owner) == ("prefill-0", "decode-0", "decode-0")
    assert receipt.computed_tokens == 1455 - 32 - 1376
    assert receipt.seconds == 1.25


@pytest.mark.parametrize(
    "header",
    ["", "no json", "[]", "{}", json.dumps(GOOD | {"prefill": None}), json.dumps(GOOD | {"prefill": {"engine": "p"}})],
)
def test_bad_ones_name_the_turn(header: str) -> None:
    with pytest.raises(BrokenPromiseError, match="turn 3 has a X-PDD-Receipt header that cannot be read"):
        parse_receipt(header, 3)


def test_a_missing_one() -> None:
    with pytest.raises(BrokenPromiseError, match="turn 2 came without"):
        parse_receipt(None, 2)
