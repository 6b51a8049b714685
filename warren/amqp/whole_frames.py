"""The end of the whole frames in a stream, without parsing them: for code that passes on the bytes of others.

    frame
         0   1  type        1 method, 2 header, 3 body, 8 heartbeat
         1   2  channel
         3   4  payload_bytes
         7      payload
       end   1  0xCE

A peer that does not speak in frames (it names another version of the protocol) is told by the type of the first one.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

HEAD_BYTES: Final = 7
_BESIDE: Final = 8  # head and end
_NO_FRAMES: Final = (-1, -1)
_OPEN_OK: Final = b"\x00\x0a\x00\x29"
_CLOSES: Final = (b"\x00\x0a\x00\x32", b"\x00\x0a\x00\x33")


def whole_frames(data: bytes) -> tuple[int, int]:
    """Return where the last whole frame of `data` ends, and where it begins; `data` begins with a frame.

    Without a whole frame, the end is 0 and the beginning -1. Both are -1 when the data are not frames.
    """
    at: i64 = 0
    last: i64 = -1
    size: i64 = len(data)
    while at < size:
        kind: i64 = data[at]
        if kind != 1 and kind != 3 and kind != 2 and kind != 8:
            return _NO_FRAMES
        if at + _BESIDE > size:
            break
        end: i64 = at + _BESIDE + frame_bytes(data, at)
        if end > size:
            break
        last = at
        at = end
    return int(at), int(last)


def frame_bytes(data: bytes, at: i64) -> i64:
    """Return the size of the payload of the frame that begins at `at`, of which the head is there."""
    first: i64 = data[at + 3]
    second: i64 = data[at + 4]
    third: i64 = data[at + 5]
    fourth: i64 = data[at + 6]
    return first << 24 | second << 16 | third << 8 | fourth


def ends_connection(data: bytes, at: int) -> bool:
    """Tell whether the frame that begins at `at` is connection.close or its answer, after which nothing follows."""
    return data[at] == 1 and data[at + HEAD_BYTES : at + HEAD_BYTES + 4] in _CLOSES


def opens_connection(data: bytes, end: int) -> bool:
    """Tell whether connection.open-ok is among the whole frames of `data` up to `end`."""
    at: i64 = 0
    while at < end:
        if data[at] == 1 and data[at + HEAD_BYTES : at + HEAD_BYTES + 4] == _OPEN_OK:
            return True
        at += _BESIDE + frame_bytes(data, at)
    return False
