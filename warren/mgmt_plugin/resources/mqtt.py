"""MQTT: sessions listed and ended, also of clients that are away; retained messages browsed and cleared."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ClassVar, Final

from msgspec.structs import asdict

from warren.amqp.properties import decode_properties
from warren.engine_view.engine_view import EngineView
from warren.engine_view.mqtt import QOS_HEADER, PlacedSession, Retained
from warren.engine_view.permissions import CONFIGURE, READ, WRITE, Rights
from warren.mgmt_plugin.http.json_pieces import Rows
from warren.mgmt_plugin.http.scheduler import give_way
from warren.mgmt_plugin.http.server import Response
from warren.mgmt_plugin.listing import QUERY, Described, answer_list
from warren.mgmt_plugin.names import reason_of, the_vhost, visible_vhost_names
from warren.mgmt_plugin.resources.messages import encode_payload
from warren.mgmt_plugin.routes import Access, Call, Handlers, Route, bad_request, not_authorised, not_found
from warren.mgmt_plugin.terms import properties_to_json

ENDED_BY_MANAGEMENT: Final = "Session ended via management plugin"
FILTER_BYTES_MAX: Final = 65535
FILTER_LEVELS_MAX: Final = 128
CLEARED_AT_ONCE: Final = 20
_PROPERTIES_AT: Final = 12

_S: Final = "/api/warren/mqtt-sessions"
_ALL: Final = "/api/warren/retained"
_R: Final = f"{_ALL}/{{vhost}}"


class MqttHandlers(Handlers):
    """Handlers of MQTT's sessions and retained messages. `commit` waits until a ticket is durable."""

    def __init__(self, view: EngineView, settle: Callable[[], None], commit: Callable[[int], Awaitable[None]]) -> None:
        self._sessions = view.mqtt_sessions
        self._retained = view.retained
        self._settle = settle
        self._commit = commit

    # --- sessions -----------------------------------------------------------------------------------------------------

    def _describe(self, of: PlacedSession) -> Described:
        row = self._sessions.row(of)
        described = asdict(row)
        described["connection_details"] = None if row.connection_details is None else asdict(row.connection_details)
        return described

    async def list_sessions(self, call: Call) -> Response:
        items = [each for vhost in visible_vhost_names(call) for each in self._sessions.in_vhost(vhost)]
        return await answer_list(call, items, self._describe, self._sessions.KEYS, self._sessions.is_gone)

    def _the_session(self, call: Call) -> PlacedSession:
        session = self._sessions.maybe(the_vhost(call), call.params["client"])
        if session is None:
            raise not_found()
        return session

    async def show_session(self, call: Call) -> Described:
        session = self._the_session(call)
        described = self._describe(session)
        for found in self._sessions.subscriptions(session):
            if found is None:
                await give_way()
            else:
                described["subscriptions"] = Rows(found, self._sessions.subscription)
        return described

    async def end_session(self, call: Call) -> None:
        session = self._the_session(call)
        user = self._sessions.row(session).user
        if user is not None and not (call.operator.is_administrator or user == call.operator.name):
            raise not_authorised(Access.POLICYMAKER.value)
        for name in self._sessions.queue_names(session):
            call.authorize(CONFIGURE, "queue", name)
        await self._commit(self._sessions.end(session, reason_of(call, ENDED_BY_MANAGEMENT)))

    # --- retained messages --------------------------------------------------------------------------------------------

    async def _matching(self, vhost: str, filter_: str) -> list[str]:
        """Return the topics with something retained that `filter_` matches.

        Raises:
            HttpError: 400, it is not a valid filter.
        """
        words = filter_.split("/")
        wrong = any(("#" in word or "+" in word) and len(word) > 1 for word in words) or "#" in words[:-1]
        if not filter_ or wrong or len(words) > FILTER_LEVELS_MAX or len(filter_.encode()) > FILTER_BYTES_MAX:
            raise bad_request(f"filter must be a topic filter of at most {FILTER_LEVELS_MAX} levels, such as sensors/#")
        found: list[str] = []
        for topics in self._retained.matching(vhost, filter_):
            found += topics
            await give_way()
        return found

    async def list_retained(self, call: Call) -> Response:
        if "vhost" in call.params:
            call.authorize(READ, "exchange", "amq.topic")
        found: list[tuple[str, Rights, str]] = []
        for vhost in visible_vhost_names(call):
            rights = call.operator.access.maybe_rights(call.operator.name, vhost)
            if rights is not None and rights.may(READ, "amq.topic"):
                topics = await self._matching(vhost, call.query.get("filter", "#"))
                found += [(vhost, rights, topic) for topic in topics]

        def maybe(item: tuple[str, Rights, str]) -> Retained | None:
            vhost, rights, topic = item
            return self._retained.maybe(vhost, topic) if self._retained.may(rights, READ, topic) else None

        def describe(item: tuple[str, Rights, str]) -> Described:
            retained = maybe(item)
            assert retained is not None
            return _described(item[0], item[2], retained)

        keys: dict[str, Callable[[tuple[str, Rights, str]], object]] = {
            "name": lambda item: item[2],
            "topic": lambda item: item[2],
            "vhost": lambda item: item[0],
        }
        return await answer_list(call, found, describe, keys, lambda item: maybe(item) is None)

    async def show_retained(self, call: Call) -> Described:
        topic = call.params["topic"]
        self._retained.authorize(call.rights(), READ, topic)
        found = self._retained.maybe(the_vhost(call), topic)
        if found is None:
            raise not_found()
        described = _described(call.params["vhost"], topic, found)
        described["payload"], described["payload_encoding"] = await encode_payload((found.body,))
        return described

    async def clear_topic(self, call: Call) -> None:
        topic = call.params["topic"]
        self._retained.authorize(call.rights(), WRITE, topic)
        if not self._retained.remove(the_vhost(call), topic):
            raise not_found()
        self._settle()

    async def clear_retained(self, call: Call) -> Described:
        rights = call.rights()
        rights.authorize(WRITE, "exchange", "amq.topic")
        filter_ = call.query.get("filter")
        if filter_ is None:
            raise bad_request("filter is required; # stands for all topics")
        vhost = the_vhost(call)
        cleared = refused = 0
        for count, topic in enumerate(await self._matching(vhost, filter_), 1):
            if not self._retained.may(rights, WRITE, topic):
                refused += 1
            elif self._retained.remove(vhost, topic):
                cleared += 1
            if count % CLEARED_AT_ONCE == 0:
                self._settle()
                await give_way()
        self._settle()
        return {"cleared": cleared, "refused": refused}

    ROUTES: ClassVar = (
        Route("GET", _S, Access.USER, list_sessions, "Sessions of MQTT clients, connected or not", query=QUERY),
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
            "End a session: close its connection, delete its queues; X-Reason: the reason",
        ),
        Route("GET", _ALL, Access.USER, list_retained, "Retained messages", query=(*QUERY, "filter")),
        Route("GET", _R, Access.VHOST, list_retained, "Retained messages of a vhost", query=(*QUERY, "filter")),
        Route("DELETE", _R, Access.VHOST, clear_retained, "Clear the retained messages of a filter", query=("filter",)),
        Route(
            "GET", f"{_R}/{{topic}}", Access.VHOST, show_retained, "The retained message of a topic, with its payload"
        ),
        Route("DELETE", f"{_R}/{{topic}}", Access.VHOST, clear_topic, "Clear the retained message of a topic"),
    )


def _described(vhost: str, topic: str, retained: Retained) -> Described:
    header = bytes(_PROPERTIES_AT) + retained.properties
    properties = properties_to_json(decode_properties(header, 0, len(header)))
    qos = 1 if properties.get("delivery_mode") == 2 else 0
    return {
        "topic": topic,
        "vhost": vhost,
        "payload_bytes": len(retained.body),
        "published_at": retained.published_ms,
        "expires_at": retained.expires_ms or None,
        "qos": properties.get("headers", {}).get(QOS_HEADER, qos),
        "properties": properties,
    }
