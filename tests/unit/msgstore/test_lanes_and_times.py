"""The store's data of a message besides its content: the lane that it is in, its time, that it expires."""

from __future__ import annotations

import pytest
from stored_log import StoredLog, entries, timed_message

from warren.msgstore.log.checkpoint import CheckpointError, CheckpointReader, NewerCheckpointError
from warren.msgstore.log.checksum import CRC32C
from warren.msgstore.log.message import Message
from warren.msgstore.log.queue_index import EXPIRING, LSN_MASK, QueueIndex
from warren.msgstore.log.records import DELIVERED, EXPIRES, MOVED, REPUBLISHED, TIMED
from warren.msgstore.tools.format import Checkpoint, Record

NOW_MS = 1_700_000_000_000


def store(log: StoredLog, index: QueueIndex, *messages: Message) -> None:
    """Put the messages on disk, numbered from 0."""
    for number, message in enumerate(messages):
        log.log.batch.add(index, message, number)
    log.rest()


@pytest.mark.parametrize(
    ("time_ms", "expiration_ms", "flags"),
    [(0, -1, 0), (NOW_MS, -1, TIMED), (NOW_MS, 60_000, TIMED | EXPIRES), (NOW_MS, 0, TIMED | EXPIRES), (0, 60_000, 0)],
    ids=["plain", "timed", "expires", "expires-at-once", "nobody-asked-for-its-time"],
)
def test_time_and_expiration_are_read_as_they_were_stored(time_ms: int, expiration_ms: int, flags: int) -> None:
    log = StoredLog()
    index = log.index(1)
    store(log, index, timed_message(b"body", time_ms, expiration_ms))
    read = log.message(index, 0)
    assert (read.time_ms, read.expiration_ms) == (time_ms, expiration_ms if time_ms else -1)
    assert read.body() == b"body"
    assert log.record(index, 0)[9] == flags
    word0, _ = entries(log.log, log.disk)[1][0]
    assert word0 & ~LSN_MASK == (EXPIRING if flags & EXPIRES else 0)
    assert index.has_expiring == bool(flags & EXPIRES)
    restarted = log.restarted()
    assert entries(restarted, log.disk) == entries(log.log, log.disk)
    assert restarted.indexes[1].has_expiring == index.has_expiring


def test_a_message_that_is_not_to_expire_does_not_whatever_its_properties_say() -> None:
    log = StoredLog()
    index = log.index(1)
    message = timed_message(b"held", NOW_MS, 60_000)
    message.expiration_ms = -1
    store(log, index, message)
    read = log.message(index, 0)
    assert (read.time_ms, read.expiration_ms) == (NOW_MS, -1)
    assert not index.has_expiring


def test_one_record_of_a_message_in_several_lanes_serves_them_all() -> None:
    log = StoredLog()
    message = timed_message(b"fan-out", NOW_MS, 5)
    indexes = [log.index(1), log.index(2, 3), log.index(7, 65535)]
    for index in indexes:
        log.log.batch.add(index, message, 0)
    log.rest()
    restarted = log.restarted()
    assert [int(index.lane) for index in restarted.indexes.values()] == [0, 3, 65535]
    assert len({index.lsn_of(0) for index in restarted.indexes.values()}) == 1
    assert all(index.has_expiring for index in restarted.indexes.values())
    assert {(index.vhost, index.name) for index in restarted.indexes.values()} == {("/", "q")}


