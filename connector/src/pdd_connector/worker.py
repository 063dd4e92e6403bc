"""The worker's side: connects with other engines, reads granted blocks, and reports both to the scheduler.

A subclass of vLLM's NIXL pull worker, whose transfers, handshakes and failure handling it keeps. It adds what claims need: completion notices counted per
claim, a limit on every read, connections made and tried before they are used. Runs in each worker process, on vLLM's thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults, KVConnectorWorkerMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import NixlConnectorMetadata, ReqMeta
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import NixlPullConnectorWorker

from pdd_connector.claims.messages import Welcome
from pdd_connector.owner import CLAIM_PREFIX

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

log = logging.getLogger(__name__)

# A read that was given up may still write into its blocks. This long after, its connection is closed, which ends it for certain.
QUARANTINE_SECONDS = 30.0
# vLLM's null block: no request reads it, so a first read between two engines can safely use it as source and target.
NULL_BLOCK = 0


def boot_id() -> str:
    """This host's boot: two processes with the same one share the monotonic clock."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


class PddConnectorMetadata(NixlConnectorMetadata):  # type: ignore[misc]  # vLLM ships no types
    """What the scheduler tells the workers each step, besides what the base connector tells them."""

    def __init__(self) -> None:
        super().__init__()
        self.boot_id = ""
        self.connect: list[Welcome] = []
        self.read_limits: dict[str, tuple[float, float]] = {}  # request: give up at, proven until (monotonic seconds)


@dataclass
class RankReport:
    """What one worker tells the scheduler."""

    connected: frozenset[str] | None = None  # engine ids; None: as before
    not_connected: frozenset[str] = frozenset()  # could not be connected
    claims_read: tuple[str, ...] = ()  # all notices of these claims have come
    unsettled: frozenset[str] = frozenset()  # reads given up that may still write into their blocks
    settled: frozenset[str] = frozenset()
    failures: dict[str, str] = field(default_factory=dict)  # request: why its read is not used


class PddWorkerMetadata(KVConnectorWorkerMetadata):  # type: ignore[misc]  # vLLM ships no types
    """Reports by rank; `aggregate` puts those of all workers of an engine together."""

    def __init__(self, reports: dict[int, RankReport]) -> None:
        self.reports = reports

    def aggregate(self, other: PddWorkerMetadata) -> PddWorkerMetadata:
        """Both reports: of different ranks, in the same step."""
        return PddWorkerMetadata({**self.reports, **other.reports})


class _NoticeFilter:
    """NIXL's agent, with the claims' completion notices taken out of what the base worker sees: to it they are unknown requests."""

    def __init__(self, agent: Any, on_notice: Callable[[str], None]) -> None:
        self._agent = agent
        self._on_notice = on_notice
        self._prefix = CLAIM_PREFIX.encode()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._agent, name)

    def get_new_notifs(self) -> dict[str, list[bytes]]:
        others: dict[str, list[bytes]] = {}
        for agent, notices in self._agent.get_new_notifs().items():
            ours = [notice for notice in notices if notice.startswith(self._prefix)]
            for notice in ours:
                self._on_notice(notice.decode("ascii", errors="replace"))
            others[agent] = [notice for notice in notices if notice not in ours]
        return others


@dataclass
class _Connection:
    """An engine being connected: first the handshake, then one read of the null block, which opens the transport and proves that data moves."""

    handshake: Future[Any] | None
    deadline: float
    probes: list[int] = field(default_factory=list)


@dataclass
class _Quarantined:
    handles: list[int]
    engine_id: str
    until: float


