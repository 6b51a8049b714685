"""Audit lines: the user, the address, the change and the result of requests over HTTP.

    audit  did="PUT /api/users/bob"  user=admin  peer=10.0.0.7  status=204
    audit  did="DELETE /api/vhosts/%2F"  user=bob  peer=10.0.0.9  status=401  reason="Not administrator user"
    audit  did="POST /api/definitions"  user=bob  peer=10.0.0.9  reason="it was cut off, and may have been carried out"

1. Every request that would change what operators answer for has one line, however it ends: users, permissions,
   policies, parameters, vhosts, limits, definitions, queues and exchanges, purges, moves, closed connections, links.
   `warren ctl` uses HTTP, and so do the web UI and rabbitmqadmin. `status` is that of the answer; without an answer the
   line has no status. With a status from 500 on, or without one, all, a part or nothing was carried out.
2. Programs' work with messages has no line: publish, get, drains, stages, snapshots; neither have questions.
3. The body is not shown, since a password may be in it, nor the query string.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from warren.mgmt_plugin.http.server import Request, Response
from warren.mgmt_plugin.routes import Access, Route
from warren.server.logs import get_logger

READING: Final = ("GET", "HEAD", "OPTIONS")
CUT_OFF: Final = "it was cut off, and may have been carried out"
REASON_MAX: Final = 500  # characters; a reason may quote the request

log = get_logger("audit")


def is_change(route: Route) -> bool:
    """Tell whether requests on this route have an audit line."""
    return route.method not in READING and route.access not in (Access.CLIENT, Access.PUBLIC) and route.is_audited


def line_of(request: Request, user: str) -> Callable[[Response | None], None]:
    """Return the function that writes the line of a request of `user` when that has ended."""
    # It does not refer to the request, which holds this function: both would live until the next collection.
    return partial(_write, f"{request.method} {request.path}", user, request.peer)


def _write(did: str, user: str, peer: str, response: Response | None) -> None:
    if response is None:
        log.warning("audit", did=did, user=user, peer=peer, reason=CUT_OFF)
    elif response.status >= 400:
        reason = response.refusal
        shown = reason if len(reason) <= REASON_MAX else reason[: REASON_MAX - 1] + "…"
        log.warning("audit", did=did, user=user, peer=peer, status=response.status, reason=shown)
    else:
        log.info("audit", did=did, user=user, peer=peer, status=response.status)
