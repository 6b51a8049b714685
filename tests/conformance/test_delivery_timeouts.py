"""Deliveries that are not answered in time: which queues have a limit, and what becomes of consumer and message."""

from __future__ import annotations

import pytest
from engine_harness import Client, Harness, Refusal, body_of

from warren.amqp import methods as m
from warren.amqp.field_table import Table, encode_table
from warren.vhosts.metadata import PolicyPut

from .rules import rule

QUORUM: Table = {"x-queue-type": "quorum"}
STREAM: Table = {"x-queue-type": "stream"}
HOUR_MS = 3_600_000


def let_minutes_pass(harness: Harness, minutes: int) -> None:
    """Advance the time as a clock does: deliveries are looked at once a minute."""
    for _ in range(minutes):
        harness.pass_time(60)


def fill(client: Client, arguments: Table, count: int = 1) -> None:
    """Declare `q` and publish `count` messages to it."""
    client.declare("q", durable=True, arguments=arguments)
    for number in range(count):
        client.publish("", "q", b"%d" % number)


def prefetch(client: Client, count: int) -> None:
    client.send(1, m.BasicQos(0, count, False))
    client.pick(m.BasicQosOk)


def timed_out(timeout_ms: int) -> Refusal:
    text = (
        f"PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value used: {timeout_ms} ms. "
        "This timeout value can be configured, see consumers doc guide to learn more"
    )
    return Refusal("channel", 406, text, None)


@rule("rabbitmq.consumers.timeout.classic", "Consumers of classic queues and streams may take as long as they like.")
@pytest.mark.parametrize("arguments", [{}, {"x-single-active-consumer": True}, STREAM], ids=str)
def test_classic_queues_and_streams_have_no_limit(harness: Harness, client: Client, arguments: Table) -> None:
    client.declare("q", durable=True, arguments=arguments)
    prefetch(client, 10)
    client.consume("q", "t", arguments={"x-stream-offset": "first"} if arguments is STREAM else {})
    client.publish("", "q", b"0")
    assert client.bodies() == [b"0"]
    let_minutes_pass(harness, 200)
    client.nothing()
    client.send(1, m.BasicAck(1, False))
    client.nothing()


@rule("rabbitmq.consumers.timeout.classic", "So may a client that has its message with basic.get from a classic queue.")
def test_basic_get_of_a_classic_queue_has_no_limit(harness: Harness, client: Client) -> None:
    fill(client, {})
    client.get("q", no_ack=False)
    let_minutes_pass(harness, 200)
    client.nothing()


@rule(
    "rabbitmq.consumers.timeout",
    "A quorum queue takes a message back that is not answered within 30 minutes, and cancels its consumer only.",
)
def test_a_quorum_queue_takes_back_what_is_not_answered(harness: Harness, client: Client, other: Client) -> None:
    fill(client, QUORUM, 3)
    client.declare("classic")
    client.publish("", "classic", b"c")
    client.consume("classic", "patient")
    assert client.bodies() == [b"c"]
    prefetch(client, 2)
    client.consume("q", "t")
    assert client.bodies() == [b"0", b"1"]
    let_minutes_pass(harness, 28)
    client.send(1, m.BasicAck(3, False))
    assert client.bodies() == [b"2"]
    let_minutes_pass(harness, 4)
    assert client.expect(m.BasicCancel) == m.BasicCancel("t", True)
    client.nothing()
    assert harness.events()[-1] == "consumer.timed_out"
    queue = harness.queue("q")
    assert (queue.ready_count, queue.unacked_count, len(queue.consumers)) == (1, 1, 0)
    # The other consumer of the channel is not touched, and answers that come late are not refused.
    client.send(1, m.BasicAck(2, False), m.BasicAck(4, False))
    client.publish("", "classic", b"d")
    assert client.bodies() == [b"d"]
    other.consume("q", "next")
    (again,) = other.deliveries()
    assert (body_of(again), again.method.redelivered) == (b"0", True)


@rule("rabbitmq.consumers.timeout", "A consumer that answers in time stays, and so does an idle one.")
def test_a_consumer_that_answers_is_left_alone(harness: Harness, client: Client) -> None:
    fill(client, QUORUM, 20)
    prefetch(client, 1)
    client.consume("q", "t")
    for number in range(1, 20):
        assert [each.method.delivery_tag for each in client.deliveries()] == [number]
        let_minutes_pass(harness, 20)
        client.send(1, m.BasicAck(number, False))
    client.deliveries()
    client.send(1, m.BasicAck(20, False))
    let_minutes_pass(harness, 200)
    client.nothing()


@rule("rabbitmq.consumers.timeout.count", "A message that was not answered in time has not failed.")
def test_a_timeout_is_no_failure(harness: Harness, client: Client) -> None:
    fill(client, {**QUORUM, "x-delivery-limit": 0})
    client.consume("q", "t")
    client.deliveries()
    let_minutes_pass(harness, 32)
    client.expect(m.BasicCancel)
    assert harness.queue("q").ready_count == 1


