"""Flows over protocols other than AMQP 0-9-1: topics, each with the publishers and consumers of one number.

1. Publisher ``i`` and consumer ``i`` have topic ``i % queues``, and every consumer of a topic has a copy of its
   messages; with AMQP 1.0 it is a queue, whose messages its consumers share.
2. As in `flow` nothing runs per message: frames of one length that follow each other are counted by arithmetic, and
   looked at in columns.
"""

from __future__ import annotations

import select
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

from warren.perf.choices import ExchangeType
from warren.perf.client import Address, BrokerError, PerfConnection
from warren.perf.flow import (
    LEAST_BURST,
    RECEIVE_BYTES,
    STAMP_BYTES,
    Batch,
    PerfPublisher,
    age_ns,
)
from warren.perf.meter import Histogram, Totals
from warren.perf.workload import BATCH_BYTES, SMALLEST_BATCH_BYTES, Run, Workload, cumulated

_LATENCIES_PER_BUFFER: Final = 8


class FrameConsumer(ABC):
    """One consuming connection: counts frames in runs of one length, and answers them if that is asked for."""

    def __init__(self, connection: PerfConnection, *, body_bytes: int, stamped: bool, latency: Histogram) -> None:
        self.connection = connection
        self.sock = connection.sock
        self.received = 0
        self.blocked = False
        self.buffer = bytearray(max(RECEIVE_BYTES, 2 * (body_bytes + 65536)))
        self.filled = len(connection.leftover)
        self.buffer[: self.filled] = connection.leftover
        self._view = memoryview(self.buffer)
        self._stamped = stamped
        self._latency = latency
        self._unsent = b""

    def receive(self, now_ns: int) -> int:
        """Receive once, count, acknowledge. Returns the number of deliveries."""
        where = self.connection.address
        try:
            fresh = self.sock.recv_into(self._view[self.filled :])
        except BlockingIOError:
            return 0
        except OSError as error:
            raise BrokerError(f"lost {where} while consuming: {error.strerror or error}") from None
        if not fresh:
            raise BrokerError(f"{where} closed the socket of a consumer without a word")
        self.filled += fresh
        return self._take(now_ns)

    def _take(self, now_ns: int) -> int:
        at, before = 0, self.received
        while at < self.filled:
            length = self.length_at(at)
            if length == 0 or at + length > self.filled:
                break
            body_at = self.body_at(at, length)
            if body_at < 0:  # no delivery
                at += length
                continue
            count = self.alike(at, length)
            self.received += count
            if self._stamped:
                every = -(-count // _LATENCIES_PER_BUFFER)
                for stamp_at in range(body_at, at + count * length, every * length):
                    self._latency.record(age_ns(self.buffer, stamp_at, now_ns), every)
            self._unsent += self.answers(at, length, count)
            at += count * length
        self.buffer[: self.filled - at] = self.buffer[at : self.filled]
        self.filled -= at
        if self._unsent:
            self.flush()
        return self.received - before

    # -- what a protocol overrides

    @abstractmethod
    def length_at(self, at: int) -> int:
        """Return the length of the frame that begins at ``at``; 0: that is still to come."""

    @abstractmethod
    def body_at(self, at: int, length: int) -> int:
        """Return where the body of a delivery of the expected size begins; -1: it is not a delivery."""

    @abstractmethod
    def alike(self, at: int, length: int) -> int:
        """Return how many deliveries of this length follow each other, this one included."""

    @abstractmethod
    def answers(self, at: int, length: int, count: int) -> bytes:
        """Return the acknowledgements that are due for these deliveries."""

    def last_answer(self) -> bytes:
        """Return the acknowledgement of everything that was received."""
        return b""

    def acknowledge_rest(self) -> None:
        """Acknowledge everything received, whatever the batch."""
        self._unsent += self.last_answer()
        self.flush()

    def flush(self) -> None:
        """Send acknowledgements as far as the socket takes them; sets `blocked` when it took less."""
        try:
            sent = self.sock.send(self._unsent) if self._unsent else 0
        except BlockingIOError:
            sent = 0
        except OSError as error:
            where = self.connection.address
            raise BrokerError(f"lost {where} while acknowledging: {error.strerror or error}") from None
        self._unsent = self._unsent[sent:]
        self.blocked = bool(self._unsent)


class Dialect(ABC):
    """How one protocol connects, publishes and subscribes. `scheme` and `port`: the usual ones."""

    scheme: str
    port: int

    @abstractmethod
    def open(self, address: Address, name: str) -> PerfConnection:
        """Return a connection that has logged in."""

    @abstractmethod
    def consumer(self, address: Address, work: Workload, index: int, latency: Histogram) -> FrameConsumer:
        """Return a consumer that has subscribed to its topic."""

    @abstractmethod
    def messages(self, work: Workload, index: int, body: bytes, count: int) -> list[bytes]:
        """Return messages of one length for the topic of publisher ``index``."""

    @abstractmethod
    def publisher(
        self, connection: PerfConnection, batch: Batch, work: Workload, index: int, latency: Histogram
    ) -> PerfPublisher:
        """Return publisher ``index``."""

    @abstractmethod
    def clean(self, address: Address, work: Workload) -> None:
        """Delete objects that outlast connections."""

    def prepare(self, address: Address, work: Workload) -> None:
        """Remove everything of an earlier run, and make the objects that consumers need."""
        self.clean(address, work)

    def copies(self, work: Workload, index: int) -> int:
        """Return how often a message of publisher ``index`` comes: each consumer of its topic has a copy."""
        return sum(each % work.queues == index % work.queues for each in range(work.consumers))


def check_workload(work: Workload) -> None:
    """Make sure that a workload asks for nothing that only AMQP 0-9-1 has.

    Raises:
        ValueError: it does.
    """
    amqp_only = {
        "--exchange": work.exchange is not ExchangeType.DEFAULT,
        "--bindings": work.bindings > 0,
        "--routing-keys": work.routing_keys > 0,
        "--queue-argument": bool(work.queue_arguments),
        "--expiration": work.expiration_ms > 0,
        "--priority-levels": work.priority_levels > 0,
        "--delay": work.delay_ms > 0,
    }
    wrong = [option for option, is_given in amqp_only.items() if is_given]
    if wrong:
        raise ValueError(f"{', '.join(wrong)}: only with --protocol amqp")


class ProtocolRun(Run):
    """One workload against one broker, in a dialect."""

    def __init__(
        self,
        dialect: Dialect,
        workload: Workload,
        address: Address,
        *,
        pid: int = 0,
        on_tick: Callable[[Totals, Totals], None] | None = None,
    ) -> None:
        check_workload(workload)
        super().__init__(workload, address, pid=pid, on_tick=on_tick)
        self._dialect = dialect

    def _open_control(self) -> PerfConnection:
        return self._dialect.open(self._address, f"{self.workload.prefix}-control")

    def _declare(self, control: PerfConnection) -> None:
        self._dialect.prepare(self._address, self.workload)

    def _delete(self) -> None:
        try:
            self._dialect.clean(self._address, self.workload)
        except BrokerError:
            pass  # the broker is gone, or the failure being reported already says why this cannot work

    def _connect(self) -> None:
        work, dialect = self.workload, self._dialect
        for index in range(work.consumers):
            consumer = dialect.consumer(self._address, work, index, self.delivery)
            self._connections.append(consumer.connection)
            self._consumers.append(consumer)
            self._consumer_by_fd[consumer.sock.fileno()] = consumer
        body = bytes(STAMP_BYTES) + bytes(index & 255 for index in range(max(0, work.size_bytes - STAMP_BYTES)))
        body = body[: work.size_bytes]
        for index in range(work.publishers):
            connection = dialect.open(self._address, f"{work.prefix}-publisher-{index}")
            self._connections.append(connection)
            (one,) = dialect.messages(work, index, body, 1)
            wanted = max(LEAST_BURST, max(SMALLEST_BATCH_BYTES, BATCH_BYTES // work.publishers) // len(one))
            messages = dialect.messages(work, index, body, max(wanted, work.confirms))
            batch = Batch(messages, stamp_at=messages[0].rindex(body) if work.stamped else -1)
            publisher = dialect.publisher(connection, batch, work, index, self.confirm)
            self._publishers.append(publisher)
            self._publisher_by_fd[connection.sock.fileno()] = publisher
            self._copies.append(cumulated([dialect.copies(work, index)], len(messages)))
        for connection in self._connections:
            connection.sock.setblocking(False)
            self._epoll.register(connection.sock.fileno(), select.EPOLLIN)
        self._per_round = sum(copies[-1] / (len(copies) - 1) for copies in self._copies) / len(self._copies)
