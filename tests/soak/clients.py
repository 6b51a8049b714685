"""The clients of a soak that speak AMQP, all served by one thread, so that the books have an order.

A `Seat` is for one client after the other: its client may be torn away at any time, and the next one continues.

1. The books learn of each message before it is sent, and of each message that is read.
2. A client that the broker closes, while the broker is not being ended, is a violation.
"""

from __future__ import annotations

import random
import socket
import time
from collections import deque
from collections.abc import Callable
from struct import pack, unpack_from
from typing import Any

from crash.link import Delivery, Link, nack

from warren.amqp import methods
from warren.amqp.codec import method_frame
from warren.amqp.field_table import Table, encode_table
from warren.amqp_client import frames
from warren.amqp_client.channel import consume_method
from warren.perf.client import CHANNEL, Address

from .books import Books, Offsets, Rule, body_of, maybe_number
from .topology import KEYS, PARTITIONS, PLACE_OF, PRIORITIES, Flow

LONGEST_DELAY_MS = 3000
REPEATS = 2
_BURST = 20
_OFFSET = b"\x0fx-stream-offsetl"


class Client(Link):
    """A link that tells the books."""

    def __init__(self, address: Address, name: str, books: Books, chooser: random.Random) -> None:
        super().__init__(address, name)
        self.books = books
        self.chooser = chooser

    def is_busy(self) -> bool:
        """Tell whether it waits for something that the broker owes it."""
        return False

    def pause(self) -> None:
        """Begin nothing new: the period is over."""

    def tear(self) -> None:
        """Go away in the middle of whatever it is, with a reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))
        self._end()


class Publisher(Client):
    """Publishes one flow at its rate, with confirms. `unconfirmed` outlives it: what is repeated, is repeated."""

    def __init__(
        self,
        address: Address,
        name: str,
        books: Books,
        chooser: random.Random,
        flow: Flow,
        unconfirmed: dict[int, int],
    ) -> None:
        super().__init__(address, name, books, chooser)
        self._flow = flow
        self._unconfirmed = unconfirmed
        self._window = chooser.choice([50, 200, 1000])
        self._last_tag = 0
        self._outstanding: dict[int, int] = {}
        self._next_s = time.monotonic()
        self._is_paused = False
        self._ready = False
        self.send_method(methods.ConfirmSelect(no_wait=False))
        for number, body_bytes in list(unconfirmed.items()) if flow.promise.repeated else ():
            self.send(self._publish(number, body_bytes, "", {}))

    def is_busy(self) -> bool:
        return bool(self._outstanding)

    def pause(self) -> None:
        self._is_paused = True

    def resume(self) -> None:
        """Publish again, and do not make up for the pause."""
        self._is_paused = False
        self._next_s = time.monotonic()

    def step(self) -> bool:
        now_s = time.monotonic()
        if self._is_paused or not self._ready or now_s < self._next_s or self.is_clogged():
            return False
        count = min(_BURST, self._window - len(self._outstanding), 1 + int((now_s - self._next_s) * self._flow.per_s))
        if count <= 0:
            return False
        # A publisher that was delayed catches up a little, not for ever: the load is flat.
        self._next_s = max(self._next_s + count / self._flow.per_s, now_s - 0.5)
        self.send(b"".join(self._new_message() for _ in range(count)))
        return True

    def _new_message(self) -> bytes:
        flow = self._flow
        key, order, due_s = flow.key, self.name, 0.0
        headers: Table = {}
        priority = None
        name = flow.promise.name
        if name in ("keyed", "orders"):
            key = f"key.{self.chooser.randrange(KEYS)}"
            order = f"{self.name} {key}"
        elif name == "urgent":
            priority = self.chooser.randrange(PRIORITIES + 1)
            order = f"{self.name} {priority}"
        elif name == "later":
            delay_ms = self.chooser.randint(50, LONGEST_DELAY_MS)
            headers["x-delay"] = delay_ms
            due_s = time.monotonic() + delay_ms / 1000
        body_bytes = self._size()
        number = self.books.sent(flow.promise, flow.places, body_bytes, order, due_s)
        octets = self._publish(number, body_bytes, key, headers, priority)
        if flow.promise.repeated:
            octets += b"".join(
                self._publish(number, body_bytes, key, {}) for _ in range(self.chooser.randint(0, REPEATS))
            )
        return octets

    def _size(self) -> int:
        kind = self.chooser.random()
        if kind < 0.9:
            return self.chooser.randint(0, 600)
        return self.chooser.randint(600, 8000) if kind < 0.998 else self.chooser.randint(8000, 200_000)

    def _publish(self, number: int, body_bytes: int, key: str, headers: Table, priority: int | None = None) -> bytes:
        self._last_tag += 1
        self._outstanding[self._last_tag] = number
        if self._flow.promise.repeated:
            self._unconfirmed[number] = body_bytes
            headers = {"x-deduplication-header": str(number)}
        durable = self._flow.promise.durable
        properties = frames.encode_properties(headers=headers or None, persistent=durable, priority=priority)
        body = body_of(number, body_bytes)
        header = pack(">HHQ", 60, 0, len(body)) + properties
        return self.publish_octets(self._flow.exchange, key or self._flow.key, header, body)

    def on_method(self, method: Any) -> None:
        if isinstance(method, methods.ConfirmSelectOk):
            self._ready = True
            return
        assert isinstance(method, methods.BasicAck | methods.BasicNack), method
        tag = method.delivery_tag
        for settled in [waiting for waiting in self._outstanding if waiting <= tag] if method.multiple else [tag]:
            number = self._outstanding.pop(settled)
            if isinstance(method, methods.BasicAck):
                self._unconfirmed.pop(number, None)
                self.books.confirmed(number, self._flow.places)
            else:
                self.books.refused(number, f"nack to {self.name}")


class Consumer(Client):
    """Takes what is in a queue: acks it mostly, gives some of it back, fails at some of `work`."""

    def __init__(self, address: Address, name: str, books: Books, chooser: random.Random, queue: str) -> None:
        super().__init__(address, name, books, chooser)
        self._queue = queue
        self._place = PLACE_OF.get(queue, queue)
        self._unacked: dict[int, int] = {}
        self._barriers: deque[int] = deque()
        self._is_calm = False  # acks everything
        self._qos = methods.BasicQos(0, chooser.choice([1, 20, 300]), global_=False)
        self.send_method(self._qos)
        self._barriers.append(0)
        self.send_method(consume_method(queue, "c"))

    def is_busy(self) -> bool:
        return bool(self._unacked) or self.books.unsettled(self.name) > 0

    def pause(self) -> None:
        self._is_calm = True

    def resume(self) -> None:
        self._is_calm = False

    def on_delivery(self, delivery: Delivery) -> None:
        number = maybe_number(delivery.body)
        self.books.delivered(
            self.name,
            self._queue,
            self._place,
            -1 if number is None else number,
            delivery.body,
            time.monotonic(),
            redelivered=delivery.redelivered,
        )
        self._unacked[delivery.delivery_tag] = -1 if number is None else number

    def step(self) -> bool:
        unsettled = self.books.unsettled(self.name)
        if unsettled and len(self._barriers) == 0:
            self._barriers.append(unsettled)
            self.send_method(self._qos)
        if not self._unacked:
            return False
        action = 1.0 if self._is_calm else self.chooser.random()
        tag = next(iter(self._unacked))
        failing = 0.3 if self._queue == "work" else 0.01
        if action < 0.01:
            self._release(tag, nack(tag, requeue=True))
        elif action < failing:
            self._fail(tag)
        else:
            self._ack(self.chooser.randint(1, len(self._unacked)))
        return True

    def _fail(self, tag: int) -> None:
        if self._queue == "work":
            self._release(tag, methods.BasicReject(tag, requeue=self.chooser.random() < 0.8))
        else:
            self._release(tag, methods.BasicReject(tag, requeue=True))

    def _release(self, tag: int, method: Any) -> None:
        self.books.released(self._unacked.pop(tag), self._place)
        self.send_method(method)

    def _ack(self, count: int) -> None:
        tags = list(self._unacked)[:count]
        for tag in tags:
            self.books.acked(self._unacked.pop(tag), self._place)
        self.send(frames.ack(CHANNEL, tags[-1], multiple=True))

    def on_method(self, method: Any) -> None:
        if isinstance(method, methods.BasicQosOk):
            self.books.processed(self.name, self._barriers.popleft())
        else:
            assert isinstance(method, methods.BasicConsumeOk), method


class Mover(Client):
    """Moves from `tx-in` to `tx-out` in transactions, some of which are rolled back and made again."""

    def __init__(self, address: Address, name: str, books: Books, chooser: random.Random) -> None:
        super().__init__(address, name, books, chooser)
        self._held: dict[int, bytes] = {}
        self._taken: dict[int, bytes] = {}
        self._waiting = False
        self._is_calm = False
        self.send_method(methods.TxSelect())
        self.send_method(methods.BasicQos(0, 100, global_=False))
        self.send_method(consume_method("tx-in", "t"))

    def is_busy(self) -> bool:
        return self._waiting or bool(self._held)

    def pause(self) -> None:
        self._is_calm = True

    def resume(self) -> None:
        self._is_calm = False

    def on_delivery(self, delivery: Delivery) -> None:
        number = maybe_number(delivery.body)
        self.books.delivered(
            self.name,
            "tx-in",
            "tx",
            -1 if number is None else number,
            delivery.body,
            time.monotonic(),
            redelivered=delivery.redelivered,
        )
        self._held[delivery.delivery_tag] = delivery.body

    def step(self) -> bool:
        if self._waiting or not self._held or self.is_clogged():
            return False
        octets = []
        for tag in list(self._held)[: self.chooser.randint(1, 20)]:
            body = self._taken[tag] = self._held.pop(tag)
            header = pack(">HHQ", 60, 0, len(body)) + frames.encode_properties(persistent=True)
            octets.append(self.publish_octets("", "tx-out", header, body))
            octets.append(frames.ack(CHANNEL, tag, multiple=False))
        self._waiting = True
        if not self._is_calm and self.chooser.random() < 0.15:
            octets.append(method_frame(CHANNEL, methods.TxRollback()))
        else:
            for body in self._taken.values():
                number = maybe_number(body)
                if number is not None:
                    self.books.released(number, "tx")
            octets.append(method_frame(CHANNEL, methods.TxCommit()))
        self.send(b"".join(octets))
        return True

    def on_method(self, method: Any) -> None:
        if isinstance(method, methods.TxCommitOk | methods.TxRollbackOk):
            if isinstance(method, methods.TxRollbackOk):
                self._held |= self._taken  # they are unacked again
            self._taken = {}
            self._waiting = False
        else:
            assert isinstance(method, methods.TxSelectOk | methods.BasicQosOk | methods.BasicConsumeOk), method


class StreamReader(Client):
    """Reads streams, and acks for more. Its kind of reading decides how it reports messages:

    `next`   from where the last reader of this seat ended, and no message is skipped
    `again`  from some offset that was read before
    `group`  all partitions of the super stream, as one of a group
    """

    def __init__(
        self, address: Address, name: str, books: Books, chooser: random.Random, kind: str, offsets: dict[str, Offsets]
    ) -> None:
        super().__init__(address, name, books, chooser)
        self._kind = kind
        self._offsets = offsets
        self.send_method(methods.BasicQos(0, 300, global_=False))
        for stream in PARTITIONS if kind == "group" else ("events",):
            arguments = encode_table(reading_arguments(kind, offsets[stream], chooser))
            self.send_method(consume_method(stream, stream, arguments=arguments))

    def on_delivery(self, delivery: Delivery) -> None:
        self.send(frames.ack(CHANNEL, delivery.delivery_tag, multiple=False))
        number = maybe_number(delivery.body)
        at = delivery.header.find(_OFFSET)
        assert at >= 0, delivery.header
        (offset,) = unpack_from(">q", delivery.header, at + len(_OFFSET))
        stream = delivery.consumer_tag
        read = self._offsets[stream]
        if number is None:
            self.books.violated(Rule.UNKNOWN, f"{stream} has {delivery.body[:40]!r} at {offset}")
        elif self._kind == "next":
            read.read_next(offset, number)
            self.books.taken(stream, number, delivery.body)
        elif self._kind == "group":
            if read.read(offset, number):
                self.books.taken("orders", number, delivery.body)
        else:
            read.read(offset, number)

    def on_method(self, method: Any) -> None:
        assert isinstance(method, methods.BasicQosOk | methods.BasicConsumeOk), method


def reading_arguments(kind: str, read: Offsets, chooser: random.Random) -> Table:
    """Return where a reader of a kind begins, as arguments of its consumer."""
    if kind == "group":
        # The broker knows how far it has come; `end` is for sequential readers.
        return {"x-stream-offset": "first", "x-group": "soak"}
    return {"x-stream-offset": read.end if kind == "next" else chooser.randint(read.oldest(), read.end)}


class Seat:
    """A client, and how the next one is made. `is_taken` is false while nobody should be there."""

    def __init__(self, title: str, make: Callable[[str], Client]) -> None:
        self.title = title
        self.is_taken = True
        self.client: Client | None = None
        self._make = make
        self._count = 0

    def sit(self) -> Client:
        """Connect somebody new. Raises BrokerError."""
        self._count += 1
        self.client = self._make(f"{self.title} {self._count}")
        return self.client
