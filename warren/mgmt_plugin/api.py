"""From a request to its answer: static files, the user, the route, the handler, and its result as JSON."""

from __future__ import annotations

from collections.abc import Container

import msgspec

from warren.amqp.errors import ACCESS_REFUSED, NOT_ALLOWED, NOT_FOUND, AmqpError
from warren.mgmt_plugin import audit
from warren.mgmt_plugin.http.json_pieces import json_pieces
from warren.mgmt_plugin.http.server import HttpError, Request, Response
from warren.mgmt_plugin.http.static_files import StaticFiles
from warren.mgmt_plugin.listing import with_columns
from warren.mgmt_plugin.operators import Doorkeeper, Operator, check_same_site
from warren.mgmt_plugin.resources.health_checks import CheckFailed
from warren.mgmt_plugin.routes import (
    Access,
    Acting,
    Call,
    Route,
    RouteTable,
    not_authorised,
    not_found,
    parse_query,
)
from warren.server.management import CommitTimeout, Management
from warren.server.threads import Stuck


class Api:
    """Answers every request on the management port."""

    def __init__(self, table: RouteTable, doorkeeper: Doorkeeper, management: Management, static: StaticFiles) -> None:
        self._table = table
        self._doorkeeper = doorkeeper
        self._vhosts = management.view.vhosts
        self._acting = Acting(management.clients, management.administer)
        self._static = static

    async def respond(self, request: Request) -> Response:
        """Answer one request.

        Raises:
            HttpError: it is refused.
        """
        found = self._static.maybe_respond(request)
        if found is not None:
            return found
        try:
            route, params = self._table.find(request.method, request.path)
        except HttpError as refusal:
            if request.method == "OPTIONS" and refusal.status == 405:
                return Response(200, headers=refusal.headers)
            missing = self._static.maybe_missing(request) if refusal.status == 404 else None
            if missing is None:
                raise
            return missing
        if route.access is Access.PUBLIC:
            operator = self._doorkeeper.nobody()
        else:
            if route.acts:
                check_same_site(request)
            operator = await self._doorkeeper.identify(request)
            request.identified(operator.name)
        if audit.is_change(route):
            request.concluded = audit.line_of(request, operator.name)
        query = parse_query(request.query)
        call = Call(request, params, operator, self._vhosts, self._acting, query, route.limits)
        return await carry_out(route, call, self._vhosts)


async def carry_out(route: Route, call: Call, vhosts: Container[str]) -> Response:
    """Pass a call to the handler of its route if it is allowed, and return its result as an answer.

    Raises:
        HttpError: it is refused.
    """
    check(route, call.operator, call.params.get("vhost"), vhosts)
    try:
        result = await route.handler(call)
    except AmqpError as error:
        raise refused(error) from None
    except CheckFailed as failure:
        return Response(failure.status, msgspec.json.encode(failure.document))
    except CommitTimeout:
        raise HttpError(503, "unavailable", "the change is not on disk yet") from None
    except Stuck as stuck:
        raise HttpError(503, "unavailable", str(stuck)) from None
    if route.method == "GET" and isinstance(result, dict):
        result = with_columns(result, call.query)
    return as_response(result)


def check(route: Route, operator: Operator, vhost: str | None, vhosts: Container[str]) -> None:
    """Check that `operator` may call the handler of `route`.

    Raises:
        HttpError: 401, the tags or the vhost do not allow it; 404, there is no such vhost.
    """
    access = route.access
    if access is Access.PUBLIC:
        return
    allowed = operator.is_manager or access is Access.CLIENT
    if not allowed:
        raise not_authorised(Access.USER.value)
    if access is Access.ADMINISTRATOR:
        allowed = operator.is_administrator
    elif access is Access.MONITORING:
        allowed = operator.is_monitor
    elif access is Access.POLICYMAKER:
        allowed = operator.is_policymaker
    if not allowed:
        raise not_authorised(access.value)
    if vhost is None or route.makes_vhost:
        return
    if vhost not in vhosts:
        # A user with limited rights is not told which vhosts exist.
        raise not_found() if operator.is_monitor else not_authorised(Access.VHOST.value)
    if access in (Access.CLIENT, Access.VHOST, Access.POLICYMAKER):
        entitled = operator.may_enter(vhost) or (access is Access.POLICYMAKER and operator.is_administrator)
    else:
        entitled = operator.may_see(vhost)
    if not entitled:
        raise not_authorised(access.value if access is Access.POLICYMAKER else Access.VHOST.value)


def refused(error: AmqpError) -> HttpError:
    """Return the answer for a refusal of AMQP."""
    if error.reply_code in (ACCESS_REFUSED, NOT_ALLOWED):
        return not_authorised(error.explanation)
    if error.reply_code == NOT_FOUND:
        return not_found(error.explanation)
    return HttpError(400, "bad_request", error.explanation)


def as_response(result: object) -> Response:
    """Return a handler's result as an answer: None is 204, a response itself, anything else JSON."""
    if isinstance(result, Response):
        return result
    if result is None:
        return Response(204)
    return Response(200, pieces=json_pieces(result))
