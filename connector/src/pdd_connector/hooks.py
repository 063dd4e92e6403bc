"""Everything of vLLM that this connector stands on, as one table.

A test reads the installed vLLM 0.32 and the wheel of 0.33 and checks every line against both, so a line belongs here
for each method that we override or wrap, each that we call, and each attribute that we read. Pure data.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Hook:
    """One thing in vLLM. `parameters` are all but `self` and `cls`, in order; None is an attribute or a constant."""

    module: str
    owner: str | None
    name: str
    parameters: tuple[str, ...] | None = None

    def __str__(self) -> str:
        return ".".join(part for part in (self.module, self.owner, self.name) if part)


def _methods(module: str, owner: str | None, **methods: str) -> tuple[Hook, ...]:
    """Methods, each with its parameters as one string."""
    return tuple(Hook(module, owner, name, tuple(parameters.split())) for name, parameters in methods.items())


def _attributes(module: str, owner: str | None, names: str) -> tuple[Hook, ...]:
    return tuple(Hook(module, owner, name) for name in names.split())


_BASE: Final = "vllm.distributed.kv_transfer.kv_connector.v1.base"
_NIXL: Final = "vllm.distributed.kv_transfer.kv_connector.v1.nixl"
_METRICS: Final = "vllm.distributed.kv_transfer.kv_connector.v1.metrics"
_CORE: Final = "vllm.v1.engine.core"
_SCHEDULER: Final = "vllm.v1.core.sched.scheduler"
_POOL: Final = "vllm.v1.core.block_pool"

CONNECTOR_HOOKS: Final = (
    *_methods(
        _BASE,
        "KVConnectorBase_V1",
        bind_gpu_block_pool="gpu_block_pool",
        bind_kv_cache_manager="kv_cache_manager",
        take_events="",
        has_pending_push_work="",
        shutdown="",
    ),
    *_methods(
        f"{_NIXL}.connector",
        "NixlPullConnector",
        __init__="vllm_config role kv_cache_config",
        start_load_kv="forward_context **kwargs",
    ),
    *_methods(
        f"{_NIXL}.connector",
        "NixlBaseConnector",
        get_num_new_matched_tokens="request num_computed_tokens",
        update_state_after_alloc="request blocks num_external_tokens",
        build_connector_meta="scheduler_output",
        on_new_request="request",
        update_connector_output="connector_output",
        request_finished="request block_ids",
        request_finished_all_groups="request block_ids",
        get_transfer_results="finished_req_ids",
        get_kv_connector_stats="",
        build_kv_connector_stats="data",
        build_prom_metrics="vllm_config metric_types labelnames per_engine_labelvalues",
    ),
    *_attributes(f"{_NIXL}.connector", "NixlBaseConnector", "connector_scheduler connector_worker engine_id"),
)

NIXL_SCHEDULER_HOOKS: Final = (
    *_methods(
        f"{_NIXL}.pull_scheduler",
        "NixlPullConnectorScheduler",
        get_num_new_matched_tokens="request num_computed_tokens",
        update_state_after_alloc="request blocks num_external_tokens",
        request_finished="request block_ids",
    ),
    *_methods(
        f"{_NIXL}.base_scheduler",
        "NixlBaseConnectorScheduler",
        on_new_request="request",
        update_connector_output="connector_output",
        build_connector_meta="scheduler_output",
        _stop_heartbeat="req_id",
    ),
    *_attributes(
        f"{_NIXL}.base_scheduler",
        "NixlBaseConnectorScheduler",
        "side_channel_host side_channel_port transfer_tp_size engine_id block_size use_host_buffer "
        "is_bidirectional_kv_xfer_enabled kv_recompute_threshold _reqs_in_batch _reqs_not_processed _reqs_need_send "
        "_reqs_need_recv",
    ),
    *_attributes(
        f"{_NIXL}.metadata",
        "NixlConnectorMetadata",
        "reqs_to_recv reqs_to_send reqs_in_batch reqs_not_processed scheduler_clock",
    ),
)

NIXL_WORKER_HOOKS: Final = (
    *_methods(
        f"{_NIXL}.pull_worker",
        "NixlPullConnectorWorker",
        start_load_kv="metadata",
        _get_new_notifs="",
        _read_blocks_for_req="req_id meta",
        _is_turn2_read_expired="meta",
    ),
    *_methods(
        f"{_NIXL}.base_worker",
        "NixlBaseConnectorWorker",
        get_kv_connector_stats="",
        get_transfer_results="",
        _ensure_handshake="engine_id host port tp_size dcp_size pp_size notif_agents_only",
        _cleanup_remote_engine="engine_id log_eviction",
        _try_release_xfer_handle="req_id handle",
        _compute_desc_ids="block_ids dst_num_blocks block_size_ratio physical_blocks_per_logical region_num_blocks "
        "region_group_ids uses_region_group_mapping",
        _logical_to_kernel_block_ids="block_ids ratio",
    ),
    *_attributes(
        f"{_NIXL}.base_worker",
        "NixlBaseConnectorWorker",
        "nixl_wrapper xfer_stats _remote_agents _reqs_to_process _reqs_to_send _recving_metadata _recving_transfers "
        "_recv_failures _invalid_remote_engines tp_mappings transfer_topo _engine_clock_offset dst_num_blocks dst_region_num_blocks "
        "dst_region_group_ids dst_uses_region_group_mapping dst_xfer_side_handles src_xfer_handles_by_block_size "
        "region_group_ids _uses_region_group_mapping _physical_blocks_per_logical_kv_block tp_rank",
    ),
    *_attributes(f"{_NIXL}.metadata", None, "NIXL_CONNECTOR_VERSION"),
)

METRICS_HOOKS: Final = (
    *_methods(
        f"{_NIXL}.stats",
        "NixlKVConnectorStats",
        reset="",
        clone_and_reset="",
        is_empty="",
        aggregate="other",
        reduce="",
    ),
    *_methods(
        f"{_NIXL}.stats",
        "NixlPromMetrics",
        __init__="vllm_config metric_types labelnames per_engine_labelvalues",
        observe="transfer_stats_data engine_idx",
    ),
    *_methods(_METRICS, "KVConnectorStats", to_dict=""),
    *_attributes(_METRICS, "KVConnectorPromMetrics", "_gauge_cls _counter_cls _histogram_cls per_engine_labelvalues"),
)

ENGINE_HOOKS: Final = (
    *_methods(_CORE, "EngineCoreProc", run_busy_loop=""),
    *_methods(_CORE, "DPEngineCoreProc", run_busy_loop=""),
    *_attributes(_CORE, "EngineCoreProc", "input_queue shutdown_state"),
    *_attributes(_CORE, "EngineShutdownState", "RUNNING"),
    *_methods(_SCHEDULER, "Scheduler", pause_state=""),
    *_attributes("vllm.v1.core.sched.interface", "PauseState", "UNPAUSED"),
    *_attributes("vllm.v1.engine", "EngineCoreRequestType", "WAKEUP"),
    *_methods(
        _SCHEDULER,
        "Scheduler",
        schedule="throttle_prefills",
        update_from_output="scheduler_output model_runner_output",
        add_request="request",
        finish_requests="request_ids finished_status",
        reset_prefix_cache="reset_running_requests reset_connector",
        set_pause_state="pause_state",
        has_requests="",
        make_stats="spec_decoding_stats kv_connector_stats cudagraph_stats perf_stats ec_connector_stats",
    ),
    *_methods(
        _POOL,
        "BlockPool",
        get_cached_block="block_hash kv_cache_group_ids",
        touch="blocks",
        free_blocks="ordered_blocks",
        get_num_free_blocks="",
    ),
    *_attributes(_POOL, "BlockPool", "num_gpu_blocks enable_caching"),
    *_attributes(_SCHEDULER, "Scheduler", "connector defer_block_free vllm_config"),
    *_methods("vllm.v1.engine.core", "EngineCore", get_weight_version=""),
    *_methods("vllm.config.vllm", "VllmConfig", max_concurrent_batches=""),
    *_methods("vllm.v1.core.kv_cache_manager", "KVCacheManager", get_blocks="request_id", get_block_ids="request_id"),
    *_attributes(
        "vllm.v1.request",
        "Request",
        "request_id kv_transfer_params block_hashes num_prompt_tokens num_computed_tokens status",
    ),
    *_methods("vllm.v1.request", "Request", num_tokens=""),
    *_attributes("vllm.v1.request", "RequestStatus", "FINISHED_LENGTH_CAPPED FINISHED_STOPPED"),
    *_attributes("vllm.v1.outputs", "KVConnectorOutput", "finished_sending finished_recving kv_connector_stats"),
)

PLUGIN_HOOKS: Final = (
    *_methods(
        "vllm.entrypoints.openai.chat_completion.serving",
        "OpenAIServingChat",
        chat_completion_stream_generator="request result_generator request_id model_name conversation tokenizer "
        "request_metadata chat_template_kwargs mm_token_counts",
    ),
    *_methods(
        "vllm.entrypoints.openai.completion.serving",
        "OpenAIServingCompletion",
        completion_stream_generator="request engine_inputs result_generator request_id created_time model_name "
        "num_prompts tokenizer request_metadata",
    ),
    *_attributes("vllm.outputs", "RequestOutput", "kv_transfer_params outputs"),
    *_attributes("vllm.outputs", "CompletionOutput", "index"),
    *_attributes("vllm.plugins", None, "DEFAULT_PLUGINS_GROUP"),
)

# Names that we put ours in place of, where they are looked up.
REPLACED_HOOKS: Final = (
    *_attributes("vllm.distributed.device_communicators.shm_broadcast", None, "sched_yield"),
    *_attributes("vllm.distributed.nixl_utils", None, "NixlWrapper"),
)

HOOKS: Final = (
    *CONNECTOR_HOOKS,
    *NIXL_SCHEDULER_HOOKS,
    *NIXL_WORKER_HOOKS,
    *METRICS_HOOKS,
    *ENGINE_HOOKS,
    *PLUGIN_HOOKS,
    *REPLACED_HOOKS,
)

NIXL_HOOKS: Final = _attributes("nixl_cu13._api", None, "nixlBind nixl_agent nixl_agent_config")
"""What of NIXL itself: both versions of vLLM run with the same."""
