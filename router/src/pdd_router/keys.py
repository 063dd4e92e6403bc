"""What an application and a request carry, typed: the only way handlers reach anything."""

from __future__ import annotations

import uuid
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
_REQUEST_ID = web.RequestKey("request_id", str)


def request_id_of(request: web.BaseRequest) -> str:
    """Its id in logs, in engines' logs and on its answer, whatever that is. Always ours: a client's could name somebody else's request."""
    if _REQUEST_ID not in request:
        request[_REQUEST_ID] = uuid.uuid4().hex
    return request[_REQUEST_ID]
