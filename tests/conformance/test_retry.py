"""Deliveries that come back: counted, delayed, given up; time limits; and amq.control."""

from __future__ import annotations

import pytest
from engine_harness import Client, Harness, Received

from warren.amqp import methods as m
from warren.amqp.field_table import Table, decode_table, encode_table
from warren.queues.delivery_timeout import STALE_MIN

from .rules import rule

DEAD = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


def take_one(client: Client) -> tuple[int, Received]:
    """Return delivery tag and content of the only delivery that came."""
    (received,) = client.deliveries()
    assert isinstance(received.method, m.BasicDeliver)
    return received.method.delivery_tag, received


def headers_of(received: Received) -> Table:
    """Return the headers of a delivery."""
    assert received.content is not None
    headers = received.content.properties.headers
    return {} if headers is None else decode_table(headers)


def redelivered(received: Received) -> bool:
    """Tell whether a delivery is flagged."""
    assert isinstance(received.method, m.BasicDeliver)
    return received.method.redelivered


def control(client: Client, key: str, **headers: object) -> None:
    """Publish to amq.control; underscores in names stand for hyphens."""
    table: Table = {name.replace("_", "-"): value for name, value in headers.items()}
    client.publish("amq.control", key, headers=encode_table(table))


# --- counting and giving up -------------------------------------------------------------------------------------------


@rule("rabbitmq.queue.delivery-limit", "A message that failed more often than its queue allows is dead-lettered.")
def test_the_delivery_limit_dead_letters(client: Client) -> None:
    client.declare("q", arguments={"x-delivery-limit": 2, **DEAD})
    client.declare("dead")
    client.publish("", "q", b"poison")
    client.consume("q")
    for failures in range(3):
        tag, received = take_one(client)
        assert headers_of(received).get("x-delivery-count", 0) == failures
        assert redelivered(received) == (failures > 0)
        client.send(1, m.BasicReject(tag, True))
    assert client.deliveries() == []
    got = client.get("dead")
    assert got is not None
    deaths = headers_of(got)["x-death"]
    assert isinstance(deaths, list) and len(deaths) == 1
    death = deaths[0]
    assert isinstance(death, dict)
    assert (death["reason"], death["queue"], death["count"]) == ("delivery_limit", "q", 1)


@rule("rabbitmq.queue.delivery-limit.drop", "Without a dead letter exchange a message beyond the limit is dropped.")
def test_the_delivery_limit_drops(client: Client, harness: Harness) -> None:
    client.declare("q", arguments={"x-delivery-limit": 0})
    client.publish("", "q")
    client.consume("q")
    tag, _ = take_one(client)
    client.send(1, m.BasicReject(tag, True))
    client.nothing()
    queue = harness.queue("q")
    assert (queue.ready_count, queue.unacked_count) == (0, 0)


@rule("warren.queue.delivery-limit.returned", "basic.nack with requeue returns a message and does not count as failed.")
def test_a_returned_message_has_not_failed(client: Client) -> None:
    client.declare("q", arguments={"x-delivery-limit": 1})
    client.publish("", "q")
    client.consume("q")
    for returns in range(5):
        tag, received = take_one(client)
        headers = headers_of(received)
        assert headers.get("x-acquired-count", 0) == returns
        assert "x-delivery-count" not in headers
        client.send(1, m.BasicNack(tag, multiple=False, requeue=True))


@rule("warren.queue.delivery-limit.lost", "Deliveries of a client that is lost count as failed.")
def test_a_lost_client_has_failed(client: Client, other: Client) -> None:
    client.declare("q", arguments={"x-delivery-limit": 1})
    client.publish("", "q")
    other.consume("q")
    other.take()
    other.hang_up()
    client.consume("q")
    _, received = take_one(client)
    assert headers_of(received)["x-delivery-count"] == 1


@rule("warren.queue.park", "A message beyond the limit of a parking queue is kept aside until somebody releases it.")
def test_messages_are_parked(client: Client, harness: Harness) -> None:
    client.declare("q", arguments={"x-delivery-limit": 0, "x-delivery-limit-action": "park"})
    client.publish("", "q", b"later")
    client.consume("q")
    tag, _ = take_one(client)
    client.send(1, m.BasicReject(tag, True))
    client.nothing()
    harness.pass_time(1e7)
    client2 = harness.channel()
    assert client2.get("q") is None
    keeper = harness.plain_queue("q").keeper
    assert keeper is not None and keeper.lanes.parked is not None and keeper.lanes.parked.count == 1


# --- retries ----------------------------------------------------------------------------------------------------------


