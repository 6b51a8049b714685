"""A vhost's records across restarts. vhost_records.py (1) and (2); clients do not see the records."""

from __future__ import annotations

import random

import pytest
from durable_harness import DurableHarness
from engine_harness import publish_frames
from stored_log import StoredLog, entries

from warren.amqp import methods as m
from warren.msgstore.log.jobs import ReadJob
from warren.msgstore.log.message_log import MessageLog
from warren.queues.lanes import VHOST_RECORDS
from warren.vhosts.metadata import PolicyPut, VhostDelete, VhostPut
from warren.vhosts.records import VhostRecords


class Remembered:
    """The records of a vhost, in a log of small pages."""

    def __init__(self) -> None:
        self.stored = StoredLog()
        self.records = VhostRecords(self.stored.log, "/")

    def restart(self, *, checkpoint: bool, damaged: bytes = b"") -> VhostRecords:
        """Return what is remembered after everything was written, and read by another process.

        `damaged`: bytes that the disk returns in another way.
        """
        self.stored.rest()
        log = self.stored.restarted(self.stored.checkpoint() if checkpoint else None)
        log.written_lsn = log.next_lsn = self.stored.log.next_lsn
        records = VhostRecords(log, "/")
        for index in log.indexes.values():
            assert index.lane == VHOST_RECORDS
            records.restore(index)
        _read(self.stored, log, records, damaged)
        records.check_invariants()
        return records


def _read(stored: StoredLog, log: MessageLog, records: VhostRecords, damaged: bytes = b"") -> None:
    while records.is_restoring:
        jobs, log.read_jobs = log.read_jobs, []
        assert jobs, "nothing is read, and it waits"
        for job in jobs:
            assert isinstance(job, ReadJob)
            job.data = [stored.disk.read(lsn, length) for lsn, length in job.ranges]
            if damaged:
                job.data = [data.replace(damaged, bytes(len(damaged))) for data in job.data]
            job.finished()


def test_a_name_has_the_value_that_was_stored_last() -> None:
    records = Remembered().records
    assert records.maybe_value("a") is None
    records.store("a", b"1")
    records.store("a", b"2")
    records.store("ab", b"")
    assert records.maybe_value("a") == b"2"
    assert records.values("a") == [("a", b"2"), ("ab", b"")]
    assert records.forget("a")
    assert not records.forget("a")
    assert records.values("") == [("ab", b"")]


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_restart_finds_what_was_there(checkpoint: bool) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chooser = random.Random(seed)
    remembered = Remembered()
    expected: dict[str, bytes] = {}
    for _ in range(400):
        name = f"é{chooser.randrange(20)}"
        if chooser.random() < 0.3:
            assert remembered.records.forget(name) == (expected.pop(name, None) is not None)
        else:
            expected[name] = chooser.randbytes(chooser.choice([0, 1, 300]))
            remembered.records.store(name, expected[name])
        if chooser.random() < 0.3:
            remembered.stored.rest()
    remembered.records.check_invariants()
    found = remembered.restart(checkpoint=checkpoint)
    assert dict(found.values("")) == expected
    found.store("one more", b"x")
    assert found.maybe_value("one more") == b"x"


def test_of_two_records_of_a_name_that_damage_has_left_the_later_one_counts() -> None:
    remembered = Remembered()
    records = remembered.records
    records.store("a", b"1")
    records.store("b", b"2")
    for serial, value in ((0, b"before"), (9, b"after")):
        records.put(records.next_number, serial.to_bytes(8, "big") + b"\0\x01a" + value, 0)
        records.next_number += 1
    found = remembered.restart(checkpoint=False)
    assert sorted(found.values("")) == [("a", b"after"), ("b", b"2")]
    assert found.index is not None and found.index.live_count == 2
    assert found._serial == 9, "what is stored from now on is later"


def test_a_damaged_record_is_missed() -> None:
    remembered = Remembered()
    for name in ("a", "b", "c"):
        remembered.records.store(name, b"value of " + name.encode())
    assert not remembered.restart(checkpoint=False).has_lost_some()
    found = remembered.restart(checkpoint=False, damaged=b"value of b")
    assert found.has_lost_some()
    assert found.names() == ["a", "c"]


def test_a_name_that_changes_often_takes_one_record() -> None:
    remembered = Remembered()
    for number in range(100):
        remembered.records.store("a", b"%d" % number)
        remembered.stored.rest()
    assert sum(map(len, entries(remembered.stored.log, remembered.stored.disk).values())) == 1


# --- beside what is published -----------------------------------------------------------------------------------------


def messages(harness: DurableHarness) -> int:
    queue = harness.vhost.queues["q"]
    return int(queue.ready.count)


@pytest.mark.parametrize("written", [False, True])
def test_what_is_stored_in_the_turn_of_a_commit_survives_with_it_or_not_at_all(written: bool) -> None:
    harness = DurableHarness()
    client = harness.channel()
    client.declare("q", durable=True)
    client.call(1, m.TxSelect())
    client.feed(publish_frames("", "q", b"x", properties={"delivery_mode": 2}))
    harness.store.hold = not written
    peer = next(iter(harness.broker.connections.values()))
    channel = peer.channels[1]
    channel.handle(m.TxCommit())  # type: ignore[attr-defined]
    harness.vhost.records.store("note", b"committed")
    harness.settle()
    harness.store.hold = False
    again = harness.restart(clean=False)
    assert messages(again) == written
    assert again.vhost.records.maybe_value("note") == (b"committed" if written else None)


def test_records_are_no_queue_to_anybody() -> None:
    harness = DurableHarness()
    harness.vhost.records.store("a", b"1")
    harness.broker.administer(PolicyPut("/", "all", "", "all", 0, '{"message-ttl": 0, "max-length": 0}'))
    harness.settle()
    assert harness.vhost.queues == {}
    again = harness.restart(clean=True)
    assert again.vhost.queues == {}
    assert again.vhost.records.maybe_value("a") == b"1"


def test_records_go_with_their_vhost() -> None:
    harness = DurableHarness()
    harness.broker.administer(VhostPut("v"))
    harness.broker.vhosts["v"].records.store("a", b"1")
    harness.write()
    harness.broker.administer(VhostDelete("v"))
    harness.broker.administer(VhostPut("v"))
    harness.write()
    assert harness.broker.vhosts["v"].records.maybe_value("a") is None
    again = harness.restart(clean=False)
    assert again.broker.vhosts["v"].records.maybe_value("a") is None
