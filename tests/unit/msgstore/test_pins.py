"""Files that pins keep unchanged while the store continues, on a simulated disk.

The numbers in parentheses are the invariants in the header of ``warren/msgstore/files/pins.py``.
"""

from __future__ import annotations

import errno

import pytest
from simulation.simulated_file_system import Fault, SimulatedFileSystem
from unit.msgstore.sealed_disk import STORE_ID, Stream, opened

from warren.msgstore.files.file_system import FileSystem, write_all
from warren.msgstore.files.identities import identity_of
from warren.msgstore.files.pins import PINS, PinError, PinnedFile, Pins
from warren.msgstore.files.sealed_files import sealed_path
from warren.msgstore.files.store import Store
from warren.msgstore.log.jobs import CommitJob, DropJob
from warren.msgstore.log.log_position import LogPosition
from warren.msgstore.log.records import FRAME_HEADER_BYTES, SEGMENT_HEADER_BYTES

CAPACITY = 1 << 12


class Written:
    """A store with frames in it, each with a payload of its own."""

    def __init__(self, fs: FileSystem) -> None:
        self.store, _ = opened(fs)
        self.store.resume(0, 0, 1, STORE_ID, 1)
        self.end = 0
        self.crc = 0
        self.base = 0
        self.segment = 0

    def begin(self) -> None:
        self.segment += 1
        self.base = (self.segment - 1) * CAPACITY
        self.end = self.base + SEGMENT_HEADER_BYTES

    def frame(self, payload: bytes) -> None:
        job = CommitJob(1, self.end, self.segment, self.base, CAPACITY, [payload], len(payload), 1, True)
        self.store.commit(job, 0)
        self.end += FRAME_HEADER_BYTES + len(payload)
        self.crc = int(job.crc)

    def position(self) -> LogPosition:
        return LogPosition(self.end, self.crc, self.segment, self.base, 1, STORE_ID)


def contents(fs: FileSystem, holder: str, files: list[PinnedFile]) -> dict[str, bytes]:
    pins = Pins(fs)
    return {file.name: pins.read(holder, file, 0, file.size) for file in files}


def linked(fs: SimulatedFileSystem) -> list[str]:
    return [path for path in fs.contents() if path.startswith(PINS)]


def test_a_pin_has_the_checkpoint_the_segments_up_to_its_position_and_what_is_sealed_as_they_were() -> None:
    """(1) (2)"""
    fs = SimulatedFileSystem()
    written = Written(fs)
    written.begin()
    written.frame(b"first   ")
    written.begin()
    written.frame(b"second  ")
    written.store.write_checkpoint(b"old checkpoint")
    stream = Stream(written.store)
    stream.seal(10)
    stream.seal(10, begins=True)
    position = written.position()
    files = written.store.pin("copy", position)
    before = contents(fs, "copy", files)
    assert list(before) == [
        "checkpoint",
        "log/0000000001",
        "log/0000000002",
        sealed_path(7, 0),
        sealed_path(7, 10),
    ]
    assert before["checkpoint"] == b"old checkpoint"
    assert before["log/0000000002"].endswith(b"second  ")
    assert len(before["log/0000000002"]) == position.lsn - position.base_lsn

    written.frame(b"later   ")
    written.begin()
    written.frame(b"third   ")
    written.store.write_checkpoint(b"new checkpoint")
    written.store.release([1])
    written.store.unlink([1])
    stream.seal(10)
    written.store.drop_sealed(DropJob(7, [0]))
    assert "log/0000000001" not in fs.contents()
    assert sealed_path(7, 0) not in fs.contents()
    assert contents(fs, "copy", files) == before

    written.store.unpin("copy")
    assert linked(fs) == []


def test_a_segment_that_was_begun_behind_the_position_is_not_in_the_pin() -> None:
    fs = SimulatedFileSystem()
    written = Written(fs)
    written.begin()
    written.frame(b"in time ")
    position = written.position()
    written.begin()
    written.frame(b"too late")
    files = written.store.pin("copy", position)
    assert [file.name for file in files] == ["log/0000000001"]