@rule("warren.queue.retry.linear", "A delayed retry waits the minimum, longer each time, at most the maximum.")
def test_retries_are_delayed(client: Client, harness: Harness) -> None:
    arguments: Table = {"x-delayed-retry-type": "all", "x-delayed-retry-min": 1000, "x-delayed-retry-max": 2500}
    client.declare("q", arguments=arguments)
    client.publish("", "q", b"again")
    client.consume("q")
    for wait_ms in (1000, 2000, 2500, 2500):
        tag, _ = take_one(client)
        client.send(1, m.BasicReject(tag, True))
        assert client.deliveries() == []
        harness.pass_time((wait_ms - 1) / 1000)
        assert client.deliveries() == []
        harness.pass_time(0.001)
    _, received = take_one(client)
    assert redelivered(received)
    assert headers_of(received)["x-delivery-count"] == 4


@rule("warren.queue.retry.backoff", "A list of intervals is walked through, and its last one repeats.")
@pytest.mark.parametrize(
    ("backoff", "waits_s"), [([500, "2s"], (0.5, 2, 2)), ("exponential:1s:5s", (1, 2, 4, 5, 5)), ([0, 1000], (0, 1, 1))]
)
def test_backoff(client: Client, harness: Harness, backoff: object, waits_s: tuple[float, ...]) -> None:
    client.declare("q", arguments={"x-retry-backoff": backoff})
    client.publish("", "q")
    client.consume("q")
    for wait_s in waits_s:
        tag, _ = take_one(client)
        client.send(1, m.BasicNack(tag, multiple=False, requeue=True))
        if wait_s:
            harness.pass_time(wait_s - 0.001)
            assert client.deliveries() == []
            harness.pass_time(0.001)
    take_one(client)


@rule("warren.queue.retry.type", "Which returns are delayed is the type's to say.")
@pytest.mark.parametrize(
    ("kind", "delays_failed", "delays_returned"), [("failed", True, False), ("returned", False, True)]
)
def test_retry_types(client: Client, harness: Harness, kind: str, delays_failed: bool, delays_returned: bool) -> None:
    client.declare("q", arguments={"x-delayed-retry-type": kind, "x-delayed-retry-min": 1000})
    client.publish("", "q")
    client.consume("q")
    for method, delays in ((m.BasicReject, delays_failed), (m.BasicNack, delays_returned)):
        tag, _ = take_one(client)
        client.send(
            1, m.BasicReject(tag, True) if method is m.BasicReject else m.BasicNack(tag, multiple=False, requeue=True)
        )
        if delays:
            assert client.deliveries() == []
            harness.pass_time(1)
    take_one(client)


@rule("warren.queue.retry.order", "A message that waits for another try holds nobody up and counts nowhere.")
def test_others_go_on_meanwhile(client: Client, harness: Harness) -> None:
    client.declare("q", arguments={"x-retry-backoff": [1000]})
    for body in (b"1", b"2"):
        client.publish("", "q", body)
    client.consume("q")
    first, second = client.deliveries()
    assert isinstance(first.method, m.BasicDeliver) and isinstance(second.method, m.BasicDeliver)
    client.send(1, m.BasicReject(first.method.delivery_tag, True), m.BasicAck(second.method.delivery_tag, False))
    assert client.declare("q", passive=True).message_count == 0
    client.publish("", "q", b"3")
    assert client.bodies() == [b"3"]
    harness.pass_time(1)
    assert client.bodies() == [b"1"]


# --- time limits ------------------------------------------------------------------------------------------------------


@rule("warren.queue.visibility", "An unanswered delivery comes back alone when its visibility timeout is over.")
def test_visibility(client: Client, harness: Harness) -> None:
    client.declare("q", arguments={"x-visibility-timeout": 1000, "x-delivery-limit": 5})
    client.consume("q")
    client.publish("", "q", b"slow")
    tag, _ = take_one(client)
    harness.pass_time(0.5)
    client.publish("", "q", b"other")
    other_tag, _ = take_one(client)
    harness.pass_time(0.499)
    assert client.deliveries() == []
    harness.pass_time(0.001)
    again, received = take_one(client)
    assert again == other_tag + 1
    assert redelivered(received)
    assert headers_of(received)["x-delivery-count"] == 1
    client.send(1, m.BasicAck(other_tag, False))
    client.nothing()
    refusal = client.refused(1, m.BasicAck(tag, False))
    assert (refusal.code, refusal.text) == (406, f"PRECONDITION_FAILED - unknown delivery tag {tag}")


@rule("warren.queue.visibility.get", "A message got with basic.get has a visibility timeout too.")
def test_visibility_of_get(client: Client, harness: Harness) -> None:
    client.declare("q", arguments={"x-visibility-timeout": 1000})
    client.publish("", "q", b"1")
    assert client.get("q") is not None
    assert client.get("q") is None
    harness.pass_time(1)
    got = client.get("q")
    assert got is not None and isinstance(got.method, m.BasicGetOk) and got.method.redelivered


