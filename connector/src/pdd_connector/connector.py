"""What vLLM loads: `kv_connector: PddConnector`, `kv_connector_module_path: pdd_connector.connector`.

A facade: it chooses the scheduler's and the worker's side by mechanism and forwards vLLM's hooks. Decides nothing itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole, KVConnectorWorkerMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import NixlBaseConnector, NixlPullConnector
from vllm.platforms import current_platform

from pdd_connector import engine_hooks, metrics
from pdd_connector.claim_scheduler import ClaimScheduler
from pdd_connector.claims.params import Address
from pdd_connector.kv_transfer_config.check import LOADED_KEYS, load_settings
from pdd_connector.nixl_agent import sleeping_progress_thread
from pdd_connector.quarantine import Quarantine
from pdd_connector.recorder import Recorder
from pdd_connector.retain.scheduler import RetainScheduler
from pdd_connector.settings import Mechanism
from pdd_connector.side_channel import Served, require_free
from pdd_connector.step_messages import PddWorkerMetadata
from pdd_connector.version import require_supported_versions
from pdd_connector.waiting import nap_instead_of_yielding
from pdd_connector.worker import PddWorker

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput


class PddConnector(NixlPullConnector):  # type: ignore[misc]  # vLLM ships no types
    """NIXL pull connector with claims or proven retention."""

    reads_into_freed_blocks = True
    """Tells `engine_hooks` that every engine with this connector reads, whatever its role."""

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        require_supported_versions()
        engine_hooks.install()
        if current_platform.is_cpu():
            nap_instead_of_yielding()
        # Not NixlPullConnector's: it would make upstream's scheduler and worker, and with them a second NIXL agent.
        NixlBaseConnector.__init__(self, vllm_config, role, kv_cache_config)
        settings = load_settings({key: getattr(vllm_config.kv_transfer_config, key) for key in LOADED_KEYS})
        self._recorder = Recorder()
        claims = settings.mechanism is Mechanism.CLAIM
        if role == KVConnectorRole.SCHEDULER:
            scheduler = ClaimScheduler if claims else RetainScheduler
            self.connector_scheduler = scheduler(vllm_config, self.engine_id, kv_cache_config, settings, self._recorder)
            require_free(list(self._served(claims)))
            return
        with sleeping_progress_thread() if current_platform.is_cpu() else nullcontext():
            self.connector_worker = PddWorker(vllm_config, self.engine_id, kv_cache_config, settings)

    def _served(self, claims: bool) -> Iterator[Served]:
        scheduler = self.connector_scheduler
        side_channel = Address(scheduler.side_channel_host, scheduler.side_channel_port)
        yield Served("the NIXL side channel", side_channel, "`VLLM_NIXL_SIDE_CHANNEL_PORT`")
        if claims:
            yield Served("the claim channel", scheduler.claim_address, "`claim.port`")

    def bind_kv_cache_manager(self, kv_cache_manager: KVCacheManager) -> None:
        super().bind_kv_cache_manager(kv_cache_manager)
        longest = -(-kv_cache_manager.max_model_len // self.connector_scheduler.block_size)
        self._quarantine = Quarantine(kv_cache_manager.block_pool, self._recorder, longest)
        if isinstance(self.connector_scheduler, ClaimScheduler):
            self.connector_scheduler.bind_kv_cache_manager(kv_cache_manager)

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        report = connector_output.kv_connector_worker_meta
        if isinstance(report, PddWorkerMetadata):
            # Before anything else: vLLM is about to free the blocks of the reads that were given up.
            for rank, of_rank in report.reports.items():
                self._quarantine.take_report(rank, of_rank.unsettled, of_rank.settled)
        super().update_connector_output(connector_output)

    def has_pending_push_work(self) -> bool:
        return super().has_pending_push_work() or self._quarantine.awaited

    def take_events(self) -> Any:
        # vLLM calls this once at the end of each step's output, in the order of the steps: the only hook that does.
        self._quarantine.require_room()
        if isinstance(self.connector_scheduler, ClaimScheduler):
            self.connector_scheduler.step_finished()
        return super().take_events()

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        return self.connector_worker.build_worker_meta()

    def get_kv_connector_stats(self) -> Any:
        return metrics.collect(self._recorder, super().get_kv_connector_stats())

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> Any:
        return metrics.PddConnectorStats(data=data) if data is not None else metrics.PddConnectorStats()

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: Any
    ) -> Any:
        return metrics.PddPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)
