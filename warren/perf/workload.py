"""The task for the broker, the topology it needs, and the loop that drives publishers and consumers.

Owns one epoll set, all connections of a run, and the measured window: warm-up, then `duration_s` seconds (or
a number of messages), then the rest is received and counted.

1. Publisher ``i`` and consumer ``i`` have a connection of their own and belong to queue ``i % queues``.
2. The loop never waits while a publisher may send: it turns with timeout 0. It never waits longer than 20 ms.
3. At the end every message published is accounted for: confirmed if confirms are on, received as often as the
   exchange had to copy it. Messages that are missing after 10 s without progress, plus the requested delay, are
   reported as missing, never ignored.
4. Queues and exchange of a run are declared fresh (an old one of the same name is deleted) and deleted at the
   end, also after a failure, unless `keep` asks to leave them.
"""

from __future__ import annotations

import gc
import select
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from typing import Final, Protocol

from warren.amqp_client import frames
from warren.perf import process_stats, topic_patterns
from warren.perf.choices import ExchangeType
from warren.perf.client import CHANNEL, Address, BrokerError, PerfConnection, open_many, product_of
from warren.perf.flow import LEAST_BURST, SEND_BYTES, STAMP_BYTES, Batch, Consumer, PerfPublisher
from warren.perf.meter import Histogram, Totals

_LONGEST_WAIT_S: Final = 0.02
_PATIENCE_NS: Final = 10_000_000_000
BATCH_BYTES: Final = 2 * SEND_BYTES
SMALLEST_BATCH_BYTES: Final = 16384
_PATTERN_KEYS: Final = 1000
_TICK_NS: Final = 1_000_000_000
_LATE_NS: Final = 5_000_000


@dataclass(frozen=True)
class Workload:
    """One load, completely described: the same values give the same frames."""

    publishers: int = 1
    consumers: int = 1
    queues: int = 1
    size_bytes: int = 16
    prefetch: int = 0
    auto_ack: bool = True
    ack_batch: int = 1
    confirms: int = 0
    persistent: bool = False
    durable: bool = False
    exchange: ExchangeType = ExchangeType.DEFAULT
    bindings: int = 0
    routing_keys: int = 0
    rate: float = 0.0
    backlog: int = 0
    warmup_s: float = 1.0
    duration_s: float = 10.0
    messages: int = 0
    prefix: str = "perf"
    keep: bool = False
    seed: int = 1
    queue_arguments: Mapping[str, object] = field(default_factory=dict)
    expiration_ms: int = 0
    priority_levels: int = 0
    delay_ms: int = 0

    def __post_init__(self) -> None:
        """Check the combination. Raises ValueError if it means nothing."""
        if self.publishers < 1 or self.consumers < 0:
            raise ValueError("needs at least one publisher, and a number of consumers from 0")
        if self.queues < 1:
            raise ValueError("at least one queue")
        if self.bindings and self.exchange is not ExchangeType.TOPIC:
            raise ValueError("--bindings belongs to --exchange topic")
        if self.routing_keys and not self.bindings and self.exchange is not ExchangeType.FANOUT:
            raise ValueError("--routing-keys belongs to --bindings and to --exchange fanout")
        if 0 < self.prefetch < self.ack_batch and not self.auto_ack:
            raise ValueError(f"a prefetch of {self.prefetch} never fills an ack batch of {self.ack_batch}")
        if not 0 <= self.priority_levels <= 256:
            raise ValueError("the maximum is 256 priorities")
        if self.expiration_ms < 0 or self.delay_ms < 0:
            raise ValueError("no negative times")

    def queue_name(self, index: int) -> str:
        """Return the name of queue ``index``."""
        return f"{self.prefix}-{index}"

    @property
    def exchange_name(self) -> str:
        """The exchange published to; empty for the default one."""
        return "" if self.exchange is ExchangeType.DEFAULT else f"{self.prefix}-x"

    @property
    def patience_ns(self) -> int:
        """How long a silence may last before missing messages are reported."""
        return _PATIENCE_NS + self.delay_ms * 1_000_000

    @property
    def stamped(self) -> bool:
        """Whether bodies are long enough for a time stamp."""
        return self.size_bytes >= STAMP_BYTES


