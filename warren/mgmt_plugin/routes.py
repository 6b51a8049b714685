"""The table of routes: for each path and method the required permission, and the handler.

    template            /api/queues/{vhost}/{name}       a part in braces stands for one percent-encoded segment

1. Every route declares its `Access`, which is checked before its handler runs and before a body is read.
2. For exchanges and queues the engine checks the permissions of a user, as for AMQP; nothing is decided here: handlers
   act on a direct session of that user.
3. A literal segment is preferred to one in braces.
4. Every route has limits for its body, small ones unless it declares others. A JSON body is measured while it comes
   (``json_bodies.py``), before anything is built from it.
5. A handler is a method of a `Handlers` class, whose constructor names the parts of the broker that its routes use.
   Every handler may also use the methods of a `Call`: see vhosts, and act in the name of the user.
6. A route that RabbitMQ does not have refuses a body with a field that it does not know: a newer client, which means
   something by it, must not believe that it was done.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Final, TypeVar
from urllib.parse import parse_qsl, unquote

import msgspec

from warren.amqp.errors import NOT_ALLOWED, ConnectionException
from warren.engine_view.permissions import Rights
from warren.mgmt_plugin.http.json_bodies import ORDINARY, BodyLimits, JsonGauge, TooDeep, TooMuch
from warren.mgmt_plugin.http.scheduler import give_way
from warren.mgmt_plugin.http.server import LOOK_BYTES, HttpError, Request, Response
from warren.mgmt_plugin.operators import Operator
from warren.server.direct_clients import DirectClient, DirectClients
from warren.vhosts.metadata import MetadataChange

QUERY_FIELDS_MAX: Final = 100

Body = TypeVar("Body")


class Access(enum.Enum):
    """The right that a user needs for a handler; the texts of refusals are RabbitMQ's."""

    PUBLIC = ""
    CLIENT = "User not authorised to enter virtual host"  # needs no tag, and may enter the vhost of the path
    USER = "Not management user"
    VHOST = "User not authorised to access virtual host"  # and may enter the vhost of the path
    VHOST_VISIBLE = " User not authorised to access virtual host"  # or may at least look at it
    POLICYMAKER = "User not authorised to access object"  # with the tag, and may enter the vhost of the path
    MONITORING = "Not monitor user"
    ADMINISTRATOR = "Not administrator user"


@dataclass(frozen=True, slots=True)
class Acting:
    """How users of the API act on the broker: by commands of AMQP, and by administrative changes, with their names."""

    clients: DirectClients
    administer: Callable[[MetadataChange, str], Awaitable[None]]


@dataclass(slots=True)
class Call:
    """One request on its way through a handler. `params` are the decoded parts of the path, `vhosts` the names
    of all there are.
    """

    request: Request
    params: dict[str, str]
    operator: Operator
    vhosts: Collection[str]
    acting: Acting
    query: dict[str, str] = field(default_factory=dict)
    limits: BodyLimits = ORDINARY

    def client(self) -> DirectClient:
        """Return a client that acts for the user in the vhost of the path; close it with ``with``.

        Raises:
            ConnectionException: 530, the user may not enter it.
        """
        return self.acting.clients.open(self.operator.name, self.params["vhost"])

    def rights(self) -> Rights:
        """Return what the user may do in the vhost of the path.

        Raises:
            ConnectionException: 530, the user may not enter it.
        """
        vhost = self.params["vhost"]
        rights = self.operator.access.maybe_rights(self.operator.name, vhost)
        if rights is None:
            raise ConnectionException(NOT_ALLOWED, f"access to vhost '{vhost}' refused for user '{self.operator.name}'")
        return rights

    def authorize(self, action: int, kind: str, name: str) -> None:
        """Make sure that the user may do `action` on the `kind` (exchange or queue) called `name`, as over AMQP.

        Raises:
            ChannelException: 403. ConnectionException: 530, the user may not enter the vhost.
        """
        self.rights().authorize(action, kind, name)

    def may(self, action: int, name: str) -> bool:
        """Tell whether the user may do `action` on the exchange or queue called `name`."""
        rights = self.operator.access.maybe_rights(self.operator.name, self.params["vhost"])
        return rights is not None and rights.may(action, name)

    async def administer(self, change: MetadataChange, *, validates: bool = False) -> None:
        """Apply an administrative change that the user asked for, and wait for its commit.

        Raises:
            HttpError: 400, with every reason; `validates`: in the form that RabbitMQ gives to those of its validators.
        """
        try:
            await self.acting.administer(change, self.operator.name)
        except ValueError as error:
            raise bad_request(f"Validation failed\n\n{error}\n" if validates else str(error)) from None

    def flag(self, name: str) -> bool:
        """Tell whether the query string has ``name=true``."""
        return self.query.get(name) == "true"

    async def body(self, kind: type[Body]) -> Body:
        """Return the body as `kind`; numbers and flags may be given as texts.

        Raises:
            HttpError: 400, it is not JSON, or not of that shape.
        """
        return convert(await self.json(), kind)

    async def json(self) -> Any:
        """Return the body, decoded from JSON; an empty one is an empty object.

        Raises:
            HttpError: 400, it is not JSON, or nested too deeply; 413, it has too many bytes or values.
        """
        return decode_json(await self.measured())

    async def measured(self) -> bytes:
        """Return the body, which is JSON within the limits of its route, to be decoded by the caller.

        Raises:
            HttpError: as `json`.
        """
        gauge = JsonGauge(self.limits.values)
        try:
            return await self.request.read_body(self.limits.size, gauge.look)
        except TooDeep as error:
            raise bad_request(str(error)) from None
        except TooMuch as error:
            raise too_large(str(error)) from None


