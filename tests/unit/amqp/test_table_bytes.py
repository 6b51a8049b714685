"""Field tables as bytes worked out by hand: one entry per type, and the refusals with their codes."""

from __future__ import annotations

import math
from decimal import Decimal

import pytest

from warren.amqp.errors import ConnectionException
from warren.amqp.field_table import (
    DEPTH_MAX,
    EMPTY_TABLE,
    ENTRIES_MAX,
    TYPE_NAMES,
    Table,
    Timestamp,
    decode_table,
    encode_table,
    find_tag,
    is_valid_table,
    maybe_value,
    with_length,
    without_key,
)
from warren.amqp.specification import FIELD_PAYLOADS, FieldTable

K = "016b"  # the key "k"

DECODED: list[tuple[str, object]] = [
    ("74 00", False),
    ("74 01", True),
    ("74 80", True),
    ("62 7f", 127),
    ("62 80", -128),
    ("42 ff", 255),
    ("73 8000", -32768),
    ("75 8000", 32768),
    ("49 ffffffff", -1),
    ("69 ffffffff", 4294967295),
    ("6c 8000000000000000", -(2**63)),
    ("4c 7fffffffffffffff", 2**63 - 1),
    ("66 3fc00000", 1.5),
    ("64 c000000000000000", -2.0),
    ("64 7ff0000000000000", math.inf),
    ("44 02 0000013a", Decimal("3.14")),
    ("44 00 ffffffff", Decimal(-1)),
    ("44 ff 00000001", Decimal("1E-255")),
    ("54 00000000499602d2", Timestamp(1234567890)),
    ("54 ffffffffffffffff", Timestamp(2**64 - 1)),
    ("53 00000005 636166c3a9", "caf\u00e9"),
    ("53 00000001 ff", b"\xff"),
    ("53 00000000", ""),
    ("78 00000002 6869", b"hi"),
    ("56", None),
    ("41 00000000", []),
    ("41 00000007 4900000005 7401", [5, True]),
    ("46 00000000", {}),
    ("46 00000004 0161 42 07", {"a": 7}),
    ("41 00000006 41 00000001 56", [[None]]),
]


def table_of(field: str) -> bytes:
    return with_length(bytes.fromhex(K + field))


@pytest.mark.parametrize(("field", "value"), DECODED)
def test_a_field_decodes_to_its_python_value(field: str, value: object) -> None:
    table = decode_table(table_of(field))
    assert table == {"k": value}
    assert type(table["k"]) is type(value)
    assert FieldTable.parse(table_of(field)) == table


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (True, "74 01"),
        (5, "49 00000005"),
        (-(2**31), "49 80000000"),
        (2**31, "6c 0000000080000000"),
        (-(2**31) - 1, "6c ffffffff7fffffff"),
        (0.5, "64 3fe0000000000000"),
        (Decimal("-3.14"), "44 02 fffffec6"),
        (Decimal("1E+2"), "44 00 00000064"),
        (Timestamp(1), "54 0000000000000001"),
        ("caf\u00e9", "53 00000005 636166c3a9"),
        (b"caf", "78 00000003 636166"),
        (None, "56"),
        ([1, "a"], "41 0000000b 49 00000001 53 00000001 61"),
        ({"a": []}, "46 00000007 0161 41 00000000"),
    ],
)
def test_a_python_value_encodes_with_the_tag_that_clients_read_best(value: object, field: str) -> None:
    assert encode_table({"k": value}) == table_of(field)
    assert FieldTable.build({"k": value}) == table_of(field)


def test_an_empty_table_is_four_zero_bytes() -> None:
    assert encode_table({}) == EMPTY_TABLE == bytes(4)
    assert decode_table(EMPTY_TABLE) == {}


def test_of_equal_keys_the_last_one_wins() -> None:
    data = with_length(bytes.fromhex("016b 42 01 0161 56 016b 42 02"))
    assert decode_table(data) == {"k": 2, "a": None}
    assert find_tag(data, "k") == "B"


def test_every_type_of_the_grammar_has_a_name() -> None:
    assert set(TYPE_NAMES) == set(FIELD_PAYLOADS)


