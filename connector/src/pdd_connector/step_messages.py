"""What an engine's scheduler and its workers tell each other every step, besides what the base connector does."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorWorkerMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import NixlConnectorMetadata

from pdd_connector.claims.messages import Welcome


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
    unsettled: dict[str, tuple[int, ...]] = field(
        default_factory=dict
    )  # reads given up: ids of the blocks they may still write
    settled: tuple[str, ...] = ()  # such reads that have ended
    failures: dict[str, str] = field(default_factory=dict)  # request: why its read is not used


class PddWorkerMetadata(KVConnectorWorkerMetadata):  # type: ignore[misc]  # vLLM ships no types
    """Reports by rank; `aggregate` puts those of all workers of an engine together."""

    def __init__(self, reports: dict[int, RankReport]) -> None:
        self.reports = reports

    def aggregate(self, other: PddWorkerMetadata) -> PddWorkerMetadata:
        """Both reports: of different ranks, in the same step."""
        return PddWorkerMetadata({**self.reports, **other.reports})
