"""The bytes that wait to be sent on one connection: the engine writes them, the shell takes them once per turn.

1. Bytes leave in the order in which they were written.
2. An outbox with bytes in it is on the broker's `dirty` list, exactly once, until it is taken.
3. ``writable`` is False from the moment when more than `soft_limit_bytes` wait until the peer has taken them all.
   Deliveries stop then; replies do not, because a peer that stops reading its replies stops being read itself.
4. Call `touch` before you write to ``writer``. An outbox that has been idle for long has no buffer (`rest`).
   A large buffer is shared (`SpareWriters`): it belongs to an outbox only while that has bytes. The next outbox with
   much to send takes it. Growing one from nothing for each send costs more than filling it. There are as many
   as were in use at the same time, not one for each outbox that ever had much to send. It does not grow with all that
   is sent in a turn: above `piece_bytes` the bytes become a chunk, and the same buffer, still in the processor's
   cache, is filled again (`end_piece`).
5. ``awaited`` is True while a connection waits for a turn to deliver: others queue up after it (``queues.turns``).
6. If a fault of the broker occurs while it writes for a peer, the error is kept here (`failed`) and ends that peer. It
   is not raised: other peers that are served in the same turn must not suffer from it.

Large contents are not copied: they are kept as chunks of their own and sent with one gathering system call. Bytes that
have to be made first come as a `Supply`, which is asked for a piece when the peer has room for it.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

# Below this a copy is cheaper than another element of the gathering write.
CHUNK_MIN_BYTES: Final = 8192
SOFT_LIMIT_BYTES: Final = 1 << 20
# A writer that grew beyond this is given back instead of reused, so that an idle connection holds no buffer.
REUSE_MAX_BYTES: Final = 2048
# This many writers are kept for all connections together, and none that had more bytes than this: at most 32 MB.
SPARE_WRITERS: Final = 128
SPARE_MAX_BYTES: Final = 131072
# More than this becomes a chunk: unless one delivery adds very much, the buffer is small enough to be kept.
PIECE_BYTES: Final = SPARE_MAX_BYTES - 2 * CHUNK_MIN_BYTES
_RESTING: Final = BytesWriter()  # of all idle connections; never written to


# If more than twice this waits, or some is not made yet, so many bytes are handed out at a time, or a piece more.
TAKE_BYTES: Final = 1 << 20


class Supply:
    """Bytes that are made when they can be sent; `left_bytes` are still to be made."""

    def __init__(self, size: i64) -> None:
        self.left_bytes: i64 = size

    def next_piece(self) -> bytes:
        """Return the next bytes, at least one, and count them off `left_bytes`."""
        raise AssertionError("overridden")


class SpareWriters:
    """Empty writers with large buffers, for outboxes that had much to send the last time.

    An outbox gives back what it took. It adds a writer that it has grown itself only if there is no other.
    """

    def __init__(self) -> None:
        self._writers: list[BytesWriter] = []

    def is_empty(self) -> bool:
        return not self._writers

    def take(self) -> BytesWriter:
        """Return an empty writer, with a large buffer if there is one."""
        writers = self._writers
        return writers.pop() if writers else BytesWriter()

    def give_back(self, writer: BytesWriter) -> None:
        """Keep a writer whose bytes have been taken, if it is not too large and there are not enough."""
        if len(self._writers) < SPARE_WRITERS and len(writer) <= SPARE_MAX_BYTES:
            writer.truncate(0)
            self._writers.append(writer)


class Outbox:
    """The bytes waiting for one peer. ``key`` is the shell's name for the connection; ``spare``: see `SpareWriters`."""

    def __init__(
        self,
        key: int,
        dirty: list[Outbox],
        soft_limit_bytes: i64 = SOFT_LIMIT_BYTES,
        spare: SpareWriters | None = None,
    ) -> None:
        self.key = key
        self.writer = BytesWriter()
        self.writable: bool = True
        self.awaited: bool = False
        self.soft_limit_bytes: i64 = soft_limit_bytes
        self.piece_bytes: i64 = min(soft_limit_bytes, PIECE_BYTES)
        self.in_flight_bytes: i64 = 0  # taken by the shell, not yet by the socket
        self.sent_bytes: i64 = 0
        self.sent_writes: i64 = 0  # how often the socket took some
        self._chunks: list[bytes] = []  # an empty one stands for the next of the supplies
        self._chunks_bytes: i64 = 0  # bytes that supplies still have to make count
        self._supplies: list[Supply] | None = None  # from the first on
        self.failure: Exception | None = None  # of ours, met while something was written for this peer
        self._queued: bool = False
        self._is_large: bool = False  # the last bytes were many, and their writer was given back
        self._spare = spare
        self._dirty = dirty

    def touch(self) -> None:
        """Put this outbox on the dirty list. Call before writing to ``writer``."""
        if not self._queued:
            self._queued = True
            self._dirty.append(self)
            if self.writer is _RESTING:
                self.writer = self._new_writer()

    def rest(self) -> None:
        """Release the buffer: nothing has been written for a while."""
        if not self._queued:
            self.writer = _RESTING

    def write(self, data: bytes) -> None:
        """Append small `data`, a reply for instance."""
        self.touch()
        self.writer.write(data)

    def write_chunk(self, data: bytes) -> None:
        """Append `data` without copying it, after everything written so far."""
        self._keep_writer()
        self._chunks.append(data)
        self._chunks_bytes += len(data)
        self.check_limit()

    def write_supply(self, supply: Supply) -> None:
        """Append the bytes that `supply` will make, after everything written so far."""
        self._keep_writer()
        self._chunks.append(b"")
        if self._supplies is None:
            self._supplies = []
        self._supplies.append(supply)
        self._chunks_bytes += supply.left_bytes
        self.check_limit()

    def _keep_writer(self) -> None:
        """Make a chunk of the bytes written so far, so that something else can follow."""
        if len(self.writer):
            head = self.writer.getvalue()
            self._chunks.append(head)
            self._chunks_bytes += len(head)
            self._reset_writer()

    def _reset_writer(self) -> None:
        """Begin to write after bytes that were taken."""
        writer = self.writer
        is_large: bool = len(writer) > REUSE_MAX_BYTES
        if not is_large and not self._is_large:
            writer.truncate(0)
            return
        spare = self._spare
        if spare is not None and (self._is_large or spare.is_empty()):
            spare.give_back(writer)
        self._is_large = is_large
        self.writer = self._new_writer() if self._queued else _RESTING

    def _new_writer(self) -> BytesWriter:
        if self._is_large and self._spare is not None:
            return self._spare.take()
        return BytesWriter()

    def failed(self, error: Exception) -> None:
        """Note that something could not be written for this peer: it is ended at the end of the turn."""
        self.touch()
        if self.failure is None:
            self.failure = error
        self.writable = False

    def waiting_bytes(self) -> i64:
        """Return the number of bytes that the peer has not taken yet."""
        return self._chunks_bytes + len(self.writer) + self.in_flight_bytes

    def end_piece(self) -> None:
        """Call when there are more than `piece_bytes` in ``writer``, which is another one from then on."""
        self._keep_writer()
        self.check_limit()

    def check_limit(self) -> None:
        """Stop deliveries when too much is waiting."""
        if self._chunks_bytes + len(self.writer) + self.in_flight_bytes > self.soft_limit_bytes:
            self.writable = False

    def take(self) -> list[bytes]:
        """Hand everything to the shell, which owns it from now on and reports back through `sent`."""
        if self._supplies:
            taken: list[bytes] = []
            while self._supplies:
                taken += self._take_first()
            return taken + self.take()
        self._queued = False
        chunks = self._chunks
        if len(self.writer):
            chunks.append(self.writer.getvalue())
            self._reset_writer()
        self._chunks = []
        self._chunks_bytes = 0
        for chunk in chunks:
            self.in_flight_bytes += len(chunk)
        return chunks

    def take_some(self) -> list[bytes]:
        """Hand out everything, or the beginning when that is much; the rest comes when this is sent."""
        if self._supplies or self._chunks_bytes > 2 * TAKE_BYTES:
            return self._take_first()
        return self.take()

    def _take_first(self) -> list[bytes]:
        self._queued = False
        self._keep_writer()
        chunks = self._chunks
        taken: list[bytes] = []
        size: i64 = 0
        done: i64 = 0
        while size < TAKE_BYTES and done < len(chunks):
            chunk = chunks[done]
            if len(chunk) == 0:
                supplies = self._supplies
                assert supplies is not None
                supply = supplies[0]
                chunk = supply.next_piece()
                if supply.left_bytes == 0:
                    del supplies[0]
                    done += 1
            else:
                done += 1
            taken.append(chunk)
            size += len(chunk)
        del chunks[:done]
        self._chunks_bytes -= size
        self.in_flight_bytes += size
        return taken

    def sent(self, size: i64) -> bool:
        """Note that the socket accepted `size` bytes; return True when deliveries may start again."""
        self.in_flight_bytes -= size
        self.sent_bytes += size
        self.sent_writes += 1
        if self.writable or self.in_flight_bytes + self._chunks_bytes + len(self.writer) > 0:
            return False
        self.writable = True
        return True


# The outbox of a channel that has ended: it takes nothing, so its consumers have no room.
NOWHERE: Final = Outbox(0, [])
NOWHERE.writable = False
