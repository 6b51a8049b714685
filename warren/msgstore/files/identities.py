"""Identities of the files of a store: they tell a file from an earlier copy of it without reading all of it.

1. Two files with the same name, size and identity, of stores with the same id, have the same bytes, unless a disk has
   changed them. So files of a copy of the store that was started separately are told apart.
2. The identity of a segment is its header and the head of its first frame. They hold its place, the time, the crc of
   its content and that of the previous frame. A process only appends to segments that it has begun, so histories part
   where a segment begins.
3. The identity of a file of a stream is the heads of its chunks, which hold the crcs of their contents.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Final

from warren.msgstore.files.sealed_files import STREAMS
from warren.msgstore.files.segment_names import LOG
from warren.msgstore.log.columns import CHUNK_HEAD_BYTES, maybe_head
from warren.msgstore.log.records import FRAME_HEADER_BYTES, SEGMENT_HEADER_BYTES
from warren.msgstore.log.sealed_table import SEGMENT_HEADER_BYTES as STREAM_HEADER_BYTES

_DIGITS: Final = 32
_PIECE_BYTES: Final = 1 << 20

# Returns this many bytes from an offset on, fewer where the file ends.
Read = Callable[[int, int], bytes]


def identity_of(name: str, size: int, read: Read) -> str:
    """Return the identity of the first `size` bytes of a file; nothing for one that is another each time."""
    if name.startswith(f"{LOG}/"):
        return sha256(read(0, min(size, SEGMENT_HEADER_BYTES + FRAME_HEADER_BYTES))).hexdigest()[:_DIGITS]
    if name.startswith(f"{STREAMS}/"):
        return _identity_of_chunks(size, read)
    return ""


def _identity_of_chunks(size: int, read: Read) -> str:
    digest = sha256(read(0, min(size, STREAM_HEADER_BYTES)))
    position = STREAM_HEADER_BYTES
    while position < size:
        data = read(position, min(CHUNK_HEAD_BYTES, size - position))
        head = maybe_head(data)
        if head is None:
            break
        digest.update(data)
        position += int(head.chunk_bytes)
    # Behind damage nothing says where the next chunk is.
    while position < size:
        digest.update(read(position, min(_PIECE_BYTES, size - position)))
        position += _PIECE_BYTES
    return digest.hexdigest()[:_DIGITS]