@dataclass(frozen=True, slots=True)
class Route:
    """One row of the table. `query` names the parameters of the query string for the documentation.

    `handler` takes the `Call`; in the table of a class it is a method, which takes the object first.
    """

    method: str
    template: str
    access: Access
    handler: Callable[..., Awaitable[object]]
    summary: str
    body: Any = None
    query: tuple[str, ...] = ()
    makes_vhost: bool = False  # the vhost of the path need not exist
    is_audited: bool = True  # False: affects messages only, or is a query sent by POST
    acts: bool = False  # a GET that does something: not for pages of other sites
    limits: BodyLimits = ORDINARY


class Handlers:
    """The handlers of a subject, and their part of the table. The constructor takes only what they need."""

    ROUTES: ClassVar[tuple[Route, ...]] = ()

    def routes(self) -> Iterator[Route]:
        """Yield the routes, answered by this object."""
        for route in self.ROUTES:
            yield replace(route, handler=partial(route.handler, self))


class _Node:
    def __init__(self) -> None:
        self.literals: dict[str, _Node] = {}
        self.parameter: tuple[str, _Node] | None = None
        self.routes: dict[str, Route] = {}


class RouteTable:
    """All routes, found by path."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = list(routes)
        self._root = _Node()
        for route in self.routes:
            node = self._root
            for segment in route.template.strip("/").split("/"):
                node = _child(node, segment)
            assert route.method not in node.routes, f"{route.method} {route.template} twice"
            node.routes[route.method] = route

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        """Return the route and the decoded parameters of a path.

        Raises:
            HttpError: 404, 405, or 200 for OPTIONS.
        """
        found = _search(self._root, path.strip("/").split("/"), 0)
        if found is None or not found[0].routes:
            raise not_found()
        node, values = found
        route = node.routes.get("GET" if method == "HEAD" else method)
        if route is None:
            known = sorted({*node.routes, "OPTIONS"} | ({"HEAD"} if "GET" in node.routes else set()))
            raise HttpError(405, "method_not_allowed", f"{method} is not allowed here", (("Allow", ", ".join(known)),))
        return route, values


def _child(node: _Node, segment: str) -> _Node:
    if not segment.startswith("{"):
        return node.literals.setdefault(segment, _Node())
    if node.parameter is None:
        node.parameter = (segment.strip("{}"), _Node())
    assert node.parameter[0] == segment.strip("{}"), f"{segment} has two names"
    return node.parameter[1]


def _search(node: _Node, segments: list[str], at: int) -> tuple[_Node, dict[str, str]] | None:
    if at == len(segments):
        return (node, {}) if node.routes else None
    literal = node.literals.get(segments[at])
    if literal is not None:
        found = _search(literal, segments, at + 1)
        if found is not None:
            return found
    if node.parameter is None or not segments[at]:
        return None
    name, child = node.parameter
    found = _search(child, segments, at + 1)
    if found is None:
        return None
    try:
        found[1][name] = unquote(segments[at], errors="strict")
    except UnicodeDecodeError:
        raise bad_request("the path is not UTF-8") from None
    return found


# --- requests and refusals --------------------------------------------------------------------------------------------


def parse_query(query: str) -> dict[str, str]:
    """Return the parameters of a query string, the last of those of one name.

    Raises:
        HttpError: 400.
    """
    try:
        return dict(parse_qsl(query, keep_blank_values=True, max_num_fields=QUERY_FIELDS_MAX, errors="strict"))
    except (ValueError, UnicodeDecodeError):
        raise bad_request("the query string is malformed") from None


def decode_json(data: bytes) -> Any:
    """Decode JSON that has been measured; nothing at all is an empty object.

    Raises:
        HttpError: 400.
    """
    if not data.strip():
        return {}
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise bad_request("not_json") from None


async def measure(data: bytes, limits: BodyLimits) -> None:
    """Make sure that JSON which has come is neither too deep nor too much.

    Raises:
        HttpError: 400, 413.
    """
    gauge = JsonGauge(limits.values)
    try:
        for at in range(0, len(data), LOOK_BYTES):
            gauge.look(data[at : at + LOOK_BYTES])
            await give_way()
    except TooDeep as error:
        raise bad_request(str(error)) from None
    except TooMuch as error:
        raise too_large(str(error)) from None


def convert(value: Any, kind: type[Body]) -> Body:
    """Bring decoded JSON into the shape `kind`.

    Raises:
        HttpError: 400, naming the missing or wrong field.
    """
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        raise bad_request(str(error)) from None


def bad_request(reason: object) -> HttpError:
    """Return a 400."""
    return HttpError(400, "bad_request", reason)


def too_large(reason: str) -> HttpError:
    """Return a 413; the reason names the limit."""
    return HttpError(413, "payload_too_large", reason)


def not_found(reason: str = "Not Found") -> HttpError:
    """Return a 404, RabbitMQ's generic one without a `reason`."""
    return HttpError(404, "Object Not Found" if reason == "Not Found" else "not_found", reason)


def not_authorised(reason: str) -> HttpError:
    """Return the refusal for a user who has logged in; RabbitMQ uses 401 for that as well."""
    return HttpError(401, "not_authorised", reason)


def created(*, new: bool) -> Response:
    """Return 201 for something new, 204 for something that was there."""
    return Response(201 if new else 204)
