"""The messages of a chunk of columns, taken apart by the table in the header of ``msgstore.log.columns``.

A chunk whose parts do not fit together is a ValueError, which says where: its crc was right, so it was written so.
"""

from __future__ import annotations

from itertools import pairwise
from struct import calcsize, error, unpack
from typing import Final

from warren.msgstore.log.columns import (
    BODIES,
    BODY_ENDS,
    FLAGS,
    NAMES,
    OFFSETS,
    PROPERTIES,
    PROPERTY_ENDS,
    ROUTES,
    TIMES,
    ChunkHead,
)
from warren.msgstore.log.message import Envelope, Message, build_message

# How the frames of a body are cut; it is not visible outside.
_FRAME_MAX_BYTES: Final = 131072


class ChunkRows:
    """The messages of a chunk, whose parts are uncompressed. Raises ValueError: they do not fit together."""

    def __init__(self, head: ChunkHead, parts: list[bytes]) -> None:
        count = int(head.count)
        self.offsets = _offsets(head, parts[OFFSETS])
        self._times = _numbers("q", parts[TIMES], "times")
        self._routes = _numbers("H", parts[ROUTES], "routes") or (0,) * count
        self._envelopes = _envelopes(parts[NAMES], int(head.route_count))
        self._bodies = parts[BODIES]
        self._body_ends = _ends(parts[BODY_ENDS], self._bodies, count, "bodies")
        self._properties = parts[PROPERTIES]
        self._property_ends = _ends(parts[PROPERTY_ENDS], self._properties, count, "properties")
        if not len(self._times) == len(self._routes) == count or len(parts[FLAGS]) not in (0, count):
            raise ValueError(f"columns of other lengths than {count}")
        if count and (max(self._routes) >= len(self._envelopes)):
            raise ValueError("a route that has no name")
        if count and (min(self._times), max(self._times)) != (head.min_time_us, head.max_time_us):
            raise ValueError("times that are not within those of the head")
        if any(end - start < 2 for start, end in pairwise(self._property_ends)):
            raise ValueError("properties without flags")

    def message(self, at: int) -> Message:
        """Return message `at` of the chunk."""
        body = self._bodies[self._body_ends[at] : self._body_ends[at + 1]]
        properties = self._properties[self._property_ends[at] : self._property_ends[at + 1]]
        made = build_message(self._envelopes[self._routes[at]], properties, body, _FRAME_MAX_BYTES, True)
        made.time_ms = self._times[at] // 1000
        return made


def _offsets(head: ChunkHead, part: bytes) -> list[int]:
    first, end, count = int(head.first), int(head.end), int(head.count)
    offsets = list(_numbers("q", part, "offsets")) if head.is_sparse else list(range(first, end))
    if len(offsets) != count:
        raise ValueError(f"{len(offsets)} offsets of {count} messages")
    if any(one >= other for one, other in pairwise([first - 1, *offsets, end])):
        raise ValueError(f"offsets that do not ascend from {first} to {end}")
    return offsets


def _envelopes(part: bytes, count: int) -> list[Envelope]:
    size = 4 * (2 * count + 1)
    names = part[size:]
    ends = _ends(part[:size], names, 2 * count, "names")
    try:
        texts = [names[start:end].decode() for start, end in pairwise(ends)]
    except UnicodeDecodeError:
        raise ValueError("names that are not UTF-8") from None
    return [Envelope(exchange, key) for exchange, key in zip(texts[::2], texts[1::2], strict=True)]


def _ends(part: bytes, values: bytes, count: int, what: str) -> tuple[int, ...]:
    ends = _numbers("i", part, what)
    if len(ends) != count + 1 or ends[0] != 0 or ends[-1] != len(values):
        raise ValueError(f"{what} that do not end where they should")
    if any(one > other for one, other in pairwise(ends)):
        raise ValueError(f"{what} that do not ascend")
    return ends


def _numbers(kind: str, part: bytes, what: str) -> tuple[int, ...]:
    try:
        return unpack(f"<{len(part) // calcsize('<' + kind)}{kind}", part)
    except error:
        raise ValueError(f"half of a number among the {what}") from None
