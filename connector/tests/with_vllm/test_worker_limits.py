"""A worker's limits on reads: late ones are given up without their blocks, what arrives too late is not used, engines still read from are kept.

The real worker class without an agent: what NIXL and the base worker report is played.
"""

import queue
from collections.abc import Iterator
from concurrent.futures import Future

import pytest
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import NixlConnectorMetadata, RemoteMeta, ReqMeta
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import NixlPullConnectorWorker

from pdd_connector.claims.messages import Welcome
from pdd_connector.step_messages import PddConnectorMetadata, RankReport
from pdd_connector.worker import STUCK_SECONDS, PddWorker, _Connection


class Agent:
    """NIXL, as far as a given-up read needs it."""

    def __init__(self) -> None:
        self.states: dict[int, str] = {}
        self.released: list[int] = []

    def check_xfer_state(self, handle: int) -> str:
        return self.states[handle]

    def release_xfer_handle(self, handle: int) -> None:
        self.released.append(handle)


class Bench:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr("pdd_connector.worker.time.monotonic", lambda: self.now)
        worker = self.worker = object.__new__(PddWorker)
        self.agent = worker.nixl_wrapper = Agent()
        worker.tp_rank = 0
        worker._connect_seconds, worker._read_seconds, worker._boot_id = 30.0, 2.0, "boot"
        worker._connections, worker._usable, worker._limits = {}, frozenset(), {}
        worker._timed_out, worker._abandoned, worker._given_up = set(), set(), {}
        worker._report = RankReport()
        worker._recving_metadata, worker._recving_transfers, worker._recv_failures = {}, {}, set()
        worker._engine_clock_offset, worker._remote_agents, worker._invalid_remote_engines = {}, {}, set()
        worker._ready_requests = queue.Queue()
        self.done: KVConnectorTransferResults | None = None
        self.cleaned: list[str] = []
        monkeypatch.setattr(NixlPullConnectorWorker, "get_transfer_results", lambda _self: self._base_results())
        monkeypatch.setattr(NixlPullConnectorWorker, "start_load_kv", self._base_start)
        monkeypatch.setattr(
            NixlPullConnectorWorker,
            "_cleanup_remote_engine",
            lambda _self, engine, log_eviction: self.cleaned.append(engine),
        )

    def _base_results(self) -> KVConnectorTransferResults:
        done, self.done = self.done, None
        results = done or KVConnectorTransferResults(
            finished_sending=set(), finished_recving=set(), failed_recving=set()
        )
        for request in list(self.worker._recv_failures):
            if request in self.worker._recving_metadata and request not in self.worker._recving_transfers:
                self.worker._recv_failures.discard(request)
                self.gone = self.worker._recving_metadata.pop(request)
                results.finished_recving.add(request)
                results.failed_recving.add(request)
        return results

    def _base_start(self, metadata: NixlConnectorMetadata) -> None:
        for request, meta in metadata.reqs_to_recv.items():
            self.worker._recving_metadata[request] = meta
            self.worker._recving_transfers[request] = [7]
            self.agent.states[7] = "PROC"

    def start(self, *, proven_until: float | None = None, expiry: float | None = None) -> None:
        metadata = PddConnectorMetadata() if expiry is None else NixlConnectorMetadata()
        remote = RemoteMeta(
            block_ids=([5, 6],), host="h", port=1, engine_id="e", request_id="c", blocks_expiry_time=expiry
        )
        metadata.reqs_to_recv["r"] = ReqMeta(([3, 4],), ([3, 4],), 1, remote=remote, awaiting_kvs=True)
        if expiry is None:
            metadata.read_limits["r"] = (self.now + 2, proven_until or self.now + 14)
        self.worker.start_load_kv(metadata)

    def finish(self) -> KVConnectorTransferResults:
        del self.worker._recving_transfers["r"], self.worker._recving_metadata["r"]
        self.done = KVConnectorTransferResults(finished_sending=set(), finished_recving={"r"}, failed_recving=set())
        return self.worker.get_transfer_results()

    def report(self) -> RankReport:
        meta = self.worker.build_worker_meta()
        return RankReport() if meta is None else meta.reports[0]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def test_a_read_in_time_is_used(bench: Bench) -> None:
    bench.start()
    bench.now += 1.9
    assert bench.finish().failed_recving == set()
    assert bench.report() == RankReport()


def test_a_late_read_is_given_up_without_its_blocks_until_the_transfer_ends(bench: Bench) -> None:
    bench.start()
    bench.now += 2
    assert bench.worker.get_transfer_results().finished_recving == set()
    assert bench.report().unsettled == {"r": (3, 4)}
    results = bench.worker.get_transfer_results()
    assert results.failed_recving == results.finished_recving == {"r"}
    assert bench.gone.local_block_ids == ([],), "with block ids the scheduler would compute in place"
    assert bench.report() == RankReport(failures={"r": "Timeout"})
    bench.agent.states[7] = "DONE"
    bench.worker.get_transfer_results()
    assert bench.report().settled == ("r",)
    assert bench.agent.released == [7]


