"""The session of an MQTT client: messages in both directions, and its subscriptions.

Requests for many subscriptions are jobs (`mqtt.subscribing`), and so are retained messages for them (`mqtt.replays`).

1. A subscription is a binding of ``amq.topic`` to a queue of its client id for each QoS, ``mqtt-subscription-IDqos0``
   to ``…2``. A session that ends with its connection has exclusive queues, and of QoS 0 no queue but a `Subscriber`,
   with the name and the rights of the queue. One that lasts has durable ones; its subscriptions are found again as
   bindings, and the rest of its state in `vhosts.kept_sessions`.
2. PUBACK and PUBREC are confirms (`mqtt.receipts`): a message in a durable queue is on disk. So is a retained message.
3. PUBREL settles a message of QoS 2: it leaves when it is on disk that the queue has forgotten the message and the
   session remembers its packet id. PUBCOMP leaves when it is on disk that the packet id is free.
4. All queues together have at most as many messages out as the client takes (Receive Maximum), until PUBACK or
   PUBCOMP.
5. Subscription identifiers and options are arguments of the binding. The subscriptions that match a message are found
   at the delivery, if they are needed.
6. Retained messages follow the SUBACK of their subscription, which may wait for the disk. They come through the queue
   of the subscription, like any other message; without a queue they come as fast as the client takes them.
7. The clients that share a subscription are consumers of one queue. They are granted QoS 1 at most: a message of QoS 2
   could not be given to another client when its client goes in the middle of it.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, Final

from mypy_extensions import i64

from warren.amqp import methods as m
from warren.amqp.declarations import QueueDeclaration
from warren.amqp.errors import ACCESS_REFUSED, PRECONDITION_FAILED, AmqpError, ChannelException
from warren.amqp.field_table import EMPTY_TABLE, encode_table
from warren.channels.access import CONFIGURE, READ
from warren.channels.consuming import cancel, consume
from warren.channels.prepared_publish import NUMBER, PreparedPublish
from warren.channels.session import Session
from warren.channels.topology import bind_subscriber, run_topology, unbind_subscriber
from warren.mqtt.conversion import properties_of
from warren.mqtt.errors import (
    FAILURE,
    NO_SUBSCRIBERS,
    NO_SUBSCRIPTION,
    PROTOCOL_ERROR,
    QUOTA,
    RECEIVE_MAXIMUM,
    UNKNOWN_PACKET_ID,
    MqttError,
    reason_of,
)
from warren.mqtt.ledger import QOS_2_FROM, MqttLedger
from warren.mqtt.packets import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    V3_1,
    V5,
    Answer,
    Properties,
    Wanted,
    Will,
    acknowledgement,
)
from warren.mqtt.receipts import Receipts
from warren.mqtt.replays import Replay, StoredReplay
from warren.mqtt.retaining import maybe_replayed, retain
from warren.mqtt.sessions import QOS, MqttSessions, SharedSubscription, notes_of, queue_name, shared_of
from warren.mqtt.subscriber import Subscriber
from warren.mqtt.subscriptions import arguments_of
from warren.mqtt.topics import (
    EXCHANGE,
    SHARED,
    Filters,
    Subscription,
    binding_key,
    has_star,
    routing_key,
    shared_queue,
    split_shared,
)
from warren.msgstore.log.message import Message
from warren.queues.counters import MessageCounts
from warren.queues.delivery import Consumer
from warren.queues.origin import BROKER
from warren.queues.receiver import Receiver
from warren.vhosts.kept_sessions import KeptSession

if TYPE_CHECKING:
    from warren.mqtt.peer import MqttPeer
    from warren.mqtt.subscribing import SubscribeRun

TOPICS_KEPT: Final = 64
TOPIC_KEPT_BYTES: Final = 256
# With this number of messages ready in its queue, or as many bytes as for QoS 0, no more retained messages are added.
REPLAYED_AHEAD: Final = 1000
# Limit for messages that wait for PUBACK, PUBREC or PUBREL of a client of 5.0; for those of QoS 2 of any client.
UNANSWERED_MAX: Final = 1024
SHARES_MAX: Final = 100
SHARES_EXPIRE_MS: Final = 86_400_000  # unused so long, a shared queue has lost all sessions: those of a crash, that is


# Shared by all that are empty: never changed.
_NONE_SHARED: Final[dict[str, SharedSubscription]] = {}
_NONE_HELD: Final[list[SubscribeRun]] = []


class MqttSession(Session):
    """The one session of an MQTT connection. `expiry_s`: how long it outlives it; 0: it does not."""

    def __init__(self, peer: MqttPeer, sessions: MqttSessions, kept: KeptSession, expiry_s: int) -> None:
        self._mqtt: MqttPeer = peer
        vhost = peer.vhost
        syncs: bool = vhost is None or vhost.sync_confirms
        self._ledger = MqttLedger(peer, kept, sessions.fanout, peer.broker.limits.unacked_per_channel_max, syncs=syncs)
        super().__init__(peer, NUMBER, self._ledger)
        self.sessions = sessions
        self.kept = kept
        self.client_id = kept.name
        self.expiry_s = expiry_s
        self.is_resumed: bool = False  # its session existed before the connection: to end it earlier takes a right
        self.prefetch = min(peer.receive_max, UNANSWERED_MAX)
        self.subscriptions = self._ledger.filters
        self.shared_subscriptions = _NONE_SHARED  # by filter, with $share/ and the group
        self.subscriber: Subscriber | None = None  # of its subscriptions of QoS 0, if they need no queue
        self._replay: Replay | None = None  # waits for the client to take the sent bytes
        self._held_runs = _NONE_HELD  # their SUBACK waits for the disk, and what is retained for the SUBACK
        self._stored_replay: StoredReplay | None = None  # of retained messages for its queues, from the first time on
        # By topic, the publishes without properties, for each QoS.
        self._prepared: list[dict[bytes, PreparedPublish]] | None = None  # from its first PUBLISH on
        self._receipts: Receipts | None = None
        self._own_kept = False  # its publishes carry the client id: a subscription does not want them back
        self._ticket: int = 0  # of the latest change that this connection has made
        self._batch: int = 0  # of the log, with the latest record of the session

    # --- results of commands ----------------------------------------------------------------------------------------

    def reply(self, method: Any, ticket: int = 0, batch: int = 0) -> None:
        if ticket > self._ticket:
            self._ticket = ticket

    def write_done(self, packet: bytes) -> None:
        """Send the answer to a change when the change is durable."""
        if self._mqtt.running:
            self._mqtt.write_when_durable(packet, self._ticket, self._batch)

    def write_returned(self, message: Message) -> None:
        """Nothing is mandatory in MQTT."""

    def consumer_cancelled(self, consumer: Consumer) -> None:
        self._lost(consumer.queue.name)

    def _lost(self, queue: str) -> None:
        text = f"the queue '{queue}' of the session is gone, or the right to read it"
        self._mqtt.fail_later(ChannelException(PRECONDITION_FAILED, text))

    def drop_content(self) -> None:
        self.shared.inbound.let_go(self)

    def write_receipt(self, packet_id: int, qos: int, reason: int) -> None:
        """Write PUBACK or PUBREC."""
        kind = PUBREC if qos == 2 else PUBACK
        self._mqtt.outbox.write(acknowledgement(kind, packet_id, self._mqtt.version, reason))

    def refused(self, packet_id: int, qos: int) -> None:
        """A queue has refused a message."""
        explanation = "a queue that is full has refused the message"
        if self._mqtt.version == V5:
            words = explanation if self._mqtt.tells_problems else ""
            kind = PUBREC if qos == 2 else PUBACK
            self._mqtt.outbox.write(acknowledgement(kind, packet_id, V5, QUOTA, words))
        else:
            # Nothing else tells the client: without PUBACK it would wait, and block the messages after it.
            self._mqtt.fail_later(MqttError(QUOTA, explanation))

    # --- PUBLISH ----------------------------------------------------------------------------------------------------

    def publish_plain(self, topic: bytes, qos: i64, packet_id: int, body: bytes, dup: bool) -> None:
        """Publish a message without properties that is not retained. `dup`: it may have been sent before.

        Raises:
            AmqpError: it may not be published.
        """
        by_qos = self._prepared
        if by_qos is None:
            by_qos = [{}, {}, {}]
            self._prepared = by_qos
        kept = by_qos[int(qos)]
        prepared = kept.get(topic)
        if prepared is None:
            self._mqtt.count_command()
            prepared = self.prepare(self._mqtt.topic_text(topic), Properties(), int(qos), False)
            if len(topic) <= TOPIC_KEPT_BYTES:
                if len(kept) >= TOPICS_KEPT:
                    kept.clear()
                kept[topic] = prepared
        crc = self._crc_of(prepared, packet_id, body, dup) if qos == 2 else 0
        self._publish(prepared, qos, packet_id, body, crc)

    def _crc_of(self, prepared: PreparedPublish, packet_id: int, body: bytes, dup: bool) -> int:
        """Return the crc of a message of QoS 2; forget its packet id if that is of another one."""
        crc = zlib.crc32(body, zlib.crc32(prepared.arguments))
        kept = self.kept
        if kept.earlier and self.sessions.is_of_another(kept, packet_id, crc, is_first=not dup):
            self.sessions.forget_received(kept, packet_id)
        return crc

    def prepare(self, topic: str, properties: Properties, qos: int, retain: bool) -> PreparedPublish:
        """Return the publish for a PUBLISH or a will, for any payload.

        Raises:
            MqttError: something in it is too long.
        """
        found = properties_of(properties, qos, retain, self.client_id if self._own_kept else "")
        return PreparedPublish(EXCHANGE, routing_key(topic), found.encode())

    def _publish(self, prepared: PreparedPublish, qos: i64, packet_id: int, body: bytes, crc: int) -> None:
        if qos > 0:
            receipts = self._receipts
            if receipts is None:
                receipts = Receipts(self.shared.confirms, self, syncs=self.sync_confirms)
                self._receipts = receipts
                self.confirms = receipts
            if qos == 2 and packet_id in self.kept.received:
                if not receipts.expect_again(packet_id):
                    # It was taken over in another connection: the log need not have it yet.
                    self._answer(acknowledgement(PUBREC, packet_id, self._mqtt.version))
                return
            self._check_room(receipts, qos)
            route = prepared.find_route(self)
            reason = NO_SUBSCRIBERS if route.cacheable and not route.queues else 0
            receipts.expect(packet_id, qos, reason, crc)
        prepared.publish(self, body)

    def _check_room(self, receipts: Receipts, qos: i64) -> None:
        """Make sure that the client may have one more message that is not answered for good.

        Raises:
            MqttError: it may not.
        """
        received = len(self.kept.received)
        if self._mqtt.version == V5:
            received += receipts.waiting_of_qos_1
        elif qos == 1:
            return
        if received >= UNANSWERED_MAX:
            raise MqttError(RECEIVE_MAXIMUM, f"more than {UNANSWERED_MAX} messages that are not answered yet")
        if qos == 2 and not self.sessions.has_room_for_ids(self.kept):
            raise MqttError(QUOTA, "too many packet ids of QoS 2 are remembered in this virtual host already")

    def publish(
        self, topic: str, properties: Properties, qos: int, retained: bool, packet_id: int, body: bytes, dup: bool
    ) -> None:
        """Publish with properties, and retain the message if that is asked for. `dup`: it may have been sent before.

        Raises:
            AmqpError: it may not be published, or not be retained.
        """
        prepared = self.prepare(topic, properties, qos, retained)
        crc = self._crc_of(prepared, packet_id, body, dup) if qos == 2 else 0
        retains = retained and not (qos == 2 and packet_id in self.kept.received)
        if retains:
            prepared.find_route(self)  # may it be published?
            self._retain(topic, properties, qos, body)
        self._publish(prepared, qos, packet_id, body, crc)
        if retains and self._receipts is not None and qos > 0:
            self._receipts.await_batch()

    def _retain(self, topic: str, properties: Properties, qos: int, body: bytes) -> None:
        now_ms = self.connection.broker.now_ms()
        most = int(self.shared.message_max_bytes)
        retain(self.vhost.retained(), self.kept.user, now_ms, topic, properties, qos, body, most)

    def publish_will(self, will: Will) -> None:
        """Publish the will: the client is gone without a word."""
        try:
            prepared = self.prepare(will.topic, will.properties, will.qos, will.retain)
            prepared.find_route(self)  # may it be published?
            if will.retain:
                self._retain(will.topic, will.properties, will.qos, will.payload)
            prepared.publish(self, will.payload)
        except AmqpError as error:
            connection = self.connection
            fields: dict[str, object] = {"peer": connection.peer, "user": connection.user_name, "topic": will.topic}
            fields["reason"] = error.explanation
            connection.broker.note("warning", "mqtt.will_refused", fields)

    # --- queues -----------------------------------------------------------------------------------------------------

    def begin_anew(self) -> None:
        """Delete the remains of an earlier session of this client id.

        Raises:
            ChannelException: 403, 405, it may not be deleted.
        """
        for qos in QOS:
            name = queue_name(self.client_id, qos)
            if name in self.vhost.queues:
                run_topology(self, m.QueueDelete(0, name, False, False, False))

    def resume(self) -> bool:
        """Continue an earlier session of this client id; False without one. `ResumeRun` does the long work.

        Raises:
            ChannelException: 403, 405, its queues may not be read.
        """
        is_there = self.kept.stored is not None
        for qos in QOS:
            queue = self.vhost.queues.get(queue_name(self.client_id, qos))
            if queue is not None:
                is_there = True
                self.authorize(READ, "queue", queue.name)
        for each in shared_of(self.kept.notes):
            self._take_share(each)
        self.keep_for(self.expiry_s)
        if self.kept.released:
            self._ledger.prefetch = self.prefetch
            self._ledger.take_room(len(self.kept.released))
        self.is_resumed = is_there
        return is_there

    def release_again(self) -> None:
        """Send PUBREL again for messages without PUBCOMP: after CONNACK, before anything else."""
        version = self._mqtt.version
        released = [acknowledgement(PUBREL, packet_id, version) for packet_id in self.kept.released]
        if released:
            self._answer(b"".join(released))  # they may not be in the log yet, when the session was taken over

    def consume_again(self, qos: int) -> None:
        """Have the queue of a session that was there before hand out: its subscriptions are known."""
        name = queue_name(self.client_id, qos)
        if name not in self.vhost.queues:
            return
        try:
            self._consume(name, f"qos{qos}", qos)
        except AmqpError as error:
            self._mqtt.fail_later(error)

    def keep_for(self, expiry_s: int) -> None:
        """Have the session outlive its connection for another time than it was to. Exclusive queues go with it."""
        self.expiry_s = expiry_s
        self._keep()
        if expiry_s == 0:
            return
        arguments = encode_table({"x-expires": expiry_s * 1000})
        for qos in QOS:
            queue = self.vhost.queues.get(queue_name(self.client_id, qos))
            if queue is not None and queue.durable and queue.arguments != arguments:
                self.reply(None, self.vhost.change_arguments(queue, arguments))

    def _keep(self) -> None:
        """Record the state of the session."""
        notes = notes_of(self.kept.user, list(self.shared_subscriptions.values()))
        if self.sessions.keep(self.kept, self.expiry_s, notes):
            log = self.connection.broker.log
            log.force()
            self._batch = int(log.batch.number)

    def end_for_good(self) -> None:
        """The session ends with its connection: remove everything that would outlive it."""
        self.sessions.session_over(self.kept)
        self.sessions.end(self.kept)

    def _need_queue(self, qos: int) -> str:
        """Return the name of the queue for subscriptions of `qos`, which is declared and consumed."""
        name = queue_name(self.client_id, qos)
        if name not in self.vhost.queues:
            lasts = self.expiry_s > 0
            arguments = encode_table({"x-expires": self.expiry_s * 1000}) if lasts else EMPTY_TABLE
            run_topology(self, QueueDeclaration(name, durable=lasts, exclusive=not lasts, arguments=arguments))
            self._consume(name, f"qos{qos}", qos)
        return name

    def _consume(self, name: str, tag: str, qos: int) -> None:
        ledger = self._ledger
        ledger.grant(tag, qos)
        if qos == 2 or (qos == 1 and ledger.consumers):
            ledger.prefetch = self.prefetch  # of all its queues together
        consume(self, m.BasicConsume(0, name, tag, False, qos == 0, False, False, EMPTY_TABLE))

    # --- subscriptions ----------------------------------------------------------------------------------------------

    def know(self, subscription: Subscription) -> None:
        """Note a subscription that there is."""
        ledger = self._ledger
        ledger.filters.put(subscription)
        ledger.forget_descriptions()
        if subscription.arguments != EMPTY_TABLE:
            ledger.looks = True
            ledger.has_stars = ledger.has_stars or has_star(subscription.filter)
        if subscription.no_local and not self._own_kept:
            self._own_kept = True
            self._forget_prepared()

    def _forget_prepared(self) -> None:
        self._prepared = None

    def subscribe(self, wanted: Wanted, identifier: int) -> tuple[int, bool]:
        """Make or change a subscription; return the code for SUBACK, and whether it is a new one."""
        try:
            if wanted.filter.startswith(SHARED):
                return self._subscribe_shared(wanted, identifier)
            key = binding_key(wanted.filter)
            qos = wanted.qos
            arguments = arguments_of(wanted, identifier)
            old = self.subscriptions.get(wanted.filter)
            if qos == 0 and self._needs_no_queue():
                subscriber = self._need_subscriber()
                bind_subscriber(self, subscriber, EXCHANGE, key, arguments)
                if old is not None and (old.qos != 0 or old.arguments != arguments):
                    self._unbind(old)
            else:
                queue = self._need_queue(qos)
                if old is None or old.qos != qos or old.arguments != arguments:
                    run_topology(self, m.QueueBind(0, queue, EXCHANGE, key, False, arguments))
                    if old is not None:
                        self._unbind(old)
            self.know(Subscription(wanted.filter, qos, wanted.no_local, wanted.as_published, identifier, arguments))
            return qos, old is None
        except AmqpError as error:
            version = self._mqtt.version
            if version == V3_1:
                self._mqtt.fail_later(error)  # its SUBACK has no word for that
            elif error.reply_code == ACCESS_REFUSED:
                self._mqtt.note_refusal(error)
            return (reason_of(error) if version == V5 else FAILURE), False

    def _subscribe_shared(self, wanted: Wanted, identifier: int) -> tuple[int, bool]:
        """Take a share of the messages of a group."""
        filter_ = wanted.filter
        old = self.shared_subscriptions.get(filter_)
        if old is None and len(self.shared_subscriptions) >= SHARES_MAX:
            raise MqttError(QUOTA, f"more than {SHARES_MAX} shared subscriptions")
        rest, group = split_shared(filter_)
        queue = shared_queue(group, rest)
        if old is not None:
            cancel(self, m.BasicCancel(queue, True))
        made = SharedSubscription(filter_, min(wanted.qos, 1), wanted.as_published, identifier)
        try:
            self._take_share(made)
        except AmqpError:
            self.shared_subscriptions.pop(filter_, None)
            self._keep()
            self.sessions.leave_share(queue, self.client_id)
            raise
        self._keep()
        return made.qos, old is None

    def _take_share(self, shared: SharedSubscription) -> None:
        """Become a consumer of the queue of a group, which is made for the first one.

        Raises:
            AmqpError: the user may not, or the filter is not valid.
        """
        filter_, group = split_shared(shared.filter)
        key = binding_key(filter_)
        queue = shared_queue(group, filter_)
        self.sessions.share(queue, self.client_id)
        arguments = encode_table({"x-expires": SHARES_EXPIRE_MS})
        if queue not in self.vhost.queues:
            run_topology(self, QueueDeclaration(queue, durable=True, arguments=arguments))
        run_topology(self, m.QueueBind(0, queue, EXCHANGE, key, False, EMPTY_TABLE))
        filters = Filters()
        filters.put(Subscription(filter_, shared.qos, False, shared.as_published, shared.identifier, EMPTY_TABLE))
        self._ledger.share(queue, filters)
        self._consume(queue, queue, shared.qos)
        if self.shared_subscriptions is _NONE_SHARED:
            self.shared_subscriptions = {}
        self.shared_subscriptions[shared.filter] = shared

    def _give_share_up(self, filter_: str) -> int:
        """End a shared subscription; return the code for UNSUBACK."""
        if self.shared_subscriptions.pop(filter_, None) is None:
            return NO_SUBSCRIPTION
        rest, group = split_shared(filter_)
        queue = shared_queue(group, rest)
        cancel(self, m.BasicCancel(queue, True))
        self._ledger.forget_descriptions()
        self._keep()
        self.sessions.leave_share(queue, self.client_id)
        return 0

    def subscribed(self) -> list[Any]:
        return [*self.subscriptions.values(), *self.shared_subscriptions.values()]

    def describe_subscription(self, subscription: Any) -> dict[str, object]:
        assert isinstance(subscription, (Subscription, SharedSubscription))
        return subscription.described()

    def _needs_no_queue(self) -> bool:
        """Tell whether subscriptions of QoS 0 are those of a `Subscriber`."""
        if self.subscriber is not None:
            return True
        # The queue of a lasting session stays in use until the connection ends.
        return self.expiry_s == 0 and queue_name(self.client_id, 0) not in self.vhost.queues

    def _need_subscriber(self) -> Subscriber:
        """Return the subscriber, from now on there.

        Raises:
            ChannelException: 403, the user may not make its queue, or not read it.
        """
        found = self.subscriber
        if found is None:
            name = queue_name(self.client_id, 0)
            self.authorize(CONFIGURE, "queue", name)
            self.authorize(READ, "queue", name)
            most_bytes = self.connection.broker.limits.mqtt_qos0_outbox_bytes
            found = Subscriber(name, self._ledger, self.sessions.fanout, most_bytes)
            self.subscriber = found
        return found

    def recheck(self) -> None:
        subscriber = self.subscriber
        principal = self.connection.principal
        if subscriber is not None and principal is not None and not principal.may(READ, subscriber.name):
            self._lost(subscriber.name)

    def _unbind(self, subscription: Subscription) -> None:
        key = binding_key(subscription.filter)
        subscriber = self.subscriber
        if subscriber is not None and subscription.qos == 0:
            unbind_subscriber(self, subscriber, EXCHANGE, key, subscription.arguments)
            return
        queue = queue_name(self.client_id, subscription.qos)
        run_topology(self, m.QueueUnbind(0, queue, EXCHANGE, key, subscription.arguments))

    def unsubscribe(self, filter_: str) -> int:
        """End a subscription; return the code for UNSUBACK."""
        if filter_.startswith(SHARED):
            return self._give_share_up(filter_)
        subscription = self.subscriptions.get(filter_)
        if subscription is None:
            return NO_SUBSCRIPTION
        try:
            self._unbind(subscription)
        except AmqpError as error:
            return reason_of(error)
        self.subscriptions.remove(filter_)
        self._ledger.forget_descriptions()
        return 0

    def send_retained(self, topic: str, subscription: Subscription) -> i64:
        """Send a subscription the retained message of `topic`; return its bytes."""
        vhost = self.vhost
        receiver: Receiver | None = self.subscriber
        if receiver is None or subscription.qos > 0:
            receiver = vhost.queues.get(queue_name(self.client_id, subscription.qos))
        found = maybe_replayed(vhost.retained(), self.connection.broker.now_ms(), topic)
        if found is None or receiver is None:
            return 0
        receiver.accept(found, BROKER)
        return found.memory_bytes

    def stored_replay(self) -> StoredReplay:
        """Return the job that sends retained messages to the queues of this session; it exists from now on."""
        replay = self._stored_replay
        if replay is None:
            replay = StoredReplay(self)
            self._stored_replay = replay
        return replay

    def waits_for_answer(self, run: SubscribeRun) -> bool:
        """Tell whether the latest answer waits for the disk; `run` then continues when it has left."""
        held = self._mqtt.answers_held()
        if held == self._mqtt.answers_sent():
            return False
        run.answer = held
        if self._held_runs is _NONE_HELD:
            self._held_runs = []
        self._held_runs.append(run)
        return True

    def answers_left(self) -> None:
        """Answers that waited for the disk have left: send the retained messages that belong after them."""
        sent = self._mqtt.answers_sent()
        held = self._held_runs
        count = 0
        while count < len(held) and held[count].answer <= sent:
            self._mqtt.begin(held[count])
            count += 1
        if count == len(held):
            self._held_runs = _NONE_HELD
        else:
            del held[:count]

    def is_far_behind(self, qos: int) -> bool:
        """Tell whether so much waits in a queue of this session that retained messages should wait.

        A session that outlives its connection gets them all when that has ended: nobody would send them later.
        """
        queue = self.vhost.queues.get(queue_name(self.client_id, qos))
        if queue is None or (not self.is_open() and self.expiry_s > 0):
            return False
        ready = queue.ready
        most_bytes: i64 = self.connection.broker.limits.mqtt_qos0_outbox_bytes
        return ready.count > REPLAYED_AHEAD or ready.body_bytes > most_bytes

    def _took_some(self) -> None:
        """The client has answered or taken something: there may be room for more retained messages."""
        replay = self._stored_replay
        if replay is not None:
            replay.begin()

    def has_to_wait(self, subscription: Subscription, replay: Replay) -> bool:
        """Tell whether the client has to take something before it is sent more retained messages.

        Nothing more is read from it meanwhile; afterwards `replay` continues.
        """
        subscriber = self.subscriber
        if subscription.qos > 0 or subscriber is None or not subscriber.is_behind():
            return False
        waiting = self._replay
        if waiting is None:
            self._replay = replay
        elif waiting is not replay:
            waiting.take_over(replay)
        self._mqtt.pause_for_outbox()
        return True

    # --- answers ----------------------------------------------------------------------------------------------------

    def acknowledge_packet(self, packet_id: int) -> None:
        """PUBACK of the client. An unknown packet id is ignored: it may belong to an earlier connection.

        Raises:
            MqttError: it is of a message of QoS 2.
        """
        if packet_id >= QOS_2_FROM:
            raise MqttError(PROTOCOL_ERROR, "PUBACK for a message of QoS 2")
        tag = self._ledger.maybe_tag(packet_id)
        if tag is not None:
            self.acknowledge(tag, False)
            if self._stored_replay is not None:
                self._took_some()

    def received_packet(self, answer: Answer) -> None:
        """PUBREC of the client: it has a message of QoS 2, or with an error it does not want it.

        Raises:
            MqttError: it is of a message of QoS 1; too many packet ids are remembered.
        """
        packet_id = answer.packet_id
        if packet_id < QOS_2_FROM:
            raise MqttError(PROTOCOL_ERROR, "PUBREC for a message of QoS 1")
        version = self._mqtt.version
        ledger = self._ledger
        tag = ledger.maybe_tag(packet_id)
        if answer.reason >= FAILURE:
            if tag is not None:
                self.acknowledge(tag, False)
                ledger.send_held()
            return
        if tag is not None:
            if not self.sessions.has_room_for_ids(self.kept):
                raise MqttError(QUOTA, "too many packet ids of QoS 2 are remembered in this virtual host already")
            self.sessions.release(self.kept, packet_id)
            ledger.take_room(1)
            self.acknowledge(tag, False)
            self._took_some()
        known = packet_id in self.kept.released
        self._answer(acknowledgement(PUBREL, packet_id, version, 0 if known else UNKNOWN_PACKET_ID))

    def complete_packet(self, packet_id: int) -> None:
        """PUBCOMP of the client: it will not ask for a message of QoS 2 again."""
        if self.sessions.complete(self.kept, packet_id):
            self._ledger.give_room()

    def release_packet(self, packet_id: int) -> None:
        """PUBREL of the client: it will not send a message of QoS 2 again."""
        reason = 0 if self.sessions.forget_received(self.kept, packet_id) else UNKNOWN_PACKET_ID
        self._answer(acknowledgement(PUBCOMP, packet_id, self._mqtt.version, reason))

    def _answer(self, packet: bytes) -> None:
        """Send an answer of QoS 2 when its content is in the log, if the session lasts."""
        if self.kept.stored is None:
            self._mqtt.outbox.write(packet)
        else:
            self._mqtt.write_when_stored(packet, syncs=self.sync_confirms)

    def go_on_sending(self) -> None:
        """The client has taken everything: send the messages that have waited for that."""
        self._ledger.send_held()
        replay = self._replay
        if replay is not None:
            self._replay = None
            self._mqtt.begin(replay)
        self._took_some()

    def add_counts(self, counts: MessageCounts) -> None:
        super().add_counts(counts)
        counts.deliver_no_ack += self._ledger.direct

    def dropped_qos_0(self) -> int:
        """Return the number of messages of QoS 0 that were dropped because the client reads too slowly."""
        subscriber = self.subscriber
        return 0 if subscriber is None else int(subscriber.dropped)

    def in_flight(self) -> tuple[int, int]:
        """Return the numbers of messages, from the client and to it, that wait for their final answer."""
        receipts = self._receipts
        received = len(self.kept.received) + (0 if receipts is None else receipts.waiting_of_qos_1)
        return received, self._ledger.in_flight_count() + len(self.kept.released)

    # --- the end ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        self._replay = None
        subscriber = self.subscriber
        if subscriber is not None:
            self.subscriber = None
            self.vhost.end_subscriber(subscriber)
            subscriber.close()
        held = self._held_runs
        self._held_runs = _NONE_HELD
        for run in held:
            self.connection.broker.work.begin(run)
        super().close()
        self._took_some()

    def ended(self) -> None:
        self.subscriptions.clear()
        self.shared_subscriptions = _NONE_SHARED
        self._forget_prepared()
        self._stored_replay = None  # it refers to us; if it is under way, it ends by itself
        super().ended()
        self._mqtt.forget_session()


def check_will(will: Will) -> None:
    """Make sure that `will` can be published at all; whether its user may, is asked when it goes out.

    Raises:
        MqttError: something in it is too long.
    """
    properties = properties_of(will.properties, will.qos, will.retain, "")
    PreparedPublish(EXCHANGE, routing_key(will.topic), properties.encode())