@pytest.mark.parametrize(
    ("data", "reply_code", "text"),
    [
        ("", 502, "a length exceeds"),
        ("000000", 502, "a length exceeds"),
        ("00000001", 502, "a length exceeds"),
        ("ffffffff", 502, "a length exceeds"),
        ("00000000 00", 502, "bytes after its end"),
        ("00000001 00", 502, "a length exceeds"),  # a key and no value
        ("00000002 0261", 502, "a length exceeds"),  # a key longer than the table
        ("00000003 01ff56", 501, "Malformed UTF-8 in shortstr"),
        ("00000003 016b7a", 502, "unknown type tag 122"),
        ("00000003 016b00", 502, "unknown type tag 0"),
        ("00000006 016b49000000", 502, "a length exceeds"),
        ("00000008 016b53 7fffffff 61", 502, "a length exceeds"),
        ("00000008 016b41 00000002 56", 502, "a length exceeds"),
        ("0000000c 016b46 00000005 0161 42 07 00", 502, "a length exceeds"),
        # an inner table that reaches over the end of the outer one into what follows
        ("00000007 016b46 00000001 00", 502, "a length exceeds"),
    ],
)
def test_a_malformed_table_is_refused_with(data: str, reply_code: int, text: str) -> None:
    with pytest.raises(ConnectionException) as refusal:
        decode_table(bytes.fromhex(data))
    assert refusal.value.reply_code == reply_code
    assert text in refusal.value.explanation


@pytest.mark.parametrize(
    "table",
    [
        {"k" * 256: None},
        {"k": 2**63},
        {"k": -(2**63) - 1},
        {"k": Timestamp(-1)},
        {"k": Timestamp(2**64)},
        {"k": Decimal(2**31)},
        {"k": Decimal("1E-256")},
        {"k": "\ud800"},
    ],
    ids=["long key", "int", "negative int", "timestamp", "long timestamp", "decimal", "places", "surrogate"],
)
def test_what_no_field_can_hold_is_a_value_error(table: Table) -> None:
    with pytest.raises(ValueError, match=r"."):
        encode_table(table)


def test_find_tag_of_a_missing_key_is_empty() -> None:
    assert find_tag(encode_table({"a": 1}), "b") == ""
    assert find_tag(EMPTY_TABLE, "") == ""


def test_find_tag_does_not_look_into_nested_tables() -> None:
    assert find_tag(encode_table({"outer": {"inner": 1}}), "inner") == ""


def test_without_key_keeps_order_widths_and_duplicates_of_the_rest() -> None:
    data = with_length(bytes.fromhex("0161 42 01 0162 49 00000002 0161 56 0161 42 03 0163 46 00000003 0162 56"))
    kept = with_length(bytes.fromhex("0161 42 01 0161 56 0161 42 03 0163 46 00000003 0162 56"))
    assert without_key(data, b"b") == kept
    assert without_key(kept, b"b") == kept
    assert without_key(EMPTY_TABLE, b"b") == EMPTY_TABLE


@pytest.mark.parametrize(("field", "value"), DECODED)
def test_one_value_is_found_among_others_of_every_type(field: str, value: object) -> None:
    others = bytes.fromhex("".join(f"026f6b {each}" for each, _ in DECODED))
    entry = bytes.fromhex(K + field)
    for content in (entry, entry + others, others + entry, bytes.fromhex(K + "56") + others + entry + others):
        found = maybe_value(with_length(content), b"k")
        assert found == value
        assert type(found) is type(value)
    assert maybe_value(with_length(others), b"k") is None
    assert maybe_value(with_length(others + entry), b"") is None
    assert maybe_value(EMPTY_TABLE, b"k") is None


def test_a_table_that_was_put_together_is_valid_while_it_has_neither_too_many_entries_nor_is_too_deep() -> None:
    many: Table = {f"{number:04}": 1 for number in range(ENTRIES_MAX)}
    assert is_valid_table(encode_table({})) and is_valid_table(encode_table(many))
    assert not is_valid_table(encode_table({**many, "one": 1}))
    deep: Table = {}
    for _ in range(DEPTH_MAX - 1):
        deep = {"x": deep}
    assert is_valid_table(encode_table(deep))
    assert not is_valid_table(encode_table({"x": {"x": deep}}))
