"""Which headers the broker acts on are there: the walk over the keys against the decoded table."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.amqp.field_table import Table, Timestamp, decode_table, encode_table, value_end
from warren.amqp.properties import HAS_BCC, HAS_CC, HAS_DEATHS, HAS_DELAY, known_headers

BITS = {"CC": HAS_CC, "BCC": HAS_BCC, "x-death": HAS_DEATHS, "x-delay": HAS_DELAY, "x-deliver-at": HAS_DELAY}
NEAR_MISSES = ["", "C", "cc", "CCC", "BCCC", "bCC", "x-deatH", "x-delay ", "x-delax", "x-deliver-at-", "x-deliver-aT"]
KEYS = st.sampled_from(list(BITS) + NEAR_MISSES) | st.text(max_size=14)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.binary(max_size=20)
    | st.builds(Timestamp, st.integers(0, 1 << 63))
)
VALUES = SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(KEYS, SCALARS, max_size=3)


def header(table: Table) -> bytes:
    return struct.pack(">HHQH", 60, 0, 0, 0x2000) + encode_table(table)


@given(st.dictionaries(KEYS, VALUES, max_size=6))
def test_exactly_those_at_the_top_are_found(table: Table) -> None:
    expected = 0
    for key in table:
        expected |= BITS.get(key, 0)
    assert known_headers(header(table)) == expected


def test_without_headers_there_are_none() -> None:
    assert known_headers(struct.pack(">HHQH", 60, 0, 0, 0x1000) + b"\x02") == 0
    assert known_headers(header({})) == 0


@pytest.mark.parametrize(
    "value",
    [b"t\x01", b"b\x01", b"B\x01", b"s\0\1", b"u\0\1", b"I\0\0\0\1", b"i\0\0\0\1", b"f\0\0\0\0", b"V", b"D\0\0\0\0\1"]
    + [tag + bytes(8) for tag in (b"l", b"L", b"T", b"d")]
    + [b"S\0\0\0\2ab", b"x\0\0\0\1a", b"A\0\0\0\2t\1", b"F\0\0\0\3\1aV"],
    ids=lambda value: value[:1].decode(),
)
def test_the_end_of_a_value_of_each_type(value: bytes) -> None:
    assert value_end(b"??" + value + b"??", 2) == 2 + len(value)
    entries = b"\1k" + value
    assert list(decode_table(struct.pack(">I", len(entries)) + entries)) == ["k"], "the value is one"
