"""Publishing beyond the fast path: finding the route, properties to act on, and the way to the queues.

    make_route           the argument bytes of basic.publish, once for each route
    publish_with_care    a message with properties to act on, a route that cannot be remembered, or a transaction
      -> publish_routed    routes it, drops repetitions; in a transaction it is kept, with its queues
    publish_buffered     a kept message: tx.commit
    publish_wide         to very many queues, which takes several turns

1. A message that is not acceptable, or may not be published, is in no queue.
2. basic.return for a mandatory message is written before the confirm of the same message.
3. A publish is counted once: when it is routed, in a transaction at the commit.

The steps of every ordinary publish are in ``channels.session``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.amqp import methods as m
from warren.amqp.codec import decode_method, decode_shortstr
from warren.amqp.errors import NOT_IMPLEMENTED, PRECONDITION_FAILED, ChannelException, ConnectionException
from warren.amqp.field_table import without_key
from warren.amqp.methods import BASIC_PUBLISH
from warren.amqp.properties import (
    EXPIRATION,
    FLAGS_OFFSET,
    HAS_BCC,
    HAS_CC,
    HAS_DEATHS,
    HAS_DELAY,
    HEADERS,
    PERSISTENT_FLAG,
    REPLY_TO,
    USER_ID,
    decode_properties,
    expiration_ms_of,
    find_property,
    known_headers,
    short_string,
)
from warren.channels.access import WRITE
from warren.channels.consuming import REPLY_TO_NAME, REPLY_TO_PREFIX
from warren.channels.control import control
from warren.channels.publish_properties import carbon_copies, check_properties
from warren.channels.route_cache import Route, ticket_of
from warren.channels.shared import REFUSE, RETURN, TAKE
from warren.channels.tracing import TrafficWatcher
from warren.channels.transaction import BufferedPublish
from warren.channels.wide_publish import QUEUES_AT_ONCE, OnceMore, Spread, WidePublish, hand_over
from warren.exchanges.content import STEPS_MAX, Content
from warren.exchanges.effects import Effects
from warren.exchanges.exchange import Exchange
from warren.exchanges.routing import too_many_steps
from warren.exchanges.topic_exchange import TopicExchange
from warren.msgstore.log.message import Envelope, Message
from warren.queues.counters import SMALL_MAX_BYTES
from warren.queues.dead_letter import with_properties
from warren.queues.delay import check_delay, due_time_ms, negate_delay
from warren.queues.long_work import Job
from warren.queues.origin import CHANNEL
from warren.queues.outcome import ACCEPTED, REFUSED, REPEATED
from warren.queues.receiver import Receiver
from warren.queues.seen_keys import KeyClaim, MessageKeys, SeenKeys
from warren.vhosts.virtual_host import CONTROL_EXCHANGE

if TYPE_CHECKING:
    from warren.channels.peer import Peer
    from warren.channels.session import Session

_REPLY_TO_SHORT: Final = short_string(REPLY_TO_NAME)
TOPIC_STEPS_MAX: Final = 1 << 14  # of permissions for the keys of one message: 8,000 with an ordinary pattern


class Publisher:
    """Publishes the messages of one channel. `watcher`: is told of messages on the careful way, or None."""

    def __init__(self, channel: Session) -> None:
        self.watcher: TrafficWatcher | None = None
        self._channel = channel
        self._peer: Peer = channel.peer
        self._shared = channel.shared
        self.log = channel.shared.log

    def make_route(self, arguments: bytes) -> Route:
        """Decode, authorize and route the argument bytes of basic.publish.

        Raises:
            ChannelException: 403, 404; 406, the bindings of the exchange make it too much work. ConnectionException:
                540, immediate.
        """
        publish = decoded_arguments(arguments)
        vhost = self._channel.vhost
        principal = self._peer.principal
        assert principal is not None
        if publish.immediate:
            raise ConnectionException(NOT_IMPLEMENTED, "immediate=true")
        if publish.exchange == CONTROL_EXCHANGE:
            control_exchange = vhost.exchange(CONTROL_EXCHANGE)
            return Route(
                Envelope(CONTROL_EXCHANGE, publish.routing_key),
                control_exchange,
                [],
                cacheable=False,
                mandatory=False,
            )
        exchange = principal.publishable(vhost, publish.exchange, publish.routing_key)
        envelope = Envelope(publish.exchange, publish.routing_key)
        routed = Content(b"")
        cacheable = vhost.is_cacheable(exchange, routed) and self._shared.judge is None
        queues: list[Receiver] = []
        replies: Receiver | None = None
        if exchange.name == "" and publish.routing_key.startswith(REPLY_TO_PREFIX):
            replies = vhost.reply_queues.get(publish.routing_key)
            cacheable = cacheable and replies is not None
        if cacheable:
            queues = vhost.route(exchange, [publish.routing_key], routed)
        self._peer.units_left -= STEPS_MAX - routed.steps_left
        if cacheable:
            _check_steps(routed, exchange.name, vhost.name)
        route = Route(envelope, exchange, queues, cacheable=cacheable, mandatory=publish.mandatory)
        if cacheable and replies is not None:
            route.cacheable = principal.routes.memory.may_remember(route, replies)
        return route

    def publish_with_care(
        self,
        route: Route,
        content: bytes,
        pieces: list[bytes] | None,
        header: bytes,
        flags: i64,
        body_bytes: i64,
        largest: i64,
    ) -> None:
        """Publish a message whose properties the broker may have to act on, or that needs routing of its own.

        Raises:
            ChannelException: 406, a property is not acceptable, or routing it is too much work; 403, a topic of CC or
                BCC is not permitted.
        """
        channel = self._channel
        vhost = channel.vhost
        envelope = route.envelope
        if envelope.exchange == CONTROL_EXCHANGE:
            self._control(route, header, body_bytes)
            return
        keys = [envelope.routing_key]
        sent = header  # as consumers see it
        known: i64 = 0
        if flags & HEADERS:
            known = known_headers(header)
        if flags & (EXPIRATION | USER_ID) or known & (HAS_CC | HAS_BCC):
            properties = decode_properties(header, 0, len(header))
            principal = self._peer.principal
            assert principal is not None
            check_properties(properties, principal)
            if properties.headers is not None:
                copies, blind_copies = carbon_copies(properties.headers)
                keys = list(dict.fromkeys(keys + copies + blind_copies))
                if blind_copies:
                    envelope = Envelope(envelope.exchange, envelope.routing_key)
                    envelope.blind_copies = blind_copies
                    properties.headers = without_key(properties.headers, b"BCC")
                    sent = header[:FLAGS_OFFSET] + properties.encode()
        if flags & REPLY_TO:
            at: i64 = find_property(sent, REPLY_TO)
            if sent[at : at + len(_REPLY_TO_SHORT)] == _REPLY_TO_SHORT:
                replies = channel.reply_queue
                if replies is None:
                    raise ChannelException(PRECONDITION_FAILED, "fast reply consumer does not exist")
                sent = sent[:at] + short_string(replies.name) + sent[at + len(_REPLY_TO_SHORT) :]
        message = Message(envelope, content, channel.number, body_bytes, largest, flags & PERSISTENT_FLAG != 0, pieces)
        if sent is not header:
            message = with_properties(message, sent[FLAGS_OFFSET:])
        if known & HAS_DEATHS:
            message.republished = True
        if known & HAS_DELAY:
            now_ms: i64 = self.log.now_ms
            due_ms: i64 = due_time_ms(header, now_ms)
            if due_ms:
                check_delay(due_ms, now_ms)
                message.due_ms = due_ms
        if flags & EXPIRATION:
            message.expiration_ms = expiration_ms_of(header)
        if len(keys) > 1 and isinstance(vhost.exchange(envelope.exchange), TopicExchange):
            self._authorize_topics(envelope.exchange, keys)
        job: Job | None = None
        if channel.transaction is None and self.is_claimed(message):
            job = OnceMore(self, route, message, keys, header, wants_hold=False)
        else:
            job = self.publish_routed(route, route.queues, message, keys, header, holds=False)
        if job is not None:
            self._peer.begin(job)

    def publish_routed(
        self, route: Route, remembered: list[Receiver], message: Message, keys: list[str], header: bytes, *, holds: bool
    ) -> Job | None:
        """Route a message and publish it; return the job for the rest of the work, None: all is done.

        `remembered`: where it goes if `route` can be remembered; `keys`: its routing key and those of CC and BCC;
        `holds`: the caller holds the batch.

        Raises:
            ChannelException: 404, the exchange is gone; 406, routing it is too much work, or its transaction is full.
        """
        vhost = self._channel.vhost
        transaction = self._channel.transaction
        exchange = message.envelope.exchange
        effects: Effects | None = None
        repeated = bool(vhost.seen_keys) and transaction is None and self._is_repeated(message)
        if repeated:
            queues: list[Receiver] = []
        elif route.cacheable and len(keys) == 1:
            queues = remembered
            message.sole = len(queues) == 1
        else:
            routed = Content(header)
            routed.due_ms = message.due_ms
            queues = vhost.route(vhost.exchange(exchange), keys, routed)
            self._peer.units_left -= STEPS_MAX - routed.steps_left
            _check_steps(routed, exchange, vhost.name)
            effects = routed.effects
        claimed: MessageKeys | None = None
        is_wide = self._is_wide(queues)
        if is_wide and transaction is None and (vhost.seen_keys or effects is not None):
            claimed = self._keys_of(message)
            if (claimed is not None or effects is not None) and message.persistent and not holds:
                return OnceMore(self, route, message, keys, header, wants_hold=True)
        buffered: BufferedPublish | None = None
        if transaction is not None:
            buffered = BufferedPublish(message, route.exchange, queues, effects, route.mandatory)
            transaction.check_room(buffered)
        if self.watcher is not None:
            self.watcher.published(keys, message, queues)
        if transaction is not None and buffered is not None:
            transaction.add(buffered)
            return None
        self._count(route.exchange, message.body_bytes, len(queues))
        if is_wide:
            if message.due_ms:
                negate_delay(message)
            spread = Spread(message, queues, self._claim(message, claimed), CHANNEL, effects)
            return WidePublish(self, spread, holds=holds)
        if repeated:
            self._told(message, REPEATED, None, None)
        else:
            outcome: i64 = self._enqueue(message, queues, effects, route.mandatory, CHANNEL)
            self._told(message, outcome, queues, effects)
        return None

    def _authorize_topics(self, exchange: str, keys: list[str]) -> None:
        """Make sure that a message may be published with all of its routing keys.

        Raises:
            ChannelException: 403; 406, finding out is too much work.
        """
        principal = self._peer.principal
        assert principal is not None
        vhost = self._channel.vhost.name
        searched: i64 = principal.searched
        try:
            for key in keys:
                principal.authorize_topic(WRITE, exchange, key)
                if principal.searched - searched > TOPIC_STEPS_MAX:
                    raise ChannelException(
                        PRECONDITION_FAILED,
                        f"a message for exchange '{exchange}' in vhost '{vhost}' has more routing keys than "
                        "its topic permissions can be checked for",
                    )
        finally:
            self._peer.units_left -= principal.searched - searched

    def _control(self, route: Route, header: bytes, body_bytes: i64) -> None:
        """Do the command of a publish to ``amq.control``."""
        control(self._channel, route.envelope.routing_key, header)
        self._count(route.exchange, body_bytes, 0)
        confirms = self._channel.confirms
        if confirms is not None:
            confirms.count_publish(Message(route.envelope, b"", 0, 0, 0, False), ACCEPTED, 0)

    # --- very many queues -------------------------------------------------------------------------------------------

    def _is_wide(self, queues: list[Receiver]) -> bool:
        """Tell whether a publish goes to so many queues that it takes several turns."""
        return len(queues) > QUEUES_AT_ONCE and self._shared.judge is None

    def publish_wide(self, message: Message, queues: list[Receiver]) -> None:
        """Begin to publish to very many queues."""
        self._peer.begin(WidePublish(self, Spread(message, queues, None, CHANNEL, None)))

    def wide_publish_done(self, spread: Spread) -> None:
        """Confirm or refuse a message that went to very many queues: all have it."""
        outcome: i64 = self.spread_done(spread)
        self._told(spread.message, outcome, spread.queues, spread.effects)

    def spread_done(self, spread: Spread) -> i64:
        """Finish a message that went to very many queues: all have it; return the outcome."""
        outcome: i64 = spread.outcome
        claim = spread.claim
        if claim is not None:
            # Not of the exchange with that name: it may be a later one, which has not had the message.
            self._remember(claim.seen, claim.keys, spread.message, spread.queues, spread.effects, outcome)
            claim.end()
        return outcome

    def refuse(self, error: ChannelException) -> None:
        """Close the channel for a publish that failed when basic.publish had been handled."""
        self._channel.refuse(error, BASIC_PUBLISH)

    # --- transactions -----------------------------------------------------------------------------------------------

    def maybe_spread(self, publish: BufferedPublish, origin: i64) -> Spread | None:
        """Begin to publish a message of tx.commit that goes to very many queues; None: it does not.

        `spread_done` follows when all of them have it. `is_claimed` is False.
        """
        message = publish.message
        if not self._is_wide(publish.queues) or not publish.has_takers():
            return None
        seen_keys = self._channel.vhost.seen_keys
        keys: MessageKeys | None = self._keys_of(message) if seen_keys else None
        if keys is not None and seen_keys[message.envelope.exchange].knows(keys):
            return None
        if message.due_ms:
            negate_delay(message)
        self._count(publish.exchange, message.body_bytes, len(publish.queues))
        return Spread(message, publish.queues, self._claim(message, keys), origin, publish.effects)

    def publish_buffered(self, publish: BufferedPublish, origin: i64) -> i64:
        """Publish a message that waited for tx.commit; return the outcome."""
        message = publish.message
        left = publish.left()
        if self._channel.vhost.seen_keys and self._is_repeated(message):
            self._count(publish.exchange, message.body_bytes, 0)
            return REPEATED
        self._count(publish.exchange, message.body_bytes, len(left))
        return self._enqueue(message, left, publish.effects, publish.mandatory, origin)

    # --- to the queues ----------------------------------------------------------------------------------------------

    def _enqueue(
        self, message: Message, queues: list[Receiver], effects: Effects | None, mandatory: bool, origin: i64
    ) -> i64:
        """Hand a routed message to the exchanges that act on it, and to the queues; return the outcome."""
        judge = self._shared.judge
        if judge is not None:
            verdict = judge(self._channel, message, queues)
            if verdict != TAKE:
                if verdict == RETURN and mandatory:
                    self.return_message(message)
                return REFUSED if verdict == REFUSE else ACCEPTED
        if not queues:
            if mandatory:
                self.return_message(message)
            elif effects is None or not effects.has_takers():
                self._channel.dropped += 1
        outcome: i64 = ACCEPTED
        if message.due_ms:
            negate_delay(message)
        if effects is not None:
            outcome = effects.publish(message)
        for queue in queues:
            outcome = _greater(outcome, hand_over(message, queue, origin))
        seen_keys = self._channel.vhost.seen_keys
        if seen_keys:
            seen = seen_keys.get(message.envelope.exchange)
            keys = None if seen is None else seen.keys_of(message)
            if seen is not None and keys is not None:
                self._remember(seen, keys, message, queues, effects, outcome)
        return outcome

    def return_message(self, message: Message) -> None:
        """Return a mandatory message that no queue takes."""
        channel = self._channel
        if not channel.is_open():
            return  # it was in a transaction, and the connection has ended meanwhile
        channel.returned += 1
        channel.write_returned(message)
        self._peer.check_outbox()

    def _count(self, exchange: Exchange, body_bytes: i64, queues: i64) -> None:
        """Count a message published to `exchange` that goes to so many queues."""
        channel = self._channel
        channel.published += 1
        channel.published_bytes += body_bytes
        if body_bytes > SMALL_MAX_BYTES:
            self._shared.sizes.count(body_bytes)
        exchange.published_in += 1
        channel.not_to_one(exchange, queues)

    def _told(self, message: Message, outcome: i64, queues: list[Receiver] | None, effects: Effects | None) -> None:
        """Confirm or refuse a publish. `queues`: those that have it; None: it is not known who else has."""
        channel = self._channel
        confirms = channel.confirms
        if confirms is not None:
            # Also when the session has ended: that of MQTT has to know which messages it need not take again.
            confirms.count_publish(message, outcome, self.ticket_of(queues, effects))
            if outcome == REFUSED and channel.is_open():
                self._peer.check_outbox()

    def ticket_of(self, queues: list[Receiver] | None, effects: Effects | None) -> i64:
        """Return the change of the metadata that a message in `queues`, and acted on by `effects`, waits for.

        Without `queues` it may be in anything. An exchange that takes it may be as new as anything.
        """
        if queues is None or (effects is not None and effects.has_takers()):
            return self._peer.broker.journal.last_ticket
        return ticket_of(queues)

    # --- repetitions ------------------------------------------------------------------------------------------------

    def _keys_of(self, message: Message) -> MessageKeys | None:
        """Return the key by which its exchange knows `message`; None when that drops no repetitions."""
        seen = self._channel.vhost.seen_keys.get(message.envelope.exchange)
        return None if seen is None else seen.keys_of(message)

    def is_claimed(self, message: Message) -> bool:
        """Tell whether another message is under way of which this one may be a repetition."""
        seen_keys = self._channel.vhost.seen_keys
        if not seen_keys:
            return False
        seen = seen_keys.get(message.envelope.exchange)
        if seen is None or not seen.has_claims():
            return False
        keys = seen.keys_of(message)
        return keys is not None and seen.is_claimed(keys)

    def _claim(self, message: Message, keys: MessageKeys | None) -> KeyClaim | None:
        return None if keys is None else KeyClaim(self._channel.vhost.seen_keys[message.envelope.exchange], keys)

    def _is_repeated(self, message: Message) -> bool:
        """Tell whether its exchange has accepted `message` before, and so drops it."""
        seen = self._channel.vhost.seen_keys.get(message.envelope.exchange)
        keys = None if seen is None else seen.keys_of(message)
        return seen is not None and keys is not None and seen.drops(keys, message)

    def _remember(
        self,
        seen: SeenKeys,
        keys: MessageKeys,
        message: Message,
        queues: list[Receiver],
        effects: Effects | None,
        outcome: i64,
    ) -> None:
        """Remember the keys of `message`, if queues or exchanges have taken it, and none has refused it."""
        taken = len(queues) > 0 or (effects is not None and effects.has_takers())
        if not taken or outcome == REFUSED:
            return
        stored = message.persistent and effects is not None and effects.stores()
        for queue in queues:
            stored = stored or queue.will_store(message)
        seen.add(keys, message, stored)


def _greater(one: i64, other: i64) -> i64:
    return one if one > other else other


def _check_steps(routed: Content, exchange: str, vhost: str) -> None:
    """Refuse a publish whose routing was not completed."""
    if routed.steps_left < 0:
        raise too_many_steps(exchange, vhost)


def decoded_arguments(arguments: bytes) -> m.BasicPublish:
    """Decode the argument bytes of basic.publish: a route that cannot be remembered is made for each message.

    Raises:
        ConnectionException: as `decode_method`.
    """
    size: i64 = len(arguments)
    if size > 2:
        exchange = decode_shortstr(arguments, 2, size)
        key_at: i64 = 3 + i64(arguments[2])
        key = decode_shortstr(arguments, key_at, size)
        end: i64 = key_at + 1 + i64(arguments[key_at])
        if end + 1 == size:
            bits: i64 = arguments[end]
            return m.BasicPublish(0, exchange, key, bits & 1 != 0, bits & 2 != 0)
    payload = BASIC_PUBLISH.to_bytes(4, "big") + arguments
    found: m.BasicPublish = decode_method(payload, 0, len(payload))
    return found
