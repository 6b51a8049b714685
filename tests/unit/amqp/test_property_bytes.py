"""Content headers as bytes worked out by hand."""

from __future__ import annotations

import pytest

from warren.amqp.errors import ConnectionException
from warren.amqp.properties import (
    FLAGS_OFFSET,
    MIN_HEADER_BYTES,
    BasicProperties,
    decode_properties,
    scan_properties,
)
from warren.amqp.specification import PROPERTIES, ContentHeader

PREFIX = "003c 0000 0000000000000005"  # basic, weight 0, a body of five bytes

# All fourteen, in flag order.
FULL = (
    PREFIX + "fffc"
    "0a746578742f706c61696e"  # content-type text/plain
    "04677a6970"  # content-encoding gzip
    "00000004 016b 42 07"  # headers {k: 7}
    "02"  # delivery-mode
    "09"  # priority
    "0163"  # correlation-id c
    "0172"  # reply-to r
    "0465787069"  # expiration expi
    "016d"  # message-id m
    "00000000499602d2"  # timestamp
    "0174"  # type t
    "0175"  # user-id u
    "0161"  # app-id a
    "016c"  # cluster-id l
)
FULL_VALUES = {
    "content_type": "text/plain",
    "content_encoding": "gzip",
    "headers": bytes.fromhex("00000004016b4207"),
    "delivery_mode": 2,
    "priority": 9,
    "correlation_id": "c",
    "reply_to": "r",
    "expiration": "expi",
    "message_id": "m",
    "timestamp": 1234567890,
    "type": "t",
    "user_id": "u",
    "app_id": "a",
    "cluster_id": "l",
}


def scan(text: str) -> int:
    data = bytes.fromhex(text)
    return int(scan_properties(data, 0, len(data)))


def decode(text: str) -> BasicProperties:
    data = bytes.fromhex(text)
    return decode_properties(data, 0, len(data))


def test_all_fourteen_properties_stand_in_flag_order() -> None:
    properties = decode(FULL)
    assert {name: getattr(properties, name) for name in PROPERTIES} == FULL_VALUES
    assert properties.encode() == bytes.fromhex(FULL)[FLAGS_OFFSET:]
    header = ContentHeader.parse(bytes.fromhex(FULL))
    assert (header.class_id, header.weight, header.body_size) == (60, 0, 5)
    assert header.properties == FULL_VALUES


def test_a_header_without_properties_is_fourteen_bytes() -> None:
    assert len(bytes.fromhex(PREFIX + "0000")) == MIN_HEADER_BYTES
    assert scan(PREFIX + "0000") == 0
    assert BasicProperties().encode() == b"\x00\x00"


@pytest.mark.parametrize(
    ("properties", "flags"),
    [
        ("1000 01", 0x1000),
        ("1000 02", 0x1002),
        ("1000 00", 0x1000),
        ("0800 02", 0x0800),
        ("1800 02 02", 0x1802),
    ],
)
def test_only_delivery_mode_2_is_persistent(properties: str, flags: int) -> None:
    assert scan(PREFIX + properties) == flags


def test_a_string_that_is_not_utf_8_keeps_its_bytes() -> None:
    properties = decode(PREFIX + "0080 02 ff41")
    assert properties.message_id == "\udcffA"
    assert properties.encode() == bytes.fromhex("0080 02 ff41")


@pytest.mark.parametrize(
    ("header", "reply_code", "text"),
    [
        ("", 502, "too short"),
        (PREFIX + "00", 502, "too short"),
        (PREFIX + "0001", 502, "unknown property flags"),
        (PREFIX + "0002", 502, "unknown property flags"),
        (PREFIX + "0000 00", 502, "bytes after the last property"),
        (PREFIX + "8000", 502, "too short"),
        (PREFIX + "8000 0261", 502, "too short"),
        (PREFIX + "8008 0161", 502, "too short"),
        (PREFIX + "1000", 502, "too short"),
        (PREFIX + "0040 00000000000000", 502, "too short"),
        (PREFIX + "2000 00000001", 502, "malformed field table"),
        (PREFIX + "2000 00000003 01ff56", 501, "Malformed UTF-8 in shortstr"),
    ],
)
def test_a_malformed_header_is_refused_by_scan_and_decoder_with(header: str, reply_code: int, text: str) -> None:
    for read in (scan, decode):
        with pytest.raises(ConnectionException) as refusal:
            read(header)
        assert refusal.value.reply_code == reply_code
        assert text in refusal.value.explanation
