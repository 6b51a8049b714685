"""Take a large JSON object apart before it is decoded, a piece at a time: no step of that takes long.

    parts_of       the members of the object; of a member that is an array, its items
    decode_long    a text of any length

1. Each byte is looked at once, `PIECE_BYTES` at a time. Only the nesting is looked at: a part that is not JSON is found
   when it is decoded.
2. A part has at most as many values and keys as `Part.values`: each has one of ``[``, ``{``, ``,`` and ``:`` before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

PIECE_BYTES: Final = 2 << 10
KEY_BYTES_MAX: Final = 1 << 12
TEXT_BYTES: Final = 32 << 10  # decoded at once

_BLANKS: Final = b" \t\r\n"
_ESCAPE: Final = re.compile(rb"\\.", re.DOTALL)
_MARK: Final = re.compile(rb"[\[\]{},:]")
# Or a value with at most two levels, as most are, in one go.
_INNER: Final = re.compile(rb"[\[{](?:[^\[\]{}]++|[\[{][^\[\]{}]*+[\]}])*+[\]}]|[\[\]{},:]")
# Whole characters; two surrogates are one.
_WHOLE: Final = re.compile(
    rb"(?:[^\\]++|\\u[dD][89abAB]..\\u....|\\u(?![dD][89abAB])....|\\[^u])*+",
    re.DOTALL,
)


class NotAnObject(ValueError):
    """The document is not a JSON object."""


class Part(NamedTuple):
    """A member of the object, or item `number` of a member that is an array; -1: it is not one, or is empty."""

    key: str
    number: int
    start: int
    end: int
    values: int


def _pieces(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield pieces of `data`, with their places. All that stands in texts is blotted out."""
    in_text = is_escaped = False
    for at in range(0, len(data), PIECE_BYTES):
        piece = data[at : at + PIECE_BYTES]
        if is_escaped:
            piece = b"_" + piece[1:]
        if b"\\" in piece:
            piece = _ESCAPE.sub(b"__", piece)
        is_escaped = piece.endswith(b"\\")
        parts = piece.split(b'"')
        for number in range(not in_text, len(parts), 2):
            parts[number] = b"_" * len(parts[number])
        in_text ^= len(parts) % 2 == 0
        yield at, b'"'.join(parts)


def parts_of(data: bytes) -> Iterator[Part | None]:
    """Yield the parts of a document, in their order, and None now and then.

    Raises:
        NotAnObject: it is not an object, as far as its parts do not tell.
    """
    state = "before"
    key = ""
    inner = 0  # brackets that are open within a part
    count = number = values = start = 0
    for piece_at, piece in _pieces(data):
        yield None
        at = 0
        while found := (_INNER if inner or state == "items" else _MARK).search(piece, at):
            mark, at = found[0], found.end()
            place = piece_at + found.start()
            if len(mark) > 1:  # all of a value
                values += sum(map(mark.count, (b"[", b"{", b",", b":")))
                continue
            values += mark in b"[{,:"
            if inner:
                inner += 1 if mark in b"[{" else -1 if mark in b"]}" else 0
                continue
            part: Part | None = None
            is_blank = place - start <= KEY_BYTES_MAX and not data[start:place].strip(_BLANKS)
            if state == "value" and mark == b"[" and is_blank:
                state, number = "items", 0
            elif state in ("value", "items") and mark in b"[{":
                inner = 1
                continue
            elif state == "items" and mark in b",]":
                if mark == b"," or number or not is_blank:
                    part = Part(key, number, start, place, values)
                else:
                    part = Part(key, -1, start - 1, place + 1, values)
                number += 1
                state = "items" if mark == b"," else "after items"
            elif state == "value" and mark in b",}":
                part = Part(key, -1, start, place, values)
                state = "key" if mark == b"," else "over"
            elif state == "after items" and mark in b",}" and is_blank:
                state = "key" if mark == b"," else "over"
            elif state == "key" and mark == b":" and place - start <= KEY_BYTES_MAX:
                key, state, count = _key(data[start:place]), "value", count + 1
            elif state == "key" and mark == b"}" and is_blank and count == 0:
                state = "over"
            elif state == "before" and mark == b"{" and is_blank:
                state = "key"
            else:
                raise NotAnObject
            start, values = place + 1, 0
            if part is not None:
                yield part
    if state != "over" or len(data) - start > KEY_BYTES_MAX or data[start:].strip(_BLANKS):
        raise NotAnObject


def _key(data: bytes) -> str:
    try:
        return msgspec.json.decode(data, type=str)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise NotAnObject from None


def decode_long(data: bytes, start: int, end: int) -> Iterator[str]:
    """Yield the pieces of the text between the quotes at `start` and before `end`.

    Raises:
        msgspec.MsgspecError, UnicodeDecodeError: it is not a text.
    """
    at = start
    while at < end:
        stop = min(at + TEXT_BYTES, end)
        found = _WHOLE.match(data, at, stop)
        assert found is not None
        cut = found.end()
        while at < cut < end and data[cut] & 0xC0 == 0x80:
            cut -= 1  # not within a character of several bytes
        yield msgspec.json.decode(b'"' + data[at : cut if cut > at else stop] + b'"', type=str)
        at = cut if cut > at else stop
