"""The worker's side: connects with other engines, reads granted blocks, and reports both to the scheduler.

A subclass of vLLM's NIXL pull worker, whose transfers, handshakes and failure handling it keeps. It adds what claims need: completion notices counted per
claim, a limit on every read, connections made and tried before they are used. Runs in each worker process, on vLLM's thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import NixlConnectorMetadata, ReqMeta
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import NixlPullConnectorWorker

from pdd_connector.claims.messages import Welcome
from pdd_connector.notices import NoticeFilter
from pdd_connector.settings import ConnectorSettings, Mechanism
from pdd_connector.step_messages import PddConnectorMetadata, PddWorkerMetadata, RankReport, boot_id

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

log = logging.getLogger(__name__)

# vLLM's null block: no request reads it, so a first read between two engines can safely use it as source and target.
NULL_BLOCK = 0
# How far the estimate of another host's clock may be off, against deadlines that an owner stamped (Retain).
CLOCK_ERROR_SECONDS = 0.5
# A transfer that was given up and has not ended after this is reported, once.
STUCK_SECONDS = 30.0


@dataclass
class _Connection:
    """An engine being connected: first the handshake, then one read of the null block, which opens the transport and proves that data moves."""

    handshake: Future[Any] | None
    deadline: float
    probes: list[int] = field(default_factory=list)


@dataclass
class _GivenUp:
    """A read that was given up and may still write."""

    handles: list[int]
    engine_id: str
    stuck_at: float
    reported: bool = False


@dataclass(frozen=True)
class _Limits:
    """Of one read: give up then; what arrives from `proven_until` on proves nothing. `expiry`: an owner's engine id and deadline on its own clock (Retain)."""

    give_up_at: float
    proven_until: float = float("inf")
    expiry: tuple[str, float] | None = None


