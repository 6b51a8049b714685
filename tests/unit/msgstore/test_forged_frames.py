"""Frames that a publisher wrote into a message body: a crash does not bring them to life, for want of the store's tag.

Each test is run with the store's own tag too, which no publisher knows: then the frame is believed, so that it is the
tag that decides and nothing else that is wrong with the forgery.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

import pytest
from store_directory import (
    STORE_ID,
    TIME_MS,
    StoreDirectory,
    checkpoint_queue,
    checkpoint_segment,
    epoch,
    message,
    queue,
    queue_deleted,
)

from warren.msgstore.files.file_system import OsFileSystem
from warren.msgstore.files.recovery import Recovery, recover
from warren.msgstore.files.store import Store
from warren.msgstore.log.checksum import CRC32C, checksum_function
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.replay import maybe_frame
from warren.msgstore.log.scrub import Scrubber
from warren.msgstore.tools.format import FRAME_HEAD_BYTES, STORE_TAG_BYTES, Frame, Record

OWN_TAG: Final = STORE_ID[:STORE_TAG_BYTES]
# The earlier contents of this place in the format, a guess, and a tag with only its last byte wrong.
FOREIGN_TAGS: Final = (bytes(8), b"\xa5" * 8, OWN_TAG[:-1] + b"\xff")
MARK: Final = b"a frame is to be here"

FOREIGN = pytest.mark.parametrize("tag", FOREIGN_TAGS, ids=["zeros", "guess", "nearly"])


def forged(lsn: int, tag: bytes, records: list[dict[str, object]] | None = None) -> bytes:
    """Return a frame for the place `lsn`, right in every respect, which claims that all before it was durable."""
    made_up = [queue(3, "forged"), message((3, 0), body=b"forged"), message((1, 1), body=b"forged"), queue_deleted(2)]
    frame = {
        "lsn": lsn,
        "durable_lsn": lsn,
        "time_ms": TIME_MS,
        "epoch": 1,
        "previous_crc": 0xCAFE,
        "store_tag": tag,
        "records": made_up if records is None else records,
    }
    data: bytes = Frame.build(frame, algorithm=CRC32C)
    return data


def body_with_forgery(lsn: int, tag: bytes) -> tuple[bytes, int]:
    """Return the body of a message, first in the frame at `lsn`, that has a frame in it, and the LSN of that one."""
    for pad in range(8):
        record = Record.build(message((1, 1), body=bytes(pad) + MARK), algorithm=CRC32C)
        at = lsn + FRAME_HEAD_BYTES + record.index(MARK)
        if at % 8 == 0:
            return bytes(pad) + forged(at, tag) + bytes(200), at
    raise AssertionError("no place is a multiple of 8")


def append_with_forgery(store: StoreDirectory, tag: bytes) -> tuple[int, int]:
    """Append a frame with such a message; return its LSN and that of the forged frame."""
    body, inside = body_with_forgery(store.end_lsn, tag)
    lsn = store.frame(message((1, 1), body=body))
    assert store.file().read_bytes()[store.offset(inside) :].startswith(forged(inside, tag))
    return lsn, inside


def overwrite(store: StoreDirectory, lsn: int, length: int) -> None:
    """Put zeros at `lsn`: the bytes written there never reached the disk."""
    with store.file().open("r+b") as file:
        file.seek(store.offset(lsn))
        file.write(bytes(length))


def tear_end(store: StoreDirectory, lsn: int) -> None:
    overwrite(store, store.end_lsn - 16, 16)


def tear_head(store: StoreDirectory, lsn: int) -> None:
    overwrite(store, lsn, FRAME_HEAD_BYTES)


TORN = pytest.mark.parametrize("tear", [tear_head, tear_end], ids=["head", "end"])


def recovered(store: StoreDirectory) -> tuple[Store, MessageLog, Recovery]:
    files = Store(OsFileSystem(str(store.path / "messages")))
    files.open()
    log = MessageLog(checksum_function(CRC32C), 1 << 16)
    return files, log, recover(files, log, b"n" * 16)


def quarantined(store: StoreDirectory) -> list[str]:
    return [path.name for path in (store.path / "messages" / "quarantine").iterdir()]


def live(log: MessageLog) -> dict[str, int]:
    return {index.name: int(index.live_count) for index in log.indexes.values()}


def store_with_torn_tail(path: Path, tag: bytes, tear: Callable[[StoreDirectory, int], None]) -> StoreDirectory:
    """Two queues, one message; then a frame that a crash tore, with a forged one inside."""
    store = StoreDirectory(path)
    store.frame(epoch(1), queue(1, "orders"), queue(2, "other"), message((1, 0), body=b"kept"))
    lsn, _ = append_with_forgery(store, tag)
    tear(store, lsn)
    store.preallocate()
    return store


def store_with_torn_segment(path: Path, tag: bytes, tear: Callable[[StoreDirectory, int], None]) -> StoreDirectory:
    """The same, but the torn frame is the first one of the next segment."""
    store = StoreDirectory(path)
    store.frame(epoch(1), queue(1, "orders"), queue(2, "other"), message((1, 0), body=b"kept"))
    store.begin_segment()
    lsn, _ = append_with_forgery(store, tag)
    tear(store, lsn)
    store.preallocate()
    return store


STORES = pytest.mark.parametrize("make", [store_with_torn_tail, store_with_torn_segment], ids=["tail", "segment"])
Make = Callable[[Path, bytes, Callable[[StoreDirectory, int], None]], StoreDirectory]


@FOREIGN
@TORN
@STORES
def test_a_forged_frame_behind_a_torn_place_is_part_of_the_torn_tail(
    tmp_path: Path, make: Make, tear: Callable[[StoreDirectory, int], None], tag: bytes
) -> None:
    store = make(tmp_path, tag, tear)
    _, log, found = recovered(store)
    assert (found.damaged, [event.text for event in found.events], quarantined(store)) == (False, [], [])
    assert (found.frames, live(log)) == (1, {"orders": 1, "other": 0})


@TORN
@STORES
def test_with_the_tag_of_the_store_it_would_be_believed(
    tmp_path: Path, make: Make, tear: Callable[[StoreDirectory, int], None]
) -> None:
    store = make(tmp_path, OWN_TAG, tear)
    _, log, found = recovered(store)
    assert found.damaged
    assert quarantined(store)
    assert found.frames == 2
    assert live(log)["forged"] == 1
    assert "other" not in live(log)


@FOREIGN
def test_a_forged_frame_in_a_rotten_one_is_not_where_recovery_goes_on(tmp_path: Path, tag: bytes) -> None:
    store = StoreDirectory(tmp_path)
    store.frame(epoch(1), queue(1, "orders"), queue(2, "other"), message((1, 0), body=b"kept"))
    lsn, _ = append_with_forgery(store, tag)
    store.frame(message((1, 2), body=b"behind"))
    store.flip(lsn + FRAME_HEAD_BYTES + 30)
    _, log, found = recovered(store)
    assert found.damaged
    assert (found.frames, live(log)) == (2, {"orders": 2, "other": 0})


@FOREIGN
def test_a_frame_of_another_store_is_none_even_where_the_next_frame_should_be(tmp_path: Path, tag: bytes) -> None:
    store = StoreDirectory(tmp_path)
    store.frame(epoch(1), queue(1, "orders"))
    store.frame(queue(2, "other"), store_tag=tag)
    _, log, found = recovered(store)
    assert (found.frames, live(log)) == (1, {"orders": 0})


def test_a_forged_frame_costs_no_checksum() -> None:
    def refused(data: bytes, crc: int) -> NoReturn:
        raise AssertionError("a crc is computed for a frame of another store")

    assert maybe_frame(checksum_function(CRC32C), OWN_TAG, forged(64, OWN_TAG), 0, 64) is not None
    assert maybe_frame(refused, OWN_TAG, forged(64, FOREIGN_TAGS[-1]), 0, 64) is None


def test_segments_of_another_store_than_the_checkpoint_are_told(tmp_path: Path) -> None:
    store = StoreDirectory(tmp_path)
    store.frame(epoch(1), queue(1, "orders"))
    segments = [checkpoint_segment(1, 0, 1 << 16, store.end_lsn, 0, 0)]
    store.checkpoint(
        checkpoint_queue(1, "orders", next_number=0), live_refs={}, segments=segments, store_id=b"another one's id"
    )
    store.frame(message((1, 0), body=b"does not count"))
    _, log, found = recovered(store)
    assert found.damaged
    (event,) = found.events
    assert (event.level, event.text) == (
        "error",
        "a segment is of another store than the checkpoint: none of its frames counts",
    )
    assert (found.frames, live(log)) == (0, {"orders": 0})


@pytest.mark.parametrize(("tag", "damages"), [(OWN_TAG, 0), (FOREIGN_TAGS[-1], 1)], ids=["own", "foreign"])
def test_scrubbing_reports_a_frame_of_another_store(tmp_path: Path, tag: bytes, damages: int) -> None:
    store = StoreDirectory(tmp_path)
    store.frame(epoch(1), queue(1, "orders"))
    lsn = store.frame(message((1, 0), body=b"x"), store_tag=tag)
    store.begin_segment()
    store.frame()
    store.checkpoint(checkpoint_queue(1, "orders", next_number=1), live_refs={1: 1})
    files, log, _ = recovered(store)
    scrubber = Scrubber(log)
    read_bytes = []
    for number in (1, 2):
        while scrubber.passes < number and scrubber.step():
            for job in log.read_jobs:
                job.carry_out(files)
                job.finished()
            log.read_jobs = []
        read_bytes.append(scrubber.read_bytes)
    assert [int(damage.lsn) for damage in log.damage.reports] == [lsn] * damages
    assert read_bytes[0] > 0
    assert (read_bytes[1] == 2 * read_bytes[0]) == (damages == 0), "what is damaged is not read again"