def test_a_transfer_that_never_ends_keeps_its_blocks_and_its_engine(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.start()
    bench.now += 2
    bench.worker.get_transfer_results()
    bench.report()
    for _ in range(3):
        bench.now += STUCK_SECONDS
        bench.worker.get_transfer_results()
        bench.worker._cleanup_remote_engine("e")
        bench.report()
    assert bench.worker._given_up.keys() == {"r"}
    assert bench.cleaned == [], "tearing down what a transfer still uses may crash the worker"
    assert caplog.text.count("does not end") == 1
    bench.worker._cleanup_remote_engine("another")
    assert bench.cleaned == ["another"]


def test_a_read_that_ends_after_its_claim_is_not_used_although_it_was_whole(bench: Bench) -> None:
    bench.start(proven_until=bench.now + 1)
    bench.now += 1
    assert bench.finish().failed_recving == {"r"}
    assert bench.report().failures == {"r": "Timeout"}


def test_with_retain_the_owners_deadline_counts_on_the_owners_clock(bench: Bench) -> None:
    bench.worker._engine_clock_offset["e"] = 500.0  # the owner's clock is ahead
    bench.start(expiry=1501.0)
    bench.now += 0.4
    assert bench.finish().failed_recving == set()
    bench.start(expiry=1501.0)
    bench.now += 0.6
    assert bench.finish().failed_recving == {"r"}


def test_with_retain_a_read_has_a_limit_too(bench: Bench) -> None:
    bench.start(expiry=99_999.0)
    bench.now += 2
    bench.worker.get_transfer_results()
    assert bench.report().unsettled == {"r": (3, 4)}


def test_a_handshake_that_ends_after_its_request_was_given_up_starts_no_read(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    monkeypatch.setattr(
        NixlPullConnectorWorker, "_read_blocks_for_req", lambda _self, request, _meta: started.append(request)
    )
    bench.start()
    meta = bench.worker._recving_metadata["r"]
    del bench.worker._recving_transfers["r"]  # no handle yet: its handshake is under way
    bench.now += 2
    bench.worker.get_transfer_results()
    assert bench.report().unsettled == {}, "nothing writes"
    bench.worker._read_blocks_for_req("r", meta)
    assert started == []
    bench.worker._read_blocks_for_req("other", meta)
    assert started == ["other"]


def order(engine_id: str = "e") -> Welcome:
    return Welcome(id=b"i" * 16, engine_id=engine_id, role="Decode", host="h", port=1, tp_size=1)


def test_an_engine_is_usable_once_its_first_read_is_done(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    handshake: Future[None] = Future()
    monkeypatch.setattr(PddWorker, "_ensure_handshake", lambda *_: handshake)
    monkeypatch.setattr(PddWorker, "_probe", lambda *_: [9])
    bench.worker._connect(order(), "boot")
    bench.worker.get_transfer_results()
    assert bench.report() == RankReport()
    handshake.set_result(None)
    bench.worker._remote_agents["e"] = {}
    bench.agent.states[9] = "PROC"
    bench.worker.get_transfer_results()
    assert bench.report() == RankReport(), "connected, but no byte has moved yet"
    bench.agent.states[9] = "DONE"
    bench.worker.get_transfer_results()
    assert bench.report().connected == {"e"}
    del bench.worker._remote_agents["e"]
    bench.worker.get_transfer_results()
    assert bench.report().connected == frozenset(), "lost again"


@pytest.mark.parametrize("how", ["handshake", "read", "slow", "another host"])
def test_an_engine_that_cannot_be_connected_is_reported(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    handshake: Future[None] = Future()
    if how == "handshake":
        handshake.set_exception(RuntimeError("no"))
    else:
        handshake.set_result(None)
    monkeypatch.setattr(PddWorker, "_ensure_handshake", lambda *_: handshake)
    monkeypatch.setattr(PddWorker, "_probe", lambda *_: [9])
    bench.worker._remote_agents["e"] = {}
    bench.agent.states[9] = "ERR" if how == "read" else "PROC"
    bench.worker._connect(order(), "elsewhere" if how == "another host" else "boot")
    if how == "slow":
        bench.now += 30
    bench.worker.get_transfer_results()
    assert bench.report().not_connected == {"e"}
    assert bench.worker._connections == {}


def test_an_engine_under_its_first_read_is_kept(bench: Bench) -> None:
    bench.worker._connections["e"] = _Connection(None, bench.now + 30, [9])
    bench.worker._cleanup_remote_engine("e")
    assert bench.cleaned == []


def connected(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The handshake with engine e is done."""
    handshake: Future[None] = Future()
    handshake.set_result(None)
    monkeypatch.setattr(PddWorker, "_ensure_handshake", lambda *_: handshake)
    bench.worker._remote_agents["e"] = {}
    bench.agent.states[9] = "PROC"
    bench.worker._connect(order(), "boot")


def test_a_first_read_that_is_too_slow_keeps_its_engine_until_it_ends(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PddWorker, "_probe", lambda *_: [9])
    connected(bench, monkeypatch)
    bench.now += 30
    bench.worker.get_transfer_results()
    assert bench.report().not_connected == {"e"}
    bench.worker._cleanup_remote_engine("e")
    assert bench.cleaned == [] and bench.agent.released == []
    bench.agent.states[9] = "DONE"
    bench.worker.get_transfer_results()
    bench.worker._cleanup_remote_engine("e")
    assert (bench.cleaned, bench.agent.released) == (["e"], [9])


def test_first_reads_that_began_before_one_could_not_are_given_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def probe(*_: object) -> Iterator[int]:
        yield 9
        raise RuntimeError("the second rank's cannot be made")

    monkeypatch.setattr(PddWorker, "_probe", probe)
    connected(bench, monkeypatch)
    bench.agent.states[9] = "DONE"
    bench.worker.get_transfer_results()
    assert bench.report().not_connected == {"e"}
    assert bench.agent.released == [9]