class PddWorker(NixlPullConnectorWorker):  # type: ignore[misc]  # vLLM ships no types
    """One worker's part of either mechanism. Times in seconds, on the host's monotonic clock, which vLLM's perf_counter is too."""

    def __init__(
        self, vllm_config: VllmConfig, engine_id: str, kv_cache_config: KVCacheConfig, settings: ConnectorSettings
    ) -> None:
        super().__init__(vllm_config, engine_id, kv_cache_config)
        agent: Any = self.nixl_wrapper
        leases = settings.mechanism is Mechanism.RETAIN
        self.nixl_wrapper: Any = NoticeFilter(agent, self._on_claim_read, leases=leases)
        self._connect_seconds = settings.claim.connect_timeout_seconds
        self._read_seconds = settings.claim.read_timeout_milliseconds / 1e3
        self._boot_id = boot_id()
        self._connections: dict[str, _Connection] = {}
        self._usable: frozenset[str] = frozenset()
        self._limits: dict[str, _Limits] = {}
        self._timed_out: set[str] = set()
        self._abandoned: set[str] = set()
        self._given_up: dict[str, _GivenUp] = {}
        self._report = RankReport()

    # ---- vLLM's hooks ---------------------------------------------------------------------------------------------------------

    def start_load_kv(self, metadata: NixlConnectorMetadata) -> None:
        now = time.monotonic()
        for request_id, meta in metadata.reqs_to_recv.items():
            if meta.awaiting_kvs and meta.remote is not None:
                expiry = meta.remote.blocks_expiry_time
                of_owner = (meta.remote.engine_id, expiry) if expiry is not None else None
                self._limits[request_id] = _Limits(now + self._read_seconds, expiry=of_owner)
        if isinstance(metadata, PddConnectorMetadata):
            for order in metadata.connect:
                self._connect(order, metadata.boot_id)
            for request_id, (give_up_at, proven_until) in metadata.read_limits.items():
                self._limits[request_id] = _Limits(give_up_at, proven_until)
        super().start_load_kv(metadata)

    def get_transfer_results(self) -> KVConnectorTransferResults:
        # First what has arrived, then what is late: a long step between two polls must not make a finished read late.
        results = super().get_transfer_results()
        now = time.monotonic()
        for request_id in results.finished_recving:
            limits = self._limits.pop(request_id, None)
            if request_id in results.failed_recving:
                self._report.failures[request_id] = "Timeout" if request_id in self._timed_out else "Transfer"
                self._timed_out.discard(request_id)
            elif limits is not None and now >= self._proven_until(limits):
                # The owner may have let the blocks go before the last byte was read.
                results.failed_recving.add(request_id)
                self._report.failures[request_id] = "Timeout"
        self._give_up_late_reads(now)
        self._settle(now)
        self._advance_connections(now)
        return results

    def build_worker_meta(self) -> PddWorkerMetadata | None:
        """This step's report; None where there is nothing to tell."""
        report, self._report = self._report, RankReport()
        return PddWorkerMetadata({self.tp_rank: report}) if report != RankReport() else None

    def _read_blocks_for_req(self, req_id: str, meta: ReqMeta) -> None:
        # A handshake may end after its request was given up; its blocks are somebody else's by then.
        if req_id in self._abandoned:
            self._abandoned.discard(req_id)
            return
        super()._read_blocks_for_req(req_id, meta)

    def _cleanup_remote_engine(self, engine_id: str, *, log_eviction: bool = True) -> None:
        # The base worker knows neither reads given up nor first reads: an engine that any of them still uses is kept until they end.
        if engine_id in self._in_use():
            return
        super()._cleanup_remote_engine(engine_id, log_eviction=log_eviction)

    def shutdown(self) -> None:
        self._given_up.clear()
        self._connections.clear()
        super().shutdown()

    def _in_use(self) -> set[str]:
        probing = {engine_id for engine_id, connection in self._connections.items() if connection.probes}
        return probing | {entry.engine_id for entry in self._given_up.values()}

    def _on_claim_read(self, claim_id: str) -> None:
        self._report.claims_read += (claim_id,)

    # ---- reads ------------------------------------------------------------------------------------------------------------------

    def _proven_until(self, limits: _Limits) -> float:
        if limits.expiry is None:
            return limits.proven_until
        engine_id, expiry = limits.expiry
        offset = self._engine_clock_offset.get(engine_id)
        return limits.proven_until if offset is None else float(expiry - offset - CLOCK_ERROR_SECONDS)

    def _give_up_late_reads(self, now: float) -> None:
        late = [r for r, limits in self._limits.items() if now >= limits.give_up_at and r in self._recving_metadata]
        for request_id in late:
            del self._limits[request_id]
            meta = self._recving_metadata[request_id]
            handles = self._recving_transfers.pop(request_id, None)
            if handles is None:
                self._abandoned.add(request_id)  # still waits for its handshake
            elif handles:
                self._given_up[request_id] = _GivenUp(handles, meta.remote.engine_id, now + STUCK_SECONDS)
                self._report.unsettled[request_id] = tuple(meta.local_block_ids[0])
            # The base worker reports it as failed at its next poll. Without block ids: those would make the scheduler compute in place, into blocks
            # that the read may still write; a failed request without them gets new ones.
            self._recving_metadata[request_id] = replace(meta, local_block_ids=([],), local_physical_block_ids=([],))
            self._recv_failures.add(request_id)
            self._timed_out.add(request_id)

    def _settle(self, now: float) -> None:
        for request_id, entry in list(self._given_up.items()):
            entry.handles = [handle for handle in entry.handles if not self._ended(handle)]
            if not entry.handles:
                del self._given_up[request_id]
                self._report.settled += (request_id,)
            elif now >= entry.stuck_at and not entry.reported:
                entry.reported = True
                log.error("A read from engine %s does not end; its blocks stay out of use", entry.engine_id)

    def _ended(self, handle: int) -> bool:
        """Whether NIXL says that the transfer is over, one way or the other. A status that cannot be had says nothing."""
        try:
            if self.nixl_wrapper.check_xfer_state(handle) == "PROC":
                return False
        except Exception as error:  # noqa: BLE001  # NIXL raises a family of its own
            log.warning("State of a read that was given up: %s", error)
        return bool(self._try_release_xfer_handle("given up", handle))

    # ---- connections --------------------------------------------------------------------------------------------------------------

    def _connect(self, order: Welcome, scheduler_boot_id: str) -> None:
        if scheduler_boot_id != self._boot_id:
            # Limits of reads are times on one host's clock; a worker on another host could not keep them.
            log.error("Claims need all workers of an engine on one host: not connecting with %s", order.engine_id)
            self._report.not_connected |= {order.engine_id}
            return
        if order.engine_id in self._usable:
            self._report.connected = self._usable  # it was greeted again, or at another address: tell again
        elif order.engine_id not in self._connections:
            handshake = self._ensure_handshake(order.engine_id, order.host, order.port, order.tp_size)
            self._connections[order.engine_id] = _Connection(handshake, time.monotonic() + self._connect_seconds)

    def _advance_connections(self, now: float) -> None:
        gone = {engine_id for engine_id in self._usable if not self._can_read(engine_id)}
        made = {engine_id for engine_id in list(self._connections) if self._advance(engine_id, now)}
        if gone or made:
            self._usable = (self._usable - gone) | made
            self._report.connected = self._usable

    def _can_read(self, engine_id: str) -> bool:
        return engine_id in self._remote_agents and engine_id not in self._invalid_remote_engines

    def _advance(self, engine_id: str, now: float) -> bool:
        """Take a connection one step on; True once it is made."""
        connection = self._connections[engine_id]
        if connection.handshake is not None and not connection.handshake.done():
            return False
        try:
            if connection.handshake is not None:
                connection.handshake.result()
                connection.handshake = None
            if not self._can_read(engine_id):
                raise RuntimeError("its NIXL state is gone")
            if not connection.probes:
                for handle in self._probe(engine_id):
                    connection.probes.append(
                        handle
                    )  # one at a time: where the next cannot be made, these are under way
            states = [self.nixl_wrapper.check_xfer_state(handle) for handle in connection.probes]
            if any(state not in ("DONE", "PROC") for state in states):
                raise RuntimeError(f"the first read ended in state {states}")
            if "PROC" in states and now < connection.deadline:
                return False
            if "PROC" in states:
                raise RuntimeError(f"the first read took longer than {self._connect_seconds} s")
        except Exception as error:  # noqa: BLE001  # handshake and NIXL raise anything; it means the same: not connected
            log.warning("Could not connect with engine %s: %s", engine_id, error)
            self._drop(engine_id)
            self._report.not_connected |= {engine_id}
            return False
        self._drop(engine_id)
        return True

    def _drop(self, engine_id: str) -> None:
        under_way = [handle for handle in self._connections.pop(engine_id).probes if not self._ended(handle)]
        if under_way:
            # Under a name that is no request's: no blocks of ours wait for it, but the engine is in use until it ends.
            name = f"first read {under_way[0]} of {engine_id}"
            self._given_up[name] = _GivenUp(under_way, engine_id, time.monotonic() + STUCK_SECONDS)

    def _probe(self, engine_id: str) -> Iterable[int]:
        """Read the peer's null block into ours, from every rank that will be read from."""
        plan = self.tp_mappings[engine_id]
        info = self.transfer_topo.get_engine_info(engine_id)
        groups = len(self.kv_cache_config.transfer_groups)
        blocks = self._logical_to_kernel_block_ids([[NULL_BLOCK]] * groups, self._physical_blocks_per_logical_kv_block)
        local = self._compute_desc_ids(
            block_ids=blocks,
            dst_num_blocks=self.dst_num_blocks[self.engine_id],
            block_size_ratio=None,
            physical_blocks_per_logical=self._physical_blocks_per_logical_kv_block,
            region_num_blocks=self.dst_region_num_blocks.get(self.engine_id) or None,
            region_group_ids=self.region_group_ids or None,
            uses_region_group_mapping=self._uses_region_group_mapping,
        )
        remote = self._compute_desc_ids(
            block_ids=blocks,
            dst_num_blocks=self.dst_num_blocks[engine_id],
            block_size_ratio=None,
            physical_blocks_per_logical=info.remote_physical_blocks_per_logical,
            region_num_blocks=self.dst_region_num_blocks.get(engine_id) or None,
            region_group_ids=self.dst_region_group_ids.get(engine_id) or None,
            uses_region_group_mapping=self.dst_uses_region_group_mapping[engine_id],
        )
        for rank in plan.all_source_ranks:
            handle = self.nixl_wrapper.make_prepped_xfer(
                "READ",
                self.src_xfer_handles_by_block_size[info.remote_block_size],
                local,
                self.dst_xfer_side_handles[engine_id][rank],
                remote,
            )
            self.nixl_wrapper.transfer(handle)
            yield handle
