"""Settings of the operator, from ``PDD_OPERATOR_*``: the only reader of the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from pdd_operator.api.v1alpha1 import LogLevel
from pdd_operator.errors import SettingsError
from pdd_operator.render.inputs import API_SERVER_PORTS, Images, Platform, RenderSettings

PREFIX: Final = "PDD_OPERATOR_"
_NAME = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"

Name = Annotated[str, Field(min_length=1, max_length=253, pattern=_NAME)]
Port = Annotated[int, Field(ge=1, le=65_535)]
Image = Annotated[str, Field(min_length=1, max_length=512, pattern=r"^\S+$")]


class Settings(BaseModel):
    """Each field is ``PDD_OPERATOR_<FIELD>``. Lists are separated by commas."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    namespace: Name
    """The operator's own namespace: its Lease is there, and engines admit its pods from there."""
    pod_name: Name = "pdd-operator"
    pod_labels: Mapping[str, str] = {}
    """Labels that select the operator's pods, as ``key=value``."""
    watch_namespaces: tuple[Name, ...] = ()
    """Empty: the whole cluster."""
    image_router: Image
    image_connector: Image
    image_engine_gpu: Image | None = None
    image_engine_neuron: Image | None = None
    image_engine_cpu: Image | None = None
    api_server_ports: Annotated[tuple[Port, ...], Field(min_length=1)] = API_SERVER_PORTS
    """Where routers may reach the API server, as NetworkPolicies see it: behind its Service."""
    allow_privileged: bool = False
    """Whether PDDeployments may have ``transport.privileges: Privileged``."""
    leader_election: bool = True
    lease_name: Name = "pdd-operator"
    lease_duration_seconds: Annotated[float, Field(ge=1, le=600)] = 15
    lease_renew_seconds: Annotated[float, Field(ge=0.1, le=200)] = 5
    resync_seconds: Annotated[float, Field(ge=1, le=86_400)] = 300
    workers: Annotated[int, Field(ge=1, le=64)] = 4
    request_timeout_seconds: Annotated[float, Field(ge=1, le=300)] = 15
    sample_seconds: Annotated[float, Field(ge=1, le=3600)] = 30
    """Time between two readings of the engines' counters of one object."""
    stuck_seconds: Annotated[float, Field(ge=10, le=86_400)] = 300
    """The process is unhealthy when an object waits, or a change is not told by its watch, for longer than this."""
    http_address: str = "0.0.0.0"  # noqa: S104  # in a pod, probes and Prometheus come from outside; NetworkPolicy says who may
    http_port: Port = 8080
    log_level: LogLevel = LogLevel.INFO
    kubeconfig: str | None = None
    """From ``KUBECONFIG``, as kopf reads it; only outside a cluster."""

    @field_validator("watch_namespaces", "api_server_ports", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return tuple(filter(None, (part.strip() for part in value.split(",")))) if isinstance(value, str) else value

    @field_validator("pod_labels", mode="before")
    @classmethod
    def _pairs(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        pairs = [part.strip().partition("=") for part in value.split(",") if part.strip()]
        if not all(name and mark for name, mark, _ in pairs):
            raise ValueError("must be a list of key=value")
        return {name: label for name, _, label in pairs}

    @field_validator("image_engine_gpu", "image_engine_neuron", "image_engine_cpu", mode="before")
    @classmethod
    def _absent(cls, value: Any) -> Any:
        return value or None

    @model_validator(mode="after")
    def _lease_lasts(self) -> Self:
        if self.lease_renew_seconds * 3 > self.lease_duration_seconds:
            raise ValueError("LEASE_RENEW_SECONDS must be at most a third of LEASE_DURATION_SECONDS")
        return self

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Raises SettingsError, which names each variable that is missing, unknown or impossible."""
        values: dict[str, str | None] = {
            name.removeprefix(PREFIX).lower(): value for name, value in environment.items() if name.startswith(PREFIX)
        }
        values["kubeconfig"] = environment.get("KUBECONFIG") or None
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise SettingsError("; ".join(map(_say, error.errors()))) from error

    @property
    def identity(self) -> str:
        """Of this installation: what its processes have in common, and no other installation has."""
        return f"{self.namespace}/{self.lease_name}"

    @property
    def render(self) -> RenderSettings:
        engines = {
            Platform.GPU: self.image_engine_gpu,
            Platform.NEURON: self.image_engine_neuron,
            Platform.CPU: self.image_engine_cpu,
        }
        images = Images(
            router=self.image_router,
            connector=self.image_connector,
            engine={platform: image for platform, image in engines.items() if image is not None},
        )
        return RenderSettings(
            images, self.namespace, self.pod_labels, self.allow_privileged, api_server_ports=self.api_server_ports
        )


def _say(error: Any) -> str:
    where = "_".join(str(part) for part in error["loc"]).upper()
    return f"{PREFIX}{where}: {error['msg']}"
