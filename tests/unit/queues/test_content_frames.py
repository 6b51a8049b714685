"""Large contents are framed as the peer takes them: the same body, whatever frames and pieces it came in."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from engine_harness import split_frames

from warren.amqp.outbox import TAKE_BYTES, Outbox
from warren.msgstore.log.message import Envelope, Message, build_message
from warren.queues.content_frames import LARGE_MIN_BYTES, PIECE_BYTES, ContentFrames
from warren.queues.delivery import DeliveryLedger
from warren.queues.turns import Turns

BODY = random.Random(1).randbytes(2 * LARGE_MIN_BYTES + 4321)


def message_of(body: bytes, frame_max: int, cuts: list[int]) -> Message:
    """Return a message with frames of at most `frame_max` bytes, cut into pieces at `cuts`; none: one content."""
    made = build_message(Envelope("", "q"), b"\x00\x00", body, frame_max, False)
    if cuts:
        content = made.content
        header_bytes = len(made.header_payload()) + 8
        places = [0, header_bytes, *sorted(header_bytes + cut for cut in cuts), len(content)]
        made.pieces = [content[start:end] for start, end in pairwise(places) if start < end]
        made.content = b""
    return made


@pytest.mark.parametrize("frame_max", [0, 4096, 131072])
@pytest.mark.parametrize("published_in", [4096, 131072, 0])
@pytest.mark.parametrize("cut", [False, True])
def test_the_peer_gets_the_body_in_frames_of_its_size(frame_max: int, published_in: int, cut: bool) -> None:
    cuts = random.Random(2).sample(range(1, len(BODY)), 40) if cut else []
    cuts += [1, 2, 3, 4, 5, 6, 7, 8, published_in or 9] if cut else []
    supply = ContentFrames(message_of(BODY, published_in, cuts), 7, frame_max)
    announced = supply.left_bytes
    pieces = []
    while supply.left_bytes:
        pieces.append(supply.next_piece())
    data = b"".join(pieces)
    assert len(data) == announced
    assert max(map(len, pieces)) < PIECE_BYTES + 131072
    frames = split_frames(data)
    assert {number for _, number, _ in frames} == {7}
    assert [kind for kind, _, _ in frames] == [2] + [3] * (len(frames) - 1)
    assert b"".join(payload for kind, _, payload in frames if kind == 3) == BODY
    assert max(len(payload) + 8 for _, _, payload in frames) <= (frame_max or 131072)


def test_what_was_written_before_and_behind_stays_there() -> None:
    outbox = Outbox(1, [])
    outbox.write(b"before")
    first, second = (message_of(BODY, 131072, []) for _ in range(2))
    supplies = [ContentFrames(first, 1, 0), ContentFrames(second, 2, 0)]
    expected = b"before" + _all(ContentFrames(first, 1, 0)) + b"between" + _all(ContentFrames(second, 2, 0)) + b"behind"
    outbox.write_supply(supplies[0])
    outbox.write(b"between")
    outbox.write_supply(supplies[1])
    outbox.write(b"behind")
    taken = b""
    while outbox.waiting_bytes():
        part = b"".join(outbox.take_some())
        assert 0 < len(part) <= TAKE_BYTES + PIECE_BYTES + 131072
        assert not outbox.writable
        outbox.sent(len(part))
        taken += part
    assert taken == expected
    assert outbox.writable
    assert outbox.sent_bytes == len(expected)


def test_taking_everything_makes_all_of_it() -> None:
    outbox = Outbox(1, [])
    message = message_of(BODY, 131072, [])
    outbox.write_supply(ContentFrames(message, 1, 0))
    outbox.write(b"behind")
    assert b"".join(outbox.take()) == _all(ContentFrames(message, 1, 0)) + b"behind"


@pytest.mark.parametrize("channel", [1, 2])
@pytest.mark.parametrize("cut", [False, True])
def test_a_delivery_copies_nothing_of_a_large_body(channel: int, cut: bool) -> None:
    message = message_of(BODY, 131072, list(range(1000, len(BODY), 250_000)) if cut else [])
    outbox = Outbox(1, [])
    DeliveryLedger(channel, Turns(outbox, []), 131072).write_content(message)
    assert len(outbox.writer) < 1000
    assert (message.pieces is None) != cut  # it was not joined
    data = b"".join(outbox.take())
    assert b"".join(payload for kind, _, payload in split_frames(data) if kind == 3) == BODY
    assert {number for _, number, _ in split_frames(data)} == {channel}


def _all(supply: ContentFrames) -> bytes:
    made = b""
    while supply.left_bytes:
        made += supply.next_piece()
    return made


@pytest.mark.parametrize("published_in", [4096, 131072, 0])
@pytest.mark.parametrize("cut", [False, True])
def test_a_body_is_read_where_it_lies_and_not_joined(published_in: int, cut: bool) -> None:
    cuts = random.Random(3).sample(range(1, len(BODY)), 40) if cut else []
    cuts += [1, 2, 3, 4, 5, 6, 7, 8, published_in or 9] if cut else []
    message = message_of(BODY, published_in, cuts)
    pieces = message.pieces
    for most in (0, 1, 9, 4089, LARGE_MIN_BYTES, len(BODY), 2 * len(BODY)):
        assert b"".join(message.body_parts(most)) == BODY[:most]
    assert message.pieces is pieces
    assert sum(map(len, message.body_parts(10))) == 10
    for body in (b"", b"x"):
        assert b"".join(message_of(body, 4096, []).body_parts(10)) == body
