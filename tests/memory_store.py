"""The disk of a message log, in memory: carries the log's jobs out at once and in order."""

from __future__ import annotations

from warren.channels.broker import Broker
from warren.msgstore.files.sealed_files import STREAMS, SealedFiles
from warren.msgstore.log.checksum import checksum_function, default_algorithm
from warren.msgstore.log.jobs import CommitJob, DropJob, Errand, SealedRead, SealJob
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.records import FRAME_HEADER_BYTES, frame_header
from warren.testing.disk import MemoryFiles


def memory_log(segment_bytes: int = 1 << 20, page_entries: int = 256) -> MessageLog:
    """Return an empty log."""
    return MessageLog(checksum_function(default_algorithm()), segment_bytes, page_entries)


def check_frame(log: MessageLog, commit: CommitJob) -> None:
    """Assert that the frame of a job is not larger than frames may be; a single record may be anything."""
    assert commit.payload_bytes <= log.frame_bytes or commit.record_count == 1, (
        f"a frame of {commit.record_count} records and {commit.payload_bytes} bytes, more than {log.frame_bytes}"
    )


class MemoryLogFiles:
    """The files of `disk`, as errands want them."""

    def __init__(self, disk: MemoryDisk) -> None:
        self._disk = disk
        self.streams = MemoryFiles()
        self.streams.mkdir(STREAMS)
        self.sealed = SealedFiles(self.streams, lambda handle, path: self.streams.sync(handle), lambda path: None)

    def read(self, ranges: list[tuple[int, int]]) -> list[bytes]:
        return [self._disk.read(lsn, length) for lsn, length in ranges]

    def seal(self, job: SealJob) -> None:
        self.sealed.seal(job)

    def read_sealed(self, job: SealedRead) -> None:
        self.sealed.read(job)

    def drop_sealed(self, job: DropJob) -> None:
        self.sealed.drop(job)

    def swap_sealed(self, stream_id: int, segments: list[int]) -> None:
        self.sealed.swap(stream_id, segments)

    def unmake_sealed(self, stream_id: int, segment: int) -> None:
        self.sealed.unmake(stream_id, segment)


class MemoryDisk:
    """The bytes that `log` has written; while `hold` is True no job is carried out."""

    def __init__(self, log: MessageLog) -> None:
        self.log = log
        self.hold = False
        self.told: list[tuple[int, list[bytes | None]]] | None = None  # for ``following_sql``
        self.unread: list[Errand] = []  # reads that the disk did not allow
        self.files = MemoryLogFiles(self)
        self.segments: dict[int, bytearray] = {}  # by base LSN
        self.checkpoint = b""
        self.commits = 0
        self.written_bytes = 0
        self.largest_frame_bytes = 0

    def run(self) -> bool:
        """Carry out what is asked for now; True when there was something."""
        log = self.log
        if self.hold:
            return False
        commits, log.commit_jobs = log.commit_jobs, []
        reads, log.read_jobs = log.read_jobs, []
        seals, log.seal_jobs = log.seal_jobs, []
        checkpoints, log.checkpoint_jobs = log.checkpoint_jobs, []
        unlinks, log.unlink_jobs = log.unlink_jobs, []
        for commit in commits:
            self.commits += 1
            check_frame(log, commit)
            if commit.record_count:
                header = frame_header(
                    log.checksum,
                    commit.chunks,
                    commit.payload_bytes,
                    commit.lsn,
                    durable_lsn=0,
                    time_ms=0,
                    epoch=1,
                    previous_crc=0,
                    record_count=commit.record_count,
                    store_tag=log.store_tag,
                    is_continued=commit.is_continued,
                )
                image = self.segments.setdefault(int(commit.base_lsn), bytearray(int(commit.capacity)))
                at = int(commit.lsn - commit.base_lsn)
                frame = header + b"".join(commit.chunks)
                assert len(frame) == FRAME_HEADER_BYTES + commit.payload_bytes
                image[at : at + len(frame)] = frame
                self.written_bytes += len(frame)
                self.largest_frame_bytes = max(self.largest_frame_bytes, len(frame))
            if commit.sync:
                commit.committed_lsn = commit.end_lsn()
            self.stored(commit)
        for read in reads:
            read.carry_out(self.files)
            self.loaded(read)
        for seal_job in seals:
            seal_job.carry_out(self.files)
            self.loaded(seal_job)
        for checkpoint in checkpoints:
            self.checkpoint = checkpoint.content
            log.checkpoints.written(checkpoint)
        for unlink in unlinks:
            assert unlink.segments
            self.unlinked()
        return bool(commits or reads or seals or checkpoints or unlinks)

    def stored(self, commit: CommitJob) -> None:
        """A commit is carried out."""
        self.log.committed(commit)

    def loaded(self, read: Errand) -> None:
        """A read is carried out."""
        read.finished()

    def unlinked(self) -> None:
        """Segments are no longer needed. They are kept here: some replay the log from its first frame."""

    def read(self, lsn: int, length: int) -> bytes:
        """Return ``length`` bytes from `lsn` on."""
        base = max(base for base in self.segments if base <= lsn)
        return bytes(self.segments[base][lsn - base : lsn - base + length])


class MemoryStore(MemoryDisk):
    """The disk of the log of `broker`."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker.log)
        self.broker = broker

    def stored(self, commit: CommitJob) -> None:
        self.broker.stored(commit)

    def loaded(self, read: Errand) -> None:
        self.broker.loaded(read)

    def unlinked(self) -> None:
        known = {int(segment.base_lsn) for segment in self.log.segments.segments}
        self.segments = {base: image for base, image in self.segments.items() if base in known}
