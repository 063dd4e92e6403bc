"""The API server as the operator uses it: a narrow Protocol, and its implementation on the official client.

Every call has a timeout, is counted, and raises ``ClusterError``. Every write first asks ``may_write``, so that a process that lost its lease
(or was paused past its end) writes nothing. Synchronous and safe to use from several threads; must not be called in an event loop. Decides
nothing, retries nothing, logs nothing.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from kubernetes import client, config
from kubernetes.dynamic import DynamicClient
from kubernetes.dynamic.resource import Resource

from pdd_operator.api import labels
from pdd_operator.api.names import NamespacedName, ObjectRef
from pdd_operator.api.objects import Manifest, ref_of
from pdd_operator.errors import AlreadyExistsError, ForbiddenError, NotFoundError
from pdd_operator.kube import kinds
from pdd_operator.kube.errors import CLIENT_ERRORS, cluster_error
from pdd_operator.kube.kinds import Kind
from pdd_operator.kube.lease import Account

CONNECT_TIMEOUT_SECONDS = 5.0
_POOL_SIZE = 16
_DISCOVERY_SECONDS = 60.0
"""How long an answer about an optional kind is believed."""


class Cluster(Protocol):
    """What a reconcile needs. Raises ClusterError and, before a write, LeaseLostError."""

    def get_deployment(self, key: NamespacedName) -> Manifest | None:
        """None: it is not there (any more)."""

    def list_children(self, key: NamespacedName) -> dict[ObjectRef, Manifest]:
        """Every object that is labelled as belonging to ``key``, whoever made it. One list per kind."""

    def list_pods(self, key: NamespacedName) -> tuple[Manifest, ...]:
        """Its engine and router pods."""

    def last_refusal(self, namespace: str, uid: str) -> str:
        """Why the controller of the workload ``uid`` could not make a pod, as its newest event says; "" where it says nothing."""

    def get(self, namespace: str, ref: ObjectRef) -> Manifest | None:
        """One child by name, labelled or not."""

    def apply(self, namespace: str, manifest: Manifest, manager: str = labels.FIELD_MANAGER) -> Manifest:
        """Server-side apply, forced: the object as stored."""

    def scale(self, namespace: str, ref: ObjectRef, replicas: int) -> Manifest:
        """Sets ``spec.replicas`` and nothing else."""

    def delete(self, namespace: str, ref: ObjectRef, uid: str) -> bool:
        """False: it was gone already. ConflictError: another object has that name now."""

    def create_secret(self, namespace: str, manifest: Manifest, *, dry_run: bool = False) -> bool:
        """False: a Secret of that name exists. ``dry_run``: only say whether it would be created."""

    def apply_status(self, key: NamespacedName, status: Mapping[str, Any], of_version: str | None = None) -> Manifest:
        """Replaces what the operator wrote into ``status`` before. ``of_version``: of the object, else ConflictError."""

    def create_event(self, namespace: str, event: Manifest) -> None:
        """A core/v1 Event."""

    def patch_event(self, namespace: str, name: str, change: Manifest) -> None:
        """Merge patch of an Event."""

    def has_kind(self, kind: Kind) -> bool:
        """Whether the API server serves an optional kind right now."""

    def take_call_count(self) -> int:
        """Calls that this thread made since it last asked."""


class _NoDiscovery:
    """Kinds are a table here (``kinds``): the client's discovery would cost a hundred requests and keep a file."""

    def __init__(self, dynamic: DynamicClient, cache_file: str | None) -> None:
        """Nothing to look up."""


def connect(user_agent: str, kubeconfig: str | None) -> client.ApiClient:
    """A client with the pod's ServiceAccount or, outside a cluster, what ``kubeconfig`` says. Without retries of its own."""
    settings = client.Configuration()
    try:
        config.load_incluster_config(client_configuration=settings)
    except config.ConfigException:
        config.load_kube_config(config_file=kubeconfig, client_configuration=settings, persist_config=False)
    settings.retries = False
    settings.connection_pool_maxsize = _POOL_SIZE
    api = client.ApiClient(settings)
    api.user_agent = user_agent
    return api