@rule(
    "rabbitmq.consumers.timeout.no-notice",
    "The channel is closed, 406 and 0/0, if the client does not understand that its consumer is cancelled.",
)
def test_a_client_without_cancel_notify_loses_its_channel(harness: Harness) -> None:
    client = harness.client(capabilities=())
    client.open(1)
    fill(client, QUORUM)
    client.consume("q", "t")
    client.deliveries()
    let_minutes_pass(harness, 32)
    assert client.refusal() == timed_out(1_800_000)
    assert harness.queue("q").ready_count == 1


@rule("rabbitmq.consumers.timeout.get", "The channel is closed when what it got with basic.get is not answered.")
@pytest.mark.parametrize("own_ms", [0, HOUR_MS])
def test_basic_get_of_a_quorum_queue(harness: Harness, client: Client, own_ms: int) -> None:
    fill(client, {**QUORUM, "x-consumer-timeout": own_ms} if own_ms else QUORUM)
    client.get("q", no_ack=False)
    let_minutes_pass(harness, 59 if own_ms else 29)
    client.nothing()
    let_minutes_pass(harness, 3)
    assert client.refusal() == timed_out(own_ms or 1_800_000)


@rule("rabbitmq.consumers.timeout.cancelled", "So it is when its consumer has been cancelled by the client.")
def test_a_consumer_that_the_client_has_cancelled(harness: Harness, client: Client) -> None:
    fill(client, QUORUM)
    client.consume("q", "t")
    client.deliveries()
    client.call(1, m.BasicCancel("t", False))
    let_minutes_pass(harness, 32)
    assert client.refusal() == timed_out(1_800_000)


@rule("warren.queue.consumer-timeout", "A delivery that is not answered within the queue's limit costs its consumer.")
@pytest.mark.parametrize("arguments", [{}, QUORUM], ids=str)
def test_consumer_timeout(client: Client, harness: Harness, arguments: Table) -> None:
    fill(client, {"x-consumer-timeout": 5000, **arguments}, 2)
    client.consume("q", "t")
    assert client.bodies() == [b"0", b"1"]
    harness.pass_time(4.9)
    client.nothing()
    harness.pass_time(0.1)
    assert client.expect(m.BasicCancel) == m.BasicCancel("t", True)
    client.nothing()
    assert harness.queue("q").ready_count == 2
    client.send(1, m.BasicReject(1, True), m.BasicNack(2, multiple=False, requeue=False))
    client.consume("q", "u")
    assert client.bodies() == [b"0", b"1"]
    client.send(1, m.BasicAck(2, False))  # this one has been answered
    assert client.refusal().text == "PRECONDITION_FAILED - unknown delivery tag 2"


@rule("warren.queue.consumer-timeout.late", "Late answers are ignored, also for many and in a transaction.")
@pytest.mark.parametrize("way", ["multiple", "nack", "reject", "transaction", "touch"])
def test_late_answers_are_ignored(client: Client, harness: Harness, way: str) -> None:
    fill(client, {"x-consumer-timeout": 1000})
    if way == "transaction":
        client.call(1, m.TxSelect())
    client.consume("q", "t")
    assert client.bodies() == [b"0"]
    harness.pass_time(1)
    client.expect(m.BasicCancel)
    client.consume("q", "again")
    assert client.bodies() == [b"0"]
    match way:
        case "multiple":
            client.send(1, m.BasicAck(1, True))
        case "nack":
            client.send(1, m.BasicNack(1, multiple=True, requeue=True))
        case "reject":
            client.send(1, m.BasicReject(1, True))
        case "transaction":
            client.send(1, m.BasicAck(1, False))
            client.call(1, m.TxCommit())
        case _:
            client.publish("amq.control", "touch", headers=encode_table({"delivery-tag": 1}))
    client.nothing()
    assert harness.queue("q").unacked_count == 1


@rule("warren.queue.consumer-timeout.rollback", "A rollback begins the time of an unanswered delivery again.")
@pytest.mark.parametrize("passed_s", [30, 61])
@pytest.mark.parametrize("way", ["ack", "nack", "get"])
def test_a_rollback_begins_the_time_again(client: Client, harness: Harness, way: str, passed_s: int) -> None:
    fill(client, {"x-consumer-timeout": 60_000})
    client.call(1, m.TxSelect())
    if way == "get":
        assert client.get("q") is not None
    else:
        client.consume("q", "t")
        assert client.bodies() == [b"0"]
    client.send(1, m.BasicNack(1, multiple=False, requeue=True) if way == "nack" else m.BasicAck(1, False))
    harness.pass_time(passed_s)
    client.nothing()
    client.call(1, m.TxRollback())
    harness.pass_time(59.9)
    client.nothing()
    harness.pass_time(0.1)
    if way == "get":
        assert client.refusal() == timed_out(60_000)
    else:
        assert client.expect(m.BasicCancel) == m.BasicCancel("t", True)
    assert harness.queue("q").ready_count == 1


