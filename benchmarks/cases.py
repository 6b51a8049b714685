"""The matrix: what is asked of each broker, and what Warren has to reach.

A target on CPU is a fraction of RabbitMQ's broker CPU per message in the same run. Every flow must also be
faster than RabbitMQ's, and every latency case no slower at p50 and p99.
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
    """One load. ``arguments`` go to the load tool; ``cpu_at_most`` is the target fraction, None for none."""

    name: str
    title: str
    kind: Kind
    arguments: tuple[str, ...]
    cpu_at_most: float | None = None
    latency: str = "delivery_latency_us"


_SIZES: Final = (("16b", "16 B", 16, 1 / 28), ("1k", "1 KiB", 1024, None), ("64k", "64 KiB", 65536, 1 / 2))
_ACK: Final = ("--ack", "--prefetch", "1000", "--ack-batch", "100")
_MODES: Final = (
    ("auto", "auto-ack", ()),
    ("ack", "ack, prefetch 1000", _ACK),
    ("confirm", "ack + 2000 confirms in flight", (*_ACK, "--confirms", "2000")),
)

LOADS: Final = (
    *(
        Case(f"{key}-{mode}", f"{size}, {title}", Kind.FLOW, ("--size", str(octets), *arguments), target)
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

IDLE_CONNECTIONS: Final = 5000
EMPTY_QUEUES: Final = 10_000
DURABLE_QUEUES_AT_START: Final = 1000
DECLARED_QUEUES: Final = 10_000

IDLE_BYTES_AT_MOST: Final = 60_000_000
CONNECTION_BYTES_AT_MOST: Final = 12_000
QUEUE_BYTES_AT_MOST: Final = 2_000
START_S_AT_MOST: Final = 1.0
DECLARE_S_AT_MOST: Final = 15.0
LONGEST_WAIT_S_AT_MOST: Final = 1.0

STANDING_CASES: Final = ("memory", "startup", "declare-pipelined", "declare-one-by-one")
CASE_NAMES: Final = (*(case.name for case in LOADS), *STANDING_CASES)
