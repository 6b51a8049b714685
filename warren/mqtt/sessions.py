"""The MQTT sessions of a vhost: those kept while disconnected, and shared subscriptions.

1. The queues of a session are deleted when the session ends. Their ``x-expires`` removes leftovers of a crash.
2. The queue of a shared subscription is deleted when its last subscriber has unsubscribed, or when the session of that
   subscriber has ended.

    notes of a session     a field table, empty in what earlier versions have stored
        user               the user that has connected last
        shared             a list of tables: filter, qos, as_published, id
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from warren.amqp.field_table import EMPTY_TABLE, Table, decode_table, encode_table
from warren.mqtt.fanout import Fanout
from warren.mqtt.topics import shared_queue, split_shared
from warren.mqtt.wills import publish_waiting_will
from warren.queues.arguments import CLASSIC, STREAM
from warren.queues.long_work import ALL_STEPS, Steps
from warren.vhosts.kept_sessions import KeptSession, KeptSessions

if TYPE_CHECKING:
    from warren.channels.broker import Broker
    from warren.vhosts.virtual_host import VirtualHost

QUEUE_PREFIX: Final = "mqtt-subscription-"
QOS: Final = (0, 1, 2)


def queue_name(client_id: str, qos: int) -> str:
    """Return the name of the queue for the subscriptions of a client id with `qos`."""
    return f"{QUEUE_PREFIX}{client_id}qos{qos}"


def arguments_of_queue(vhost: VirtualHost, expires_ms: int) -> bytes:
    """Return the arguments of a durable queue of subscriptions, which is deleted if it is unused for `expires_ms`.

    Its type is the default of the vhost, but never a stream: a stream has no acknowledgements, and does not expire.
    """
    arguments: Table = {"x-expires": expires_ms}
    if vhost.record.default_queue_type == STREAM:
        arguments["x-queue-type"] = CLASSIC
    return encode_table(arguments)


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
        self.broker = broker
        self.vhost = vhost
        self._subscribers: dict[str, dict[str, None]] = {}  # names of clients, by the queue that they share

    # --- shared subscriptions ---------------------------------------------------------------------------------------

    def share(self, queue: str, client_id: str) -> None:
        """Note that a session has a share of a queue."""
        self._subscribers.setdefault(queue, {})[client_id] = None

    def leave_share(self, queue: str, client_id: str) -> None:
        """Remove a session from a share; delete the queue with its last session."""
        subscribers = self._subscribers.get(queue)
        if subscribers is None or client_id not in subscribers:
            return
        del subscribers[client_id]
        if not subscribers:
            del self._subscribers[queue]
            self._delete(queue)

    def _delete(self, name: str) -> None:
        queue = self.vhost.queues.get(name)
        if queue is not None:
            self.broker.delete_queue(self.vhost, queue)

    def user_of(self, notes: bytes) -> str:
        user = decode_table(notes or EMPTY_TABLE).get("user")
        return user if isinstance(user, str) else ""

    def session_found(self, session: KeptSession) -> None:
        for each in shared_of(session.notes):
            self.share(_queue_of(each.filter), session.name)

    # --- the end of a session ---------------------------------------------------------------------------------------

    def session_over(self, session: KeptSession) -> None:
        for qos in QOS:
            queue = self.vhost.queues.get(queue_name(session.name, qos))
            if queue is not None and queue.durable:
                self.broker.delete_queue(self.vhost, queue)
        self.leave_shares(session)

    def leave_shares(self, session: KeptSession) -> None:
        """Remove a session that ends from its shares."""
        shares = shared_of(session.notes)
        self.broker.timers.worked += len(shares)  # very many sessions may end at the same time
        for each in shares:
            self.leave_share(_queue_of(each.filter), session.name)

    def close(self) -> None:
        super().close()
        self._subscribers.clear()

    # --- wills ------------------------------------------------------------------------------------------------------

    def publish_will(self, session: KeptSession, will: bytes) -> None:
        publish_waiting_will(self, session, will)


def _queue_of(filter_: str) -> str:
    rest, group = split_shared(filter_)
    return shared_queue(group, rest)


def sessions_of(broker: Broker, vhost: VirtualHost) -> MqttSessions:
    """Return the sessions of `vhost`."""
    found = vhost.kept_sessions
    if found is None:
        found = MqttSessions(broker, vhost)
        for _ in found.read():
            pass
        vhost.kept_sessions = found
        for _ in found.set_timers():
            pass
    assert isinstance(found, MqttSessions)
    return found


def restore_sessions(broker: Broker) -> Iterator[None]:
    """Restore the sessions and wills that the log has: they expire and are published even if no client comes.

    Yields None after each piece. Retained messages are read here as well: if the first client that asks caused this,
    all others would wait for it.
    """
    for vhost in list(broker.vhosts.values()):
        if _is_unread(vhost):
            found = MqttSessions(broker, vhost)
            yield from found.read()
            if _is_unread(vhost) and broker.vhosts.get(vhost.name) is vhost:
                vhost.kept_sessions = found
                yield from found.set_timers()
            else:
                found.forget(Steps(ALL_STEPS))  # the vhost was deleted meanwhile, or a client has made its sessions
        if len(vhost.records):
            yield from vhost.read_retained()


def _is_unread(vhost: VirtualHost) -> bool:
    """Tell whether a vhost has no sessions yet; a function, since that changes between two pieces of work."""
    return vhost.kept_sessions is None
