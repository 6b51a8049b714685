"""Changes of the metadata on their way into the log, and as records there."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any, get_args

import pytest
from engine_harness import Harness, publish_frames, queue_declare
from journalled_log import JournalledLog

from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.channels.broker import Broker
from warren.queues.lanes import METADATA
from warren.vhosts.metadata import MetadataChange, QueueDelete, QueuePut, VhostDelete, VhostPut
from warren.vhosts.metadata_journal import CHANGE_STEPS, Journal
from warren.vhosts.metadata_lane import decode_change, encode_change

KINDS = get_args(MetadataChange)
VALUES: dict[str, Any] = {
    "str": "n\u00e4me \U0001f407 \"'\\",
    "bytes": bytes(range(256)),
    "bool": True,
    "int": -(1 << 63),
    "tuple[str, ...]": ("a", "b c"),
}


def queue(number: int) -> QueuePut:
    return QueuePut("/", str(number), False, bytes(4), number)


# --- records ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_kind_of_change_comes_back_as_it_was(kind: Any) -> None:
    change = kind(**{field.name: VALUES[str(field.type)] for field in fields(kind)})
    assert decode_change(encode_change(change)) == change


def test_a_field_that_is_missing_has_its_default() -> None:
    """An earlier version did not know it."""
    assert decode_change(b'{"v":1,"change":"VhostPut","name":"v"}') == VhostPut("v")


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"v": 2, "change": "VhostPut", "name": "v"}, "VhostPut, version 2"),
        ({"v": 1, "change": "ShardPut", "name": "v"}, "ShardPut, version 1"),
        ({"v": 1, "change": "VhostPut", "name": "v", "shards": 3}, "VhostPut.shards"),
        ({"name": "v"}, "None, version None"),
    ],
)
def test_what_a_newer_version_has_written_is_refused(record: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match="written by a newer Warren") as refused:
        decode_change(json.dumps(record).encode())
    assert f"({reason})" in str(refused.value)


# --- the journal ------------------------------------------------------------------------------------------------------


def durable_changes(log: JournalledLog) -> list[MetadataChange]:
    """Return all changes that are durable and were not returned before."""
    lane = log.journal.lane
    found: list[MetadataChange] = []
    while lane.is_behind():
        told: list[list[bytes | None]] = []
        lane.read(lambda first, bodies, told=told: told.append(bodies))  # type: ignore[misc]
        log.settle()
        (bodies,) = told
        found += [decode_change(body) for body in bodies if body is not None]
        lane.applied_to(int(lane.applied) + len(bodies))
    return found


def test_a_ticket_is_reached_when_the_batch_is_synced() -> None:
    log = JournalledLog()
    journal = log.journal
    assert [journal.append(queue(number)) for number in (1, 2)] == [1, 2]
    log.disk.hold = True
    log.log.close_if_due()
    assert log.log.in_flight is not None and log.log.in_flight.sync
    assert journal.append(queue(3)) == 3
    assert journal.committed_ticket == 0
    log.disk.hold = False
    log.disk.run()
    assert journal.committed_ticket == 2
    log.settle()
    assert journal.committed_ticket == 3
    assert durable_changes(log) == [queue(1), queue(2), queue(3)]


def test_what_gathers_while_it_is_held_is_one_frame_at_the_last_release() -> None:
    log = JournalledLog()
    journal = log.journal
    journal.hold()
    journal.append(queue(1))
    journal.hold()
    journal.append(queue(2))
    journal.release()
    log.settle()
    assert (log.disk.commits, journal.committed_ticket) == (0, 0)
    journal.append(queue(3))
    journal.release()
    log.settle()
    assert (log.disk.commits, journal.committed_ticket) == (1, 3)
    assert durable_changes(log) == [queue(1), queue(2), queue(3)]


def test_very_many_are_one_frame_and_take_several_turns() -> None:
    log = JournalledLog()
    journal = log.journal
    journal.hold()
    count = 20_000
    for number in range(count):
        journal.append(queue(number))
    journal.release()
    turns = 0
    while log.work:
        log.work.end_turn()
        log.log.close_if_due()
        log.disk.run()
        assert journal.committed_ticket == 0 or not log.work
        turns += 1
    assert turns > count * CHANGE_STEPS // 5000
    log.settle()
    assert (log.disk.commits, journal.committed_ticket) == (1, count)
    assert durable_changes(log) == [queue(number) for number in range(count)]


def test_changes_keep_their_order_while_very_many_are_put() -> None:
    log = JournalledLog()
    journal = log.journal
    journal.hold()
    for number in range(1000):
        journal.append(queue(number))
    journal.release()
    assert log.work
    journal.append(queue(1000))
    journal.hold()
    journal.append(queue(1001))
    while log.work:
        log.work.end_turn()
        log.settle()
    assert journal.committed_ticket == 1000
    journal.release()
    while log.work:
        log.work.end_turn()
    log.settle()
    assert journal.committed_ticket == 1002
    assert durable_changes(log) == [queue(number) for number in range(1002)]


def test_very_many_wait_for_a_batch_that_somebody_else_has_held() -> None:
    log = JournalledLog()
    journal = log.journal
    assert log.log.hold_batch()
    journal.hold()
    for number in range(1000):
        journal.append(queue(number))
    journal.release()
    for _ in range(10):
        log.work.end_turn()
        log.log.close_if_due()
    assert journal.lane.next_number == 0
    log.log.release_batch()
    while log.work:
        log.work.end_turn()
        log.settle()
    log.settle()
    assert journal.committed_ticket == 1000


def test_a_journal_of_nobody_remembers_nothing() -> None:
    journal = Journal()
    assert (journal.append(queue(1)), journal.last_ticket) == (0, 0)


# --- in the frame of what belongs to it -------------------------------------------------------------------------------


def test_a_queue_and_its_deletion_are_each_in_one_frame_with_what_is_stored() -> None:
    harness = Harness()
    client = harness.channel()
    commits = harness.store.commits
    client.feed(b"".join([method_bytes("q"), publish_frames("", "q", b"m", properties={"delivery_mode": 2})]))
    client.expect(m.QueueDeclareOk)
    assert harness.store.commits == commits + 1
    harness.broker.log.force()
    harness.settle()
    commits = harness.store.commits
    client.call(1, m.QueueDelete(0, "q", if_unused=False, if_empty=False, no_wait=False))
    assert harness.store.commits == commits + 1
    put, delete = harness.take_changes()
    assert isinstance(put, QueuePut)
    assert delete == QueueDelete("/", "q")
    assert harness.indexes == []


def test_the_deletion_of_a_vhost_is_stored_when_its_messages_are_gone_and_holds_nobodys_confirms_back() -> None:
    harness = Harness()
    harness.broker.administer(VhostPut("v"))
    harness.permit("guest", vhost="v")
    there = harness.client(vhost="v")
    there.open(1)
    for number in range(1000):
        there.connection.feed(method_bytes(f"q{number}"))
    harness.settle()
    client = harness.channel()
    client.declare("old", durable=True)
    client.call(1, m.ConfirmSelect(False))
    harness.take_changes()
    ticket = harness.broker.administer(VhostDelete("v"))
    client.feed(publish_frames("", "old", properties={"delivery_mode": 2}))
    client.expect(m.BasicAck)
    harness.settle()
    assert harness.broker.journal.committed_ticket >= ticket
    assert harness.take_changes() == [VhostDelete("v")]


def test_recovery_gives_the_lane_to_nobody_else() -> None:
    harness = Harness()
    harness.channel().declare("q", durable=True)
    (index,) = (each for each in harness.broker.log.indexes.values() if each.lane == METADATA)
    assert harness.broker.restore_lane(index, True)
    other = Broker(harness.broker.limits, lambda: bytes(16), 1, harness.broker.log)
    assert not other.restore_lane(index, True)


def method_bytes(name: str) -> bytes:
    return method_frame(1, queue_declare(name, durable=True))
