"""What every part of ``PDDeployment`` is built on: the spelling of fields, and texts that occur in several parts. Lowest of the types."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

_ACRONYMS: Final = (("Ttl", "TTL"), ("Gib", "GiB"), ("Kv", "KV"), ("Efa", "EFA"))
_DNS_LABEL: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
_DNS_SUBDOMAIN: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
_LABEL_KEY: Final = (
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
)
_LABEL_VALUE: Final = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
_BYTES: Final = (
    r"^([0-9]{1,15}|[0-9]{1,9}(Ki|Mi|Gi|k|M|G)|[0-9]{1,6}(Ti|T)|[0-9]{1,6}\.(5|25|75)(Ki|Mi|Gi|Ti)"
    r"|[0-9]{1,6}\.[0-9]{1,3}(k|M|G|T))$"
)


def _alias(name: str) -> str:
    """Kubernetes' spelling: conversationTTLSeconds, cpuKVCacheGiB, but kvTransfer and efaDevices at the beginning."""
    alias = to_camel(name)
    for plain, spelled in _ACRONYMS:
        alias = alias[0] + alias[1:].replace(plain, spelled)
    return alias


class Section(BaseModel):
    """An object within the specification. Frozen; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=_alias, populate_by_name=True)

    def as_given(self) -> dict[str, Any]:
        """As Kubernetes spells it, without what is absent. New at each call."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


DNSLabel = Annotated[str, Field(min_length=1, max_length=63, pattern=_DNS_LABEL)]
ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=_DNS_SUBDOMAIN)]
LabelKey = Annotated[str, Field(min_length=1, max_length=317, pattern=_LABEL_KEY)]
LabelValue = Annotated[str, Field(max_length=63, pattern=_LABEL_VALUE)]
LabelMap = Annotated[dict[str, LabelValue], Field(max_length=32)]
AnnotationMap = Annotated[dict[str, Annotated[str, Field(max_length=4096)]], Field(max_length=32)]
Bytes = Annotated[str, Field(max_length=16, pattern=_BYTES)]
"""A quantity that is a whole number of bytes within 64 bits, which the API server stores as an equal one."""
