"""/metrics in Prometheus' text form: the vLLM series that the router and the tests read. Pure but for reading the core."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pdd_e2e.fake_engine.core import EngineCore


def render_metrics(core: "EngineCore") -> str:
    """The exposition; counters carry `_total` as on vLLM's wire, NIXL bytes are a histogram with one bucket."""
    core.expire()
    counters = core.counters
    gauges = {
        "vllm:num_requests_running": core.scheduler.running,
        "vllm:num_requests_waiting": core.scheduler.waiting,
        "vllm:kv_cache_usage_perc": core.pool.usage,
    }
    totals = {
        "vllm:prefix_cache_queries": counters.prefix_queries,
        "vllm:prefix_cache_hits": counters.prefix_hits,
        "vllm:external_prefix_cache_queries": counters.external_queries,
        "vllm:external_prefix_cache_hits": counters.external_hits,
        "vllm:prompt_tokens": counters.prefix_queries,
        "vllm:generation_tokens": counters.generated_tokens,
        "vllm:num_preemptions": counters.preemptions,
        "vllm:request_success": counters.finished,
        "vllm:nixl_num_kv_expired_reqs": core.retention.expired,
    }
    labels = f'{{engine="0",model_name="{core.settings.model}"}}'
    lines: list[str] = []
    for name, value in gauges.items():
        lines += [f"# TYPE {name} gauge", f"{name}{labels} {float(value)}"]
    for name, total in totals.items():
        lines += [f"# TYPE {name} counter", f"{name}_total{labels} {float(total)}"]
    name = "vllm:prompt_tokens_by_source"
    by_source = {
        "local_compute": counters.computed_prompt_tokens,
        "local_cache_hit": counters.prefix_hits,
        "external_kv_transfer": counters.external_hits,
    }
    lines.append(f"# TYPE {name} counter")
    lines += [
        name + "_total" + labels.replace("}", ',source="' + source + '"}') + f" {float(total)}"
        for source, total in by_source.items()
    ]
    name = "vllm:nixl_bytes_transferred"
    bucket = labels.replace("}", ',le="+Inf"}')
    lines += [
        f"# TYPE {name} histogram",
        f"{name}_bucket{bucket} {float(counters.reads)}",
        f"{name}_count{labels} {float(counters.reads)}",
        f"{name}_sum{labels} {float(counters.read_bytes)}",
    ]
    return "\n".join(lines) + "\n"
