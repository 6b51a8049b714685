"""The checkpoint: everything that replaying the log from its beginning up to an LSN would give, in one file.

All numbers big-endian, offsets in bytes. Transient queues and droppable entries are left out.

     0  8  magic b"WARRNCKP"
     8  2  major = 1
    10  2  minor = 3; 2 has epochs without ids, 1 does not have epochs; another one is refused
    12  1  checksum algorithm of the store
    13  1  flags: 0x01 clean: the process ended with this checkpoint, nothing was delivered after it
    14  2  number of epochs
    16 16  store id
    32  8  LSN: frames from here on must be replayed
    40  4  crc of the frame before that LSN
    44  4  epoch, of the process that wrote it
    48  8  next queue id
    56  8  number of the next segment
    64  8  base LSN of the next segment
    72  4  entries of a page
    76  4  number of segments
    80  4  number of queues
    84  4  number of doomed pages
    88     segments, 48 bytes each: number, base LSN, capacity, end LSN, live references, live bytes
           queues, each:
              0  8  queue id
              8  8  next sequence number
             16  8  sequence number below which messages may have been delivered before
             24  8  messages found damaged
             32  2  bytes of the vhost's name
             34  2  bytes of the queue's name
             36  4  number of pages
             40  2  lane
             42  2  flags: 0x01 messages with a time to live of their own were stored
             44  4  zero
             48     vhost, name (UTF-8)
                    pages, each:
                       0  8  page number
                       8  8  LSN of its PAGE record, 0: none
                      16  4  length of the PAGE record
                      20  4  number of entries that follow, two words each; 0: the PAGE record has them
                      24  4  live entries
                      28  4  zero
                      32  8  bytes of their bodies
                      40     entries
           doomed pages, 16 bytes each: LSN and length of PAGE records whose references are still to be released
           epochs, ascending, 32 bytes each: epoch, zero (4 bytes both), LSN of its first frame, id of the life (16
              bytes, zero: not known; not there in minor 2)
    end 4  crc over everything before
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, read_i16_be, read_i64_be, write_i16_be, write_i32_be, write_i64_be
from librt.vecs import append, vec
from mypy_extensions import i64

from warren.msgstore.log.checksum import CRC32, CRC32C, checksum_function
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.queue_index import IndexPage, QueueIndex
from warren.msgstore.log.records import (
    DROPPABLE,
    LIFE_ID_BYTES,
    SEGMENT_HEADER_BYTES,
    Checksum,
    short_word,
    signed_word,
    unsigned_word,
)
from warren.msgstore.log.segments import Segment

MAGIC: Final = b"WARRNCKP"
MAJOR: Final = 1
MINOR: Final = 3
# Of the earlier minor versions, these are read.
MINOR_WITHOUT_LIVES: Final = 2
MINOR_WITHOUT_EPOCHS: Final = 1
HEADER_BYTES: Final = 88
CLEAN: Final = 0x01
SEGMENT_BYTES: Final = 48
QUEUE_BYTES: Final = 48
HAS_EXPIRING: Final = 0x01
PAGE_BYTES: Final = 40
EPOCH_BYTES: Final = 16


class CheckpointError(ValueError):
    """This version cannot read the bytes as a checkpoint. Says why."""


class NewerCheckpointError(CheckpointError):
    """A newer Warren has written it. It is whole, and must not be replaced by a checkpoint of this version."""


def snapshot(log: MessageLog) -> bytes:
    """Return the current checkpoint of `log`, without its last parts: the crc of the frame before, and its own.

    For `CheckpointCycle.take`; `seal` makes it whole.
    """
    log.reclamation.release_pages()
    if log.segments.segments:
        log.epochs.forget_before(int(log.segments.segments[0].base_lsn) + SEGMENT_HEADER_BYTES)
    epochs = log.epochs.entries
    out = BytesWriter()
    out.write(MAGIC)
    write_i16_be(out, short_word(MAJOR))
    write_i16_be(out, short_word(MINOR))
    out.append(log.algorithm)
    out.append(CLEAN if log.checkpoints.clean else 0)
    write_i16_be(out, short_word(len(epochs)))
    out.write(log.store_id)
    write_i64_be(out, log.next_lsn)
    write_i32_be(out, signed_word(0))
    write_i32_be(out, signed_word(log.epoch))
    write_i64_be(out, log.next_queue_id)
    write_i64_be(out, log.next_segment)
    write_i64_be(out, log.next_base_lsn)
    write_i32_be(out, signed_word(log.page_entries))
    queues = [index for index in log.indexes.values() if index.named and not index.transient]
    doomed = [(lsn, length) for lsn, length, transient in log.doomed.left + log.doomed.pages if not transient]
    write_i32_be(out, signed_word(len(log.segments.segments)))
    write_i32_be(out, signed_word(len(queues)))
    write_i32_be(out, signed_word(len(doomed)))
    for segment in log.segments.segments:
        write_i64_be(out, segment.number)
        write_i64_be(out, segment.base_lsn)
        write_i64_be(out, segment.capacity)
        write_i64_be(out, segment.end_lsn)
        write_i64_be(out, segment.live_refs)
        write_i64_be(out, segment.live_bytes)
    for index in queues:
        _write_queue(out, index)
    for lsn, length in doomed:
        write_i64_be(out, lsn)
        write_i64_be(out, length)
    for epoch, first_lsn in epochs:
        write_i32_be(out, signed_word(epoch))
        write_i32_be(out, 0)
        write_i64_be(out, first_lsn)
        out.write(log.epochs.life_id(epoch))
    return out.getvalue()


def seal(content: bytes, checksum: Checksum, last_crc: int) -> bytes:
    """Return the whole file of a `snapshot` taken right after the frame with `last_crc`."""
    content = content[:40] + last_crc.to_bytes(4, "big") + content[44:]
    return content + checksum(content, 0).to_bytes(4, "big")


def without_lives(content: bytes, checksum: Checksum) -> bytes:
    """Return a whole checkpoint of this minor as one of minor 2: without the ids of lives."""
    size = EPOCH_BYTES + LIFE_ID_BYTES
    count = int.from_bytes(content[14:16], "big")
    start = len(content) - 4 - count * size
    epochs = b"".join(content[at : at + EPOCH_BYTES] for at in range(start, len(content) - 4, size))
    content = content[:10] + MINOR_WITHOUT_LIVES.to_bytes(2, "big") + content[12:start] + epochs
    return content + checksum(content, 0).to_bytes(4, "big")


def _write_queue(out: BytesWriter, index: QueueIndex) -> None:
    vhost = index.vhost.encode()
    name = index.name.encode()
    delivered_below = index.delivered_below
    if index.owner is not None:
        delivered_below = index.owner.delivered_below()
    pages: i64 = 0
    for page in index.pages:
        if page is not None:
            pages += 1
    # Damage that the next process finds by itself does not count twice.
    damaged_count: i64 = index.damaged_count
    damaged_pages: list[tuple[int, IndexPage]] = []
    damage = index.damage
    if damage is not None:
        damaged_count -= len(damage.numbers)
        for number in sorted(damage.pages):
            # Where messages were stored again under the numbers of a damaged page, theirs is the only one.
            if index.page(number) is None:
                damaged_pages.append((number, damage.pages[number]))
                damaged_count -= damage.pages[number].live
                pages += 1
    write_i64_be(out, index.queue_id)
    write_i64_be(out, index.next_number)
    write_i64_be(out, delivered_below)
    write_i64_be(out, damaged_count)
    write_i16_be(out, short_word(len(vhost)))
    write_i16_be(out, short_word(len(name)))
    write_i32_be(out, signed_word(pages))
    write_i16_be(out, short_word(index.lane))
    write_i16_be(out, HAS_EXPIRING if index.has_expiring else 0)
    write_i32_be(out, 0)
    out.write(vhost)
    out.write(name)
    page_number: i64 = index.first_page
    at: i64 = 0
    for page in index.pages:
        if page is not None:
            while at < len(damaged_pages) and damaged_pages[at][0] < page_number:
                _write_page(out, damaged_pages[at][1], damaged_pages[at][0], False)
                at += 1
            may_grow = (page_number + 1) * index.page_entries > index.next_number
            _write_page(out, page, page_number, may_grow)
        page_number += 1
    while at < len(damaged_pages):
        _write_page(out, damaged_pages[at][1], damaged_pages[at][0], False)
        at += 1


def _write_page(out: BytesWriter, page: IndexPage, page_number: i64, may_grow: bool) -> None:
    """Write a page, with its entries unless its PAGE record has them.

    A page that `may_grow` is always written with its entries: the next process must be able to add to it.
    """
    entries = page.entries
    words: i64 = len(entries)
    if not page.dirty and not may_grow:
        words = 0
    write_i64_be(out, page_number)
    write_i64_be(out, page.lsn)
    write_i32_be(out, signed_word(page.length))
    write_i32_be(out, signed_word(words // 2))
    write_i32_be(out, signed_word(page.live - page.droppable))
    write_i32_be(out, signed_word(0))
    write_i64_be(out, page.body_bytes)
    at: i64 = 0
    while at < words:
        word0: i64 = entries[at]
        if word0 & DROPPABLE:
            word0 = 0
        write_i64_be(out, word0)
        write_i64_be(out, entries[at + 1])
        at += 2


class CheckpointReader:
    """Brings an empty log to the state of a checkpoint."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at: i64 = HEADER_BYTES
        if len(content) < HEADER_BYTES + 4 or content[:8] != MAGIC:
            raise CheckpointError("it does not begin like a checkpoint")
        major = int.from_bytes(content[8:10], "big")
        minor = int.from_bytes(content[10:12], "big")
        if major != MAJOR or not MINOR_WITHOUT_EPOCHS <= minor <= MINOR:
            reason = f"it has format version {major}.{minor}, this Warren reads {MAJOR}.{MINOR}"
            # Else the number itself may be damaged.
            is_whole = content[12] in (CRC32C, CRC32) and self.is_intact(checksum_function(content[12]))
            if is_whole and (major, minor) > (MAJOR, MINOR):
                raise NewerCheckpointError(reason)
            raise CheckpointError(reason)
        self.minor: int = minor
        self.algorithm = content[12]
        self.clean: bool = content[13] & CLEAN != 0
        self.store_id = content[16:32]
        self.lsn: int = int(read_i64_be(content, 32))
        self.last_crc: int = int(unsigned_word(content, 40))
        self.epoch: int = int(unsigned_word(content, 44))
        self.page_entries: int = int(unsigned_word(content, 72))

    def is_intact(self, checksum: Checksum) -> bool:
        """Check the crc of the file."""
        content = self._content
        return checksum(content[:-4], 0) == int.from_bytes(content[-4:], "big")

    def fill(self, log: MessageLog) -> None:
        """Enter everything into `log`."""
        content = self._content
        log.algorithm = self.algorithm
        log.store_id = self.store_id
        log.epoch = self.epoch
        log.last_crc = self.last_crc
        log.next_lsn = self.lsn
        log.page_entries = self.page_entries
        log.next_queue_id = int(read_i64_be(content, 48))
        log.next_segment = read_i64_be(content, 56)
        log.next_base_lsn = read_i64_be(content, 64)
        for _ in range(int(unsigned_word(content, 76))):
            self._read_segment(log)
        for _ in range(int(unsigned_word(content, 80))):
            self._read_queue(log)
        doomed: list[tuple[int, int, bool]] = []
        for _ in range(int(unsigned_word(content, 84))):
            doomed.append((int(read_i64_be(content, self._at)), int(read_i64_be(content, self._at + 8)), False))
            self._at += 16
        log.doomed.restore(doomed)
        for _ in range(int(unsigned_word(content, 12)) & 0xFFFF):
            epoch = int(unsigned_word(content, self._at))
            log.epochs.begin(epoch, int(read_i64_be(content, self._at + 8)))
            self._at += EPOCH_BYTES
            if self.minor > MINOR_WITHOUT_LIVES:
                log.epochs.name(epoch, content[self._at : self._at + LIFE_ID_BYTES])
                self._at += LIFE_ID_BYTES

    def _read_segment(self, log: MessageLog) -> None:
        content = self._content
        at: i64 = self._at
        segment = Segment(read_i64_be(content, at), read_i64_be(content, at + 8), read_i64_be(content, at + 16))
        segment.end_lsn = read_i64_be(content, at + 24)
        segment.live_refs = read_i64_be(content, at + 32)
        segment.live_bytes = read_i64_be(content, at + 40)
        segment.sealed = True
        log.segments.add(segment)
        self._at = at + SEGMENT_BYTES

    def _read_queue(self, log: MessageLog) -> None:
        content = self._content
        at: i64 = self._at
        vhost_bytes: i64 = i64(read_i16_be(content, at + 32)) & 0xFFFF
        name_bytes: i64 = i64(read_i16_be(content, at + 34)) & 0xFFFF
        name_at: i64 = at + QUEUE_BYTES + vhost_bytes
        vhost = content[at + QUEUE_BYTES : name_at].decode()
        name = content[name_at : name_at + name_bytes].decode()
        lane: i64 = i64(read_i16_be(content, at + 40)) & 0xFFFF
        index = log.new_index(int(read_i64_be(content, at)), vhost, name, lane, False)
        index.named = True
        index.has_expiring = i64(read_i16_be(content, at + 42)) & HAS_EXPIRING != 0
        index.next_number = read_i64_be(content, at + 8)
        index.delivered_below = read_i64_be(content, at + 16)
        index.damaged_count = read_i64_be(content, at + 24)
        pages: i64 = unsigned_word(content, at + 36)
        self._at = name_at + name_bytes
        while pages > 0:
            self._read_page(index)
            pages -= 1

    def _read_page(self, index: QueueIndex) -> None:
        content = self._content
        at: i64 = self._at
        page = IndexPage()
        page.lsn = read_i64_be(content, at + 8)
        page.length = unsigned_word(content, at + 16)
        words: i64 = 2 * unsigned_word(content, at + 20)
        page.live = unsigned_word(content, at + 24)
        page.body_bytes = read_i64_be(content, at + 32)
        page.resident = words > 0 or page.lsn == 0
        page.dirty = page.resident
        page_number: i64 = read_i64_be(content, at)
        at += PAGE_BYTES
        entries = vec[i64]()
        while words > 0:
            entries = append(entries, read_i64_be(content, at))
            at += 8
            words -= 1
        page.entries = entries
        self._at = at
        if page.live == 0:
            # Its entries were droppable, and will never be settled: release its record here.
            index.release_record(page)
        else:
            index.restore_page(page_number, page)
