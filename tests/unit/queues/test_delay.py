"""Which headers delay a message, and until when. Numbers in parentheses: the header of ``warren/queues/delay.py``."""

from __future__ import annotations

import struct

import pytest

from warren.amqp.errors import ChannelException
from warren.amqp.field_table import Table, Timestamp, decode_table, encode_table, with_length
from warren.amqp.properties import headers_of, scan_properties
from warren.msgstore.log.message import Envelope, Message, build_message
from warren.queues.delay import DELAY_MAX_MS, check_delay, due_time_ms, negate_delay

NOW_MS = 1_700_000_000_000
TEN_YEARS_MS = 315_360_000_000


def entry(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + value


def message(table: Table | bytes, body: bytes = b"body") -> Message:
    """Return a message with these headers; bytes are the encoded entries."""
    headers = with_length(table) if isinstance(table, bytes) else encode_table(table)
    return build_message(Envelope("", "q"), b"\x20\x00" + headers, body, 131072, True)


def negated(before: Message) -> Message:
    """Return a copy with the sign changed."""
    after = before.copy()
    after.due_ms = before.due_ms
    negate_delay(after)
    return after


def due(table: Table | bytes) -> int:
    return int(due_time_ms(message(table).header_payload(), NOW_MS))


INTEGERS = [
    b"b\x64",
    b"B\x64",
    b"s\x00\x64",
    b"u\x00\x64",
    b"I\x00\x00\x00\x64",
    b"i\x00\x00\x00\x64",
    b"l" + bytes(7) + b"\x64",
    b"L" + bytes(7) + b"\x64",
]
OTHER_NUMBERS = [
    b"d" + struct.pack(">d", 100.9),
    b"f" + struct.pack(">f", 100.5),
    b"D\x01" + struct.pack(">i", 1009),
    b"S\x00\x00\x00\x03100",
    b"S\x00\x00\x00\x04+100",
]
NO_NUMBERS = [
    b"t\x01",
    b"V",
    b"S\x00\x00\x00\x00",
    b"S\x00\x00\x00\x01+",
    b"S\x00\x00\x00\x041e10",
    b"S\x00\x00\x00\x03 10",
    b"S\x00\x00\x00\x04\xd9\xa1\xd9\xa1",  # digits, but not ours
    b"S\x00\x00\x00\x02\xff\xfe",
    b"S" + with_length(b"9" * 400),
    b"x\x00\x00\x00\x03100",
    b"A" + with_length(b"I\x00\x00\x00\x64"),
    b"F" + encode_table({"x-delay": 100}),
    b"d" + struct.pack(">d", float("nan")),
]


@pytest.mark.parametrize("value", INTEGERS + OTHER_NUMBERS, ids=lambda value: repr(value[:1]))
def test_a_number_of_any_type_is_a_delay(value: bytes) -> None:
    """(1)"""
    assert due(entry(b"x-delay", value)) == NOW_MS + 100


@pytest.mark.parametrize("value", NO_NUMBERS, ids=repr)
@pytest.mark.parametrize("name", [b"x-delay", b"x-deliver-at"])
def test_anything_else_is_no_delay(name: bytes, value: bytes) -> None:
    """(1)"""
    assert due(entry(name, value)) == 0
    assert due(entry(name, value) + entry(b"x-delay", b"b\x05")) == NOW_MS + 5


def test_a_timestamp_is_a_time_to_deliver_at_and_no_delay() -> None:
    """(1)"""
    at = Timestamp(NOW_MS // 1000 + 60)
    assert due({"x-deliver-at": at}) == int(at) * 1000
    assert due({"x-deliver-at": Timestamp(0)}) == 0
    assert due({"x-delay": at}) == 0
    assert due({"x-deliver-at": NOW_MS + 7}) == NOW_MS + 7
    assert due({"x-deliver-at": str(NOW_MS + 7)}) == NOW_MS + 7


def test_the_last_of_several_headers_counts() -> None:
    """(1)"""
    twice = entry(b"x-delay", b"b\x05") + entry(b"x-delay", b"b\x07")
    assert due(twice) == NOW_MS + 7
    after = negated(message(twice))
    assert decode_table(headers_of(after.header_payload())) == {"x-delay": -7}
    assert due(entry(b"x-delay", b"b\x05") + entry(b"x-delay", b"b\xfb")) == 0


def test_headers_of_other_names_do_not_count() -> None:
    assert due({"x-delaY": 5, "xx-delay": 5, "x-delay ": 5, "delay": 5, "nested": {"x-delay": 5}}) == 0
    assert due({"a": "\x07x-delayI\x00\x00\x00\x05"}) == 0
    assert due({}) == 0
    assert due_time_ms(build_message(Envelope("", "q"), b"\x00\x00", b"", 0, True).header_payload(), NOW_MS) == 0


@pytest.mark.parametrize(
    ("delay", "at", "expected"),
    [
        (10, NOW_MS + 20, 20),
        (20, NOW_MS + 10, 20),
        (0, NOW_MS + 1, 1),
        (1, NOW_MS, 1),
        (-5, NOW_MS, 0),
        (0, NOW_MS - 1, 0),
    ],
)
def test_the_later_of_the_two_counts_and_the_past_does_not(delay: int, at: int, expected: int) -> None:
    """(2)"""
    assert due({"x-delay": delay, "x-deliver-at": at}) == (NOW_MS + expected if expected else 0)


@pytest.mark.parametrize(
    "value",
    [
        b"l\x7f" + b"\xff" * 7,
        b"d" + struct.pack(">d", 1e300),
        b"d" + struct.pack(">d", float("inf")),
        b"S\0\0\0\x13" + b"9" * 19,
    ],
    ids=["long", "double", "infinity", "text"],
)
@pytest.mark.parametrize("name", [b"x-delay", b"x-deliver-at"])
def test_what_is_too_far_away_is_refused(name: bytes, value: bytes) -> None:
    until_ms = due(entry(name, value))
    with pytest.raises(ChannelException, match=r"delay of \d+ ms is more than 315360000000 ms") as refusal:
        check_delay(until_ms, NOW_MS)
    assert refusal.value.reply_code == 406


@pytest.mark.parametrize("value", [b"l\x80" + bytes(7), b"d" + struct.pack(">d", float("-inf"))])
def test_the_smallest_numbers_are_no_delay(value: bytes) -> None:
    assert due(entry(b"x-delay", value)) == 0


def test_a_timestamp_beyond_all_times_is_refused() -> None:
    until_ms = due(entry(b"x-deliver-at", b"T" + b"\xff" * 8))
    with pytest.raises(ChannelException, match="is more than"):
        check_delay(until_ms, NOW_MS)


def test_ten_years_are_accepted_and_no_millisecond_more() -> None:
    assert DELAY_MAX_MS == TEN_YEARS_MS
    check_delay(NOW_MS + TEN_YEARS_MS, NOW_MS)
    with pytest.raises(ChannelException, match="delay of 315360000001 ms is more than 315360000000 ms"):
        check_delay(NOW_MS + TEN_YEARS_MS + 1, NOW_MS)


@pytest.mark.parametrize("value", INTEGERS + OTHER_NUMBERS, ids=lambda value: repr(value[:1]))
def test_the_sign_is_changed_and_nothing_else(value: bytes) -> None:
    """(3)"""
    around = (entry(b"first", b"S" + with_length(b"one")), entry(b"last", b"V"))
    before = message(around[0] + entry(b"x-delay", value) + around[1])
    before.due_ms = NOW_MS + 100
    before.expiration_ms = 60
    after = negated(before)
    assert decode_table(headers_of(after.header_payload())) == {"first": "one", "x-delay": -100, "last": None}
    scan_properties(after.header_payload(), 0, len(after.header_payload()))
    assert after.body() == b"body"
    assert (after.due_ms, after.expiration_ms) == (NOW_MS + 100, 60)
    assert after.frame_max_bytes == max(8 + len(after.header_payload()), 8 + 4)
    assert due_time_ms(after.header_payload(), NOW_MS) == 0
    assert negated(after).content == after.content
    assert decode_table(headers_of(before.header_payload()))["last"] is None, "the message itself is as it was"
    assert due_time_ms(before.header_payload(), NOW_MS) == NOW_MS + 100


@pytest.mark.parametrize("value", NO_NUMBERS, ids=repr)
def test_what_is_no_delay_stays_as_it_is(value: bytes) -> None:
    before = message(entry(b"x-delay", value))
    assert negated(before).content == before.content


def test_large_contents_and_such_in_pieces_are_shared() -> None:
    whole = message({"x-delay": 5}, b"x" * 100_000)
    pieces = message({"x-delay": 5}, b"x" * 100_000)
    content = pieces.joined()
    head = 8 + len(pieces.header_payload())
    pieces.pieces, pieces.content = [content[:head], content[head:]], b""
    for before in (whole, pieces):
        after = negated(before)
        assert decode_table(headers_of(after.header_payload())) == {"x-delay": -5}
        assert after.body() == b"x" * 100_000
