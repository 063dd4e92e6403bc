"""Reads the engines' counters from their /metrics and adds up what tells whether KV is reused.

Layer 2: network only, no decision; observe.reuse judges. An engine's answer is a stranger's: bounded in time and size, only
the lines that are wanted are parsed, and one that cannot be read counts as an engine that did not answer.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import aiohttp
import structlog
from prometheus_client.parser import text_string_to_metric_families

from pdd_operator.api.labels import ENGINE_COMPONENTS, ROLE, Component
from pdd_operator.api.objects import Manifest
from pdd_operator.observe.groups import is_ready, label_of
from pdd_operator.observe.observed import ReuseSample
from pdd_operator.observe.reuse import REFUSALS
from pdd_operator.render.ports import ENGINE_PORT

_log = structlog.stdlib.get_logger(__name__)

TIMEOUT_SECONDS: Final = 5.0
DEADLINE_SECONDS: Final = 15.0
"""For all engines of one object; what has not answered by then did not answer."""
MAX_ANSWER_BYTES: Final = 512 << 10
"""Some hundred series of each of eight data-parallel ranks; a hostile engine costs no more memory and time than that."""
MAX_LINE_CHARACTERS: Final = 1024
MAX_LINES: Final = 512
MAX_VALUE: Final = 1e18
MAX_AT_ONCE: Final = 8

_LABELS: Final[Mapping[str, str | None]] = {
    "vllm:prompt_tokens_total": None,
    "vllm:external_prefix_cache_hits_total": None,
    "vllm:nixl_bytes_transferred_sum": None,
    "vllm:nixl_num_kv_expired_reqs_total": None,
    "vllm:pdd_read_bytes_total": "direction",
    "vllm:pdd_read_tokens_total": "direction",
    "vllm:pdd_claim_outcomes_total": "outcome",
    "vllm:pdd_claims_refused_total": "reason",
    "vllm:pdd_reads_failed_total": "reason",
    "vllm:pdd_retained_total": None,
    "vllm:pdd_retain_refused_total": "reason",
    "vllm:pdd_retain_expired_total": None,
}
"""Samples that are wanted, by the names they have on the wire, and the label that tells them apart."""
_ASKED: Final = ("Read", "Empty", "Late", "Refused", "Unconnected", "Failed")
"""Outcomes of requests for which an owner was asked."""
_TO_PREFILL: Final = "DecodeToPrefill"
OTHER: Final = "Other"
_KNOWN: Final = frozenset((*_ASKED, _TO_PREFILL, *REFUSALS))
"""Values of labels that are told apart. All others count as ``OTHER``: what an engine invents must not fill the memory."""


class UnreadableAnswerError(Exception):
    """What an engine sent as /metrics is too large or not what it should be."""


@dataclass(frozen=True, slots=True)
class Counters:
    """One engine's sums over its data-parallel ranks, by name and value of the label ("" without one)."""

    values: Mapping[tuple[str, str], float]

    def of(self, name: str, label: str = "") -> float:
        return self.values.get((name, label), 0.0)

    def total(self, name: str) -> float:
        return sum(self.by_label(name).values())

    def by_label(self, name: str) -> dict[str, float]:
        return {label: value for (found, label), value in self.values.items() if found == name}

    @property
    def counts_claims(self) -> bool:
        """Our connector counts what it reads by claims; what others read, NIXL counts."""
        return self.total("vllm:pdd_read_bytes_total") > 0

    @property
    def bytes_read(self) -> float:
        name = "vllm:pdd_read_bytes_total" if self.counts_claims else "vllm:nixl_bytes_transferred_sum"
        return self.total(name)

    @property
    def bytes_from_decode(self) -> float:
        """Of a prefill engine. Without claims it reads from decode alone."""
        if self.counts_claims:
            return self.of("vllm:pdd_read_bytes_total", _TO_PREFILL)
        return self.bytes_read

    @property
    def tokens_read(self) -> float:
        name = "vllm:pdd_read_tokens_total" if self.counts_claims else "vllm:external_prefix_cache_hits_total"
        return self.total(name)

    @property
    def expired(self) -> float:
        return self.of("vllm:pdd_retain_expired_total") or self.of("vllm:nixl_num_kv_expired_reqs_total")


async def sample_engines(pods: Sequence[Manifest], port: int = ENGINE_PORT) -> ReuseSample:
    """The sum over all ready engines among ``pods``. Never raises for what an engine does; ends in time (``DEADLINE_SECONDS``)."""
    engines = [pod for pod in pods if label_of(pod, ROLE) in ENGINE_COMPONENTS and is_ready(pod) and _address(pod)]
    turns = asyncio.Semaphore(MAX_AT_ONCE)
    # No proxy from the environment, no cookies, nothing decompressed: a small answer must not become a large one.
    async with aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=False,
    ) as session:
        read = await _in_time([asyncio.create_task(_read_engine(session, turns, pod, port)) for pod in engines])
    answered = [(pod, counters) for pod, counters in zip(engines, read, strict=True) if counters is not None]
    prefill = [counters for pod, counters in answered if label_of(pod, ROLE) == Component.PREFILL]
    decode = [counters for pod, counters in answered if label_of(pod, ROLE) == Component.DECODE]
    processes = frozenset(_process(pod) for pod, _ in answered)
    return add_up(prefill, decode, processes, datetime.now(UTC), asked=len(engines))


