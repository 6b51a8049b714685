"""Contents of one large batch, written before the batch is closed: other commits need not wait for their bytes.

    begin     a file is preallocated, and gets the contents in portions, each at the place that it will have in the
              segment that the batch begins; commits of others are written and synced between the portions
    attach    all are on the disk: their messages come into the open batch, which begins a segment
    close     fillers keep the contents at their places; the file becomes the segment, and its frame is completed with
              all bytes that are not there: heads of records, small messages, acknowledgements

1. Nothing refers to the file before the commit, and no message is in a queue. A crash leaves a file without a
   segment's name, which the next start removes.
2. A chunk counts as written if it is the same object at the same place, and was synced. Everything else is written with
   the frame. So a content that comes to another place costs time; the bytes of the frame are the same.
3. If any content of the plan is not at its place, the file is dropped, and the frame is written as any other.
4. One plan is under way at a time. Others wait for it, or do without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.msgstore.log.message import Message
from warren.msgstore.log.records import FRAME_HEADER_BYTES, TIME_BYTES, padded

if TYPE_CHECKING:
    from warren.msgstore.log.message_log import MessageLog

# A batch with contents of this many bytes is worth it, and a content of this many.
BATCH_BYTES_MIN: Final = 8 << 20
CONTENT_BYTES_MIN: Final = 64 << 10
# The bytes that are written and synced at once, in whole chunks.
PORTION_BYTES: Final = 2 << 20
# The room before the first content, for what is in the batch already, and before each of the others.
ROOM_BYTES: Final = 1 << 20
GAP_BYTES: Final = 512
# A batch with more rows is planned in no single turn, and so not at all.
ROWS_MAX: Final = 4000
# How often a batch with too much in it is waited for.
TRIES_MAX: Final = 100


class AheadSizes:
    """The sizes above, smaller for tests."""

    def __init__(self) -> None:
        self.batch_bytes_min: i64 = BATCH_BYTES_MIN
        self.content_bytes_min: i64 = CONTENT_BYTES_MIN
        self.portion_bytes: i64 = PORTION_BYTES
        self.room_bytes: i64 = ROOM_BYTES
        self.gap_bytes: i64 = GAP_BYTES
        self.rows_max: i64 = ROWS_MAX


class BodiesAhead:
    """The plan of one batch: which content goes where. Positions are those of a `RecordWriter`.

    `is_done`: all contents are written, as far as the disk had space for them. `frame_bytes`: as `RecordWriter` has it.
    """

    def __init__(self, sizes: AheadSizes, frame_bytes: i64) -> None:
        self.is_done: bool = False
        self.content_bytes: i64 = 0  # of all contents in the plan
        self.end: i64 = sizes.room_bytes  # of the records so far
        self.placed: i64 = 0  # contents that have come to their places
        self.tries: i64 = 0  # to attach it
        self._sizes = sizes
        self._frame_bytes: i64 = frame_bytes
        self._frame_start: i64 = 0
        self._places: dict[Message, int] = {}
        self._positions: list[int] = []  # of each chunk
        self._chunks: list[bytes] = []
        self._next: int = 0  # chunk to be written

    def add(self, message: Message, head_bytes: i64) -> None:
        """Plan the record of the next message, of which `head_bytes` come before its content."""
        size: i64 = message.content_bytes()
        record: i64 = padded(head_bytes + size + TIME_BYTES)
        if size < self._sizes.content_bytes_min:
            self.end += record
            return
        self.end += self._sizes.gap_bytes
        if self.end + record > self._frame_start + self._frame_bytes and self.end > self._frame_start:
            self.end += FRAME_HEADER_BYTES
            self._frame_start = self.end
        at: i64 = self.end + head_bytes
        self._places[message] = int(at)
        pieces = message.pieces
        if pieces is None:
            pieces = [message.content]
        for piece in pieces:
            self._positions.append(int(at))
            self._chunks.append(piece)
            at += len(piece)
        self.content_bytes += size
        self.end += record

    def is_worth_it(self) -> bool:
        """Tell whether it has enough contents."""
        return self.content_bytes >= self._sizes.batch_bytes_min

    def position_of(self, message: Message) -> i64:
        """Return where the content of `message` belongs, -1: anywhere."""
        return self._places.get(message, -1)

    def is_placed(self) -> bool:
        """Tell whether all contents have come to their places."""
        return self.placed == len(self._places)

    def gap_max(self) -> i64:
        """Return how many bytes may be filled before a content: more are missing if its neighbours do not come."""
        return self._sizes.room_bytes + self._sizes.gap_bytes

    def room(self) -> i64:
        """Return how much may be in a batch that it is attached to."""
        return self._sizes.room_bytes // 2

    def take_portion(self) -> tuple[list[int], list[bytes]]:
        """Return the positions of the next chunks, and the chunks; none: all have been taken."""
        first = self._next
        size: i64 = 0
        while self._next < len(self._chunks) and size < self._sizes.portion_bytes:
            size += len(self._chunks[self._next])
            self._next += 1
        return self._positions[first : self._next], self._chunks[first : self._next]

    def is_taken(self) -> bool:
        """Tell whether no portion is left."""
        return self._next == len(self._chunks)


class AheadFile:
    """The plan under way, and its file. Without one `plan` is None."""

    def __init__(self, log: MessageLog) -> None:
        self.sizes = AheadSizes()
        self.plan: BodiesAhead | None = None
        self._log = log

    def is_free(self) -> bool:
        """Tell whether a plan may begin, or can be attached."""
        plan = self.plan
        return plan is None or plan.is_done

    def begin(self, plan: BodiesAhead) -> None:
        """Write the contents of `plan`, unless another one is under way; `plan.is_done` tells of the end."""
        if self.plan is None:
            self.plan = plan
            self._log.put_portion(plan)

    def portion_written(self, plan: BodiesAhead) -> None:
        """Continue the plan: a portion has been written, or the disk has no space for it."""
        if plan is not self.plan:
            return
        if plan.is_taken():
            plan.is_done = True
        else:
            self._log.put_portion(plan)

    def has_room(self, plan: BodiesAhead) -> bool:
        """Tell whether the open batch can take the messages of `plan`; False: try again in a later turn."""
        batch = self._log.batch
        plan.tries += 1
        if batch.row_bytes > plan.room() and plan.tries < TRIES_MAX:
            batch.is_forced = True
            return False
        return True

    def attach(self, plan: BodiesAhead) -> None:
        """Begin a segment with the file of `plan` in the open batch: the messages follow now.

        The batch is closed soon, also if none of them is stored in the end: the next plan waits for that.
        """
        batch = self._log.batch
        batch.bodies = plan
        batch.is_forced = True

    def taken(self, plan: BodiesAhead) -> None:
        """Forget the plan: its file is that of a segment from now on."""
        if plan is self.plan:
            self.plan = None

    def drop(self, plan: BodiesAhead) -> None:
        """Remove the file of a plan that is not used."""
        if plan is self.plan:
            self.plan = None
            self._log.drop_bodies(plan)
