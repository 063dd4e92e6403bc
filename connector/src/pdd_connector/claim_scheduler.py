"""The scheduler's side of claims: vLLM's hooks on one side, reader and owner on the other.

A subclass of vLLM's NIXL pull scheduler that keeps its side channel (handshakes) and step metadata and nothing of its leases and handles: a request's
`kv_transfer_params` are looked at for our `claim` object only, so that nothing in them can pin a block.
Runs on the engine thread, under the engine's lock; the owner's part also on the channel's thread.
"""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler import NixlPullConnectorScheduler

from pdd_connector.channel import ClaimChannel, derive_key_pair
from pdd_connector.claims.in_flight import InFlightSteps, written_blocks
from pdd_connector.claims.ledger import ClaimLedger, LedgerLimits
from pdd_connector.claims.messages import RefuseReason, Welcome
from pdd_connector.claims.params import Address
from pdd_connector.claims.peers import PeerBook
from pdd_connector.claims.support import revision_group, unsupported
from pdd_connector.engine_facts import engine_facts, require_supported
from pdd_connector.engine_hooks import ENGINE_LOCK, engine_unavailable, wake_engine, weight_version
from pdd_connector.owner import ClaimOwner, Identity
from pdd_connector.questions import Read
from pdd_connector.reader import ClaimReader, ReaderLimits
from pdd_connector.recorder import Recorder
from pdd_connector.settings import ConnectorSettings
from pdd_connector.step_messages import PddConnectorMetadata, PddWorkerMetadata, RankReport, boot_id

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

log = logging.getLogger(__name__)

RETRY_SECONDS = 5.0  # a peer that could not be connected with is tried again after this


