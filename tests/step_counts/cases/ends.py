"""Connections and channels that end, with n things that they have."""

from __future__ import annotations

from engine_harness import basic_consume, queue_declare

from step_counts.cases.case import BOUNDED, LINEAR, TIDIED, Act, case, consuming, feed, owing, watched
from step_counts.meter import Meter, sending
from warren.amqp import methods as m
from warren.amqp.codec import method_frame


@case(None, TIDIED)
def lost_with_consumers(meter: Meter, n: int) -> Act:
    client = consuming(meter, n)
    return client.hang_up


@case(None, TIDIED)
def lost_with_consumers_that_are_watched(meter: Meter, n: int) -> Act:
    client = consuming(meter, n)
    watched(meter)
    return client.hang_up


@case(m.ConnectionClose, TIDIED)
def connection_close_with_consumers(meter: Meter, n: int) -> Act:
    return sending(consuming(meter, n), 0, m.ConnectionClose(200, "", 0, 0))


@case(m.ChannelClose, TIDIED)
def channel_close_with_consumers(meter: Meter, n: int) -> Act:
    return sending(consuming(meter, n), 1, m.ChannelClose(200, "", 0, 0))


@case(m.ChannelClose, TIDIED)
def channel_close_with_consumers_of_one_active(meter: Meter, n: int) -> Act:
    client = meter.channel()
    client.declare("q", arguments={"x-single-active-consumer": True})
    feed(client, 1, *[basic_consume("q", f"c{at}") for at in range(n)])
    return sending(client, 1, m.ChannelClose(200, "", 0, 0))


@case(m.ChannelClose, TIDIED)
def channel_close_with_consumers_of_many_priorities(meter: Meter, n: int) -> Act:
    client = meter.channel()
    client.declare("q")
    feed(client, 1, *[basic_consume("q", f"c{at}", arguments={"x-priority": at}) for at in range(n)])
    return sending(client, 1, m.ChannelClose(200, "", 0, 0))


@case(m.ChannelClose, TIDIED)
def channel_close_with_consumers_of_a_stream(meter: Meter, n: int) -> Act:
    client = meter.channel()
    client.declare("q", arguments={"x-queue-type": "stream"}, durable=True)
    feed(client, 1, m.BasicQos(0, 10, False), *[basic_consume("q", f"c{at}") for at in range(n)])
    return sending(client, 1, m.ChannelClose(200, "", 0, 0))


@case(m.ChannelClose, BOUNDED)
def channel_close_with_unacked(meter: Meter, n: int) -> Act:
    return sending(owing(meter, n), 1, m.ChannelClose(200, "", 0, 0))


@case(m.ChannelClose, BOUNDED)
def channel_close_with_unacked_of_a_quorum_queue(meter: Meter, n: int) -> Act:
    client = owing(meter, n, {"x-queue-type": "quorum"}, delivery_mode=2)
    return sending(client, 1, m.ChannelClose(200, "", 0, 0))


@case(m.ConnectionClose, BOUNDED)
def connection_close_with_exclusive_queues(meter: Meter, n: int) -> Act:
    client = meter.channel()
    feed(client, 1, *[queue_declare(f"q{at}", exclusive=True) for at in range(n)])
    return sending(client, 0, m.ConnectionClose(200, "", 0, 0))


@case(m.ConnectionClose, LINEAR)
def connection_close_with_channels(meter: Meter, n: int) -> Act:
    client = meter.client()
    client.feed(b"".join(method_frame(1 + at, m.ChannelOpen("")) for at in range(n)))
    return sending(client, 0, m.ConnectionClose(200, "", 0, 0))
