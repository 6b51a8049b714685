"""The matrix: what is asked of each broker, and what Warren has to reach.

A target on CPU is a fraction of RabbitMQ's broker CPU per message in the same run. Every flow must also be
faster than RabbitMQ's, where nothing else is said, and every latency case no slower at p50 and p99.

Persistent messages go to durable queues. They are consumed with acks or not at all: a broker may hand a message
to a consumer that never acknowledges without writing it down.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


class Kind(Enum):
    """Which figures of a result matter."""

    FLOW = "flow"
    LATENCY = "latency"


@dataclass(frozen=True)
class Case:
    """One load. ``arguments`` go to the load tool; ``cpu_at_most`` is the target fraction, None for none.

    ``speed_at_least`` is the target ratio of throughput. ``counted`` says what a message done is: one received or
    one confirmed. ``synced_window`` is the number of messages in flight when the disk's limit is enough as well;
    ``relayed_bytes`` the size of a message beside which passing so many bytes on is measured by itself.
    """

    name: str
    title: str
    kind: Kind
    arguments: tuple[str, ...]
    cpu_at_most: float | None = None
    latency: str = "delivery_latency_us"
    speed_at_least: float = 1.0
    counted: str = "received"
    synced_window: int = 0
    relayed_bytes: int = 0

    @property
    def durable(self) -> bool:
        """Whether it is about what is on disk."""
        return "--persistent" in self.arguments


# From here on what a broker takes is mostly what the system takes of it for receiving and sending the bytes.
RELAYED_AT_LEAST: Final = 64 << 10

DURABLE_ONE: Final = "durable-confirm"
DURABLE_MANY: Final = "durable-queues"
DURABLE_SHARED: Final = "durable-queue"

_SIZES: Final = (("16b", "16 B", 16, 1 / 28), ("1k", "1 KiB", 1024, None), ("64k", "64 KiB", 65536, 1 / 2))
_ACK: Final = ("--ack", "--prefetch", "1000", "--ack-batch", "100")
_PERSISTENT: Final = ("--persistent", "--durable")
_HUNDRED_PAIRS: Final = (
    *("--publishers", "100", "--consumers", "100", "--size", "1024", *_ACK, "--confirms", "20", *_PERSISTENT),
)
_MODES: Final = (
    ("auto", "auto-ack", ()),
    ("ack", "ack, prefetch 1000", _ACK),
    ("confirm", "ack + 2000 confirms in flight", (*_ACK, "--confirms", "2000")),
)

LOADS: Final = (
    *(
        Case(
            f"{key}-{mode}",
            f"{size}, {title}",
            Kind.FLOW,
            ("--size", str(octets), *arguments),
            target,
            relayed_bytes=octets if octets >= RELAYED_AT_LEAST else 0,
        )
        for key, size, octets, target in _SIZES
        for mode, title, arguments in _MODES
    ),
    Case(
        "fanout",
        "fan-out 1→10, 16 B, auto-ack",
        Kind.FLOW,
        ("--exchange", "fanout", "--queues", "10", "--consumers", "10"),
        1 / 25,
    ),
    Case(
        "topic",
        "topic exchange, 1,000 mixed bindings on 10 queues, 1,000 routing keys, 16 B, auto-ack",
        Kind.FLOW,
        ("--exchange", "topic", "--bindings", "1000", "--queues", "10", "--consumers", "10"),
        1 / 40,
    ),
    Case(
        "queues",
        "100 queues, a publisher and a consumer each, 16 B, auto-ack",
        Kind.FLOW,
        ("--queues", "100", "--publishers", "100", "--consumers", "100"),
        1 / 40,
    ),
    Case(
        "connections",
        "500 connections, one confirmed publish in flight each, 16 B, one auto-ack consumer",
        Kind.FLOW,
        ("--publishers", "500", "--confirms", "1", "--backlog", "0"),
        1 / 6,
        latency="confirm_latency_us",
    ),
    Case(
        DURABLE_ONE,
        "1 KiB, ack + 2000 confirms in flight",
        Kind.FLOW,
        ("--size", "1024", *_ACK, "--confirms", "2000", *_PERSISTENT),
        1 / 18,
        speed_at_least=8,
        synced_window=2000,
    ),
    Case(
        "durable-ack",
        "1 KiB, ack, prefetch 1000, no confirms",
        Kind.FLOW,
        ("--size", "1024", *_ACK, *_PERSISTENT),
        1 / 18,
    ),
    Case(
        DURABLE_MANY,
        "1 KiB, 100 queues, a publisher (20 confirms in flight) and a consumer (ack) each",
        Kind.FLOW,
        ("--queues", "100", *_HUNDRED_PAIRS),
    ),
    Case(
        DURABLE_SHARED,
        "1 KiB, one queue, with as many publishers and consumers",
        Kind.FLOW,
        _HUNDRED_PAIRS,
    ),
    Case(
        "durable-connections",
        "16 B, 500 connections, one confirmed publish in flight each, no consumer",
        Kind.FLOW,
        ("--publishers", "500", "--consumers", "0", "--confirms", "1", "--backlog", "0", *_PERSISTENT),
        latency="confirm_latency_us",
        speed_at_least=6,
        counted="confirmed",
    ),
    Case(
        "durable-connection",
        "16 B, one connection, one confirmed publish in flight, no consumer",
        Kind.FLOW,
        ("--size", "16", "--consumers", "0", "--confirms", "1", "--backlog", "0", *_PERSISTENT),
        latency="confirm_latency_us",
        speed_at_least=2,
        counted="confirmed",
        synced_window=1,
    ),
    Case("rpc", "request → reply, one at a time", Kind.LATENCY, ("rpc",), latency="round_trip_latency_us"),
    Case(
        "confirm",
        "publish → confirm, one at a time",
        Kind.LATENCY,
        ("--confirms", "1"),
        latency="confirm_latency_us",
    ),
    Case("steady", "publish → delivery at 5,000 messages/s", Kind.LATENCY, ("--rate", "5000")),
)


@dataclass(frozen=True)
class RuleCase:
    """A load on a queue with a rule. ``at_most``: its broker CPU per message in that of the case ``against``."""

    name: str
    title: str
    arguments: tuple[str, ...]
    against: str
    at_most: float | None = None


PLAIN: Final = "plain"
PLAIN_KEYS: Final = "plain-keys"
# Prefetch is smaller than the backlog: messages wait, and so meet the rules of those that wait. The backlog has a
# limit: else whatever costs more has more waiting, and pays for memory that no cache holds as well.
_WAITING: Final = ("--size", "16", *_ACK, "--backlog", "20000")
_KEYS: Final = (
    *("--exchange", "fanout", "--routing-keys", "100", "--consumers", "4"),
    *_WAITING,
)

RULES: Final = (
    RuleCase(PLAIN, "no rule: one publisher, one consumer", _WAITING, PLAIN),
    RuleCase("ttl", "x-message-ttl 60000", (*_WAITING, "--queue-argument", "x-message-ttl=60000"), PLAIN, 1.2),
    RuleCase(
        "max-length",
        "x-max-length 1000000, not reached",
        (*_WAITING, "--queue-argument", "x-max-length=1000000"),
        PLAIN,
        1.2,
    ),
    RuleCase(
        "priorities",
        "x-max-priority 10, messages of all levels in turn",
        (*_WAITING, "--queue-argument", "x-max-priority=10", "--priority-levels", "10"),
        PLAIN,
        1.6,
    ),
    RuleCase("delay", "every message with an x-delay of 10 ms", (*_WAITING, "--delay", "10"), PLAIN, 1.6),
    RuleCase(PLAIN_KEYS, "no rule: 100 routing keys, four consumers", _KEYS, PLAIN),
    RuleCase(
        "key-shared",
        "x-key-shared: 100 routing keys, four consumers",
        (*_KEYS, "--queue-argument", "x-key-shared=true"),
        PLAIN_KEYS,
        1.5,
    ),
)

IDLE_CONNECTIONS: Final = 5000
EMPTY_QUEUES: Final = 10_000
DURABLE_QUEUES_AT_START: Final = 1000
DECLARED_QUEUES: Final = 10_000

IDLE_BYTES_AT_MOST: Final = 70_000_000
CONNECTION_BYTES_AT_MOST: Final = 12_000
QUEUE_BYTES_AT_MOST: Final = 2_000
START_S_AT_MOST: Final = 1.0
DECLARE_S_AT_MOST: Final = 15.0
LONGEST_WAIT_S_AT_MOST: Final = 1.0

MANY_QUEUES_AT_LEAST: Final = 0.8

FANOUT_QUEUES: Final = 10
FANOUT_BODY_BYTES: Final = 10_240
FANOUT_MESSAGES: Final = 10_000
FANOUT_LOAD: Final = (
    *("--exchange", "fanout", "--queues", str(FANOUT_QUEUES), "--consumers", "0", "--keep", *_PERSISTENT),
    *("--size", str(FANOUT_BODY_BYTES), "--messages", str(FANOUT_MESSAGES), "--confirms", "2000"),
)
BODIES_ON_DISK_AT_LEAST: Final = 1.0
BODIES_ON_DISK_AT_MOST: Final = 1.2

STANDING_CASES: Final = ("durable-fanout", "memory", "startup", "declare-pipelined", "declare-one-by-one")
CASE_NAMES: Final = (*(case.name for case in LOADS), *STANDING_CASES)
