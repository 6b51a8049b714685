"""The listener for programs that the broker has started: the routes that a reader of queues needs, in one vhost.

    GET  /api/warren/data/{vhost}/{queue}[/files|/chunks]     POST …/plan         the messages of a queue
    POST /api/warren/drains/{vhost}/{queue}/{consumer}/…      open, claim, mark   taking them out
    POST /api/warren/streams/{vhost}/{queue}/offset           PUT …/groups/{group}

1. There are no other paths here, no pages and no logins: a name and a password are refused unread. A token
   (``server.local_http``) gives access to its vhost.
2. The client is the broker itself, as for links, and may read every queue of that vhost. Everything else is as on the
   management port, with the same handlers and the same limits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final

from warren.engine_view.permissions import INTERNAL_USER, Permissions
from warren.mgmt_plugin.api import carry_out
from warren.mgmt_plugin.http.server import HttpError, Request, Response
from warren.mgmt_plugin.operators import Operator
from warren.mgmt_plugin.routes import Acting, Call, Handlers, Route, RouteTable, not_authorised, parse_query
from warren.server.local_http import LocalHttp
from warren.server.management import Management
from warren.vhosts.metadata import PermissionPut, UserPut

_DATA: Final = "/api/warren/data/{vhost}/{queue}"
_DRAIN: Final = "/api/warren/drains/{vhost}/{queue}/{consumer}"
_STREAM: Final = "/api/warren/streams/{vhost}/{queue}"
PATHS: Final = frozenset(
    {
        *(("GET", f"{_DATA}{more}") for more in ("", "/files", "/chunks")),
        ("POST", f"{_DATA}/plan"),
        *(("POST", f"{_DRAIN}/{more}") for more in ("open", "claim", "mark", "release")),
        ("POST", f"{_STREAM}/offset"),
        ("PUT", f"{_STREAM}/groups/{{group}}"),
    }
)
_TAGS: Final = ("management",)


class LocalListener:
    """Answers every request on the listener."""

    def __init__(self, handlers: Iterable[Handlers], local: LocalHttp, management: Management) -> None:
        self._table = RouteTable(_allowed(handlers))
        assert len(self._table.routes) == len(PATHS)
        self._local = local
        self._vhosts = management.view.vhosts
        self._acting = Acting(management.clients, management.administer)

    async def respond(self, request: Request) -> Response:
        """Answer one request.

        Raises:
            HttpError: it is refused.
        """
        route, params = self._table.find(request.method, request.path)
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        vhost = self._local.maybe_vhost(token.strip()) if scheme.lower() == "bearer" else None
        if vhost is None:
            raise not_authorised("a token is required")
        if params["vhost"] != vhost:
            raise HttpError(403, "forbidden", "the token is of another vhost")
        request.identified(INTERNAL_USER)
        operator = Operator(INTERNAL_USER, _TAGS, _access_to(vhost))
        call = Call(request, params, operator, self._vhosts, self._acting, parse_query(request.query), route.limits)
        return await carry_out(route, call, self._vhosts)


def _allowed(handlers: Iterable[Handlers]) -> Iterator[Route]:
    for each in handlers:
        for route in each.routes():
            if (route.method, route.template) in PATHS:
                yield route


@lru_cache(maxsize=128)
def _access_to(vhost: str) -> Permissions:
    """Return permissions of one user, the broker itself, in one vhost."""
    user = UserPut(INTERNAL_USER, "", "", _TAGS)
    return Permissions.of_records(user, PermissionPut(INTERNAL_USER, vhost, "", "", ".*"))
