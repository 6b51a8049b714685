"""A start with no space left: a killed process's bytes after the end of the log make room for the first frame."""

from __future__ import annotations

import pytest
from durable_harness import DurableHarness
from simulation.simulated_file_system import SimulatedFileSystem

from warren.msgstore.files.store_errors import StoreFullError
from warren.msgstore.log.records import FRAME_MAGIC

FIRST = "log/0000000001"


def publish(harness: DurableHarness, body: bytes) -> None:
    harness.channel().publish("", "q", body, delivery_mode=2)
    harness.write()


def begun(fs: SimulatedFileSystem) -> DurableHarness:
    harness = DurableHarness(fs)
    harness.channel().declare("q", durable=True)
    publish(harness, b"first")
    return harness


def killed(fs: SimulatedFileSystem) -> SimulatedFileSystem:
    """Return the disk of the next process, which is full to the last byte."""
    disk = fs.kill9()
    disk.capacity = sum(map(len, disk.contents().values()))
    return disk


def test_a_frame_that_did_not_fit_makes_room_for_those_of_the_next_start() -> None:
    fs = SimulatedFileSystem()
    harness = begun(fs)
    fs.capacity = (1 << 20) + 5_000_000
    with pytest.raises(StoreFullError):
        publish(harness, bytes(8_000_000))
    disk = killed(fs)
    assert max(map(len, disk.contents().values())) > 4_000_000

    again = DurableHarness(disk, harness._catalogue)
    received = again.channel().get("q")
    assert received is not None and received.content is not None
    assert received.content.body == b"first"
    again.broker.log.checkpoints.want()
    again.write()
    assert again.broker.log.checkpoints.lsn > 0

    last = DurableHarness(disk.kill9(), harness._catalogue)
    assert last.vhost.queues["q"].ready_count == 1


def test_a_preallocated_segment_makes_room_and_nothing_is_cut_while_there_is_space() -> None:
    fs = SimulatedFileSystem()
    harness = begun(fs)
    disk = fs.kill9()
    size = len(disk.contents()[FIRST])
    DurableHarness(disk, harness._catalogue)
    assert len(disk.contents()[FIRST]) == size

    disk = killed(fs)
    again = DurableHarness(disk, harness._catalogue)
    assert len(disk.contents()[FIRST]) < size // 2
    assert again.vhost.queues["q"].ready_count == 1


def test_a_damaged_log_is_left_as_it_is() -> None:
    fs = SimulatedFileSystem()
    harness = begun(fs)
    publish(harness, b"second")
    disk = killed(fs)
    image = disk.contents()[FIRST]
    disk.flip_bit(FIRST, image.index(FRAME_MAGIC) + 100, 0)
    with pytest.raises(StoreFullError):
        DurableHarness(disk, harness._catalogue)
    assert len(disk.contents()[FIRST]) == len(image)
    assert [name for name in disk.contents() if name.startswith("quarantine/0000000001-")], "it takes no space"
