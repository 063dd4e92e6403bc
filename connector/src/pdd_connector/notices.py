"""Completion notices that arrive over NIXL, where anybody who reaches the side channel can send any: what is not well formed is dropped.

The base worker decodes and splits every notice without a check; one malformed notice would end the worker, and with it the engine.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from pdd_connector.owner import CLAIM_PREFIX

_OF_CLAIM: Final = re.compile(rb"(%s[0-9a-f]{32}):([0-9]{1,4})" % CLAIM_PREFIX.encode())
_OF_LEASE: Final = re.compile(rb"HB:[!-~]{0,65536}|[!-~]{1,512}:[0-9]{1,4}")
_MAX_PARTIAL: Final = 1024


class NoticeFilter:
    """NIXL's agent, with notices sorted: those of claims are counted here, those of leases passed on (with Retain), all others dropped."""

    def __init__(self, agent: Any, claim_read: Callable[[str], None], *, leases: bool) -> None:
        self._agent = agent
        self._claim_read = claim_read
        self._leases = leases
        self._partial: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._agent, name)

    def get_new_notifs(self) -> dict[str, list[bytes]]:
        """Notices for the base worker, by the agent that sent them."""
        passed: dict[str, list[bytes]] = {}
        for agent, notices in self._agent.get_new_notifs().items():
            for notice in notices:
                if (of_claim := _OF_CLAIM.fullmatch(notice)) is not None:
                    self._count(of_claim[1].decode(), int(of_claim[2]))
                elif self._leases and _OF_LEASE.fullmatch(notice) is not None:
                    passed.setdefault(agent, []).append(notice)
        return passed

    def _count(self, claim_id: str, readers: int) -> None:
        """One of so many workers of the reader has read this worker's part of the claim."""
        count = self._partial.pop(claim_id, 0) + 1
        if count >= readers:
            self._claim_read(claim_id)
            return
        self._partial[claim_id] = count
        if len(self._partial) > _MAX_PARTIAL:  # the oldest belongs to a claim that has ended by time
            del self._partial[next(iter(self._partial))]
