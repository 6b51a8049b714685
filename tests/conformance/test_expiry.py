"""When messages and queues expire, to the millisecond: time to live of queues, messages and both, and x-expires."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from durable_harness import DurableHarness
from engine_harness import Client, Harness, bodies, exchange_declare

from warren.amqp import methods as m
from warren.amqp.field_table import Table, decode_table, encode_table
from warren.queues.expiry import STALE_MIN
from warren.vhosts.metadata import PolicyDelete, PolicyPut

from .rules import rule

DEAD: Table = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
DAY_MS = 86_400_000


def ready(harness: Harness, name: str = "q") -> int:
    return int(harness.queue(name).ready_count)


def publish(client: Client, body: bytes, expiration_ms: int | None = None, key: str = "q", mode: int = 1) -> None:
    properties: dict[str, Any] = {} if expiration_ms is None else {"expiration": str(expiration_ms)}
    client.publish("", key, body, delivery_mode=mode, **properties)


def put_policy(harness: Harness, name: str = "p", pattern: str = "^q", **definition: int) -> None:
    """Set a policy for queues; underscores in keys stand for hyphens."""
    settings = json.dumps({key.replace("_", "-"): value for key, value in definition.items()})
    harness.broker.administer(PolicyPut("/", name, pattern, "queues", 0, settings))
    harness.settle()


def delete_policy(harness: Harness, name: str = "p") -> None:
    harness.broker.administer(PolicyDelete("/", name))
    harness.settle()


def leaves_at(harness: Harness, after_ms: int, name: str = "q") -> bool:
    """Advance the time by `after_ms`; tell whether the last message of the queue leaves with the last ms."""
    harness.pass_time((after_ms - 1) / 1000)
    before = ready(harness, name)
    harness.pass_time(0.001)
    return (before, ready(harness, name)) == (1, 0)


# --- which time counts ------------------------------------------------------------------------------------------------


@rule("rabbitmq.queue.message-ttl", "A message leaves when the time to live of its queue is over, to the millisecond.")
def test_the_time_to_live_of_a_queue(client: Client, harness: Harness) -> None:
    client.declare("q", arguments={"x-message-ttl": 1000})
    publish(client, b"")
    assert leaves_at(harness, 1000)


@rule("rabbitmq.queue.message-ttl", "The time of each message runs from its own publish.")
def test_every_message_has_its_own_time(client: Client, harness: Harness) -> None:
    client.declare("q", arguments={"x-message-ttl": 1000})
    left = []
    for _ in range(4):
        publish(client, b"")
        harness.pass_time(0.3)
    for _ in range(10):
        left.append(ready(harness))
        harness.pass_time(0.1)
    assert left == [3, 2, 2, 2, 1, 1, 1, 0, 0, 0]


@rule("rabbitmq.basic.expiration", "Of the queue's time to live and the message's own expiration the shorter counts.")
@pytest.mark.parametrize(
    ("of_queue", "own", "after_ms"), [(None, 700, 700), (700, 1500, 700), (1500, 700, 700), (700, 700, 700)]
)
def test_the_shorter_time_counts(
    client: Client, harness: Harness, of_queue: int | None, own: int, after_ms: int
) -> None:
    client.declare("q", arguments={} if of_queue is None else {"x-message-ttl": of_queue})
    publish(client, b"", own)
    assert leaves_at(harness, after_ms)


@rule("rabbitmq.basic.expiration", "Each queue has its own time for the same message.")
def test_each_queue_has_its_own_time(client: Client, harness: Harness) -> None:
    for name, ttl in (("a", 500), ("b", 1500), ("c", 0)):
        client.declare(name, arguments={"x-message-ttl": ttl} if ttl else {})
        client.bind(name, "amq.fanout")
    client.publish("amq.fanout", "", expiration="1000")
    counts = []
    for _ in range(3):
        counts.append([ready(harness, name) for name in "abc"])
        harness.pass_time(0.5)
    assert counts == [[1, 1, 1], [0, 1, 1], [0, 0, 0]]


@rule("rabbitmq.basic.expiration.unacked", "What a client has does not expire.")
def test_the_unacked_do_not_expire(client: Client, harness: Harness) -> None:
    client.declare("q", arguments={"x-message-ttl": 1000})
    publish(client, b"", 500)
    assert client.get("q") is not None
    harness.pass_time(10)
    client.send(1, m.BasicAck(1, False))
    client.nothing()


@rule("rabbitmq.queue.message-ttl.requeue", "A message that comes back keeps its deadline.")
@pytest.mark.parametrize("own", [None, 1000])
def test_a_returned_message_keeps_its_deadline(client: Client, harness: Harness, own: int | None) -> None:
    client.declare("q", arguments={} if own else {"x-message-ttl": 1000})
    publish(client, b"", own)
    for tag in (1, 2, 3):
        assert client.get("q") is not None
        harness.pass_time(0.3)
        client.send(1, m.BasicReject(tag, True))
    assert leaves_at(harness, 100)


@rule("rabbitmq.queue.message-ttl.requeue", "A message that comes back too late is gone at once, and dead-lettered.")
@pytest.mark.parametrize("own", [None, 1000])
def test_a_message_comes_back_too_late(client: Client, harness: Harness, own: int | None) -> None:
    client.declare("dead")
    client.declare("q", arguments=DEAD if own else {"x-message-ttl": 1000, **DEAD})
    publish(client, b"late", own)
    assert client.get("q") is not None
    harness.pass_time(1)
    client.send(1, m.BasicReject(1, True))
    assert (ready(harness), int(harness.queue("q").unacked_count)) == (0, 0)
    assert bodies(client, "dead") == [b"late"]


@rule("rabbitmq.queue.message-ttl.zero", "With no time at all a message goes to a consumer at once or nowhere.")
@pytest.mark.parametrize("arguments", [{"x-message-ttl": 0}, {}])
def test_no_time_at_all(client: Client, other: Client, harness: Harness, arguments: Table) -> None:
    own = None if arguments else 0
    client.declare("q", durable=True, arguments=arguments)
    client.declare("written", durable=True)
    harness.broker.log.force()
    harness.settle()
    before = harness.store.written_bytes
    client.call(1, m.ConfirmSelect(False))
    publish(client, b"x" * 1000, own, mode=2)
    assert client.expect(m.BasicAck) == m.BasicAck(1, False)
    assert ready(harness) == 0
    assert harness.store.written_bytes - before < 1000, "it was never to be stored"
    other.call(1, m.BasicQos(0, 1, False))
    other.consume("q")
    for body in (b"1", b"2"):
        publish(client, body, own, mode=2)
    assert other.bodies() == [b"1"]
    assert ready(harness) == 0


@rule("rabbitmq.queue.message-ttl.zero", "What has no time and is dropped was routed: it is not returned.")
def test_what_is_dropped_at_once_is_not_returned(client: Client) -> None:
    client.declare("q", arguments={"x-message-ttl": 0})
    client.publish("", "q", mandatory=True)
    client.nothing()


@rule("warren.queue.delay.ttl", "The time of a delayed message runs from the end of its delay, in each of its queues.")
@pytest.mark.parametrize("order", ["ab", "ba"])
def test_the_time_of_a_delayed_message(client: Client, harness: Harness, order: str) -> None:
    # The broker has one object for the message in both queues, and only one of them needs its time.
    for name in order:
        client.declare(name, arguments={"x-message-ttl": 1000} if name == "a" else {})
        client.bind(name, "amq.fanout")
    client.publish("amq.fanout", "", headers=encode_table({"x-delay": 5000}))
    harness.pass_time(5)
    assert (ready(harness, "a"), ready(harness, "b")) == (1, 1)
    assert leaves_at(harness, 1000, "a")
    assert ready(harness, "b") == 1


@rule("warren.queue.delay.ttl", "So does that of a message that waited for another try.")
@pytest.mark.parametrize("own", [None, 1000])
def test_the_time_of_a_retried_message(client: Client, harness: Harness, own: int | None) -> None:
    client.declare("q", arguments={"x-retry-backoff": [5000]} | ({} if own else {"x-message-ttl": 1000}))
    publish(client, b"", own)
    harness.pass_time(0.5)
    assert client.get("q") is not None
    client.send(1, m.BasicReject(1, True))
    harness.pass_time(4.999)
    assert ready(harness) == 0
    harness.pass_time(0.001)
    assert leaves_at(harness, 1000)


@rule("rabbitmq.exchange.recent-history.ttl", "The time of a remembered message runs from the bind that brings it.")
@pytest.mark.parametrize("own", [None, 1000])
def test_the_time_of_a_remembered_message(client: Client, harness: Harness, own: int | None) -> None:
    client.call(1, exchange_declare("history", "x-recent-history"))
    client.declare("first", arguments={"x-message-ttl": 60000})
    client.bind("first", "history")
    properties: dict[str, Any] = {} if own is None else {"expiration": str(own)}
    client.publish("history", "", **properties)
    harness.pass_time(10)
    client.declare("q", arguments={} if own else {"x-message-ttl": 1000})
    client.bind("q", "history")
    assert leaves_at(harness, 1000)


# --- wherever it stands -----------------------------------------------------------------------------------------------


@rule("warren.queue.expiry.anywhere", "What expires leaves at its time behind a live head too, and the rest moves up.")
def test_behind_a_live_head(client: Client, harness: Harness) -> None:
    client.declare("q")
    for body, own in ((b"1", 3000), (b"2", None), (b"3", 1000), (b"4", 2000), (b"5", None), (b"6", 1000)):
        publish(client, body, own)
    counts = []
    for _ in range(4):
        counts.append(ready(harness))
        harness.pass_time(1)
    assert counts == [6, 4, 3, 2]
    assert int(harness.queue("q").ready_bytes) == 2
    assert bodies(client) == [b"2", b"5"]


@rule("warren.queue.expiry.anywhere", "Also among messages that have come back.")
def test_among_returned_messages(client: Client, harness: Harness) -> None:
    client.declare("q")
    for body, own in ((b"1", None), (b"2", 2000), (b"3", None), (b"4", 1000)):
        publish(client, body, own)
        assert client.get("q") is not None
    client.send(1, m.BasicNack(0, multiple=True, requeue=True))
    publish(client, b"5", 1500)
    counts = []
    for _ in range(5):
        counts.append(ready(harness))
        harness.pass_time(0.5)
    assert counts == [5, 5, 4, 3, 2]
    assert bodies(client) == [b"1", b"3"]


@rule("warren.queue.expiry.anywhere", "Also among returned messages of several priorities.")
def test_among_returned_messages_of_several_priorities(client: Client, harness: Harness) -> None:
    client.declare("q", arguments={"x-max-priority": 2, "x-message-ttl": 1000})
    client.publish("", "q", b"low", priority=0)
    harness.pass_time(0.5)
    client.publish("", "q", b"high", priority=2)
    assert client.get("q") is not None and client.get("q") is not None
    client.send(1, m.BasicNack(0, multiple=True, requeue=True))
    harness.pass_time(0.5)
    assert ready(harness) == 1
    assert bodies(client) == [b"high"]


@rule("warren.queue.expiry.disk", "Also from the middle of a long queue, which is on disk only.")
def test_from_the_middle_of_a_long_queue(client: Client, harness: Harness) -> None:
    log = harness.broker.log
    log.memory_bytes = 0
    client.declare("q", durable=True)
    for number in range(900):
        publish(client, b"%d" % number, None if number % 3 else 1000, mode=2)
    log.close_if_due(lingered=True)
    harness.settle()
    queue = harness.queue("q")
    assert sum(1 for _ in queue.ready.in_memory()) < 600, "nothing is on disk only"
    harness.pass_time(0.999)
    assert ready(harness) == 900
    harness.pass_time(0.001)
    assert ready(harness) == 600
    assert bodies(client) == [b"%d" % number for number in range(900) if number % 3]
    log.close_if_due(lingered=True)
    harness.settle()
    index = queue.ready.index_of(0)
    assert index is not None and int(index.live_count) == 0
    assert log.resident_bytes == 0


@rule("warren.queue.expiry.disk", "A queue whose head is on disk only lets it go at its time, to the last message.")
def test_a_head_on_disk(client: Client, harness: Harness) -> None:
    log = harness.broker.log
    log.memory_bytes = 0
    client.declare("dead")
    client.declare("q", durable=True, arguments={"x-message-ttl": 1000, **DEAD})
    for number in range(600):
        publish(client, b"%d" % number, mode=2)
    log.close_if_due(lingered=True)
    harness.settle()
    harness.pass_time(1)
    assert ready(harness) == 0
    assert bodies(client, "dead") == [b"%d" % number for number in range(600)]


@rule("warren.queue.expiry.late", "Nothing is delivered behind its deadline, even when the clock has not struck yet.")
@pytest.mark.parametrize("arguments", [{"x-message-ttl": 1000}, {"x-message-ttl": 1000, "x-max-priority": 2}, {}])
@pytest.mark.parametrize("returned", [False, True])
@pytest.mark.parametrize("how", ["get", "consume", "ack"])
def test_nothing_is_delivered_late(
    client: Client, other: Client, harness: Harness, arguments: Table, returned: bool, how: str
) -> None:
    client.declare("q", arguments=arguments)
    if how == "ack":
        other.call(1, m.BasicQos(0, 1, False))
        other.consume("q")
        publish(client, b"out", 1000)
        assert other.bodies() == [b"out"]
    publish(client, b"late", 1000)
    if returned and how != "ack":
        assert client.get("q") is not None
        client.send(1, m.BasicNack(1, multiple=False, requeue=True))
    harness.broker.log.now_ms += 1000  # the timers run later
    if how == "get":
        assert client.get("q") is None
    elif how == "ack":
        other.send(1, m.BasicAck(1, False))
        assert other.bodies() == []
    else:
        client.consume("q")
        assert client.bodies() == []
    assert ready(harness) == 0


@rule("warren.queue.expiry.levels", "Messages of every priority expire at their time, whatever waits above them.")
def test_every_level_expires(client: Client, harness: Harness) -> None:
    client.declare("q", arguments={"x-max-priority": 255, "x-message-ttl": 1000})
    for priority in (0, 255, 7, 7, 128):
        client.publish("", "q", b"%d" % priority, priority=priority)
        harness.pass_time(0.1)
    client.publish("", "q", b"own", priority=3, expiration="500")
    counts = []
    for _ in range(6):
        harness.pass_time(0.1)
        counts.append(ready(harness))
    assert counts == [6, 6, 6, 6, 4, 3]
    harness.pass_time(0.3)
    assert ready(harness) == 0


@rule("warren.queue.expiry.memory", "Deadlines of messages that are long gone are forgotten, not kept until then.")
@pytest.mark.parametrize("arguments", [{}, {"x-max-priority": 3}, {"x-key-shared": True}])
def test_deadlines_are_forgotten(client: Client, harness: Harness, arguments: Table) -> None:
    client.declare("q", arguments=arguments)
    for _ in range(10):
        publish(client, b"waits", DAY_MS)
    for number in range(2 * STALE_MIN):
        client.publish("", "q", priority=number % 4, expiration=str(DAY_MS))
        client.send(1, m.BasicGet(0, "q", True))
    client.take()
    keeper = harness.plain_queue("q").keeper
    assert keeper is not None
    assert len(keeper.expiry) <= STALE_MIN + 2 * ready(harness) + 1
    assert ready(harness) == 10
    harness.pass_time(DAY_MS / 1000)
    assert ready(harness) == 0


# --- policies ---------------------------------------------------------------------------------------------------------


@rule("warren.policy.message-ttl", "A policy's time to live holds for what waits already, whose age counts from then.")
@pytest.mark.parametrize("own", [None, 60_000])
def test_a_policy_holds_for_what_waits(client: Client, harness: Harness, own: int | None) -> None:
    client.declare("q")
    publish(client, b"", own)
    harness.pass_time(30)
    put_policy(harness, message_ttl=1000)
    assert leaves_at(harness, 1000)


@rule("warren.policy.message-ttl", "The age of what comes later counts from its publish, as ever.")
def test_a_policy_holds_for_what_comes(client: Client, harness: Harness) -> None:
    client.declare("q")
    put_policy(harness, message_ttl=1000)
    harness.pass_time(30)
    publish(client, b"")
    assert leaves_at(harness, 1000)


@rule("warren.policy.message-ttl", "A message whose own time is over first leaves first.")
def test_its_own_time_holds_under_a_policy(client: Client, harness: Harness) -> None:
    client.declare("q")
    publish(client, b"", 1000)
    harness.pass_time(0.6)
    put_policy(harness, message_ttl=1000)
    assert leaves_at(harness, 400)


@rule("warren.policy.message-ttl", "Without the policy only a message's own time is left, for the returned as well.")
@pytest.mark.parametrize("returned", [False, True])
@pytest.mark.parametrize("arguments", [{}, {"x-max-priority": 2}])
def test_a_policy_goes(client: Client, harness: Harness, returned: bool, arguments: Table) -> None:
    client.declare("q", arguments=arguments)
    put_policy(harness, message_ttl=1000)
    publish(client, b"for ever")
    publish(client, b"own", 3000)
    if returned:
        assert client.get("q") is not None and client.get("q") is not None
        client.send(1, m.BasicNack(0, multiple=True, requeue=True))
    harness.pass_time(0.5)
    delete_policy(harness)
    harness.pass_time(2.499)
    assert ready(harness) == 2
    harness.pass_time(0.001)
    assert bodies(client) == [b"for ever"]


@rule("warren.policy.message-ttl", "A shorter one holds at once, also for what is too old for it then.")
def test_a_policy_becomes_shorter(client: Client, harness: Harness) -> None:
    client.declare("q", arguments={"x-message-ttl": 60_000})
    publish(client, b"old")
    harness.pass_time(10)
    publish(client, b"young")
    put_policy(harness, message_ttl=1000)
    harness.pass_time(0)
    assert ready(harness) == 1
    assert leaves_at(harness, 1000)


@rule("rabbitmq.policy.message-ttl", "Of argument and policy the shorter time counts.")
@pytest.mark.parametrize(("argument", "of_policy"), [(1000, 2000), (2000, 1000)])
def test_argument_and_policy(client: Client, harness: Harness, argument: int, of_policy: int) -> None:
    put_policy(harness, message_ttl=of_policy)
    client.declare("q", arguments={"x-message-ttl": argument})
    publish(client, b"")
    assert leaves_at(harness, 1000)


# --- after a restart --------------------------------------------------------------------------------------------------


def durable(arguments: Table) -> tuple[DurableHarness, Client]:
    harness = DurableHarness()
    client = harness.channel()
    client.declare("q", durable=True, arguments=arguments)
    return harness, client


@rule("warren.queue.expiry.restart", "Deadlines are points in time: they hold over a restart, and pass meanwhile.")
@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("arguments", [{"x-message-ttl": 1000}, {"x-message-ttl": 1000, "x-max-priority": 3}, {}])
def test_deadlines_hold_over_a_restart(clean: bool, arguments: Table) -> None:
    harness, client = durable(arguments)
    for priority in (0, 3):
        client.publish("", "q", b"soon", delivery_mode=2, priority=priority, expiration="1000")
        harness.pass_time(0.25)
    for priority in (0, 3):
        client.publish("", "q", b"later", delivery_mode=2, priority=priority, expiration="1000")
        harness.pass_time(0.05)
    harness.write()
    harness = harness.restart(clean=clean, down_s=0.4)  # 1 s since the first
    counts = []
    for seconds in (0, 0.249, 0.001, 0.249, 0.001, 0.049, 0.001):
        harness.pass_time(seconds)
        counts.append(ready(harness))
    assert counts == [3, 3, 2, 2, 1, 1, 0]


@rule("warren.queue.expiry.restart", "When the clock was set back before a start, messages age from it at the latest.")
@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("memory_bytes", [None, 0])
@pytest.mark.parametrize("arguments", [{"x-message-ttl": 1000}, {"x-message-ttl": 1000, "x-max-priority": 3}, {}])
def test_messages_of_a_clock_that_was_ahead(clean: bool, memory_bytes: int | None, arguments: Table) -> None:
    harness, client = durable(arguments)
    publish(client, b"of later", 1000, mode=2)
    publish(client, b"of later", None if arguments else 1000, mode=2)
    harness.write()
    harness = harness.restart(clean=clean, down_s=-3600, memory_bytes=memory_bytes)
    harness.pass_time(0.5)
    publish(harness.channel(), b"behind them", None if arguments else 1000, mode=2)
    counts = []
    for seconds in (0.499, 0.001, 0.499, 0.001):
        harness.pass_time(seconds)
        counts.append(ready(harness))
    assert counts == [3, 1, 1, 0]


@rule("warren.queue.expiry.restart", "The deadline of a message that stands behind live ones on disk is found again.")
@pytest.mark.parametrize("clean", [False, True])
def test_deadlines_on_disk_are_found_again(clean: bool) -> None:
    harness, client = durable({})
    for number in range(100):
        publish(client, b"%d" % number, 1000 if number % 10 == 5 else None, mode=2)
    harness.write()
    harness = harness.restart(clean=clean, down_s=0.5, memory_bytes=0)
    harness.pass_time(0.499)
    assert ready(harness) == 100
    harness.pass_time(0.001)
    assert ready(harness) == 90
    assert bodies(harness.channel()) == [b"%d" % number for number in range(100) if number % 10 != 5]


@rule("warren.queue.expiry.restart", "What a client had at the stop comes back with its deadline.")
@pytest.mark.parametrize("clean", [False, True])
def test_unacked_messages_come_back_with_their_deadline(clean: bool) -> None:
    harness, client = durable({"x-message-ttl": 1000})
    publish(client, b"", mode=2)
    assert client.get("q") is not None
    harness.write()
    harness = harness.restart(clean=clean, down_s=0.3)
    assert leaves_at(harness, 700)


@rule("warren.queue.expiry.restart", "Returned messages of several priorities leave each at its time as before.")
def test_returned_messages_of_several_priorities_after_a_restart() -> None:
    harness, client = durable({"x-message-ttl": 1000, "x-max-priority": 2})
    for body, priority in ((b"low", 0), (b"high", 2)):
        client.publish("", "q", body, priority=priority, delivery_mode=2)
        harness.pass_time(0.4)
    harness = harness.restart(clean=True)
    client = harness.channel()
    assert client.get("q") is not None and client.get("q") is not None
    client.send(1, m.BasicNack(0, multiple=True, requeue=True))
    harness.pass_time(0.199)
    assert ready(harness) == 2
    harness.pass_time(0.001)
    assert ready(harness) == 1
    assert bodies(client) == [b"high"]


@rule("warren.queue.expiry.restart", "Under a policy what was stored before it begins to age anew.")
def test_what_has_no_time_ages_anew() -> None:
    harness, client = durable({})
    publish(client, b"", mode=2)
    put_policy(harness, message_ttl=1000)
    publish(client, b"", mode=2)
    harness.write()
    harness = harness.restart(clean=False, down_s=0.5)
    counts = []
    for seconds in (0.499, 0.5, 0.001):
        harness.pass_time(seconds)
        counts.append(ready(harness))
    assert counts == [2, 2, 0], "the second is behind the first"


@rule("warren.queue.expiry.restart", "A message that is too old is not delivered, though one before it still lives.")
def test_nothing_is_delivered_late_behind_what_ages_anew() -> None:
    harness, client = durable({})
    publish(client, b"lives", mode=2)
    put_policy(harness, message_ttl=1000)
    publish(client, b"late", mode=2)
    harness.write()
    harness = harness.restart(clean=False, down_s=0.5)
    harness.pass_time(0.6)
    client = harness.channel()
    client.consume("q")
    assert client.bodies() == [b"lives"]
    assert ready(harness) == 0


# --- queues -----------------------------------------------------------------------------------------------------------


@rule("rabbitmq.queue.expires", "An unused queue is deleted when its time is over, to the millisecond.")
def test_an_unused_queue_is_deleted(client: Client, harness: Harness) -> None:
    client.declare("q", arguments={"x-expires": 1000})
    harness.pass_time(0.999)
    assert "q" in harness.vhost.queues
    harness.pass_time(0.001)
    assert "q" not in harness.vhost.queues


def consume_and_cancel(client: Client) -> None:
    tag = client.consume("q")
    assert isinstance(client.call(1, m.BasicCancel(tag, False)), m.BasicCancelOk)


RENEWING: dict[str, Callable[[Client], object]] = {
    "declare": lambda client: client.declare("q", arguments={"x-expires": 1000}),
    "passive": lambda client: client.declare("q", passive=True),
    "get of nothing": lambda client: client.get("q"),
    "cancel": consume_and_cancel,
}
OTHER: dict[str, Callable[[Client], object]] = {
    "publish": lambda client: client.publish("", "q"),
    "bind": lambda client: client.bind("q", "amq.fanout"),
    "purge": lambda client: client.call(1, m.QueuePurge(0, "q", False)),
    "ack": lambda client: client.send(1, m.BasicAck(1, False)),
    "requeue": lambda client: client.send(1, m.BasicNack(1, multiple=False, requeue=True)),
}


@rule("rabbitmq.queue.expires.renewed", "Declaring it again, even passively, basic.get and a consumer's end renew it.")
@pytest.mark.parametrize("how", RENEWING)
def test_what_renews_a_queue(client: Client, harness: Harness, how: str) -> None:
    client.declare("q", arguments={"x-expires": 1000})
    for _ in range(3):
        harness.pass_time(0.9)
        RENEWING[how](client)
    harness.pass_time(0.999)
    assert "q" in harness.vhost.queues
    harness.pass_time(0.001)
    assert "q" not in harness.vhost.queues


@rule("rabbitmq.queue.expires.renewed", "Publishing, binding, purging, acks and requeues do not.")
@pytest.mark.parametrize("how", OTHER)
def test_what_does_not_renew_a_queue(client: Client, harness: Harness, how: str) -> None:
    client.declare("q", arguments={"x-expires": 1000})
    publish(client, b"")
    assert client.get("q") is not None
    harness.pass_time(0.9)
    OTHER[how](client)
    harness.pass_time(0.099)
    assert "q" in harness.vhost.queues
    harness.pass_time(0.001)
    assert "q" not in harness.vhost.queues


@rule("rabbitmq.queue.expires.consumer", "A queue with a consumer is in use, however little happens.")
@pytest.mark.parametrize("how", ["cancel", "channel", "connection"])
def test_a_queue_with_a_consumer_is_in_use(client: Client, other: Client, harness: Harness, how: str) -> None:
    client.declare("q", arguments={"x-expires": 1000})
    tag = other.consume("q")
    harness.pass_time(3600)
    assert "q" in harness.vhost.queues
    if how == "cancel":
        other.call(1, m.BasicCancel(tag, False))
    elif how == "channel":
        other.call(1, m.ChannelClose(200, "", 0, 0))
    else:
        other.hang_up()
    harness.pass_time(0.999)
    assert "q" in harness.vhost.queues
    harness.pass_time(0.001)
    assert "q" not in harness.vhost.queues


@rule("rabbitmq.queue.expires.messages", "The messages of a queue that expires are gone, not dead-lettered.")
def test_messages_of_an_expired_queue_are_gone(client: Client, harness: Harness) -> None:
    client.declare("dead")
    client.declare("q", durable=True, arguments={"x-expires": 1000, **DEAD})
    client.bind("q", "amq.fanout")
    publish(client, b"", mode=2)
    harness.pass_time(1)
    assert ready(harness, "dead") == 0
    client.publish("amq.fanout", "", mandatory=True)
    assert isinstance(client.take()[0].method, m.BasicReturn)
    assert client.declare("q", durable=True).message_count == 0


@rule("rabbitmq.policy.expires", "A policy sets and takes away the time of a queue; of two times the shorter counts.")
def test_expires_by_policy(client: Client, harness: Harness) -> None:
    client.declare("q1")
    client.declare("q2", arguments={"x-expires": 1000})
    harness.pass_time(0.4)
    put_policy(harness, expires=2000)
    harness.pass_time(0.599)
    assert sorted(harness.vhost.queues) == ["q1", "q2"]
    harness.pass_time(0.001)
    assert sorted(harness.vhost.queues) == ["q1"]
    delete_policy(harness)
    harness.pass_time(60)
    put_policy(harness, expires=500)
    harness.pass_time(0.499)
    assert sorted(harness.vhost.queues) == ["q1"]
    harness.pass_time(0.001)
    assert sorted(harness.vhost.queues) == []


@rule("warren.policy.expires.other", "A policy that changes nothing about it does not renew a queue.")
def test_other_policies_do_not_renew_a_queue(client: Client, harness: Harness) -> None:
    client.declare("q", arguments={"x-expires": 1000})
    for number in range(9):
        harness.pass_time(0.1)
        put_policy(harness, pattern="", max_length=number)
    harness.pass_time(0.1)
    assert "q" not in harness.vhost.queues


@rule("rabbitmq.queue.expires.restart", "The time of a durable queue begins anew with a restart, its end is durable.")
def test_expires_over_a_restart() -> None:
    harness, _ = durable({"x-expires": 1000})
    harness.pass_time(0.9)
    harness = harness.restart(clean=False, down_s=60)
    harness.pass_time(0.999)
    assert "q" in harness.vhost.queues
    harness.pass_time(0.001)
    assert "q" not in harness.restart(clean=False).vhost.queues


@rule("rabbitmq.basic.expiration.letter", "A dead letter says when and of what time it died, and has none any more.")
def test_the_dead_letter_of_an_expired_message(client: Client, harness: Harness) -> None:
    client.declare("dead")
    client.declare("q", arguments=DEAD)
    publish(client, b"", 1234)
    harness.pass_time(1.234)
    got = client.get("dead")
    assert got is not None and got.content is not None and got.content.properties.headers is not None
    assert got.content.properties.expiration is None
    deaths = decode_table(got.content.properties.headers)["x-death"]
    assert isinstance(deaths, list) and isinstance(deaths[0], dict)
    assert deaths[0]["original-expiration"] == "1234"
    assert deaths[0]["time"] == int(harness.broker.log.now_ms) // 1000
