"""A leader's store on a disk in memory, whose frames are made by hand, and followers of it."""

from __future__ import annotations

from collections.abc import Sequence

from simulation.simulated_file_system import SimulatedFileSystem

from warren.msgstore.files.store import Store
from warren.msgstore.log.checkpoint import seal, snapshot
from warren.msgstore.log.checksum import checksum_function, default_algorithm
from warren.msgstore.log.epoch_table import EpochTable
from warren.msgstore.log.jobs import CommitJob
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.records import FRAME_HEADER_BYTES, SEGMENT_HEADER_BYTES
from warren.msgstore.log.segments import Segment
from warren.replication.entries import FROM_LEADER, PREAMBLE, Entry, FromLeader, Piece, entries_of
from warren.replication.replica_store import ReplicaStore
from warren.replication.shipping import Attachment, ShippedStore, Shipping

STORE_ID = bytes(range(16))
LIFE_ID = b"l" * 16
CAPACITY = 1024


class ShippedLog:
    """A log of segments of `capacity` bytes; each frame has 64 bytes."""

    def __init__(self, *, epoch: int = 1, store_id: bytes = STORE_ID, capacity: int = CAPACITY) -> None:
        self.capacity = capacity
        frame_bytes = FRAME_HEADER_BYTES + 64
        room_bytes = capacity - SEGMENT_HEADER_BYTES
        self.frames_end = SEGMENT_HEADER_BYTES + room_bytes // frame_bytes * frame_bytes  # in a full segment
        self.fs = SimulatedFileSystem()
        self.epoch = epoch
        self.store = Store(self.fs, clock_ms=lambda: 0)
        self.store.open()
        self.store.scan_sealed(store_id, lambda _stream_id, _offset: True)
        self.store.resume(0, 0, epoch, store_id, default_algorithm())
        epochs = EpochTable()
        epochs.begin(epoch, SEGMENT_HEADER_BYTES)
        self.shipping = Shipping(self.fs, epochs)
        self.files = ShippedStore(self.store, self.shipping)
        self.last_crc = 0
        self._batch = 0
        self._segment = 0
        self._lsn = capacity

    def job(self, *, sync: bool = True) -> CommitJob:
        """Return the next frame, which is not committed yet."""
        size = FRAME_HEADER_BYTES + 64
        if self._lsn + size > self._segment * self.capacity:
            self._lsn = self._segment * self.capacity + SEGMENT_HEADER_BYTES
            self._segment += 1
        self._batch += 1
        base = (self._segment - 1) * self.capacity
        payload = self._batch.to_bytes(8, "big") * 8
        job = CommitJob(self._batch, self._lsn, self._segment, base, self.capacity, [payload], 64, 1, sync)
        self._lsn += size
        return job

    def commit(self, count: int = 1, *, sync: bool = True) -> None:
        for _ in range(count):
            job = self.job(sync=sync)
            self.files.commit(job, 0)
            self.last_crc = int(job.crc)

    def compact(self, *numbers: int, needs: Sequence[int] = ()) -> None:
        """Write a checkpoint at the end of the log, which `needs` only these segments, and remove the others given."""
        algorithm = default_algorithm()
        state = MessageLog(checksum_function(algorithm), CAPACITY)
        state.algorithm, state.store_id, state.epoch = algorithm, STORE_ID, self.epoch
        state.epochs.begin(self.epoch, SEGMENT_HEADER_BYTES)
        state.epochs.name(self.epoch, LIFE_ID)
        for number in needs:
            segment = Segment(number, (number - 1) * self.capacity, self.capacity)
            segment.end_lsn = segment.base_lsn + self.frames_end
            segment.live_refs, segment.sealed = 1, True
            state.segments.add(segment)
        state.next_lsn, state.next_segment = self.shipping.end_lsn(), self._segment + 1
        self.files.write_checkpoint(seal(snapshot(state), state.checksum, self.last_crc))
        self.files.release(list(numbers))
        self.files.unlink(list(numbers))

    def attach(self, replica: ReplicaStore, *, reads_lives: bool = True) -> Attachment:
        attachment = self.shipping.attach(replica.position(), replica.sealed_files(), reads_lives=reads_lives)
        assert isinstance(attachment, Attachment)
        return attachment


def follower(log: ShippedLog, fs: SimulatedFileSystem | None = None) -> ReplicaStore:
    """Return a follower that is about to get what it lacks."""
    replica = ReplicaStore(fs or SimulatedFileSystem(), clock_ms=lambda: 0)
    replica.open()
    replica.follow(log.epoch, STORE_ID)
    return replica


def parsed(pieces: list[Piece]) -> list[FromLeader]:
    """Return the entries as they come out of the network."""
    return [_from_leader(entry) for entry in entries_of(PREAMBLE + b"".join(pieces), FROM_LEADER)]


def _from_leader(entry: Entry) -> FromLeader:
    assert isinstance(entry, FROM_LEADER)
    return entry  # type: ignore[return-value]


class Wire:
    """Carries out what is sent, at once."""

    def __init__(self, log: ShippedLog, replica: ReplicaStore, *, reads_lives: bool = True) -> None:
        self.replica = replica
        self.epoch = log.epoch
        self.attachment = log.attach(replica, reads_lives=reads_lives)
        for pieces in self.attachment.catch_up():
            self.put(pieces)
        assert self.attachment.go_live(self.put)

    def put(self, pieces: list[Piece]) -> None:
        for entry in parsed(pieces):
            self.replica.apply(entry, self.epoch)


def segments(fs: SimulatedFileSystem) -> dict[str, bytes]:
    """Return the bytes of all segments, without the zeros at their end."""
    return {path: data.rstrip(b"\0") for path, data in fs.contents().items() if path.startswith("log/0")}
