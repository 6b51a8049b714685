"""The session of an MQTT client: messages in both directions, and its subscriptions.

Its subscriptions are in `mqtt.client_subscriptions`. Requests for many of them are jobs (`mqtt.subscribing`), and so
are retained messages for them (`mqtt.replays`).

1. A subscription is a binding of ``amq.topic`` to a queue. A client id has one queue for each QoS,
   ``mqtt-subscription-IDqos0`` to ``…2``. A session that ends with its connection has exclusive queues; for QoS 0 it
   has a `Subscriber` instead of a queue, with the name and the rights of the queue. A session that lasts has durable
   queues. Its subscriptions are restored from the bindings, and the rest of its state from `vhosts.kept_sessions`.
2. PUBACK and PUBREC are confirms (`mqtt.receipts`): a message in a durable queue is on disk. So is a retained message.
3. PUBREC from the client settles a message of QoS 2. PUBREL is sent when two things are on disk: the queue has
   forgotten the message, and the session remembers its packet id. PUBCOMP is sent when it is on disk that the packet id
   is free.
4. All queues together have at most as many unanswered messages as the client takes (Receive Maximum). A message is
   answered by PUBACK or PUBCOMP.
5. Subscription identifiers and options are arguments of the binding. The subscriptions that match a message are found
   at the delivery, if they are needed.
6. Retained messages follow the SUBACK of their subscription, which may wait for the disk. They go through the queue of
   the subscription like other messages. Without a queue they are sent as fast as the client takes them.
7. The clients that share a subscription are consumers of one queue. They are granted QoS 1 at most: a QoS 2 exchange
   cannot move to another client halfway.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, Final

from mypy_extensions import i64

from warren.amqp import methods as m
from warren.amqp.errors import PRECONDITION_FAILED, ChannelException
from warren.amqp.field_table import decode_table, encode_table
from warren.channels.access import CONFIGURE, READ
from warren.channels.prepared_publish import NUMBER, PreparedPublish
from warren.channels.session import Session
from warren.channels.topology import run_topology
from warren.mqtt.client_subscriptions import ClientSubscriptions
from warren.mqtt.conversion import properties_of
from warren.mqtt.ledger import QOS_2_FROM, MqttLedger
from warren.mqtt.packets import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    V5,
    Answer,
    Properties,
    acknowledgement,
    decode_topic,
)
from warren.mqtt.reason_codes import (
    FAILURE,
    NO_SUBSCRIBERS,
    PROTOCOL_ERROR,
    QUOTA,
    RECEIVE_MAXIMUM,
    UNKNOWN_PACKET_ID,
    MqttError,
)
from warren.mqtt.receipts import Receipts
from warren.mqtt.replays import Replays
from warren.mqtt.retaining import retain
from warren.mqtt.sessions import QOS, MqttSessions, SharedSubscription, notes_of, queue_name, shared_of
from warren.mqtt.topics import (
    EXCHANGE,
    Subscription,
    routing_key,
)
from warren.msgstore.log.message import Message
from warren.queues.consumer import Consumer
from warren.queues.counters import MessageCounts
from warren.vhosts.kept_sessions import KeptSession

if TYPE_CHECKING:
    from warren.mqtt.peer import MqttPeer

TOPICS_KEPT: Final = 64
TOPIC_KEPT_BYTES: Final = 256
# The most messages from a client that are not answered for good: all of a client of 5.0, those of QoS 2 of any client.
UNANSWERED_MAX: Final = 1024


class MqttSession(Session):
    """The session of an MQTT connection. `expiry_s`: how long it outlives the connection; 0: it ends with it."""

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
        self.is_resumed: bool = False  # whether it existed before the connection: then ending it needs permission
        self.prefetch = min(peer.limits.receive_max, UNANSWERED_MAX)
        self.subscriptions = ClientSubscriptions(peer, self._ledger)
        self.replays: Replays | None = None  # of retained messages, from the first ones on
        # By topic, the publishes without properties, for each QoS.
        self._prepared: list[dict[bytes, PreparedPublish]] | None = None  # from its first PUBLISH on
        self._receipts: Receipts | None = None
        self._ticket: int = 0  # the ticket of the latest change that this connection has made
        self._batch: int = 0  # the batch of the log that has the latest record of the session

    # --- results of commands ----------------------------------------------------------------------------------------

    def reply(self, method: Any, ticket: int = 0, batch: int = 0) -> None:
        if ticket > self._ticket:
            self._ticket = ticket

    def write_done(self, packet: bytes) -> None:
        """Send the answer to a change when the change is durable."""
        if self._mqtt.running:
            self._mqtt.write_when_durable(packet, self._ticket, self._batch)

    def write_returned(self, message: Message) -> None:
        """Do nothing: nothing is mandatory in MQTT."""

    def consumer_cancelled(self, consumer: Consumer) -> None:
        self._lost(consumer.queue.name)

    def _lost(self, queue: str) -> None:
        text = f"the queue '{queue}' of the session is gone, or the right to read it"
        self._mqtt.fail(ChannelException(PRECONDITION_FAILED, text))

    def drop_content(self) -> None:
        self.shared.inbound.let_go(self)

    def write_receipt(self, packet_id: int, qos: int, reason: int) -> None:
        """Write PUBACK or PUBREC."""
        kind = PUBREC if qos == 2 else PUBACK
        self._mqtt.outbox.write(acknowledgement(kind, packet_id, self._mqtt.version, reason))

    def refused(self, packet_id: int, qos: int) -> None:
        """Report that a queue has refused a message."""
        explanation = "a full queue has refused the message"
        if self._mqtt.version == V5:
            words = explanation if self._mqtt.limits.takes_problems else ""
            kind = PUBREC if qos == 2 else PUBACK
            self._mqtt.outbox.write(acknowledgement(kind, packet_id, V5, QUOTA, words))
        else:
            # Only the end of the connection tells the client: it would wait for PUBACK, and hold back later messages.
            self._mqtt.fail(MqttError(QUOTA, explanation))

    # --- PUBLISH ----------------------------------------------------------------------------------------------------

    def publish_plain(self, topic: bytes, qos: i64, packet_id: int, body: bytes) -> None:
        """Publish a message without properties that is not retained.

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
            prepared = self.prepare(decode_topic(topic), Properties(), int(qos), False)
            if len(topic) <= TOPIC_KEPT_BYTES:
                if len(kept) >= TOPICS_KEPT:
                    kept.clear()
                kept[topic] = prepared
        crc = self._crc_of(prepared, packet_id, body) if qos == 2 else 0
        self._publish(prepared, qos, packet_id, body, crc)

    def _crc_of(self, prepared: PreparedPublish, packet_id: int, body: bytes) -> int:
        """Return the crc of a message of QoS 2. Forget its packet id if that belongs to another message."""
        crc = zlib.crc32(body, zlib.crc32(prepared.arguments))
        kept = self.kept
        if kept.earlier and self.sessions.is_of_another(kept, packet_id, crc):
            self.sessions.forget_received(kept, packet_id)
        return crc

    def prepare(self, topic: str, properties: Properties, qos: int, retain: bool) -> PreparedPublish:
        """Return the publish for a PUBLISH or a will, for any payload.

        Raises:
            MqttError: something in it is too long.
        """
        found = properties_of(properties, qos, retain, self.client_id if self.subscriptions.has_no_local else "")
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
        """Make sure that the client may send one more message before earlier ones are answered for good.

        Raises:
            MqttError: too many are not answered for good.
        """
        received = len(self.kept.received)
        if self._mqtt.version == V5:
            received += receipts.waiting_of_qos_1
        elif qos == 1:
            return
        if received >= UNANSWERED_MAX:
            raise MqttError(RECEIVE_MAXIMUM, f"more than {UNANSWERED_MAX} unanswered messages")
        if qos == 2 and not self.sessions.has_room_for_ids(self.kept):
            raise MqttError(QUOTA, "the limit of QoS 2 packet ids in this virtual host is reached")

    def publish(
        self, topic: str, properties: Properties, qos: int, retained: bool, packet_id: int, body: bytes
    ) -> None:
        """Publish with properties, and retain the message if that is asked for.

        Raises:
            AmqpError: it may not be published, or not be retained.
        """
        prepared = self.prepare(topic, properties, qos, retained)
        crc = self._crc_of(prepared, packet_id, body) if qos == 2 else 0
        retains = retained and not (qos == 2 and packet_id in self.kept.received)
        if retains:
            prepared.find_route(self)  # may it be published?
            self.retain_message(topic, properties, qos, body)
        self._publish(prepared, qos, packet_id, body, crc)
        if retains and self._receipts is not None and qos > 0:
            self._receipts.await_batch()

    def retain_message(self, topic: str, properties: Properties, qos: int, body: bytes) -> None:
        """Keep a message for those who subscribe later; without a body, forget the one of its topic.

        Raises:
            AmqpError: it may not be retained.
        """
        now_ms = self.peer.broker.now_ms()
        most = int(self.shared.message_max_bytes)
        retain(self.vhost.retained(), self.kept.user, now_ms, topic, properties, qos, body, most)

    # --- queues -----------------------------------------------------------------------------------------------------

    def clean_start(self) -> None:
        """Delete the remains of an earlier session of this client id.

        Raises:
            ChannelException: 403, 405, it may not be deleted.
        """
        for qos in QOS:
            name = queue_name(self.client_id, qos)
            if name in self.vhost.queues:
                run_topology(self, m.QueueDelete(0, name, False, False, False))

    def resume(self) -> bool:
        """Continue an earlier session of this client id; False if there is no such one. `ResumeRun` does the long work.

        Raises:
            ChannelException: 403, 405, its queues may not be read.
        """
        is_there = self.kept.stored is not None
        for qos in QOS:
            queue = self.vhost.queues.get(queue_name(self.client_id, qos))
            if queue is not None:
                is_there = True
                self.authorize(READ, "queue", queue.name)
                if self.expiry_s == 0 or self.kept.stored is None:
                    # The queue will end with this connection, or with the session, which it did not belong to so far.
                    self.authorize(CONFIGURE, "queue", queue.name)
        for each in shared_of(self.kept.notes):
            self.subscriptions.take_share(each)
        self.keep_for(self.expiry_s)
        if self.kept.released:
            self._ledger.prefetch = self.prefetch
            self._ledger.take_room(len(self.kept.released))
        self.is_resumed = is_there
        return is_there

    def resend_pubrel(self) -> None:
        """Send PUBREL again for messages without PUBCOMP: after CONNACK, before anything else."""
        version = self._mqtt.version
        released = [acknowledgement(PUBREL, packet_id, version) for packet_id in self.kept.released]
        if released:
            self._answer(b"".join(released))  # after a takeover these packet ids may not be in the log yet

    def keep_for(self, expiry_s: int) -> None:
        """Change the session expiry. Exclusive queues still end with the connection."""
        self.expiry_s = expiry_s
        self.keep()
        if expiry_s == 0:
            return
        for qos in QOS:
            queue = self.vhost.queues.get(queue_name(self.client_id, qos))
            if queue is None or not queue.durable:
                continue
            arguments = decode_table(queue.arguments)
            if arguments.get("x-expires") != expiry_s * 1000:
                arguments["x-expires"] = expiry_s * 1000
                self.reply(None, self.vhost.change_arguments(queue, encode_table(arguments)))

    def keep(self) -> None:
        """Record the state of the session."""
        notes = notes_of(self.kept.user, list(self.subscriptions.shared.values()))
        if self.sessions.keep(self.kept, self.expiry_s, notes):
            log = self.peer.broker.log
            log.force()
            self._batch = int(log.batch.number)

    def end_for_good(self) -> None:
        """End the session with its connection: remove everything that would outlive it."""
        self.sessions.session_over(self.kept)
        self.sessions.end(self.kept)

    # --- subscriptions ----------------------------------------------------------------------------------------------

    def forget_prepared(self) -> None:
        """Prepare publishes again: they carry the client id from now on."""
        self._prepared = None

    def subscribed(self) -> list[Any]:
        return [*self.subscriptions.filters.values(), *self.subscriptions.shared.values()]

    def describe_subscription(self, subscription: Any) -> dict[str, object]:
        assert isinstance(subscription, (Subscription, SharedSubscription))
        return subscription.described()

    def recheck(self) -> None:
        subscriber = self.subscriptions.subscriber
        principal = self.peer.principal
        if subscriber is not None and principal is not None and not principal.may(READ, subscriber.name):
            self._lost(subscriber.name)

    def need_replays(self) -> Replays:
        """Return the jobs for retained messages; make them if they do not exist."""
        if self.replays is None:
            self.replays = Replays(self, self._mqtt)
        return self.replays

    # --- answers ----------------------------------------------------------------------------------------------------

    def on_puback(self, packet_id: int) -> None:
        """Handle PUBACK. An unknown packet id is ignored: it may belong to an earlier connection.

        Raises:
            MqttError: it is of a message of QoS 2.
        """
        if packet_id >= QOS_2_FROM:
            raise MqttError(PROTOCOL_ERROR, "PUBACK for a message of QoS 2")
        tag = self._ledger.maybe_tag(packet_id)
        if tag is not None:
            self.acknowledge(tag, False)
            if self.replays is not None:
                self.replays.client_answered()

    def on_pubrec(self, answer: Answer) -> None:
        """Handle PUBREC: the client has a message of QoS 2 or, if it states an error, does not want it.

        Raises:
            MqttError: it is of a message of QoS 1; too many packet ids are remembered.
        """
        packet_id = answer.packet_id
        if packet_id < QOS_2_FROM:
            raise MqttError(PROTOCOL_ERROR, "PUBREC for a message of QoS 1")
        version = self._mqtt.version
        ledger = self._ledger
        tag = ledger.maybe_tag(packet_id)
        place = ledger.take_place(packet_id)
        if tag is None and place >= 0:  # the broker has taken the delivery back
            tag = ledger.maybe_held(place)
            if tag is None and self._waits_at(place):
                return  # the answer follows when the message has come again
        if answer.reason >= FAILURE:
            if tag is not None:
                self.acknowledge(tag, False)
                ledger.send_held()
            return
        if tag is not None:
            if not self.sessions.has_room_for_ids(self.kept):
                raise MqttError(QUOTA, "the limit of QoS 2 packet ids in this virtual host is reached")
            self.sessions.release(self.kept, packet_id)
            ledger.take_room(1)
            self.acknowledge(tag, False)
            if self.replays is not None:
                self.replays.client_answered()
        known = packet_id in self.kept.released
        self._answer(acknowledgement(PUBREL, packet_id, version, 0 if known else UNKNOWN_PACKET_ID))

    def _waits_at(self, place: int) -> bool:
        """Tell whether a message waits at this place of the queue of QoS 2."""
        queue = self.vhost.queues.get(queue_name(self.client_id, 2))
        return queue is not None and queue.ready.maybe_waiting(place) is not None

    def on_pubcomp(self, packet_id: int) -> None:
        """Handle PUBCOMP: the client will not ask for a message of QoS 2 again."""
        if self.sessions.complete(self.kept, packet_id):
            self._ledger.give_room()

    def on_pubrel(self, packet_id: int) -> None:
        """Handle PUBREL: the client will not send a message of QoS 2 again."""
        reason = 0 if self.sessions.forget_received(self.kept, packet_id) else UNKNOWN_PACKET_ID
        self._answer(acknowledgement(PUBCOMP, packet_id, self._mqtt.version, reason))

    def _answer(self, packet: bytes) -> None:
        """Send an answer of QoS 2 when its content is in the log, if the session lasts."""
        if self.kept.stored is None:
            self._mqtt.outbox.write(packet)
        else:
            self._mqtt.write_when_stored(packet, syncs=self.sync_confirms)

    def go_on_sending(self) -> None:
        """Send the messages that waited until the client had taken everything."""
        self._ledger.send_held()
        if self.replays is not None:
            self.replays.client_took_all()

    def add_counts(self, counts: MessageCounts) -> None:
        super().add_counts(counts)
        counts.deliver_no_ack += self._ledger.direct

    def dropped_qos_0(self) -> int:
        """Return the number of messages of QoS 0 that were dropped because the client reads too slowly."""
        subscriber = self.subscriptions.subscriber
        return 0 if subscriber is None else int(subscriber.dropped)

    # --- the end ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        subscriber = self.subscriptions.subscriber
        if subscriber is not None:
            self.subscriptions.subscriber = None
            self.vhost.end_subscriber(subscriber)
            subscriber.close()
        replays = self.replays
        if replays is not None:
            replays.client_left()
        super().close()
        if replays is not None:
            replays.client_answered()

    def ended(self) -> None:
        self.subscriptions.filters.clear(self.shared.log.reclamation)
        self.subscriptions.shared = {}
        self._prepared = None
        if self.replays is not None:
            self.replays.end()
            self.replays = None
        super().ended()
        self._mqtt.session = None  # break the cycle, which would stay in memory
