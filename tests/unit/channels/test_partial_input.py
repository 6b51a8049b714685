"""Input that is not handled yet is kept whole, and is not copied again and again."""

from __future__ import annotations

import random

from warren.channels.partial_input import PIECE_BYTES, PartialInput, Pieces
from warren.msgstore.log.message import PIECE_OVERHEAD_BYTES


def test_pieces_of_any_size_become_the_whole() -> None:
    """(1)"""
    for seed in range(50):
        dice = random.Random(seed)
        pieces = Pieces()
        sent = [dice.randbytes(dice.choice((0, 1, 100, PIECE_BYTES, 3 * PIECE_BYTES))) for _ in range(20)]
        cost = sum(pieces.add(piece) for piece in sent)
        assert pieces.size == sum(map(len, sent)), seed
        assert cost == pieces.size + PIECE_OVERHEAD_BYTES * len(pieces._pieces), seed
        assert pieces.take(b"last") == b"".join(sent) + b"last", seed
        assert not pieces.are_any() and pieces.size == 0


def test_small_pieces_are_joined_as_they_come() -> None:
    """(1)"""
    pieces = Pieces()
    for _ in range(10 * PIECE_BYTES // 16):
        pieces.add(b"x" * 16)
    assert len(pieces._pieces) == 10


def test_a_rest_and_pieces_are_kept_apart() -> None:
    unread = PartialInput()
    unread.keep(b"the beginning", 4)
    unread.add(b"more")
    assert unread.take(b" of it") == b"more of it"
    assert (unread.rest, unread.start) == (b"the beginning", 4)
    unread.add(b"again")
    unread.forget()
    assert (unread.rest, unread.start, unread.size, unread.are_any()) == (b"", 0, 0, False)


def test_those_without_pieces_share_nothing_that_changes() -> None:
    one, other = Pieces(), Pieces()
    one.add(b"")
    assert one.are_any(), "an empty piece has come"
    assert not other.are_any()
    assert other.take(b"last") == b"last"


def test_the_rest_of_a_turn_is_not_copied() -> None:
    """(2)"""
    unread = PartialInput()
    read = b"frames of a read"
    unread.keep(read, 7)
    assert unread.joined(b"") is read and unread.start == 7
    unread.start = 0
    assert unread.rest == b""
    unread.keep(read, 10)
    assert unread.joined(b" and more") == b"a read and more" and unread.start == 0
