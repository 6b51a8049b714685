"""Input that is not handled yet: frames of a read that wait, and frames or bodies that come in several reads.

1. A frame is received in pieces, each copied once. Small pieces are joined as they come.
2. The rest of a read is kept with the place where its handling continues: it is not copied for each turn.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64, mypyc_attr

from warren.msgstore.log.message import PIECE_OVERHEAD_BYTES

# Pieces smaller than this are joined.
PIECE_BYTES: Final = 16384
_NONE: Final[list[bytes]] = []  # shared by all that are empty: never changed


# Every idle connection has one of these: outside of the cyclic collector it is smaller, and nothing leads back to it.
@mypyc_attr(acyclic=True)
class Pieces:
    """The pieces of one frame or body, of `size` bytes together."""

    def __init__(self) -> None:
        self.size: i64 = 0
        self._pieces = _NONE

    def are_any(self) -> bool:
        """Tell whether a piece has come; it may be empty."""
        return len(self._pieces) > 0

    def add(self, piece: bytes) -> i64:
        """Keep a piece, and return the bytes of memory that it costs."""
        size: i64 = len(piece)
        self.size += size
        pieces = self._pieces
        if len(pieces) == 0:
            self._pieces = [piece]
        elif len(pieces[-1]) + size <= PIECE_BYTES:
            pieces[-1] += piece
            return size
        else:
            pieces.append(piece)
        return size + PIECE_OVERHEAD_BYTES

    def take(self, last: bytes = b"") -> bytes:
        """Return all pieces and `last` as one, and keep none of them."""
        pieces = self._pieces
        if len(pieces) == 0:
            return last
        if last:
            pieces.append(last)
        self.drop()
        return b"".join(pieces)

    def drop(self) -> None:
        """Keep none of them."""
        self.size = 0
        self._pieces = _NONE


@mypyc_attr(acyclic=True)
class PartialInput(Pieces):
    """Received and not handled: `rest` from `start` on, or the pieces of a frame of `needed` bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.rest: bytes = b""
        self.start: i64 = 0
        self.needed: i64 = 0

    def keep(self, data: bytes, start: i64) -> None:
        """Keep `data` from `start` on."""
        self.rest = data
        self.start = start

    def joined(self, data: bytes) -> bytes:
        """Return the rest and `data` as one, and keep neither; it continues at `start`, which the caller takes.

        Call this only if there is a rest.
        """
        rest = self.rest
        self.rest = b""
        if not data:
            return rest
        data = rest[self.start :] + data
        self.start = 0
        return data

    def whole(self) -> bytes:
        """Return the frame that has come in pieces."""
        self.needed = 0
        return self.take()

    def forget(self) -> None:
        """Keep nothing."""
        self.rest = b""
        self.start = 0
        self.needed = 0
        self.drop()