def test_holders_do_not_touch_each_other() -> None:
    fs = SimulatedFileSystem()
    written = Written(fs)
    written.begin()
    written.frame(b"one     ")
    first = written.store.pin("a", written.position())
    written.frame(b"two     ")
    second = written.store.pin("ab", written.position())
    written.store.unpin("a")
    assert contents(fs, "ab", second)["log/0000000001"].endswith(b"two     ")
    with pytest.raises(PinError, match="No such file"):
        contents(fs, "a", first)


def test_what_a_killed_process_has_pinned_is_removed_at_the_next_start() -> None:
    """(3)"""
    fs = SimulatedFileSystem()
    written = Written(fs)
    written.begin()
    written.frame(b"kept    ")
    written.store.pin("copy", written.position())
    for left in (fs.kill9(), *fs.crash_states(1, 50)):
        Store(left).open()
        assert linked(left) == []
        assert left.contents()["log/0000000001"]


@pytest.mark.parametrize("nth", [1, 2])
def test_a_pin_that_fails_leaves_nothing_and_the_store_goes_on(nth: int) -> None:
    """(4)"""
    fs = SimulatedFileSystem()
    written = Written(fs)
    written.begin()
    written.frame(b"one     ")
    written.store.write_checkpoint(b"checkpoint")
    fs.fail(nth, Fault.ENOSPC, "link")
    with pytest.raises(PinError, match="No space left"):
        written.store.pin("copy", written.position())
    assert linked(fs) == []
    written.frame(b"two     ")
    assert len(written.store.pin("copy", written.position())) == 2


def test_a_file_system_without_hard_links_is_named_as_the_reason() -> None:
    class WithoutLinks(SimulatedFileSystem):
        def link(self, path: str, new: str) -> None:
            raise OSError(errno.EPERM, "no links")

    written = Written(WithoutLinks())
    written.begin()
    written.frame(b"one     ")
    with pytest.raises(PinError, match="makes no hard links"):
        written.store.pin("copy", written.position())


def test_what_is_shorter_than_it_was_is_refused() -> None:
    fs = SimulatedFileSystem()
    written = Written(fs)
    written.begin()
    written.frame(b"one     ")
    (file,) = written.store.pin("copy", written.position())
    handle = fs.open(file.name, writable=True)
    fs.truncate(handle, file.size - 1)
    with pytest.raises(PinError, match="shorter"):
        Pins(fs).read("copy", file, 0, file.size)


# Identities


def identity(fs: FileSystem, name: str, size: int) -> str:
    handle = fs.open(name, writable=False)
    return identity_of(name, size, lambda offset, length: fs.read(handle, min(length, size - offset), offset))


def test_a_segment_keeps_its_identity_while_it_grows_and_another_history_has_another() -> None:
    """identities.py (2)"""
    found = []
    for payload in (b"original", b"restored"):
        fs = SimulatedFileSystem()
        written = Written(fs)
        written.begin()
        written.frame(payload)
        found.append(identity(fs, "log/0000000001", written.end))
        written.frame(b"grown   ")
        assert identity(fs, "log/0000000001", written.end) == found[-1]
    assert found[0] != found[1]


def test_a_file_of_a_stream_has_another_identity_with_any_other_chunk_and_with_damage() -> None:
    """identities.py (3)"""
    found = set()
    for bodies in (b"one ", b"two "):
        fs = SimulatedFileSystem()
        store, _ = opened(fs)
        stream = Stream(store)
        stream.seal(5)
        stream._body = bodies
        stream.seal(5)
        path = sealed_path(7, 0)
        size = len(fs.contents()[path])
        assert identity(fs, path, size) == identity(fs, path, size)
        found.add(identity(fs, path, size))
        handle = fs.open(path, writable=True)
        write_all(fs, handle, [b"X"], 64 + 20)
        found.add(identity(fs, path, size))
    assert len(found) == 4
