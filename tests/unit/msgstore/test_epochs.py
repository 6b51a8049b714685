"""Epochs over the lives of a store: which one begins, and what recovery and checkpoints know of earlier ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
from durable_harness import DurableHarness
from engine_harness import publish_frames, queue_declare
from life_ids import new_life_id
from simulation.simulated_file_system import SimulatedFileSystem
from store_directory import StoreDirectory, checkpoint_queue, epoch, life, message, queue

from warren.msgstore.files.file_system import OsFileSystem
from warren.msgstore.files.recovery import recover
from warren.msgstore.files.store import Store
from warren.msgstore.files.store_errors import StoreError
from warren.msgstore.log.checksum import CRC32C, checksum_function
from warren.msgstore.log.epoch_table import NO_LIFE
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.tools.format import FRAME_HEAD_BYTES, Checkpoint

SEGMENT_BYTES: Final = 1 << 16


def recovered(path: Path, begins: int | None = None) -> MessageLog:
    files = Store(OsFileSystem(str(path / "messages")))
    files.open()
    log = MessageLog(checksum_function(CRC32C), SEGMENT_BYTES)
    recover(files, log, b"n" * 16, begins)
    return log


def two_epochs(path: Path) -> StoreDirectory:
    """Return a store that was started twice, a message each time."""
    store = StoreDirectory(path)
    store.frame(epoch(1), queue(1, "orders"), message((1, 0)))
    store.restart(store.previous_crc)
    store.frame(epoch(2), message((1, 1)))
    return store


def test_the_epoch_behind_the_largest_begins_when_none_is_given(tmp_path: Path) -> None:
    two_epochs(tmp_path)
    log = recovered(tmp_path)
    assert (log.epoch, log.epochs.entries) == (3, [(1, 64), (2, SEGMENT_BYTES + 64)])


def test_the_epoch_begins_that_is_given(tmp_path: Path) -> None:
    two_epochs(tmp_path)
    log = recovered(tmp_path, 9)
    assert (log.epoch, log.epochs.last()) == (9, 2)
    log.begin_epoch(int(log.epoch), 0, new_life_id())
    assert log.epochs.entries[-1] == (9, 2 * SEGMENT_BYTES + 64)


@pytest.mark.parametrize("given", [1, 2])
def test_an_epoch_that_was_before_does_not_begin_again(tmp_path: Path, given: int) -> None:
    two_epochs(tmp_path)
    with pytest.raises(StoreError, match=rf"epoch {given} cannot begin: this store has been in epoch 2\."):
        recovered(tmp_path, given)


def test_an_epoch_of_which_only_the_segment_was_begun_does_not_begin_again(tmp_path: Path) -> None:
    """Its first frame is torn here, and may be whole in another copy."""
    store = two_epochs(tmp_path)
    store.restart(store.previous_crc)
    log = recovered(tmp_path)
    assert (log.epoch, log.epochs.entries) == (4, [(1, 64), (2, SEGMENT_BYTES + 64)])


def test_an_epoch_whose_first_frame_is_damaged_has_begun_with_its_segment(tmp_path: Path) -> None:
    store = two_epochs(tmp_path)
    store.frame(message((1, 2)))
    path = store.file()
    data = bytearray(path.read_bytes())
    data[64 + FRAME_HEAD_BYTES + 20] ^= 1
    path.write_bytes(data)
    assert recovered(tmp_path).epochs.entries == [(1, 64), (2, SEGMENT_BYTES + 64)]


def checkpointed(path: Path, **fields: Any) -> StoreDirectory:
    """Return such a store with a checkpoint between the first start and the second."""
    store = StoreDirectory(path)
    store.frame(epoch(1), queue(1, "orders"))
    store.checkpoint(checkpoint_queue(1, "orders", next_number=0), live_refs={1: 1}, **fields)
    store.frame(message((1, 0)))
    store.restart(store.previous_crc)
    store.frame(epoch(2))
    return store


def test_the_table_of_the_checkpoint_goes_on_with_the_frames_behind_it(tmp_path: Path) -> None:
    checkpointed(tmp_path, epochs=[{"epoch": 1, "first_lsn": 64}])
    assert recovered(tmp_path).epochs.entries == [(1, 64), (2, SEGMENT_BYTES + 64)]


def test_behind_a_checkpoint_without_a_table_later_epochs_are_known(tmp_path: Path) -> None:
    checkpointed(tmp_path, minor=1)
    log = recovered(tmp_path)
    assert (log.epoch, log.epochs.entries) == (3, [(2, SEGMENT_BYTES + 64)]), "where epoch 1 began nobody knows"


@pytest.mark.parametrize(("major", "minor"), [(1, 4), (2, 0)])
def test_a_checkpoint_of_a_newer_warren_is_refused_with_what_to_do(tmp_path: Path, major: int, minor: int) -> None:
    checkpointed(tmp_path).checkpoint_of_version(major, minor)
    with pytest.raises(StoreError, match=rf"{major}\.{minor}, .*; a newer Warren has written this store$"):
        recovered(tmp_path)


LIFE_IDS: Final = (b"a" * 16, b"b" * 16)


def test_the_ids_of_lives_come_from_the_log_and_from_the_checkpoint(tmp_path: Path) -> None:
    store = StoreDirectory(tmp_path)
    store.frame(epoch(1), life(1, LIFE_IDS[0]), queue(1, "orders"))
    store.checkpoint(
        checkpoint_queue(1, "orders", next_number=0),
        live_refs={1: 1},
        epochs=[{"epoch": 1, "first_lsn": 64, "life_id": LIFE_IDS[0]}],
    )
    store.restart(store.previous_crc)
    store.frame(epoch(2), life(2, LIFE_IDS[1]))
    store.restart(store.previous_crc)
    store.frame(epoch(3))  # by an earlier version
    log = recovered(tmp_path)
    assert [epoch for epoch, _ in log.epochs.entries] == [1, 2, 3]
    assert [log.epochs.life_id(epoch) for epoch in (1, 2, 3)] == [*LIFE_IDS, NO_LIFE]


def test_two_copies_of_a_store_that_are_started_have_lives_of_their_own(tmp_path: Path) -> None:
    two_epochs(tmp_path)
    lives = []
    for _ in range(2):
        log = recovered(tmp_path)
        log.begin_epoch(int(log.epoch), 0, new_life_id())
        lives.append((int(log.epoch), log.epochs.life_id(int(log.epoch))))
    assert lives[0][0] == lives[1][0], "the number is the same"
    assert lives[0][1] != lives[1][1]


class _Lives:
    """A broker, started again and again on one disk."""

    def __init__(self) -> None:
        self.harness = DurableHarness(SimulatedFileSystem())
        self.client = self.harness.channel()
        self.client.call(1, queue_declare("q", durable=True))

    def start_again(self, *, clean: bool) -> None:
        self.harness = self.harness.restart(clean=clean)
        self.client = self.harness.channel()

    def publish(self) -> None:
        self.client.feed(publish_frames("", "q", bytes(600_000), properties={"delivery_mode": 2}))
        self.harness.write()

    def checkpoint(self) -> dict[str, Any]:
        self.harness.broker.log.checkpoints.want()
        self.harness.settle()
        fs = self.harness._fs
        handle = fs.open("checkpoint", writable=False)
        parsed: dict[str, Any] = Checkpoint.parse(fs.read(handle, 1 << 20, 0))
        fs.close(handle)
        return parsed


@pytest.mark.parametrize("clean", [True, False])
def test_every_start_has_an_entry_in_the_checkpoint_as_long_as_its_segments_are_there(clean: bool) -> None:
    lives = _Lives()
    for _ in range(3):
        lives.publish()
        lives.start_again(clean=clean)
    lives.checkpoint()
    found = lives.checkpoint()
    assert [each.epoch for each in found["epochs"]] == [1, 2, 3, 4]
    assert len({each.life_id for each in found["epochs"]} - {NO_LIFE}) == 4
    for each in found["epochs"]:
        (segment,) = [s for s in found["segments"] if s.base_lsn + 64 == each.first_lsn]
        assert segment.live_refs >= 0
    while lives.client.get("q", no_ack=True):
        pass
    lives.checkpoint()  # the segments go with it
    found = lives.checkpoint()
    assert len(found["segments"]) == 1
    assert [each.epoch for each in found["epochs"]] == [3, 4], (
        "the one that ended where the oldest segment begins stays"
    )
    epochs = lives.harness.broker.log.epochs.entries
    lives.start_again(clean=clean)
    assert lives.harness.broker.log.epochs.entries[:-1] == epochs
