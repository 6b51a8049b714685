"""Audit lines: who changed what over HTTP, from where, and with what result.

    audit  did="PUT /api/users/bob"  user=admin  peer=10.0.0.7  status=204
    audit  did="DELETE /api/vhosts/%2F"  user=bob  peer=10.0.0.9  status=401  reason="Not administrator user"

1. Every request that would change what operators answer for has one line, carried out or not: users, permissions,
   policies, parameters, vhosts, limits, definitions, queues and exchanges, purges, moves, closed connections, links.
   `warren ctl` asks over HTTP, and so do the web UI and rabbitmqadmin.
2. What programs do with messages has none: publish, get, drains, stages, snapshots; nor has a question.
3. The body is not shown, since a password may be in it, nor the query string.
"""

from __future__ import annotations

from typing import Final

from warren.mgmt_plugin.http.server import HttpError, Request
from warren.mgmt_plugin.routes import Access, Route
from warren.server.logs import get_logger

READING: Final = ("GET", "HEAD", "OPTIONS")

log = get_logger("audit")


def is_change(route: Route) -> bool:
    """Tell whether requests on this route have an audit line."""
    return route.method not in READING and route.access not in (Access.CLIENT, Access.PUBLIC) and not route.is_use


def carried_out(request: Request, user: str, status: int) -> None:
    """Write the line of a request that was answered with `status`."""
    log.info("audit", did=f"{request.method} {request.path}", user=user, peer=request.peer, status=status)


def refused(request: Request, user: str, refusal: HttpError) -> None:
    """Write the line of a request that was refused."""
    did = f"{request.method} {request.path}"
    log.warning("audit", did=did, user=user, peer=request.peer, status=refusal.status, reason=str(refusal.reason))
