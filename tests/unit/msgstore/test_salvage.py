"""Which records are taken from a damaged frame, and which are not (recovery.py, replay.trusted_end)."""

from __future__ import annotations

from pathlib import Path

import pytest
from librt.vecs import append, vec
from memory_store import memory_log
from mypy_extensions import i64
from store_directory import STORE_ID, StoreDirectory, epoch, page
from store_directory import ack as acks
from store_directory import message as stored
from store_directory import queue as names

from warren.msgstore.files.file_system import OsFileSystem
from warren.msgstore.files.recovery import recover
from warren.msgstore.files.store import Store
from warren.msgstore.log.checksum import CRC32C, checksum_function
from warren.msgstore.log.message import Envelope, build_message
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.queue_index import BODY_MASK, EXPIRING, LSN_MASK
from warren.msgstore.log.records import RecordWriter
from warren.msgstore.log.replay import Replay, trusted_end
from warren.msgstore.log.segments import Segment

CHECKSUM = checksum_function(CRC32C)


def one(number: int) -> vec[i64]:
    return append(vec[i64](), number)


def message(body: bytes, number: int = 1, time_ms: int = 0, expiration_ms: int = -1) -> bytes:
    writer = RecordWriter(CHECKSUM)
    built = build_message(Envelope("", "q"), b"\0\0", body, 131072, True)
    built.time_ms = time_ms
    built.expiration_ms = expiration_ms
    writer.message(built, 0, one(1), one(number))
    return b"".join(writer.take_chunks())


def queue(lane: int = 0) -> bytes:
    writer = RecordWriter(CHECKSUM)
    writer.queue(1, b"/", b"q", lane, False)
    return b"".join(writer.take_chunks())


def ack(number: int) -> bytes:
    writer = RecordWriter(CHECKSUM)
    writer.acks(1, [(number, 1)])
    return b"".join(writer.take_chunks())


def deleted(queue_id: int) -> bytes:
    writer = RecordWriter(CHECKSUM)
    writer.queue_deleted(queue_id)
    return b"".join(writer.take_chunks())


def flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def salvaged(payload: bytes) -> tuple[MessageLog, list[str]]:
    """Return what is left of a frame's payload, and the queues that have lost something."""
    log = memory_log()
    log.segments.add(Segment(1, 0, 1 << 40))
    return log, Replay(log, lambda lsn, length: payload[lsn : lsn + length]).salvage(payload, 0, len(payload), 0)


@pytest.mark.parametrize("size", [0, 1, 5, 100, 10_000])
@pytest.mark.parametrize(("time_ms", "expiration_ms"), [(0, -1), (5, -1), (5, 60_000)])
def test_a_record_with_a_damaged_body_or_time_is_stepped_over(size: int, time_ms: int, expiration_ms: int) -> None:
    first = message(b"x" * size, 1, time_ms, expiration_ms)
    length = int.from_bytes(first[4:8], "big")
    for place in {50, length - 9, length - 8, length - 1}:
        payload = flip(first, place) + deleted(7)
        assert trusted_end(CHECKSUM, payload, 0, len(payload)) == len(payload), place


@pytest.mark.parametrize("time_ms", [0, 5])
def test_a_flag_that_says_otherwise_about_a_time_makes_the_length_a_lie(time_ms: int) -> None:
    first = message(b"x" * 100, 1, time_ms)
    damaged = first[:9] + bytes([first[9] ^ 0x08]) + first[10:]
    assert trusted_end(CHECKSUM, damaged + deleted(7), 0, len(damaged)) == 0


def test_a_message_that_replaces_another_is_the_only_one_though_the_ack_before_it_is_lost() -> None:
    for lost in (flip(ack(1), 20), b""):
        log, hurt = salvaged(queue(3) + message(b"old") + lost + message(b"the new one", 1, 5, 60_000) + deleted(7))
        assert hurt == [], "an ACK is no message"
        index = log.indexes[1]
        page = index.page(0)
        assert page is not None
        assert (page.entries[2] & ~LSN_MASK, page.entries[3] & BODY_MASK) == (EXPIRING, 11)
        assert (int(index.lane), int(index.live_count), int(index.live_body_bytes)) == (3, 1, 11)
        log.check_invariants()


def test_a_damaged_message_tells_whose_it_was() -> None:
    log, hurt = salvaged(queue() + message(b"kept", 0) + flip(message(b"x" * 50, 1, 5), 100) + message(b"kept", 2))
    assert hurt == ["'q' in vhost '/'"]
    assert (int(log.indexes[1].live_count), int(log.indexes[1].damaged_count)) == (2, 1)


def test_a_damaged_length_leads_nowhere() -> None:
    """A publisher could have put a record into the body that it leads to."""
    planted = deleted(7)
    head = len(message(b""))
    for padding in range(8):
        first = message(b"\0" * padding + planted * 4)
        for length in range(32, len(first), 8):
            damaged = first[:4] + length.to_bytes(4, "big") + first[8:]
            assert trusted_end(CHECKSUM, damaged, 0, len(damaged)) == 0, (head, padding, length)


def test_nothing_is_believed_behind_the_end_of_the_payload() -> None:
    payload = deleted(7)
    assert trusted_end(CHECKSUM, payload + message(b"x"), 0, len(payload)) == len(payload)
    assert trusted_end(CHECKSUM, payload, 0, len(payload) - 8) == 0


def found_damaged(path: Path) -> MessageLog:
    """Return the log that a start makes of a damaged store."""
    files = Store(OsFileSystem(str(path / "messages")))
    files.open()
    log = MessageLog(CHECKSUM, 65536)
    assert recover(files, log, STORE_ID).damaged
    return log


def test_a_batch_whose_last_frame_has_a_damaged_head_keeps_the_other_frames(tmp_path: Path) -> None:
    """replay.py (4): it may have been finished."""
    store = StoreDirectory(tmp_path)
    store.frame(epoch(1), names(1, "q"))
    store.frame(stored((1, 0), body=b"kept"), is_continued=True)
    lost = store.frame(stored((1, 1), body=b"lost"))
    store.restart(store.previous_crc)
    store.frame(epoch(2))
    store.flip(lost + 9)
    assert found_damaged(tmp_path).indexes[1].live_count == 1


def test_what_a_start_reads_after_a_damaged_head_may_not_fit_what_it_has_lost(tmp_path: Path) -> None:
    """A message whose ack is lost comes again, and a page is not as the log says."""
    store = StoreDirectory(tmp_path)
    bodies = [stored((1, number), body=b"old") for number in range(3)]
    store.frame(epoch(1), names(1, "q"), *bodies)
    lost = store.frame(acks(1, (0, 2)))
    store.frame(page(1, 0, [(0, 0, 0, 0), (0, 0, 0, 0), (8, 0, 72, 3)]))
    store.frame(stored((1, 1), body=b"new"))
    store.flip(lost + 9)
    log = found_damaged(tmp_path)
    log.check_invariants()
    index = log.indexes[1]
    assert index.live_count == 3
    found = index.page(0)
    assert found is not None and found.dirty, "it is written again"