class PddWorker(NixlPullConnectorWorker):  # type: ignore[misc]  # vLLM ships no types
    """One worker's part of claims."""

    def __init__(
        self, vllm_config: VllmConfig, engine_id: str, kv_cache_config: KVCacheConfig, connect_seconds: float
    ) -> None:
        super().__init__(vllm_config, engine_id, kv_cache_config)
        agent: Any = self.nixl_wrapper
        self.nixl_wrapper: Any = _NoticeFilter(agent, self._on_notice)
        self._connect_seconds = connect_seconds
        self._boot_id = boot_id()
        self._connections: dict[str, _Connection] = {}
        self._usable: frozenset[str] = frozenset()
        self._limits: dict[str, tuple[float, float]] = {}
        self._timed_out: set[str] = set()
        self._abandoned: set[str] = set()
        self._quarantine: dict[str, _Quarantined] = {}
        self._notices: dict[str, int] = {}
        self._report = RankReport()

    # ---- vLLM's hooks ---------------------------------------------------------------------------------------------------------

    def start_load_kv(self, metadata: PddConnectorMetadata) -> None:
        for order in metadata.connect:
            self._connect(order, metadata.boot_id)
        self._limits.update(metadata.read_limits)
        super().start_load_kv(metadata)

    def get_transfer_results(self) -> KVConnectorTransferResults:
        # First what has arrived, then what is late: a long step between two polls must not make a finished read late.
        results = super().get_transfer_results()
        now = time.monotonic()
        for request_id in results.finished_recving:
            _, proven_until = self._limits.pop(request_id, (0.0, float("inf")))
            if request_id in results.failed_recving:
                self._report.failures[request_id] = "Timeout" if request_id in self._timed_out else "Transfer"
                self._timed_out.discard(request_id)
            elif now >= proven_until:
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

    # ---- completion notices (as owner) -----------------------------------------------------------------------------------------

    def _on_notice(self, notice: str) -> None:
        """`<claim id>:<readers>`: one of so many workers of the reader has read this worker's part."""
        claim_id, _, readers = notice.rpartition(":")
        if not readers.isdigit():
            log.warning("Ignored a malformed completion notice")
            return
        count = self._notices.get(claim_id, 0) + 1
        if count < int(readers):
            self._notices[claim_id] = count
            return
        self._notices.pop(claim_id, None)
        self._report.claims_read += (claim_id,)

    # ---- reads ------------------------------------------------------------------------------------------------------------------

    def _give_up_late_reads(self, now: float) -> None:
        late = [r for r, (give_up_at, _) in self._limits.items() if now >= give_up_at and r in self._recving_metadata]
        for request_id in late:
            del self._limits[request_id]
            meta = self._recving_metadata[request_id]
            handles = self._recving_transfers.pop(request_id, None)
            if handles is None:
                self._abandoned.add(request_id)  # still waits for its handshake
            elif handles:
                self._quarantine[request_id] = _Quarantined(handles, meta.remote.engine_id, now + QUARANTINE_SECONDS)
                self._report.unsettled |= {request_id}
            # The base worker reports it as failed at its next poll. Without block ids: those would make the scheduler compute in place, into blocks
            # that the read may still write; a failed request without them gets new ones.
            self._recving_metadata[request_id] = replace(meta, local_block_ids=([],), local_physical_block_ids=([],))
            self._recv_failures.add(request_id)
            self._timed_out.add(request_id)

    def _settle(self, now: float) -> None:
        for request_id, entry in list(self._quarantine.items()):
            entry.handles = [handle for handle in entry.handles if not self._ended(handle)]
            if entry.handles and now >= entry.until:
                for handle in entry.handles:
                    self._try_release_xfer_handle(request_id, handle)
                entry.handles = []
                if entry.engine_id in self._remote_agents:
                    log.warning("Closed the connection to engine %s: a read given up did not end", entry.engine_id)
                    self._cleanup_remote_engine(entry.engine_id)
            if not entry.handles:
                del self._quarantine[request_id]
                self._report.settled |= {request_id}

    def _ended(self, handle: int) -> bool:
        try:
            if self.nixl_wrapper.check_xfer_state(handle) == "PROC":
                return False
            self.nixl_wrapper.release_xfer_handle(handle)
        except Exception:  # noqa: BLE001  # NIXL raises a family of its own; whatever it is, the transfer has ended if release works
            return bool(self._try_release_xfer_handle("quarantine", handle))
        return True

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
                connection.probes = list(self._probe(engine_id))
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
        for handle in self._connections.pop(engine_id).probes:
            self._try_release_xfer_handle("connect", handle)

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
