"""A sealed chunk of a stream as it was read: its columns, and messages made of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from librt.strings import read_i16_le, read_i32_le, read_i64_le
from mypy_extensions import i64

from warren.msgstore.log.columns import BODIES, BODY_ENDS, NAMES, OFFSETS, PROPERTIES, PROPERTY_ENDS, ROUTES, TIMES
from warren.msgstore.log.jobs import SealedRead
from warren.msgstore.log.message import Envelope, Message, build_message
from warren.msgstore.log.sealed_table import SealedChunk, SealedSegment

# How the frames of a body are cut: the size that every client can take before it negotiates another.
FRAME_MAX_BYTES: Final = 131072
_NO_BODY: Final = b"\x00\x3c" + bytes(10)


class RawChunk:
    """The columns of a sealed chunk, and messages made of them."""

    def __init__(self, place: SealedChunk, parts: list[bytes]) -> None:
        self.first: i64 = place.first
        self.end: i64 = place.end
        self.count: i64 = place.count
        # Offsets are missing, so they are listed; the list is empty when compaction has left nothing of the chunk.
        self._is_sparse: bool = place.count != place.end - place.first
        self.cost_bytes: i64 = 0
        for part in parts:
            self.cost_bytes += len(part)
        self._offsets = parts[OFFSETS]
        self._times = parts[TIMES]
        self._routes = parts[ROUTES]
        self._body_ends = parts[BODY_ENDS]
        self._bodies = parts[BODIES]
        self._property_ends = parts[PROPERTY_ENDS]
        self._properties = parts[PROPERTIES]
        self._envelopes = _envelopes(parts[NAMES])

    def offset_at(self, at: i64) -> i64:
        """Return the offset of message `at` of the chunk."""
        return read_i64_le(self._offsets, 8 * at) if self._is_sparse else self.first + at

    def place_of(self, offset: i64) -> i64:
        """Return the place of the first message whose offset is at least `offset`; `count` when all are smaller."""
        if not self._is_sparse:
            return offset - self.first if offset > self.first else i64(0)
        low: i64 = 0
        high: i64 = self.count
        while low < high:
            middle: i64 = (low + high) // 2
            if self.offset_at(middle) < offset:
                low = middle + 1
            else:
                high = middle
        return low

    def envelope_at(self, at: i64) -> Envelope:
        """Return the exchange and routing key of message `at`."""
        route: i64 = 0
        if self._routes:
            route = i64(read_i16_le(self._routes, 2 * at)) & 0xFFFF
        return self._envelopes[route]

    def body_bytes_at(self, at: i64) -> i64:
        """Return the size of the body of message `at`."""
        return i64(read_i32_le(self._body_ends, 4 * at + 4)) - i64(read_i32_le(self._body_ends, 4 * at))

    def header_payload_at(self, at: i64) -> bytes:
        """Return the payload of the content header of message `at`, its body size left open."""
        ends = self._property_ends
        return _NO_BODY + self._properties[i64(read_i32_le(ends, 4 * at)) : i64(read_i32_le(ends, 4 * at + 4))]

    def message(self, at: i64) -> Message:
        """Return message `at` of the chunk."""
        ends = self._body_ends
        body = self._bodies[i64(read_i32_le(ends, 4 * at)) : i64(read_i32_le(ends, 4 * at + 4))]
        ends = self._property_ends
        properties = self._properties[i64(read_i32_le(ends, 4 * at)) : i64(read_i32_le(ends, 4 * at + 4))]
        made = build_message(self.envelope_at(at), properties, body, FRAME_MAX_BYTES, True)
        made.time_ms = read_i64_le(self._times, 8 * at) // 1000
        return made

    def time_at(self, at: i64) -> i64:
        """Return when message `at` was published, in microseconds since the epoch."""
        return read_i64_le(self._times, 8 * at)

    def messages(self, at: i64, most: i64) -> list[Message | None]:
        """Return message `at` and those after it, at most `most` offsets; None for a missing message."""
        first: i64 = self.offset_at(at)
        messages: list[Message | None] = []
        following: i64 = first
        while at < self.count:
            number: i64 = self.offset_at(at)
            if number - first >= most:
                break
            while following < number:
                messages.append(None)
                following += 1
            messages.append(self.message(at))
            following += 1
            at += 1
        return messages


def _envelopes(names: bytes) -> list[Envelope]:
    """Return the routes of a table of names."""
    made: list[Envelope] = []
    start: i64 = 0
    if len(names) > 4:
        # The first name begins at 0, after the ends. The ends themselves tell how many they are.
        count = _name_count(names)
        base: i64 = 4 * (2 * count + 1)
        route: i64 = 0
        while route < count:
            middle: i64 = i64(read_i32_le(names, 8 * route + 4))
            end: i64 = i64(read_i32_le(names, 8 * route + 8))
            start = i64(read_i32_le(names, 8 * route))
            made.append(
                Envelope(names[base + start : base + middle].decode(), names[base + middle : base + end].decode())
            )
            route += 1
    return made


def _name_count(names: bytes) -> i64:
    """Return how many routes a table of names has: 4 (2 n + 1) bytes of ends, and as many as the last end says."""
    count: i64 = 1
    while 4 * (2 * count + 1) + i64(read_i32_le(names, 8 * count)) != len(names):
        count += 1
    return count


class SealedLook(SealedRead):
    """Reads at most `most` messages of a chunk from `number` on, for a browser; tells them, and the next number."""

    def __init__(
        self,
        stream_id: int,
        segment: SealedSegment,
        place: SealedChunk,
        number: i64,
        most: i64,
        told: Callable[[list[tuple[int, Message]], int], None],
    ) -> None:
        super().__init__(stream_id, int(segment.first), int(place.position), int(place.stored_bytes))
        self._place = place
        self._number: i64 = number
        self._most: i64 = most
        self._told = told

    def finished(self) -> None:
        found: list[tuple[int, Message]] = []
        following: i64 = self._place.end
        if self.chunk is not None:
            raw = RawChunk(self._place, self.parts)
            at: i64 = raw.place_of(self._number)
            while at < raw.count:
                if len(found) == self._most:
                    following = raw.offset_at(at)
                    break
                found.append((int(raw.offset_at(at)), raw.message(at)))
                at += 1
        self._told(found, int(following))
