"""The listener of data alone: the part of the data port for readers on other machines, without management.

    GET  /api/warren/data/{vhost}/{queue}              what the queue has
    GET  /api/warren/data/{vhost}/{queue}/files        which of it is in files
    GET  /api/warren/data/{vhost}/{queue}/chunks       messages

1. There are no other paths here, no pages and no logins: a name and a password are refused unread.
2. A request needs a token (``data_tokens.py``) for the very queue that it names; the token is checked before the queue
   is looked up. Everything else is as on the management port, with the same handlers and the same limits.
"""

from __future__ import annotations

from warren.mgmt_plugin.api import carry_out
from warren.mgmt_plugin.data_tokens import DataTokens
from warren.mgmt_plugin.http.server import HttpError, Request, Response
from warren.mgmt_plugin.operators import NOBODY_TAGS, Operator
from warren.mgmt_plugin.resources.data_port import DataPortHandlers
from warren.mgmt_plugin.routes import Acting, Call, RouteTable, parse_query
from warren.server.management import Management


class DataListener:
    """Answers every request on the ports `data` and `datas`."""

    def __init__(self, handlers: DataPortHandlers, tokens: DataTokens, management: Management) -> None:
        self._table = RouteTable(handlers.token_routes())
        self._tokens = tokens
        self._access = management.view.permissions
        self._vhosts = management.view.vhosts
        self._acting = Acting(management.clients, management.administer)

    async def respond(self, request: Request) -> Response:
        """Answer one request.

        Raises:
            HttpError: it is refused.
        """
        route, params = self._table.find(request.method, request.path)
        grant = self._tokens.grant_of(request)
        if (params["vhost"], params["queue"]) != (grant.vhost, grant.queue):
            raise HttpError(403, "forbidden", "the token is of another queue")
        request.identified(grant.user)
        operator = Operator(grant.user, NOBODY_TAGS, self._access)
        query = parse_query(request.query)
        call = Call(request, params, operator, self._vhosts, self._acting, query, route.limits)
        return await carry_out(route, call, self._vhosts)