@dataclass
class Result:
    """The results of one run.

    Rates are per second of the measured window, CPU is the broker's, user plus system.
    """

    workload: Workload
    broker: str
    window: Totals
    delivery: Histogram
    confirm: Histogram
    copies_per_message: float
    missing: int = 0
    nacked: int = 0
    returned: int = 0
    tool_cpu_share: float = 0.0
    process: process_stats.ProcessSample | None = None
    cpu_us: int = 0

    @property
    def seconds(self) -> float:
        """Length of the measured window."""
        return self.window.at_ns / 1e9

    def as_dict(self) -> dict[str, object]:
        """Return everything as plain values, for JSON."""
        seconds = self.seconds or 1.0
        found: dict[str, object] = {
            "mode": "flow",
            "workload": asdict(self.workload),
            "broker": self.broker,
            "seconds": round(self.seconds, 3),
            "published_per_s": round(self.window.published / seconds, 1),
            "confirmed_per_s": round(self.window.confirmed / seconds, 1),
            "received_per_s": round(self.window.received / seconds, 1),
            "copies_per_message": self.copies_per_message,
            "missing": self.missing,
            "nacked": self.nacked,
            "returned": self.returned,
            "tool_cpu_share": round(self.tool_cpu_share, 3),
            "delivery_latency_us": self.delivery.summary_us(),
            "confirm_latency_us": self.confirm.summary_us(),
        }
        if self.workload.bindings:
            found["seed"] = self.workload.seed
        if self.process is not None:
            found["broker_cpu_share"] = round(self.cpu_us / 1e6 / seconds, 3)
            found["broker_cpu_us_per_published"] = round(self.cpu_us / max(1, self.window.published), 3)
            found["broker_cpu_us_per_received"] = round(self.cpu_us / max(1, self.window.received), 3)
            found["broker_rss_bytes"] = self.process.rss_bytes
        return found


class Consuming(Protocol):
    """One consuming connection, of whatever protocol."""

    blocked: bool

    def receive(self, now_ns: int) -> int:
        """Receive once, count, acknowledge. Returns the number of deliveries."""

    def flush(self) -> None:
        """Send acknowledgements as far as the socket takes them; sets `blocked` when it took less."""

    def acknowledge_rest(self) -> None:
        """Acknowledge everything received, whatever the batch."""


@dataclass
class _Route:
    """The messages of one publisher, and how many copies of each of them consumers get."""

    routing_keys: list[str]
    headers: dict[str, object] | None = None
    copies: list[int] = field(default_factory=list)


