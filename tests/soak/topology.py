"""The queues of a soak, its flows, and its publishers and consumers.

Each flow has a promise (`books.Promise`), routes for its publishers, and queues from which its messages are taken; all
of them are durable but `fleeting`.

    plain, single, keyed, urgent, later    published to and taken from
    fan-1, fan-2, fan-3                    by a fanout exchange: a classic, a quorum and a lazy queue
    deep                                   taken from in some periods only, so that it is long
    aged -> expired                        by its time to live
    work -> dead                           a quorum queue that gives up after failures; dead letters at least once
    once                                   everything is sent several times, and comes once
    tx-in -> tx-out                        by transactions, some of which are rolled back
    shovel-in -> shovel-out                by a shovel of the broker to itself
    drained                                by claims over HTTP
    fleeting                               transient
    events                                 a stream
    orders-0, orders-1, orders-2           a super stream with a consumer group
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from warren.amqp.field_table import encode_table
from warren.perf.client import Address, PerfConnection

from .books import Promise

KEYS = 40
PRIORITIES = 5
PARTITIONS = ("orders-0", "orders-1", "orders-2")
_STREAM: Mapping[str, object] = {"x-queue-type": "stream", "x-max-length-bytes": 8 << 20}


@dataclass(frozen=True)
class Queue:
    """A queue to be declared."""

    name: str
    arguments: Mapping[str, object] = field(default_factory=dict)
    durable: bool = True


QUEUES = (
    Queue("plain"),
    Queue("single", {"x-single-active-consumer": True}),
    Queue("keyed", {"x-key-shared": True}),
    Queue("urgent", {"x-max-priority": PRIORITIES}),
    Queue("later"),
    Queue("fan-1"),
    Queue("fan-2", {"x-queue-type": "quorum", "x-delivery-limit": -1}),
    Queue("fan-3", {"x-queue-mode": "lazy"}),
    Queue("deep", {"x-queue-mode": "lazy"}),
    Queue("aged", {"x-message-ttl": 300, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "expired"}),
    Queue("expired"),
    Queue(
        "work",
        {
            "x-queue-type": "quorum",
            "x-delivery-limit": 2,
            "x-overflow": "reject-publish",
            "x-dead-letter-strategy": "at-least-once",
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "dead",
        },
    ),
    Queue("dead"),
    Queue("once", {"x-message-deduplication": True, "x-cache-size": 20_000}),
    Queue("tx-in"),
    Queue("tx-out"),
    Queue("shovel-in"),
    Queue("shovel-out"),
    Queue("drained"),
    Queue("fleeting", durable=False),
    Queue("events", _STREAM),
)
BINDINGS = (
    ("soak.fan", "fan-1", ""),
    ("soak.fan", "fan-2", ""),
    ("soak.fan", "fan-3", ""),
    ("soak.keys", "keyed", "#"),
)
EXCHANGES = {"soak.fan": "fanout", "soak.keys": "topic"}
SHOVEL = {"src-uri": "amqp://", "src-queue": "shovel-in", "dest-uri": "amqp://", "dest-queue": "shovel-out"}
# Queues that are empty when everything has been taken; streams never are.
TAKEN = tuple(queue.name for queue in QUEUES if queue.name != "events")


@dataclass(frozen=True)
class Flow:
    """Messages of one kind. `per_s`: how many a second. `places` are as many as queues are reached."""

    promise: Promise
    exchange: str
    key: str
    places: tuple[str, ...]
    per_s: float


def _flow(
    name: str,
    per_s: float,
    *,
    key: str = "",
    exchange: str = "",
    places: tuple[str, ...] = (),
    ordered: tuple[str, ...] = (),
    serial: tuple[str, ...] = (),
    passing: bool = False,
    exact: bool = True,
    repeated: bool = False,
    durable: bool = True,
    lasting: bool = False,
) -> Flow:
    promise = Promise(
        name,
        frozenset(ordered),
        frozenset(serial),
        passing=passing,
        exact=exact,
        repeated=repeated,
        durable=durable,
        lasting=lasting,
    )
    return Flow(promise, exchange, key or name, places or (name,), per_s)


FAN = ("fan-1", "fan-2", "fan-3")
FLOWS = {
    flow.promise.name: flow
    for flow in (
        _flow("plain", 400, ordered=("plain",)),
        _flow("single", 100, serial=("single",)),
        _flow("keyed", 100, exchange="soak.keys", serial=("keyed",)),
        _flow("urgent", 100, ordered=("urgent",)),
        _flow("later", 60),
        _flow("fan", 60, exchange="soak.fan", places=FAN, ordered=FAN),
        _flow("deep", 200, ordered=("deep",), lasting=True),
        _flow("aged", 60, passing=True),
        _flow("work", 60, ordered=("work",), passing=True),
        _flow("once", 60, repeated=True),
        _flow("tx", 100, key="tx-in", passing=True),
        _flow("shovel", 60, key="shovel-in", exact=False),
        _flow("drained", 100),
        _flow("fleeting", 100, durable=False, ordered=("fleeting",)),
        _flow("events", 200),
        _flow("orders", 100, exchange="orders", exact=False),
    )
}
# The place of what is taken from a queue.
PLACE_OF = {
    "expired": "aged",
    "dead": "work",
    "tx-in": "tx",
    "tx-out": "tx",
    "shovel-out": "shovel",
    **dict.fromkeys(PARTITIONS, "orders"),
}


def declare(address: Address) -> None:
    """Declare everything, as far as it is not there. Raises BrokerError."""
    with PerfConnection.open(address, name="set up") as connection:
        for queue in QUEUES:
            connection.declare_queue(queue.name, durable=queue.durable, arguments=queue.arguments)
        for exchange, kind in EXCHANGES.items():
            connection.declare_exchange(exchange, kind, durable=True)
        for exchange, name, key in BINDINGS:
            connection.bind(exchange, [(name, key, {})])
        arguments = encode_table({"x-super-stream": len(PARTITIONS), "x-max-length-bytes": 8 << 20})
        connection.declare_exchange("orders", "x-super-stream", durable=True, arguments=arguments)
