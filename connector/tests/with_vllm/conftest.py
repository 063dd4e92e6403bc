"""Engines without a model: vLLM's real scheduler, block pool and NIXL bookkeeping, and a network that is a dict.

What a model would compute is stood in for by a chain: the KV of a token is a hash of its predecessor's KV, as it lies in
the cache, and of the token. The next token is the last KV. So whoever reads the wrong blocks answers wrongly, as real
models do, and the right answer can be computed from the tokens alone.
"""

import json
import queue
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.config import CacheConfig, DeviceConfig, KVTransferConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import base_scheduler, base_worker, pull_scheduler, pull_worker
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import NixlPullConnectorWorker
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.stats import NixlKVConnectorStats
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256 as block_hash_function
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from pdd_connector.kv_transfer_config.build import upstream_extra
from pdd_connector.recorder import Recorder
from pdd_connector.retain.scheduler import RetainScheduler
from pdd_connector.settings import ConnectorSettings, Mechanism

BLOCK = 16
VOCABULARY = 1000


def _next_kv(kv: int, token: int) -> int:
    return int.from_bytes(sha256(f"{kv},{token}".encode()).digest()[:6])


@dataclass
class Clock:
    """`time.perf_counter` of every engine."""

    now: float = 1000.0

    def perf_counter(self) -> float:
        return self.now


class Worker(NixlPullConnectorWorker):  # type: ignore[misc]  # vLLM ships no types
    """vLLM's bookkeeping of what is sent and received; reads go through `network` and end at once."""

    def __init__(self, engine: "Engine") -> None:
        self.engine = engine
        self.inbox: list[bytes] = []
        self.nixl_wrapper = SimpleNamespace(get_new_notifs=self._take_inbox)
        self.transfer_topo = object()
        self.xfer_stats = NixlKVConnectorStats()
        self.pcp_rank, self.tp_rank = 0, 0
        self._physical_blocks_per_logical_kv_block = 1
        self._lease_extension = 20
        self._recving_metadata: dict[str, Any] = {}
        self._ready_requests: queue.Queue[Any] = queue.Queue()
        self._reqs_to_process: set[str] = set()
        self._reqs_to_send: dict[str, float] = {}
        self._engine_clock_offset: dict[str, float] = defaultdict(float)
        self.consumer_notification_counts_by_req: dict[str, int] = defaultdict(int)
        self.expected_consumer_notifications_by_req: dict[str, int] = {}
        self.received: set[str] = set()
        self.failed: set[str] = set()
        self.fail_next_read = False

    def _take_inbox(self) -> dict[str, list[bytes]]:
        taken, self.inbox = self.inbox, []
        return {"peer": taken}

    def _logical_to_kernel_block_ids(self, block_ids: Any, ratio: int) -> Any:
        return block_ids

    def _send_heartbeats(self, metadata: Any) -> None:
        pass

    def _read_blocks_for_req(self, req_id: str, meta: Any) -> None:
        owner = self.engine.network[meta.remote.engine_id]
        local = list(meta.local_block_ids[0]) if any(meta.local_block_ids) else []
        if local and (self.fail_next_read or self._is_turn2_read_expired(meta)):
            self.fail_next_read = False
            self.received.add(req_id)
            self.failed.add(req_id)
            return
        if local:
            # As the real worker does: paired by their ends.
            for mine, theirs in zip(local, list(meta.remote.block_ids[0])[-len(local) :], strict=True):
                self.engine.kv[mine] = dict(owner.kv[theirs])
            self.engine.blocks_read += len(local)
            self.received.add(req_id)
        owner.worker.inbox.append(f"{meta.remote.request_id}:1".encode())

    def output(self) -> KVConnectorOutput:
        """What this worker reports after a step."""
        done = self._get_new_notifs()
        self._reap_expired_send_leases(done)
        received, failed = self.received, self.failed
        self.received, self.failed = set(), set()
        metas = {request_id: self._recving_metadata.pop(request_id) for request_id in received}
        invalid = {block for request_id in failed for block in metas[request_id].local_block_ids[0]}
        return KVConnectorOutput(
            finished_sending=done, finished_recving=received, failed_recving=failed, invalid_block_ids=invalid
        )


@dataclass
class Result:
    """What a request came to; unfinished where it hangs."""

    tokens: list[int] = field(default_factory=list)
    params: dict[str, Any] | None = None
    finished: bool = False


