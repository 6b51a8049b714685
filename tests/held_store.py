"""A lane of held messages over a disk in memory: nobody owns it, it is driven by hand, and it can be restarted."""

from __future__ import annotations

from memory_store import MemoryDisk, memory_log

from warren.msgstore.log.checkpoint import CheckpointReader, seal, snapshot
from warren.msgstore.log.compaction import Compaction
from warren.msgstore.log.jobs import Errand
from warren.msgstore.log.message import Envelope, Message, build_message
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.queue_index import LSN_MASK, QueueIndex
from warren.msgstore.log.records import SEGMENT_HEADER_BYTES, page_entries
from warren.msgstore.log.replay import Replay, maybe_frame
from warren.msgstore.log.segments import Segment
from warren.queues.held_messages import HeldMessage, HeldMessages
from warren.queues.lanes import DELAYED

QUEUE_ID = 7
HELD_IN = Envelope("an exchange", "a key")


class Lane(HeldMessages):
    """A lane that records the bodies of the messages that it releases."""

    def __init__(self, log: MessageLog) -> None:
        super().__init__(log)
        self.out: list[bytes] = []
        self.dead: list[bytes] = []
        self.changes = 0
        self.dead_letters = True
        self.queues_each = 0  # to which a released message goes
        self.failing = b""  # the body of one whose release fails, or the decision about it
        self.fails_early = False

    def decide(self, number: int, message: Message, purpose: int) -> int:
        if self.fails_early and message.body() == self.failing:
            raise MemoryError
        return HeldMessages.decide(self, number, message, purpose)

    def released(self, message: Message) -> None:
        assert message.row < 0
        assert message.time_ms == 0
        if self.failing and message.body() == self.failing:
            raise MemoryError
        self.out.append(message.body())
        self.log.own.given += self.queues_each

    def may_dead_letter(self) -> bool:
        return self.dead_letters

    def dead_lettered(self, message: Message) -> None:
        self.dead.append(message.body())

    def changed(self) -> None:
        self.changes += 1


class Disk(MemoryDisk):
    """A disk whose jobs can be carried out one at a time; `lost`: places that can no longer be read."""

    def __init__(self, log: MessageLog) -> None:
        super().__init__(log)
        self.lost: set[int] = set()
        self.reads = 0

    def run(self) -> bool:
        self.log.reclamation.take_apart(1 << 40)  # as the broker's turns do
        return super().run()

    def commit_one(self) -> bool:
        """Carry out the requested commit; False without one."""
        return self._only(bool(self.log.commit_jobs), reads=False)

    def read_one(self) -> bool:
        """Carry out the first requested read; False without one."""
        jobs = self.log.read_jobs
        if not jobs:
            return False
        job = jobs.pop(0)
        job.carry_out(self.files)
        self.loaded(job)
        return True

    def _only(self, there: bool, *, reads: bool) -> bool:
        kept, self.log.read_jobs = self.log.read_jobs, []
        if there:
            self.run()
        self.log.read_jobs = kept + self.log.read_jobs
        return there

    def loaded(self, read: Errand) -> None:
        self.reads += 1
        super().loaded(read)

    def spoil(self, lsn: int) -> None:
        """Change a byte."""
        base = max(base for base in self.segments if base <= lsn)
        self.segments[base][lsn - base] ^= 0x55

    def read(self, lsn: int, length: int) -> bytes:
        if any(lsn <= place < lsn + length for place in self.lost):
            return b""
        return super().read(lsn, length)


