"""The later work of a method: letters, returns, replays, copies. Their bytes are measured as well as their steps.

Bodies are large, and the share of a batch is small: a turn may enter `OWN_BYTES_MAX` into the log, however many things
there are.
"""

from __future__ import annotations

from typing import Any

from engine_harness import basic_consume, publish_frames, queue_declare
from mqtt_harness import mqtt_client

from step_counts.cases.case import BOUNDED, EMPTY, LINEAR, TIDIED, Act, feed, feed_each, left_behind
from step_counts.meter import Meter, sending
from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.amqp.field_table import encode_table
from warren.amqp.properties import BasicProperties
from warren.mqtt.packets import packet, text
from warren.vhosts.metadata import PolicyPut
from warren.vhosts.retained import Retained

BODY = bytes(4000)
TO_LETTERS: dict[str, Any] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "letters"}


def filled(meter: Meter, n: int, **arguments: Any) -> Any:
    """Return a client, a queue of letters, and a queue with n large messages."""
    client = meter.channel()
    client.declare("letters", durable=True)
    client.declare("q", durable=True, arguments={name.replace("_", "-"): value for name, value in arguments.items()})
    client.feed(publish_frames("", "q", BODY, properties={"delivery_mode": 2}) * n)
    return client


def taken(meter: Meter, n: int, **arguments: Any) -> Any:
    """Return a client with n large messages that are unacknowledged."""
    client = filled(meter, n, **arguments)
    feed(client, 1, basic_consume("q", "c"))
    return client


QUORUM: dict[str, Any] = {"x_queue_type": "quorum"}
DYING: dict[str, Any] = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "letters"}


@left_behind(m.BasicPublish, LINEAR)  # in steps: each queue dead-letters what it is given
def letters_of_a_publish(meter: Meter, n: int) -> Act:
    client = meter.channel()
    client.declare("letters", durable=True)
    feed_each(
        client,
        n,
        lambda at: [
            queue_declare(f"q{at}", durable=True, arguments={**TO_LETTERS, "x-max-length": 0}),
            m.QueueBind(0, f"q{at}", "amq.fanout", "", False, EMPTY),
        ],
    )
    return lambda: client.feed(publish_frames("amq.fanout", "", BODY, properties={"delivery_mode": 2}))


@left_behind(m.ChannelClose, TIDIED)
def returns_of_a_quorum_queue(meter: Meter, n: int) -> Act:
    return sending(taken(meter, n, **QUORUM), 1, m.ChannelClose(200, "", 0, 0))


@left_behind(m.BasicNack, TIDIED)
def nack_of_large_messages(meter: Meter, n: int) -> Act:
    return sending(taken(meter, n, **DYING), 1, m.BasicNack(0, multiple=True, requeue=False))


@left_behind(m.BasicNack, LINEAR)
def nacks_of_large_messages(meter: Meter, n: int) -> Act:
    client = taken(meter, n, **QUORUM)
    return sending(client, 1, *[m.BasicNack(tag, multiple=False, requeue=True) for tag in range(1, n + 1)])


@left_behind(m.QueueBind, BOUNDED)
def bind_to_large_messages(meter: Meter, n: int) -> Act:
    client = meter.channel()
    client.declare_exchange("x", "x-recent-history", arguments={"x-recent-history-length": n})
    client.declare("q", durable=True)
    client.feed(publish_frames("x", "", BODY, properties={"delivery_mode": 2}) * n)
    return sending(client, 1, m.QueueBind(0, "q", "x", "", False, EMPTY))


@left_behind(None, TIDIED)
def policy_that_has_much_expire(meter: Meter, n: int) -> Act:
    filled(meter, n, **DYING)

    def act() -> None:
        meter.broker.administer(PolicyPut("/", "short", "^q$", "all", 0, '{"message-ttl": 1}'))
        meter.settle()
        meter.pass_time(1)

    return act


@left_behind(None, BOUNDED)
def delayed_messages_are_due(meter: Meter, n: int) -> Act:
    client = meter.channel()
    client.declare_exchange("later", "x-delayed-message", arguments={"x-delayed-type": "fanout"})
    client.declare("q", durable=True)
    client.bind("q", "later")
    properties = {"delivery_mode": 2, "headers": encode_table({"x-delay": 500})}
    client.feed(publish_frames("later", "", BODY, properties=properties) * n)
    return lambda: meter.pass_time(1)


@left_behind(None, BOUNDED)
def retained_messages_for_a_queue(meter: Meter, n: int) -> Act:
    retained = meter.vhost.retained()
    properties = BasicProperties()
    properties.delivery_mode = 2
    for at in range(n):
        retained.put(f"a/{at}", Retained("guest", meter.broker.now_ms(), 0, properties.encode(), BODY))
    client = mqtt_client(meter, clean=False)
    return lambda: client.peer.feed(packet(8, 2, b"\0\x01" + text("#") + b"\1"))


@left_behind(m.QueueUnbind, BOUNDED)
def changes_between_publishes(meter: Meter, n: int) -> Act:
    client = meter.channel()
    client.declare_exchange("x", "x-modulus-hash")
    client.declare("q")
    feed(client, 1, *[m.QueueBind(0, "q", "x", str(at), False, EMPTY) for at in range(n)])
    client.feed(publish_frames("x", "k", b""))
    return lambda: client.feed(_change(b"0") * 3)


@left_behind(m.QueueUnbind, BOUNDED)
def changes_of_many_queues_between_publishes(meter: Meter, n: int) -> Act:
    client = meter.channel()
    client.declare_exchange("x", "x-modulus-hash")
    feed_each(client, n, lambda at: [queue_declare(f"q{at}"), m.QueueBind(0, f"q{at}", "x", "0", False, EMPTY)])
    client.feed(publish_frames("x", "k", b""))
    return lambda: client.feed(_change(b"0", queue="q0") * 3)


def _change(key: bytes, queue: str = "q") -> bytes:
    unbind = method_frame(1, m.QueueUnbind(0, queue, "x", key.decode(), EMPTY))
    bind = method_frame(1, m.QueueBind(0, queue, "x", key.decode(), True, EMPTY))
    return unbind + publish_frames("x", "k", b"") + bind + publish_frames("x", "k", b"")


@left_behind(None, BOUNDED)
def session_with_subscriptions_returns(meter: Meter, n: int) -> Act:
    client = mqtt_client(meter, clean=False)
    for at in range(n):
        client.subscribe(str(at), qos=1)
    client.hang_up()
    return lambda: mqtt_client(meter, clean=False)
