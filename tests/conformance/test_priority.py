"""Priority queues: which level leaves first, what comes back where, what is dropped, and levels on disk."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest
from durable_harness import DurableHarness
from engine_harness import Client, Harness, Received, body_of, publish_frames

from warren.amqp import methods as m
from warren.amqp.field_table import Table
from warren.vhosts.metadata import PolicyPut

from .rules import rule


def declare(client: Client, levels: int, **arguments: object) -> None:
    """Declare the durable priority queue q; underscores in names stand for hyphens."""
    table: Table = {"x-" + name.replace("_", "-"): value for name, value in arguments.items()}
    client.declare("q", durable=True, arguments={"x-max-priority": levels} | table)


def publish(client: Client, priorities: Iterable[int | None], mode: int = 1) -> None:
    """Publish a message for each priority, in one go; bodies are ``priority:number``."""
    frames = b""
    for number, priority in enumerate(priorities):
        properties = {"delivery_mode": mode} | ({} if priority is None else {"priority": priority})
        body = b"%d:%d" % (0 if priority is None else priority, number)
        frames += publish_frames("", "q", body, properties=properties)
    client.feed(frames)


def got(client: Client, count: int = 1 << 30, *, no_ack: bool = True) -> list[Received]:
    """Get `count` messages, or all."""
    found: list[Received] = []
    while len(found) < count and (received := client.get("q", no_ack=no_ack)) is not None:
        found.append(received)
    return found


def bodies(client: Client) -> list[str]:
    return [body_of(received).decode() for received in got(client)]


def redelivered(received: list[Received]) -> list[bool]:
    return [each.method.redelivered for each in received]


def ready(harness: Harness) -> int:
    return int(harness.queue("q").ready_count)


def rest(harness: Harness) -> None:
    """Write everything."""
    harness.broker.log.close_if_due(lingered=True)
    harness.settle()


# --- levels -----------------------------------------------------------------------------------------------------------


@rule("basic.06", "A queue with x-max-priority has that many levels above 0; others have none, as in RabbitMQ.")
@rule("rabbitmq.queue.priority", "Higher priorities leave first, equals in the order of publishing; none means 0.")
@pytest.mark.parametrize("mode", [1, 2])
def test_higher_priorities_leave_first(client: Client, harness: Harness, mode: int) -> None:
    declare(client, 3)
    publish(client, [1, None, 3, 0, 2, 3, 1, None], mode)
    assert bodies(client) == ["3:2", "3:5", "2:4", "1:0", "1:6", "0:1", "0:3", "0:7"]


@rule("rabbitmq.queue.priority", "What is above the maximum counts as the maximum, and is delivered as it was sent.")
def test_a_priority_above_the_maximum(client: Client) -> None:
    declare(client, 2)
    publish(client, [2, 255, 3, 2])
    received = got(client)
    assert [body_of(each) for each in received] == [b"2:0", b"255:1", b"3:2", b"2:3"]
    assert [each.content.properties.priority for each in received if each.content] == [2, 255, 3, 2]


@rule("rabbitmq.queue.priority", "A maximum of 0 is one level, 1 are two.")
@pytest.mark.parametrize(("levels", "order"), [(0, ["0:0", "5:1", "1:2"]), (1, ["5:1", "1:2", "0:0"])])
def test_small_maximums(client: Client, levels: int, order: list[str]) -> None:
    declare(client, levels)
    publish(client, [0, 5, 1])
    assert bodies(client) == order


@rule("basic.07", "There may be more than ten levels: up to 256.")
@rule("rabbitmq.queue.priority", "All 256 levels are distinct, and a level that nothing was stored in has no index.")
@pytest.mark.parametrize("mode", [1, 2])
def test_all_levels(client: Client, harness: Harness, mode: int) -> None:
    declare(client, 255)
    order = [(at * 97 + 5) % 256 for at in range(256)]
    publish(client, [*order, 128], mode)
    rest(harness)
    assert len(harness.indexes) == (256 if mode == 2 else 0)
    assert bodies(client) == sorted(
        [f"{priority}:{at}" for at, priority in enumerate([*order, 128])],
        key=lambda body: (-int(body.split(":")[0]), int(body.split(":")[1])),
    )
    queue = harness.queue("q")
    assert (queue.ready_count, queue.ready_bytes) == (0, 0)


@rule("warren.queue.priority.lazy", "Few of many levels cost what those few cost.")
def test_few_of_many_levels(client: Client, harness: Harness) -> None:
    declare(client, 255)
    publish(client, [0, 255, 128], 2)
    rest(harness)
    assert sorted(int(index.lane) for index in harness.indexes) == [0, 127, 255]


@rule("rabbitmq.queue.priority.consumers", "A waiting consumer gets a message at once; with prefetch the highest next.")
def test_consumers_get_the_highest_next(client: Client, other: Client) -> None:
    declare(client, 9)
    other.call(1, m.BasicQos(0, 1, False))
    other.consume("q")
    publish(client, [1, 5, 9, 5])
    order = []
    for tag in (1, 2, 3, 4):
        order += other.bodies()
        other.send(1, m.BasicAck(tag, False))
    assert order == [b"1:0", b"9:2", b"5:1", b"5:3"]


@rule("rabbitmq.queue.priority.policy", "No policy makes a queue a priority queue.")
def test_no_policy_makes_levels(client: Client, harness: Harness) -> None:
    with pytest.raises(ValueError, match="not recognised"):
        harness.broker.administer(PolicyPut("/", "p", "", "queues", 0, json.dumps({"max-priority": 5})))
    client.declare("q")
    publish(client, [0, 9])
    assert bodies(client) == ["0:0", "9:1"]


# --- what comes back --------------------------------------------------------------------------------------------------


@rule("rabbitmq.queue.priority.requeue", "What comes back has its place in its level again, whatever came meanwhile.")
@pytest.mark.parametrize("order", [[1, 2, 3, 4], [4, 3, 2, 1], [3, 1, 4, 2]])
def test_what_comes_back(client: Client, harness: Harness, order: list[int]) -> None:
    declare(client, 2)
    publish(client, [0, 1, 2, 1, 0])
    assert len(got(client, 4, no_ack=False)) == 4
    client.publish("", "q", b"1:new", priority=1)
    client.publish("", "q", b"2:new", priority=2)
    for tag in order:
        client.send(1, m.BasicNack(tag, multiple=False, requeue=True))
        harness.check()
    received = got(client)
    assert [body_of(each).decode() for each in received] == ["2:2", "2:new", "1:1", "1:3", "1:new", "0:0", "0:4"]
    assert redelivered(received) == [True, False, True, True, False, True, False]


@rule("rabbitmq.queue.priority.requeue", "A returned message of a low level does not hold up a higher one.")
def test_a_returned_low_one(client: Client, other: Client) -> None:
    declare(client, 2)
    publish(client, [0])
    assert got(client, no_ack=False)
    client.send(1, m.BasicNack(1, multiple=False, requeue=True))
    client.publish("", "q", b"2:new", priority=2)
    assert bodies(client) == ["2:new", "0:0"]


# --- limits -----------------------------------------------------------------------------------------------------------


@rule("rabbitmq.queue.priority.max-length", "A full queue drops its head, which is the highest priority.")
def test_the_head_is_dropped(client: Client, harness: Harness) -> None:
    client.declare("dead")
    declare(client, 3, max_length=3, dead_letter_exchange="", dead_letter_routing_key="dead")
    publish(client, [1, 2, 0, 0, 3, 1])
    dead = []
    while (received := client.get("dead", no_ack=True)) is not None:
        dead.append(body_of(received).decode())
    assert (dead, bodies(client)) == (["2:1", "3:4", "1:0"], ["1:5", "0:2", "0:3"])


@rule("rabbitmq.queue.priority.max-length", "A requeue over the limit drops the head as well.")
def test_a_requeue_over_the_limit(client: Client) -> None:
    declare(client, 2, max_length=2)
    publish(client, [0, 2])
    assert len(got(client, no_ack=False)) == 2
    for body, priority in ((b"1:new", 1), (b"0:new", 0)):
        client.publish("", "q", body, priority=priority)
    client.send(1, m.BasicNack(0, multiple=True, requeue=True))
    assert bodies(client) == ["0:0", "0:new"]


@rule("rabbitmq.queue.priority.purge", "All levels are counted, purged and deleted, in memory and on disk.")
def test_purge(client: Client, harness: Harness) -> None:
    log = harness.broker.log
    log.memory_bytes = 0
    declare(client, 5)
    publish(client, [at % 6 for at in range(600)], 2)
    rest(harness)
    assert len(harness.queue("q").ready.in_memory()) < 600, "nothing is on disk only"
    assert client.declare("q", passive=True).message_count == 600
    assert client.call(1, m.QueuePurge(0, "q", False)) == m.QueuePurgeOk(600)
    rest(harness)
    assert [int(index.live_count) for index in harness.indexes] == [0] * 6
    assert (int(log.resident_bytes), int(harness.queue("q").ready_bytes)) == (0, 0)
    publish(client, [0, 5], 2)
    assert bodies(client) == ["5:1", "0:0"]
    client.call(1, m.QueueDelete(0, "q", if_unused=False, if_empty=False, no_wait=False))
    assert not harness.indexes


# --- on disk ----------------------------------------------------------------------------------------------------------


@rule("warren.queue.priority.disk", "Long levels are on disk, each for itself, and leave in their order.")
def test_long_levels(client: Client, harness: Harness) -> None:
    log = harness.broker.log
    log.memory_bytes = 0
    declare(client, 2)
    publish(client, [2 if at >= 500 else at % 2 for at in range(1000)], 2)
    rest(harness)
    assert len(harness.queue("q").ready.in_memory()) < 1000, "nothing is on disk only"
    expected = [f"2:{at}" for at in range(500, 1000)]
    expected += [f"1:{at}" for at in range(1, 500, 2)] + [f"0:{at}" for at in range(0, 500, 2)]
    assert bodies(client) == expected


@rule("warren.queue.priority.disk", "While a high level comes from disk nothing lower overtakes it.")
def test_nothing_overtakes_what_is_read(client: Client, other: Client, harness: Harness) -> None:
    log = harness.broker.log
    log.memory_bytes = 0
    declare(client, 1)
    publish(client, [1] * 500, 2)
    rest(harness)
    publish(client, [0] * 3)
    harness.store.hold = True
    other.consume("q", no_ack=True)
    first = other.bodies()
    assert first == [b"1:%d" % at for at in range(len(first))]
    assert len(first) < 500, "nothing is on disk only"
    harness.store.hold = False
    harness.settle()
    rest_of_it = [b"1:%d" % at for at in range(len(first), 500)]
    assert other.bodies() == [*rest_of_it, b"0:0", b"0:1", b"0:2"]


@rule("basic.04", "Transient messages go to disk when memory is short, and leave in their order.")
@rule("warren.queue.priority.disk", "Levels that are moved to disk leave in their order, whatever their messages are.")
def test_levels_are_paged_out(client: Client, harness: Harness) -> None:
    log = harness.broker.log
    declare(client, 2)
    publish(client, [at % 3 for at in range(900)], 1)
    assert int(log.resident_bytes) > 900 * 250
    log.memory_bytes = 0
    log.under_pressure = True
    for _ in range(2):  # first what is there is written, then given up
        harness.queue("q").page_out()
        rest(harness)
    assert len(harness.queue("q").ready.in_memory()) < 900, "nothing is on disk only"
    harness.check()
    assert bodies(client) == [f"{level}:{at}" for level in (2, 1, 0) for at in range(900) if at % 3 == level]
    assert (ready(harness), int(log.resident_bytes)) == (0, 0)


@rule("basic.01", "Persistent messages of durable queues are kept on disk, and come back after a restart.")
@rule("warren.queue.priority.restart", "Every level comes back in its order, with its counts.")
@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("memory_bytes", [0, 1 << 20])
@pytest.mark.parametrize("levels", [1, 4, 255])
def test_levels_come_back(clean: bool, memory_bytes: int, levels: int) -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client, levels)
    priorities = [(at * 7) % (levels + 1) for at in range(120)]
    publish(client, priorities, 2)
    publish(client, [levels], 1)
    harness.write()
    harness = harness.restart(clean=clean, memory_bytes=memory_bytes)
    assert ready(harness) == 120
    client = harness.channel()
    client.publish("", "q", b"top", delivery_mode=2, priority=levels)
    client.publish("", "q", b"bottom", delivery_mode=2, priority=0)
    harness.check()
    expected = sorted(enumerate(priorities), key=lambda each: (-each[1], each[0]))
    found = bodies(client)
    assert found[-1] == "bottom"
    top = sum(1 for priority in priorities if priority == levels)
    assert found[top] == "top"
    assert found[:top] + found[top + 1 : -1] == [f"{priority}:{at}" for at, priority in expected]
    harness.write()
    assert ready(harness.restart(clean=clean)) == 0


@rule("warren.queue.priority.restart", "After a clean stop only what was delivered says so, in every level.")
def test_redelivered_after_a_clean_stop() -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client, 2)
    publish(client, [0, 2, 0, 2, 1], 2)
    # Each level's first: 2:1 and 2:3, then 1:4.
    assert len(got(client, 3, no_ack=False)) == 3
    harness = harness.restart(clean=True)
    received = got(harness.channel())
    assert [body_of(each).decode() for each in received] == ["2:1", "2:3", "1:4", "0:0", "0:2"]
    assert redelivered(received) == [True, True, True, False, False]


@rule("warren.queue.priority.restart", "After a crash everything that was stored says that it may have been delivered.")
def test_redelivered_after_a_crash() -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client, 2)
    publish(client, [0, 2, 1], 2)
    harness.write()
    harness = harness.restart(clean=False)
    client = harness.channel()
    client.publish("", "q", b"new", priority=2)
    received = got(client)
    assert [body_of(each).decode() for each in received] == ["2:1", "new", "1:2", "0:0"]
    assert redelivered(received) == [True, False, True, True]


@rule("warren.queue.priority.restart", "Acknowledged messages of any level stay away.")
def test_acked_messages_stay_away() -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client, 3)
    publish(client, [3, 0, 2, 1], 2)
    harness.write()
    assert len(got(client, 4, no_ack=False)) == 4
    for tag in (1, 4):  # priorities 3 and 0
        client.send(1, m.BasicAck(tag, False))
    harness.write()
    harness = harness.restart(clean=False)
    assert bodies(harness.channel()) == ["2:2", "1:3"]