@rule("warren.queue.consumer-timeout.rollback", "The same applies to the limit of the broker.")
def test_the_broker_looks_again_after_a_rollback(client: Client, harness: Harness) -> None:
    fill(client, QUORUM, 2)
    client.call(1, m.TxSelect())
    client.consume("q", "t")
    assert client.bodies() == [b"0", b"1"]
    client.send(1, m.BasicAck(1, False))
    let_minutes_pass(harness, 32)
    client.expect(m.BasicCancel)
    queue = harness.queue("q")
    assert (queue.ready_count, queue.unacked_count) == (1, 1)
    client.call(1, m.TxRollback())
    let_minutes_pass(harness, 32)
    assert (queue.ready_count, queue.unacked_count) == (2, 0)


@rule("rabbitmq.consumers.timeout", "A delivery of a deleted queue is not overdue.")
@pytest.mark.parametrize("way", ["consume", "get"])
def test_a_delivery_of_a_deleted_queue_is_not_overdue(
    client: Client, other: Client, harness: Harness, way: str
) -> None:
    fill(client, QUORUM)
    if way == "get":
        assert client.get("q") is not None
    else:
        client.consume("q", "t")
        assert client.bodies() == [b"0"]
    other.call(1, m.QueueDelete(0, "q", if_unused=False, if_empty=False, no_wait=False))
    if way == "consume":
        client.expect(m.BasicCancel)
    let_minutes_pass(harness, 40)
    client.nothing()
    assert "consumer.timed_out" not in harness.events()
    client.send(1, m.BasicAck(1, False))
    client.nothing()


@rule(
    "warren.queue.consumer-timeout.longer", "A longer limit of the queue or the consumer goes before the broker's own."
)
@pytest.mark.parametrize("limit_ms", [0, 7_200_000])
@pytest.mark.parametrize("place", ["queue", "consumer"])
def test_a_longer_consumer_timeout(client: Client, harness: Harness, limit_ms: int, place: str) -> None:
    arguments: Table = {"x-consumer-timeout": limit_ms}
    fill(client, {**QUORUM, **arguments} if place == "queue" else QUORUM)
    client.consume("q", arguments=arguments if place == "consumer" else {})
    client.deliveries()
    let_minutes_pass(harness, 119)
    client.nothing()
    harness.pass_time(60)
    if limit_ms:
        client.expect(m.BasicCancel)
    else:
        client.nothing()


@rule("warren.queue.consumer-timeout.policy", "A limit that a policy sets holds for the consumers that there are.")
@pytest.mark.parametrize("arguments", [{}, {"x-max-length": 100}])
def test_a_consumer_timeout_of_a_policy(client: Client, harness: Harness, arguments: Table) -> None:
    client.declare("q", arguments=arguments)
    client.consume("q")
    harness.broker.administer(PolicyPut("/", "p", "^q$", "queues", 0, '{"consumer-timeout":5000}'))
    client.publish("", "q")
    client.deliveries()
    harness.pass_time(4.9)
    client.nothing()
    harness.pass_time(0.1)
    client.expect(m.BasicCancel)


@rule("rabbitmq.consumers.timeout.single-active", "The next consumer of a queue with a single active one takes over.")
def test_a_single_active_consumer_is_followed_by_the_next(client: Client, other: Client, harness: Harness) -> None:
    fill(client, {**QUORUM, "x-single-active-consumer": True})
    client.consume("q", "first")
    other.consume("q", "second")
    assert client.bodies() == [b"0"]
    let_minutes_pass(harness, 32)
    client.expect(m.BasicCancel)
    assert other.bodies() == [b"0"]


@rule("rabbitmq.consumers.timeout.many", "What waits for its answer in classic queues for days costs no more and more.")
def test_marks_of_time_are_bounded(client: Client, other: Client, harness: Harness) -> None:
    fill(client, {}, 1)
    client.consume("q", "patient")
    client.deliveries()
    client.declare("p", durable=True, arguments=QUORUM)
    client.consume("p", "t")
    for number in range(2, 1000):
        client.publish("", "p", b"m")
        client.send(1, m.BasicAck(number, False))
        harness.pass_time(60)
        client.take()
    (peer, *_) = [each for each in harness.broker.connections.values() if each.channels[1].ledger.consumers]
    assert len(peer.channels[1].ledger._marks) <= 256  # it is what would grow
    other.publish("", "p", b"late")
    client.deliveries()
    let_minutes_pass(harness, 33)
    client.expect(m.BasicCancel)
    client.nothing()