class KubeCluster:
    """``may_write`` raises LeaseLostError; ``count_call`` is told verb, kind and the error's reason ("" for success)."""

    def __init__(
        self,
        api: client.ApiClient,
        *,
        timeout_seconds: float,
        may_write: Callable[[], None],
        count_call: Callable[[str, str, str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._dynamic = DynamicClient(api, discoverer=_NoDiscovery)
        self._timeout = (CONNECT_TIMEOUT_SECONDS, timeout_seconds)
        self._may_write = may_write
        self._count_call = count_call
        self._clock = clock
        self._thread = threading.local()
        self._served: dict[Kind, tuple[float, bool]] = {}

    # ---- reading ------------------------------------------------------------------------------------------------

    def get_deployment(self, key: NamespacedName) -> Manifest | None:
        return self._get(kinds.DEPLOYMENT, key.namespace, key.name)

    def list_children(self, key: NamespacedName) -> dict[ObjectRef, Manifest]:
        found: dict[ObjectRef, Manifest] = {}
        for kind in kinds.CHILD_KINDS:
            if kind.optional and not self.has_kind(kind):
                continue
            for item in self._list_where_served(kind, key):
                found[ref_of(item)] = item
        return found

    def _list_where_served(self, kind: Kind, key: NamespacedName) -> list[Manifest]:
        try:
            return self._list(kind, key)
        except NotFoundError:
            if not kind.optional:
                raise
            self._served.pop(kind, None)  # its definition was deleted a moment ago
            return []

    def list_pods(self, key: NamespacedName) -> tuple[Manifest, ...]:
        return tuple(self._list(kinds.POD, key))

    def may_read(self, namespace: str) -> bool:
        """Whether PDDeployments of ``namespace`` may be listed. A Role that is missing, or went with its namespace, forbids it."""
        resource = self._resource(kinds.DEPLOYMENT)
        try:
            self._call("list", kinds.DEPLOYMENT, "", self._dynamic.get, resource, namespace=namespace, limit=1)
        except ForbiddenError:
            return False
        return True

    def last_refusal(self, namespace: str, uid: str) -> str:
        selector = f"involvedObject.uid={uid},reason=FailedCreate"
        resource = self._resource(kinds.EVENT)
        try:
            answer = self._call(
                "list", kinds.EVENT, "", self._dynamic.get, resource, namespace=namespace, field_selector=selector
            )
        except ForbiddenError:
            return ""  # a role of before: one sentence less in status is no reason to leave everything else alone
        events = [item for item in answer.get("items") or () if isinstance(item, dict)]
        newest = max(events, key=lambda item: str(item.get("lastTimestamp") or item.get("eventTime") or ""), default={})
        return str(newest.get("message") or "")

    def get(self, namespace: str, ref: ObjectRef) -> Manifest | None:
        return self._get(_kind_of(ref), namespace, ref.name)

    def has_kind(self, kind: Kind) -> bool:
        asked_at, answer = self._served.get(kind, (-_DISCOVERY_SECONDS, False))
        if (now := self._clock()) - asked_at >= _DISCOVERY_SECONDS:
            answer = self._discover(kind)
            self._served[kind] = (now, answer)
        return answer

    def _discover(self, kind: Kind) -> bool:
        try:
            served = self._call("discover", kind, "", self._dynamic.request, "get", f"/apis/{kind.api_version}")
        except NotFoundError:
            return False
        return any(resource["name"] == kind.plural for resource in served.get("resources") or ())

    # ---- writing ------------------------------------------------------------------------------------------------

    def apply(self, namespace: str, manifest: Manifest, manager: str = labels.FIELD_MANAGER) -> Manifest:
        kind = _kind_of(ref_of(manifest))
        name = str(manifest["metadata"]["name"])
        return self._write(
            "apply",
            kind,
            name,
            self._dynamic.server_side_apply,
            self._resource(kind),
            body=manifest,
            name=name,
            namespace=namespace,
            force_conflicts=True,
            field_manager=manager,
        )

    def scale(self, namespace: str, ref: ObjectRef, replicas: int) -> Manifest:
        kind = _kind_of(ref)
        return self._write(
            "scale",
            kind,
            ref.name,
            self._dynamic.patch,
            self._resource(kind),
            body={"spec": {"replicas": replicas}},
            name=ref.name,
            namespace=namespace,
            content_type="application/merge-patch+json",
            field_manager=labels.FIELD_MANAGER,
        )

    def delete(self, namespace: str, ref: ObjectRef, uid: str) -> bool:
        kind = _kind_of(ref)
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
            "preconditions": {"uid": uid},
        }
        try:
            self._write(
                "delete",
                kind,
                ref.name,
                self._dynamic.delete,
                self._resource(kind),
                name=ref.name,
                namespace=namespace,
                body=options,
            )
        except NotFoundError:
            return False
        return True

    def create_secret(self, namespace: str, manifest: Manifest, *, dry_run: bool = False) -> bool:
        name = str(manifest["metadata"]["name"])
        try:
            self._write(
                "dry-run" if dry_run else "create",
                kinds.SECRET,
                name,
                self._dynamic.create,
                self._resource(kinds.SECRET),
                body=manifest,
                namespace=namespace,
                field_manager=labels.FIELD_MANAGER,
                dry_run="All" if dry_run else None,
            )
        except AlreadyExistsError:
            return False
        return True

    def apply_status(self, key: NamespacedName, status: Mapping[str, Any], of_version: str | None = None) -> Manifest:
        kind = kinds.DEPLOYMENT
        condition = {} if of_version is None else {"resourceVersion": of_version}
        body = {
            "apiVersion": kind.api_version,
            "kind": kind.kind,
            "metadata": {"name": key.name, "namespace": key.namespace, **condition},
            "status": dict(status),
        }
        path = self._resource(kind).path(name=key.name, namespace=key.namespace) + "/status"
        return self._write(
            "apply-status",
            kind,
            key.name,
            self._dynamic.request,
            "patch",
            path,
            body=body,
            content_type="application/apply-patch+yaml",
            field_manager=labels.FIELD_MANAGER,
            force_conflicts=True,
        )

    def create_event(self, namespace: str, event: Manifest) -> None:
        self._write(
            "create",
            kinds.EVENT,
            str(event["metadata"]["name"]),
            self._dynamic.create,
            self._resource(kinds.EVENT),
            body=event,
            namespace=namespace,
        )

    def patch_event(self, namespace: str, name: str, change: Manifest) -> None:
        self._write(
            "patch",
            kinds.EVENT,
            name,
            self._dynamic.patch,
            self._resource(kinds.EVENT),
            body=change,
            name=name,
            namespace=namespace,
            content_type="application/merge-patch+json",
        )

    # ---- leases: not guarded by `may_write`, which asks them ----------------------------------------------------

    def get_lease(self, key: NamespacedName) -> Manifest | None:
        return self._get(kinds.LEASE, key.namespace, key.name)

    def own_account(self) -> Account | None:
        """The ServiceAccount that this client is; None for another kind of user, and where one may not even ask that, as all may by default."""
        review = {"apiVersion": kinds.SELF_REVIEW.api_version, "kind": kinds.SELF_REVIEW.kind}
        resource = self._resource(kinds.SELF_REVIEW, namespaced=False)
        try:
            answer = self._call("create", kinds.SELF_REVIEW, "", self._dynamic.create, resource, body=review)
        except ForbiddenError:
            return None
        user = answer["status"]["userInfo"]
        prefix, _, account = str(user["username"]).rpartition("system:serviceaccount:")
        namespace, _, name = account.partition(":")
        return Account(NamespacedName(namespace, name), str(user["uid"])) if not prefix and name else None

    def create_lease(self, lease: Manifest) -> Manifest:
        return self._change_lease("create", self._dynamic.create, lease)

    def replace_lease(self, lease: Manifest) -> Manifest:
        """ConflictError when it is not the version that was read."""
        return self._change_lease("update", self._dynamic.replace, lease)

    def _change_lease(self, verb: str, call: Callable[..., Any], lease: Manifest) -> Manifest:
        metadata = lease["metadata"]
        resource = self._resource(kinds.LEASE)
        return self._call(
            verb, kinds.LEASE, metadata["name"], call, resource, body=lease, namespace=metadata["namespace"]
        )

    # ---- one call -----------------------------------------------------------------------------------------------

    def take_call_count(self) -> int:
        count: int = getattr(self._thread, "count", 0)
        self._thread.count = 0
        return count

    def _resource(self, kind: Kind, *, namespaced: bool = True) -> Resource:
        return Resource(
            prefix="apis" if kind.group else "api",
            group=kind.group,
            api_version=kind.version,
            kind=kind.kind,
            namespaced=namespaced,
            name=kind.plural,
            client=self._dynamic,
        )

    def _get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        try:
            return self._call(
                "get", kind, name, self._dynamic.get, self._resource(kind), name=name, namespace=namespace
            )
        except NotFoundError:
            return None

    def _list(self, kind: Kind, key: NamespacedName) -> list[Manifest]:
        """Items of a list carry neither apiVersion nor kind; they get them here."""
        selector = f"{labels.DEPLOYMENT}={key.name}"
        answer = self._call(
            "list",
            kind,
            "",
            self._dynamic.get,
            self._resource(kind),
            namespace=key.namespace,
            label_selector=selector,
        )
        return [{"apiVersion": kind.api_version, "kind": kind.kind, **item} for item in answer.get("items") or ()]

    def _write(
        self, verb: str, kind: Kind, name: str, call: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Manifest:
        self._may_write()
        return self._call(verb, kind, name, call, *args, **kwargs)

    def _call(
        self, verb: str, kind: Kind, name: str, call: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Manifest:
        self._thread.count = getattr(self._thread, "count", 0) + 1
        try:
            answer = call(*args, serialize=False, _request_timeout=self._timeout, **kwargs)
            body: Manifest = json.loads(answer.data)
        except CLIENT_ERRORS as error:
            typed = cluster_error(error, " ".join(filter(None, (verb, kind.kind, name))))
            self._count_call(verb, kind.kind, typed.reason if typed.status != 404 else "NotFound")
            raise typed from error
        self._count_call(verb, kind.kind, "")
        return body


def _kind_of(ref: ObjectRef) -> Kind:
    return kinds.BY_NAME[ref.api_version, ref.kind]