class HeldStore:
    """The log, its disk, and the lane. Nothing is written before `rest`."""

    def __init__(self, *, segment_bytes: int = 1 << 14, page_entries: int = 4, stores: bool = True) -> None:
        self.page_entries = page_entries
        self.segment_bytes = segment_bytes
        self.stores = stores
        self.now_ms = 1_700_000_000_000
        self._take(memory_log(segment_bytes, page_entries))
        self.disk = Disk(self.log)

    def _take(self, log: MessageLog) -> None:
        self.log = log
        log.now_ms = self.now_ms
        log.checkpoints.take = lambda: snapshot(log)
        self.lane = Lane(log)
        self.compaction = Compaction(log)

    @property
    def index(self) -> QueueIndex:
        """The index of the lane, which has something stored."""
        assert self.lane.index is not None
        return self.lane.index

    def message(self, body: bytes, *, persistent: bool = True) -> Message:
        """Return a message that nobody holds yet."""
        return build_message(HELD_IN, b"\x00\x00", body, 4096, persistent)

    def begin_storing(self) -> None:
        """Give the lane an index, if it does not have one."""
        if self.lane.index is None:
            index = self.log.new_index(QUEUE_ID, "/", "q", DELAYED, not self.stores)
            self.lane.begin_storing(index)

    def hold(self, body: bytes, delay_ms: int, *, persistent: bool = True) -> int:
        """Hold a message; return its number."""
        stored = persistent and self.stores
        if stored:
            self.begin_storing()
        return self.lane.hold(self.message(body, persistent=persistent), self.now_ms + delay_ms, stored)

    def fill(
        self,
        count: int,
        *,
        first_ms: int = 0,
        step_ms: int,
        body: bytes = b"",
        absent: bool,
        persistent: bool = True,
    ) -> None:
        """Hold messages ``0``, ``1`` and so on, each `step_ms` longer; `absent`: on disk only, their pages too."""
        for number in range(count):
            self.hold(b"%d" % number + body, first_ms + number * step_ms, persistent=persistent)
            if number % 10 == 9:
                self.rest()
        self.rest()
        if absent:
            self.give_up_pages()

    def close_batch(self) -> None:
        """Close the open batch, if the one before is written."""
        self.log.close_if_due(lingered=True)

    def rest(self) -> None:
        """Write everything, read what was requested, and do the work that follows."""
        while True:
            self.close_batch()
            if not self.disk.run() and self.log.is_idle():
                return

    def pass_time(self, ms: int) -> None:
        """Advance the time by `ms`, or set the clock back; release the messages that are due then."""
        self.now_ms += ms
        self.log.now_ms = self.now_ms
        self.release()

    def release(self) -> None:
        """Release what is due."""
        self.rest()
        while self.lane.first_ms() <= self.now_ms:
            self.lane.release_due(self.now_ms)
            self.rest()

    def page_out(self) -> None:
        """Memory is short, for a moment."""
        self.log.under_pressure = True
        if self.lane.needs_index():
            self.begin_storing()
        self.lane.page_out()
        self.rest()
        self.lane.page_out()
        self.rest()
        self.log.under_pressure = False

    def give_up_pages(self) -> None:
        """Put everything on disk only that can be."""
        kept_max, self.lane.memory.kept_max = self.lane.memory.kept_max, -1
        first = int(self.index.first_page)
        self.index.unload_candidates += range(first, first + len(self.index.pages))
        for _ in range(3):
            self.lane.batch_closed()
            self.rest()
        self.lane.memory.kept_max = kept_max

    def load(self, page_number: int) -> None:
        """Load a page of the index into memory, if there is one."""
        page = self.index.page(page_number)
        if page is not None and not page.resident:
            data = self.disk.read(int(page.lsn), int(page.length))
            self.index.page_loaded(page, page_entries(data, 0), self.log.void_below_lsn)

    def record(self, number: int) -> bytes:
        """Return the bytes of the record of a message."""
        self.load(number // self.page_entries)
        page = self.index.page(number // self.page_entries)
        assert page is not None
        at = 2 * (number % self.page_entries)
        return self.disk.read(int(page.entries[at] & LSN_MASK), int(page.entries[at + 1] >> 32))

    def listed(self, most: int = 1000) -> list[HeldMessage]:
        """Return the earliest."""
        told: list[list[HeldMessage]] = []
        self.lane.list_earliest(most, told.append)
        self.rest()
        (listed,) = told
        return listed

    def take(self, numbers: list[int], purpose: int) -> int:
        """Take messages out; return their number."""
        told: list[int] = []
        self.lane.take(numbers, purpose, told.append)
        self.rest()
        (count,) = told
        return count

    def compact(self) -> None:
        """Empty every segment but the newest, a piece at a time."""
        for _ in range(3):
            self.log.checkpoints.want()
            self.rest()
            while self.compaction.step(urgent=True):
                self.rest()

    def checkpoint(self) -> None:
        """Write a checkpoint."""
        self.log.checkpoints.want()
        self.rest()

    def restart(self, *, scan: bool = True) -> None:
        """Die, and restart from disk: from the last checkpoint, if it exists, and the frames after it.

        `scan`: until all deadlines are known.
        """
        old, disk = self.log, self.disk
        log = memory_log(self.segment_bytes, self.page_entries)
        start = 0
        if disk.checkpoint:
            reader = CheckpointReader(seal(disk.checkpoint, old.checksum, 0))
            reader.fill(log)
            start = reader.lsn
        known = {int(segment.base_lsn) for segment in log.segments.segments}
        for segment in old.segments.segments:
            if int(segment.base_lsn) not in known and segment.base_lsn >= log.next_base_lsn:
                log.segments.add(Segment(segment.number, segment.base_lsn, segment.capacity))
        replay = Replay(log, disk.read)
        for base, image in sorted(disk.segments.items()):
            data = bytes(image)
            at = SEGMENT_HEADER_BYTES
            while (head := maybe_frame(log.checksum, log.store_tag, data, at, base + at)) is not None:
                if head.lsn >= start:
                    replay.frame(data, head)
                at = head.end
        for found in log.segments.segments:
            found.sealed = True
        log.begin_life(old.next_segment, old.next_base_lsn)
        self._take(log)
        self.disk = Disk(log)
        self.disk.segments = disk.segments
        self.disk.checkpoint = disk.checkpoint
        self.disk.lost = disk.lost
        index = log.indexes.get(QUEUE_ID)
        if index is not None:
            self.lane.restore(index)
        if scan:
            self.rest()

    def check(self) -> None:
        """Check what holds while nothing is in the open batch."""
        self.lane.check_invariants()
        self.log.check_invariants()
