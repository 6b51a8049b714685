"""Limits for hostile peers that do not take the output that is sent to them."""

from __future__ import annotations

import pytest
from engine_harness import (
    Client,
    Harness,
    basic_consume,
    publish_frames,
    queue_declare,
)

from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.amqp.field_table import EMPTY_TABLE
from warren.amqp.methods import HEARTBEAT_FRAME

from .rules import rule

# --- the outbox -------------------------------------------------------------------------------------------------------


@rule("abuse.outbox", "Deliveries to a client that does not read stop at the limit and go on when it has caught up.")
def test_a_slow_consumer_costs_a_limit() -> None:
    harness = Harness(outbox_soft_bytes=50_000)
    client, slow = harness.channel(), harness.channel()
    client.declare("q")
    slow.consume("q", no_ack=True)
    slow.peer.stalled = True
    for _ in range(40):
        client.publish("", "q", bytes(10_000))
    assert 50_000 < slow.connection.outbox.waiting_bytes() < 70_000
    assert harness.queue("q").ready_count >= 34
    harness.wake(slow.peer)
    assert len(slow.deliveries()) == 40
    harness.check()


@rule("abuse.outbox", "A queue goes on for its other consumers while one does not read.")
def test_a_slow_consumer_does_not_hold_up_others() -> None:
    harness = Harness(outbox_soft_bytes=50_000)
    client, slow, quick = harness.channel(), harness.channel(), harness.channel()
    client.declare("q")
    slow.consume("q", no_ack=True)
    quick.consume("q", no_ack=True)
    slow.peer.stalled = True
    for _ in range(100):
        client.publish("", "q", bytes(10_000))
    assert len(quick.deliveries()) > 90
    assert harness.queue("q").ready_count == 0


@rule("abuse.outbox", "Who sends requests and does not take the replies is not read beyond a limit, and then again.")
def test_who_does_not_take_replies_is_not_read() -> None:
    harness = Harness(outbox_soft_bytes=1000, outbox_hard_bytes=2000)
    client = harness.channel()
    client.peer.stalled = True
    for _ in range(500):
        client.connection.feed(method_frame(1, m.ConfirmSelect(False)))
    harness.settle()
    assert client.connection.outbox.waiting_bytes() < 2100
    assert client.connection.paused
    harness.wake(client.peer)
    assert len(client.take()) == 500
    assert not client.connection.paused


@rule("abuse.outbox", "Who publishes what comes back and does not take it is not read beyond a limit, and then again.")
@pytest.mark.parametrize("transactional", [False, True])
def test_returned_messages_are_bounded(transactional: bool) -> None:
    harness = Harness(outbox_soft_bytes=10_000, outbox_hard_bytes=20_000)
    client = harness.channel()
    client.peer.stalled = True
    end = method_frame(1, m.TxCommit()) if transactional else b""
    if transactional:
        client.connection.feed(method_frame(1, m.TxSelect()))
    for _ in range(100):
        client.connection.feed(publish_frames("", "nowhere", bytes(1000), mandatory=True) + end)
    harness.settle()
    assert client.connection.outbox.waiting_bytes() < 25_000
    harness.wake(client.peer)
    assert sum(isinstance(each.method, m.BasicReturn) for each in client.take()) == 100


@rule("abuse.outbox", "Acknowledgements are taken from a client whose replies wait: they need none.")
def test_acks_are_taken_while_replies_wait() -> None:
    harness = Harness(outbox_soft_bytes=1000, outbox_hard_bytes=2000)
    client, slow = harness.channel(), harness.channel()
    client.declare("q")
    client.publish("", "q", bytes(3000))
    slow.peer.stalled = True
    slow.connection.feed(method_frame(1, m.BasicGet(0, "q", False)))
    harness.settle()
    slow.send(1, m.BasicAck(1, False))
    assert harness.queue("q").unacked_count == 0


@rule("abuse.pipelining", "Not more than a thousand replies wait for commits; then the connection is not read.")
def test_replies_that_wait_for_a_commit_are_bounded(client: Client, harness: Harness) -> None:
    harness.hold_commits = True
    for number in range(1500):
        client.connection.feed(method_frame(1, queue_declare(f"q{number}", durable=True)))
    harness.settle()
    assert len(harness.vhost.queues) == 1000
    harness.hold_commits = False
    harness.settle()
    names = [each.method.queue for each in client.take()]
    assert names == [f"q{number}" for number in range(1500)]


# --- peers that do not take what is sent to them ----------------------------------------------------------------------


def stalled_consumer(harness: Harness, heartbeat_s: int = 10) -> Client:
    """Return a client that has a message unacknowledged and takes nothing more, though something waits for it."""
    client = harness.client(heartbeat_s=heartbeat_s)
    client.open(1)
    client.declare("q")
    client.consume("q")
    client.publish("", "q", b"one")
    assert client.bodies() == [b"one"]
    client.peer.stalled = True
    client.publish("", "q", b"two")
    return client


def beat(harness: Harness, client: Client, seconds: float) -> None:
    """Advance the time by `seconds`, in which `client` sends its heartbeats."""
    for _ in range(int(seconds)):
        client.feed(HEARTBEAT_FRAME)
        harness.pass_time(1.0)


@rule("abuse.unread", "A peer that takes nothing for limits.send_timeout_s is dropped, heartbeats or not.")
def test_who_takes_nothing_is_dropped(harness: Harness) -> None:
    client = stalled_consumer(harness)
    beat(harness, client, 29)
    assert not client.ended
    assert harness.queue("q").unacked_count == 2
    beat(harness, client, 2)
    assert client.ended
    assert client.connection.heartbeats.is_given_up
    assert harness.notices[-1].event == "connection.lost"
    assert harness.notices[-1].fields["reason"] == "the peer did not read pending data, timeout: 30s"
    assert (harness.queue("q").ready_count, harness.queue("q").unacked_count) == (2, 0)


@rule("abuse.unread", "Whoever takes a little now and then stays, and who has nothing to take.")
def test_who_takes_a_little_stays(harness: Harness) -> None:
    client, idle = stalled_consumer(harness), harness.client()
    outbox = client.connection.outbox
    outbox.take()
    for _ in range(4):
        beat(harness, client, 20)
        outbox.sent(1)
    beat(harness, client, 20)
    assert not client.ended
    assert not idle.ended


@rule("abuse.unread", "The time in which the broker was stopped does not count; with a timeout of 0 none does.")
def test_only_time_in_which_it_could_take_something_counts(harness: Harness) -> None:
    client = stalled_consumer(harness, heartbeat_s=0)
    harness.pass_time(1.0)  # the first tick sees what was sent before
    harness.pass_time(10.0)
    harness.pass_time(1000.0)  # it may have taken something meanwhile, which we have not noticed
    harness.pass_time(4.0)
    assert not client.ended
    harness.pass_time(2.0)
    assert client.ended
    patient = Harness(send_timeout_s=0)
    client = stalled_consumer(patient)
    beat(patient, client, 1000)
    assert not client.ended


@rule("abuse.arguments", "Long arguments of a consumer are not kept: there may be 10,000 on a channel.")
def test_long_arguments_of_consumers_are_not_kept(harness: Harness, client: Client) -> None:
    client.declare("q")
    for tag, size in (("short", 100), ("long", 100_000)):
        client.call(1, basic_consume("q", tag, arguments={"x-priority": 7, "x": "y" * size}))
    short, long = harness.queue("q").consumers
    assert len(short.arguments) > 100
    assert long.arguments == EMPTY_TABLE
    assert (short.priority, long.priority) == (7, 7)
