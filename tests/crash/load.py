"""Clients that publish, consume, ack, commit, purge and delete at random, and tell a `History` of every step.

One thread serves all of them: so the steps in the history have an order, and the broker gets far more processor than it
would beside a client process per connection.

    crash.all   fanout   work-1, work-2, quiet, short-lived, fleeting
    crash.pair  fanout   ledger, deep

1. The history learns of each message before it is sent, and of each message that is read.
2. `quiet` and `deep` have no consumers, `short-lived` is deleted and declared again, `fleeting` is a transient queue,
   `ledger` is consumed and acked in transactions only.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from warren.amqp import methods
from warren.amqp.codec import method_frame
from warren.amqp.declarations import QueueDeclaration
from warren.amqp.field_table import EMPTY_TABLE
from warren.amqp_client import frames
from warren.amqp_client.channel import consume_method
from warren.perf.client import CHANNEL, Address, PerfConnection

from .history import BODY_BYTES_MAX, History, Message, Place, Sighting, Transaction
from .link import Delivery, Link, nack, turn, turn_until

DURABLE_QUEUES = ("work-1", "work-2", "ledger", "quiet", "deep", "short-lived")
TRANSIENT_QUEUES = ("fleeting",)
QUEUES = DURABLE_QUEUES + TRANSIENT_QUEUES
ALL = ("work-1", "work-2", "quiet", "short-lived", "fleeting")
PAIR = ("ledger", "deep")
NOT_FOUND = 404


@dataclass(frozen=True)
class Route:
    """Where a publish goes."""

    exchange: str
    routing_key: str
    queues: tuple[str, ...]


FAN_OUTS = [Route("crash.all", "to.all", ALL), Route("crash.pair", "", PAIR)]
ROUTES = [Route("", queue, (queue,)) for queue in QUEUES] + FAN_OUTS * 3
DEEP = Route("", "deep", ("deep",))


def queue_declare(queue: str, *, passive: bool = False) -> methods.QueueDeclare:
    return QueueDeclaration(queue, durable=not passive).method(passive=passive)


def set_up(address: Address) -> None:
    """Declare what the clients use, as far as it is not there."""
    with PerfConnection.open(address, name="set up") as connection:
        for queue in QUEUES:
            connection.declare_queue(queue, durable=queue in DURABLE_QUEUES)
        for exchange, queues in (("crash.all", ALL), ("crash.pair", PAIR)):
            connection.declare_exchange(exchange, "fanout", durable=True)
            connection.bind(exchange, [(queue, "", {}) for queue in queues])


class Client(Link):
    """A link that takes part in a load."""

    def __init__(self, address: Address, name: str, history: History, chooser: random.Random) -> None:
        super().__init__(address, name)
        self.history = history
        self.chooser = chooser
        self.ready = False
        self.confirms = 0

    def new_message(self, route: Route, transaction: Transaction | None, body_bytes: int) -> tuple[Message, bytes]:
        """Make a message; return it with the octets of its publish."""
        message = self.history.publish(
            self.name,
            route.exchange,
            route.routing_key,
            route.queues,
            body_bytes,
            persistent=self.chooser.random() < 0.85,
            transaction=transaction,
        )
        octets = self.publish_octets(route.exchange, route.routing_key, message.header(), message.body())
        return message, octets

    def random_size(self) -> int:
        """Return a body size from 0 to 300 KB, small ones mostly."""
        kind = self.chooser.random()
        if kind < 0.1:
            return 0
        if kind < 0.8:
            return self.chooser.randint(1, 300)
        if kind < 0.96:
            return self.chooser.randint(300, 8000)
        return self.chooser.randint(8000, 60_000) if kind < 0.993 else self.chooser.randint(60_000, BODY_BYTES_MAX)

    def seen(self, queue: str, delivery: Delivery) -> Place | None:
        """Tell the history of a delivery."""
        return self.history.delivered(sighting_of(queue, delivery), f"{self.name}/{delivery.consumer_tag}")


def sighting_of(queue: str, delivery: Delivery) -> Sighting:
    """Return what the history judges."""
    return Sighting(
        queue, delivery.exchange, delivery.routing_key, delivery.header, delivery.body, delivery.redelivered
    )


class Publisher(Client):
    """Publishes with confirms, up to a window in flight."""

    def __init__(self, address: Address, name: str, history: History, chooser: random.Random) -> None:
        super().__init__(address, name, history, chooser)
        self._window = chooser.choice([1, 5, 50, 500])
        self._last_tag = 0
        self._outstanding: dict[int, Message] = {}
        self.send_method(methods.ConfirmSelect(no_wait=False))

    def step(self) -> bool:
        room = self._window - len(self._outstanding)
        if room <= 0 or self.is_clogged():
            return False
        octets = []
        if self.chooser.random() < 0.1:
            pieces = [(DEEP, self.chooser.randint(0, 60)) for _ in range(min(room, 100))]
        else:
            count = min(room, self.chooser.choice([1, 1, 2, 5, 20]))
            pieces = [(self.chooser.choice(ROUTES), self.random_size()) for _ in range(count)]
        for route, body_bytes in pieces:
            message, publish = self.new_message(route, None, body_bytes)
            self._last_tag += 1
            self._outstanding[self._last_tag] = message
            octets.append(publish)
        self.send(b"".join(octets))
        return True

    def on_method(self, method: Any) -> None:
        if isinstance(method, methods.ConfirmSelectOk):
            self.ready = True
            return
        assert isinstance(method, methods.BasicAck | methods.BasicNack), method
        tag = method.delivery_tag
        assert tag in self._outstanding, f"{self.name} got {method}, which it does not wait for"
        for settled in [waiting for waiting in self._outstanding if waiting <= tag] if method.multiple else [tag]:
            message = self._outstanding.pop(settled)
            if isinstance(method, methods.BasicAck):
                self.history.confirmed(message)
                self.confirms += 1


class Consumer(Client):
    """Consumes one queue: acks, acks many, rejects, requeues, or keeps what it got."""

    def __init__(self, address: Address, name: str, history: History, chooser: random.Random, queue: str) -> None:
        super().__init__(address, name, history, chooser)
        self._queue = queue
        self._held: dict[int, Place | None] = {}
        self._acked: list[Place] = []
        self._in_process: deque[list[Place]] = deque()
        self.send_method(methods.BasicQos(0, chooser.choice([1, 10, 200]), global_=False))
        self._consuming = True
        self._consume()

    def _consume(self) -> None:
        self.history.consume(self._queue)
        self.send_method(consume_method(self._queue, "c"))

    def step(self) -> bool:
        if not self._consuming and self.history.is_stable(self._queue):
            self._consuming = True
            self._consume()
        if self._acked and self.chooser.random() < 0.1:
            self._in_process.append(self._acked)
            self._acked = []
            self.send_method(queue_declare("work-1", passive=True))
        if not self._held:
            return False
        action = self.chooser.random()
        tag = next(iter(self._held)) if action < 0.5 else self.chooser.choice(list(self._held))
        if action < 0.75:
            self._ack(tag, [tag], multiple=False)
        elif action < 0.85:
            self._ack(tag, [held for held in self._held if held <= tag], multiple=True)
        elif action < 0.88:
            self._leaving([tag])
            self.send_method(nack(tag, requeue=False))
        elif action < 0.92:
            del self._held[tag]
            self.send_method(nack(tag, requeue=True))
        return True

    def _ack(self, tag: int, tags: list[int], *, multiple: bool) -> None:
        self._leaving(tags)
        self.send(frames.ack(CHANNEL, tag, multiple=multiple))

    def _leaving(self, tags: Iterable[int]) -> None:
        for tag in tags:
            place = self._held.pop(tag)
            if place is not None:
                self.history.acked(place)
                self._acked.append(place)

    def on_delivery(self, delivery: Delivery) -> None:
        self._held[delivery.delivery_tag] = self.seen(self._queue, delivery)

    def on_method(self, method: Any) -> None:
        if isinstance(method, methods.BasicConsumeOk):
            self.ready = True
        elif isinstance(method, methods.BasicCancel):
            self._consuming = False
        elif isinstance(method, methods.QueueDeclareOk):
            self.history.processed(self._in_process.popleft())
        else:
            assert isinstance(method, methods.BasicQosOk), method


class Transactor(Client):
    """Publishes to several queues and acks what it got from `ledger`, in transactions."""

    def __init__(self, address: Address, name: str, history: History, chooser: random.Random) -> None:
        super().__init__(address, name, history, chooser)
        self._held: dict[int, Place | None] = {}
        self._taken: dict[int, Place | None] = {}
        self._open: Transaction | None = None
        self._waiting = False
        self.send_method(methods.TxSelect())
        self.send_method(methods.BasicQos(0, 40, global_=False))
        history.consume("ledger")
        self.send_method(consume_method("ledger", "t"))

    def step(self) -> bool:
        if self._waiting or self.is_clogged():
            return False
        if self._open is None:
            self._open = self.history.begin()
        octets = []
        for _ in range(self.chooser.randint(0, 6)):
            octets.append(self.new_message(self.chooser.choice(ROUTES), self._open, self.random_size())[1])
        for _ in range(min(len(self._held), self.chooser.randint(0, 6))):
            tag = self.chooser.choice(list(self._held))
            place = self._taken[tag] = self._held.pop(tag)
            if place is not None:
                self.history.ack_in(self._open, place)
            octets.append(frames.ack(CHANNEL, tag, multiple=False))
        end = self.chooser.random()
        if end < 0.8:
            self.history.commit(self._open)
            octets.append(method_frame(CHANNEL, methods.TxCommit()))
            self._waiting = True
        elif end < 0.9:
            self.history.roll_back(self._open)
            octets.append(method_frame(CHANNEL, methods.TxRollback()))
            self._waiting = True
        self.send(b"".join(octets))
        return True

    def on_delivery(self, delivery: Delivery) -> None:
        self._held[delivery.delivery_tag] = self.seen("ledger", delivery)

    def on_method(self, method: Any) -> None:
        if isinstance(method, methods.BasicConsumeOk):
            self.ready = True
        elif isinstance(method, methods.TxCommitOk):
            assert self._open is not None
            self.history.committed(self._open)
            self.confirms += 1
            self._next_transaction()
        elif isinstance(method, methods.TxRollbackOk):
            # They are unacked again.
            self._held |= self._taken
            self._next_transaction()
        else:
            assert isinstance(method, methods.TxSelectOk | methods.BasicQosOk), method

    def _next_transaction(self) -> None:
        self._taken = {}
        self._open = None
        self._waiting = False


class Administrator(Client):
    """Now and then purges a queue, or deletes one and declares it again."""

    def __init__(self, address: Address, name: str, history: History, chooser: random.Random) -> None:
        super().__init__(address, name, history, chooser)
        self.ready = True
        self._queue = ""

    def step(self) -> bool:
        if self._queue or self.chooser.random() > 0.02:
            return False
        self._queue = self.chooser.choice(["quiet", "work-2", "deep", "short-lived", "short-lived"])
        if self._queue == "short-lived":
            self.history.delete(self._queue)
            self.send_method(methods.QueueDelete(0, self._queue, if_unused=False, if_empty=False, no_wait=False))
        else:
            self.history.purge(self._queue)
            self.send_method(methods.QueuePurge(0, self._queue, no_wait=False))
        return True

    def on_method(self, method: Any) -> None:
        if isinstance(method, methods.QueuePurgeOk):
            self.history.purged(self._queue)
            self._queue = ""
        elif isinstance(method, methods.QueueDeleteOk):
            self.history.deleted(self._queue)
            self.send_method(queue_declare(self._queue))
        elif isinstance(method, methods.QueueDeclareOk):
            self.send_method(methods.QueueBind(0, self._queue, "crash.all", "", no_wait=False, arguments=EMPTY_TABLE))
        else:
            assert isinstance(method, methods.QueueBindOk), method
            self.history.declared(self._queue)
            self._queue = ""


class Load:
    """All clients of one run of the broker."""

    def __init__(self, address: Address, history: History, chooser: random.Random) -> None:
        self._chooser = chooser
        context = (history, chooser)
        self.clients: list[Client] = [
            *(Publisher(address, f"publisher-{number}", *context) for number in range(4)),
            *(Consumer(address, f"consumer-{number}", *context, "work-1") for number in range(2)),
            Consumer(address, "consumer-2", *context, "work-2"),
            Consumer(address, "consumer-3", *context, "short-lived"),
            *(Transactor(address, f"transactor-{number}", *context) for number in range(2)),
            Administrator(address, "administrator", *context),
        ]
        turn_until(self.clients, lambda: all(client.ready for client in self.clients), "the clients to begin")

    @property
    def confirms(self) -> int:
        """How many publishes and commits were answered."""
        return sum(client.confirms for client in self.clients)

    def run_until(self, condition: Callable[[], bool]) -> None:
        """Make random clients do random things until `condition` holds."""
        while not condition():
            did = self._chooser.choice(self.clients).step()
            turn(self.clients, 0 if did else 1)
            for client in self.clients:
                # Its queue may have been deleted just before it wanted to consume it.
                expected = client.name == "consumer-3" and client.close_code == NOT_FOUND
                assert not client.ended or expected, f"{client.name}: {client.close_code} {client.close_text}"

    def run_out(self) -> None:
        """Read everything that a broker which was killed has sent."""
        for client in self.clients:
            client.receive_all()

    def run_until_closed(self) -> None:
        """Serve the clients until a broker that stops has closed all of them."""
        while not all(client.ended for client in self.clients):
            turn(self.clients, 5)


class Inspector(Link):
    """Looks at everything that the queues hold without taking it; a part may be taken afterwards, in a transaction."""

    def __init__(self, address: Address) -> None:
        super().__init__(address, "inspector")
        self.found: dict[str, list[Sighting]] = {queue: [] for queue in QUEUES}
        self._tags: dict[str, list[int]] = {queue: [] for queue in QUEUES}
        self._ready: deque[int] = deque()
        self._committed = False
        self.send_method(methods.TxSelect())
        for queue in QUEUES:
            self._look_at(queue)

    def _look_at(self, queue: str) -> None:
        count = self._count(queue)
        self.send_method(consume_method(queue, queue))
        sightings = self.found[queue]
        turn_until([self], lambda: len(sightings) >= count, f"{count} messages of queue {queue}")
        # Whatever else was ready comes before this answer.
        rest = self._count(queue)
        assert (len(sightings), rest) == (count, 0), f"{queue} held {count}, gave {len(sightings)}, still holds {rest}"

    def _count(self, queue: str) -> int:
        self.send_method(queue_declare(queue, passive=True))
        turn_until([self], lambda: bool(self._ready), f"the size of queue {queue}")
        return self._ready.popleft()

    def on_delivery(self, delivery: Delivery) -> None:
        queue = delivery.consumer_tag
        self.found[queue].append(sighting_of(queue, delivery))
        self._tags[queue].append(delivery.delivery_tag)

    def on_method(self, method: Any) -> None:
        if isinstance(method, methods.QueueDeclareOk):
            self._ready.append(method.message_count)
        elif isinstance(method, methods.TxCommitOk):
            self._committed = True
        else:
            assert isinstance(method, methods.TxSelectOk | methods.BasicConsumeOk), method

    def take(self, history: History, places: dict[str, list[Place]], chooser: random.Random, share: float) -> None:
        """Ack about `share` of `places`, which is what the history made of `found`; the rest goes back."""
        transaction = history.begin()
        octets = []
        for queue, in_queue in places.items():
            for tag, place in zip(self._tags[queue], in_queue, strict=True):
                if chooser.random() < share:
                    history.ack_in(transaction, place)
                    octets.append(frames.ack(CHANNEL, tag, multiple=False))
        history.commit(transaction)
        self.send(b"".join(octets) + method_frame(CHANNEL, methods.TxCommit()))
        turn_until([self], lambda: self._committed, "the inspector's commit")
        history.committed(transaction)
        self.hang_up()
