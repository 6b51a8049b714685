"""One property of a content header, looked for without decoding the others."""

from __future__ import annotations

import pytest

from warren.amqp.field_table import encode_table
from warren.amqp.properties import (
    CLUSTER_ID,
    CONTENT_TYPE,
    EXPIRATION,
    HEADERS,
    MIN_HEADER_BYTES,
    TIMESTAMP,
    BasicProperties,
    expiration_ms_of,
    find_property,
    headers_of,
    priority_of,
)
from warren.amqp.specification import PROPERTIES

NOT_TEXT = ("headers", "delivery_mode", "priority", "timestamp")


def payload(properties: BasicProperties) -> bytes:
    """Return a content header payload."""
    return bytes([0, 60]) + bytes(10) + properties.encode()


def full() -> BasicProperties:
    properties = BasicProperties()
    for name in PROPERTIES:
        if name not in NOT_TEXT:
            setattr(properties, name, name)
    properties.headers = encode_table({"x-delay": 5, "long": "x" * 300})
    properties.delivery_mode, properties.priority, properties.timestamp = 2, 255, 2**64 - 1
    properties.expiration = "60000"
    return properties


def expiring(text: str) -> bytes:
    properties = BasicProperties()
    properties.expiration = text
    return payload(properties)


def test_properties_are_found_among_all_others() -> None:
    properties = full()
    data = payload(properties)
    assert find_property(data, CONTENT_TYPE) == MIN_HEADER_BYTES
    assert data[find_property(data, TIMESTAMP) :].startswith(b"\xff" * 8 + b"\x04type")
    assert data[find_property(data, CLUSTER_ID) :] == b"\x0acluster_id"
    assert priority_of(data, 0) == 255
    assert headers_of(data) == properties.headers
    assert expiration_ms_of(data) == 60000


def test_what_is_not_there_is_not_found() -> None:
    data = payload(BasicProperties())
    assert [find_property(data, flag) for flag in (CONTENT_TYPE, HEADERS, EXPIRATION, CLUSTER_ID)] == [-1] * 4
    assert (priority_of(data, 0), headers_of(data), expiration_ms_of(data)) == (0, b"", -1)


def test_an_empty_table_is_not_the_same_as_none() -> None:
    properties = BasicProperties()
    properties.headers = encode_table({})
    assert headers_of(payload(properties)) == bytes(4)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("-0", 0),
        ("5", 5),
        ("+5", 5),
        ("007", 7),
        ("0000000000000060000", 60000),
        ("4294967295", 2**32 - 1),
        ("999999999999", 10**12 - 1),
    ],
)
def test_an_expiration_is_milliseconds(text: str, expected: int) -> None:
    assert expiration_ms_of(expiring(text)) == expected


@pytest.mark.parametrize(
    "text", ["", "+", "-1", "++1", "1+", "1.5", "1 ", " 1", "0x1", "5:", "/5", "1000000000000", "٣", "5\0"]
)
def test_an_expiration_that_is_no_number_or_decades_away_is_none(text: str) -> None:
    assert expiration_ms_of(expiring(text)) == -1