class Run:
    """One workload against one broker."""

    def __init__(
        self,
        workload: Workload,
        address: Address,
        *,
        pid: int = 0,
        on_tick: Callable[[Totals, Totals], None] | None = None,
    ) -> None:
        """Prepare a run. ``pid`` is the broker's root process (0: unknown).

        ``on_tick`` gets the totals of each full second and those before it.
        """
        self.workload = workload
        self.delivery = Histogram()
        self.confirm = Histogram()
        self._address = address
        self._pid = pid
        self._on_tick = on_tick
        self._epoll = select.epoll()
        self._connections: list[PerfConnection] = []
        self._publishers: list[PerfPublisher] = []
        self._consumers: list[Consuming] = []
        self._publisher_by_fd: dict[int, PerfPublisher] = {}
        self._consumer_by_fd: dict[int, Consuming] = {}
        self._copies: list[list[int]] = []  # per publisher: deliveries after each message of its batch, cumulative
        self._per_round = 1.0
        self._received = 0
        self._started = 0
        self._start_ns = 0
        self._turn_of = 0  # the publisher whose turn it is
        self._stopping = False
        self._self_paced = False  # publishers send on their own when a confirm makes room
        self._quantum = 1  # with a backlog bound: not fewer at once, or a full system would crawl in single messages
        if workload.backlog and not workload.rate:
            self._quantum = max(1, min(workload.backlog // 4, SEND_BYTES // (workload.size_bytes + 64)))

    def stop(self) -> None:
        """End the measured window at the next turn; safe in a signal handler."""
        self._stopping = True

    def run(self) -> Result:
        """Set up, drive, account, clean up. Raises BrokerError."""
        with self._open_control() as control:
            try:
                self._declare(control)
                self._connect()
                gc.collect()
                gc.disable()
                try:
                    result = self._drive(control)
                finally:
                    gc.enable()
                for connection in self._connections:
                    connection.close()
                return result
            finally:
                for connection in self._connections:
                    connection.abort()
                self._epoll.close()
                if not self.workload.keep:
                    self._delete()

    # -- topology

    def _open_control(self) -> PerfConnection:
        return PerfConnection.open(self._address)

    def _declare(self, control: PerfConnection) -> None:
        work = self.workload
        queues = [work.queue_name(index) for index in range(work.queues)]
        control.delete_queues(queues)
        control.declare_queues(queues, durable=work.durable, arguments=work.queue_arguments)
        if work.exchange is ExchangeType.DEFAULT:
            return
        control.delete_exchange(work.exchange_name)
        control.declare_exchange(work.exchange_name, work.exchange.value, durable=work.durable)
        control.bind(work.exchange_name, self._bindings(queues))

    def _bindings(self, queues: list[str]) -> list[tuple[str, str, dict[str, object]]]:
        work = self.workload
        if work.exchange is ExchangeType.HEADERS:
            return [(queue, "", {"x-match": "all", "queue": queue}) for queue in queues]
        if work.bindings:
            keys = self._patterns().binding_keys
            return [(queues[index % work.queues], key, {}) for index, key in enumerate(keys)]
        return [(queue, queue, {}) for queue in queues]

    def _patterns(self) -> topic_patterns.TopicPatterns:
        work = self.workload
        keys = work.routing_keys or _PATTERN_KEYS
        return topic_patterns.TopicPatterns(bindings=work.bindings, keys=keys, seed=work.seed)

    def _delete(self) -> None:
        """Remove queues and exchange through a connection of its own: the one of the run may be closed by an
        error.
        """
        work = self.workload
        try:
            with PerfConnection.open(self._address) as cleaner:
                cleaner.delete_queues(work.queue_name(index) for index in range(work.queues))
                if work.exchange_name:
                    cleaner.delete_exchange(work.exchange_name)
        except BrokerError:
            pass  # the broker is gone, or the failure being reported already says why this cannot work

    def _routes(self) -> list[_Route]:
        """Return the route of each publisher; copies count only queues that somebody consumes."""
        work = self.workload
        consumed = {index % work.queues for index in range(work.consumers)}
        if work.bindings:
            patterns = self._patterns()
            hits = topic_patterns.queues_hit(patterns.routing_keys, patterns.binding_keys, work.queues)
            copies = [sum(queue in consumed for queue in queues) for queues in hits]
            return [_Route(patterns.routing_keys, None, copies)] * work.publishers
        if work.exchange is ExchangeType.FANOUT:
            keys = [f"key-{number:08}" for number in range(work.routing_keys)] or [work.queue_name(0)]
            return [_Route(keys, None, [len(consumed)] * len(keys))] * work.publishers
        routes = []
        for index in range(work.publishers):
            queue = work.queue_name(index % work.queues)
            headers: dict[str, object] | None = {"queue": queue} if work.exchange is ExchangeType.HEADERS else None
            routes.append(_Route([queue], headers, [int(index % work.queues in consumed)]))
        return routes

    # -- connections

    def _connect(self) -> None:
        work = self.workload
        opened = self._connections = open_many(self._address, work.consumers + work.publishers)
        for index, connection in enumerate(opened[: work.consumers]):
            if not work.auto_ack and work.prefetch:
                connection.qos(work.prefetch)
            connection.consume(work.queue_name(index % work.queues), "c", no_ack=work.auto_ack)
            consumer = Consumer(
                connection,
                ack_batch=0 if work.auto_ack else work.ack_batch,
                body_bytes=work.size_bytes,
                stamped=work.stamped,
                latency=self.delivery,
            )
            self._consumers.append(consumer)
            self._consumer_by_fd[connection.sock.fileno()] = consumer
        for connection, route in zip(opened[work.consumers :], self._routes(), strict=True):
            if work.confirms:
                connection.confirm_select()
            messages = self._batch_messages(route, connection.frame_max_bytes)
            publisher = PerfPublisher(
                connection,
                Batch(messages, stamp_at=frames.body_offset(messages[0]) if work.stamped else -1),
                window=work.confirms,
                confirm_latency=self.confirm,
            )
            self._publishers.append(publisher)
            self._publisher_by_fd[connection.sock.fileno()] = publisher
            self._copies.append(cumulated(route.copies, len(messages)))
        for connection in opened:
            connection.sock.setblocking(False)
            self._epoll.register(connection.sock.fileno(), select.EPOLLIN)
        if self._copies:
            self._per_round = sum(copies[-1] / (len(copies) - 1) for copies in self._copies) / len(self._copies)

    def _batch_messages(self, route: _Route, frame_max_bytes: int) -> list[bytes]:
        work = self.workload
        body = bytes(STAMP_BYTES) + bytes(index & 255 for index in range(max(0, work.size_bytes - STAMP_BYTES)))
        encoded = [
            frames.publish(
                CHANNEL,
                work.exchange_name,
                key,
                body[: work.size_bytes],
                frame_max_bytes=frame_max_bytes,
                properties=properties,
            )
            for properties in self._properties(route)
            for key in route.routing_keys
        ]
        wanted = max(LEAST_BURST, max(SMALLEST_BATCH_BYTES, BATCH_BYTES // work.publishers) // len(encoded[0]))
        if work.confirms:
            wanted = min(wanted, work.confirms)
        return encoded * max(1, wanted // len(encoded))

    def _properties(self, route: _Route) -> list[bytes]:
        """Return the properties of messages that follow each other: one for each priority."""
        work = self.workload
        headers = route.headers
        if work.delay_ms:
            headers = {**(headers or {}), "x-delay": work.delay_ms}
        return [
            frames.encode_properties(
                headers=headers,
                persistent=work.persistent,
                priority=priority,
                expiration=str(work.expiration_ms) if work.expiration_ms else None,
            )
            for priority in range(work.priority_levels) or [None]
        ]

    # -- the loop

    def _drive(self, control: PerfConnection) -> Result:
        work = self.workload
        self._start_ns = time.monotonic_ns()
        begin, broker_before, own_before = self._totals(), self._broker(), time.process_time_ns()
        if not work.messages:
            self._turn_until(self._start_ns + int(work.warmup_s * 1e9))
            self.delivery.clear()
            self.confirm.clear()
            begin, broker_before, own_before = self._totals(), self._broker(), time.process_time_ns()
            self._turn_until(begin.at_ns + int(work.duration_s * 1e9))
        else:
            self._turn_until(self._start_ns + (1 << 62))
            self._settle()
        window = self._totals().since(begin)
        own_ns = time.process_time_ns() - own_before
        broker_after = self._broker()
        if not work.messages:
            self._settle()
        return Result(
            workload=work,
            broker=product_of(control.server_properties),
            window=window,
            delivery=self.delivery,
            confirm=self.confirm,
            copies_per_message=self._per_round,
            missing=self._missing(),
            nacked=sum(publisher.nacked for publisher in self._publishers),
            returned=sum(publisher.returned for publisher in self._publishers),
            tool_cpu_share=own_ns / max(1, window.at_ns),
            process=broker_after,
            cpu_us=broker_after.cpu_us - broker_before.cpu_us if broker_after and broker_before else 0,
        )

    def _totals(self) -> Totals:
        return Totals(
            time.monotonic_ns(),
            sum(publisher.published for publisher in self._publishers),
            sum(publisher.confirmed for publisher in self._publishers),
            self._received,
        )

    def _broker(self) -> process_stats.ProcessSample | None:
        return process_stats.sample(self._pid) if self._pid else None

    def _turn_until(self, stop_ns: int) -> None:
        """Publish and receive until the time comes, or until the asked number of messages is published."""
        last = self._totals()
        now_ns = last.at_ns
        next_tick_ns = now_ns + _TICK_NS
        messages = self.workload.messages
        while now_ns < stop_ns and not 0 < messages <= self._started and not self._stopping:
            sending = self._publish(now_ns)
            self._turn(0.0 if sending else self._wait_s(now_ns, stop_ns))
            now_ns = time.monotonic_ns()
            if now_ns >= next_tick_ns:
                next_tick_ns += _TICK_NS
                if self._on_tick is not None:
                    totals = self._totals()
                    self._on_tick(last, totals)
                    last = totals

    def _publish(self, now_ns: int) -> bool:
        """Send what the run as a whole allows. Returns whether a publisher could continue immediately.

        Without a bound for the run publishers with confirms pace themselves: they send when a confirm
        arrives.
        """
        if self._self_paced:
            return False
        allowed = self._allowed(now_ns)
        if allowed < self._quantum and not 0 < self.workload.messages - self._started <= allowed:
            return False
        stamp_ns = self._due_ns(now_ns)
        share = max(self._quantum, -(-allowed // len(self._publishers)))
        could_go_on = False
        for _ in self._publishers:
            publisher = self._publishers[self._turn_of]
            self._turn_of = (self._turn_of + 1) % len(self._publishers)
            if publisher.blocked:
                continue
            begun = self._send(publisher, min(allowed, share), stamp_ns)
            could_go_on = could_go_on or begun > 0
            allowed -= begun
            if allowed <= 0:
                break
        work = self.workload
        self._self_paced = bool(work.confirms and not (work.rate or work.messages or work.backlog))
        return could_go_on

    def _send(self, publisher: PerfPublisher, messages: int, stamp_ns: int) -> int:
        may = min(messages, publisher.allowance())
        if may <= 0:
            return 0
        begun = publisher.publish(may, stamp_ns)
        self._started += begun
        if publisher.blocked:
            self._epoll.modify(publisher.sock.fileno(), select.EPOLLIN | select.EPOLLOUT)
        return begun

    def _allowed(self, now_ns: int) -> int:
        """Return how many messages the run may begin now: by rate, backlog and total, the smallest applies."""
        work = self.workload
        allowed = 1 << 40
        if work.messages:
            allowed = work.messages - self._started
        if work.rate:
            allowed = min(allowed, int((now_ns - self._start_ns) * work.rate / 1e9) - self._started)
        if work.backlog and self._per_round:
            allowed = min(allowed, int((work.backlog + self._received) / self._per_round) - self._started)
        return allowed

    def _due_ns(self, now_ns: int) -> int:
        """Return the time to stamp: now, or when a fixed rate wanted the message if that was long ago.

        Otherwise a broker that stops reading would hide its pause: the messages it held up would look young.
        """
        if not self.workload.rate:
            return now_ns
        due_ns = self._start_ns + int(self._started / self.workload.rate * 1e9)
        return due_ns if now_ns - due_ns > _LATE_NS else now_ns

    def _wait_s(self, now_ns: int, stop_ns: int) -> float:
        wait_s = min(_LONGEST_WAIT_S, (stop_ns - now_ns) / 1e9)
        if self.workload.rate:
            wait_s = min(wait_s, (self._start_ns - now_ns) / 1e9 + (self._started + 1) / self.workload.rate)
        return max(0.0, wait_s)

    def _turn(self, wait_s: float) -> None:
        """Wait for sockets and serve each ready one once."""
        for fd, ready in self._epoll.poll(wait_s):
            now_ns = time.monotonic_ns()
            consumer = self._consumer_by_fd.get(fd)
            if consumer is not None:
                self._serve_consumer(consumer, fd, now_ns)
            else:
                self._serve_publisher(self._publisher_by_fd[fd], fd, ready, now_ns)

    def _serve_consumer(self, consumer: Consuming, fd: int, now_ns: int) -> None:
        """Receive, unless acknowledgements wait for room in the socket: then those go first and nothing is
        received.
        """
        was_blocked = consumer.blocked
        if was_blocked:
            consumer.flush()
        else:
            self._received += consumer.receive(now_ns)
        if consumer.blocked != was_blocked:
            self._epoll.modify(fd, select.EPOLLOUT if consumer.blocked else select.EPOLLIN)

    def _serve_publisher(self, publisher: PerfPublisher, fd: int, ready: int, now_ns: int) -> None:
        if ready & ~select.EPOLLOUT:
            publisher.read_confirms(now_ns)
        if ready & select.EPOLLOUT:
            publisher.blocked = False
            publisher.finish()
            if not publisher.blocked:
                self._epoll.modify(fd, select.EPOLLIN)
        if self._self_paced and not publisher.blocked:
            self._send(publisher, SEND_BYTES, now_ns)

    def _settle(self) -> None:
        """Publish nothing more; receive and confirm what is under way, as long as there is progress (3)."""
        self._self_paced = False
        progress_ns = time.monotonic_ns()
        before: Totals | None = None
        while True:
            unfinished = [publisher for publisher in self._publishers if not publisher.finish()]
            if not unfinished and not self._missing():
                for consumer in self._consumers:
                    consumer.acknowledge_rest()
                return
            self._turn(_LONGEST_WAIT_S)
            now = self._totals()
            if before is None or now.since(before) != Totals(now.at_ns - before.at_ns):
                progress_ns = now.at_ns
            before = now
            if now.at_ns - progress_ns > self.workload.patience_ns:
                return

    def _missing(self) -> int:
        """Return deliveries still due, plus confirms still due."""
        due = sum(
            _copies_after(copies, publisher.published)
            for publisher, copies in zip(self._publishers, self._copies, strict=True)
        )
        missing = max(0, due - self._received)
        if self.workload.confirms:
            missing += sum(publisher.published - publisher.confirmed for publisher in self._publishers)
        return missing


def cumulated(copies: list[int], messages: int) -> list[int]:
    """Return deliveries due after 0, 1, ... ``messages`` messages of a batch that repeats ``copies``."""
    return list(accumulate((copies[index % len(copies)] for index in range(messages)), initial=0))


def _copies_after(copies: list[int], published: int) -> int:
    """Return deliveries due after ``published`` messages, the batch being sent round after round."""
    rounds, rest = divmod(published, len(copies) - 1)
    return rounds * copies[-1] + copies[rest]
