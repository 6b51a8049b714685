"""Operations that clients may not do with the queue of a drain's claims."""

from __future__ import annotations

from typing import Any

import pytest
from engine_harness import Client, Harness, basic_consume, publish_frames

from warren.amqp import methods as m
from warren.amqp.declarations import QueueDeclaration
from warren.queues.basic_get import call_when_ready
from warren.queues.claim_names import claims_name
from warren.queues.claims import ClaimQueue, claims_arguments
from warren.queues.message_deaths import LEAVE_MAX

NAME = claims_name("q", "c")


def claiming() -> tuple[Harness, Client, ClaimQueue]:
    """Return a broker in which a drain has claimed one message of ``q``."""
    harness = Harness()
    client = harness.channel()
    client.declare("q", durable=True)
    client.publish("", "q", b"claimed", delivery_mode=2)
    declaration = QueueDeclaration(NAME, durable=True, arguments=claims_arguments("q", "c"))
    harness.vhost.declare_queue(declaration)
    claims = harness.vhost.queues[NAME]
    assert isinstance(claims, ClaimQueue)
    assert claims.claim(harness.plain_queue("q"), 10, 1 << 20, True, []).count == 1
    harness.broker.log.force()
    harness.settle()
    return harness, client, claims


@pytest.mark.parametrize(
    "call",
    [
        m.BasicGet(0, NAME, False),
        m.BasicGet(0, NAME, True),
        m.QueuePurge(0, NAME, False),
        basic_consume(NAME, "t"),
        basic_consume(NAME, "t", no_ack=True),
    ],
)
def test_a_client_is_refused_and_the_claims_stay(call: Any) -> None:
    harness, client, claims = claiming()
    refusal = client.refused(1, call)
    assert (refusal.code, refusal.text) == (
        403,
        f"ACCESS_REFUSED - queue '{NAME}' in vhost '/' holds the claims of a drain",
    )
    assert not claims.consumers
    assert claims.message_count == 1
    harness.check()


@pytest.mark.parametrize("properties", [{}, {"delivery_mode": 2}, {"expiration": "5"}])
def test_what_a_client_publishes_there_is_refused_and_counted(properties: dict[str, Any]) -> None:
    _, client, claims = claiming()
    assert client.call(1, m.ConfirmSelect(False)) == m.ConfirmSelectOk()
    client.publish("", NAME, b"m", **properties)
    assert [each.method for each in client.take()] == [m.BasicNack(1, multiple=False, requeue=False)]
    assert (claims.message_count, claims.refused) == (1, 1)


def test_what_came_back_to_the_queue_is_claimed_as_far_as_there_is_room() -> None:
    harness, client, claims = claiming()
    queue = harness.plain_queue("q")
    for number in range(5):
        client.publish("", "q", b"number %d" % number, delivery_mode=2)
    client.consume("q", "t")
    client.take()
    client.send(1, m.BasicCancel("t", True), m.BasicNack(0, multiple=True, requeue=True))
    assert queue.ready_count == 5
    assert claims.claim(queue, 2, 1 << 20, True, []).count == 2
    assert claims.claim(queue, 10, 1, True, []).count == 1, "one, however large"
    assert claims.claim(queue, 10, 1, False, []).count == 0
    assert claims.claim(queue, 10, 1 << 20, True, []).count == 2
    assert (queue.ready_count, claims.message_count) == (0, 6)
    harness.check()


def expired_first(count: int) -> tuple[Harness, ClaimQueue]:
    """Return a broker in which ``q`` has `count` expired messages before five others, all of them returned."""
    harness, client, claims = claiming()
    client.feed(publish_frames("", "q", b"old", properties={"expiration": "1000"}) * count)
    client.feed(publish_frames("", "q", b"new") * 5)
    client.consume("q", "t")
    client.take()
    client.send(1, m.BasicCancel("t", True), m.BasicNack(0, multiple=True, requeue=True))
    assert harness.queue("q").ready_count == count + 5
    harness.broker.log.now_ms += 2000  # no timer has run since
    return harness, claims


def test_a_claim_waits_while_there_are_more_expired_messages_than_go_at_once() -> None:
    """They neither hide the others nor all die in one call."""
    harness, claims = expired_first(2000)
    queue = harness.plain_queue("q")
    claimed = claims.claim(queue, 512, 1 << 20, True, [])
    assert (claimed.count, claimed.waits) == (0, True)
    assert queue.ready_count == 2005 - LEAVE_MAX
    called: list[bool] = []
    call_when_ready(queue, lambda: called.append(True))
    while not called:
        harness.pass_time(1)
    assert claims.claim(queue, 512, 1 << 20, True, []).count == 5
    harness.check()


def test_expired_messages_of_the_backlog_go_before_a_claim() -> None:
    harness, client, claims = claiming()
    client.feed(publish_frames("", "q", b"old", properties={"expiration": "1000"}) * 2000)
    harness.broker.log.now_ms += 2000
    queue = harness.plain_queue("q")
    claimed = claims.claim(queue, 512, 1 << 20, True, [])
    assert (claimed.count, claimed.waits) == (0, True)
    assert queue.ready_count == 2000 - LEAVE_MAX
