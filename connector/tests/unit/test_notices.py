"""Notices from the network: claims' are counted, leases' passed on with Retain only, anything else dropped."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdd_connector.notices import NoticeFilter

CLAIM = "pdd-claim-" + "0123456789abcdef" * 2


class Agent:
    def __init__(self, *notices: bytes) -> None:
        self.notices = list(notices)
        self.name = "agent"

    def get_new_notifs(self) -> dict[str, list[bytes]]:
        notices, self.notices = self.notices, []
        return {"peer": notices}


def sift(*notices: bytes, leases: bool = False) -> tuple[list[str], dict[str, list[bytes]]]:
    read: list[str] = []
    passed = NoticeFilter(Agent(*notices), read.append, leases=leases).get_new_notifs()
    return read, passed


def test_a_claim_is_read_when_all_of_the_readers_workers_said_so() -> None:
    notice = f"{CLAIM}:2".encode()
    assert sift(notice) == ([], {})
    assert sift(notice, notice) == ([CLAIM], {})
    assert sift(f"{CLAIM}:1".encode()) == ([CLAIM], {})


def test_leases_are_the_base_workers_with_retain_and_nobodys_with_claim() -> None:
    notices = (b"HB:req-1,req-2", b"cmpl-123-0:1")
    assert sift(*notices, leases=True) == ([], {"peer": list(notices)})
    assert sift(*notices) == ([], {})


@pytest.mark.parametrize(
    "notice",
    [
        b"",
        b"x",
        b"\xff\xfe",
        b"x:",
        b":1",
        b"x:y",
        b"x:12345",
        b"HB:\xff",
        b"a b:1",
        b"PUSH_REG:\x80",
        CLAIM.encode(),
        CLAIM.encode() + b":" + b"9" * 5000,
    ],
)
@pytest.mark.parametrize("leases", [True, False])
def test_what_would_end_the_base_worker_does_not_reach_it(notice: bytes, leases: bool) -> None:
    assert sift(notice, leases=leases) == ([], {})


@given(st.lists(st.binary(max_size=60), max_size=10), st.booleans())
def test_what_is_passed_on_can_be_read_by_the_base_worker(notices: list[bytes], leases: bool) -> None:
    _, passed = sift(*notices, leases=leases)
    for notice in passed.get("peer", []):
        text = notice.decode("utf-8")
        assert text.startswith("HB:") or int(text.rsplit(":", 1)[1]) >= 0


def test_invented_claims_do_not_pile_up() -> None:
    many = [f"pdd-claim-{number:032x}:9".encode() for number in range(5000)]
    agent: Any = Agent(*many)
    filtered = NoticeFilter(agent, lambda _claim: None, leases=False)
    filtered.get_new_notifs()
    assert len(filtered._partial) <= 1024


def test_everything_else_is_the_agents() -> None:
    assert NoticeFilter(Agent(), lambda _claim: None, leases=False).name == "agent"
