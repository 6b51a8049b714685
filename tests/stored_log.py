"""A message log without queues: entered into and settled by hand, over a disk in memory, and brought back from that."""

from __future__ import annotations

from memory_store import MemoryDisk, memory_log

from warren.msgstore.log.checkpoint import CheckpointReader, seal, snapshot
from warren.msgstore.log.compaction import Compaction
from warren.msgstore.log.message import Envelope, Message, build_message
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.queue_index import LSN_MASK, QueueIndex
from warren.msgstore.log.records import DROPPABLE, SEGMENT_HEADER_BYTES, page_entries
from warren.msgstore.log.replay import Replay, maybe_frame
from warren.msgstore.log.segments import Segment

# The two words of each live entry by sequence number, by queue id.
Entries = dict[int, dict[int, tuple[int, int]]]
MAX = 1 << 60


def timed_message(body: bytes, time_ms: int = 0, expiration_ms: int = -1, *, persistent: bool = True) -> Message:
    """Return a message; `expiration_ms` is its property expiration, -1 for none."""
    properties = b"\0\0" if expiration_ms < 0 else b"\1\0%c%d" % (len(str(expiration_ms)), expiration_ms)
    message = build_message(Envelope("", "q"), properties, body, 4096, persistent)
    message.time_ms = time_ms
    message.expiration_ms = expiration_ms
    return message


class StoredLog:
    """The log. Nothing is written before `rest`."""

    def __init__(self, segment_bytes: int = 1 << 16, page_entries_max: int = 4) -> None:
        self.log = memory_log(segment_bytes, page_entries_max)
        self.log.checkpoints.take = lambda: snapshot(self.log)
        self.disk = MemoryDisk(self.log)
        self.compaction = Compaction(self.log)

    def index(self, queue_id: int, lane: int = 0, *, transient: bool = False) -> QueueIndex:
        """Return the index of a lane of queue ``q``, a new one at first."""
        found = self.log.indexes.get(queue_id)
        return self.log.new_index(queue_id, "/", "q", lane, transient) if found is None else found

    def rest(self) -> None:
        """Write everything, and do the work that follows."""
        while True:
            self.log.close_if_due(lingered=True)
            if not self.disk.run() and self.log.is_idle():
                return

    def settle(self, index: QueueIndex, message: Message, number: int) -> None:
        """The message is gone. Its page is read first, as a queue does."""
        self.load(index, number // int(index.page_entries))
        self.log.batch.settle(index, message, number)

    def load(self, index: QueueIndex, page_number: int) -> None:
        """Load a page of the index into memory, if there is one."""
        page = index.page(page_number)
        if page is not None and not page.resident:
            data = self.disk.read(int(page.lsn), int(page.length))
            index.page_loaded(page, page_entries(data, 0), self.log.void_below_lsn)

    def unload(self, index: QueueIndex, page_number: int) -> None:
        """Give up the memory of a page, if there is one."""
        index.unload_candidates = [page_number]
        index.unload(0, MAX)
        self.rest()
        index.unload(0, MAX)

    def compact(self) -> None:
        """Empty every segment but the newest."""
        for _ in range(3):
            self.log.checkpoints.want()
            self.rest()
            while self.compaction.step(urgent=True):
                self.rest()

    def record(self, index: QueueIndex, number: int) -> bytes:
        """Return the bytes of the record of a message."""
        word0, word1 = entries(self.log, self.disk)[int(index.queue_id)][number]
        return self.disk.read(word0 & LSN_MASK, word1 >> 32)

    def message(self, index: QueueIndex, number: int) -> Message:
        """Return a message as it is stored."""
        data = self.record(index, number)
        found = self.log.maybe_message(index, number, data, 0, len(data), False)
        assert found is not None
        return found

    def checkpoint(self) -> bytes:
        """Return a checkpoint taken now."""
        return seal(snapshot(self.log), self.log.checksum, 0)

    def written_checkpoint(self) -> bytes:
        """Return the last checkpoint that the log has had written."""
        return seal(self.disk.checkpoint, self.log.checksum, 0)

    def restarted(self, checkpoint: bytes | None = None) -> MessageLog:
        """Return the log that a restart makes of a checkpoint and all frames after it, or of all frames without one."""
        log = memory_log(page_entries=int(self.log.page_entries))
        start = 0
        if checkpoint is not None:
            reader = CheckpointReader(checkpoint)
            reader.fill(log)
            start = reader.lsn
        there = {int(segment.base_lsn): segment for segment in self.log.segments.segments}
        # Without a checkpoint frames of segments that are gone by now, wherever those lay, are replayed, too.
        for number, base in enumerate(sorted(there.keys() | (self.disk.segments.keys() if checkpoint is None else ()))):
            if base >= log.next_base_lsn:
                capacity = there[base].capacity if base in there else len(self.disk.segments[base])
                log.segments.add(Segment(there[base].number if base in there else number + 1, base, capacity))
        replay = Replay(log, self.disk.read)
        for base, image in sorted(self.disk.segments.items()):
            data = bytes(image)
            at = SEGMENT_HEADER_BYTES
            while (head := maybe_frame(log.checksum, log.store_tag, data, at, base + at)) is not None:
                if head.lsn >= start:
                    replay.frame(data, head)
                at = head.end
        while log.read_jobs:
            jobs, log.read_jobs = log.read_jobs, []
            for job in jobs:
                job.carry_out(self.disk.files)
                job.finished()
        return log


def entries(log: MessageLog, disk: MemoryDisk) -> Entries:
    """Return what the indexes have that matters after a restart, whether their pages are in memory or not."""
    found: Entries = {}
    for queue_id, index in log.indexes.items():
        if index.transient:
            continue
        live = found[queue_id] = {}
        for page_number, page in enumerate(index.pages, int(index.first_page)):
            if page is None:
                continue
            words = page.entries if page.resident else page_entries(disk.read(int(page.lsn), int(page.length)), 0)
            for at in range(0, len(words), 2):
                if words[at] and not words[at] & DROPPABLE:
                    live[page_number * int(log.page_entries) + at // 2] = (int(words[at]), int(words[at + 1]))
    return found
