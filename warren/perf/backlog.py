"""Numbered messages in long queues: put there, taken out again in order, or passed through.

Message ``i`` goes to queue ``i % queues`` and is message ``i // queues`` of it; its first 8 body octets say so. So
a drain knows the next message of every queue, also in another process and after restarts of the broker.

  fill     publishes and leaves everything in the queues, which are declared fresh
  drain    receives the messages of a fill, and deletes the queues
  through  both at once in fresh queues, never with more than a short backlog: the comparison for a drain

1. One publishing connection with confirms; a fill ends when the broker has confirmed every message.
2. One consuming connection per queue, which acknowledges. A message that is missing, twice, out of order or in
   another queue than its own is an error: it is never only counted.
3. Rates are given for each tenth of the messages: by confirms in a fill, by deliveries in the others.
4. Queues are named by numbers of equal width, so that the messages to all of them have one length.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Final

from warren.amqp_client import frames
from warren.amqp_client.blocking import REPLY_TIMEOUT_S
from warren.perf import process_stats
from warren.perf.choices import Mode
from warren.perf.client import (
    CHANNEL,
    Address,
    BrokerError,
    PerfConnection,
    open_many,
    product_of,
)
from warren.perf.flow import SEND_BYTES, STAMP_BYTES, Consumer, NumberedBatch, PerfPublisher, number_of
from warren.perf.meter import Histogram, Totals

_SHORT_BACKLOG: Final = 10_000
_TENTHS: Final = 10
_WAIT_S: Final = 0.02
_TICK_NS: Final = 1_000_000_000
_PATIENCE_NS: Final = 60_000_000_000


@dataclass(frozen=True)
class Backlog:
    """How many messages of which kind in how many queues: the same values find the same messages again."""

    messages: int
    queues: int = 1
    size_bytes: int = 100
    confirms: int = 5000
    prefetch: int = 1000
    ack_batch: int = 100
    persistent: bool = False
    durable: bool = False
    prefix: str = "perf"

    def __post_init__(self) -> None:
        """Check the combination. Raises ValueError if it means nothing."""
        if self.messages < self.queues:
            raise ValueError(f"{self.messages} messages leave some of {self.queues} queues empty")
        if self.size_bytes < STAMP_BYTES:
            raise ValueError(f"a numbered body needs {STAMP_BYTES} bytes")
        if 0 < self.prefetch < self.ack_batch:
            raise ValueError(f"a prefetch of {self.prefetch} never fills an ack batch of {self.ack_batch}")

    def queue_name(self, index: int) -> str:
        """Return the name of queue ``index``."""
        return f"{self.prefix}-{index:0{len(str(self.queues - 1))}}"

    @property
    def queue_names(self) -> list[str]:
        """Names of all queues."""
        return [self.queue_name(index) for index in range(self.queues)]


@dataclass
class Passage:
    """The results of one fill, drain or through. ``ends_ns`` are the times at which each tenth was complete."""

    mode: Mode
    backlog: Backlog
    broker: str
    window: Totals
    ends_ns: list[int]
    start_ns: int
    confirm: Histogram
    rss_most_bytes: int = 0
    rss_last_bytes: int = 0
    cpu_us: int = 0

    def rates_per_s(self) -> list[float]:
        """Return the rate of each tenth of the messages."""
        starts_ns = [self.start_ns, *self.ends_ns]
        share = self.backlog.messages / _TENTHS
        return [
            round(share / max(1, end - start) * 1e9, 1) for start, end in zip(starts_ns, self.ends_ns, strict=False)
        ]

    def as_dict(self) -> dict[str, object]:
        """Return everything as plain values, for JSON."""
        seconds = self.window.at_ns / 1e9 or 1.0
        done = self.window.confirmed if self.mode is Mode.FILL else self.window.received
        found: dict[str, object] = {
            "mode": self.mode.value,
            "workload": asdict(self.backlog),
            "broker": self.broker,
            "seconds": round(seconds, 3),
            "messages_per_s": round(done / seconds, 1),
            "tenths_per_s": self.rates_per_s(),
        }
        if self.confirm.samples:
            found["confirm_latency_us"] = self.confirm.summary_us()
        if self.rss_last_bytes:
            found["broker_cpu_us_per_message"] = round(self.cpu_us / max(1, done), 3)
            found["broker_rss_most_bytes"] = self.rss_most_bytes
            found["broker_rss_bytes"] = self.rss_last_bytes
        return found


class Run:
    """One fill, drain or through against one broker."""

    def __init__(
        self,
        mode: Mode,
        backlog: Backlog,
        address: Address,
        *,
        pid: int = 0,
        on_tick: Callable[[Totals, Totals], None] | None = None,
    ) -> None:
        """Prepare a run. ``pid`` is the broker's root process (0: unknown).

        ``on_tick`` gets the totals of each full second and those before it. Raises ValueError for publishing
        without confirms.
        """
        if mode is not Mode.DRAIN and not backlog.confirms:
            raise ValueError("numbered messages are published with confirms")
        self._mode = mode
        self._backlog = backlog
        self._address = address
        self._pid = pid
        self._on_tick = on_tick
        self._confirm = Histogram()
        self._epoll = select.epoll()
        self._publisher: PerfPublisher | None = None
        self._consumers: dict[int, Consumer] = {}
        self._received = 0
        self._begun = 0
        self._ends_ns: list[int] = []
        self._samples: list[process_stats.ProcessSample] = []
        burst = max(1, SEND_BYTES // (backlog.size_bytes + 64))
        self._quantum = min(burst, backlog.confirms, _SHORT_BACKLOG // 4)

    def run(self) -> Passage:
        """Set up, drive, check, clean up. Raises BrokerError; the queues are then left as they are."""
        work = self._backlog
        with PerfConnection.open(self._address) as control:
            if self._mode is not Mode.DRAIN:
                control.delete_queues(work.queue_names)
                control.declare_queues(work.queue_names, durable=work.durable)
            opened = open_many(self._address, self._count_of_connections())
            try:
                self._connect(opened)
                passage = self._drive(control)
                for connection in opened:
                    connection.close()
            finally:
                for connection in opened:
                    connection.abort()
                self._epoll.close()
            if self._mode is not Mode.FILL:
                self._delete(control)
        return passage

    def _count_of_connections(self) -> int:
        return (self._mode is not Mode.DRAIN) + (self._backlog.queues if self._mode is not Mode.FILL else 0)

    def _connect(self, opened: list[PerfConnection]) -> None:
        work = self._backlog
        rest = list(opened)
        if self._mode is not Mode.DRAIN:
            connection = rest.pop()
            connection.confirm_select()
            messages = self._batch_messages(connection.frame_max_bytes)
            batch = NumberedBatch(messages, body_at=frames.body_offset(messages[0]), queues=work.queues)
            self._publisher = PerfPublisher(connection, batch, window=work.confirms, confirm_latency=self._confirm)
        for index, connection in enumerate(rest):
            if work.prefetch:
                connection.qos(work.prefetch)
            connection.consume(work.queue_name(index), "c", no_ack=False)
            self._consumers[connection.sock.fileno()] = Consumer(
                connection,
                ack_batch=work.ack_batch,
                body_bytes=work.size_bytes,
                stamped=False,
                latency=Histogram(),
                first_number=number_of(index, 0),
            )
        for connection in opened:
            connection.sock.setblocking(False)
            self._epoll.register(connection.sock.fileno(), select.EPOLLIN)

    def _batch_messages(self, frame_max_bytes: int) -> list[bytes]:
        """Return whole rounds of the queues, about two sends of them at least."""
        work = self._backlog
        body = bytes(STAMP_BYTES) + bytes(index & 255 for index in range(work.size_bytes - STAMP_BYTES))
        properties = frames.encode_properties(persistent=work.persistent)
        encoded = [
            frames.publish(CHANNEL, "", queue, body, frame_max_bytes=frame_max_bytes, properties=properties)
            for queue in work.queue_names
        ]
        return encoded * -(-2 * SEND_BYTES // (len(encoded[0]) * work.queues))

    # -- the loop

    def _drive(self, control: PerfConnection) -> Passage:
        begin = before = self._totals()
        progress_ns = next_tick_ns = begin.at_ns
        self._received = sum(consumer.take_leftover(begin.at_ns) for consumer in self._consumers.values())
        while not self._is_complete():
            now = self._totals()
            self._note_tenths(now)
            if now.at_ns >= next_tick_ns:
                next_tick_ns += _TICK_NS
                self._sample()
                if self._on_tick is not None and now.at_ns > before.at_ns:
                    self._on_tick(before, now)
                if now.since(before) != Totals(now.at_ns - before.at_ns):
                    progress_ns = now.at_ns
                before = now
            if now.at_ns - progress_ns > _PATIENCE_NS:
                raise BrokerError(f"{self._address} stands still: {self._missing()}")
            sending = self._publish(now.at_ns)
            self._turn(0.0 if sending else _WAIT_S)
        end = self._totals()
        self._note_tenths(end)
        self._sample()
        for consumer in self._consumers.values():
            consumer.sock.settimeout(REPLY_TIMEOUT_S)
            consumer.acknowledge_rest()
            while consumer.blocked:
                consumer.flush()
        return Passage(
            mode=self._mode,
            backlog=self._backlog,
            broker=product_of(control.server_properties),
            window=end.since(begin),
            ends_ns=self._ends_ns,
            start_ns=begin.at_ns,
            confirm=self._confirm,
            rss_most_bytes=max((sample.rss_bytes for sample in self._samples), default=0),
            rss_last_bytes=self._samples[-1].rss_bytes if self._samples else 0,
            cpu_us=self._samples[-1].cpu_us - self._samples[0].cpu_us if self._samples else 0,
        )

    def _totals(self) -> Totals:
        published = confirmed = 0
        if self._publisher is not None:
            published, confirmed = self._publisher.published, self._publisher.confirmed
        return Totals(time.monotonic_ns(), published, confirmed, self._received)

    def _sample(self) -> None:
        if self._pid:
            self._samples.append(process_stats.sample(self._pid))

    def _is_complete(self) -> bool:
        """Tell whether every message is confirmed and received, as far as this run has to do with that."""
        messages = self._backlog.messages
        if self._publisher is not None and self._publisher.nacked:
            raise BrokerError(f"{self._address} refused {self._publisher.nacked} messages")
        if self._received > messages:
            raise BrokerError(f"{self._address} delivered {self._received} messages of {messages}")
        confirmed = self._publisher is None or self._publisher.confirmed == messages
        return confirmed and (not self._consumers or self._received == messages)

    def _missing(self) -> str:
        totals = self._totals()
        return (
            f"published {totals.published}, confirmed {totals.confirmed}, received {totals.received} "
            f"of {self._backlog.messages}"
        )

    def _note_tenths(self, now: Totals) -> None:
        done = now.received if self._consumers else now.confirmed
        while len(self._ends_ns) < _TENTHS and done * _TENTHS >= self._backlog.messages * (len(self._ends_ns) + 1):
            self._ends_ns.append(now.at_ns)

    def _publish(self, now_ns: int) -> bool:
        """Publish what the window and, with consumers, the short backlog allow. Returns whether more could go."""
        publisher = self._publisher
        if publisher is None or publisher.blocked:
            return False
        left = self._backlog.messages - self._begun
        allowed = min(left, publisher.allowance())
        if self._consumers:
            allowed = min(allowed, self._received + _SHORT_BACKLOG - self._begun)
        if allowed < min(self._quantum, left) or not left:
            return False
        self._begun += publisher.publish(allowed, now_ns)
        if publisher.blocked:
            self._epoll.modify(publisher.sock.fileno(), select.EPOLLIN | select.EPOLLOUT)
        return not publisher.blocked

    def _turn(self, wait_s: float) -> None:
        """Wait for sockets and serve each ready one once."""
        for fd, ready in self._epoll.poll(wait_s):
            now_ns = time.monotonic_ns()
            consumer = self._consumers.get(fd)
            if consumer is not None:
                self._serve_consumer(consumer, fd, now_ns)
                continue
            publisher = self._publisher
            assert publisher is not None
            if ready & ~select.EPOLLOUT:
                publisher.read_confirms(now_ns)
            if ready & select.EPOLLOUT:
                publisher.blocked = False
                publisher.finish()
                if not publisher.blocked:
                    self._epoll.modify(fd, select.EPOLLIN)

    def _serve_consumer(self, consumer: Consumer, fd: int, now_ns: int) -> None:
        was_blocked = consumer.blocked
        if was_blocked:
            consumer.flush()
        else:
            self._received += consumer.receive(now_ns)
        if consumer.blocked != was_blocked:
            self._epoll.modify(fd, select.EPOLLOUT if consumer.blocked else select.EPOLLIN)

    def _delete(self, control: PerfConnection) -> None:
        """Delete the queues. Raises BrokerError when one of them was not empty."""
        for queue in self._backlog.queue_names:
            left = control.delete_queue(queue)
            if left:
                raise BrokerError(f"{self._address} had {left} messages too many in {queue}")
