"""The codec against Qpid Proton's, both ways, and what it refuses."""

from __future__ import annotations

import math
import uuid
from contextlib import suppress
from typing import Any, cast

import proton
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.amqp10.error_conditions import Amqp10Error
from warren.amqp10.values import (
    DEPTH_MAX,
    ENTRIES_MAX,
    Array,
    Byte,
    Char,
    Decimal,
    Described,
    Float,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    Uuid,
    decode,
    encode,
    value_end,
)

PLAIN_TEXT = st.text(st.characters(exclude_categories=["Cs"]))
SCALARS: st.SearchStrategy[object] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(0, 255).map(UByte),
    st.integers(0, 65535).map(UShort),
    st.integers(0, 2**32 - 1).map(UInt),
    st.integers(0, 2**64 - 1).map(ULong),
    st.integers(-128, 127).map(Byte),
    st.integers(-(2**15), 2**15 - 1).map(Short),
    st.integers(-(2**31), 2**31 - 1).map(Int),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(width=32, allow_nan=False).map(Float),
    st.floats(allow_nan=False),
    st.integers(0, 2**62).map(Timestamp),
    st.binary(min_size=16, max_size=16).map(Uuid),
    st.binary(max_size=300),
    PLAIN_TEXT,
    st.text("abc-:.", max_size=300).map(Symbol),
    st.sampled_from("aZ\u00e4\u20ac\U0001f600").map(Char),
)
KEYS = st.one_of(PLAIN_TEXT, st.text("abc-", max_size=9).map(Symbol), st.integers(0, 2**64 - 1).map(ULong))
VALUES: st.SearchStrategy[object] = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=6),
        st.dictionaries(KEYS, inner, max_size=6),
        # Not of one that is described itself: there Proton loses its place.
        st.builds(
            Described, st.integers(0, 2**64 - 1).map(ULong), inner.filter(lambda each: not isinstance(each, Described))
        ),
        st.lists(st.integers(0, 2**32 - 1).map(UInt), max_size=5).map(lambda each: Array(0x70, list(each))),
        st.lists(PLAIN_TEXT, max_size=5).map(lambda each: Array(0xB1, list(each))),
    ),
    max_leaves=20,
)
PAIRS: list[tuple[type[Any], Any]] = [
    (UByte, proton.ubyte),
    (UShort, proton.ushort),
    (UInt, proton.uint),
    (ULong, proton.ulong),
    (Byte, proton.byte),
    (Short, proton.short),
    (Int, proton.int32),
    (Timestamp, proton.timestamp),
    (Symbol, proton.symbol),
    (Char, proton.char),
    (Float, proton.float32),
]


def typed(value: object) -> object:
    """Return a value of ours in a form in which values of different types are different."""
    if isinstance(value, list):
        return [typed(each) for each in value]
    if isinstance(value, dict):
        return {(type(key), key): typed(each) for key, each in value.items()}
    if isinstance(value, Described):
        return ("described", typed(value.descriptor), typed(value.value))
    if isinstance(value, Array):
        return ("array", [typed(each) for each in value.elements])
    return (type(value), value)


def of_proton(value: object) -> object:
    """Return what Proton has decoded in the same form."""
    if isinstance(value, proton.Described):
        return ("described", of_proton(value.descriptor), of_proton(value.value))
    if isinstance(value, proton.Array):
        return ("array", [of_proton(each) for each in value.elements])
    if isinstance(value, list):
        return [of_proton(each) for each in value]
    if isinstance(value, dict):
        return {cast("Any", of_proton(key)): of_proton(each) for key, each in value.items()}
    for ours, theirs in PAIRS:
        if type(value) is theirs:
            return (ours, ours(value))
    if isinstance(value, uuid.UUID):
        return (Uuid, Uuid(value.bytes))
    if isinstance(value, memoryview):
        return (bytes, bytes(value))
    return (type(value), value)


def decoded_by_proton(data: bytes) -> object:
    found = proton.Data()
    assert found.decode(data) == len(data)
    found.rewind()
    found.next()
    return of_proton(found.get_object())  # before it is gone: binaries are views of its memory


@given(VALUES)
def test_what_is_encoded_is_decoded(value: object) -> None:
    assert typed(decode(encode(value))) == typed(value)


@given(VALUES)
def test_proton_decodes_the_same_from_what_is_encoded(value: object) -> None:
    assert decoded_by_proton(encode(value)) == typed(value)


