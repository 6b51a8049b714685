"""The context of a trace in the headers of a message, as instrumented clients write it.

    traceparent = "00" "-" trace id, 32 hex digits "-" parent id, 16 hex digits "-" flags, 2 hex digits

Digits are lower-case; an id is never all zeros; bit 0 of the flags: the client that began the trace records it.
Later versions may append more after the flags, separated by another hyphen; version ff is not valid.

1. Only the first `HEADERS_MOST` headers are searched: the client chooses the number of headers, and each delivery
   searches them.
2. A header that does not have exactly this form is ignored. It is never an error: the client is responsible for it.

Source: W3C Trace Context, traceparent.
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i32_be
from mypy_extensions import i64

from warren.amqp.field_table import value_end
from warren.amqp.properties import HEADERS, find_property_from

HEADERS_MOST: Final = 64
TRACEPARENT_BYTES: Final = 55
_KEY: Final = b"\x0btraceparent"
_TRACE_ID_AT: Final = 3
_PARENT_ID_AT: Final = 36
_FLAGS_AT: Final = 53
_SAMPLED: Final = 1
_LONGSTR: Final = 83  # S
_BYTES: Final = 120  # x
_HYPHEN: Final = 45


class TraceContext:
    """Which trace a message belongs to, and which span of it has sent it. Ids are hex digits."""

    __slots__ = ("parent_id", "sampled", "trace_id")

    def __init__(self, trace_id: str, parent_id: str, sampled: bool) -> None:
        self.trace_id = trace_id
        self.parent_id = parent_id
        self.sampled: bool = sampled


def maybe_trace_context(data: bytes, start: i64) -> TraceContext | None:
    """Return the context in the scanned content header payload that begins at `start`; None: not found."""
    table: i64 = find_property_from(data, start, HEADERS)
    if table < 0:
        return None
    pos: i64 = table + 4
    end: i64 = pos + (i64(read_i32_be(data, table)) & 0xFFFFFFFF)
    left: i64 = HEADERS_MOST
    while pos < end and left > 0:
        left -= 1
        length: i64 = data[pos]
        value: i64 = pos + 1 + length
        # The first letter spares most of the others a comparison, for which an object is made.
        if length == len(_KEY) - 1 and data[pos + 1] == 116 and data[pos:value] == _KEY:
            return _maybe_parsed(data, value)
        pos = value_end(data, value)
    return None


def _maybe_parsed(data: bytes, at: i64) -> TraceContext | None:
    """Parse the tagged value at `at`."""
    tag: i64 = data[at]
    if tag != _LONGSTR and tag != _BYTES:
        return None
    size: i64 = i64(read_i32_be(data, at + 1)) & 0xFFFFFFFF
    if size < TRACEPARENT_BYTES:
        return None
    text = data[at + 5 : at + 5 + TRACEPARENT_BYTES]
    for hyphen in (2, 35, 52):
        if text[hyphen] != _HYPHEN:
            return None
    version = text[:2]
    if version == b"00":
        if size != TRACEPARENT_BYTES:
            return None
    elif version == b"ff" or (size > TRACEPARENT_BYTES and data[at + 5 + TRACEPARENT_BYTES] != _HYPHEN):
        return None
    trace_id = text[_TRACE_ID_AT : _PARENT_ID_AT - 1]
    parent_id = text[_PARENT_ID_AT : _FLAGS_AT - 1]
    flags = text[_FLAGS_AT:]
    if not (_is_hex(version) and _is_id(trace_id) and _is_id(parent_id) and _is_hex(flags)):
        return None
    return TraceContext(trace_id.decode(), parent_id.decode(), int(flags, 16) & _SAMPLED != 0)


def _is_id(digits: bytes) -> bool:
    return _is_hex(digits) and digits.count(b"0") < len(digits)


def _is_hex(digits: bytes) -> bool:
    return all(48 <= digit <= 57 or 97 <= digit <= 102 for digit in digits)
