"""The scheduler's side of claims with several ranks, which do not end in the same step."""

from unittest.mock import Mock

import pytest
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.base_scheduler import NixlBaseConnectorScheduler
from vllm.v1.outputs import KVConnectorOutput

from pdd_connector.claim_scheduler import ClaimScheduler
from pdd_connector.claims.peers import PeerBook
from pdd_connector.step_messages import PddWorkerMetadata, RankReport


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> ClaimScheduler:
    """Of two ranks, without an engine."""
    monkeypatch.setattr(NixlBaseConnectorScheduler, "update_connector_output", lambda _self, _output: None)
    scheduler: ClaimScheduler = object.__new__(ClaimScheduler)
    scheduler.transfer_tp_size = 2
    scheduler._rank_connected, scheduler._failures = {}, {}
    scheduler._reader, scheduler._owner, scheduler._peers = Mock(), Mock(), Mock(spec=PeerBook)
    return scheduler


def step(scheduler: ClaimScheduler, reports: dict[int, RankReport], finished: str = "", failed: str = "") -> None:
    """What vLLM hands over after a step: each rank's report, and what has ended on all of them."""
    output = KVConnectorOutput(
        kv_connector_worker_meta=PddWorkerMetadata(reports),
        finished_recving=set(finished),
        failed_recving=set(failed),
    )
    scheduler.update_connector_output(output)


def test_a_read_that_failed_on_one_rank_keeps_its_reason_until_the_other_is_done(scheduler: ClaimScheduler) -> None:
    step(scheduler, {1: RankReport(failures={"a": "Timeout"})})
    scheduler._reader.read_ended.assert_not_called()
    step(scheduler, {0: RankReport()}, finished="a", failed="a")
    scheduler._reader.read_ended.assert_called_once_with("a", "Timeout")
    step(scheduler, {}, finished="a", failed="a")
    scheduler._reader.read_ended.assert_called_with("a", "Transfer")  # another request of that name knows nothing of it


def test_a_read_that_ended_well_has_no_reason(scheduler: ClaimScheduler) -> None:
    step(scheduler, {0: RankReport(), 1: RankReport()}, finished="a")
    scheduler._reader.read_ended.assert_called_once_with("a", None)


def test_an_engine_is_connected_when_every_rank_is(scheduler: ClaimScheduler) -> None:
    step(scheduler, {0: RankReport(connected=frozenset({"e1", "e2"}))})
    scheduler._peers.workers_connected.assert_not_called()
    step(scheduler, {1: RankReport(connected=frozenset({"e2"}), not_connected=frozenset({"e1"}))})
    scheduler._peers.workers_connected.assert_called_once_with(frozenset({"e2"}))
    assert scheduler._peers.workers_failed.call_args.args[0] == frozenset({"e1"})