@rule("warren.queue.visibility.order", "Limits of different length each hold to the millisecond, whichever came first.")
def test_limits_of_different_length(client: Client, harness: Harness) -> None:
    client.declare("q", arguments={"x-visibility-timeout": 3000})
    for tag, limit_ms in (("long", 5000), ("short", 1000), ("queue's", None), ("middle", 2000)):
        client.consume("q", tag, arguments={} if limit_ms is None else {"x-visibility-timeout": limit_ms})
        client.publish("", "q", tag.encode())
        client.take()
        assert isinstance(client.call(1, m.BasicCancel(tag, False)), m.BasicCancelOk)
    back = []
    for second in range(1, 6):
        harness.pass_time(0.999)
        assert harness.queue("q").ready_count == second - 1 - (second == 5)
        harness.pass_time(0.001)
        back.append(int(harness.queue("q").ready_count))
    assert back == [1, 2, 3, 3, 4]


@rule("warren.queue.visibility.late", "Deliveries whose time is over together come back in the order of their limits.")
def test_deliveries_come_back_in_the_order_of_their_limits(client: Client, harness: Harness) -> None:
    client.declare("q", arguments={"x-visibility-timeout": 1000, "x-delivery-limit": 0, **DEAD})
    client.declare("dead")
    for body in (b"first", b"second"):
        client.publish("", "q", body)
    transactional = harness.channel()
    transactional.call(1, m.TxSelect())
    assert transactional.get("q") is not None
    harness.pass_time(0.5)
    assert client.get("q") is not None
    harness.pass_time(0.1)
    transactional.send(1, m.BasicAck(1, False))
    transactional.call(1, m.TxRollback())  # the first is out until 1.6 now, the second until 1.5
    harness.broker.keep_time(int(harness.broker.now_ms()) + 10_000)  # a turn that comes late, or a clock set forward
    harness.settle()
    client.consume("dead")
    assert client.bodies() == [b"second", b"first"]


@rule("warren.queue.visibility.memory", "Limits of answered deliveries are forgotten, not kept until their time.")
def test_limits_are_forgotten(client: Client, harness: Harness) -> None:
    client.declare("q", arguments={"x-visibility-timeout": 86_400_000, "x-consumer-timeout": 86_400_000})
    client.consume("q")
    client.publish("", "q", b"stays")
    for tag in range(2, 3 * STALE_MIN):
        client.publish("", "q")
        client.send(1, m.BasicAck(tag, False))
    keeper = harness.plain_queue("q").keeper
    assert keeper is not None
    assert len(keeper.timeouts()) <= STALE_MIN + 8
    client.take()
    harness.pass_time(86_400)
    (again, *_) = client.take()
    assert again.content is not None and again.content.body == b"stays"


@rule("warren.consume.visibility", "A consumer may ask for another visibility timeout than its queue's.")
def test_visibility_of_a_consumer(client: Client, harness: Harness) -> None:
    client.declare("q", arguments={"x-visibility-timeout": 60000})
    client.consume("q", arguments={"x-visibility-timeout": 1000})
    client.publish("", "q")
    take_one(client)
    harness.pass_time(1)
    take_one(client)


# --- amq.control ------------------------------------------------------------------------------------------------------


@rule("warren.control.touch", "A touch gives a delivery its visibility timeout again.")
def test_touch(client: Client, harness: Harness) -> None:
    client.declare("q", arguments={"x-visibility-timeout": 1000})
    client.consume("q")
    client.publish("", "q")
    tag, _ = take_one(client)
    for _ in range(5):
        harness.pass_time(0.9)
        control(client, "touch", delivery_tag=tag)
        client.nothing()
    harness.pass_time(0.999)
    client.nothing()
    harness.pass_time(0.001)
    take_one(client)


@rule("warren.control.nack", "A nack with a delay returns a delivery after that time.")
@pytest.mark.parametrize("multiple", [False, True])
def test_delayed_nack(client: Client, harness: Harness, multiple: bool) -> None:
    client.declare("q")
    client.consume("q")
    for body in (b"1", b"2"):
        client.publish("", "q", body)
    assert client.bodies() == [b"1", b"2"]
    control(client, "nack", delivery_tag=2, delay=3000, multiple=multiple)
    client.nothing()
    assert harness.queue("q").unacked_count == (0 if multiple else 1)
    harness.pass_time(2.999)
    client.nothing()
    harness.pass_time(0.001)
    again = client.deliveries()
    assert [received.content.body for received in again if received.content] == ([b"1", b"2"] if multiple else [b"2"])
    assert all(received.method.redelivered for received in again)


