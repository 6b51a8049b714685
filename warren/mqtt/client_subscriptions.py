"""The subscriptions of one connected MQTT client: bindings, their queues, and shares of groups.

1. A filter has one subscription at a time. A change of its options first makes the new binding, and then removes the
   old one, so no message is missed.
2. Each subscription in `Filters` of the ledger has its binding. For each share, the queue of the group is bound, and
   the client consumes from it.
3. A share is written into the notes of the session before its subscription is answered. The other subscriptions are
   stored as bindings.

The header of ``mqtt.session``, (1), (5) and (7), describes the queues and bindings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from warren.amqp import methods as m
from warren.amqp.declarations import QueueDeclaration
from warren.amqp.errors import ACCESS_REFUSED, AmqpError
from warren.amqp.field_table import EMPTY_TABLE
from warren.channels.access import CONFIGURE, READ
from warren.channels.consuming import cancel, consume
from warren.channels.ending import note_error
from warren.channels.topology import bind_subscriber, run_topology, unbind_subscriber
from warren.mqtt.ledger import MqttLedger
from warren.mqtt.packets import V3_1, V5, Wanted
from warren.mqtt.reason_codes import FAILURE, NO_SUBSCRIPTION, QUOTA, MqttError, reason_of
from warren.mqtt.sessions import SharedSubscription, arguments_of_queue, queue_name
from warren.mqtt.subscriber import Subscriber
from warren.mqtt.subscriptions import arguments_of
from warren.mqtt.topics import (
    EXCHANGE,
    SHARED,
    Filters,
    Subscription,
    binding_key,
    has_star,
    shared_queue,
    split_shared,
)

if TYPE_CHECKING:
    from warren.mqtt.peer import MqttPeer
    from warren.mqtt.session import MqttSession

SHARES_MAX: Final = 100
SHARES_EXPIRE_MS: Final = 86_400_000  # a shared queue that is unused for so long is a leftover of a crash

# Shared by all that are empty: never changed.
_NO_SHARES: Final[dict[str, SharedSubscription]] = {}


class ClientSubscriptions:
    """The subscriptions of the session of `mqtt`, whose messages `ledger` delivers."""

    def __init__(self, mqtt: MqttPeer, ledger: MqttLedger) -> None:
        self.filters = ledger.filters
        self.shared = _NO_SHARES  # by filter, with $share/ and the group
        self.subscriber: Subscriber | None = None  # of the subscriptions of QoS 0, if they need no queue
        self.has_no_local: bool = False  # whether any of them leaves out messages that this client publishes
        self._mqtt = mqtt
        self._ledger = ledger

    @property
    def _session(self) -> MqttSession:
        session = self._mqtt.session  # not kept here, since the session refers to this object
        assert session is not None
        return session

    def count(self) -> int:
        """Return the number of subscriptions."""
        return len(self.filters) + len(self.shared)

    def know(self, subscription: Subscription) -> None:
        """Note a subscription that exists."""
        ledger = self._ledger
        ledger.filters.put(subscription)
        ledger.forget_descriptions()
        if subscription.arguments != EMPTY_TABLE:
            ledger.looks = True
            ledger.has_stars = ledger.has_stars or has_star(subscription.filter)
        if subscription.no_local and not self.has_no_local:
            self.has_no_local = True
            self._session.forget_prepared()

    def subscribe(self, wanted: Wanted, identifier: int) -> tuple[int, bool]:
        """Make or change a subscription; return the code for SUBACK, and whether it is a new one."""
        session = self._session
        try:
            if wanted.filter.startswith(SHARED):
                return self._subscribe_shared(wanted, identifier)
            key = binding_key(wanted.filter)
            qos = wanted.qos
            arguments = arguments_of(wanted, identifier)
            old = self.filters.get(wanted.filter)
            if qos == 0 and self._needs_no_queue():
                subscriber = self._need_subscriber()
                bind_subscriber(session, subscriber, EXCHANGE, key, arguments)
                if old is not None and (old.qos != 0 or old.arguments != arguments):
                    self._unbind(old)
            else:
                queue = self._need_queue(qos)
                if old is None or old.qos != qos or old.arguments != arguments:
                    run_topology(session, m.QueueBind(0, queue, EXCHANGE, key, False, arguments))
                    if old is not None:
                        self._unbind(old)
            self.know(Subscription(wanted.filter, qos, wanted.no_local, wanted.as_published, identifier, arguments))
            return qos, old is None
        except AmqpError as error:
            version = self._mqtt.version
            if version == V3_1:
                self._mqtt.fail(error)  # SUBACK has no code for this error
            elif error.reply_code == ACCESS_REFUSED:
                note_error(self._mqtt, "connection.error", 1, error)
            return (reason_of(error) if version == V5 else FAILURE), False

    def _subscribe_shared(self, wanted: Wanted, identifier: int) -> tuple[int, bool]:
        """Take a share of the messages of a group."""
        session = self._session
        filter_ = wanted.filter
        old = self.shared.get(filter_)
        if old is None and len(self.shared) >= SHARES_MAX:
            raise MqttError(QUOTA, f"more than {SHARES_MAX} shared subscriptions")
        rest, group = split_shared(filter_)
        queue = shared_queue(group, rest)
        if old is not None:
            cancel(session, m.BasicCancel(queue, True))
        made = SharedSubscription(filter_, min(wanted.qos, 1), wanted.as_published, identifier)
        try:
            self.take_share(made)
        except AmqpError:
            self.shared.pop(filter_, None)
            session.keep()
            session.sessions.leave_share(queue, session.client_id)
            raise
        session.keep()
        return made.qos, old is None

    def take_share(self, shared: SharedSubscription) -> None:
        """Consume from the queue of a group, which is made for its first consumer.

        Raises:
            AmqpError: the user lacks a permission, or the filter is not valid.
        """
        session = self._session
        filter_, group = split_shared(shared.filter)
        key = binding_key(filter_)
        queue = shared_queue(group, filter_)
        session.authorize(READ, "queue", queue)
        if queue not in session.vhost.queues:
            arguments = arguments_of_queue(session.vhost, SHARES_EXPIRE_MS)
            run_topology(session, QueueDeclaration(queue, durable=True, arguments=arguments))
            session.sessions.share(queue, session.client_id)
        run_topology(session, m.QueueBind(0, queue, EXCHANGE, key, False, EMPTY_TABLE))
        session.sessions.share(queue, session.client_id)  # after the checks: a share that ends may delete the queue
        filters = Filters()
        filters.put(Subscription(filter_, shared.qos, False, shared.as_published, shared.identifier, EMPTY_TABLE))
        self._ledger.share(queue, filters)
        self._consume(queue, queue, shared.qos)
        if self.shared is _NO_SHARES:
            self.shared = {}
        self.shared[shared.filter] = shared

    def _give_share_up(self, filter_: str) -> int:
        """End a shared subscription; return the code for UNSUBACK."""
        session = self._session
        if self.shared.pop(filter_, None) is None:
            return NO_SUBSCRIPTION
        rest, group = split_shared(filter_)
        queue = shared_queue(group, rest)
        cancel(session, m.BasicCancel(queue, True))
        self._ledger.forget_descriptions()
        session.keep()
        session.sessions.leave_share(queue, session.client_id)
        return 0

    def _unbind(self, subscription: Subscription) -> None:
        session = self._session
        key = binding_key(subscription.filter)
        subscriber = self.subscriber
        if subscriber is not None and subscription.qos == 0:
            unbind_subscriber(session, subscriber, EXCHANGE, key, subscription.arguments)
            return
        queue = queue_name(session.client_id, subscription.qos)
        run_topology(session, m.QueueUnbind(0, queue, EXCHANGE, key, subscription.arguments))

    def unsubscribe(self, filter_: str) -> int:
        """End a subscription; return the code for UNSUBACK."""
        if filter_.startswith(SHARED):
            return self._give_share_up(filter_)
        subscription = self.filters.get(filter_)
        if subscription is None:
            return NO_SUBSCRIPTION
        try:
            self._unbind(subscription)
        except AmqpError as error:
            return reason_of(error)
        self.filters.remove(filter_)
        self._ledger.forget_descriptions()
        return 0

    def _needs_no_queue(self) -> bool:
        """Tell whether subscriptions of QoS 0 go to a `Subscriber` instead of a queue."""
        session = self._session
        if self.subscriber is not None:
            return True
        # The queue of a lasting session stays in use until the connection ends.
        return session.expiry_s == 0 and queue_name(session.client_id, 0) not in session.vhost.queues

    def _need_subscriber(self) -> Subscriber:
        """Return the subscriber; make it if it does not exist.

        Raises:
            ChannelException: 403, the user may not make its queue, or not read it.
        """
        session = self._session
        found = self.subscriber
        if found is None:
            name = queue_name(session.client_id, 0)
            session.authorize(CONFIGURE, "queue", name)
            session.authorize(READ, "queue", name)
            most_bytes = session.peer.broker.limits.mqtt_qos0_outbox_bytes
            found = Subscriber(name, self._ledger, session.sessions.fanout, most_bytes)
            self.subscriber = found
        return found

    def _need_queue(self, qos: int) -> str:
        """Return the name of the queue for subscriptions of `qos`, which is declared and consumed."""
        session = self._session
        name = queue_name(session.client_id, qos)
        if name not in session.vhost.queues:
            lasts = session.expiry_s > 0
            arguments = arguments_of_queue(session.vhost, session.expiry_s * 1000) if lasts else EMPTY_TABLE
            run_topology(session, QueueDeclaration(name, durable=lasts, exclusive=not lasts, arguments=arguments))
            self._consume(name, f"qos{qos}", qos)
        return name

    def _consume(self, name: str, tag: str, qos: int) -> None:
        session = self._session
        ledger = self._ledger
        ledger.grant(tag, qos)
        if qos == 2 or (qos == 1 and ledger.consumers):
            ledger.prefetch = session.prefetch  # of all its queues together
        consume(session, m.BasicConsume(0, name, tag, False, qos == 0, False, False, EMPTY_TABLE))

    def consume_again(self, qos: int) -> None:
        """Resume delivery from the queue of an earlier session: its subscriptions are known."""
        session = self._session
        name = queue_name(session.client_id, qos)
        if name not in session.vhost.queues:
            return
        try:
            self._consume(name, f"qos{qos}", qos)
        except AmqpError as error:
            self._mqtt.fail(error)