def test_compaction_keeps_times_and_flags() -> None:
    log = StoredLog(segment_bytes=1 << 15)
    index = log.index(1, 2)
    large = b"x" * 10_000
    kept = {
        1: timed_message(b"plain"),
        4: timed_message(b"timed", NOW_MS),
        6: timed_message(b"expires", NOW_MS + 1, 60_000),
        9: timed_message(large, NOW_MS + 2, 0),
        12: timed_message(large, NOW_MS + 3),
        15: timed_message(b"published with an x-death"),
        18: timed_message(b"came back"),
    }
    kept[15].republished = True
    kept[18].attempts = 1
    messages = [kept.get(number) or timed_message(b"y" * 3000, NOW_MS, 1) for number in range(25)]
    for number, message in enumerate(messages):
        log.log.batch.add(index, message, number)
        log.rest()
    for number, message in enumerate(messages):
        if number not in kept:
            log.settle(index, message, number)
    log.rest()
    before = entries(log.log, log.disk)[1]
    log.compact()
    after = entries(log.log, log.disk)[1]
    assert list(after) == list(before) == list(kept)
    for number, message in kept.items():
        assert after[number][0] > before[number][0], "it was not moved"
        assert after[number][0] & ~LSN_MASK == before[number][0] & ~LSN_MASK
        read = log.message(index, number)
        expected_flags = (TIMED if message.time_ms else 0) | (EXPIRES if message.expiration_ms >= 0 else 0)
        expected_flags |= (REPUBLISHED if message.republished else 0) | (DELIVERED if message.attempts else 0)
        assert log.record(index, number)[9] == expected_flags | MOVED
        assert (read.republished, read.attempts) == (message.republished, message.attempts)
        assert (read.time_ms, read.expiration_ms) == (message.time_ms, message.expiration_ms)
        assert read.content == message.joined()
        Record.parse(log.record(index, number), algorithm=CRC32C)
    log.log.check_invariants()
    assert entries(log.restarted(), log.disk) == {1: after}
    assert entries(log.restarted(log.written_checkpoint()), log.disk) == {1: after}


def test_a_checkpoint_keeps_lanes_and_which_of_them_expire() -> None:
    log = StoredLog(page_entries_max=2)
    store(log, log.index(1), timed_message(b"plain"), timed_message(b"timed", NOW_MS), timed_message(b"plain"))
    store(log, log.index(2, 9), *[timed_message(b"expires", NOW_MS, 5) for _ in range(5)])
    store(log, log.index(3, 65535), timed_message(b"expires", NOW_MS, 5))
    gone = timed_message(b"gone by then", NOW_MS, 5)
    store(log, log.index(4, 256), gone)
    log.settle(log.index(4), gone, 0)
    log.unload(log.index(2), 0)
    for restarted in (log.restarted(log.checkpoint()), log.restarted()):
        lanes = {queue_id: int(index.lane) for queue_id, index in restarted.indexes.items()}
        assert lanes == {1: 0, 2: 9, 3: 65535, 4: 256}
        expiring = [queue_id for queue_id, index in restarted.indexes.items() if index.has_expiring]
        assert expiring == [2, 3, 4]
        assert entries(restarted, log.disk) == entries(log.log, log.disk)
    parsed = Checkpoint.parse(with_algorithm(log, log.checkpoint()))
    shown = [(queue.queue_id, queue.lane, queue.index_flags) for queue in parsed.queues]
    assert shown == [(1, 0, 0), (2, 9, 1), (3, 65535, 1), (4, 256, 1)]
    flags = [entry.location["flags"] for queue in parsed.queues for page in queue.pages for entry in page.entries]
    assert flags == [0, 0, 0, EXPIRING, EXPIRING, EXPIRING, EXPIRING, 0]


def with_algorithm(log: StoredLog, checkpoint: bytes) -> bytes:
    """Return a checkpoint that says which checksum it has, as that of a store does."""
    data = checkpoint[:12] + bytes([CRC32C]) + checkpoint[13:-4]
    return data + log.log.checksum(data, 0).to_bytes(4, "big")


def test_a_checkpoint_of_another_minor_version_is_refused() -> None:
    log = StoredLog()
    data = log.checkpoint()
    CheckpointReader(data)
    for minor, refusal in ((0, CheckpointError), (4, NewerCheckpointError)):
        other = with_algorithm(log, data[:10] + minor.to_bytes(2, "big") + data[12:])
        with pytest.raises(refusal, match=rf"it has format version 1\.{minor}, this Warren reads 1\.3"):
            CheckpointReader(other)


def test_a_checkpoint_with_a_damaged_version_is_not_taken_for_a_newer_one() -> None:
    data = StoredLog().checkpoint()
    with pytest.raises(CheckpointError) as refused:
        CheckpointReader(data[:10] + b"\0\4" + data[12:])
    assert not isinstance(refused.value, NewerCheckpointError)
