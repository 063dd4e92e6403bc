"""What a turn needs, given once by the application: no globals, everything replaceable in a test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pdd_router.admission import Admission
from pdd_router.bodies import Bodies
from pdd_router.config import RouterConfig
from pdd_router.endpoints.registry import Registry
from pdd_router.flow.budget import RetryBudget
from pdd_router.flow.deadlines import Deadlines
from pdd_router.metrics import Metrics
from pdd_router.pods.discovery import Discovery
from pdd_router.policy.conversations import Conversations
from pdd_router.policy.decide import Policy
from pdd_router.policy.estimate import TokenEstimator
from pdd_router.tenancy import Salts
from pdd_router.upstream import Upstream


@dataclass(frozen=True, slots=True)
class Services:
    config: RouterConfig
    policy: Policy
    registry: Registry
    upstream: Upstream
    conversations: Conversations
    estimator: TokenEstimator
    budget: RetryBudget
    admission: Admission
    bodies: Bodies
    deadlines: Deadlines
    metrics: Metrics
    salts: Salts
    log_secret: bytes
    clock: Callable[[], float]
    discovery: Discovery | None = None


def policy_of(config: RouterConfig) -> Policy:
    return Policy(
        mechanism=config.mechanism,
        direction=config.direction,
        on_prefill_failure=config.on_prefill_failure,
        recompute_threshold_tokens=config.recompute_threshold_tokens,
        run_on_decode_below_tokens=config.run_on_decode_below_tokens,
        max_owners=config.claim.max_owners_asked,
        sticky_slack=config.balance.sticky_slack,
        max_concurrent_per_engine=config.balance.max_concurrent_per_engine,
    )
