"""One look at one PDDeployment: gather → parse → size → render → plan → act → status → events.

Level-based: it never asks what happened, only how things are, so it may be killed anywhere and begun again. What it remembers between two
looks spares calls and repeats; losing it costs nothing else. Synchronous: runs in a worker thread, one thread per object at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import structlog

from pdd_operator.actions import Execution, execute, sentence_of
from pdd_operator.api import labels
from pdd_operator.api.names import NamespacedName, ObjectRef, engine_set_name
from pdd_operator.api.objects import Action, Apply, Manifest, Rendered, ref_of
from pdd_operator.api.parse import InvalidSpecError, parse_deployment
from pdd_operator.api.v1alpha1 import PDDeployment
from pdd_operator.errors import (
    ClusterError,
    ConflictError,
    LeaseLostError,
    NamespaceEndingError,
    NotFoundError,
    OperatorError,
    TransientError,
)
from pdd_operator.kube import kinds
from pdd_operator.kube.cluster import Cluster
from pdd_operator.kube.events import EventRecorder
from pdd_operator.metrics import Metrics
from pdd_operator.observe.events import Event, events_between, left_to_another, secret_found
from pdd_operator.observe.observed import Observed, ReuseWindow
from pdd_operator.observe.outcome import Failure, ReconcileOutcome, RolloutPlan
from pdd_operator.observe.ownership import operator_of
from pdd_operator.observe.refusals import sets_without_pods
from pdd_operator.observe.rollout import plan_rollout
from pdd_operator.observe.status import compute_status
from pdd_operator.plan import Plan, plan
from pdd_operator.render.inputs import ClusterFacts, RenderSettings
from pdd_operator.render.manifests import render
from pdd_operator.render.permissions import require_permitted
from pdd_operator.render.revision import revision_of
from pdd_operator.secret_presence import (
    SecretMemory,
    is_of_predecessor,
    look_for_secrets,
    name_of,
    owner_of,
    told_of_replaced,
    uid_of,
)
from pdd_operator.workqueue import Done, Retry

_log = structlog.stdlib.get_logger(__name__)

REFUSED_AGAIN_SECONDS = 30.0
UNFINISHED_AGAIN_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Clocks:
    """``now``: aware, UTC; ``monotonic``: seconds."""

    now: Callable[[], datetime]
    monotonic: Callable[[], float]


@dataclass(slots=True)
class _Memory:
    """Of one PDDeployment, since this process began: another one of its name is another one."""

    uid: str
    secrets: SecretMemory = field(default_factory=SecretMemory)
    settled: dict[ObjectRef, tuple[str, str]] = field(default_factory=dict)
    """Objects whose apply changed nothing although they seemed to differ: hash and version of then."""


@dataclass(frozen=True, slots=True)
class _Look:
    """What one look decided: what was seen after it acted, its outcome, and what is to be told."""

    observed: Observed
    parsed: PDDeployment | None
    outcome: ReconcileOutcome
    done: tuple[Action, ...] = ()
    told: tuple[Event, ...] = ()
    again_seconds: float | None = None
    interrupted: TransientError | None = None
    conflict: bool = False


class Reconciler:
    """``identity``: of this installation of the operator, the same in every process of it. ``reuse``: what was last sampled from the engines of an object; ``saw``: is told what was read, and when
    (monotonic) reading began."""

    def __init__(
        self,
        cluster: Cluster,
        settings: RenderSettings,
        events: EventRecorder,
        metrics: Metrics,
        clocks: Clocks,
        *,
        identity: str,
        resync_seconds: float,
        reuse: Callable[[NamespacedName], ReuseWindow],
        saw: Callable[[Observed, float], None],
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._events = events
        self._metrics = metrics
        self._clocks = clocks
        self._identity = identity
        self._resync_seconds = resync_seconds
        self._reuse = reuse
        self._saw = saw
        self._memories: dict[NamespacedName, _Memory] = {}
        self._lock = threading.Lock()

    def reconcile(self, key: NamespacedName) -> Done | Retry:
        """Never raises: what fails is counted, logged and tried again."""
        started = self._clocks.monotonic()
        self._cluster.take_call_count()
        with structlog.contextvars.bound_contextvars(namespace=key.namespace, name=key.name):
            result, verdict = self._guarded(key)
        self._metrics.observe_reconcile(result, self._clocks.monotonic() - started)
        return replace(verdict, calls=self._cluster.take_call_count())

    def _guarded(self, key: NamespacedName) -> tuple[str, Done | Retry]:
        try:
            return self._reconcile(key)
        except LeaseLostError:
            return "lost", Retry()
        except NamespaceEndingError:
            _log.info("Left alone, its namespace is being deleted")
            return "gone", Done()
        except (ConflictError, NotFoundError) as error:
            _log.info("It changed or went while it was looked at", error=str(error))
            return "retried", Retry()
        except TransientError as error:
            _log.warning("Could not reconcile, the API server is not available", error=str(error))
            return "retried", Retry(at_least_seconds=error.retry_after_seconds or 0.0)
        except OperatorError as error:
            _log.warning("Could not reconcile", error=str(error))
            return "retried", Retry()
        except Exception:  # noqa: BLE001  # the last line of defence: a bug in one object's path must not end the others'
            _log.exception("Could not reconcile, this is a bug of the operator")
            return "failed", Retry()

    def _reconcile(self, key: NamespacedName) -> tuple[str, Done | Retry]:
        deployment = self._cluster.get_deployment(key)
        if deployment is None or deployment["metadata"].get("deletionTimestamp"):
            with self._lock:
                self._memories.pop(key, None)
            return "gone", Done(gone=True)
        if not (operator := operator_of(deployment)):
            # Before anything else is written: of two operators that see a new object at once, one gets a conflict.
            claimed = {**(deployment.get("status") or {}), "operator": self._identity}
            deployment = self._cluster.apply_status(key, claimed, _version(deployment))
        elif operator != self._identity:
            # Not even its status, which two would write in turns for ever.
            self._events.record(deployment, left_to_another(operator, self._identity))
            return "left", Done()
        memory = self._memory(key, deployment["metadata"]["uid"])
        look = self._look(self._gather(key, deployment), memory)
        if look.interrupted is None or look.interrupted.retry_after_seconds is None:
            self._tell(look)  # a server that asks to wait is not even told
        return self._verdict(look)

    def _memory(self, key: NamespacedName, uid: str) -> _Memory:
        with self._lock:
            if self._memories.setdefault(key, _Memory(uid)).uid != uid:
                self._memories[key] = _Memory(uid)
            return self._memories[key]

    def _gather(self, key: NamespacedName, deployment: Manifest) -> Observed:
        began = self._clocks.monotonic()
        children = self._cluster.list_children(key)
        refusals = {ref: self._cluster.last_refusal(key.namespace, uid) for ref, uid in sets_without_pods(children)}
        pods = self._cluster.list_pods(key)
        observed = Observed(deployment, children, pods, self._reuse(key), self._clocks.now(), refusals)
        self._saw(observed, began)
        return observed

    # ---- deciding and acting ------------------------------------------------------------------------------------

    def _look(self, observed: Observed, memory: _Memory) -> _Look:
        try:
            parsed = parse_deployment(observed.deployment)
        except InvalidSpecError as error:
            return _Look(observed, None, ReconcileOutcome(problems=_problems(error)))
        try:
            return self._act(observed, parsed, memory)
        except InvalidSpecError as error:  # what this operator has no leave, data or default image for
            return _Look(observed, None, ReconcileOutcome(problems=_problems(error)))
        except (LeaseLostError, NamespaceEndingError, TransientError):
            raise
        except ClusterError as error:
            return _Look(observed, parsed, ReconcileOutcome(failures=(Failure(error.reason, str(error)),)))
        except Exception as error:  # noqa: BLE001  # to be said in status, and the other objects must go on
            _log.exception("Could not decide, this is a bug of the operator")
            failure = Failure("InternalError", f"{type(error).__name__}: {error}")
            return _Look(observed, parsed, ReconcileOutcome(failures=(failure,)))

    def _act(self, observed: Observed, parsed: PDDeployment, memory: _Memory) -> _Look:
        require_permitted(parsed.spec, self._settings)
        revision = revision_of(parsed, self._settings)
        paused = parsed.metadata.annotations.get(labels.RECONCILE) == labels.PAUSED
        if paused:  # status is about what runs: another revision begins when work goes on
            revision = (observed.deployment.get("status") or {}).get("revision") or revision
        observed = self._with_lost_sets(observed, revision)
        sizes = plan_rollout(parsed.spec, revision, observed)
        if paused:
            return _Look(observed, parsed, ReconcileOutcome(revision, paused=True, rollout=sizes))
        rendered = render(parsed, self._settings, self._facts(), sizes.replicas)
        observed = self._with_unlabelled(observed, rendered)
        monotonic = self._clocks.monotonic()
        secrets = look_for_secrets(self._cluster, observed, rendered, memory.secrets, monotonic, self._resync_seconds)
        planned = self._plan(observed, rendered, sizes, secrets.missing, memory)
        execution, held = self._execute(observed, planned)
        self._remember(observed, execution, memory)
        failures = (*execution.failures, *(_foreign(ref, planned, observed) for ref in planned.foreign))
        outcome = ReconcileOutcome(revision, rollout=sizes, failures=failures, actions=len(planned.actions), held=held)
        return _Look(
            replace(observed, children=execution.children),
            parsed,
            outcome,
            tuple(execution.done),
            (*told_of_replaced(observed, execution.made), *map(secret_found, secrets.found)),
            secrets.again_seconds,
            execution.interrupted,
            execution.conflict,
        )

    def _facts(self) -> ClusterFacts:
        return ClusterFacts(
            pod_monitors=self._cluster.has_kind(kinds.POD_MONITOR),
            grafana_dashboards=self._cluster.has_kind(kinds.GRAFANA_DASHBOARD),
        )

    def _plan(
        self, observed: Observed, rendered: Rendered, sizes: RolloutPlan, missing: Iterable[str], memory: _Memory
    ) -> Plan:
        meta = observed.deployment["metadata"]
        planned = plan(
            rendered,
            observed.children,
            sizes,
            name=meta["name"],
            uid=meta["uid"],
            missing_secrets=frozenset(missing),
        )
        actions = tuple(action for action in planned.actions if not _is_settled(action, observed, memory))
        held = tuple(one for one in planned.held if not _is_settled(one.apply, observed, memory))
        return replace(planned, actions=actions, held=held)

    def _execute(self, observed: Observed, planned: Plan) -> tuple[Execution, tuple[ObjectRef, ...]]:
        """And what still waits: nothing waits for a set that could not be changed, or that needs no change."""
        execution = execute(self._cluster, observed.deployment, observed.children, planned.actions)
        changing = {ref_of(action.manifest) for action in execution.done if isinstance(action, Apply)}
        freed = [one.apply for one in planned.held if one.behind is not None and one.behind not in changing]
        if freed and execution.interrupted is None:
            more = execute(self._cluster, observed.deployment, execution.children, freed)
            execution.children = more.children
            execution.done += more.done
            execution.failures += more.failures
            execution.interrupted, execution.conflict = more.interrupted, execution.conflict or more.conflict
        return execution, tuple(ref_of(one.apply.manifest) for one in planned.held if one.apply not in freed)

    def _with_lost_sets(self, observed: Observed, revision: str) -> Observed:
        """Adds StatefulSets that lost their labels, of every group known: sizes are decided by what runs, not by what is labelled."""
        meta = observed.deployment["metadata"]
        groups = (observed.deployment.get("status") or {}).get("groups") or ()
        known = {revision, *(str(group.get("revision")) for group in groups)} if groups else set()
        refs = [
            ObjectRef("apps/v1", "StatefulSet", engine_set_name(meta["name"], part, group))
            for group in sorted(known)
            for part in labels.ENGINE_COMPONENTS
        ]
        return self._with_named(observed, refs)

    def _with_named(self, observed: Observed, refs: Iterable[ObjectRef]) -> Observed:
        namespace = observed.deployment["metadata"]["namespace"]
        found = dict(observed.children)
        for ref in refs:
            if ref not in found and (live := self._cluster.get(namespace, ref)) is not None:
                found[ref] = live
        return replace(observed, children=found)

    def _with_unlabelled(self, observed: Observed, rendered: Rendered) -> Observed:
        """Adds objects of the wanted names that the lists by label did not show: unlabelled by somebody, or somebody else's."""
        return self._with_named(observed, map(ref_of, rendered.manifests))

    def _remember(self, observed: Observed, execution: Execution, memory: _Memory) -> None:
        unchanged = observed.deployment["metadata"].get("generation") == observed.deployment.get("status", {}).get(
            "observedGeneration"
        )
        for secret in execution.made:
            made_for = owner_of(secret, replace(observed, children=execution.children))
            memory.secrets.note_made(name_of(secret), uid_of(made_for), self._clocks.monotonic())
        for action in execution.done:
            if not isinstance(action, Apply):
                continue
            ref = ref_of(action.manifest)
            before, after = observed.children.get(ref), execution.children[ref]
            if before is not None and _version(before) == _version(after):
                _log.warning(
                    "An apply changed nothing, the comparison was wrong", object=str(ref), reason=action.reason
                )
                memory.settled[ref] = (_input_hash(action.manifest), _version(after))
            elif unchanged:
                self._metrics.count_drift(ref.kind)

    # ---- telling ------------------------------------------------------------------------------------------------

    def _tell(self, look: _Look) -> None:
        deployment = look.observed.deployment
        metadata = deployment["metadata"]
        key = NamespacedName(metadata["namespace"], metadata["name"])
        before = deployment.get("status") or {}
        status = compute_status(look.observed, look.outcome, look.parsed) | {"operator": self._identity}
        for action in look.done:
            _log.info(sentence_of(action), generation=metadata.get("generation"), uid=metadata["uid"])
        for failure in look.outcome.failures:
            _log.warning("Could not reconcile an object", reason=failure.reason, error=failure.message)
        if status != before and not self._has_status(key, status):
            return
        for event in (*events_between(before, status, look.done), *look.told):
            self._events.record(deployment, event)

    def _has_status(self, key: NamespacedName, status: Mapping[str, Any]) -> bool:
        """False: the object was deleted while it was looked at, and there is nobody left to be told."""
        try:
            self._cluster.apply_status(key, status)
        except NotFoundError:
            return False
        return True

    def _verdict(self, look: _Look) -> tuple[str, Done | Retry]:
        outcome = look.outcome
        if look.interrupted is not None:
            return "retried", Retry(
                at_least_seconds=look.interrupted.retry_after_seconds or 0.0, progressed=bool(look.done)
            )
        if look.conflict or any(failure.reason == "InternalError" for failure in outcome.failures):
            return "retried", Retry(progressed=bool(look.done))
        if outcome.failures:
            return "failed", Done(again_seconds=REFUSED_AGAIN_SECONDS)
        if outcome.problems:
            return "invalid", Done()
        if outcome.paused:
            return "paused", Done()
        finished = outcome.rollout is not None and outcome.rollout.available and not outcome.held
        again = None if finished else UNFINISHED_AGAIN_SECONDS
        again = min(filter(None, (again, look.again_seconds)), default=None)
        return "changed" if look.done else "unchanged", Done(again_seconds=again)


