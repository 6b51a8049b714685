"""Messages in columns to AMQP frames: thousands of basic.publish at a time, without a loop over them.

    message     method frame, content header frame, body frames; all on channel 1

         0   3  01 0001               method
         3   4  payload_bytes
         7   6  003C 0028 0000        basic.publish, ticket 0
        13      exchange, routing key (shortstr), flags: 01 mandatory
                CE
                02 0001 payload_bytes:u32 003C 0000 body_bytes:u64, flags and properties, CE
                03 0001 payload_bytes:u32 body CE     once for each 131,064 bytes of the body, not at all for none

1. One message is one element of the result, and the elements lie one after the other in one buffer.
2. A value that cannot be sent is a `ValueError` that names column and row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

FRAME_BYTES_MAX: Final = 131072
NAME_BYTES_MAX: Final = 255
PART_BYTES_MOST: Final = 32 << 20  # of a part of a stage: the largest request that the broker takes
# Of bodies that are encoded in one go: Arrow's binaries end at 2 GiB.
SLICE_BYTES: Final = 64 << 20

_OVERHEAD: Final = 8
_METHOD: Final = b"\x01\x00\x01"
_PUBLISH: Final = b"\x00\x3c\x00\x28\x00\x00"
_BODY: Final = b"\x03\x00\x01"
_END: Final = b"\xce"
_HEADER: Final = np.dtype([("frame", "V3"), ("size", ">u4"), ("class", "V4"), ("body", ">u8")])
_BEFORE_BODY: Final = np.dtype([("end", "V1"), ("frame", "V3"), ("size", ">u4")])
_NOTHING: Final = pa.scalar(b"", pa.binary())

Numbers = npt.NDArray[np.int64]


def too_large(row: int, size: int) -> str:
    """Return the text about a message that is too large for a part of a stage."""
    return (
        f"row {row} becomes a message of {size} bytes with its frames, and what is staged may have {PART_BYTES_MOST} "
        "at most: publish it over AMQP"
    )


def encode_publishes(
    exchanges: pa.Array | str,
    routing_keys: pa.Array | str,
    properties: pa.Array,
    bodies: pa.Array,
    *,
    mandatory: bool = False,
    frame_bytes_max: int = FRAME_BYTES_MAX,
) -> pa.Array:
    """Return the frames of each message as a binary.

    `exchanges` and `routing_keys`: a column of texts, in which null is the empty one, or the same for all; `properties`
    as `properties.encode_properties` returns them; `bodies`: binaries or texts, fewer than 2 GiB in all.

    Raises:
        ValueError: a name is too long, or a body is null.
    """
    count = len(bodies)
    if bodies.null_count:
        raise ValueError(f"body of row {int(np.argmax(bodies.is_null().to_numpy(zero_copy_only=False)))} is null")
    contents = bodies if bodies.type == pa.binary() else bodies.cast(pa.binary())
    sizes = _lengths(contents)
    methods = _methods(exchanges, routing_keys, count, mandatory=mandatory)
    head = np.zeros(count, _HEADER)
    head["frame"] = np.void(b"\x02\x00\x01")
    head["size"] = 12 + _lengths(properties)
    head["class"] = np.void(b"\x00\x3c\x00\x00")
    head["body"] = sizes
    room = frame_bytes_max - _OVERHEAD
    before, ends = _around(sizes, room)
    if count and int(sizes.max()) > room:
        contents = _framed(contents, sizes, room)
    return pc.binary_join_element_wise(
        *methods, _fixed(head.view(np.uint8), _HEADER.itemsize), properties, before, contents, ends, _NOTHING
    )


def sliced(batch: pa.RecordBatch, bodies: pa.Array) -> Iterator[pa.RecordBatch]:
    """Yield `batch` in slices whose `bodies` are few enough to be encoded in one go."""
    sizes = np.cumsum(_lengths(bodies.cast(pa.large_binary())))
    start = 0
    while start < batch.num_rows:
        before = int(sizes[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(sizes, before + SLICE_BYTES, side="right")))
        yield batch.slice(start, stop - start)
        start = stop


def bounds_of(messages: pa.Array) -> Numbers:
    """Return where each of `messages` begins in `content_of` them, and where the last one ends."""
    ends = np.frombuffer(messages.buffers()[1], np.int32)[messages.offset : messages.offset + len(messages) + 1]
    found: Numbers = ends.astype(np.int64) - int(ends[0])
    return found


def content_of(messages: pa.Array) -> memoryview:
    """Return all messages one after the other, without copying them."""
    ends = np.frombuffer(messages.buffers()[1], np.int32)
    return memoryview(messages.buffers()[2])[int(ends[messages.offset]) : int(ends[messages.offset + len(messages)])]


def _lengths(values: pa.Array) -> Numbers:
    """Return the bytes of binaries or texts, 0 for a null."""
    found: Numbers = pc.binary_length(values).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def _methods(exchanges: pa.Array | str, keys: pa.Array | str, count: int, *, mandatory: bool) -> list[Any]:
    """Return the bytes in front of the content header, in one piece or more."""
    flags = b"\x01" if mandatory else b"\x00"
    if isinstance(exchanges, str) and isinstance(keys, str):
        names = _short("exchange", exchanges) + _short("routing_key", keys)
        size = len(_PUBLISH) + len(names) + 1
        return [pa.scalar(_METHOD + size.to_bytes(4, "big") + _PUBLISH + names + flags + _END, pa.binary())]
    sizes = np.full(count, len(_PUBLISH) + 3, np.int64)
    pieces: list[Any] = []
    for name, values in (("exchange", exchanges), ("routing_key", keys)):
        if isinstance(values, str):
            short = _short(name, values)
            pieces.append(pa.scalar(short, pa.binary()))
            sizes += len(short) - 1
            continue
        raw = values.cast(pa.string()).cast(pa.binary()).fill_null(b"")
        lengths = _lengths(raw)
        if count and int(lengths.max()) > NAME_BYTES_MAX:
            raise ValueError(f"{name} of row {int(lengths.argmax())} is longer than {NAME_BYTES_MAX} bytes")
        pieces += [_fixed(lengths.astype(np.uint8), 1), raw]
        sizes += lengths
    first = np.zeros(count, np.dtype([("frame", "V3"), ("size", ">u4"), ("method", "V6")]))
    first["frame"] = np.void(_METHOD)
    first["size"] = sizes
    first["method"] = np.void(_PUBLISH)
    return [_fixed(first.view(np.uint8), 13), *pieces, pa.scalar(flags + _END, pa.binary())]


def _short(name: str, text: str) -> bytes:
    raw = text.encode()
    if len(raw) > NAME_BYTES_MAX:
        raise ValueError(f"{name} is longer than {NAME_BYTES_MAX} bytes")
    return bytes([len(raw)]) + raw


def _around(sizes: Numbers, room: int) -> tuple[Any, Any]:
    """Return the bytes between properties and body, and after the body: frames of their own, or an end only."""
    before = np.zeros(len(sizes), _BEFORE_BODY)
    before["end"] = np.void(_END)
    before["frame"] = np.void(_BODY)
    before["size"] = np.where(sizes > room, 0, sizes)
    whole = _fixed(before.view(np.uint8), _BEFORE_BODY.itemsize)
    end = pa.scalar(_END, pa.binary())
    in_one_frame = (sizes > 0) & (sizes <= room)
    if in_one_frame.all():
        return whole, end
    mask = pa.array(in_one_frame)
    return pc.if_else(mask, whole, end), pc.if_else(mask, end, _NOTHING)


def _framed(bodies: pa.Array, sizes: Numbers, room: int) -> pa.Array:
    """Return `bodies` with those that need several frames cut into them."""
    is_large = sizes > room
    framed = []
    for row in np.flatnonzero(is_large):
        body = bodies[int(row)].as_py()
        pieces = []
        for at in range(0, len(body), room):
            piece = body[at : at + room]
            pieces += [_BODY, len(piece).to_bytes(4, "big"), piece, _END]
        framed.append(b"".join(pieces))
    return pc.replace_with_mask(bodies, pa.array(is_large), pa.array(framed, pa.binary()))


def _fixed(data: npt.NDArray[np.uint8], size: int) -> pa.Array:
    """Return binaries of `size` bytes each."""
    count = len(data) // size
    ends = np.arange(0, size * count + 1, size, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(data)])
