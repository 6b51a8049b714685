"""Since when deliveries wait for an answer: as exact as the ledger is asked often."""

from __future__ import annotations

import pytest
from engine_harness import Client, Harness, publish_frames

from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.queues.consumer import Consumer
from warren.queues.delivery import DeliveryLedger
from warren.queues.rules import QueueRules
from warren.queues.unacked import SPARSE_MIN


def delivering(count: int) -> tuple[Client, DeliveryLedger]:
    """Return a client with `count` deliveries, and its ledger."""
    harness = Harness()
    client = harness.channel()
    client.declare("q")
    client.consume("q", "t")
    client.feed(publish_frames("", "q", b"m") * count)
    (ledger,) = {consumer.ledger for consumer in harness.queue("q").consumers}
    return client, ledger


def test_the_oldest_delivery_is_as_old_as_the_first_look_after_it() -> None:
    client, ledger = delivering(2)
    assert ledger.waiting_since(100.0) == 100.0
    client.feed(publish_frames("", "q", b"m"))
    assert ledger.waiting_since(110.0) == 100.0
    assert ledger.waiting_since(120.0) == 100.0
    assert [ledger.delivered_by(tag, 200.0) for tag in (1, 2, 3)] == [100.0, 100.0, 110.0]
    client.feed(publish_frames("", "q", b"m"))
    assert ledger.delivered_by(4, 200.0) == 200.0, "nobody has looked since"
    client.send(1, m.BasicAck(2, True))
    assert ledger.waiting_since(130.0) == 110.0
    client.send(1, m.BasicAck(3, False))
    assert ledger.waiting_since(140.0) == 130.0
    client.send(1, m.BasicAck(4, False))
    assert ledger.waiting_since(150.0) == 150.0
    client.feed(publish_frames("", "q", b"m"))
    assert ledger.waiting_since(160.0) == 160.0


def test_a_delivery_that_outlasts_thousands_of_others_is_still_the_oldest() -> None:
    client, ledger = delivering(2)
    assert ledger.waiting_since(100.0) == 100.0
    client.feed(publish_frames("", "q", b"m") * (2 * SPARSE_MIN))
    client.take()
    for tag in range(3, 2 * SPARSE_MIN + 3):
        client.connection.feed(method_frame(1, m.BasicAck(tag, False)))
    assert ledger.waiting_since(200.0) == 100.0
    client.send(1, m.BasicAck(1, False))
    assert ledger.waiting_since(300.0) == 100.0
    client.send(1, m.BasicAck(2, False))
    assert ledger.waiting_since(400.0) == 400.0
    assert ledger.unacked_count == 0


def test_each_consumer_has_an_oldest_delivery_as_far_as_it_was_looked() -> None:
    client, ledger = delivering(2)  # tags 1 and 2, of the consumer of q
    client.take()
    client.declare("r")
    client.consume("r", "u")
    client.feed(publish_frames("", "r", b"m") * 2)
    of_q, of_r = ledger.consumers["t"], ledger.consumers["u"]
    assert ledger.oldest_tags(100) == {of_q: 1, of_r: 3}
    assert ledger.oldest_tags(2) == {of_q: 1}
    client.send(1, m.BasicAck(1, False))
    assert ledger.oldest_tags(100) == {of_q: 2, of_r: 3}
    client.feed(publish_frames("", "q", b"m") * (2 * SPARSE_MIN))
    client.take()
    for tag in range(5, 2 * SPARSE_MIN + 5):
        client.connection.feed(method_frame(1, m.BasicAck(tag, False)))
    assert ledger.oldest_tags(100) == {of_q: 2, of_r: 3}, "the few that are left are apart"
    client.take()
    client.call(1, m.BasicCancel("u", False))
    assert ledger.oldest_tags(100) == {of_q: 2}
    client.send(1, m.BasicAck(0, True))
    assert ledger.oldest_tags(100) == {}


@pytest.mark.parametrize(
    ("wanted", "most", "given"), [(0, -1, 0), (5, -1, 5), (0, 3, 3), (5, 3, 3), (2, 3, 2), (3, 3, 3), (5, 0, 5)]
)
def test_the_rules_of_a_queue_limit_the_prefetch_that_a_consumer_wants(wanted: int, most: int, given: int) -> None:
    consumer = following(QueueRules(), prefetch=wanted)
    rules = QueueRules()
    rules.prefetch_max = most
    consumer.follow(rules)
    assert consumer.prefetch == given
    consumer.follow(QueueRules())
    assert consumer.prefetch == wanted


def test_the_times_that_a_consumer_wants_go_before_those_of_its_queue() -> None:
    rules = QueueRules()
    rules.visibility_timeout_ms = 10
    rules.consumer_timeout_ms = 20
    consumer = following(rules)
    assert (consumer.visibility_ms, consumer.timeout_ms, consumer.has_time_limit) == (10, 20, True)
    consumer.wanted_visibility_ms, consumer.wanted_timeout_ms = 5, 0
    consumer.follow(rules)
    assert (consumer.visibility_ms, consumer.timeout_ms, consumer.has_time_limit) == (5, 0, True)
    consumer.wanted_visibility_ms = -1
    consumer.follow(QueueRules())
    assert not consumer.has_time_limit
    consumer.follow(rules)
    assert consumer.has_time_limit
    assert not following(rules, no_ack=True).has_time_limit, "nothing waits for an answer"


def following(rules: QueueRules, *, prefetch: int = 0, no_ack: bool = False) -> Consumer:
    """Return a consumer that follows some rules."""
    client, ledger = delivering(0)
    queue = client.harness.queue("q")
    consumer = Consumer(ledger, queue, "c", no_ack, exclusive=False, priority=0, prefetch=prefetch, arguments=bytes(4))
    consumer.follow(rules)
    return consumer
