"""What is read by offset, any number of times: streams, and the claims of drains.

Callers are told of what has to be read from disk; of a queue that is deleted meanwhile they may never be told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from warren.engine_view.permissions import READ, Rights
from warren.engine_view.refs import QueueRef
from warren.msgstore.log.columns import Columns
from warren.msgstore.log.records import LIFE_ID_BYTES as LIFE_ID_BYTES
from warren.msgstore.log.sealed_table import SealedChunk, SealedSegment
from warren.queues.base_queue import BaseQueue
from warren.queues.claims import ClaimQueue
from warren.queues.offset_columns import RANGE_MESSAGES as RANGE_MESSAGES
from warren.queues.offset_columns import read_columns
from warren.queues.offset_queue import OffsetQueue
from warren.streams.sealed_reads import read_sealed
from warren.streams.stream import Stream

STREAM: Final = "stream"
CLAIMS: Final = "claims"


class SealedRow(NamedTuple):
    """A chunk of the sealed part of a stream, and where it is in a file: `file` is the first offset of that file."""

    first: int
    end: int
    content_bytes: int
    file: int
    position: int
    stored_bytes: int
    place: tuple[SealedSegment, SealedChunk]  # for the view itself


class OffsetsRow(NamedTuple):
    """A queue as its readers see it; `bounds` is None for one that is not read by offset."""

    name: str
    type: str
    number: int
    bounds: tuple[int, int] | None
    messages: int
    bytes: int


class Offsets:
    """The queues of one engine that are read by offset. `settle` ends the turn of a command."""

    def __init__(self, settle: Callable[[], None]) -> None:
        self._settle = settle

    # --- of any queue -----------------------------------------------------------------------------------------------

    def kind(self, queue: QueueRef) -> str:
        """Return `STREAM` or `CLAIMS`; "" for a queue that is not read by offset."""
        return STREAM if isinstance(queue, Stream) else CLAIMS if isinstance(queue, ClaimQueue) else ""

    def row(self, ref: QueueRef) -> OffsetsRow:
        """Return a queue as its readers see it."""
        assert isinstance(ref, BaseQueue)
        bounds = (ref.first_offset(), ref.synced_end()) if isinstance(ref, OffsetQueue) else None
        sizes = int(ref.message_count), int(ref.ready.body_bytes)
        return OffsetsRow(ref.name, ref.rules.queue_type, self.number(ref), bounds, *sizes)

    def readable(self, queues: list[QueueRef], rights: Rights) -> list[QueueRef]:
        """Return those of some queues that a user may read, without those of connections."""
        found: list[QueueRef] = []
        for queue in queues:
            assert isinstance(queue, BaseQueue)
            if queue.owner is None and rights.may(READ, _authorized_name(queue)):
                found.append(queue)
        return found

    def number(self, queue: QueueRef) -> int:
        """Return the number of a queue in the message store, different from earlier and later ones of its name."""
        assert isinstance(queue, BaseQueue)
        return queue.ready.indexes.need_store_id()

    def authorized_name(self, queue: QueueRef) -> str:
        """Return the queue that a user must be allowed to read: for claims the queue that they came from."""
        assert isinstance(queue, BaseQueue)
        return _authorized_name(queue)

    def size(self, queue: QueueRef) -> tuple[int, int]:
        """Return how many messages a queue has, and the bytes of the bodies of those that are ready."""
        assert isinstance(queue, BaseQueue)
        return int(queue.message_count), int(queue.ready.body_bytes)

    # --- history ----------------------------------------------------------------------------------------------------

    def bounds(self, queue: QueueRef) -> tuple[int, int]:
        """Return the oldest offset, and the end of the synced part."""
        found = _offset_queue(queue)
        return found.first_offset(), found.synced_end()

    def next_offset(self, queue: QueueRef) -> int:
        """Return the offset of the next message to come."""
        return _offset_queue(queue).next_offset()

    def lives(self, queue: QueueRef) -> list[tuple[bytes, int]]:
        """Return the lives of the broker that have written messages of a queue, each with its first offset."""
        lineage = _offset_queue(queue).lineage()
        return list(zip(lineage.life_ids, lineage.firsts, strict=True))

    def life_at(self, queue: QueueRef, end: int) -> bytes:
        """Return the life that has written the last offset below `end`."""
        return _offset_queue(queue).lineage().life_at(end)

    def maybe_divergence(self, queue: QueueRef, life_id: bytes, offset: int) -> str | None:
        """Return where the history of a queue has left that of a reader, and what to do; None: they agree."""
        return _offset_queue(queue).maybe_divergence(life_id, offset)

    # --- messages in the log and in memory --------------------------------------------------------------------------

    def read_columns(
        self,
        queue: QueueRef,
        first: int,
        end: int,
        told: Callable[[Columns, int], None],
        *,
        bodies: bool,
        properties: bool,
        counted: bool,
    ) -> None:
        """Report a chunk of the messages from offset `first` up to `end` at most, and where it ends.

        They must exist and be synced. `counted`: their queue counted the deliveries.
        """
        read_columns(_offset_queue(queue), first, end, bodies=bodies, properties=properties, told=told, counted=counted)
        self._settle()

    def unsealed_bytes(self, stream: QueueRef) -> int:
        """Return how large a message of a stream is on average, of those that are not sealed; at least 1."""
        assert isinstance(stream, Stream)
        count = max(1, int(stream.message_count) - int(stream.messages.sealer.table.count))
        return max(1, int(stream.unsealed_bytes()) // count)

    def tail_from(self, stream: QueueRef) -> int:
        """Return the offset from which the messages of a stream are in memory."""
        assert isinstance(stream, Stream)
        return int(stream.messages.tail_from())

    def tail_sizes(self, stream: QueueRef, first: int, end: int) -> list[int]:
        """Return how large messages in memory are, 0 for one that is gone; an empty list: they have left memory."""
        assert isinstance(stream, Stream)
        messages = stream.messages.messages(first, end)
        return [0 if message is None else int(message.content_bytes()) for message in messages]

    # --- the sealed part of a stream --------------------------------------------------------------------------------

    def sealed_end(self, stream: QueueRef) -> int:
        """Return the end of the sealed part; 0: nothing is sealed."""
        assert isinstance(stream, Stream)
        table = stream.messages.sealer.table
        return int(table.end) if table.segments else 0

    def sealed_between(self, stream: QueueRef, first: int, end: int) -> Iterator[SealedRow]:
        """Yield the sealed chunks of a range. Callers may give way meanwhile."""
        assert isinstance(stream, Stream)
        for segment, chunk in stream.messages.sealer.table.chunks_between(first, end):
            yield _sealed(segment, chunk)

    def maybe_sealed_at(self, stream: QueueRef, offset: int) -> SealedRow | None:
        """Return the first sealed chunk with this offset or a later one; None: the offset is not sealed."""
        assert isinstance(stream, Stream)
        table = stream.messages.sealer.table
        return _sealed(*table.place(offset)) if offset < table.end else None

    def read_sealed(self, stream: QueueRef, chunk: SealedRow, told: Callable[[bytes | None], None]) -> None:
        """Report a chunk as it lies in its file; None: it cannot be read, or is gone."""
        assert isinstance(stream, Stream)
        read_sealed(stream, *chunk.place, told)
        self._settle()

    def is_sealed_there(self, stream: QueueRef, chunk: SealedRow) -> bool:
        """Tell whether a chunk has not been replaced, as by compaction."""
        assert isinstance(stream, Stream)
        return stream.messages.sealer.table.has(chunk.place[1])

    def note_damage(self, stream: QueueRef, chunk: SealedRow) -> None:
        """Note that a chunk cannot be read."""
        assert isinstance(stream, Stream)
        stream.sealed_lost(chunk.place[1].first)


def _authorized_name(queue: BaseQueue) -> str:
    return queue.source_name if isinstance(queue, ClaimQueue) else queue.name


def _offset_queue(queue: QueueRef) -> OffsetQueue:
    assert isinstance(queue, OffsetQueue)
    return queue


def _sealed(segment: SealedSegment, chunk: SealedChunk) -> SealedRow:
    return SealedRow(
        int(chunk.first),
        int(chunk.end),
        int(chunk.content_bytes),
        int(segment.first),
        int(chunk.position),
        int(chunk.stored_bytes),
        (segment, chunk),
    )
