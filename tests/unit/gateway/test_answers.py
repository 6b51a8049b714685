"""The gateway passes on a leader's bytes whole, and its own last frame fits after them wherever they stop."""

from __future__ import annotations

import random
from struct import pack

import pytest

from warren.amqp import methods as m
from warren.amqp.codec import decode_method, method_frame
from warren.gateway.answers import HELD_BYTES_MAX, Answers

OPEN_OK = method_frame(0, m.ConnectionOpenOk(""))
HEARTBEAT = b"\x08\x00\x00\x00\x00\x00\x00\xce"


def body_frame(size: int, channel: int = 1) -> bytes:
    return pack(">BHI", 3, channel, size) + bytes(size) + b"\xce"


def passed(answers: Answers, data: bytes, at_once: int) -> bytes:
    return b"".join(answers.passed_on(data[at : at + at_once]) for at in range(0, len(data), at_once))


@pytest.mark.parametrize("at_once", [1, 3, 7, 8, 9, 100, 1000, 100_000])
def test_frames_arrive_as_they_were_sent_however_they_are_cut(at_once: int) -> None:
    data = OPEN_OK + body_frame(0) + HEARTBEAT + body_frame(5000) + OPEN_OK
    assert passed(Answers(), data, at_once) == data


def test_what_was_passed_on_ends_with_a_frame() -> None:
    generator = random.Random(7)
    data = b"".join(body_frame(generator.randrange(4000)) for _ in range(200))
    ends = {0}
    at = 0
    while at < len(data):
        at += 8 + int.from_bytes(data[at + 3 : at + 7])
        ends.add(at)
    answers = Answers()
    size = read = 0
    while read < len(data):
        more = data[read : read + generator.randrange(1, 9000)]
        read += len(more)
        size += len(answers.passed_on(more))
        assert size in ends
        assert read - size < 4008


def test_a_part_of_a_frame_is_dropped_with_its_leader() -> None:
    answers = Answers()
    cut = OPEN_OK + body_frame(5000)[:-1]
    assert answers.passed_on(cut) == OPEN_OK
    word = answers.last_word("somebody else leads")
    close = decode_method(word, 7, len(word) - 1)
    assert close == m.ConnectionClose(320, "CONNECTION_FORCED - somebody else leads", 0, 0)


def test_a_frame_too_large_to_be_held_is_passed_on_in_pieces() -> None:
    data = body_frame(3 * HELD_BYTES_MAX) + OPEN_OK
    answers = Answers()
    answers.passed_on(OPEN_OK)
    first = HELD_BYTES_MAX + 100
    assert answers.passed_on(data[:first]) == data[:first]
    assert answers.last_word("gone") == b"", "within a frame"
    assert answers.passed_on(data[first:-1]) == data[first : -len(OPEN_OK)]
    assert answers.last_word("gone") != b""
    assert answers.passed_on(data[-1:]) == OPEN_OK


@pytest.mark.parametrize("last", [m.ConnectionClose(320, "shutdown", 0, 0), m.ConnectionCloseOk()])
def test_nothing_is_put_behind_the_last_word_of_the_leader(last: object) -> None:
    for cut in range(1, 12):
        answers = Answers()
        data = OPEN_OK + method_frame(0, last)
        answers.passed_on(data[:-cut])
        assert not answers.is_over
        answers.passed_on(data[-cut:])
        assert answers.is_over
        assert answers.last_word("gone") == b""


def test_the_end_of_a_channel_is_not_that_of_the_connection() -> None:
    answers = Answers()
    answers.passed_on(OPEN_OK + method_frame(1, m.ChannelCloseOk()))
    assert not answers.is_over
    assert answers.last_word("gone")


def test_what_is_not_amqp_is_passed_on_as_it_is() -> None:
    answers = Answers()
    assert answers.passed_on(b"AMQP\x00\x00\x09\x01") == b"AMQP\x00\x00\x09\x01"
    assert answers.last_word("gone") == b""


def test_a_handshake_ends_without_a_word() -> None:
    """As that of a broker does, which may have had its reason."""
    answers = Answers()
    assert answers.last_word("gone") == b""
    answers.passed_on(method_frame(0, m.ConnectionTune(2047, 131072, 60)))
    assert answers.last_word("gone") == b""
    answers.passed_on(OPEN_OK + method_frame(1, m.ChannelOpenOk(b"")))
    assert answers.last_word("gone")
