"""What an application carries, typed: the only way handlers reach anything."""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web

from pdd_router.flow.services import Services
from pdd_router.tenancy import ApiKeys


@dataclass(slots=True)
class Gate:
    """Who may come in. ``keys`` None: everybody is one anonymous tenant. ``draining``: not ready any more, about to stop."""

    keys: ApiKeys | None = None
    draining: bool = False


SERVICES = web.AppKey("services", Services)
GATE = web.AppKey("gate", Gate)
