"""A bound for the values in a JSON body, measured while it comes, before any of it becomes objects.

1. A gauge looks at each byte once, in C, and keeps nothing but counts: its time is linear, its memory constant.
2. It counts the bytes that make objects: every ``[``, ``{``, ``,`` and ``:`` outside texts. A value has at least one of
   these before or in it, so the number of values and keys is at most the count plus one. Apart from texts all objects
   are smaller than a few hundred bytes. So the decoded body is bounded by its size and by the number of values.
3. It does not check whether the body is JSON. In an invalid body its count is right as far as a decoder comes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

DEPTH_MAX: Final = 64

_ESCAPE: Final = re.compile(rb"\\.", re.DOTALL)
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_STEPS: Final = [1 if byte in b"[{" else -1 if byte in b"]}" else 0 for byte in range(256)]


class TooDeep(Exception):
    """A body is nested too deeply."""


class TooMuch(Exception):
    """A body has too many values."""


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """The limits of a route for a body: the bytes, and the values if the body is JSON."""

    size: int
    values: int


ORDINARY: Final = BodyLimits(1 << 20, 20_000)


class JsonGauge:
    """Measures one body. Pieces are best not larger than a few KiB: each is looked at in one go."""

    def __init__(self, values_max: int) -> None:
        self._values_max = values_max
        self._values = 0
        self._depth = 0
        self._in_text = False
        self._escaped = False  # the last byte is a backslash in a text, and what it escapes is still to come

    def look(self, piece: bytes) -> None:
        """Look at the next piece.

        Raises:
            TooDeep: the body is nested more deeply than `DEPTH_MAX`. TooMuch: it has more values than it may.
        """
        if self._escaped and piece:
            piece = piece[1:]
            self._escaped = False
        if b"\\" in piece:
            # JSON has backslashes only inside texts. If one stands outside, the body is invalid and is not decoded.
            piece = _ESCAPE.sub(b"", piece)
        self._escaped |= piece.endswith(b"\\")
        texts_and_others = piece.split(b'"')
        outside = b"".join(texts_and_others[self._in_text :: 2])
        self._in_text ^= len(texts_and_others) % 2 == 0
        self._values += sum(map(outside.count, (b"[", b"{", b",", b":")))
        brackets = outside.translate(None, _NO_BRACKETS)
        depths = list(accumulate(map(_STEPS.__getitem__, brackets), initial=self._depth))
        self._depth = depths[-1]
        if max(depths) > DEPTH_MAX:
            raise TooDeep("the JSON is nested too deeply")
        if self._values > self._values_max:
            raise TooMuch(f"the JSON has more than {self._values_max} values")
