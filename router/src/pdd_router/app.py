"""The application: builds everything from a configuration, runs the background tasks, opens the socket, drains.

The only place that creates services; must hold no logic of its own.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import structlog
from aiohttp import web

from pdd_router.admission import Admission
from pdd_router.bodies import Bodies
from pdd_router.config import Mechanism, RouterConfig
from pdd_router.endpoints.discovery import parse_engines
from pdd_router.endpoints.health import HealthChecks
from pdd_router.endpoints.registry import Registry
from pdd_router.flow.budget import RetryBudget
from pdd_router.flow.deadlines import Deadlines
from pdd_router.flow.introducer import Introducer
from pdd_router.flow.services import Services, policy_of
from pdd_router.following import FollowedFile, Following, read_named
from pdd_router.handlers import add_routes, errors_in_openai_form, finish_headers
from pdd_router.keys import GATE, SERVICES, Gate
from pdd_router.metrics import DiscoveryMetrics, Metrics
from pdd_router.pods.discovery import Discovery
from pdd_router.pods.reading import Ports
from pdd_router.pods.watching import Pace
from pdd_router.policy.conversations import Conversations
from pdd_router.policy.estimate import TokenEstimator
from pdd_router.server import RouterSite
from pdd_router.tenancy import ApiKeys, Salts, parse_api_keys, parse_salt_secret
from pdd_router.upstream import Upstream

_log = structlog.get_logger(__name__)
_PACE = Pace()
_LAST_WORDS_SECONDS = 1.0  # after the time for what is in flight: to say that it is over to whoever reads
_ENGINES, _KEYS, _SALT = "enginesFile", "authentication.apiKeysFile", "tenancy.saltSecretFile"


@dataclass(slots=True)
class Router:
    """A running router. ``url``: where it listens."""

    url: str
    services: Services
    gate: Gate
    files: list[Following] = field(default_factory=list)


def check_files(config: RouterConfig) -> None:
    """Read every file that the configuration names. Raises ConfigError, which begins with the setting."""
    if config.engines_file is not None:
        read_named(_ENGINES, config.engines_file, parse_engines)
    if config.authentication.api_keys_file is not None:
        read_named(_KEYS, config.authentication.api_keys_file, parse_api_keys)
    if config.tenancy.salt_secret_file is not None:
        read_named(_SALT, config.tenancy.salt_secret_file, parse_salt_secret)


@asynccontextmanager
async def running(config: RouterConfig, *, pace: Pace = _PACE) -> AsyncIterator[Router]:
    """Start a router and stop it on leaving: readiness gone and, after a while, no new connection; what is in flight ends.

    ``pace``: of discovery on Kubernetes. Raises ConfigError where a file that the configuration names is bad, OSError
    where the socket cannot be opened.
    """
    async with AsyncExitStack() as stack:
        services = _build_services(config)
        stack.push_async_callback(services.upstream.close)
        gate = Gate()
        files = _followed_files(config, services, gate)
        for file in files:
            file.load()
        await stack.enter_async_context(_discovering(config, services, pace))
        app = web.Application(middlewares=[errors_in_openai_form], client_max_size=config.limits.max_body_bytes)
        app[SERVICES], app[GATE] = services, gate
        app.on_response_prepare.append(finish_headers)
        add_routes(app)
        tasks = await stack.enter_async_context(_background(config, services, files))
        # A client that goes away cancels its handler, and with it the legs on the engines.
        grace = config.shutdown.grace_seconds
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=grace + _LAST_WORDS_SECONDS)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        site = RouterSite(runner, config.listen.host, config.listen.port, config.limits)
        await site.start()
        _log.info("Started router", url=site.name, mechanism=config.mechanism, background_tasks=len(tasks))
        yield Router(site.name, services, gate, files)
        gate.draining = True
        await asyncio.sleep(config.shutdown.ready_delay_seconds)
        services.deadlines.stop_at(asyncio.get_running_loop().time() + grace)
        _log.info("Stopping router", in_flight=services.admission.in_flight)


def _build_services(config: RouterConfig) -> Services:
    limits, clock = config.limits, time.monotonic
    secret_file = config.tenancy.salt_secret_file
    secret = secrets.token_bytes(32) if secret_file is None else read_named(_SALT, secret_file, parse_salt_secret)
    metrics = Metrics()
    registry = Registry(
        clock=clock, breaker=config.breaker, introductions=config.introductions, direction=config.direction
    )
    return Services(
        config=config,
        policy=policy_of(config),
        registry=registry,
        upstream=Upstream(limits, config.timeouts),
        conversations=Conversations(
            clock=clock, ttl_seconds=config.conversation_ttl_seconds, max_entries=limits.max_conversations
        ),
        estimator=TokenEstimator(),
        budget=RetryBudget(percent=config.retries.budget_percent, burst=config.retries.burst),
        admission=Admission(
            max_concurrent=limits.max_concurrent_requests,
            max_queued=limits.max_queued_requests,
            timeout_seconds=limits.queue_timeout_seconds,
        ),
        bodies=Bodies(limits.max_body_bytes),
        deadlines=Deadlines(),
        metrics=metrics,
        salts=Salts(secret, config.tenancy.cache_isolation),
        log_secret=secret,
        clock=clock,
        discovery=Discovery(registry, DiscoveryMetrics(metrics.registry), clock) if config.discovery else None,
    )


def _followed_files(config: RouterConfig, services: Services, gate: Gate) -> list[Following]:
    def count(name: str, good: bool) -> None:
        services.metrics.files.labels(name, "Applied" if good else "Refused").inc()

    def apply_keys(keys: ApiKeys) -> None:
        gate.keys = keys

    files: list[Following] = []
    if config.engines_file is not None:
        files.append(
            FollowedFile(
                _ENGINES, config.engines_file, parse=parse_engines, apply=services.registry.replace, on_result=count
            )
        )
    if config.authentication.api_keys_file is not None:
        files.append(
            FollowedFile(
                _KEYS, config.authentication.api_keys_file, parse=parse_api_keys, apply=apply_keys, on_result=count
            )
        )
    return files


@asynccontextmanager
async def _discovering(config: RouterConfig, services: Services, pace: Pace) -> AsyncIterator[None]:
    if config.discovery is None or services.discovery is None:
        yield
        return
    from pdd_router.pods.api import KubernetesPods, read_access  # time and 30 MB, which a router with a file saves

    wanted = config.discovery.kubernetes
    ports = Ports(wanted.engine_port, wanted.claim_port if config.mechanism is Mechanism.CLAIM else None)
    async with services.discovery.following(KubernetesPods(read_access(), wanted, pace), ports, pace):
        yield


@asynccontextmanager
async def _background(
    config: RouterConfig, services: Services, files: list[Following]
) -> AsyncIterator[list[asyncio.Task[None]]]:
    checks = HealthChecks(services.registry, services.upstream, config.health)
    work = [file.follow(config.follow_files_seconds) for file in files] + [checks.run()]
    if config.mechanism is Mechanism.CLAIM:
        introducer = Introducer(
            services.registry, services.upstream, config.introductions, services.metrics, services.clock
        )
        work.append(introducer.run())
    tasks = [asyncio.create_task(item) for item in work]
    for task in tasks:
        task.add_done_callback(_log_death)
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _log_death(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("Background task died", task=task.get_name(), exception=type(error).__name__)
