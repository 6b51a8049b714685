"""A batch: rows that gather in memory for one commit, and the frame that is made of it.

    add, settle, copy, ... -> rows -> write: the records of a frame -> enter: their places in the indexes

1. A batch is one frame, or several that count together. The changes of one call of the engine (a publish to many
   queues, a transaction) are in one batch, and so entirely on disk or not at all.
2. A message has a row per queue. Rows of messages that are settled before the batch is closed are cancelled: such a
   message is never written.
3. When the frame is written the next batch is open already. The next batch takes the rows that queues add when they are
   told of the end of this one, and the name of a queue of which only a copy was written.

4. A large batch that stays open is written in portions: each has the records that a frame would have if the batch
   were closed then, and is entered at once (`MessageLog.write_ahead`). So the frame is like such frames one after the
   other, and a message that is settled after its portion is acknowledged in a later one.

    order of records in a portion:  EPOCH  LIFE  QUEUE  ACK  PAGE  MESSAGE (and copies)  QUEUE_DELETED

A page is written as it is at the time of the portion: without the entries that the portion settles, so its acks come
before; and not yet with the entries that it stores and copies, so those come after it.

5. If `add` or `replace` fails, for lack of memory, it has changed nothing: rows are complete, and a message that was to
   be replaced still has its place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from librt.vecs import append, pop, vec
from mypy_extensions import i64

from warren.msgstore.log.index_damage import IndexDamage
from warren.msgstore.log.message import Message
from warren.msgstore.log.queue_index import IndexPage, QueueIndex
from warren.msgstore.log.records import (
    DROPPABLE,
    EXPIRES,
    MOVED,
    PLACE_BYTES,
    PLACES_MAX,
    RecordWriter,
    place_count,
    queue_id_of_place,
    sequence_number_of_place,
)

if TYPE_CHECKING:
    from warren.msgstore.log.bodies_ahead import BodiesAhead
    from warren.msgstore.log.message_log import MessageLog

# A few messages of this size are much to write; only publishers of such messages wait for them.
LARGE_BODY_BYTES: Final = 1 << 20
# The number of rows of a message that are gone through for one of them.
ROWS_LOOKED_AT: Final = 8
# About this much of the memory of a message is not written with it.
_UNWRITTEN_BYTES: Final = 122
# A held batch is written in portions, from this number of rows and acknowledged ranges on, or from this number of
# bytes on: its frame takes a segment. Further portions may be smaller.
PORTION_ROWS: Final = 8192
FURTHER_PORTION_ROWS: Final = 2048
PORTION_BYTES: Final = 8 << 20
# Of batches without any of these, as most are: never changed. A small batch would pay more for its lists than for rows.
_NO_QUEUES: Final[list[QueueIndex]] = []
_NO_IDS: Final[list[int]] = []
_NO_WANTED_PAGES: Final[list[tuple[QueueIndex, int]]] = []
_NO_WANTED_COPIES: Final[list[CopyRow]] = []
_NO_PAGES: Final[list[tuple[QueueIndex, IndexPage, int, int]]] = []
_NO_COPIES: Final[list[tuple[CopyRow, int, int]]] = []


def written_bytes(message: Message) -> i64:
    """Return the bytes that a message adds to the frame, about."""
    return message.memory_bytes - _UNWRITTEN_BYTES


class BatchWaiter:
    """A waiter for a batch: the confirms of a channel, for instance."""

    def batch_done(self, batch: i64) -> None:
        """Continue: everything that was in `batch` is as durable as was asked for."""
        raise AssertionError("overridden")


def tell_all(waiters: list[BatchWaiter], batch: i64) -> None:
    """Tell all `waiters` that `batch` is done. An error of one is raised when the others have been told."""
    failure: Exception | None = None
    for waiter in waiters:
        try:
            waiter.batch_done(batch)
        except Exception as error:
            failure = error
    if failure is not None:
        raise failure


class CopyRow:
    """A record that compaction moves, with the places where it is still live; of a large one its head, and the rest."""

    def __init__(self, record: bytes, lsn: i64, flags: i64, pieces: list[bytes] | None) -> None:
        self.record = record
        self.pieces = pieces
        self.lsn: i64 = lsn
        self.flags: i64 = flags


class Batch:
    """The batch with a `number`; they count from 1 in each life of the process. It is open until it is written.

    For a batch that is written in portions, this is its current part; `further` makes the next one.
    """

    def __init__(self, log: MessageLog, number: i64) -> None:
        self.number: i64 = number
        # When it is closed, and whom to tell when it is done: the message log decides.
        self.waiters: list[BatchWaiter] = []
        self.wants_sync: bool = False
        self.is_forced: bool = False
        self.is_held: bool = False
        self.was_held: bool = False
        # Its content.
        self.is_begun: bool = False  # there is something
        self.is_further: bool = False  # there were portions before
        self.row_bytes: i64 = 0
        self.large_bytes: i64 = 0  # of that, messages with bodies of at least `LARGE_BODY_BYTES`
        self.ahead_bytes: i64 = 0  # the part of it in earlier portions
        self.further_rows: i64 = 0  # those of messages that have one already
        self.messages: list[Message] = []  # of row n
        self.acking: list[QueueIndex] = []
        self.epoch_time_ms: i64 = -1  # not negative: the epoch begins with it
        self.bodies: BodiesAhead | None = None  # some of its contents are on the disk
        self._log = log
        self._touched: list[QueueIndex] = []  # to be told when it is closed
        self._deleted = _NO_IDS
        self._indexes: list[QueueIndex | None] = []  # the queue of row n; None: cancelled
        self._numbers = vec[i64]()  # in that queue
        self._row_of: dict[tuple[int, int], int] | None = None  # by queue and number; None: not needed so far
        self._naming = _NO_QUEUES
        self._wanted_pages = _NO_WANTED_PAGES
        self._wanted_copies = _NO_WANTED_COPIES
        # Everything written so far, and where in the payload.
        self._message_rows = vec[i64]()  # the first of each message
        self._message_lengths = vec[i64]()
        self._message_positions = vec[i64]()
        self._pages = _NO_PAGES  # position, length
        self._copies = _NO_COPIES  # likewise

    # --- adding rows ------------------------------------------------------------------------------------------------

    def add(self, index: QueueIndex, message: Message, number: i64) -> None:
        """Give `message`, the `number`-th of its queue, a row. If this fails, for lack of memory, it has none."""
        # First: a row is not written without them.
        if not index.touched:
            self._touch(index)
        if not self.is_begun:
            self._begin()
        row: i64 = len(self.messages)
        try:
            self.messages.append(message)
            self._indexes.append(index)
            self._numbers = append(self._numbers, number)
            if self._row_of is not None:
                self._row_of[(int(index.queue_id), int(number))] = int(row)
        except BaseException:
            self._cut(row)
            raise
        if message.row < 0:
            message.row = row
            added: i64 = written_bytes(message)
            self.row_bytes += added
            if message.body_bytes >= LARGE_BODY_BYTES:
                self.large_bytes += added
        else:
            self.further_rows += 1

    def _cut(self, row: i64) -> None:
        """Remove the row that was begun."""
        del self.messages[row:]
        del self._indexes[row:]
        if len(self._numbers) > row:
            numbers, _ = pop(self._numbers)
            self._numbers = numbers
        self._row_of = None

    def _touch(self, index: QueueIndex) -> None:
        self.name(index)
        self._touched.append(index)
        index.touched = True  # not before: it would never be told

    def name(self, index: QueueIndex) -> None:
        """Write the queue of the index into the frame, unless the log has it."""
        if not index.named:
            if self._naming is _NO_QUEUES:
                self._naming = []
            self._naming.append(index)
            index.named = True  # not before: its messages would be nobody's after a restart

    def replace(self, index: QueueIndex, old: Message, message: Message, number: i64) -> None:
        """Give `message` the place of `old`, the `number`-th of its queue. If this fails, `old` still has it.

        The new row counts when `old` is settled. No step between the two needs memory.
        """
        place = (int(index.queue_id), int(number))
        former = -1 if self._row_of is None else self._row_of.get(place, -1)
        self.add(index, message, number)
        row: i64 = len(self.messages) - 1
        self._indexes[row] = None
        if self._row_of is not None:
            self._row_of[place] = former
        if index.lsn_of_resident(number) != 0:
            index.note_ack(number)
            index.forget(number)
        elif old.row >= 0:
            self.cancel(index, old, number)
        self._indexes[row] = index
        try:
            if self._row_of is not None:
                self._row_of[place] = int(row)
        except MemoryError:
            self._row_of = None  # it is made again when it is needed

    def cancel(self, index: QueueIndex, message: Message, number: i64) -> None:
        """Cancel the row of `message`, the `number`-th of its queue, if it has one: it was settled before its batch."""
        row: i64 = message.row
        end: i64 = row + ROWS_LOOKED_AT
        if end > len(self.messages):
            end = len(self.messages)
        while row < end and self.messages[row] is message:
            if self._indexes[row] is index and self._numbers[row] == number:
                self._indexes[row] = None
                return
            row += 1
        # It has many, or has come to a queue later than to others: when that is short of memory, for instance.
        if index.touched:
            found = self._rows_by_place().pop((int(index.queue_id), int(number)), -1)
            if found >= 0:
                self._indexes[found] = None

    def _rows_by_place(self) -> dict[tuple[int, int], int]:
        """Return the rows by queue and number. They are collected once in a batch, when that is needed first."""
        rows = self._row_of
        if rows is None:
            rows = {}
            for row, index in enumerate(self._indexes):
                if index is not None:
                    rows[(int(index.queue_id), int(self._numbers[row]))] = row
            self._row_of = rows
        return rows

    def settle(self, index: QueueIndex, message: Message, number: i64) -> None:
        """Forget `message` on disk, or never write it: it is acknowledged, rejected or expired."""
        if message.row >= 0 and index.lsn_of(number) == 0:
            self.cancel(index, message, number)
        elif index.forget(number):
            index.note_ack(number)
            if not self.is_begun:
                self._begin()

    def settle_range(self, index: QueueIndex, first: i64, end: i64) -> None:
        """Settle all stored messages of the queue from `first` up to `end`, except for damaged ones."""
        damage = index.damage
        if damage is not None and not damage.is_empty():
            self._settle_beside(index, damage, first, end)
            return
        index.forget_range(first, end)
        index.note_acks(first, end)
        self._begin()

    def _settle_beside(self, index: QueueIndex, damage: IndexDamage, first: i64, end: i64) -> None:
        """Settle a range without its damaged messages; of an absent page with one, which only goes whole, nothing."""
        size: i64 = index.page_entries
        for start in [*damage.starts_between(first, end), int(end)]:
            kept: i64 = start
            if kept < first:
                continue  # in a page that was left out
            kept_end: i64 = kept + 1
            page = index.page(kept // size)
            if kept < end and (int(kept // size) in damage.pages or (page is not None and not page.resident)):
                kept = max(kept // size * size, first)
                kept_end = (kept // size + 1) * size
            if first < kept:
                index.forget_range(first, kept)
                index.note_acks(first, kept)
                self._begin()
            first = kept_end

    def settle_waiting(self, index: QueueIndex, first: i64, end: i64) -> None:
        """Settle all messages of the queue from `first` up to `end`, also those in this batch: a purge."""
        index.void_rows(first, end)
        self.settle_range(index, first, end)

    def copy(self, record: bytes, lsn: i64, flags: i64, pieces: list[bytes] | None = None) -> None:
        """Move the record at `lsn` to the end of the log, for the places where it is still live.

        `pieces`: of a large one, what follows the places.
        """
        if self._wanted_copies is _NO_WANTED_COPIES:
            self._wanted_copies = []
        self._wanted_copies.append(CopyRow(record, lsn, flags, pieces))
        self.row_bytes += len(record)
        if pieces is not None:
            for piece in pieces:
                self.row_bytes += len(piece)
        self._begin()

    def write_page(self, index: QueueIndex, page_number: i64) -> None:
        """Add the page to the frame, as the page is when the frame is written."""
        page = index.page(page_number)
        assert page is not None
        if not page.queued:
            page.queued = True
            if self._wanted_pages is _NO_WANTED_PAGES:
                self._wanted_pages = []
            self._wanted_pages.append((index, int(page_number)))
            self._begin()

    def delete(self, queue_id: int) -> None:
        """Write into the frame that everything of a queue is gone."""
        if self._deleted is _NO_IDS:
            self._deleted = []
        self._deleted.append(queue_id)
        self._begin()

    def _begin(self) -> None:
        if not self.is_begun:
            self.is_begun = True
            on_open = self._log.on_open
            if on_open is not None:
                on_open()

    # --- the frame --------------------------------------------------------------------------------------------------

    def is_portion(self) -> bool:
        """Tell whether it holds enough for writing a portion, if more will follow."""
        rows: i64 = len(self.messages)
        size: i64 = self.row_bytes - self.ahead_bytes + PLACE_BYTES * rows
        count: i64 = rows
        for index in self.acking:
            count += index.ack_range_count()
        least: i64 = FURTHER_PORTION_ROWS if self.is_further else PORTION_ROWS
        if count < least and size < PORTION_BYTES:
            return False
        # If the last message is on its way to further queues its content is written once more for those.
        return rows == 0 or rows >= PLACES_MAX or size >= 2 * self.messages[rows - 1].memory_bytes

    def further(self) -> Batch:
        """Return the continuation of the same batch, for use after a portion of it has been written."""
        batch = Batch(self._log, self.number)
        batch.waiters = self.waiters
        batch.wants_sync = self.wants_sync
        batch.is_forced = self.is_forced
        batch.is_held = self.is_held
        batch.was_held = self.was_held
        batch.is_begun = True
        batch.is_further = True
        batch.further_rows = self.further_rows
        batch.row_bytes = self.row_bytes
        batch.large_bytes = self.large_bytes
        batch.ahead_bytes = self.row_bytes
        batch.bodies = self.bodies
        return batch

    def write(self, writer: RecordWriter) -> None:
        """Write the records. The batch accepts nothing after that."""
        if self.epoch_time_ms >= 0:
            writer.epoch(self._log.epoch, self.epoch_time_ms)
            writer.life(self._log.epoch, self._log.life_id)
        for index in self._naming:
            if index.deleted:
                continue
            writer.queue(index.queue_id, index.vhost.encode(), index.name.encode(), index.lane, index.transient)
        for index in self.acking:
            index.write_acks(writer)
        self._write_pages(writer)
        self._write_messages(writer)
        self._write_copies(writer)
        for queue_id in self._deleted:
            writer.queue_deleted(queue_id)

    def enter(self, start: i64) -> None:
        """Enter the rows written into the frame whose payload begins at LSN `start` in the indexes."""
        for index, page, position, length in self._pages:
            index.page_written(page, start + position, length)
        self._enter_messages(start)
        for row, at, size in self._copies:
            for index, number in self._live_places(row):
                index.relocate(number, start + at, size)
                if not index.touched:
                    index.touched = True
                    self._touched.append(index)
                    self._log.batch.name(index)

    def close(self) -> Exception | None:
        """Release the rows, and notify the queues; return an error of one, after the others have been notified."""
        for message in self.messages:
            message.row = -1
        self.messages.clear()
        failure: Exception | None = None
        for index in self._touched:
            index.batch_closed()
            if index.owner is not None:
                try:
                    index.owner.batch_closed()
                except Exception as error:
                    failure = error
        return failure

    def _write_pages(self, writer: RecordWriter) -> None:
        if not self._wanted_pages:
            return
        self._pages = []
        for index, page_number in self._wanted_pages:
            page = index.page(page_number)
            if index.deleted or page is None or not page.queued:
                continue
            page.queued = False
            if not page.resident or not page.dirty:
                continue
            length = int(writer.page(index.queue_id, page_number, page.entries, index.transient))
            self._pages.append((index, page, int(writer.position), length))

    def _write_messages(self, writer: RecordWriter) -> None:
        """Write a record for each message with rows left."""
        firsts = vec[i64]()
        lengths = vec[i64]()
        positions = vec[i64]()
        one_id = append(vec[i64](), 0)
        one_number = append(vec[i64](), 0)
        total: i64 = len(self.messages)
        row: i64 = 0
        while row < total:
            message = self.messages[row]
            first: i64 = row
            if row + 1 == total or self.messages[row + 1] is not message:
                # One place, the common case: without making lists for it.
                row += 1
                only = self._indexes[first]
                if only is not None and only.has_void and only.is_void(self._numbers[first]):
                    self._indexes[first] = None
                    only = None
                if only is not None:
                    one_id[0] = only.queue_id
                    one_number[0] = self._numbers[first]
                    firsts = append(firsts, first)
                    kept_flags: i64 = 0 if message.persistent and not only.transient else DROPPABLE
                    lengths = append(lengths, writer.message(message, kept_flags, one_id, one_number))
                    positions = append(positions, writer.position)
                continue
            queue_ids = vec[i64]()
            numbers = vec[i64]()
            droppable: bool = not message.persistent
            while row < total and self.messages[row] is message and row - first < PLACES_MAX:
                index = self._indexes[row]
                if index is not None:
                    if index.has_void and index.is_void(self._numbers[row]):
                        self._indexes[row] = None
                    else:
                        if index.transient and not droppable:
                            if len(queue_ids):
                                break
                            droppable = True
                        elif droppable and message.persistent and not index.transient:
                            break
                        queue_ids = append(queue_ids, index.queue_id)
                        numbers = append(numbers, self._numbers[row])
                row += 1
            if len(queue_ids) == 0:
                continue
            firsts = append(firsts, first)
            flags: i64 = DROPPABLE if droppable else 0
            lengths = append(lengths, writer.message(message, flags, queue_ids, numbers))
            positions = append(positions, writer.position)
        self._message_rows = firsts
        self._message_lengths = lengths
        self._message_positions = positions

    def _enter_messages(self, start: i64) -> None:
        firsts = self._message_rows
        lengths = self._message_lengths
        positions = self._message_positions
        total: i64 = len(self.messages)
        at: i64 = 0
        count: i64 = len(firsts)
        while at < count:
            row: i64 = firsts[at]
            end: i64 = firsts[at + 1] if at + 1 < count else total
            message = self.messages[row]
            lsn: i64 = start + positions[at]
            length: i64 = lengths[at]
            flags: i64 = 0
            if message.expiration_ms >= 0 and message.time_ms != 0:
                flags = EXPIRES
            if not message.persistent:
                flags |= DROPPABLE
            while row < end and self.messages[row] is message:
                index = self._indexes[row]
                if index is not None:
                    number: i64 = self._numbers[row]
                    index.add(number, lsn, flags | (DROPPABLE if index.transient else 0), length, message.body_bytes)
                row += 1
            at += 1

    def _write_copies(self, writer: RecordWriter) -> None:
        if not self._wanted_copies:
            return
        self._copies = []
        for row in self._wanted_copies:
            queue_ids = vec[i64]()
            numbers = vec[i64]()
            for index, number in self._live_places(row):
                queue_ids = append(queue_ids, index.queue_id)
                numbers = append(numbers, number)
            if len(queue_ids) == 0:
                continue
            length = int(writer.copy(row.record, row.flags | MOVED, queue_ids, numbers, row.pieces))
            self._copies.append((row, int(writer.position), length))

    def _live_places(self, row: CopyRow) -> list[tuple[QueueIndex, int]]:
        """Return where the record is still live, as far as its pages are resident."""
        found: list[tuple[QueueIndex, int]] = []
        indexes = self._log.indexes
        place: i64 = 0
        places: i64 = place_count(row.record, 0)
        while place < places:
            index = indexes.get(queue_id_of_place(row.record, 0, place))
            number: i64 = sequence_number_of_place(row.record, 0, place)
            if index is not None and index.lsn_of_resident(number) == row.lsn:
                found.append((index, int(number)))
            place += 1
        return found
