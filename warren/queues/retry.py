"""Returned messages: they are counted, delayed (x-delayed-retry-*), or given up (x-delivery-limit).

    returned   to its place at once | held until another try | given up: dead-lettered, dropped or parked

Counts of failed deliveries and of returns are in the message's header (``x-delivery-count``, ``x-acquired-count``). A
counted message is stored again in its place, so its count survives whenever the message does. Each queue counts for
itself.

A message whose consumer knows it by its place (MQTT with QoS 2) comes back there without the delay of the rules: it
would leave the lane of held messages for another place, and the client could not tell that it has it already.

While free disk space is at its floor nothing is stored again: a counted message goes back at once, without a delay,
and its count is in memory only. If returns waited for space, the consumers that could make space would get nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.amqp.field_table import decode_table
from warren.amqp.properties import HEADERS, find_property_from, headers_of
from warren.msgstore.log.message import HEADER_AT, Message
from warren.queues.dead_letter import DELIVERY_LIMIT, with_headers, without_header
from warren.queues.held_lanes import HeldLanes
from warren.queues.lanes import LANE_SHIFT, NUMBER_MASK
from warren.queues.message_deaths import MessageDeaths
from warren.queues.origin import RELEASED
from warren.queues.rules import (
    LIMIT_DEAD_LETTERS,
    LIMIT_PARKS,
    RETRY_ALL,
    RETRY_DISABLED,
    RETRY_FAILED,
    RETRY_RETURNED,
    QueueRules,
)
from warren.queues.unacked import Delivery

if TYPE_CHECKING:
    from warren.queues.queue import Queue

DELIVERY_COUNT: Final = "x-delivery-count"
RETURN_COUNT: Final = "x-acquired-count"
# Keys of a table, which begin with their length.
_RAW_DELIVERY_COUNT: Final = b"\x10x-delivery-count"
_RAW_RETURN_COUNT: Final = b"\x10x-acquired-count"
COUNT_MAX: Final = 1 << 40  # no queue counts that far


class Retries:
    """The returns of `queue`."""

    def __init__(self, queue: Queue, rules: QueueRules, lanes: HeldLanes, deaths: MessageDeaths) -> None:
        self.counts: bool = False  # some rule needs to know how often a message has come back
        self._queue = queue
        self._rules = rules
        self._lanes = lanes
        self._deaths = deaths
        self.follow(rules)

    def follow(self, rules: QueueRules) -> None:
        """Follow other rules from now on."""
        self._rules = rules
        self.counts = rules.is_quorum or rules.delivery_limit >= 0 or rules.retry_type != RETRY_DISABLED

    def as_kept(self, message: Message) -> Message:
        """Return `message` as the queue keeps it, the same one if possible.

        If returns count, counts of other queues are removed: a message that a client publishes again, or that died
        elsewhere, has all its tries here. A quorum queue stores everything, whatever the delivery mode.
        """
        if not self.counts:
            return message
        kept = message
        if find_property_from(message.header_frame(), HEADER_AT, HEADERS) >= 0:
            header = message.header_payload()
            if _RAW_DELIVERY_COUNT in header or _RAW_RETURN_COUNT in header:
                kept = without_header(without_header(message, DELIVERY_COUNT), RETURN_COUNT)
        if self._rules.is_quorum and not message.persistent:
            if kept is message:
                kept = message.copy()
            kept.persistent = True
        if kept is not message and kept.persistent and self._queue.stores:
            message.awaits_batch = True  # its confirm: the copy is stored, not the original
        return kept

    def comes_back(self, delivery: Delivery, failed: bool, delay_ms: i64, now_ms: i64) -> bool:
        """Decide about a returned delivery; False when it does not go to its old place now.

        `delay_ms`: the delay that its consumer asks for; negative: by the rules.
        """
        if self.counts:
            return self._count(delivery, failed, delay_ms, now_ms)
        if delay_ms > 0 and self._may_store_again(delivery.sequence_number):
            self._lanes.hold(_tried(delivery.message), now_ms + delay_ms)
            self._forget(delivery)
            return False
        return True

    def _may_store_again(self, place: i64) -> bool:
        """Tell whether the message at `place` may be stored again, or is not in a closed batch of the log."""
        if self._lanes.log.own.may_store_returns():
            return True
        index = self._queue.ready.index_of(place >> LANE_SHIFT)
        return index is None or index.lsn_of(place & NUMBER_MASK) == 0

    def _count(self, delivery: Delivery, failed: bool, delay_ms: i64, now_ms: i64) -> bool:
        message = self._maybe_counted(delivery.message, failed)
        if message is None:
            self._give_up(delivery)
            return False
        if self._may_store_again(delivery.sequence_number):
            if delay_ms < 0 and not _is_known_by_place(delivery):
                delay_ms = self._delay_ms(message, failed)
            if delay_ms > 0:
                self._lanes.hold(message, now_ms + delay_ms)
                self._forget(delivery)
                return False
            store_again(self._queue, delivery, message)
            return True
        delivery.message = message
        return True

    def _maybe_counted(self, old: Message, failed: bool) -> Message | None:
        """Return `old` with one more return, and one more failure if `failed`; None: it has failed too often."""
        failures: i64 = count_of(old, DELIVERY_COUNT)
        if failed:
            failures += 1
            if 0 <= self._rules.delivery_limit < failures:
                return None
        returns: i64 = count_of(old, RETURN_COUNT) + 1
        counts: dict[str, object] = {RETURN_COUNT: int(returns)}
        if failures:
            counts[DELIVERY_COUNT] = int(failures)
        message = with_headers(old, counts)
        message.attempts = returns
        return message

    def _give_up(self, delivery: Delivery) -> None:
        queue = self._queue
        if self._rules.limit_action == LIMIT_DEAD_LETTERS:
            queue.unacked_gone(delivery)
            self._deaths.add(delivery.message, delivery.sequence_number, DELIVERY_LIMIT)
            return
        if self._rules.limit_action == LIMIT_PARKS:
            self._lanes.park(_tried(delivery.message))
        self._forget(delivery)

    def _forget(self, delivery: Delivery) -> None:
        """Settle a delivery that does not come back to its place."""
        self._queue.unacked_gone(delivery)
        self._queue.ready.settle(delivery.message, delivery.sequence_number)

    def _delay_ms(self, message: Message, failed: bool) -> i64:
        rules = self._rules
        kind: i64 = rules.retry_type
        if kind == RETRY_ALL or (kind == RETRY_FAILED and failed) or (kind == RETRY_RETURNED and not failed):
            return rules.retry_delay_ms(count_of(message, DELIVERY_COUNT) if failed else message.attempts)
        return 0

    # --- from readers outside ----------------------------------------------------------------------------------------

    def fails(self, message: Message, delay_ms: i64, now_ms: i64) -> None:
        """Take a message back that a reader had taken out and failed with; it has no place in the queue.

        `delay_ms`: the delay that the reader asks for; negative: by the rules.
        """
        back = message
        if self.counts:
            counted = self._maybe_counted(message, True)
            if counted is None:
                self.gives_up(message)
                return
            back = counted
            if delay_ms < 0:
                delay_ms = self._delay_ms(back, True)
        if delay_ms > 0:
            self._lanes.hold(back, now_ms + delay_ms)
        else:
            self._queue.accept(back, RELEASED)

    def gives_up(self, message: Message) -> None:
        """Remove a message as the delivery limit says; it has no place in the queue."""
        if self._rules.limit_action == LIMIT_DEAD_LETTERS:
            self._deaths.add_placeless(message, DELIVERY_LIMIT)
        elif self._rules.limit_action == LIMIT_PARKS:
            self._lanes.park(_tried(message))


def store_again(queue: Queue, delivery: Delivery, message: Message) -> None:
    """Replace the message of a delivery by `message`, which has the same body, in the log and in memory.

    If this fails, for lack of memory, the delivery has its old message, there and here.
    """
    place: i64 = delivery.sequence_number
    index = queue.ready.index_of(place >> LANE_SHIFT)
    if not (message.persistent and queue.stores):
        if index is not None:
            index.log.batch.settle(index, delivery.message, place & NUMBER_MASK)
    elif index is None:
        queue.ready.store(message, place)
    else:
        index.log.batch.replace(index, delivery.message, message, place & NUMBER_MASK)
    delivery.message = message


def _is_known_by_place(delivery: Delivery) -> bool:
    """Tell whether the client would take the message for another one if it came from another place."""
    consumer = delivery.consumer
    return consumer is not None and consumer.ledger.names_places(consumer)


def _tried(message: Message) -> Message:
    """Return a copy of a returned message, to be held."""
    made = message.copy()
    if made.attempts == 0:
        made.attempts = 1
    return made


def count_of(message: Message, header: str) -> i64:
    """Return the number in a header of `message`; 0 without the header."""
    headers = headers_of(message.header_payload())
    if not headers or header.encode() not in headers:
        return 0
    value = decode_table(headers).get(header)
    # A message that waited before its queue began to count may have a header of its publisher.
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= COUNT_MAX:
        return 0
    return value
