"""What an MQTT client publishes and is sent, and its subscriptions.

1. A subscription is a binding of ``amq.topic`` to a queue of its client id, ``mqtt-subscription-IDqos0`` or ``…1``. A
   session that ends with its connection has exclusive queues. One that lasts has durable ones, which expire
   (``x-expires``) when nobody has come back for so long; its subscriptions are found again as bindings.
2. PUBACK is a confirm: a message of QoS 1 that a durable queue has is on disk. So is what is retained.
3. QoS 1 goes out with a packet id for each delivery that waits for its PUBACK, at most as many as the client takes
   (Receive Maximum). A message of QoS 0 from the queue of QoS 1 goes out with QoS 0, and is settled at once.
4. Subscription identifiers and options are arguments of the binding. Which subscriptions a message is for is found at
   the delivery, where somebody needs to know.
5. What is retained comes through the queue of the subscription, like any other message.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from librt.strings import read_i32_be, write_i16_be
from mypy_extensions import i64, u8

from warren.amqp import methods as m
from warren.amqp.codec import wire_short
from warren.amqp.errors import ACCESS_REFUSED, PRECONDITION_FAILED, AmqpError, ChannelException
from warren.amqp.field_table import EMPTY_TABLE, Table, decode_table, encode_table
from warren.amqp.methods import FRAME_OVERHEAD_BYTES
from warren.amqp.outbox import CHUNK_MIN_BYTES
from warren.amqp.properties import BasicProperties, decode_properties
from warren.channels.confirms import Confirms, PendingConfirms
from warren.channels.consuming import consume
from warren.channels.prepared_publish import NUMBER, PROPERTIES_AT, PreparedPublish
from warren.channels.session import Session
from warren.channels.topology import handle_topology
from warren.exchanges.binding import Binding
from warren.mqtt.conversion import (
    CLIENT_HEADER,
    REPLAYED,
    RETAIN_HEADER,
    RETAINED,
    expiry_left_s,
    given_to,
    headers_in,
    properties_of,
)
from warren.mqtt.errors import (
    FAILURE,
    NO_SUBSCRIBERS,
    NO_SUBSCRIPTION,
    QUOTA,
    RECEIVE_MAXIMUM,
    SHARED_UNSUPPORTED,
    MqttError,
    reason_of,
)
from warren.mqtt.packets import (
    MESSAGE_EXPIRY,
    PUBACK,
    V3_1,
    V5,
    Properties,
    Subscribe,
    Wanted,
    Will,
    acknowledgement,
    suback,
    text,
    unsuback,
    varint,
)
from warren.mqtt.topics import (
    EXCHANGE,
    SHARED,
    Filters,
    Subscription,
    binding_key,
    filter_of,
    has_star,
    routing_key,
    topic_of,
)
from warren.msgstore.log.message import HEADER_AT, Envelope, Message, build_message
from warren.queues.delivery import Consumer, DeliveryLedger
from warren.queues.long_work import Job, Steps
from warren.queues.origin import BROKER
from warren.queues.queue import Queue
from warren.vhosts.retained import Retained, RetainedSearch

if TYPE_CHECKING:
    from warren.mqtt.peer import MqttPeer

QUEUE_PREFIX: Final = "mqtt-subscription-"
TOPICS_KEPT: Final = 64
TOPIC_KEPT_BYTES: Final = 256
PACKET_IDS: Final = 65535
FILTER_STEPS: Final = 48
RETAINED_STEPS: Final = 10
# Arguments of the binding of a subscription; without any, those that 3.1.1 has.
_ARG_FILTER: Final = "x-mqtt-filter"  # where it does not follow from the binding key
_ARG_ID: Final = "x-mqtt-subscription-id"
_ARG_NO_LOCAL: Final = "x-mqtt-no-local"
_ARG_AS_PUBLISHED: Final = "x-mqtt-retain-as-published"


def queue_name(client_id: str, qos: int) -> str:
    """Return the name of the queue for the subscriptions of a client id with `qos`, 0 or 1."""
    return f"{QUEUE_PREFIX}{client_id}qos{qos}"


class PubAcks(Confirms):
    """Confirms as PUBACK."""

    def __init__(self, pending: PendingConfirms, session: MqttSession, *, syncs: bool) -> None:
        super().__init__(pending, syncs=syncs)
        self._session: MqttSession | None = session
        self._waiting: deque[tuple[int, int, int]] = deque()  # number of a publish, packet id, reason

    def expect(self, packet_id: int, reason: int) -> None:
        """Answer `packet_id` when the next publish is confirmed.

        Raises:
            MqttError: there are more of them than packet ids.
        """
        if len(self._waiting) >= PACKET_IDS:
            raise MqttError(RECEIVE_MAXIMUM, f"more than {PACKET_IDS} messages that wait for PUBACK")
        self._waiting.append((int(self.published) + 1, packet_id, reason))

    def write_confirmed(self, up_to: i64, count: i64) -> None:
        session = self._session
        waiting = self._waiting
        while waiting and waiting[0][0] <= up_to:
            _, packet_id, reason = waiting.popleft()
            if session is not None:
                session.write_puback(packet_id, reason)

    def write_refused(self, number: i64) -> None:
        session = self._session
        for at, (waiting, packet_id, _) in enumerate(self._waiting):
            if waiting == number:
                del self._waiting[at]
                if session is not None:
                    session.refused(packet_id)
                return

    def close(self) -> None:
        super().close()
        self._session = None


class MqttLedger(DeliveryLedger):
    """Deliveries, written as PUBLISH."""

    def __init__(self, peer: MqttPeer, client_id: str, unacked_max: i64) -> None:
        super().__init__(NUMBER, peer.turns, 0, unacked_max)
        self.is_v5: bool = peer.version == V5
        self.packet_max: i64 = peer.packet_max_bytes
        self.filters = Filters()
        self.looks: bool = False  # some subscription has an identifier or an option
        self.has_stars: bool = False  # a binding may match what its subscription does not
        self.too_large: i64 = 0  # what was not sent, since the client does not take so much
        self._client_id = client_id
        self._log = peer.broker.log
        self._tags: dict[int, int] = {}  # by packet id
        self._packet_id: i64 = 0
        # What the last delivery came to, for the next one with the same envelope and properties.
        self._envelope: Envelope | None = None
        self._properties = b""
        self._no_ack: bool = False
        self._is_dropped: bool = False
        self._topic = b""
        self._retain: i64 = 0
        self._given = b""  # properties of 5.0 with the length in front
        self._expiration_ms: i64 = -1

    def write_delivery(self, consumer: Consumer, message: Message, tag: i64, redelivered: bool) -> None:
        content = message.header_frame()
        header_end: i64 = FRAME_OVERHEAD_BYTES + (i64(read_i32_be(content, 3)) & 0xFFFFFFFF)
        properties = content[HEADER_AT + PROPERTIES_AT : header_end - 1]
        no_ack: bool = consumer.no_ack
        if message.envelope is not self._envelope or no_ack != self._no_ack or properties != self._properties:
            self._describe(message.envelope, content, header_end, no_ack)
            self._properties = properties
        given = self._given
        if self._expiration_ms >= 0 and self.is_v5:
            left = expiry_left_s(self._expiration_ms, message.time_ms, self._log.now_ms)
            given = _with_expiry(given, left)
        asks: bool = message.persistent and not no_ack
        size: i64 = len(self._topic) + len(given) + message.body_bytes
        if asks:
            size += 2
        if self._is_dropped or (self.packet_max > 0 and size + 5 > self.packet_max):
            if not self._is_dropped:
                self.too_large += 1
            if not no_ack:
                self.ack(tag, False)
            return
        outbox = self.outbox
        outbox.touch()
        out = outbox.writer
        first: i64 = 0x30 | self._retain
        if asks:
            first |= 2
            if redelivered:
                first |= 8
        out.append(u8(first))
        left_size: i64 = size
        while left_size > 127:
            out.append(u8(left_size & 127 | 128))
            left_size >>= 7
        out.append(u8(left_size))
        out.write(self._topic)
        if asks:
            write_i16_be(out, wire_short(self._new_packet_id(tag)))
        if len(given):
            out.write(given)
        body_bytes: i64 = message.body_bytes
        if body_bytes > 0:
            body_at: i64 = header_end + HEADER_AT
            if message.pieces is None and body_at + body_bytes + 1 == len(content):
                body = content[body_at : body_at + body_bytes]
            else:
                body = message.body()
            if body_bytes >= CHUNK_MIN_BYTES:
                outbox.write_chunk(body)
                out = outbox.writer
            else:
                out.write(body)
        if len(out) > outbox.soft_limit_bytes:
            outbox.writable = False
        if not asks and not no_ack:
            self.ack(tag, False)

    def _new_packet_id(self, tag: i64) -> i64:
        tags = self._tags
        found: i64 = self._packet_id
        while True:
            found = found % PACKET_IDS + 1
            if int(found) not in tags:
                break
        self._packet_id = found
        tags[int(found)] = int(tag)
        return found

    def maybe_tag(self, packet_id: int) -> int | None:
        """Take out the tag of the delivery that a PUBACK answers, if it waits for that."""
        tag = self._tags.pop(packet_id, None)
        return tag if tag is not None and self.is_outstanding(tag) else None

    def _describe(self, envelope: Envelope, content: bytes, header_end: i64, no_ack: bool) -> None:
        topic = topic_of(envelope.routing_key)
        found = decode_properties(content, HEADER_AT, header_end - 1)
        headers = headers_in(found)
        is_own = headers.get(CLIENT_HEADER) == self._client_id
        retain = headers.get(RETAIN_HEADER)
        self._envelope = envelope
        self._no_ack = no_ack
        self._topic = text(topic)
        self._is_dropped = False
        self._retain = 1 if retain == REPLAYED else 0
        ids: list[int] = []
        if self.looks or topic.startswith("$"):
            # A message of QoS 1 for subscriptions of both kinds comes through both queues.
            matching = [each for each in self.filters.matching(topic) if (each.qos == 0) == no_ack]
            wanting = [each for each in matching if not (each.no_local and is_own)]
            if not wanting and (matching or self.has_stars or topic.startswith("$")):
                self._is_dropped = True
            ids = [each.identifier for each in wanting if each.identifier]
            if retain == RETAINED and any(each.as_published for each in wanting):
                self._retain = 1
        self._expiration_ms = -1
        if found.expiration is not None and found.expiration.isdigit() and len(found.expiration) <= 12:
            self._expiration_ms = int(found.expiration)
        self._given = b""
        if self.is_v5:
            given = given_to(found, headers)
            given.ids = ids
            self._given = given.encode()

    def forget_descriptions(self) -> None:
        """The subscriptions are others."""
        self._envelope = None

    def close(self) -> None:
        super().close()
        self._tags.clear()


def _with_expiry(given: bytes, left_s: int) -> bytes:
    """Return encoded properties with an expiry more."""
    at = 1
    while given[at - 1] & 0x80:
        at += 1
    rest = bytes([MESSAGE_EXPIRY]) + left_s.to_bytes(4, "big") + given[at:]
    return varint(len(rest)) + rest


class MqttSession(Session):
    """The one session of an MQTT connection. `expiry_s`: how long it outlives it; 0: it does not."""

    def __init__(self, peer: MqttPeer, client_id: str, expiry_s: int) -> None:
        self._mqtt: MqttPeer = peer
        self._ledger = MqttLedger(peer, client_id, peer.broker.limits.unacked_per_channel_max)
        super().__init__(peer, NUMBER, self._ledger)
        self.client_id = client_id
        self.expiry_s = expiry_s
        self.prefetch = peer.receive_max
        self.subscriptions: dict[str, Subscription] = {}  # by filter
        self._prepared: dict[bytes, PreparedPublish] = {}  # by topic, those of QoS 0 without properties
        self._prepared_1: dict[bytes, PreparedPublish] = {}  # the same of QoS 1
        self._acks: PubAcks | None = None
        self._own_kept = False  # what it publishes says so: a subscription does not want it
        self._ticket: int = 0  # of the latest change that this connection has made

    # --- results of commands ----------------------------------------------------------------------------------------

    def reply(self, method: Any, ticket: int = 0, batch: int = 0) -> None:
        if ticket > self._ticket:
            self._ticket = ticket

    def write_done(self, packet: bytes) -> None:
        """Send the answer to what has been changed when that is durable."""
        if self._mqtt.running:
            self._mqtt.write_when_durable(packet, self._ticket, 0)

    def write_returned(self, message: Message) -> None:
        """Nothing is mandatory in MQTT."""

    def consumer_cancelled(self, consumer: Consumer) -> None:
        text = f"the queue '{consumer.queue.name}' of the session is gone, or the right to read it"
        self._mqtt.fail_later(ChannelException(PRECONDITION_FAILED, text))

    def drop_content(self) -> None:
        self.shared.inbound.let_go(self)

    def write_puback(self, packet_id: int, reason: int) -> None:
        """Write PUBACK."""
        self._mqtt.outbox.write(acknowledgement(PUBACK, packet_id, self._mqtt.version, reason))

    def refused(self, packet_id: int) -> None:
        """A queue has refused a message of QoS 1."""
        if self._mqtt.version == V5:
            self.write_puback(packet_id, QUOTA)
        else:
            # Nothing else tells it: without PUBACK it would wait, and block those behind.
            self._mqtt.fail_later(MqttError(QUOTA, "a queue that is full has refused the message"))

    # --- PUBLISH ----------------------------------------------------------------------------------------------------

    def publish_plain(self, topic: bytes, qos: i64, packet_id: int, body: bytes) -> None:
        """Publish what has no properties and is not to be retained.

        Raises:
            AmqpError: it may not be published.
        """
        kept = self._prepared if qos == 0 else self._prepared_1
        prepared = kept.get(topic)
        if prepared is None:
            self._mqtt.count_command()
            prepared = self.prepare(self._mqtt.topic_text(topic), Properties(), int(qos), False)
            if len(topic) <= TOPIC_KEPT_BYTES:
                if len(kept) >= TOPICS_KEPT:
                    kept.clear()
                kept[topic] = prepared
        self._publish(prepared, qos, packet_id, body)

    def prepare(self, topic: str, properties: Properties, qos: int, retain: bool) -> PreparedPublish:
        """Return what a PUBLISH or a will comes to, whatever its payload.

        Raises:
            MqttError: something in it is too long.
        """
        found = properties_of(properties, qos, retain, self.client_id if self._own_kept else "")
        return PreparedPublish(EXCHANGE, routing_key(topic), found.encode())

    def _publish(self, prepared: PreparedPublish, qos: i64, packet_id: int, body: bytes) -> None:
        if qos > 0:
            acks = self._acks
            if acks is None:
                acks = PubAcks(self.shared.confirms, self, syncs=self.sync_confirms)
                self._acks = acks
                self.confirms = acks
            route = prepared.find_route(self)
            reason = NO_SUBSCRIBERS if route.cacheable and not route.queues else 0
            acks.expect(packet_id, reason)
        prepared.publish(self, body)

    def publish(self, topic: str, properties: Properties, qos: int, retain: bool, packet_id: int, body: bytes) -> None:
        """Publish with properties, and retain the message if that is asked for.

        Raises:
            AmqpError: it may not be published, or not be retained.
        """
        prepared = self.prepare(topic, properties, qos, retain)
        if retain:
            prepared.find_route(self)  # may it be published?
            self._retain(topic, properties, qos, body)
        self._publish(prepared, qos, packet_id, body)
        if retain and self._acks is not None and qos > 0:
            self._acks.await_batch()

    def _retain(self, topic: str, properties: Properties, qos: int, body: bytes) -> None:
        retained = self.vhost.retained()
        if not body:
            retained.remove(topic)
            return
        if len(body) > self.shared.message_max_bytes:
            raise MqttError(QUOTA, "a message that is too large to be retained")
        now_ms = self.connection.broker.now_ms()
        expiry_s = properties.number(MESSAGE_EXPIRY, -1)
        expires_ms = 0 if expiry_s < 0 else now_ms + expiry_s * 1000
        found = properties_of(properties, qos, False, "").encode()
        if not retained.put(topic, Retained(now_ms, expires_ms, found, body)):
            raise MqttError(QUOTA, "too much is retained in this virtual host already")

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

    def _run(self, command: Any) -> None:
        """Carry out a command of `topology`.

        Raises:
            AmqpError: whatever its rules say; 406, topology may not grow while memory is short.
        """
        broker = self.connection.broker
        if broker.has_alarm("memory") and not self.connection.has_growth_left(self, command):
            raise ChannelException(
                PRECONDITION_FAILED, "memory is short: nothing can be declared or bound until the memory alarm is over"
            )
        handle_topology(self, command)

    def begin_anew(self) -> None:
        """Delete what an earlier session of this client id has left.

        Raises:
            ChannelException: 403, 405, it may not be deleted.
        """
        for qos in (0, 1):
            name = queue_name(self.client_id, qos)
            if name in self.vhost.queues:
                self._run(m.QueueDelete(0, name, False, False, False))

    def resume(self) -> bool:
        """Go on with an earlier session of this client id; False when there is none.

        Raises:
            ChannelException: 403, 405, its queues may not be read.
        """
        is_there = False
        for qos in (0, 1):
            queue = self.vhost.queues.get(queue_name(self.client_id, qos))
            if queue is not None:
                is_there = True
                self._find_subscriptions(queue, qos)
                self._consume(queue.name, qos)
        self.keep_for(self.expiry_s)
        return is_there

    def _find_subscriptions(self, queue: Queue, qos: int) -> None:
        binding: Binding | None = self.vhost.exchange(EXCHANGE).by_destination.get(queue)
        while binding is not None:
            self._know(_subscription_of(binding, qos))
            binding = binding.next_to_destination

    def keep_for(self, expiry_s: int) -> None:
        """Have the session outlive its connection for another time than it was to. Exclusive queues go with it."""
        self.expiry_s = expiry_s
        if expiry_s == 0:
            return
        arguments = encode_table({"x-expires": expiry_s * 1000})
        for qos in (0, 1):
            queue = self.vhost.queues.get(queue_name(self.client_id, qos))
            if queue is not None and queue.durable and queue.arguments != arguments:
                self.reply(None, self.vhost.change_arguments(queue, arguments))

    def delete_queues(self) -> None:
        """The session ends with its connection: its durable queues, if an earlier one had such, go."""
        for qos in (0, 1):
            queue = self.vhost.queues.get(queue_name(self.client_id, qos))
            if queue is not None and queue.durable:
                self.connection.broker.delete_queue(self.vhost, queue)

    def _need_queue(self, qos: int) -> str:
        """Return the name of the queue for subscriptions of `qos`, which is declared and consumed."""
        name = queue_name(self.client_id, qos)
        if name not in self.vhost.queues:
            lasts = self.expiry_s > 0
            arguments = encode_table({"x-expires": self.expiry_s * 1000}) if lasts else EMPTY_TABLE
            self._run(m.QueueDeclare(0, name, False, lasts, not lasts, False, False, arguments))
            self._consume(name, qos)
        return name

    def _consume(self, name: str, qos: int) -> None:
        consume(self, m.BasicConsume(0, name, f"qos{qos}", False, qos == 0, False, False, EMPTY_TABLE))

    # --- subscriptions ----------------------------------------------------------------------------------------------

    def _know(self, subscription: Subscription) -> None:
        self.subscriptions[subscription.filter] = subscription
        ledger = self._ledger
        ledger.filters.put(subscription)
        ledger.forget_descriptions()
        if subscription.arguments != EMPTY_TABLE:
            ledger.looks = True
            ledger.has_stars = ledger.has_stars or has_star(subscription.filter)
        if subscription.no_local and not self._own_kept:
            self._own_kept = True
            self._prepared.clear()
            self._prepared_1.clear()

    def subscribe(self, wanted: Wanted, identifier: int) -> tuple[int, bool]:
        """Make or change a subscription; return the code for SUBACK, and whether it is a new one."""
        try:
            if wanted.filter.startswith(SHARED):
                raise MqttError(SHARED_UNSUPPORTED, "shared subscriptions are not supported")
            key = binding_key(wanted.filter)
            qos = min(wanted.qos, 1)
            arguments = _arguments_of(wanted, identifier)
            old = self.subscriptions.get(wanted.filter)
            queue = self._need_queue(qos)
            if old is None or old.qos != qos or old.arguments != arguments:
                self._run(m.QueueBind(0, queue, EXCHANGE, key, False, arguments))
                if old is not None:
                    self._unbind(old)
            self._know(Subscription(wanted.filter, qos, wanted.no_local, wanted.as_published, identifier, arguments))
            return qos, old is None
        except AmqpError as error:
            version = self._mqtt.version
            if version == V3_1:
                self._mqtt.fail_later(error)  # its SUBACK has no word for that
            elif error.reply_code == ACCESS_REFUSED:
                self._mqtt.note_refusal(error)
            return (reason_of(error) if version == V5 else FAILURE), False

    def _unbind(self, subscription: Subscription) -> None:
        key = binding_key(subscription.filter)
        queue = queue_name(self.client_id, subscription.qos)
        self._run(m.QueueUnbind(0, queue, EXCHANGE, key, subscription.arguments))

    def unsubscribe(self, filter_: str) -> int:
        """End a subscription; return the code for UNSUBACK."""
        subscription = self.subscriptions.get(filter_)
        if subscription is None:
            return NO_SUBSCRIPTION
        try:
            self._unbind(subscription)
        except AmqpError as error:
            return reason_of(error)
        del self.subscriptions[filter_]
        self._ledger.filters.remove(filter_)
        self._ledger.forget_descriptions()
        return 0

    def send_retained(self, topic: str, subscription: Subscription) -> None:
        """Put what is retained for `topic` into the queue of a subscription."""
        vhost = self.vhost
        now_ms = self.connection.broker.now_ms()
        found = vhost.retained().maybe(topic, now_ms)
        queue = vhost.queues.get(queue_name(self.client_id, subscription.qos))
        if found is None or queue is None:
            return
        properties = decode_properties(
            bytes(PROPERTIES_AT) + found.properties, 0, PROPERTIES_AT + len(found.properties)
        )
        if found.expires_ms:
            properties.expiration = str(found.expires_ms - now_ms)
        _add_header(properties, RETAIN_HEADER, REPLAYED)
        persistent = properties.delivery_mode == 2
        envelope = Envelope(EXCHANGE, routing_key(topic))
        message = build_message(envelope, properties.encode(), found.body, 0, persistent)
        if found.expires_ms:
            message.expiration_ms = found.expires_ms - now_ms
        queue.accept(message, BROKER)

    def acknowledge_packet(self, packet_id: int) -> None:
        """PUBACK of the client. What it does not owe is ignored: it may be of an earlier connection."""
        tag = self._ledger.maybe_tag(packet_id)
        if tag is not None:
            self.acknowledge(tag, False)

    # --- the end ----------------------------------------------------------------------------------------------------

    def ended(self) -> None:
        self.subscriptions.clear()
        self._prepared.clear()
        self._prepared_1.clear()
        super().ended()


def _add_header(properties: BasicProperties, name: str, value: int) -> None:
    headers = headers_in(properties)
    headers[name] = value
    properties.headers = encode_table(headers)


def _arguments_of(wanted: Wanted, identifier: int) -> bytes:
    """Return the arguments of the binding of a subscription."""
    table: Table = {}
    if has_star(wanted.filter):
        table[_ARG_FILTER] = wanted.filter
    if identifier:
        table[_ARG_ID] = identifier
    if wanted.no_local:
        table[_ARG_NO_LOCAL] = True
    if wanted.as_published:
        table[_ARG_AS_PUBLISHED] = True
    return encode_table(table) if table else EMPTY_TABLE


def _subscription_of(binding: Binding, qos: int) -> Subscription:
    """Return the subscription that a binding is, whoever made it."""
    table = decode_table(binding.arguments)
    filter_ = table.get(_ARG_FILTER)
    identifier = table.get(_ARG_ID)
    return Subscription(
        filter_ if isinstance(filter_, str) else filter_of(binding.routing_key),
        qos,
        table.get(_ARG_NO_LOCAL) is True,
        table.get(_ARG_AS_PUBLISHED) is True,
        identifier if isinstance(identifier, int) else 0,
        binding.arguments,
    )


class SubscribeRun(Job):
    """SUBSCRIBE: one filter after the other with what is retained for it, then SUBACK."""

    def __init__(self, session: MqttSession, request: Subscribe, version: int) -> None:
        self._session = session
        self._request = request
        self._version = version
        ids = request.properties.ids
        self._identifier = ids[0] if ids else 0
        self._codes: list[int] = []
        self._left: deque[tuple[Subscription, RetainedSearch]] = deque()
        self._is_told = False

    def go_on(self, steps: Steps) -> bool:
        session = self._session
        wanted = self._request.wanted
        while len(self._codes) < len(wanted):
            if not session.is_open():
                return True
            if steps.left <= 0:
                return False
            steps.left -= FILTER_STEPS
            each = wanted[len(self._codes)]
            code, is_new = session.subscribe(each, self._identifier)
            self._codes.append(code)
            if code <= 1 and (each.handling == 0 or (each.handling == 1 and is_new)):
                search = RetainedSearch(session.vhost.retained(), each.filter)
                self._left.append((session.subscriptions[each.filter], search))
        if not self._is_told:
            self._is_told = True
            session.write_done(suback(self._request.packet_id, self._codes, self._version))
        while self._left:
            subscription, search = self._left[0]
            if not session.is_open():
                return True
            if steps.left <= 0:
                return False
            steps.left -= 1
            if search.is_over():
                self._left.popleft()
                continue
            topic = search.next()
            if topic is not None:
                steps.left -= RETAINED_STEPS
                session.send_retained(topic, subscription)
        return True


class UnsubscribeRun(Job):
    """UNSUBSCRIBE: one filter after the other, then UNSUBACK."""

    def __init__(self, session: MqttSession, request: Subscribe, version: int) -> None:
        self._session = session
        self._request = request
        self._version = version
        self._codes: list[int] = []

    def go_on(self, steps: Steps) -> bool:
        session = self._session
        wanted = self._request.wanted
        while len(self._codes) < len(wanted):
            if not session.is_open():
                return True
            if steps.left <= 0:
                return False
            steps.left -= FILTER_STEPS
            self._codes.append(session.unsubscribe(wanted[len(self._codes)].filter))
        session.write_done(unsuback(self._request.packet_id, self._codes, self._version))
        return True