def add_up(
    prefill: Sequence[Counters], decode: Sequence[Counters], engines: frozenset[str], taken_at: datetime, *, asked: int
) -> ReuseSample:
    """One sample of many engines, of ``asked`` ones. Pure."""
    refused: dict[str, float] = defaultdict(float)
    for counters in prefill:
        _add(refused, counters.by_label("vllm:pdd_claims_refused_total"))
    for counters in (*prefill, *decode):
        _add(refused, counters.by_label("vllm:pdd_retain_refused_total"))
    outcomes: dict[str, float] = defaultdict(float)
    for counters in prefill:
        _add(outcomes, counters.by_label("vllm:pdd_claim_outcomes_total"))
    kept = sum(counters.of("vllm:pdd_retained_total") for counters in decode)
    return ReuseSample(
        taken_at=taken_at,
        engines_asked=asked,
        engines_read=len(prefill) + len(decode),
        prefill_bytes_read=sum(counters.bytes_read for counters in prefill),
        decode_bytes_read=sum(counters.bytes_read for counters in decode),
        prefill_tokens_read=sum(counters.tokens_read for counters in prefill),
        claims_asked=sum(outcomes[outcome] for outcome in _ASKED) + kept,
        claims_empty=outcomes["Empty"],
        claims_refused=dict(refused),
        claims_late=outcomes["Late"] + sum(counters.expired for counters in (*prefill, *decode)),
        decode_to_prefill_bytes_read=sum(counters.bytes_from_decode for counters in prefill),
        prefill_prompt_tokens=sum(counters.of("vllm:prompt_tokens_total") for counters in prefill),
        claims_unconnected=outcomes["Unconnected"],
        reads_failed=sum(counters.total("vllm:pdd_reads_failed_total") for counters in prefill),
        engines=engines,
    )


def parse_counters(text: str) -> Counters:
    """From Prometheus' text form. Raises UnreadableAnswerError."""
    lines = [line for line in text.splitlines() if line.startswith(tuple(_LABELS))]
    if len(lines) > MAX_LINES or any(len(line) > MAX_LINE_CHARACTERS for line in lines):
        raise UnreadableAnswerError("too many or too long lines")
    if not lines:
        raise UnreadableAnswerError("no counters of vLLM")
    values: dict[tuple[str, str], float] = defaultdict(float)
    try:
        families = list(text_string_to_metric_families("\n".join(lines) + "\n"))
    except (ValueError, IndexError, KeyError, TypeError) as error:  # what its parser does with what is no exposition
        raise UnreadableAnswerError(f"not Prometheus' text form: {error}") from error
    for family in families:
        for sample in family.samples:
            if sample.name not in _LABELS:
                continue
            if not 0 <= sample.value <= MAX_VALUE:
                raise UnreadableAnswerError(f"{sample.name} is {sample.value}")
            label = _LABELS[sample.name]
            value = "" if label is None else sample.labels.get(label, "")
            values[(sample.name, value if not value or value in _KNOWN else OTHER)] += sample.value
    return Counters(dict(values))


async def _in_time(reading: Sequence[asyncio.Task[Counters | None]]) -> list[Counters | None]:
    """What each found; None for what did not end by the deadline."""
    try:
        if reading:
            await asyncio.wait(reading, timeout=DEADLINE_SECONDS)
    finally:
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
    return [None if task.cancelled() else task.result() for task in reading]


async def _read_engine(
    session: aiohttp.ClientSession, turns: asyncio.Semaphore, pod: Manifest, port: int
) -> Counters | None:
    """None if it did not give a readable answer in time."""
    url = f"http://{_address(pod)}:{port}/metrics"
    try:
        async with turns, session.get(url, allow_redirects=False) as response:
            if response.status != 200:
                raise UnreadableAnswerError(f"HTTP {response.status}")
            text = await _text(response)
        # Not in the event loop, which also serves the probes and the queue.
        return await asyncio.to_thread(parse_counters, text)
    except (aiohttp.ClientError, TimeoutError, OSError, UnreadableAnswerError) as error:
        name = pod["metadata"]["name"]
        _log.debug("Could not read an engine's counters", pod=name, error=f"{type(error).__name__}: {error}")
        return None


async def _text(response: aiohttp.ClientResponse) -> str:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > MAX_ANSWER_BYTES:
            raise UnreadableAnswerError(f"more than {MAX_ANSWER_BYTES} bytes")
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UnreadableAnswerError("not UTF-8") from error


def _address(pod: Manifest) -> str:
    address = str((pod.get("status") or {}).get("podIP") or "")
    return f"[{address}]" if ":" in address else address


def _process(pod: Manifest) -> str:
    """Changes with every start of the engine's container, as its counters then begin anew."""
    containers: Iterable[Mapping[str, object]] = (pod.get("status") or {}).get("containerStatuses") or []
    starts = next((status.get("restartCount") for status in containers if status.get("name") == "engine"), 0)
    return f"{pod['metadata'].get('uid')}/{starts}"


def _add(into: dict[str, float], more: Mapping[str, float]) -> None:
    for key, value in more.items():
        into[key] += value
