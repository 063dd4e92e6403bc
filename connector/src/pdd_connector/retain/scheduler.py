"""The scheduler's side of Retain: upstream's pull scheduler, from which nothing unproven is read and nothing unasked kept.

A subclass of vLLM's: its side channel, leases, heartbeats and step metadata are kept; which tokens are read, which
requests are kept and what a request's parameters may say is decided here. Runs on the engine thread.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler import NixlPullConnectorScheduler
from vllm.v1.request import RequestStatus

from pdd_connector.claims.support import unsupported
from pdd_connector.engine_facts import UnsupportedEngineError, engine_facts, require_supported
from pdd_connector.retain.keep import may_keep
from pdd_connector.retain.params import Refused, Turn, parse_turn, write_params
from pdd_connector.retain.proof import encode_proof, provable_blocks, proven_blocks
from pdd_connector.settings import ConnectorSettings, Direction

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

    from pdd_connector.recorder import Recorder


_COMPLETE: Final = (RequestStatus.FINISHED_LENGTH_CAPPED, RequestStatus.FINISHED_STOPPED)


@dataclass(slots=True)
class _Tracked:
    """A request between its arrival and its end."""

    turn: Turn
    proven: int | None = None  # blocks; None until the prompt was compared with the handle
    allocated: bool = False  # its handle was handed to the workers, to be read or given back


@dataclass(frozen=True, slots=True)
class _Kept:
    """A finished request whose blocks wait for a reader."""

    blocks: int
    deadline: float


class RetainScheduler(NixlPullConnectorScheduler):  # type: ignore[misc]  # vLLM ships no types
    """Retain, as vLLM's scheduler sees it."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        engine_id: str,
        kv_cache_config: KVCacheConfig,
        settings: ConnectorSettings,
        recorder: Recorder,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(vllm_config, engine_id, kv_cache_config)
        if not self.is_bidirectional_kv_xfer_enabled:
            raise UnsupportedEngineError(
                "`bidirectional_kv_xfer` must be true, or requests that read back wait for ever"
            )
        facts = engine_facts(vllm_config, kv_cache_config, settings, self.use_host_buffer)
        # A handle names its blocks: the prefix cache may be off.
        require_supported(settings.mechanism, unsupported(replace(facts, prefix_caching=True)))
        self._settings: Final = settings
        self._recorder: Final = recorder
        # The clock that the base class stamps deadlines with.
        self._clock: Final = clock
        self._total_blocks: Final = int(kv_cache_config.num_blocks)
        self._max_blocks: Final = vllm_config.model_config.max_model_len // self.block_size + 1
        self._tracked: Final[dict[str, _Tracked]] = {}
        self._kept: Final[dict[str, _Kept]] = {}
        self._used: Final[OrderedDict[tuple[str, str], float]] = OrderedDict()

    # ---- vLLM's hooks, in the order of a request's life ------------------------------------------------------------

    def on_new_request(self, request: Request) -> None:
        turn = parse_turn(request.kv_transfer_params, self._max_blocks)
        if turn is None:
            request.kv_transfer_params = None
            return
        turn = self._permitted(turn)
        if turn.refused is not None:
            self._recorder.retain_refused(turn.refused.value)
        self._tracked[request.request_id] = _Tracked(turn)
        request.kv_transfer_params = write_params(turn)
        super().on_new_request(request)

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int, bool]:
        tracked = self._tracked.get(request.request_id)
        # Asked again after a preemption or a failed read: the handle is used up, the rest is computed.
        if tracked is None or tracked.turn.handle is None or tracked.allocated:
            return 0, False
        if tracked.proven is None:
            tracked.proven = self._prove(request, tracked)
        tokens = tracked.proven * self.block_size - num_computed_tokens
        if tokens <= 0 or tokens < self.kv_recompute_threshold:
            return 0, False
        return tokens, True

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        tracked = self._tracked.get(request.request_id)
        if tracked is None:
            return
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        tracked.allocated = True
        if not num_external_tokens:
            # Given back unread: its lease must not be renewed until the request ends.
            self._stop_heartbeat(request.request_id)
        # The workers watch exactly the requests that may be held when they end.
        if tracked.turn.keep:
            self._reqs_in_batch.add(request.request_id)
        elif not tracked.turn.prefill:
            self._reqs_in_batch.discard(request.request_id)

    def request_finished(self, request: Request, block_ids: Sequence[list[int]]) -> tuple[bool, dict[str, Any] | None]:
        tracked = self._tracked.pop(request.request_id, None)
        if tracked is None:
            return False, None
        if not tracked.allocated:
            self._end_unscheduled(request, tracked)
            return False, None
        if not tracked.turn.prefill and not tracked.turn.keep:
            self._stop_heartbeat(request.request_id)
            return False, None
        count = len(block_ids[0])
        proof = [bytes(item) for item in request.block_hashes[: self._provable(request, count)]]
        refused = self._refuse_to_hold(tracked.turn, count, proof)
        # One that failed or was aborted is not held either way: that is nobody's refusal.
        if refused is not None and request.status in _COMPLETE:
            self._recorder.retain_refused(refused.value)
            self._stop_heartbeat(request.request_id)
            self._reqs_not_processed.add(request.request_id)
            return False, None
        held, params = super().request_finished(request, block_ids)
        if not held or params is None:
            return held, None
        # Upstream exports decode's deadline only; without prefill's own a late reader would take what is gone.
        deadline = self._reqs_need_send[request.request_id]
        if tracked.turn.keep:
            self._kept[request.request_id] = _Kept(count, deadline)
            self._recorder.retained(self._kept_blocks)
        return True, params | {"remote_blocks_expiry_time": deadline, "proof": encode_proof(proof)}

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        super().update_connector_output(connector_output)
        for request_id in connector_output.finished_sending or ():
            kept = self._kept.pop(request_id, None)
            if kept is not None:
                self._recorder.retained_freed(self._kept_blocks, expired=self._clock() >= kept.deadline)

    def has_pending_push_work(self) -> bool:
        return self._recorder.has_news

    # ---- inside ----------------------------------------------------------------------------------------------------

    @property
    def _kept_blocks(self) -> int:
        return sum(kept.blocks for kept in self._kept.values())

    def _permitted(self, turn: Turn) -> Turn:
        """The turn without what this engine does not do: read decode or keep in one direction only, use a handle twice."""
        if self._settings.direction is Direction.PREFILL_TO_DECODE:
            if turn.keep:
                turn = replace(turn, keep=False, refused=Refused.DIRECTION)
            if turn.prefill and turn.handle is not None:
                turn = replace(turn, handle=None, refused=Refused.DIRECTION)
        if turn.handle is not None and not self._use_once(turn.handle.key):
            turn = replace(turn, handle=None, refused=Refused.REPLAYED)
        return turn

    def _use_once(self, key: tuple[str, str]) -> bool:
        """Whether the handle is new; remembered for as long as any owner may hold what a handle names."""
        now = self._clock()
        while self._used and next(iter(self._used.values())) <= now:
            self._used.popitem(last=False)
        if key in self._used:
            return False
        retain = self._settings.retain
        self._used[key] = now + max(retain.decoder_blocks_ttl_seconds, retain.lease_seconds)
        return True

    def _prove(self, request: Request, tracked: _Tracked) -> int:
        """Compare once, and leave in the parameters only what is proven: the base worker pairs blocks from the end."""
        handle = tracked.turn.handle
        params = request.kv_transfer_params
        if handle is None or params is None:
            return 0
        own = request.block_hashes
        args = handle.num_tokens, self.block_size, request.num_prompt_tokens
        proven = proven_blocks(handle.proof, own, *args)
        if proven < proven_blocks(handle.proof, handle.proof, *args):
            self._recorder.proof_mismatch()
        params["remote_num_tokens"] = proven * self.block_size
        params["remote_block_ids"] = [list(handle.block_ids[:proven])]
        return proven

    def _end_unscheduled(self, request: Request, tracked: _Tracked) -> None:
        """The request ended before it was scheduled: its handle is given back, so that the owner lets go at once."""
        self._stop_heartbeat(request.request_id)
        if tracked.turn.handle is not None:
            self._reqs_need_recv[request.request_id] = (request, [], (), False)

    def _provable(self, request: Request, num_blocks: int) -> int:
        return provable_blocks(
            request.num_computed_tokens, request.num_tokens, self.block_size, len(request.block_hashes), num_blocks
        )

    def _refuse_to_hold(self, turn: Turn, count: int, proof: list[bytes]) -> Refused | None:
        if not proof:
            return Refused.NO_PROOF
        percent = self._settings.retain.max_percent_of_blocks
        room = may_keep(count, kept_blocks=self._kept_blocks, total_blocks=self._total_blocks, max_percent=percent)
        return None if turn.prefill or room else Refused.CAP