class ClaimScheduler(NixlPullConnectorScheduler):  # type: ignore[misc]  # vLLM ships no types
    """Claims, as vLLM's scheduler sees them."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        engine_id: str,
        kv_cache_config: KVCacheConfig,
        settings: ConnectorSettings,
        recorder: Recorder,
    ) -> None:
        super().__init__(vllm_config, engine_id, kv_cache_config)
        facts = engine_facts(vllm_config, kv_cache_config, settings, self.use_host_buffer)
        require_supported(settings.mechanism, unsupported(facts))
        self._settings = settings
        self._recorder = recorder
        self._boot_id = boot_id()
        self._kv_config = kv_cache_config
        self._in_flight = InFlightSteps()
        self._rank_connected: dict[int, frozenset[str]] = {}
        self._failures: dict[str, str] = {}  # why a rank could not read, until the others are done too
        role = "Prefill" if vllm_config.kv_transfer_config.kv_role == "kv_producer" else "Decode"
        self._identity = Identity(
            engine_id,
            role,
            self.side_channel_host,
            self.side_channel_port,
            self.transfer_tp_size,
            revision_group(facts),
            weight_version,
        )
        self._keys = derive_key_pair(os.environ.get("PDD_CLAIM_KEY"))
        self.claim_address = Address(
            self.side_channel_host, settings.claim.port + vllm_config.parallel_config.data_parallel_index
        )

    def bind_kv_cache_manager(self, manager: KVCacheManager) -> None:
        """The engine's block pool exists: start to lend from it."""
        claim = self._settings.claim
        self._manager = manager
        self._pool = manager.block_pool
        limits = LedgerLimits(
            claim.hold_seconds,
            claim.max_claims_per_reader,
            kv_blocks(self._kv_config) * claim.max_percent_of_blocks // 100,
        )
        self._owner = ClaimOwner(
            self._identity,
            ClaimLedger(limits, ranks=self.transfer_tp_size),
            self._in_flight,
            self._pool,
            ENGINE_LOCK,
            engine_unavailable,
            wake_engine,
            # vLLM 0.33 counts the times its memory was registered anew, after a sleep; 0.32 cannot register it again.
            lambda: getattr(self, "_registration_generation", 0),
            self._recorder,
        )
        address = self.claim_address
        self._channel = ClaimChannel(
            address,
            self._keys,
            self._owner.handle,
            self._owner.tick,
            lambda reason: self._recorder.claim_refused_by_us(reason.value),
            wake_engine,
        )
        self._peers = PeerBook(claim.connect_timeout_seconds, RETRY_SECONDS)
        self._reader = ClaimReader(
            self._identity,
            ReaderLimits(
                self._settings.recompute_threshold_tokens,
                claim.timeout_milliseconds / 1e3,
                claim.read_timeout_milliseconds / 1e3,
                claim.connect_timeout_seconds,
                claim.max_owners_asked,
            ),
            self._channel,
            self._peers,
            self.block_size,
            bytes_per_block(self._kv_config) * self.transfer_tp_size,
            self._recorder,
        )
        self._channel.start()
        log.info("Claim channel of group %s on %s:%d", self._identity.group, address.host, address.port)

    # ---- vLLM's hooks, in the order of a request's life -------------------------------------------------------------------------

    def on_new_request(self, request: Request) -> None:
        """Nothing: leases and heartbeats are the base connector's, and no request here has any."""

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        if request.skip_reading_prefix_cache:
            return 0, False
        tokens = self._reader.matched_tokens(
            request.request_id,
            request.kv_transfer_params,
            request.num_prompt_tokens,
            request.block_hashes,
            num_computed_tokens,
        )
        return tokens, bool(tokens)

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        self._reader.allocated(request.request_id, blocks.get_block_ids()[0], num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> PddConnectorMetadata:
        self._in_flight.scheduled(self._blocks_written_by(scheduler_output))
        self._reader.pump()
        meta = PddConnectorMetadata()
        meta.__dict__.update(super().build_connector_meta(scheduler_output).__dict__)
        meta.boot_id = self._boot_id
        meta.connect = self._peers.take_orders()
        for read in self._reader.take_reads():
            meta.read_limits[read.request_id] = (read.give_up_at, read.proven_until)
            meta.add_new_req_to_recv(
                read.request_id, ([*read.local_blocks],), _as_base_params(read), (0,), awaiting_kvs=True
            )
        return meta

    def step_finished(self) -> None:
        """The oldest scheduled step's output has been taken in."""
        if len(self._in_flight):
            self._in_flight.finished()

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        super().update_connector_output(connector_output)
        report = connector_output.kv_connector_worker_meta
        if isinstance(report, PddWorkerMetadata):
            for rank, of_rank in report.reports.items():
                self._take_report(rank, of_rank)
                self._failures |= of_rank.failures
        for request_id in connector_output.finished_recving or ():
            why = self._failures.pop(request_id, "Transfer")
            failed = request_id in (connector_output.failed_recving or ())
            self._reader.read_ended(request_id, why if failed else None)

    def request_finished(self, request: Request, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        receipt = self._reader.request_ended(request.request_id)
        return False, receipt.as_params() if receipt is not None else None

    def has_pending_push_work(self) -> bool:
        if self._owner.holding:
            return True
        if engine_unavailable() is RefuseReason.STOPPING:
            return False  # only what others still read is waited for
        return self._reader.busy or self._recorder.has_news

    def shutdown(self) -> None:
        if hasattr(self, "_channel"):
            self._channel.stop()
            self._owner.close()
        super().shutdown()

    # ---- inside ------------------------------------------------------------------------------------------------------------------

    def _blocks_written_by(self, scheduler_output: SchedulerOutput) -> set[int]:
        first = {new.req_id: new.num_computed_tokens for new in scheduler_output.scheduled_new_reqs}
        cached = scheduler_output.scheduled_cached_reqs
        first.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        written: set[int] = set()
        for request_id in scheduler_output.num_scheduled_tokens:
            blocks = self._manager.get_blocks(request_id).blocks[0]
            written.update(block.block_id for block in written_blocks(blocks, first[request_id], self.block_size))
        return written

    def _take_report(self, rank: int, report: RankReport) -> None:
        for claim_id in report.claims_read:
            self._owner.read_by_rank(claim_id, rank)
        if report.connected is not None:
            self._rank_connected[rank] = report.connected
            if len(self._rank_connected) == self.transfer_tp_size:
                self._peers.workers_connected(frozenset.intersection(*self._rank_connected.values()))
        if report.not_connected:
            self._peers.workers_failed(report.not_connected, time.monotonic())


def kv_blocks(kv_cache_config: KVCacheConfig) -> int:
    """Blocks of the engine's cache."""
    return int(kv_cache_config.num_blocks)


def bytes_per_block(kv_cache_config: KVCacheConfig) -> int:
    """Size of one block over all layers, on one rank."""
    return sum(int(tensor.size) for tensor in kv_cache_config.kv_cache_tensors) // kv_blocks(kv_cache_config)


def _as_base_params(read: Read) -> dict[str, Any]:
    welcome: Welcome = read.welcome
    return {
        "remote_block_ids": ([*read.remote_blocks],),
        "remote_engine_id": welcome.engine_id,
        "remote_request_id": read.claim_id,
        "remote_host": welcome.host,
        "remote_port": welcome.port,
        "tp_size": welcome.tp_size,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_num_tokens": None,
        "remote_registration_generation": read.registration,
    }
