"""Publishes that no channel makes: dead letters, messages that an exchange has held, copies for an operator.

1. The exchanges that act on messages act on these as well (``exchanges.content``).
2. Nothing is mandatory or confirmed here: the caller is told how many queues and exchanges take the message.
3. If a message that an exchange has held goes to more than `QUEUES_AT_ONCE` queues, it does so over several turns. The
   other messages that the exchange holds wait. If the message is stored, it holds the batch open as soon as nothing
   else does. So the end of its record at the exchange, and its records in all queues, are in one frame of the log.
   After a bug of ours the remaining queues get it in another frame.
4. A message whose routing takes too many steps goes to no queue at all. It is counted, and the log says so. Dead
   letters, and messages that an exchange holds, stay where they are, and are tried again later. Routing counts in the
   work of a turn, too: `STEPS_PER_QUEUE` steps of it cost as much as giving the message to a queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.amqp.field_table import decode_table
from warren.amqp.properties import HAS_DEATHS, expiration_ms_of, headers_of, is_persistent, known_headers
from warren.exchanges.content import STEPS_MAX, Content
from warren.exchanges.exchange import Exchange
from warren.exchanges.exchange_host import Routed
from warren.exchanges.routing import too_many_steps
from warren.msgstore.log.message import Envelope, Message
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.own_writes import HOLD, NOTHING
from warren.msgstore.log.queue_index import IndexOwner
from warren.queues.delay import due_time_ms
from warren.queues.held_messages import HeldMessages
from warren.queues.long_work import Job, Steps
from warren.queues.origin import BROKER
from warren.queues.outcome import REFUSED
from warren.queues.receiver import Receiver

if TYPE_CHECKING:
    from warren.vhosts.virtual_host import VirtualHost

QUEUES_AT_ONCE: Final = 2048
STEPS_PER_QUEUE: Final = 16
# A stored message takes these in addition: it is written, and entered under the name of the queue.
STORED_STEPS: Final = 2


def route_own(vhost: VirtualHost, exchange: Exchange, keys: list[str], content: Content) -> Routed:
    """Return where a message of the broker goes: nowhere if that takes too many steps (4)."""
    queues = vhost.route(exchange, keys, content)
    cost: i64 = (STEPS_MAX - content.steps_left) // STEPS_PER_QUEUE
    vhost.log.own.given += cost
    if content.steps_left >= 0:
        return Routed(queues, content.effects, cost)
    vhost.churn.unrouted += 1
    vhost.churn.unrouted_from = f"exchange '{exchange.name}' in vhost '{vhost.name}'"
    routed = Routed([], None, cost)
    routed.is_complete = False
    return routed


def route_message(vhost: VirtualHost, exchange: Exchange, keys: list[str], message: Message) -> Routed:
    """Return where `message` goes. The exchanges that act on it have done so."""
    content = Content(message.header_payload())
    if vhost.held:
        content.due_ms = due_time_ms(content.header_payload, vhost.log.now_ms)
    routed = route_own(vhost, exchange, keys, content)
    if routed.effects is not None:
        routed.effects.publish(message)
    return routed


def route_released(vhost: VirtualHost, exchange: Exchange, message: Message) -> Routed:
    """Route a message that `exchange` has held, by the current bindings."""
    keys = [message.envelope.routing_key, *_carbon_copies(message)]
    blind_copies = message.envelope.blind_copies
    if blind_copies is not None:
        keys += blind_copies
    routed = route_own(
        vhost, exchange, keys, Content(message.header_payload())
    )  # without a time: nothing holds it again
    routed.has_to_wait = (
        message.persistent and len(routed.queues) > QUEUES_AT_ONCE and not vhost.log.holdable_or_close()
    )
    return routed


def publish_released(vhost: VirtualHost, exchange: Exchange, message: Message, routed: Routed) -> None:
    """Publish a message that `exchange` has held."""
    message.sole = False
    if routed.effects is not None:
        routed.effects.publish(message)
    queues = routed.queues
    held = vhost.held.get(exchange.name)
    if held is not None and len(queues) > QUEUES_AT_ONCE and (not message.persistent or vhost.log.hold_batch()):
        held.is_spreading = True
        vhost.work.begin(_Spreading(held, vhost.log, message, queues))
        return
    vhost.log.own.given += len(queues)
    for queue in queues:
        queue.accept(message, BROKER)


class _Spreading(Job):
    """Gives a message that was `held` to very many queues (3)."""

    def __init__(self, held: HeldMessages, log: MessageLog, message: Message, queues: list[Receiver]) -> None:
        self._held = held
        self._log = log
        self._message = message
        self._queues = queues
        self._next: int = 0
        self._holds: bool = message.persistent  # whether it holds the batch, which the caller has held open

    def need(self) -> i64:
        return NOTHING if self._holds or not self._message.persistent else HOLD

    def run(self, steps: Steps) -> bool:
        message = self._message
        log = self._log
        if message.persistent and not self._holds:
            if not log.hold_batch():
                return False
            self._holds = True
        besides: i64 = STORED_STEPS if message.persistent else 0
        while self._next < len(self._queues):
            if steps.left <= 0:
                return False
            queue = self._queues[self._next]
            self._next += 1
            steps.left -= besides + queue.publish_steps()
            if not queue.deleted:
                queue.accept(message, BROKER)
        if not message.persistent:
            self._held.is_spreading = False
            return True
        log.release_batch()
        log.force()
        log.call_when_written(_Spread(self._held, log))  # not earlier: the next message may have to hold a batch, too
        return True

    def failed(self) -> bool:
        if self._holds:
            self._holds = False
            self._log.release_batch()
        return True


class _Spread(IndexOwner):
    """Lets `held` release other messages once the batch of a message to very many queues is written."""

    def __init__(self, held: HeldMessages, log: MessageLog) -> None:
        self._held = held
        self._log = log
        self._batch: i64 = log.batch.number

    def batch_closed(self) -> None:
        if self._log.batch.number == self._batch:
            self._log.call_when_written(self)  # another batch was closed
        else:
            self._held.is_spreading = False


def publish_copy(vhost: VirtualHost, message: Message, exchange: Exchange, routing_key: str) -> tuple[int, bool]:
    """Publish a copy of `message` for an operator, with its properties but without its own time.

    Returns how many queues and exchanges took it, and whether one of them refused it.

    Raises:
        ChannelException: 406, routing it takes too many steps.
    """
    header = message.header_payload()
    copy = Message(
        Envelope(exchange.name, routing_key),
        message.content,
        message.channel,
        message.body_bytes,
        message.frame_max_bytes,
        is_persistent(header),
        message.pieces,
    )
    if known_headers(header) & HAS_DEATHS:
        copy.republished = True
    copy.expiration_ms = expiration_ms_of(header)
    routed = route_message(vhost, exchange, [routing_key], copy)
    vhost.timers.worked += len(routed.queues) + routed.cost  # counted for wills, which timers publish
    if not routed.is_complete:
        raise too_many_steps(exchange.name, vhost.name)
    is_refused = False
    for queue in routed.queues:
        is_refused = queue.accept(copy, BROKER) == REFUSED or is_refused
    return len(routed.queues) + routed.is_held(), is_refused


def _carbon_copies(letter: Message) -> list[str]:
    headers = headers_of(letter.header_payload())
    copies = decode_table(headers).get("CC") if headers else None
    return [key for key in copies if isinstance(key, str)] if isinstance(copies, list) else []