def _problems(error: InvalidSpecError) -> tuple[tuple[str, str], ...]:
    return tuple((problem.field, problem.message) for problem in error.problems)


def _foreign(ref: ObjectRef, planned: Plan, observed: Observed) -> Failure:
    users = ", ".join(sorted(str(user) for user, used in planned.blocked.items() if used == ref))
    spared = f", so {users} is neither made nor changed" if users else ""
    if is_of_predecessor(observed.children[ref], observed.deployment):
        advice = "it is of a deleted PDDeployment of this name and goes by itself"
    else:
        advice = (
            "give this PDDeployment another name, or move what uses that object to another one. If the operator made it for this PDDeployment, give it back "
            f"its label {labels.OWNER_UID}={observed.deployment['metadata']['uid']} and leave it without a controlling owner"
        )
    return Failure("ForeignObject", f"it exists and does not belong to this PDDeployment{spared}: {advice}", ref)


def _is_settled(action: Action, observed: Observed, memory: _Memory) -> bool:
    """Whether the same apply to the same version changed nothing before: doing it again would go on for ever."""
    if not isinstance(action, Apply):
        return False
    ref = ref_of(action.manifest)
    live = observed.children.get(ref)
    return live is not None and memory.settled.get(ref) == (_input_hash(action.manifest), _version(live))


def _input_hash(manifest: Manifest) -> str:
    return str((manifest["metadata"].get("annotations") or {}).get(labels.INPUT_HASH, ""))


def _version(live: Manifest) -> str:
    return str(live["metadata"].get("resourceVersion", ""))