class Engine:
    """One engine: submit requests, step, look at what it holds."""

    def __init__(self, config: VllmConfig, network: dict[str, "Engine"], clock: Clock) -> None:
        import torch

        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=16, dtype=torch.float32)
        groups = [KVCacheGroupSpec(["layer"], spec)]
        self.kv_cache_config = KVCacheConfig(
            num_blocks=config.cache_config.num_gpu_blocks, kv_cache_tensors=[], kv_cache_groups=groups
        )
        self.config, self.network, self.clock = config, network, clock
        self.scheduler = Scheduler(config, self.kv_cache_config, StructuredOutputManager(config), BLOCK)
        self.engine_id: str = config.kv_transfer_config.engine_id
        self.recorder = Recorder()
        self.worker = Worker(self)
        self.worker._bidirectional_kv_xfer_enabled = config.kv_transfer_config.get_from_extra_config(
            "bidirectional_kv_xfer", False
        )
        self.kv: dict[int, dict[int, int]] = defaultdict(dict)
        self.blocks_read = 0
        self.results: dict[str, Result] = {}
        self._hasher = get_request_block_hasher(BLOCK, block_hash_function)
        network[self.engine_id] = self

    def retain(self, settings: ConnectorSettings) -> "Engine":
        """Our scheduler's side instead of the stock one."""
        self.scheduler.connector.connector_scheduler = RetainScheduler(
            self.config, self.engine_id, self.kv_cache_config, settings, self.recorder, self.clock.perf_counter
        )
        return self

    @property
    def held(self) -> int:
        """Blocks that are referenced now."""
        return self.kv_cache_config.num_blocks - 1 - self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()

    def submit(self, prompt: list[int], params: Any = None, max_tokens: int = 1, salt: str | None = None) -> str:
        """Add a request; its id is returned."""
        request_id = f"{self.engine_id}-{len(self.results)}"
        # As over HTTP: nothing is shared with the sender, and a tuple is a list.
        extra = {"kv_transfer_params": json.loads(json.dumps(params))} if params else {}
        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True, extra_args=extra)
        self.scheduler.add_request(
            Request(request_id, list(prompt), sampling, None, cache_salt=salt, block_hasher=self._hasher)
        )
        self.results[request_id] = Result()
        return request_id

    def run(self, prompt: list[int], params: Any = None, max_tokens: int = 1, salt: str | None = None) -> Result:
        """Submit and step until the request ends, or for 40 steps."""
        request_id = self.submit(prompt, params, max_tokens, salt)
        for _ in range(40):
            if self.results[request_id].finished:
                break
            self.step()
        return self.results[request_id]

    def abort(self, request_id: str) -> None:
        self.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)

    def step(self) -> None:
        """One step, as the engine core takes it."""
        scheduled = self.scheduler.schedule()
        self.worker.start_load_kv(scheduled.kv_connector_metadata)
        ids = list(scheduled.num_scheduled_tokens)
        sampled = [self._compute(request_id, scheduled.num_scheduled_tokens[request_id]) for request_id in ids]
        output = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={request_id: index for index, request_id in enumerate(ids)},
            sampled_token_ids=sampled,
            kv_connector_output=self.worker.output(),
        )
        for outputs in self.scheduler.update_from_output(scheduled, output).values():
            for one in outputs.outputs:
                result = self.results[one.request_id]
                result.tokens += one.new_token_ids
                if one.finish_reason is not None:
                    result.finished, result.params = True, one.kv_transfer_params

    def _compute(self, request_id: str, count: int) -> list[int]:
        """Write the KV of the tokens scheduled last into the request's blocks; the next token, if it is due."""
        request = self.scheduler.requests[request_id]
        blocks = self.scheduler.kv_cache_manager.get_block_ids(request_id)[0]
        end = request.num_computed_tokens  # counted at scheduling
        tokens = list(request.all_token_ids)
        for position in range(end - count, end):
            before = position - 1
            kv = self.kv[blocks[before // BLOCK]].get(before % BLOCK, -1) if position else 0
            self.kv[blocks[position // BLOCK]][position % BLOCK] = _next_kv(kv, tokens[position])
        last = end - 1
        return [self.kv[blocks[last // BLOCK]][last % BLOCK] % VOCABULARY] if end == len(tokens) else []


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    names = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float32"}
    sizes = {"num_key_value_heads": 2, "vocab_size": VOCABULARY, "max_position_embeddings": 2048}
    (folder / "config.json").write_text(json.dumps(names | shape | sizes))
    return folder


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (base_scheduler, pull_scheduler, base_worker, pull_worker):
        monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def make_engine(model_folder: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Engine]]:
    """A factory: `make_engine("Prefill")` is ours, with `stock=True` upstream's; `extra` changes its configuration."""
    monkeypatch.setenv("VLLM_NIXL_SIDE_CHANNEL_HOST", "127.0.0.1")
    init_none_hash(block_hash_function)
    network: dict[str, Engine] = {}

    def make(
        role: str,
        *,
        stock: bool = False,
        settings: ConnectorSettings | None = None,
        num_blocks: int = 101,
        prefix_caching: bool = False,
        **extra: Any,
    ) -> Engine:
        settings = settings or ConnectorSettings(mechanism=Mechanism.RETAIN)
        transfer = KVTransferConfig(
            kv_connector="NixlConnector",
            kv_role="kv_producer" if role == "Prefill" else "kv_consumer",
            kv_buffer_device="cpu",
            kv_load_failure_policy="recompute",
            kv_connector_extra_config=upstream_extra(settings) | extra,
        )
        config = VllmConfig(
            model_config=ModelConfig(str(model_folder), skip_tokenizer_init=True, dtype="float32", max_model_len=2048),
            scheduler_config=SchedulerConfig(
                max_num_seqs=16, max_num_batched_tokens=2048, max_model_len=2048, is_encoder_decoder=False
            ),
            cache_config=CacheConfig(block_size=BLOCK, enable_prefix_caching=prefix_caching),
            kv_transfer_config=transfer,
            device_config=DeviceConfig("cpu"),
        )
        config.cache_config.num_gpu_blocks = num_blocks
        engine = Engine(config, network, clock)
        return engine if stock else engine.retain(settings)

    yield make
    for engine in network.values():
        engine.scheduler.shutdown()
