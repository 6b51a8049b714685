"""The parts of a follower's directory, each alone: the marker, and the checkpoint that comes in."""

from __future__ import annotations

import pytest
from simulation.simulated_file_system import SimulatedFileSystem

from warren.msgstore.files.file_system import write_all
from warren.msgstore.files.store import CATCHING_UP, CHECKPOINT_TMP
from warren.msgstore.files.store_errors import StoreError
from warren.replication.catching_up_marker import CatchingUpMarker
from warren.replication.entries import CheckpointPiece
from warren.replication.replica_checkpoint import IncomingCheckpoint


class Disk:
    """A file system, and what was synced of it, in order."""

    def __init__(self) -> None:
        self.fs = SimulatedFileSystem()
        self.synced: list[str] = []

    def sync(self, handle: int, path: str) -> None:
        self.synced.append(path)

    def marker(self) -> CatchingUpMarker:
        return CatchingUpMarker(self.fs, self.sync, self.synced.append)

    def overwrite(self, path: str, data: bytes) -> None:
        handle = self.fs.open(path, writable=True)
        write_all(self.fs, handle, [data], 0)
        self.fs.close(handle)


def test_a_marker_keeps_the_first_lsn_until_nothing_is_missing() -> None:
    """catching_up_marker.py (1), (2)"""
    disk = Disk()
    marker = disk.marker()
    marker.read()
    assert marker.lsn is None and marker.is_above(1 << 60)
    marker.remove()
    assert disk.synced == []
    marker.put(64)
    assert disk.synced == [f"{CATCHING_UP}.tmp", "."]
    marker.put(128)
    assert marker.lsn == 64 and len(disk.synced) == 2, "from there on something may be missing"
    assert marker.is_above(63) and not marker.is_above(64)
    marker.put(32)
    other = disk.marker()
    other.read()
    assert other.lsn == 32
    other.remove()
    assert other.lsn is None and CATCHING_UP not in disk.fs.names(".") and disk.synced[-1] == "."


@pytest.mark.parametrize("data", [b"", b"WARRN", b"W" * 20])
def test_a_damaged_marker_is_an_error_and_what_was_known_stays(data: bytes) -> None:
    """catching_up_marker.py (3): a directory whose marker cannot be read is not one that has everything."""
    disk = Disk()
    marker = disk.marker()
    marker.put(64)
    handle = disk.fs.open(CATCHING_UP, writable=True)
    disk.fs.truncate(handle, 0)
    disk.fs.close(handle)
    disk.overwrite(CATCHING_UP, data)
    with pytest.raises(StoreError, match="damaged"):
        marker.read()
    assert marker.lsn == 64


def piece(offset: int, data: bytes, total: int) -> CheckpointPiece:
    return CheckpointPiece(64, total, offset, data)


def test_pieces_come_in_order_and_the_first_one_begins_again() -> None:
    """replica_checkpoint.py (1), (2)"""
    disk = Disk()
    incoming = IncomingCheckpoint(disk.fs, disk.sync, disk.synced.append)
    assert not incoming.write(piece(4, b"late", 8)), "nothing has begun"
    assert incoming.write(piece(0, b"some", 8)) and not incoming.write(piece(5, b"hole", 9))
    assert incoming.write(piece(4, b"more", 8)) and incoming.write(piece(4, b"MORE", 8)), "a piece can be repeated"
    assert incoming.content(8) == b"someMORE" and incoming.size == 8
    assert incoming.write(piece(0, b"new", 3)) and incoming.content(3) == b"new"
    assert disk.synced == []
    incoming.put("there")
    assert disk.synced == [CHECKPOINT_TMP, "."] and "there" in disk.fs.names(".")
    assert incoming.size == 0 and not incoming.write(piece(3, b"x", 4))