@given(VALUES)
def test_what_proton_encodes_is_decoded_to_the_same(value: object) -> None:
    theirs = proton.Data()
    theirs.decode(encode(value))
    again = bytes(theirs.encode())  # with constructors that it chooses
    assert typed(decode(again)) == typed(value)


@given(VALUES)
def test_a_value_is_passed_over_to_its_end(value: object) -> None:
    data = encode(value)
    assert value_end(data + b"more", 0, len(data) + 4) == len(data)


@given(VALUES)
def test_a_value_that_is_cut_anywhere_is_refused(value: object) -> None:
    data = encode(value)
    for at in range(len(data)):
        with pytest.raises(Amqp10Error):
            decode(data[:at])


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_a_value_or_refused(data: bytes) -> None:
    with suppress(Amqp10Error):
        found = decode(data)
        assert value_end(data, 0, len(data)) == len(data)
        encode(found)


def test_the_smallest_constructors_are_chosen() -> None:
    for value, expected in (
        (UInt(0), "43"),
        (UInt(255), "52ff"),
        (UInt(256), "7000000100"),
        (ULong(0), "44"),
        (ULong(16), "5310"),
        (True, "41"),
        ([], "45"),
        (-1, "55ff"),
        (Int(-1), "54ff"),
        ("a", "a10161"),
        (Symbol("a"), "a30161"),
        (b"", "a000"),
    ):
        assert encode(value).hex() == expected


def test_decimals_keep_their_bytes() -> None:
    for size, code in ((4, 0x74), (8, 0x84), (16, 0x94)):
        value = Decimal(bytes(range(size)))
        assert encode(value) == bytes([code]) + value
        assert decode(encode(value)) == value


def test_what_is_announced_and_not_there_is_refused_at_once() -> None:
    huge = (2**32 - 1).to_bytes(4, "big")
    for data in (
        b"\xb0" + huge,
        b"\xb1" + huge + b"abc",
        b"\xd0" + huge + huge,
        b"\xd1" + (8).to_bytes(4, "big") + huge + b"\x40\x40\x40\x40",
        b"\xf0" + (5).to_bytes(4, "big") + huge + b"\x41",  # elements without bytes of their own
        b"\xc0\x01\xff",
    ):
        with pytest.raises(Amqp10Error):
            decode(data)


def test_arrays_of_nothing_are_bounded() -> None:
    assert len(cast(Array, decode(b"\xf0\0\0\0\5" + ENTRIES_MAX.to_bytes(4, "big") + b"\x41")).elements) == ENTRIES_MAX
    with pytest.raises(Amqp10Error, match="more than"):
        decode(b"\xf0\0\0\0\5" + (ENTRIES_MAX + 1).to_bytes(4, "big") + b"\x41")


def test_nesting_is_bounded() -> None:
    def nested(depth: int) -> bytes:
        data = b"\x40"
        for _ in range(depth):
            data = b"\xd0" + (len(data) + 4).to_bytes(4, "big") + b"\0\0\0\1" + data
        return data

    decode(nested(DEPTH_MAX))
    with pytest.raises(Amqp10Error, match="nested"):
        decode(nested(DEPTH_MAX + 1))
    with pytest.raises(Amqp10Error, match="nested"):
        decode(b"\x00" * 100_000)
    with pytest.raises(Amqp10Error):
        value_end(b"\x00" * 100_000, 0, 100_000)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x3f",
        b"\x46",
        b"\x57\0",
        b"\x62\0\0",
        b"\x75\0\0\0\0",
        b"\x56\x02",
        b"\x73\0\0\xd8\0",
        b"\x73\0\x11\0\0",
        b"\xa1\x01\xff",
        b"\xa3\x02\xc3\xa4",
        b"\xa2\x00",
        b"\xc1\x02\x01\x40",
        b"\xc1\x03\x02\x45\x40",
        b"\xc0\x03\x01\x40\x40",
        b"\xe0\x04\x01\x00\x40\x00",
        b"\x40\x40",
    ],
)
def test_malformed_values_are_refused(data: bytes) -> None:
    with pytest.raises(Amqp10Error):
        decode(data)


def test_numbers_out_of_range_are_not_encoded() -> None:
    for value in (UByte(256), UShort(-1), UInt(2**32), ULong(2**64), Byte(128), Short(2**15), Int(2**31), 2**63):
        with pytest.raises(ValueError, match="out of range"):
            encode(value)


def test_what_is_not_a_number_stays_so() -> None:
    assert math.isnan(cast(float, decode(encode(math.nan))))
