"""The live state of a store: the state that a broker would start with, brought back without changing a file.

The broker's own recovery does the work, on files that only pretend to be copied and synced. So the tools show what a
broker would serve, and there is one reading of the log.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from librt.vecs import vec
from mypy_extensions import i64

from warren.msgstore.files.recovery import Recovery, recover
from warren.msgstore.files.segment_header import SegmentHeader, remade_header
from warren.msgstore.files.store_errors import StoreError
from warren.msgstore.log.checkpoint import CheckpointError, CheckpointReader, NewerCheckpointError
from warren.msgstore.log.checksum import checksum_function, default_algorithm
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.queue_index import BODY_MASK, LENGTH_SHIFT, LSN_MASK, IndexPage, QueueIndex
from warren.msgstore.log.records import (
    DROPPABLE,
    MESSAGE,
    PAGE,
    is_intact,
    page_entries,
    place_count,
    queue_id_of_place,
    record_length,
    sequence_number_of_place,
)
from warren.msgstore.tools.lines import Line, UnreadableStore
from warren.msgstore.tools.log_files import SegmentFile, StoreFiles

_OPEN_FILES_MAX: Final = 64
# The tools do not look at new segments.
_SEGMENT_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Entry:
    """A live message of a queue, as the index has it."""

    number: int
    lsn: int
    length: int
    body_bytes: int


@dataclass(frozen=True, slots=True)
class LostPage:
    """A page of the index whose PAGE record is missing. `live`: the number of its messages."""

    page: IndexPage
    page_number: int
    lsn: int
    live: int


@dataclass(frozen=True, slots=True)
class CheckpointFacts:
    """The facts in a checkpoint about the log. `end_lsns` of the segments that were complete by then."""

    file_bytes: int
    lsn: int
    previous_crc: int
    epoch: int
    store_id: bytes
    is_clean: bool
    end_lsns: dict[int, int]
    live_refs: dict[int, int]
    queues: int
    epochs: list[tuple[int, int, bytes]]  # with the LSN of the first frame of each, and the id of its life


class LogReader:
    """Reads the log by LSN. Holds a bounded number of files open; close it."""

    def __init__(self, files: StoreFiles) -> None:
        self._files = files
        self._open: OrderedDict[int, SegmentFile] = OrderedDict()
        self.headers: list[SegmentHeader] = []
        self.problems: list[str] = []
        self._remade: dict[int, SegmentHeader] = {}
        damaged: list[int] = []
        for number in files.segments:
            try:
                with files.segment(number) as file:
                    if file.header is None:
                        damaged.append(number)
                    else:
                        self.headers.append(header_of(file))
            except UnreadableStore as error:
                self.problems.append(str(error))
        for number in damaged:
            self._remake(number)
        self.headers.sort(key=lambda header: header.base_lsn)
        self._bases = [header.base_lsn for header in self.headers]

    def __enter__(self) -> LogReader:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._open.values():
            file.__exit__(None, None, None)
        self._open.clear()

    def _remake(self, number: int) -> None:
        """Make a damaged header again, as a start does."""
        files = self._files
        with files.segment(number) as file:

            def read(_number: int, offset: int, length: int) -> bytes:
                return file.range(offset, length)

            header = remade_header(read, number, file.size, self.headers, files.maybe_checkpoint())
            if header is None:
                self.problems.append(f"segment {number}: {file.fault}")
                return
        self._remade[number] = header
        self.headers = sorted([*self.headers, header], key=lambda each: each.number)

    def segment_of(self, lsn: int) -> int | None:
        """Return the number of the segment file that holds `lsn`."""
        at = bisect_right(self._bases, lsn) - 1
        if at < 0 or lsn >= self._bases[at] + self.headers[at].capacity:
            return None
        return self.headers[at].number

    def read(self, lsn: int, length: int) -> bytes:
        """Return the bytes at `lsn`, fewer or none where they are missing."""
        number = self.segment_of(lsn)
        if number is None:
            return b""
        file = self.file(number)
        return file.read(lsn - file.header.base_lsn, length)

    def file(self, number: int) -> SegmentFile:
        """Return an open segment file."""
        file = self._open.get(number)
        if file is None:
            if len(self._open) >= _OPEN_FILES_MAX:
                _, oldest = self._open.popitem(last=False)
                oldest.__exit__(None, None, None)
            file = self._open[number] = self._files.segment(number, self._remade.get(number))
        return file


class UnchangedFiles:
    """The files of a store for recovery, which may ask for changes and does not get them."""

    def __init__(self, files: StoreFiles, reader: LogReader) -> None:
        self.highest_number = files.highest_number
        self._files = files
        self._reader = reader

    def read_checkpoint(self) -> bytes | None:
        return self._files.maybe_checkpoint()

    def open_segments(self) -> tuple[list[SegmentHeader], list[str]]:
        return self._reader.headers, self._reader.problems

    def read_range(self, number: int, offset: int, length: int) -> bytes:
        return self._reader.file(number).range(offset, length)

    def read(self, ranges: list[tuple[int, int]]) -> list[bytes]:
        return [self._reader.read(lsn, length) for lsn, length in ranges]

    def quarantine(self, number: int) -> None:
        pass

    def set_aside(self, number: int) -> None:
        pass

    def sync_segments(self, numbers: list[int]) -> None:
        pass

    def recovered(self, number: int, length: int) -> None:
        pass


class StoredState:
    """The live messages of a store."""

    def __init__(self, log: MessageLog, reader: LogReader, recovery: Recovery | None = None) -> None:
        self.log = log
        self.reader = reader
        self.recovery = recovery

    def queues(self) -> list[QueueIndex]:
        """Return the indexes, by vhost, name and lane."""
        return sorted(self.log.indexes.values(), key=lambda i: (i.vhost, i.name, int(i.lane), int(i.queue_id)))

    def entries(self, index: QueueIndex) -> Iterator[Entry | LostPage]:
        """Yield the live messages of a queue in order, except for those of pages that cannot be read."""
        page_entries_max = int(index.page_entries)
        for at, page in enumerate(list(index.pages)):
            if page is None:
                continue
            page_number = int(index.first_page) + at
            words = self.words(index, page, page_number)
            if words is None:
                yield LostPage(page, page_number, int(page.lsn), int(page.live))
                continue
            first = page_number * page_entries_max
            for offset in range(0, len(words), 2):
                word0, word1 = int(words[offset]), int(words[offset + 1])
                if word0 and not word0 & DROPPABLE:
                    length, body_bytes = word1 >> LENGTH_SHIFT & BODY_MASK, word1 & BODY_MASK
                    yield Entry(first + offset // 2, word0 & LSN_MASK, length, body_bytes)

    def words(self, index: QueueIndex, page: IndexPage, page_number: int) -> vec[i64] | None:
        """Return the entries of a page, from its PAGE record when they are not in memory; None when that is lost."""
        if page.resident:
            return page.entries
        data = self.reader.read(int(page.lsn), int(page.length))
        if not self._is_record(data, int(page.length), PAGE):
            return None
        if data[16:32] != int(index.queue_id).to_bytes(8, "big") + page_number.to_bytes(8, "big"):
            return None
        return page_entries(data, 0)

    def message(self, index: QueueIndex, entry: Entry) -> bytes | str:
        """Return the MESSAGE record of an entry, or its fault."""
        if self.reader.segment_of(entry.lsn) is None:
            return "its segment is missing"
        data = self.reader.read(entry.lsn, entry.length)
        if not self._is_record(data, entry.length, MESSAGE):
            return "no intact message"
        wanted = (index.queue_id, entry.number)
        for place in range(int(place_count(data, 0))):
            if (queue_id_of_place(data, 0, place), sequence_number_of_place(data, 0, place)) == wanted:
                return data
        return "the message there belongs to another place"

    def _is_record(self, data: bytes, length: int, kind: int) -> bool:
        return (
            len(data) == length
            and record_length(data, 0) == length
            and data[8] == kind
            and is_intact(self.log.checksum, data, 0, length)
        )


@dataclass(slots=True)
class Unsealed:
    """The part of a stream that is not sealed yet, and only in the log.

    `first`: its oldest offset; the next one to come when it is empty.
    """

    first: int
    count: int = 0
    body_bytes: int = 0


def unsealed(state: StoredState, index: QueueIndex, end: int) -> Unsealed:
    """Return the part of the stream of `index` that the log has from offset `end` on: earlier messages are sealed."""
    found: Unsealed | None = None
    for entry in state.entries(index):
        if isinstance(entry, LostPage):
            first = max(entry.page_number * int(index.page_entries), end)
            behind, count, body_bytes = first + int(index.page_entries), entry.live, 0
        else:
            first, behind, count, body_bytes = entry.number, entry.number + 1, 1, entry.body_bytes
        if behind > end:
            found = found or Unsealed(first)
            found.count += count
            found.body_bytes += body_bytes
    return found or Unsealed(max(int(index.next_number), end))


class References:
    """The number of references to each segment, and their bytes."""

    def __init__(self, state: StoredState) -> None:
        self.counts: Counter[int] = Counter()  # by segment number
        self.bytes: Counter[int] = Counter()
        self._state = state

    def refer(self, lsn: int, length: int) -> None:
        """Count a reference to the record of `length` bytes at `lsn`."""
        segment = self._state.log.segments.maybe_find(lsn)
        if segment is not None:
            self.counts[int(segment.number)] += 1
            self.bytes[int(segment.number)] += length

    def refer_to_pages(self, index: QueueIndex) -> None:
        """Count the PAGE records of an index."""
        for page in index.pages:
            if page is not None and page.lsn:
                self.refer(int(page.lsn), int(page.length))

    def refer_to_doomed(self) -> bool:
        """Count for pages whose messages are gone and which still refer to them; False when one of those is lost."""
        log = self._state.log
        for lsn, length, transient in log.doomed.pages:
            if transient:
                continue
            data = self._state.reader.read(lsn, length)
            if not log.is_page(data, length):
                return False
            self.refer(lsn, length)
            words = page_entries(data, 0)
            for at in range(0, len(words), 2):
                if words[at] and not words[at] & DROPPABLE:
                    self.refer(int(words[at]) & LSN_MASK, int(words[at + 1]) >> LENGTH_SHIFT)
        return True

    def differences(self) -> list[tuple[int, int, int]]:
        """Return number, references counted and references that it says of each segment that says something else."""
        segments = self._state.log.segments.segments
        rows = [(int(s.number), self.counts[int(s.number)], int(s.live_refs)) for s in segments]
        return [row for row in rows if row[1] != row[2]]


def name_fields(index: QueueIndex) -> Line:
    """Return whose messages an index has: vhost, queue and, unless that is 0, the lane."""
    fields: Line = {"vhost": index.vhost, "queue": index.name}
    return {**fields, "lane": int(index.lane)} if index.lane else fields


def queue_count(indexes: Iterable[QueueIndex]) -> int:
    """Return the number of queues: all lanes of a queue are one, and each index without a name is one by itself."""
    return len({(index.vhost, index.name) if index.name else int(index.queue_id) for index in indexes})


def read_checkpoint(files: StoreFiles) -> tuple[CheckpointFacts | None, str | None]:
    """Return what the checkpoint says about the log, or what is wrong with it; neither when it does not exist.

    Raises:
        UnreadableStore: a newer Warren has written it.
    """
    content = files.maybe_checkpoint()
    if content is None:
        return None, None
    log = new_log()
    try:
        reader = CheckpointReader(content)
        if not reader.is_intact(checksum_function(reader.algorithm)):
            raise CheckpointError("its checksum is wrong")
        reader.fill(log)
    except NewerCheckpointError as error:
        raise UnreadableStore(f"the checkpoint: {error}; a newer Warren has written this store") from None
    except ValueError as error:
        return None, str(error)
    segments = log.segments.segments
    return CheckpointFacts(
        file_bytes=len(content),
        lsn=reader.lsn,
        previous_crc=reader.last_crc,
        epoch=reader.epoch,
        store_id=reader.store_id,
        is_clean=reader.clean,
        end_lsns={int(s.number): int(s.end_lsn) for s in segments if s.base_lsn + s.capacity <= reader.lsn},
        live_refs={int(s.number): int(s.live_refs) for s in segments},
        queues=queue_count(log.indexes.values()),
        epochs=[(epoch, first_lsn, log.epochs.life_id(epoch)) for epoch, first_lsn in log.epochs.entries],
    ), None


def recovered(files: StoreFiles, reader: LogReader) -> StoredState:
    """Return the state that a broker would start with.

    Raises:
        UnreadableStore: it would not start; the text says why and what to do.
    """
    log = new_log()
    try:
        recovery = recover(UnchangedFiles(files, reader), log, bytes(16))
    except StoreError as error:
        raise UnreadableStore(str(error)) from None
    except (AssertionError, IndexError) as error:
        # A record that is intact and still not like those of the broker: the next start will fail likewise.
        raise UnreadableStore(f"recovery fails at an invalid record: {error}") from error
    return StoredState(log, reader, recovery)


def new_log() -> MessageLog:
    """Return an empty log, to be filled."""
    return MessageLog(checksum_function(default_algorithm()), _SEGMENT_BYTES)


def header_of(file: SegmentFile) -> SegmentHeader:
    header = file.header
    return SegmentHeader(
        number=file.number,
        base_lsn=header.base_lsn,
        capacity=header.capacity,
        epoch=header.epoch,
        algorithm=header.algorithm,
        store_id=header.store_id,
        size=file.size,
    )
