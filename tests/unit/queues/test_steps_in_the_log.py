"""A step that replaces what the log has of a message fails for lack of memory: after a crash the message is there."""

from __future__ import annotations

from typing import Any

import pytest
from durable_harness import DurableHarness
from engine_harness import publish_frames
from stored_log import StoredLog, entries, timed_message

from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.channels.ending import close_broken
from warren.msgstore.log.batch import Batch
from warren.msgstore.log.queue_index import QueueIndex
from warren.queues import queue as queue_module
from warren.queues.lanes import PRODUCERS
from warren.queues.long_work import REST_MS
from warren.queues.seen_keys import ProducerLane
from warren.streams.groups import Group, StreamGroups
from warren.vhosts.records import VhostRecords

pytestmark = pytest.mark.skipif(queue_module.__file__.endswith(".so"), reason="a compiled method cannot be replaced")


class Full(list[Any]):
    """A list that does not get longer."""

    def append(self, item: object) -> None:
        raise MemoryError


def exhaust(monkeypatch: pytest.MonkeyPatch, batch: Batch, step: str) -> None:
    """Have a step of the next change in the batch fail."""
    if step == "acks":

        def fail(index: QueueIndex, first: int, end: int) -> None:
            raise MemoryError

        monkeypatch.setattr(QueueIndex, "note_acks", fail)
        return
    monkeypatch.setattr(batch, step, Full(getattr(batch, step)))


def relieve(monkeypatch: pytest.MonkeyPatch, batch: Batch, step: str) -> None:
    kept = None if step == "acks" else list(getattr(batch, step))
    monkeypatch.undo()
    if kept is not None:
        setattr(batch, step, kept)


# Of a message that is in the open batch nothing has to be acknowledged, and its queue is in the batch already.
STEPS = [
    ("messages", True),
    ("_indexes", True),
    ("_touched", True),
    ("acks", True),
    ("messages", False),
    ("_indexes", False),
]


@pytest.mark.parametrize(("step", "is_stored"), STEPS)
def test_a_message_whose_count_could_not_be_stored_is_there_after_a_crash(
    monkeypatch: pytest.MonkeyPatch, step: str, is_stored: bool
) -> None:
    harness = DurableHarness()
    client = harness.channel()
    client.declare("q", durable=True, arguments={"x-queue-type": "quorum"})
    harness.write()
    for body in (b"0", b"1", b"2"):
        client.connection.feed(publish_frames("", "q", body, properties={"delivery_mode": 2}))
    holder = harness.channel()
    for _ in range(3):
        assert holder.get("q") is not None
    if is_stored:
        harness.write()
    batch = harness.broker.log.batch
    exhaust(monkeypatch, batch, step)
    holder.connection.feed(method_frame(1, m.BasicNack(2, False, True)))
    with pytest.raises(MemoryError):
        harness.settle()
    relieve(monkeypatch, batch, step)
    harness.write()
    later = harness.restart(clean=False)
    assert later.waiting("q") == [b"0", b"1", b"2"]
    later.check()


@pytest.mark.parametrize(("step", "is_stored"), STEPS)
def test_a_delivery_whose_count_could_not_be_stored_is_answered_later(
    monkeypatch: pytest.MonkeyPatch, step: str, is_stored: bool
) -> None:
    harness = DurableHarness()
    client = harness.channel()
    client.declare("q", durable=True, arguments={"x-queue-type": "quorum"})
    harness.write()
    client.connection.feed(publish_frames("", "q", b"1", properties={"delivery_mode": 2}))
    holder = harness.channel()
    assert holder.get("q") is not None
    if is_stored:
        harness.write()
    batch = harness.broker.log.batch
    exhaust(monkeypatch, batch, step)
    holder.connection.feed(method_frame(1, m.BasicNack(1, False, True)))
    with pytest.raises(MemoryError):
        harness.settle()
    relieve(monkeypatch, batch, step)
    close_broken(holder.connection)
    harness.settle()
    harness.pass_time(REST_MS / 1000)
    harness.write()
    harness.check()
    other = harness.channel()
    assert other.get("q") is not None
    other.send(1, m.BasicAck(1, False))
    harness.write()
    assert harness.queue("q").persistent() == (0, 0)
    later = harness.restart(clean=False)
    assert later.waiting("q") == []
    later.check()


class Values:
    """The newest record of a lane under one name: `kind` says which lane."""

    def __init__(self, stored: StoredLog, kind: str) -> None:
        self._values, self._group = VhostRecords(stored.log, "/"), Group("g")
        self._groups = StreamGroups(stored.log, "/", "s", lambda: None)
        self._producers = ProducerLane(stored.log, "/", "q", PRODUCERS, 10)
        self._kind = kind
        self.lane = {"value": self._values, "group": self._groups, "producer": self._producers}[kind]

    def store(self, number: int) -> None:
        if self._kind == "value":
            self._values.store("v", bytes([number]))
        elif self._kind == "group":
            self._group.committed = number
            self._groups.store(self._group)
        else:
            self._producers.add(b"p", number, True)


@pytest.mark.parametrize(("step", "is_stored"), STEPS)
@pytest.mark.parametrize("kind", ["value", "group", "producer"])
def test_a_record_that_could_not_be_replaced_is_there_after_a_crash(
    monkeypatch: pytest.MonkeyPatch, kind: str, step: str, is_stored: bool
) -> None:
    stored = StoredLog()
    values = Values(stored, kind)
    values.store(1)
    if is_stored:
        stored.rest()
    batch = stored.log.batch
    exhaust(monkeypatch, batch, step)
    with pytest.raises(MemoryError):
        values.store(2)
    relieve(monkeypatch, batch, step)
    stored.rest()
    index = values.lane.index
    assert index is not None
    first = stored.record(index, 0)
    assert entries(stored.restarted(), stored.disk) == entries(stored.log, stored.disk)
    values.store(2)
    stored.rest()
    assert stored.record(index, 0) != first
    assert entries(stored.restarted(), stored.disk) == entries(stored.log, stored.disk)


def test_rows_are_cancelled_and_replaced_among_many_others() -> None:
    """A message with many rows is found by the places of the rows."""
    stored = StoredLog()
    log = stored.log
    indexes = [stored.index(queue_id) for queue_id in range(1, 31)]
    old = timed_message(b"old")
    for index in indexes:
        log.batch.add(index, old, 0)
    messages = [old for _ in indexes]
    for times in range(2):
        for at in (29, 0, 15):
            former, messages[at] = messages[at], timed_message(b"%d" % (100 * times + at))
            log.batch.replace(indexes[at], former, messages[at], 0)
    log.batch.cancel(indexes[20], old, 0)
    stored.rest()
    assert 0 not in entries(stored.restarted(), stored.disk)[21]
    bodies = [stored.message(index, 0).body() for at, index in enumerate(indexes) if at != 20]
    assert bodies == [messages[at].body() for at in range(len(indexes)) if at != 20]
    assert entries(stored.restarted(), stored.disk) == entries(log, stored.disk)