@rule("warren.control.own", "amq.control acts on the deliveries of the channel that publishes only.")
def test_control_is_for_own_deliveries(client: Client, other: Client) -> None:
    client.declare("q")
    client.consume("q")
    client.publish("", "q")
    take_one(client)
    control(other, "nack", delivery_tag=1, delay=0)
    assert other.refusal().text == "PRECONDITION_FAILED - unknown delivery tag 1"


@rule("warren.control.confirm", "A publish to amq.control is confirmed like any other.")
def test_control_is_confirmed(client: Client) -> None:
    client.declare("q")
    client.consume("q")
    client.publish("", "q")
    take_one(client)
    client.call(1, m.ConfirmSelect(False))
    control(client, "nack", delivery_tag=1, delay=10)
    assert client.expect(m.BasicAck) == m.BasicAck(1, False)


@rule("warren.control.error", "What amq.control does not understand closes the channel with 406 and says why.")
@pytest.mark.parametrize(
    ("key", "headers", "reason"),
    [
        ("stop", {"delivery_tag": 1}, "routing key 'stop' is neither 'touch' nor 'nack'"),
        ("touch", {}, "header 'delivery-tag' must be an integer from 0 to 9223372036854775807"),
        ("nack", {"delivery_tag": 1}, "header 'delay' must be an integer from 0 to 315360000000"),
        ("nack", {"delivery_tag": 1, "delay": -1}, "header 'delay' must be an integer from 0 to 315360000000"),
        ("nack", {"delivery_tag": 1, "delay": 1, "multiple": "yes"}, "header 'multiple' must be a bool"),
    ],
)
def test_control_errors(client: Client, key: str, headers: dict[str, object], reason: str) -> None:
    control(client, key, **headers)
    refusal = client.refusal()
    assert (refusal.code, refusal.text) == (406, f"PRECONDITION_FAILED - amq.control: {reason}")


@rule("warren.control.bind", "Nothing can be bound to amq.control.")
def test_control_cannot_be_bound(client: Client) -> None:
    client.declare("q")
    refusal = client.refused(1, m.QueueBind(0, "q", "amq.control", "touch", False, encode_table({})))
    assert (refusal.code, refusal.text) == (403, "ACCESS_REFUSED - operation not permitted on 'amq.control'")


# --- what holds consumers back ----------------------------------------------------------------------------------------


@rule("warren.queue.pause", "A paused queue takes messages and hands none out until it is resumed.")
def test_pause(client: Client, harness: Harness) -> None:
    client.declare("q")
    client.consume("q")
    queue = harness.queue("q")
    queue.pause(paused=True)
    client.publish("", "q", b"1")
    client.nothing()
    other = harness.channel()
    assert other.get("q") is None
    queue.pause(paused=False)
    harness.settle()
    assert client.bodies() == [b"1"]


@rule("warren.queue.max-unacked", "All consumers of a queue together have at most so many unanswered deliveries.")
def test_max_unacked(client: Client, other: Client) -> None:
    client.declare("q", arguments={"x-max-unacked": 3})
    client.consume("q")
    other.consume("q")
    for number in range(5):
        client.publish("", "q", b"%d" % number)
    mine, others = client.deliveries(), other.deliveries()
    assert len(mine) + len(others) == 3
    method = (mine or others)[0].method
    assert isinstance(method, m.BasicDeliver)
    (client if mine else other).send(1, m.BasicAck(method.delivery_tag, False))
    assert len(client.deliveries() + other.deliveries()) == 1


@rule("warren.queue.prefetch-max", "A queue may clamp the prefetch of its consumers.")
@pytest.mark.parametrize("wanted", [0, 1, 5])
def test_prefetch_clamp(client: Client, wanted: int) -> None:
    client.declare("q", arguments={"x-consumer-prefetch-max": 2})
    client.call(1, m.BasicQos(0, wanted, False))
    client.consume("q")
    for _ in range(5):
        client.publish("", "q")
    assert len(client.deliveries()) == min(wanted or 2, 2)


@rule("warren.queue.memory", "A queue that is kept in memory drops its head at its limit and stores nothing.")
def test_memory_queue(client: Client, harness: Harness) -> None:
    client.declare("q", durable=True, arguments={"x-storage": "memory", "x-max-length": 2})
    before = harness.store.written_bytes
    for number in range(4):
        client.publish("", "q", b"%d" % number, delivery_mode=2)
    assert harness.store.written_bytes == before
    client.consume("q", no_ack=True)
    assert client.bodies() == [b"2", b"3"]
