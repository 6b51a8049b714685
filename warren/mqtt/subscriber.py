"""Subscriptions of QoS 0 of a session that ends with its connection: messages go to the outbox, without a queue.

1. A `Subscriber` is the destination of the bindings of all such subscriptions of a session. So a message comes once,
   however many of them match.
2. Messages for it are only in the outbox. When more than `most_bytes` wait there, new messages are dropped and counted
   until the peer has taken everything, so that its queues get their turn. Messages that a publisher has delayed may
   take as much memory in addition.
3. A publisher does not notice that a message is dropped here: the message counts as routed, and is confirmed.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.amqp.outbox import CHUNK_MIN_BYTES
from warren.mqtt.fanout import Fanout
from warren.msgstore.log.message import Message
from warren.queues.outcome import ACCEPTED
from warren.queues.receiver import Receiver
from warren.queues.timers import Timer, TimerQueue

if TYPE_CHECKING:
    from warren.mqtt.ledger import MqttLedger

# This number of delayed messages of one subscriber may become due at a time. The rest follows after a turn of others.
DUE_AT_ONCE: Final = 256


class Subscriber(Receiver):
    """The subscriptions of one session, whose ledger writes special messages. `most_bytes` may wait for its peer."""

    def __init__(self, name: str, ledger: MqttLedger, fanout: Fanout, most_bytes: i64) -> None:
        super().__init__(name)
        self.dropped: i64 = 0
        self._ledger: MqttLedger | None = ledger  # None: the session has ended
        self._fanout = fanout
        self._most_bytes: i64 = most_bytes
        self._is_full: bool = False  # until the peer has taken everything
        self._delayed: Delayed | None = None

    @property
    def kind(self) -> str:
        return "subscriber"

    def publish(self, message: Message) -> i64:
        ledger = self._ledger
        if ledger is None:
            return ACCEPTED
        outbox = ledger.outbox
        waiting: i64 = outbox.waiting_bytes()
        if waiting > outbox.soft_limit_bytes:
            outbox.writable = False  # stops deliveries from its queues
        if self._is_full or waiting > self._most_bytes:
            # An empty outbox may be closed for another reason: too many messages of QoS 2 wait for the log.
            self._is_full = waiting > self._most_bytes or (waiting > 0 and not outbox.writable)
            if self._is_full:
                outbox.writable = False
                self._drop()
                return ACCEPTED
        fanout = self._fanout
        try:
            if fanout.message is not message:
                fanout.take(message, ledger.now_ms())
            looks: bool = ledger.looks or fanout.is_special
            if looks and not fanout.is_unfit:
                ledger.write_directly(message)
        except Exception as error:
            # A bug of ours must not affect the publisher and the other receivers of the message.
            if fanout.message is not message:
                fanout.give_up(message)  # making the packets would fail for each receiver
            outbox.failed(error)
            return ACCEPTED
        if fanout.is_unfit:
            self._drop()
            return ACCEPTED
        if not looks:
            head = fanout.head_of_5 if ledger.is_v5 else fanout.head
            body = fanout.body
            if len(head) + len(body) > ledger.packet_max:
                return ACCEPTED
            outbox.touch()
            outbox.writer.write(head)
            if len(body) >= CHUNK_MIN_BYTES:
                outbox.write_chunk(body)
            else:
                outbox.writer.write(body)
                if len(outbox.writer) > outbox.piece_bytes:
                    outbox.end_piece()
        ledger.direct += 1
        watcher = ledger.watcher
        if watcher is not None:
            watcher.delivered(self, message, False)
        return ACCEPTED

    def _drop(self) -> None:
        self.dropped += 1
        self._fanout.churn.dropped_qos_0 += 1

    def accept(self, message: Message, origin: i64) -> i64:
        return self.publish(message)

    def hold(self, message: Message, until_ms: i64, origin: i64) -> i64:
        if self._ledger is not None:
            delayed = self._delayed
            if delayed is None:
                delayed = Delayed(self, self._fanout.timers)
                self._delayed = delayed
            if delayed.held_bytes > self._most_bytes:
                self._drop()
            else:
                delayed.add(message, until_ms)
        return ACCEPTED

    def is_behind(self) -> bool:
        """Tell whether retained messages, which can wait, have to wait until its peer has taken something."""
        ledger = self._ledger
        if ledger is None:
            return False
        waiting: i64 = ledger.outbox.waiting_bytes()
        return waiting > 0 and (waiting > self._most_bytes or not ledger.outbox.writable)

    def close(self) -> None:
        """Release everything: the session ends."""
        self.deleted = True
        self._ledger = None
        delayed = self._delayed
        if delayed is not None:
            delayed.close()
            self._delayed = None


class Delayed(Timer):
    """Messages that a subscriber gets later."""

    def __init__(self, subscriber: Subscriber, timers: TimerQueue) -> None:
        super().__init__()
        self.held_bytes: i64 = 0
        self._subscriber: Subscriber | None = subscriber
        self._timers = timers
        self._serial: int = 0
        self._held: list[tuple[int, int, Message]] = []  # a heap: when, and in which order they came

    def add(self, message: Message, until_ms: i64) -> None:
        """Hold `message` for the subscriber until that time."""
        self._serial += 1
        self.held_bytes += message.memory_bytes
        heappush(self._held, (int(until_ms), self._serial, message))
        self._timers.at(until_ms, self)

    def due(self, now_ms: i64) -> None:
        held = self._held
        left: i64 = DUE_AT_ONCE
        while held and held[0][0] <= now_ms and left > 0:
            left -= 1
            message = heappop(held)[2]
            self.held_bytes -= message.memory_bytes
            self._timers.worked += 1
            subscriber = self._subscriber
            if subscriber is not None:
                subscriber.publish(message)
        if held:
            self._timers.at(held[0][0], self)

    def close(self) -> None:
        """Forget everything."""
        self._timers.cancel(self)
        self._held = []
        self._subscriber = None
