"""Delays, to the millisecond: x-delay and x-deliver-at on any message, and delayed message exchanges."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from durable_harness import DurableHarness
from engine_harness import Client, Harness, Received, Refusal, bodies, body_of, exchange_declare, publish_frames

from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.amqp.field_table import Table, Timestamp, decode_table, encode_table, with_length
from warren.queues.held_messages import DEAD_LETTERED, DROPPED, PARKED_UNTIL, RELEASED, HeldMessage, HeldMessages
from warren.queues.lanes import DELAYED, PARKED
from warren.vhosts.metadata import VhostDelete, VhostPut

from .rules import rule

DEAD: Table = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
TEN_YEARS_MS = 315_360_000_000
HOUR_MS = 3_600_000


def table(headers: Table | bytes) -> bytes:
    return with_length(headers) if isinstance(headers, bytes) else encode_table(headers)


def publish(
    client: Client, body: bytes, headers: Table | bytes, key: str = "q", exchange: str = "", **more: Any
) -> None:
    client.publish(exchange, key, body, headers=table(headers), **more)


def ready(harness: Harness, name: str = "q") -> int:
    return int(harness.queue(name).ready_count)


def held(harness: Harness, name: str = "q", lane: int = DELAYED) -> HeldMessages:
    found = harness.queue(name).held(lane)
    assert found is not None
    return found


def held_by(harness: Harness, exchange: str = "x") -> HeldMessages:
    return harness.vhost.held[exchange]


def headers_of(received: Received | None) -> Table:
    assert received is not None
    assert received.content is not None
    headers = received.content.properties.headers
    return {} if headers is None else decode_table(headers)


def comes_after(harness: Harness, milliseconds: int, name: str = "q", count: int = 1) -> bool:
    """Advance the time by `milliseconds`; tell whether `count` messages come with the last one."""
    harness.pass_time((milliseconds - 1) / 1000)
    before = ready(harness, name)
    harness.pass_time(0.001)
    return (before, ready(harness, name)) == (0, count)


def listed(harness: Harness, lane: HeldMessages, most: int = 100) -> list[HeldMessage]:
    told: list[list[HeldMessage]] = []
    lane.list_earliest(most, told.append)
    harness.settle()
    (found,) = told
    return found


def delayed_exchange(
    client: Client, name: str = "x", kind: str = "direct", *, durable: bool = False, arguments: Table | None = None
) -> None:
    table: Table = {"x-delayed-type": kind, **(arguments or {})}
    declared = client.call(1, exchange_declare(name, "x-delayed-message", durable=durable, arguments=table))
    assert declared == m.ExchangeDeclareOk()


@pytest.fixture
def durable() -> DurableHarness:
    return DurableHarness()


# --- delayed in the queue ---------------------------------------------------------------------------------------------


@rule("warren.delay", "`x-delay`: a message is not delivered before so many ms have passed; consumers get it then.")
def test_x_delay(harness: Harness, client: Client) -> None:
    client.declare("q")
    client.consume("q")
    publish(client, b"later", {"x-delay": 1000})
    publish(client, b"now", {})
    assert client.bodies() == [b"now"]
    harness.pass_time(0.999)
    assert client.bodies() == []
    harness.pass_time(0.001)
    (received,) = client.deliveries()
    assert isinstance(received.method, m.BasicDeliver)
    assert (body_of(received), received.method.redelivered) == (b"later", False)


@rule("warren.delay", "`x-deliver-at`: a message is not delivered before that time, in ms or as a timestamp.")
@pytest.mark.parametrize("kind", ["ms", "timestamp"])
def test_x_deliver_at(harness: Harness, client: Client, kind: str) -> None:
    client.declare("q")
    at_s = int(harness.broker.log.now_ms) // 1000 + 60
    publish(client, b"m", {"x-deliver-at": at_s * 1000 if kind == "ms" else Timestamp(at_s)})
    assert comes_after(harness, at_s * 1000 - int(harness.broker.log.now_ms))


@rule("warren.delay", "Of both headers the later time counts; a time that has come is no delay.")
def test_the_later_of_both(harness: Harness, client: Client) -> None:
    client.declare("q")
    now_ms = int(harness.broker.log.now_ms)
    publish(client, b"m", {"x-delay": 50, "x-deliver-at": now_ms + 80})
    assert comes_after(harness, 80)
    publish(client, b"m", {"x-delay": 0, "x-deliver-at": now_ms})
    publish(client, b"m", {"x-delay": -5})
    assert ready(harness) == 3


@rule("warren.delay", "A number of any type is a delay, a float or a text of digits too; anything else is none.")
@pytest.mark.parametrize("value", [b"b\x64", b"u\x00\x64", b"l" + bytes(7) + b"\x64", b"S\x00\x00\x00\x03100"])
def test_delays_of_all_types(harness: Harness, client: Client, value: bytes) -> None:
    client.declare("q")
    publish(client, b"m", b"\x07x-delay" + value)
    assert comes_after(harness, 100)
    assert headers_of(client.get("q")) == {"x-delay": -100}
    publish(client, b"m", b"\x07x-delayd" + struct.pack(">d", 100.9))
    assert comes_after(harness, 100)


@rule("warren.delay", "A value that is no number does not delay, and does not close the channel.")
@pytest.mark.parametrize("value", ["soon", True, None, [100], {"ms": 100}, b"100", Timestamp(2_000_000_000)])
def test_what_is_no_delay(harness: Harness, client: Client, value: object) -> None:
    client.declare("q")
    publish(client, b"m", {"x-delay": value})
    assert ready(harness) == 1
    assert headers_of(client.get("q")) == {"x-delay": value}


@rule("warren.delay", "A delay of more than ten years is refused, 406.")
def test_the_longest_delay(harness: Harness, client: Client) -> None:
    client.declare("q")
    publish(client, b"m", {"x-delay": TEN_YEARS_MS})
    assert held(harness).count == 1
    publish(client, b"m", {"x-delay": TEN_YEARS_MS + 1})
    assert client.refusal() == Refusal(
        "channel",
        406,
        f"PRECONDITION_FAILED - delay of {TEN_YEARS_MS + 1} ms is more than {TEN_YEARS_MS} ms",
        m.BasicPublish,
    )
    harness.pass_time(TEN_YEARS_MS / 1000)
    assert ready(harness) == 1


@rule("warren.delay", "A delayed message is delivered with a negative `x-delay`: published again it is not delayed.")
def test_the_header_of_a_delayed_message(harness: Harness, client: Client) -> None:
    client.declare("q")
    publish(client, b"m", {"a": 1, "x-delay": 100, "z": "last"}, delivery_mode=2, correlation_id="c")
    harness.pass_time(0.1)
    got = client.get("q")
    assert headers_of(got) == {"a": 1, "x-delay": -100, "z": "last"}
    assert got is not None
    assert got.content is not None
    assert (got.content.properties.correlation_id, got.content.properties.delivery_mode) == ("c", 2)
    publish(client, b"m", headers_of(got))
    assert ready(harness) == 1


@rule("warren.delay", "Messages leave in the order of their times, those of the same time as they were published.")
def test_order(harness: Harness, client: Client) -> None:
    client.declare("q", durable=True)
    for number, delay_ms in enumerate((30, 10, 30, 20, 10, 30)):
        publish(client, b"%d" % number, {"x-delay": delay_ms}, delivery_mode=1 + number % 2)
    harness.pass_time(0.03)
    assert bodies(client) == [b"1", b"4", b"3", b"0", b"2", b"5"]


@rule("warren.delay", "What is held is neither ready nor counted by a declare; a purge leaves it, a delete drops it.")
def test_purge_and_delete(harness: Harness, client: Client) -> None:
    client.declare("q")
    publish(client, b"held", {"x-delay": 100})
    publish(client, b"ready", {})
    assert client.declare("q").message_count == 1
    assert client.call(1, m.QueuePurge(0, "q", False)) == m.QueuePurgeOk(1)
    assert held(harness).count == 1
    harness.pass_time(0.1)
    assert bodies(client) == [b"held"]
    publish(client, b"held", {"x-delay": 100})
    assert client.call(1, m.QueueDelete(0, "q", if_unused=False, if_empty=True, no_wait=False)) == m.QueueDeleteOk(0)
    client.declare("q")
    harness.pass_time(1)
    assert bodies(client) == []


@rule("warren.delay", "Each queue that a message is routed to holds it for itself.")
def test_fanout(harness: Harness, client: Client) -> None:
    for name in ("q", "r"):
        client.declare(name, durable=True)
        client.bind(name, "amq.fanout")
    publish(client, b"m", {"x-delay": 1000}, exchange="amq.fanout", delivery_mode=2)
    held(harness).take([0], RELEASED)
    harness.settle()
    assert (ready(harness), ready(harness, "r")) == (1, 0)
    harness.broker.log.close_if_due(lingered=True)
    harness.settle()
    assert comes_after(harness, 1000, "r")
    assert bodies(client) == bodies(client, "r") == [b"m"]


@rule("warren.delay", "A confirm of a delayed message comes when it is held, and on disk if it is to be.")
@pytest.mark.parametrize("exchange", ["", "x"])
def test_confirms(harness: Harness, client: Client, exchange: str) -> None:
    client.declare("q", durable=True)
    delayed_exchange(client, durable=True)
    assert client.call(1, m.ConfirmSelect(False)) == m.ConfirmSelectOk()
    harness.store.hold = True
    publish(client, b"m", {"x-delay": 1000}, exchange=exchange, delivery_mode=2)
    assert client.take() == []
    harness.store.hold = False
    harness.settle()
    assert client.expect(m.BasicAck) == m.BasicAck(1, False)
    harness.store.hold = True
    publish(client, b"m", {"x-delay": 1000}, exchange=exchange, delivery_mode=1)
    assert client.expect(m.BasicAck) == m.BasicAck(2, False)


@rule("warren.delay", "In a transaction the delay begins with the publish, and nothing is held before the commit.")
@pytest.mark.parametrize("exchange", ["", "x"])
def test_transactions(harness: Harness, client: Client, exchange: str) -> None:
    client.declare("q")
    delayed_exchange(client)
    client.bind("q", "x", "q")
    assert client.call(1, m.TxSelect()) == m.TxSelectOk()
    publish(client, b"rolled back", {"x-delay": 100}, exchange=exchange)
    assert client.call(1, m.TxRollback()) == m.TxRollbackOk()
    publish(client, b"m", {"x-delay": 100}, exchange=exchange)
    publish(client, b"overdue", {"x-delay": 20}, exchange=exchange)
    harness.pass_time(0.04)
    assert held_by(harness).count == 0
    assert harness.queue("q").held(DELAYED) is None
    assert client.call(1, m.TxCommit()) == m.TxCommitOk()
    harness.pass_time(0.059)
    assert bodies(client) == [b"overdue"]
    harness.pass_time(0.001)
    assert bodies(client) == [b"m"]


@rule("warren.delay", "A time to live begins when the delay is over: the message's own, and that of the queue.")
@pytest.mark.parametrize("ttl", ["message", "queue"])
def test_time_to_live(harness: Harness, client: Client, ttl: str) -> None:
    client.declare("q", arguments={"x-message-ttl": 50} if ttl == "queue" else {})
    publish(client, b"m", {"x-delay": 1000}, **({"expiration": "50"} if ttl == "message" else {}))
    assert comes_after(harness, 1000)
    harness.pass_time(0.049)
    assert ready(harness) == 1
    harness.pass_time(0.001)
    assert ready(harness) == 0
    assert held(harness).count == 0


@rule("warren.delay", "Limits of length count what is ready; what is released is never refused.")
def test_length_limits(harness: Harness, client: Client) -> None:
    client.declare("q", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    client.declare("r", arguments={"x-max-length": 1})
    for name in ("q", "r"):
        publish(client, b"ready", {}, name)
        publish(client, b"one", {"x-delay": 10}, name)
        publish(client, b"two", {"x-delay": 20}, name)
    assert held(harness).count == held(harness, "r").count == 2
    harness.pass_time(0.02)
    assert bodies(client) == [b"ready", b"one", b"two"]
    assert bodies(client, "r") == [b"two"]


@rule("warren.delay", "A released message has its place in a priority queue by its priority.")
def test_priorities(harness: Harness, client: Client) -> None:
    client.declare("q", arguments={"x-max-priority": 5})
    publish(client, b"low", {"x-delay": 10}, priority=1)
    publish(client, b"high", {"x-delay": 20}, priority=4)
    publish(client, b"middle", {}, priority=2)
    harness.pass_time(0.02)
    assert bodies(client) == [b"high", b"middle", b"low"]


@rule("warren.delay", "A message that was delayed and dies is dead-lettered like any other, and not delayed again.")
def test_dead_letters(harness: Harness, client: Client) -> None:
    client.declare("q", arguments=DEAD)
    client.declare("dead")
    publish(client, b"m", {"x-delay": 100})
    harness.pass_time(0.1)
    got = client.get("q")
    assert got is not None
    client.send(1, m.BasicReject(got.method.delivery_tag, False))
    assert ready(harness, "dead") == 1
    headers = headers_of(client.get("dead"))
    assert headers["x-delay"] == -100
    assert headers["x-first-death-reason"] == "rejected"


@rule("warren.delay", "A retry has the delay of the retry: that of the publish is over.")
def test_retries(harness: Harness, client: Client) -> None:
    client.declare("q", arguments={"x-delayed-retry-type": "all", "x-delayed-retry-min": 30, "x-delayed-retry-max": 30})
    client.consume("q")
    publish(client, b"m", {"x-delay": 1000})
    harness.pass_time(1)
    for _ in range(3):
        (received,) = client.deliveries()
        assert isinstance(received.method, m.BasicDeliver)
        assert headers_of(received)["x-delay"] == -1000
        client.send(1, m.BasicReject(received.method.delivery_tag, True))
        harness.pass_time(0.029)
        assert client.bodies() == []
        harness.pass_time(0.001)


@rule("warren.delay", "Replies to a direct reply-to may be delayed.")
def test_direct_replies(harness: Harness, client: Client, other: Client) -> None:
    client.declare("q")
    client.consume("amq.rabbitmq.reply-to", no_ack=True)
    client.publish("", "q", b"request", reply_to="amq.rabbitmq.reply-to")
    request = other.get("q", no_ack=True)
    assert request is not None
    assert request.content is not None
    address = request.content.properties.reply_to
    assert address is not None
    publish(other, b"reply", {"x-delay": 10}, address)
    assert client.bodies() == []
    harness.pass_time(0.01)
    assert client.bodies() == [b"reply"]


@rule("warren.delay", "A queue bound to a recent-history exchange holds what it is given until its time.")
def test_recent_history(harness: Harness, client: Client) -> None:
    client.declare_exchange("h", "x-recent-history")
    publish(client, b"later", {"x-delay": 100}, exchange="h")
    publish(client, b"now", {}, exchange="h")
    client.declare("q")
    client.bind("q", "h")
    assert bodies(client) == [b"now"]
    assert comes_after(harness, 100)
    assert headers_of(client.get("q")) == {"x-delay": -100}
    client.declare("late")
    client.bind("late", "h")
    assert sorted(bodies(client, "late")) == [b"later", b"now"]


@rule("warren.delay", "A copy to CC and BCC is delayed like the message.")
@pytest.mark.parametrize("exchange", ["", "x"])
@pytest.mark.parametrize("on_disk", [True, False])
def test_copies(exchange: str, on_disk: bool) -> None:
    harness = DurableHarness()
    client = harness.channel()
    delayed_exchange(client, durable=True)
    for name in ("q", "copy", "blind"):
        client.declare(name, durable=True)
        client.bind(name, "x", name)
    headers: Table = {"x-delay": 100, "CC": ["copy"], "BCC": ["blind"]}
    publish(client, b"m", headers, exchange=exchange, delivery_mode=2)
    if on_disk:
        harness.write()
        harness = harness.restart(clean=True)
        client = harness.channel()
    for name in ("q", "copy", "blind"):
        assert ready(harness, name) == 0
    harness.pass_time(0.1)
    for name in ("q", "copy", "blind"):
        got = client.get(name)
        assert got is not None
        assert headers_of(got) == {"x-delay": -100, "CC": ["copy"]}
        assert (got.method.exchange, got.method.routing_key) == (exchange, "q")
        assert client.get(name) is None


@rule("warren.delay", "A message with BCC is confirmed when it is stored by its exchange, as others are.")
def test_copies_are_confirmed_when_they_are_stored(durable: DurableHarness) -> None:
    client = durable.channel()
    delayed_exchange(client, durable=True)
    client.send(1, m.ConfirmSelect(False))
    client.expect(m.ConfirmSelectOk)
    client.declare("q", durable=True)
    client.bind("q", "x", "q")
    durable.store.hold = True
    publish(client, b"m", {"x-delay": HOUR_MS, "BCC": ["blind"]}, exchange="x", delivery_mode=2)
    client.nothing()
    durable.store.hold = False
    durable.settle()
    client.expect(m.BasicAck)


@rule("warren.delay", "What is held survives a restart when message and queue are durable, with its time.")
@pytest.mark.parametrize("clean", [True, False])
def test_restart(durable: DurableHarness, clean: bool) -> None:
    client = durable.channel()
    client.declare("q", durable=True)
    publish(client, b"m", {"x-delay": HOUR_MS}, delivery_mode=2)
    publish(client, b"transient", {"x-delay": HOUR_MS}, delivery_mode=1)
    publish(client, b"overdue", {"x-delay": 500}, delivery_mode=2, expiration="60000")
    durable.write()
    harness = durable.restart(clean=clean, down_s=1)
    client = harness.channel()
    harness.pass_time(0)
    assert bodies(client) == [b"overdue"]
    assert held(harness).count == 1
    assert comes_after(harness, HOUR_MS - 1000)
    got = client.get("q")
    assert got is not None
    # After a crash nobody knows whether it had been released, and delivered.
    assert (body_of(got), got.method.redelivered) == (b"m", not clean)


@rule("warren.delay", "Between release and ack a message is in one place after a crash: in the queue.")
def test_a_crash_behind_the_release(durable: DurableHarness) -> None:
    client = durable.channel()
    client.declare("q", durable=True)
    for number in range(50):
        publish(client, b"%d" % number, {"x-delay": 10 + number}, delivery_mode=2)
    durable.pass_time(0.03)
    durable.write()
    harness = durable.restart(clean=False)
    assert (ready(harness), held(harness).count) == (21, 29)
    harness.pass_time(1)
    assert bodies(harness.channel()) == [b"%d" % number for number in range(50)]


# --- delayed message exchanges ----------------------------------------------------------------------------------------


@rule("rabbitmq.exchange.delayed", "`x-delayed-type` is an existing exchange type, and not this one; else 406.")
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "Invalid argument, 'x-delayed-type' must be an existing exchange type"),
        ({"x-delayed-type": 1}, "Invalid argument, 'x-delayed-type' must be an existing exchange type"),
        (
            {"x-delayed-type": "x-delayed-message"},
            "Invalid argument, 'x-delayed-message' can't be used for 'x-delayed-type'",
        ),
        ({"x-delayed-type": "carrier-pigeon"}, "unknown exchange type 'carrier-pigeon'"),
    ],
)
def test_the_type_of_a_delayed_exchange(harness: Harness, client: Client, arguments: Table, text: str) -> None:
    call = exchange_declare("x", "x-delayed-message", arguments=arguments)
    assert client.refused(1, call) == Refusal("channel", 406, f"PRECONDITION_FAILED - {text}", m.ExchangeDeclare)
    assert "x" not in harness.vhost.exchanges


@rule("rabbitmq.exchange.delayed", "A message with a delay is routed when it is due, by the bindings of then.")
def test_a_delayed_exchange_routes_later(harness: Harness, client: Client) -> None:
    delayed_exchange(client)
    client.declare("q")
    client.declare("r")
    client.bind("q", "x", "k")
    publish(client, b"m", {"x-delay": 1000}, "k", "x")
    assert held_by(harness).count == 1
    client.bind("r", "x", "k")
    assert client.call(1, m.QueueUnbind(0, "q", "x", "k", encode_table({}))) == m.QueueUnbindOk()
    assert comes_after(harness, 1000, "r")
    assert ready(harness) == 0
    got = client.get("r")
    assert got is not None
    assert headers_of(got) == {"x-delay": -1000}
    assert (got.method.exchange, got.method.routing_key) == ("x", "k")
    assert held_by(harness).count == 0


@rule("rabbitmq.exchange.delayed", "Without a delay, with one that is not positive, a message is routed at once.")
@pytest.mark.parametrize("headers", [None, {}, {"x-delay": 0}, {"x-delay": -1000}, {"x-delay": "soon"}])
def test_a_delayed_exchange_without_a_delay(harness: Harness, client: Client, headers: Table | None) -> None:
    delayed_exchange(client, kind="topic")
    client.declare("q")
    client.bind("q", "x", "a.*")
    more: dict[str, Any] = {} if headers is None else {"headers": encode_table(headers)}
    client.publish("x", "a.b", b"m", **more)
    client.publish("x", "c", b"elsewhere", **more)
    assert bodies(client) == [b"m"]
    assert held_by(harness).count == 0


@rule("rabbitmq.exchange.delayed", "A mandatory message that is held is returned as unroutable, and confirmed.")
def test_mandatory(harness: Harness, client: Client) -> None:
    delayed_exchange(client)
    client.declare("q")
    client.bind("q", "x", "k")
    assert client.call(1, m.ConfirmSelect(False)) == m.ConfirmSelectOk()
    publish(client, b"m", {"x-delay": 10}, "k", "x", mandatory=True)
    returned, confirm = client.take()
    assert returned.method == m.BasicReturn(312, "NO_ROUTE", "x", "k")
    assert headers_of(returned) == {"x-delay": 10}, "it comes back as it was published"
    assert confirm.method == m.BasicAck(1, False)
    assert comes_after(harness, 10)


@rule(
    "rabbitmq.exchange.delayed", "What matches nothing when it is due is gone, unless there is an alternate exchange."
)
def test_unroutable_when_due(harness: Harness, client: Client) -> None:
    client.declare_exchange("ae", "fanout")
    client.declare("lost")
    client.bind("lost", "ae")
    delayed_exchange(client, arguments={"alternate-exchange": "ae"})
    delayed_exchange(client, "y")
    publish(client, b"m", {"x-delay": 10}, "k", "x")
    publish(client, b"m", {"x-delay": 10}, "k", "y")
    assert comes_after(harness, 10, "lost")
    assert held_by(harness, "y").count == 0


@rule("warren.exchange.delayed", "The alternate exchange is asked when the message is due.", deviation="")
def test_the_alternate_exchange_gets_nothing_that_is_held(harness: Harness, client: Client) -> None:
    client.declare_exchange("ae", "fanout")
    client.declare("lost")
    client.bind("lost", "ae")
    delayed_exchange(client, arguments={"alternate-exchange": "ae"})
    client.declare("q")
    client.bind("q", "x", "k")
    publish(client, b"m", {"x-delay": 10}, "k", "x")
    harness.pass_time(0.01)
    assert (ready(harness), ready(harness, "lost")) == (1, 0)


@rule("rabbitmq.exchange.delayed", "A message that another exchange passes on is delayed too.")
def test_exchange_to_exchange(harness: Harness, client: Client) -> None:
    delayed_exchange(client)
    client.declare("q")
    client.declare("beside")
    client.bind("q", "x", "k")
    client.bind("beside", "amq.direct", "k")
    assert client.call(1, m.ExchangeBind(0, "x", "amq.direct", "k", False, encode_table({}))) == m.ExchangeBindOk()
    publish(client, b"m", {"x-delay": 10}, "k", "amq.direct")
    client.publish("amq.direct", "k", b"now")
    assert bodies(client) == bodies(client, "beside") == [b"now"]
    assert held_by(harness).count == 1
    harness.pass_time(0.01)
    got = client.get("q")
    assert got is not None
    assert (body_of(got), got.method.exchange, headers_of(got)) == (b"m", "amq.direct", {"x-delay": -10})
    assert bodies(client, "beside") == [b"m"], "held by its queue"


@rule(
    "warren.exchange.delayed", "A dead letter with a time to come is held by a delayed exchange, and counts as taken."
)
def test_dead_letters_to_a_delayed_exchange(harness: Harness, client: Client) -> None:
    delayed_exchange(client)
    client.declare("dead")
    client.bind("dead", "x", "dead")
    client.declare("q", durable=True, arguments={"x-dead-letter-exchange": "x", "x-dead-letter-routing-key": "dead"})
    at_ms = int(harness.broker.log.now_ms) + 50
    publish(client, b"m", {"x-deliver-at": at_ms})
    held(harness).take([0], RELEASED)
    harness.settle()
    got = client.get("q")
    assert got is not None
    client.send(1, m.BasicReject(got.method.delivery_tag, False))
    assert held_by(harness).count == 1
    assert comes_after(harness, 50, "dead")
    publish(client, b"m", {"x-delay": 50})
    harness.pass_time(0.05)
    got = client.get("q")
    assert got is not None
    client.send(1, m.BasicReject(got.method.delivery_tag, False))
    assert ready(harness, "dead") == 2, "its delay is over"


@rule("rabbitmq.exchange.delayed", "Deleting the exchange drops what it holds, auto-delete as well.")
@pytest.mark.parametrize("way", ["delete", "auto-delete", "vhost"])
def test_deleting_a_delayed_exchange(harness: Harness, client: Client, way: str) -> None:
    call = exchange_declare("x", "x-delayed-message", auto_delete=True, arguments={"x-delayed-type": "fanout"})
    assert client.call(1, call) == m.ExchangeDeclareOk()
    client.declare("q")
    client.bind("q", "x", "")
    publish(client, b"m", {"x-delay": 10}, exchange="x")
    lane = held_by(harness)
    if way == "delete":
        assert client.call(1, m.ExchangeDelete(0, "x", if_unused=False, no_wait=False)) == m.ExchangeDeleteOk()
    elif way == "auto-delete":
        assert client.call(1, m.QueueUnbind(0, "q", "x", "", encode_table({}))) == m.QueueUnbindOk()
    else:
        harness.broker.administer(VhostDelete("/"))
        harness.broker.administer(VhostPut("/"))
        harness.settle()
    assert (lane.count, harness.vhost.held) == (0, {})
    harness.pass_time(1)
    if way != "vhost":
        assert bodies(client) == []


@rule("rabbitmq.exchange.delayed", "A redeclaration need not name the same `x-delayed-type`.")
def test_redeclaring_a_delayed_exchange(client: Client) -> None:
    delayed_exchange(client)
    delayed_exchange(client, kind="topic")
    call = exchange_declare("x", "direct")
    assert client.refused(1, call).text == (
        "PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'x' in vhost '/': "
        "received 'direct' but current is 'x-delayed-message'"
    )


@rule("warren.exchange.delayed", "What a durable exchange holds survives a restart when it is persistent.")
@pytest.mark.parametrize("clean", [True, False])
def test_restart_of_a_delayed_exchange(durable: DurableHarness, clean: bool) -> None:
    client = durable.channel()
    delayed_exchange(client, durable=True)
    delayed_exchange(client, "t")
    client.declare("q", durable=True)
    client.bind("q", "x", "k")
    for exchange, body, mode in (("x", b"m", 2), ("x", b"transient", 1), ("t", b"lost with its exchange", 2)):
        publish(client, body, {"x-delay": HOUR_MS}, "k", exchange, delivery_mode=mode)
    durable.write()
    harness = durable.restart(clean=clean, down_s=1)
    client = harness.channel()
    assert held_by(harness).count == 1
    client.consume("q")
    harness.pass_time(HOUR_MS / 1000 - 1.001)
    assert client.bodies() == []
    harness.pass_time(0.001)
    (received,) = client.deliveries()
    assert isinstance(received.method, m.BasicDeliver)
    assert (body_of(received), received.method.redelivered) == (b"m", not clean)


@rule("warren.exchange.delayed", "A deleted exchange's messages do not come back with a new one of its name.")
def test_an_exchange_of_the_same_name(durable: DurableHarness) -> None:
    client = durable.channel()
    delayed_exchange(client, durable=True)
    publish(client, b"m", {"x-delay": HOUR_MS}, "k", "x", delivery_mode=2)
    durable.write()
    assert client.call(1, m.ExchangeDelete(0, "x", if_unused=False, no_wait=False)) == m.ExchangeDeleteOk()
    delayed_exchange(client, durable=True)
    publish(client, b"new", {"x-delay": HOUR_MS}, "k", "x", delivery_mode=2)
    durable.write()
    harness = durable.restart(clean=False)
    assert [each.body_bytes for each in listed(harness, held_by(harness))] == [3]


@rule("warren.exchange.delayed", "A time to live begins when the message is routed.")
def test_time_to_live_behind_a_delayed_exchange(harness: Harness, client: Client) -> None:
    delayed_exchange(client)
    client.declare("q")
    client.bind("q", "x", "k")
    publish(client, b"m", {"x-delay": 1000}, "k", "x", expiration="50")
    assert comes_after(harness, 1000)
    harness.pass_time(0.049)
    assert ready(harness) == 1
    harness.pass_time(0.001)
    assert ready(harness) == 0


@rule("rabbitmq.exchange.delayed", "Queues bound to one that routes like x-recent-history get what was routed.")
def test_a_delayed_exchange_that_remembers(harness: Harness, client: Client) -> None:
    delayed_exchange(client, kind="x-recent-history")
    publish(client, b"later", {"x-delay": 100}, exchange="x")
    publish(client, b"now", {}, exchange="x")
    client.declare("q")
    client.bind("q", "x")
    assert bodies(client) == [b"now"]
    harness.pass_time(0.1)
    assert bodies(client) == [b"later"]
    client.declare("r")
    client.bind("r", "x")
    assert bodies(client, "r") == [b"now", b"later"]


# --- for operators ----------------------------------------------------------------------------------------------------


@rule(
    "warren.delay.operators",
    "What is held can be listed, earliest first, counted, dropped and released, in part or all.",
)
@pytest.mark.parametrize("place", ["queue", "exchange"])
def test_what_is_held_can_be_seen_and_taken(harness: Harness, client: Client, place: str) -> None:
    client.declare("q")
    delayed_exchange(client)
    client.bind("q", "x", "q")
    exchange = "" if place == "queue" else "x"
    now_ms = int(harness.broker.log.now_ms)
    for number, delay_ms in enumerate((5000, 1000, 9000, 3000)):
        publish(client, b"x" * number, {"x-delay": delay_ms}, exchange=exchange)
    lane: HeldMessages = held(harness) if place == "queue" else held_by(harness)
    assert (lane.count, lane.body_bytes) == (4, 6)
    found = listed(harness, lane)
    assert [each.until_ms - now_ms for each in found] == [1000, 3000, 5000, 9000]
    assert [each.body_bytes for each in found] == [1, 3, 0, 2]
    assert {(each.exchange, each.routing_key) for each in found} == {(exchange, "q")}
    assert [each.number for each in listed(harness, lane, 2)] == [found[0].number, found[1].number]
    told: list[int] = []
    lane.take([found[1].number], DROPPED, told.append)
    lane.take([found[3].number, found[1].number], RELEASED, told.append)
    assert told == [1, 1]
    assert bodies(client) == [b"xx"]
    lane.take_all(RELEASED)
    harness.pass_time(0)
    assert bodies(client) == [b"x", b""]
    publish(client, b"m", {"x-delay": 5}, exchange=exchange)
    assert lane.clear() == 1
    harness.pass_time(1)
    assert bodies(client) == []


@rule("warren.delay.operators", "What is released before its time is not held again on its way.")
def test_what_is_released_goes_all_the_way(harness: Harness, client: Client) -> None:
    client.declare("q")
    delayed_exchange(client)
    delayed_exchange(client, "y")
    client.bind("q", "y", "k")
    assert client.call(1, m.ExchangeBind(0, "y", "x", "k", False, encode_table({}))) == m.ExchangeBindOk()
    publish(client, b"m", {"x-deliver-at": int(harness.broker.log.now_ms) + HOUR_MS}, "k", "x")
    held_by(harness).take_all(RELEASED)
    harness.pass_time(0)
    assert bodies(client) == [b"m"]


def park(harness: Harness, client: Client, count: int) -> HeldMessages:
    """Park messages that failed too often."""
    arguments: Table = {"x-delivery-limit": 0, "x-delivery-limit-action": "park", **DEAD}
    client.declare("q", arguments=arguments)
    client.declare("dead")
    for number in range(count):
        client.publish("", "q", b"%d" % number)
        got = client.get("q")
        assert got is not None
        client.send(1, m.BasicReject(got.method.delivery_tag, True))
    return held(harness, lane=PARKED)


@rule("warren.delay.operators", "Parked messages can be listed, released, dropped and dead-lettered, in part or all.")
@pytest.mark.parametrize(
    "take",
    [
        lambda lane, numbers, purpose: lane.take(numbers, purpose),
        lambda lane, numbers, purpose: lane.clear() if purpose == DROPPED else lane.take_all(purpose),
    ],
    ids=["each", "all"],
)
def test_parked_messages(
    harness: Harness, client: Client, take: Callable[[HeldMessages, list[int], int], None]
) -> None:
    for purpose, released, dead in ((RELEASED, 3, 0), (DROPPED, 0, 0), (DEAD_LETTERED, 0, 3)):
        lane = park(harness, client, 3)
        found = listed(harness, lane)
        assert [each.until_ms for each in found] == [PARKED_UNTIL] * 3
        take(lane, [each.number for each in found], purpose)
        harness.pass_time(0)
        assert lane.count == 0
        assert bodies(client) == [b"%d" % number for number in range(released)]
        for number in range(dead):
            got = client.get("dead")
            assert body_of(got) == b"%d" % number if got is not None else False
            assert headers_of(got)["x-first-death-reason"] == "delivery_limit"
        assert bodies(client, "dead") == []


@rule("warren.delay.operators", "Without a dead letter exchange nothing can be dead-lettered.")
def test_parked_messages_without_a_dead_letter_exchange(harness: Harness, client: Client) -> None:
    client.declare("q", arguments={"x-delivery-limit": 0, "x-delivery-limit-action": "park"})
    client.publish("", "q", b"m")
    got = client.get("q")
    assert got is not None
    client.send(1, m.BasicReject(got.method.delivery_tag, True))
    lane = held(harness, lane=PARKED)
    with pytest.raises(ValueError, match="there is no dead letter exchange"):
        lane.take([0], DEAD_LETTERED)
    assert lane.count == 1


@rule("warren.delay", "Many publishes in one read are held in their order.")
def test_many_in_one_read(harness: Harness, client: Client) -> None:
    client.declare("q", durable=True)
    frames = b"".join(
        publish_frames(
            "", "q", b"%d" % number, properties={"headers": encode_table({"x-delay": 50}), "delivery_mode": 2}
        )
        for number in range(500)
    )
    client.feed(frames + method_frame(1, m.ChannelFlow(True)))
    assert client.expect(m.ChannelFlowOk) == m.ChannelFlowOk(True)
    assert comes_after(harness, 50, count=500)
    assert bodies(client) == [b"%d" % number for number in range(500)]
