"""MQTT: sessions listed and ended, also of clients that are away; retained messages browsed and cleared."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ClassVar, Final

from msgspec.structs import asdict

from warren.amqp.errors import NOT_ALLOWED, ChannelException, ConnectionException
from warren.amqp.properties import decode_properties
from warren.channels.access import CONFIGURE, READ, WRITE, Principal
from warren.channels.broker import Broker
from warren.engine_view.connections import connection_ends
from warren.mgmt_plugin.http.json_pieces import Rows
from warren.mgmt_plugin.http.scheduler import give_way
from warren.mgmt_plugin.http.server import Response
from warren.mgmt_plugin.listing import QUERY, Described, answer_list
from warren.mgmt_plugin.names import the_vhost, visible_vhosts
from warren.mgmt_plugin.resources.messages import encode_payload
from warren.mgmt_plugin.routes import Access, Call, Handlers, Route, bad_request, not_authorised, not_found
from warren.mgmt_plugin.terms import properties_to_json
from warren.server.mqtt_sessions import (
    QOS_HEADER,
    KnownSession,
    authorize_topic,
    describe_subscription,
    end_session,
    kept_sessions,
    maybe_session,
)
from warren.vhosts.kept_sessions import KeptSession
from warren.vhosts.retained import Retained, RetainedMessages, RetainedSearch
from warren.vhosts.virtual_host import VirtualHost

ENDED_BY_MANAGEMENT: Final = "Session ended via management plugin"
FILTER_BYTES_MAX: Final = 65535
FILTER_LEVELS_MAX: Final = 128
AT_ONCE: Final = 500  # levels that are looked at in one go
CLEARED_AT_ONCE: Final = 20
_PROPERTIES_AT: Final = 12

_S: Final = "/api/warren/mqtt-sessions"
_ALL: Final = "/api/warren/retained"
_R: Final = f"{_ALL}/{{vhost}}"


def _principal(call: Call) -> Principal:
    """Return the rights of the user in the vhost of the path.

    Raises:
        ConnectionException: 530, the user has no rights there.
    """
    vhost = call.params["vhost"]
    principal = call.operator.access.maybe_principal(call.operator.name, vhost)
    if principal is None:
        raise ConnectionException(NOT_ALLOWED, f"access to vhost '{vhost}' refused for user '{call.operator.name}'")
    return principal


def _may(principal: Principal, action: int, topic: str) -> bool:
    try:
        authorize_topic(principal, action, topic)
    except ChannelException:
        return False
    return True


async def _matching(call: Call, retained: RetainedMessages, filter_: str) -> list[str]:
    """Return the topics with something retained that `filter_` matches.

    Raises:
        HttpError: 400, it is not a valid filter.
    """
    words = filter_.split("/")
    wrong = any(("#" in word or "+" in word) and len(word) > 1 for word in words) or "#" in words[:-1]
    if not filter_ or wrong or len(words) > FILTER_LEVELS_MAX or len(filter_.encode()) > FILTER_BYTES_MAX:
        raise bad_request(f"filter must be a topic filter of at most {FILTER_LEVELS_MAX} levels, such as sensors/#")
    found: list[str] = []
    search = RetainedSearch(retained, filter_)
    steps = 0
    while not search.is_over():
        topic = search.next()
        if topic is not None:
            found.append(topic)
        steps += 1
        if steps % AT_ONCE == 0:
            await give_way()
    return found


class MqttHandlers(Handlers):
    """Handlers of MQTT's sessions and retained messages. `commit` waits until a ticket is durable."""

    def __init__(self, broker: Broker, settle: Callable[[], None], commit: Callable[[int], Awaitable[None]]) -> None:
        self._broker = broker
        self._settle = settle
        self._commit = commit

    # --- sessions -----------------------------------------------------------------------------------------------------

    def _describe(self, key: tuple[VirtualHost, KeptSession]) -> Described:
        session = KnownSession(self._broker, *key)
        described = session.described()
        peer = session.peer
        described["connection_details"] = None if peer is None else asdict(connection_ends(peer))
        return described

    async def list_sessions(self, call: Call) -> Response:
        broker = self._broker
        items = [(vhost, kept) for vhost in visible_vhosts(call) for kept in kept_sessions(broker, vhost)]
        keys: dict[str, Callable[[tuple[VirtualHost, KeptSession]], object]] = {
            "name": lambda key: key[1].name,
            "client_id": lambda key: key[1].name,
            "vhost": lambda key: key[0].name,
            "connected": lambda key: key[1].is_connected,
            "expiry_s": lambda key: key[1].expiry_s,
        }
        return await answer_list(call, items, self._describe, keys, lambda key: key[1].owner is None)

    def _the_session(self, call: Call) -> KnownSession:
        session = maybe_session(self._broker, the_vhost(call), call.params["client"])
        if session is None:
            raise not_found()
        return session

    async def show_session(self, call: Call) -> Described:
        session = self._the_session(call)
        described = self._describe((session.vhost, session.kept))
        described["subscriptions"] = Rows(session.subscriptions(), describe_subscription)
        return described

    async def end_session(self, call: Call) -> None:
        session = self._the_session(call)
        peer = session.peer
        if peer is not None and not (call.operator.is_administrator or peer.user_name == call.operator.name):
            raise not_authorised(Access.POLICYMAKER.value)
        for name in session.queue_names():
            call.authorize(CONFIGURE, "queue", name)
        end_session(self._broker, session, call.request.headers.get("x-reason") or ENDED_BY_MANAGEMENT)
        ticket = self._broker.journal.last_ticket
        self._settle()
        await self._commit(ticket)

    # --- retained messages --------------------------------------------------------------------------------------------

    async def list_retained(self, call: Call) -> Response:
        if "vhost" in call.params:
            _principal(call).authorize(READ, "exchange", "amq.topic")
        found: list[tuple[VirtualHost, Principal, str]] = []
        for vhost in visible_vhosts(call):
            principal = call.operator.access.maybe_principal(call.operator.name, vhost.name)
            if principal is not None and principal.may(READ, "amq.topic"):
                topics = await _matching(call, vhost.retained(), call.query.get("filter", "#"))
                found += [(vhost, principal, topic) for topic in topics]

        def maybe(item: tuple[VirtualHost, Principal, str]) -> Retained | None:
            vhost, principal, topic = item
            return vhost.retained().maybe(topic, self._broker.now_ms()) if _may(principal, READ, topic) else None

        def describe(item: tuple[VirtualHost, Principal, str]) -> Described:
            retained = maybe(item)
            assert retained is not None
            return _described(item[0], item[2], retained)

        keys: dict[str, Callable[[tuple[VirtualHost, Principal, str]], object]] = {
            "name": lambda item: item[2],
            "topic": lambda item: item[2],
            "vhost": lambda item: item[0].name,
        }
        return await answer_list(call, found, describe, keys, lambda item: maybe(item) is None)

    async def show_retained(self, call: Call) -> Described:
        topic = call.params["topic"]
        authorize_topic(_principal(call), READ, topic)
        vhost = the_vhost(call)
        found = vhost.retained().maybe(topic, self._broker.now_ms())
        if found is None:
            raise not_found()
        described = _described(vhost, topic, found)
        described["payload"], described["payload_encoding"] = await encode_payload((found.body,))
        return described

    async def clear_topic(self, call: Call) -> None:
        topic = call.params["topic"]
        authorize_topic(_principal(call), WRITE, topic)
        if not the_vhost(call).retained().remove(topic):
            raise not_found()
        self._settle()

    async def clear_retained(self, call: Call) -> Described:
        principal = _principal(call)
        principal.authorize(WRITE, "exchange", "amq.topic")
        filter_ = call.query.get("filter")
        if filter_ is None:
            raise bad_request("filter is required; # stands for all topics")
        retained = the_vhost(call).retained()
        cleared = refused = 0
        for count, topic in enumerate(await _matching(call, retained, filter_), 1):
            if not _may(principal, WRITE, topic):
                refused += 1
            elif retained.remove(topic):
                cleared += 1
            if count % CLEARED_AT_ONCE == 0:
                self._settle()
                await give_way()
        self._settle()
        return {"cleared": cleared, "refused": refused}

    ROUTES: ClassVar = (
        Route("GET", _S, Access.USER, list_sessions, "Sessions of MQTT clients, also of those away", query=QUERY),
        Route(
            "GET",
            f"{_S}/{{vhost}}",
            Access.VHOST_VISIBLE,
            list_sessions,
            "Sessions of MQTT clients of a vhost",
            query=QUERY,
        ),
        Route(
            "GET",
            f"{_S}/{{vhost}}/{{client}}",
            Access.VHOST_VISIBLE,
            show_session,
            "A session, by its client id, with its subscriptions",
        ),
        Route(
            "DELETE",
            f"{_S}/{{vhost}}/{{client}}",
            Access.VHOST,
            end_session,
            "End a session: close its connection, delete its queues; X-Reason says why",
        ),
        Route("GET", _ALL, Access.USER, list_retained, "Retained messages", query=(*QUERY, "filter")),
        Route("GET", _R, Access.VHOST, list_retained, "Retained messages of a vhost", query=(*QUERY, "filter")),
        Route("DELETE", _R, Access.VHOST, clear_retained, "Clear the retained messages of a filter", query=("filter",)),
        Route("GET", f"{_R}/{{topic}}", Access.VHOST, show_retained, "What is retained for a topic, with its payload"),
        Route("DELETE", f"{_R}/{{topic}}", Access.VHOST, clear_topic, "Clear what is retained for a topic"),
    )


def _described(vhost: VirtualHost, topic: str, retained: Retained) -> Described:
    header = bytes(_PROPERTIES_AT) + retained.properties
    properties = properties_to_json(decode_properties(header, 0, len(header)))
    qos = 1 if properties.get("delivery_mode") == 2 else 0
    return {
        "topic": topic,
        "vhost": vhost.name,
        "payload_bytes": len(retained.body),
        "published_at": retained.published_ms,
        "expires_at": retained.expires_ms or None,
        "qos": properties.get("headers", {}).get(QOS_HEADER, qos),
        "properties": properties,
    }
