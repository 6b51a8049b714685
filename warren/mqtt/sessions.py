"""The MQTT sessions of a vhost: those kept while disconnected, delayed wills, and shared subscriptions.

1. The queues of a session are deleted when the session ends; ``x-expires`` on them removes leftovers of a crash.
2. The queue of a shared subscription is deleted when its last subscriber has unsubscribed, or its session has ended.
3. A waiting will is published with the rights that its user has then.

    notes of a session     a field table, empty in what earlier versions have stored
        user               the user that has connected last
        shared             a list of tables: filter, qos, as_published, id
    will that waits        user (text), QoS << 1 | RETAIN, topic (text), properties, payload
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from warren.amqp.errors import NOT_ALLOWED, AmqpError, ConnectionException
from warren.amqp.field_table import EMPTY_TABLE, Table, decode_table, encode_table
from warren.mqtt.conversion import properties_of
from warren.mqtt.fanout import Fanout
from warren.mqtt.packets import WILL, Reader, Will, text
from warren.mqtt.retaining import retain
from warren.mqtt.topics import EXCHANGE, routing_key, shared_queue, split_shared
from warren.msgstore.log.message import Envelope, build_message
from warren.vhosts.kept_sessions import KeptSession, KeptSessions
from warren.vhosts.own_publishes import publish_copy

if TYPE_CHECKING:
    from warren.channels.broker import Broker
    from warren.vhosts.virtual_host import VirtualHost

QUEUE_PREFIX: Final = "mqtt-subscription-"
QOS: Final = (0, 1, 2)


def queue_name(client_id: str, qos: int) -> str:
    """Return the name of the queue for the subscriptions of a client id with `qos`."""
    return f"{QUEUE_PREFIX}{client_id}qos{qos}"


class SharedSubscription:
    """The share of a session in the messages of a group. `filter`: with ``$share/`` and the group."""

    def __init__(self, filter_: str, qos: int, as_published: bool, identifier: int) -> None:
        self.filter = filter_
        self.qos = qos
        self.as_published = as_published
        self.identifier = identifier

    def described(self) -> dict[str, object]:
        """Return it as the management API shows it."""
        return {
            "filter": self.filter,
            "qos": self.qos,
            "no_local": False,
            "retain_as_published": self.as_published,
            "identifier": self.identifier or None,
        }


def notes_of(user: str, shared: list[SharedSubscription]) -> bytes:
    """Return the notes of a session of `user` with these shared subscriptions."""
    tables: list[object] = []
    for each in shared:
        table: Table = {"filter": each.filter, "qos": each.qos, "as_published": each.as_published}
        table["id"] = each.identifier
        tables.append(table)
    notes: Table = {"user": user}
    if tables:
        notes["shared"] = tables
    return encode_table(notes)


def shared_of(notes: bytes) -> list[SharedSubscription]:
    """Return the shared subscriptions of a session with these notes."""
    found: list[SharedSubscription] = []
    tables = decode_table(notes or EMPTY_TABLE).get("shared")
    for each in tables if isinstance(tables, list) else []:
        assert isinstance(each, dict)
        filter_, qos, identifier = each["filter"], each["qos"], each["id"]
        assert isinstance(filter_, str) and isinstance(qos, int) and isinstance(identifier, int)
        found.append(SharedSubscription(filter_, qos, each["as_published"] is True, identifier))
    return found


class MqttSessions(KeptSessions):
    """The sessions of one vhost."""

    def __init__(self, broker: Broker, vhost: VirtualHost) -> None:
        super().__init__(vhost.records, broker.log, broker.timers)
        self.fanout = Fanout(broker.timers, broker.work, broker.churn)
        self._broker = broker
        self._vhost = vhost
        self._subscribers: dict[str, dict[str, None]] = {}  # names of clients, by the queue that they share
        for session in self.sessions.values():
            for each in shared_of(session.notes):
                self.share(_queue_of(each.filter), session.name)

    # --- shared subscriptions ---------------------------------------------------------------------------------------

    def share(self, queue: str, client_id: str) -> None:
        """Note that a session has a share of a queue."""
        self._subscribers.setdefault(queue, {})[client_id] = None

    def leave_share(self, queue: str, client_id: str) -> None:
        """A session has it no longer: with the last one goes the queue."""
        subscribers = self._subscribers.get(queue)
        if subscribers is None or client_id not in subscribers:
            return
        del subscribers[client_id]
        if not subscribers:
            del self._subscribers[queue]
            self._delete(queue)

    def _delete(self, name: str) -> None:
        queue = self._vhost.queues.get(name)
        if queue is not None:
            self._broker.delete_queue(self._vhost, queue)

    def user_of(self, notes: bytes) -> str:
        user = decode_table(notes or EMPTY_TABLE).get("user")
        return user if isinstance(user, str) else ""

    # --- the end of a session ---------------------------------------------------------------------------------------

    def session_over(self, session: KeptSession) -> None:
        for qos in QOS:
            queue = self._vhost.queues.get(queue_name(session.name, qos))
            if queue is not None and queue.durable:
                self._broker.delete_queue(self._vhost, queue)
        self.leave_shares(session)

    def leave_shares(self, session: KeptSession) -> None:
        """A session ends."""
        for each in shared_of(session.notes):
            self.leave_share(_queue_of(each.filter), session.name)

    def close(self) -> None:
        super().close()
        self._subscribers.clear()

    # --- wills ------------------------------------------------------------------------------------------------------

    def publish_will(self, session: KeptSession, will: bytes) -> None:
        reader = Reader(will, 0, len(will))
        user = reader.text()
        flags = int(reader.byte())
        topic = reader.text()
        properties = reader.properties(WILL)
        self._publish_will(session, user, Will(topic, will[reader.pos :], flags >> 1, flags & 1 != 0, properties))

    def _publish_will(self, session: KeptSession, user: str, will: Will) -> None:
        broker, vhost = self._broker, self._vhost
        try:
            principal = broker.access.maybe_principal(user, vhost.name)
            if principal is None:
                raise ConnectionException(NOT_ALLOWED, f"access to vhost '{vhost.name}' refused for user '{user}'")
            key = routing_key(will.topic)
            exchange = principal.publishable(vhost, EXCHANGE, key)
            if will.retain:
                retained = vhost.retained()
                most = int(broker.shared.message_max_bytes)
                retain(retained, user, broker.now_ms(), will.topic, will.properties, will.qos, will.payload, most)
            properties = properties_of(will.properties, will.qos, will.retain, "").encode()
            message = build_message(Envelope(EXCHANGE, key), properties, will.payload, 0, will.qos > 0)
            publish_copy(vhost, message, exchange, key)
        except AmqpError as error:
            fields: dict[str, object] = {"client_id": session.name, "user": user, "topic": will.topic}
            fields["reason"] = error.explanation
            broker.note("warning", "mqtt.will_refused", fields)


def encode_will(user: str, will: Will) -> bytes:
    """Return a will that has to wait."""
    return (
        text(user) + bytes([will.qos << 1 | will.retain]) + text(will.topic) + will.properties.encode() + will.payload
    )


def _queue_of(filter_: str) -> str:
    rest, group = split_shared(filter_)
    return shared_queue(group, rest)


def sessions_of(broker: Broker, vhost: VirtualHost) -> MqttSessions:
    """Return the sessions of `vhost`."""
    found = vhost.kept_sessions
    if found is None:
        found = MqttSessions(broker, vhost)
        vhost.kept_sessions = found
    assert isinstance(found, MqttSessions)
    return found


def restore_sessions(broker: Broker) -> None:
    """Go on with the sessions and wills that the log has: they end, and go out, though no client comes."""
    for vhost in broker.vhosts.values():
        sessions_of(broker, vhost)
