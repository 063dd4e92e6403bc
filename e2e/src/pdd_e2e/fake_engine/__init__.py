"""A fake vLLM engine for tests: the HTTP surface, claims, handles, prefix cache and timing of the real one.

`async with FakeEngine(fabric=FakeFabric(), role="Prefill", name="p") as engine:` serves on `engine.url`. Engines that
share a fabric reach each other's claim channels. Nothing here imports the connector or the router; the contract suite
(tests/contract) holds it against real engines.
"""

from pdd_e2e.fake_engine.claims import Address, Outcome, Reason, Receipt
from pdd_e2e.fake_engine.engine import FakeEngine
from pdd_e2e.fake_engine.fabric import FakeFabric
from pdd_e2e.fake_engine.faults import (
    Abort,
    Answer,
    BrokenRead,
    CloseWithoutDone,
    Die,
    ErrorIn200,
    Fault,
    FinishError,
    GarbageJson,
    HangAfterDone,
    HangBeforeHeaders,
    HangMidStream,
    LateAnswer,
    MalformedSse,
    RefuseClaim,
    ResetAfterBytes,
    ResetAfterEvents,
    ResetBeforeHeaders,
    SlowChunks,
    SlowRead,
    Status,
    ToolCalls,
)
from pdd_e2e.fake_engine.http import RecordedRequest
from pdd_e2e.fake_engine.settings import EngineSettings, Mechanism, Role

__all__ = [
    "Abort",
    "FakeEngine",
    "FakeFabric",
    "EngineSettings",
    "Role",
    "Mechanism",
    "RecordedRequest",
    "Address",
    "Outcome",
    "Reason",
    "Receipt",
    "Fault",
    "Status",
    "HangAfterDone",
    "HangBeforeHeaders",
    "HangMidStream",
    "ResetBeforeHeaders",
    "ResetAfterBytes",
    "ResetAfterEvents",
    "SlowChunks",
    "CloseWithoutDone",
    "FinishError",
    "MalformedSse",
    "GarbageJson",
    "ErrorIn200",
    "Die",
    "Answer",
    "ToolCalls",
    "RefuseClaim",
    "LateAnswer",
    "SlowRead",
    "BrokenRead",
]
