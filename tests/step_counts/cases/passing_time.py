"""The work of n objects when their time is over."""

from __future__ import annotations

from typing import Any

from engine_harness import exchange_declare, publish_frames, queue_declare

from step_counts.cases.case import BOUNDED, TIDIED, Act, case, durable_fanout, feed, publishing, queues_bound_to_x
from step_counts.meter import Meter
from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.amqp.field_table import encode_table


@case(None, BOUNDED)
def expiry_of_what_is_dead_lettered_to_queues(meter: Meter, n: int) -> Act:
    client = durable_fanout(meter, 30)
    client.declare("q", durable=True, arguments={"x-dead-letter-exchange": "x", "x-message-ttl": 1000})
    publishing(client, n, delivery_mode=2)

    def expire() -> None:
        meter.broker.keep_time(int(meter.broker.log.now_ms) + 2000)

    return expire


def expiring(meter: Meter, n: int, **properties: Any) -> None:
    """Make n messages expire in 1 s, into a queue of dead letters."""
    client = meter.channel()
    client.declare("dead")
    ttl = {} if properties else {"x-message-ttl": 1000}
    client.declare("q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", **ttl})
    publishing(client, n, **properties)


@case(None, BOUNDED)
def expiry_of_messages(meter: Meter, n: int) -> Act:
    expiring(meter, n)
    return lambda: meter.pass_time(2)


@case(None, BOUNDED)
def expiry_of_messages_with_a_time_of_their_own(meter: Meter, n: int) -> Act:
    expiring(meter, n, expiration="1000")
    return lambda: meter.pass_time(2)


@case(None, BOUNDED)
def release_of_delayed_messages_to_queues(meter: Meter, n: int) -> Act:
    client = meter.channel()
    feed(client, 1, exchange_declare("x", "x-delayed-message", arguments={"x-delayed-type": "fanout"}))
    feed(client, 1, *queues_bound_to_x(30))
    client.feed(publish_frames("x", "k", b"x", properties={"headers": encode_table({"x-delay": 1000})}) * n)
    return lambda: meter.broker.keep_time(int(meter.broker.log.now_ms) + 2000)


@case(None, TIDIED)
def release_of_a_delayed_message_to_queues(meter: Meter, n: int) -> Act:
    client = meter.channel()
    feed(client, 1, exchange_declare("x", "x-delayed-message", arguments={"x-delayed-type": "fanout"}))
    feed(client, 1, *queues_bound_to_x(n))
    client.feed(publish_frames("x", "k", b"x", properties={"headers": encode_table({"x-delay": 1000})}))
    return lambda: meter.broker.keep_time(int(meter.broker.log.now_ms) + 2000)


@case(None, BOUNDED)
def expiry_of_queues(meter: Meter, n: int) -> Act:
    client = meter.channel()
    feed(client, 1, *[queue_declare(f"q{at}", arguments={"x-expires": 1000}) for at in range(n)])
    return lambda: meter.pass_time(2)


@case(m.BasicGet, BOUNDED)
def get_from_behind_what_has_expired(meter: Meter, n: int) -> Act:
    expiring(meter, n)
    meter.broker.log.now_ms += 2000
    client = meter.channel()
    client.connection.feed(method_frame(1, m.BasicGet(0, "q", True)))
    return lambda: meter.pass_time(2)


@case(None, BOUNDED)
def visibility_timeouts(meter: Meter, n: int) -> Act:
    client = meter.channel()
    client.declare("q", arguments={"x-visibility-timeout": 1000})
    publishing(client, n)
    feed(client, 1, *[m.BasicGet(0, "q", False) for _ in range(n)])
    return lambda: meter.pass_time(2)
