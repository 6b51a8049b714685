"""The definition of a case, and common preparations.

A case prepares an engine with n things and returns the act to be measured. `BOUNDED`: no turn grows with n. `TIDIED`:
one does by a few steps for each thing, as when the gaps in a list are closed. `LINEAR`: the turn grows with n, which
the bytes of the input pay for, or of which there cannot be many.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from engine_harness import Client, basic_consume, exchange_declare, publish_frames, queue_declare

from step_counts.meter import Meter
from warren.amqp import methods as m
from warren.amqp.field_table import encode_table
from warren.vhosts.metadata import VhostPut
from warren.vhosts.virtual_host import EVENT_EXCHANGE, VirtualHost

BOUNDED = "bounded"
TIDIED = "tidied"
LINEAR = "linear"
SIZE = 300
EMPTY = encode_table({})

Act = Callable[[], Any]
Prepare = Callable[[Meter, int], Act]


class Case(NamedTuple):
    """`method`: the method that a client sends, None: another input."""

    name: str
    method: type[Any] | None
    growth: str
    prepare: Prepare
    is_paced: bool = False  # the broker writes its effects, within its share of a batch


CASES: list[Case] = []


def case(method: type[Any] | None, growth: str) -> Callable[[Prepare], Prepare]:
    """Add the decorated function to `CASES`."""

    def add(prepare: Prepare) -> Prepare:
        CASES.append(Case(prepare.__name__, method, growth, prepare))
        return prepare

    return add


def left_behind(method: type[Any] | None, growth: str) -> Callable[[Prepare], Prepare]:
    """Add the decorated function to `CASES`, as one whose bytes are measured."""

    def add(prepare: Prepare) -> Prepare:
        CASES.append(Case(prepare.__name__, method, growth, prepare, is_paced=True))
        return prepare

    return add


def feed(client: Client, number: int, *calls: Any) -> None:
    """Send methods whose answers do not matter."""
    client.send(number, *calls)
    client.take_bytes()


def feed_each(client: Client, n: int, calls: Callable[[int], list[Any]]) -> None:
    """Send the methods of each number below n, in one piece: their turns are not measured."""
    feed(client, 1, *[call for at in range(n) for call in calls(at)])


def consuming(meter: Meter, n: int, **options: Any) -> Client:
    """Return a client with n consumers of queue q on channel 1."""
    client = meter.channel()
    client.declare("q")
    feed(client, 1, *[basic_consume("q", f"c{at}", **options) for at in range(n)])
    return client


def publishing(client: Client, n: int, queue: str = "q", **properties: Any) -> None:
    """Publish n messages."""
    client.feed(publish_frames("", queue, b"x", properties=properties) * n)
    client.harness.broker.log.force()
    client.harness.settle()


def owing(meter: Meter, n: int, arguments: dict[str, Any] | None = None, **properties: Any) -> Client:
    """Return a client with n unacknowledged messages of queue q, and no consumer."""
    client = meter.channel()
    client.declare("q", arguments=arguments, durable=bool(properties))
    publishing(client, n, **properties)
    feed(client, 1, *[m.BasicGet(0, "q", False) for _ in range(n)])
    assert meter.queue("q").unacked_count == n
    return client


def durable_fanout(meter: Meter, n: int) -> Client:
    """Return a client, and exchange x with n durable queues."""
    client = meter.channel()
    feed(client, 1, exchange_declare("x", "fanout"), *queues_bound_to_x(n, durable=True))
    return client


def queues_bound_to_x(n: int, *, durable: bool = False) -> list[Any]:
    """Return methods that declare n queues, and bind them to exchange x."""
    declared = [queue_declare(f"q{at}", durable=durable) for at in range(n)]
    return declared + [m.QueueBind(0, f"q{at}", "x", "", False, EMPTY) for at in range(n)]


def watched(meter: Meter) -> None:
    """Route all events to a queue."""
    client = meter.channel()
    client.declare("events")
    client.bind("events", EVENT_EXCHANGE, "#")


def another_vhost(meter: Meter) -> VirtualHost:
    """Return a vhost beside that of the events."""
    meter.broker.administer(VhostPut("v"))
    return meter.broker.vhosts["v"]
