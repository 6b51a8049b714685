"""Queues and connections of a broker under test, as a test's thread sees them.

A view holds a name, not the thing: its answers are true when they are given, and a deleted thing is reported as gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from warren.amqp.errors import ChannelException
from warren.channels.consuming import consumer_lost
from warren.channels.ending import close_at_once, force_close
from warren.channels.session import Session
from warren.queues.lanes import DELAYED, PARKED, UNDELIVERED
from warren.testing.messages import QueuedMessage
from warren.testing.peek import waiting_messages

if TYPE_CHECKING:
    from warren.amqp.field_table import Table
    from warren.channels.peer import Peer
    from warren.queues.base_queue import BaseQueue
    from warren.testing.broker import Broker

# More than an outbox may hold before deliveries stop, and less than stops the reading of requests.
_STALL_BYTES: Final = 16 << 20
_HELD: Final = {"delayed": DELAYED, "parked": PARKED, "undelivered": UNDELIVERED}


class QueueView:
    """The queue `name` of `vhost`. All but `exists` raise LookupError when the queue does not exist."""

    def __init__(self, broker: Broker, name: str, vhost: str) -> None:
        self.name = name
        self.vhost = vhost
        self._broker = broker

    def __repr__(self) -> str:
        return f"<queue {self.name!r} in vhost {self.vhost!r}>"

    @property
    def exists(self) -> bool:
        """Whether the queue exists."""
        return self._broker.on_loop(lambda: self._maybe_queue() is not None)

    @property
    def ready(self) -> int:
        """How many messages wait for a consumer."""
        return self._broker.on_loop(lambda: int(self._queue().ready_count))

    @property
    def unacked(self) -> int:
        """How many messages are out for acknowledgement."""
        return self._broker.on_loop(lambda: int(self._queue().unacked_count))

    @property
    def delayed(self) -> int:
        """How many messages wait for their time: delayed ones, and those before their next try."""
        return self.counts()["delayed"]

    @property
    def parked(self) -> int:
        """How many messages are parked."""
        return self.counts()["parked"]

    def counts(self) -> dict[str, int]:
        """Return the number of messages in each state: ready, unacked, delayed, parked, undelivered."""
        return self._broker.on_loop(self._counts)

    def _counts(self) -> dict[str, int]:
        queue = self._queue()
        held = {name: queue.held(lane) for name, lane in _HELD.items()}
        return {
            "ready": int(queue.ready_count),
            "unacked": int(queue.unacked_count),
            **{name: 0 if lane is None else int(lane.count) for name, lane in held.items()},
        }

    @property
    def consumers(self) -> tuple[str, ...]:
        """The tags of its consumers."""
        return self._broker.on_loop(lambda: tuple(consumer.tag for consumer in self._queue().consumers))

    def messages(self) -> list[QueuedMessage]:
        """Return the ready messages, in the order in which they will be delivered. They are not taken or marked."""
        return self._broker.on_loop(lambda: waiting_messages(self._queue(), self._broker.disk))

    def purge(self) -> int:
        """Drop the ready messages; return their number."""
        return self._broker.on_loop(lambda: self._queue().purge())

    def cancel_consumers(self) -> int:
        """Cancel its consumers from the broker's side, as when a queue is deleted; return their number.

        A client that has announced ``consumer_cancel_notify`` gets basic.cancel, another one nothing.
        """
        return self._broker.on_loop(self._cancel_consumers)

    def _cancel_consumers(self) -> int:
        queue = self._queue()
        consumers = list(queue.consumers)
        for consumer in consumers:
            channel = consumer.owner
            if isinstance(channel, Session):
                channel.peer.broker.events.consumer_deleted(consumer)
                consumer_lost(channel, consumer)
            queue.remove_consumer(consumer)
        if queue.auto_delete and consumers:
            engine = self._broker.engine
            engine.delete_queue(engine.vhosts[self.vhost], queue)
        return len(consumers)

    def _maybe_queue(self) -> BaseQueue | None:
        vhost = self._broker.engine.vhosts.get(self.vhost)
        return None if vhost is None else vhost.queues.get(self.name)

    def _queue(self) -> BaseQueue:
        queue = self._maybe_queue()
        if queue is None:
            raise LookupError(f"no queue {self.name!r} in vhost {self.vhost!r}")
        return queue


class ConnectionView:
    """An open connection. `name` is the one that its client gave, else `peer`, which is ``host:port``.

    The methods that do something raise LookupError when it has gone meanwhile.
    """

    def __init__(self, broker: Broker, peer: Peer) -> None:
        self.peer = str(peer.origin.peer)
        self.name = str(peer.login.name) or self.peer
        self.user = str(peer.login.user_name)
        self.vhost = str(peer.login.vhost_name)
        self.client_properties: Table = dict(peer.client_properties)
        self.channels = tuple(sorted(peer.channels))
        self._broker = broker
        self._key = peer.key

    def __repr__(self) -> str:
        return f"<connection {self.name!r} of {self.user!r} in vhost {self.vhost!r}>"

    @property
    def is_open(self) -> bool:
        """Whether it is still there."""
        return self._broker.on_loop(lambda: self._key in self._broker.engine.connections)

    def drop(self) -> None:
        """End it without a word, with RST, as a network does."""
        self._broker.on_loop(lambda: self._broker.tear(self._connection(), reset=True))

    def close(self, reply_code: int = 320, text: str = "closed by the test") -> None:
        """End it with connection.close and this reply code."""
        self._broker.on_loop(lambda: self._close(reply_code, text))

    def _close(self, reply_code: int, text: str) -> None:
        peer = self._connection()
        if reply_code == 320:
            force_close(peer, text)
            return
        close_at_once(peer, reply_code, text)

    def close_channel(self, number: int, reply_code: int = 406, text: str = "closed by the test") -> None:
        """End channel `number` with channel.close and this reply code. LookupError: it is not open."""
        self._broker.on_loop(lambda: self._close_channel(number, reply_code, text))

    def _close_channel(self, number: int, reply_code: int, text: str) -> None:
        peer = self._connection()
        if number not in peer.channels:
            raise LookupError(f"{self!r} has no channel {number}")
        peer.close_session(peer.channels[number], ChannelException(reply_code, text), 0)

    @contextmanager
    def stalled(self) -> Iterator[None]:
        """Send its consumers nothing, as to a client that does not read its socket; replies still arrive."""
        self.stall()
        try:
            yield
        finally:
            if self.is_open:
                self.resume()

    def stall(self) -> None:
        """Begin that."""
        self._broker.on_loop(self._stall)

    def resume(self) -> None:
        """End it."""
        self._broker.on_loop(self._resume)

    def _stall(self) -> None:
        # As if the socket had not taken this much: the outbox treats it like any peer that does not read.
        outbox = self._connection().outbox
        if self._key not in self._broker.stalled:
            self._broker.stalled.add(self._key)
            outbox.in_flight_bytes += _STALL_BYTES
            outbox.check_limit()

    def _resume(self) -> None:
        peer = self._connection()
        if self._key in self._broker.stalled:
            self._broker.stalled.discard(self._key)
            peer.outbox.in_flight_bytes -= _STALL_BYTES
            if peer.outbox.sent(0):
                peer.drained()

    def _connection(self) -> Peer:
        peer = self._broker.engine.connections.get(self._key)
        if peer is None:
            raise LookupError(f"{self!r} has ended")
        return peer
