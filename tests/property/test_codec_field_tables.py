"""The fast field tables against the grammar: same values, same bytes, same refusals."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.amqp.errors import ConnectionException
from warren.amqp.field_table import (
    DEPTH_MAX,
    ENTRIES_MAX,
    Table,
    TableWalker,
    Timestamp,
    decode_table,
    encode_table,
    find_tag,
    flat_table_end,
    with_length,
    without_key,
)
from warren.amqp.specification import FieldTable, Pairs, SpecificationError, TaggedTable

from .wire import (
    REFUSED,
    UNKNOWN_TAGS,
    damaged,
    encoded_tables,
    every_small_damage,
    exact,
    fast_outcome,
    keys,
    plain_tables,
    reference_outcome,
    tagged_tables,
    thorough,
)

ONE_OF_EACH: dict[str, Any] = {
    "t": True,
    "b": -1,
    "B": 255,
    "s": -2,
    "u": 65535,
    "I": -3,
    "i": 2**32 - 1,
    "l": -4,
    "L": 2**63 - 1,
    "f": 0.5,
    "d": -0.1,
    "D": {"scale": 2, "unscaled": -314},
    "T": 2**64 - 1,
    "S": b"caf\xc3\xa9",
    "x": b"\x00\xff",
    "V": None,
}


def checked_without_decoding(data: bytes) -> bool:
    walker = TableWalker(data, 0, len(data))
    quick = flat_table_end(data, 0, len(data))
    try:
        walker.skip_table(1)
    except ConnectionException:
        assert quick == -1, data.hex()
        return False
    assert quick in (-1, walker.pos), data.hex()
    return bool(walker.pos == len(data))


def test_what_headers_mostly_are_needs_one_look_only() -> None:
    headers = {"x-delay": 5000, "retry": True, "trace": "ab" * 16, "at": Timestamp(7), "none": None, "part": 0.5}
    data = encode_table(headers)
    assert flat_table_end(b"??" + data + b"?", 2, len(data) + 3) == 2 + len(data)
    deep = encode_table({"deep": headers})
    assert flat_table_end(deep, 0, len(deep)) == -1


def assert_same_verdict(data: bytes) -> None:
    """Both decoders give the same value or both refuse, and checking without decoding agrees with them."""
    fast = fast_outcome(lambda: decode_table(data))
    assert fast == reference_outcome(lambda: FieldTable.parse(with_end(data))), data.hex()
    assert checked_without_decoding(data) == (fast != REFUSED), data.hex()


def with_end(data: bytes) -> bytes:
    """Refuse input that the grammar alone would leave unread: bytes after the table."""
    if len(data) >= 4 and int.from_bytes(data[:4], "big") < len(data) - 4:
        raise SpecificationError("bytes after the table")
    return data


@thorough(150)
@given(tagged_tables)
def test_every_valid_table_decodes_as_the_grammar_says(pairs: list[Any]) -> None:
    data = TaggedTable.build(pairs)
    assert fast_outcome(lambda: decode_table(data)) == exact(FieldTable.parse(data)) != REFUSED
    assert checked_without_decoding(data)


@thorough(150)
@given(plain_tables)
def test_every_python_table_encodes_to_the_bytes_of_the_grammar_and_comes_back(table: Table) -> None:
    data = encode_table(table)
    assert data == FieldTable.build(table)
    assert exact(decode_table(data)) == exact(table)


@thorough(250)
@given(damaged(encoded_tables))
def test_a_damaged_table_is_the_same_value_to_both_or_refused_by_both(data: bytes) -> None:
    assert_same_verdict(data)


@thorough(250)
@given(damaged(encoded_tables.map(lambda data: data[4:])))
def test_damage_behind_a_correct_length_is_judged_alike(content: bytes) -> None:
    assert_same_verdict(with_length(content))


def test_every_truncation_and_single_byte_change_of_a_table_with_all_types_is_judged_alike() -> None:
    fields = [{"tag": tag, "value": value} for tag, value in ONE_OF_EACH.items()]
    nested = {"tag": "F", "value": [{"key": "\u00e9", "field": {"tag": "A", "value": fields[:6]}}]}
    data = TaggedTable.build([{"key": "k", "field": field} for field in [*fields, nested]])
    for variant in every_small_damage(data):
        assert_same_verdict(variant)
    for content in every_small_damage(data[4:]):
        assert_same_verdict(with_length(content))


@thorough(150)
@given(st.binary(max_size=60))
def test_noise_in_place_of_pairs_is_judged_alike(content: bytes) -> None:
    assert_same_verdict(with_length(content))


@thorough(100)
@given(tagged_tables, st.integers(1, DEPTH_MAX), st.sampled_from(UNKNOWN_TAGS), st.binary(max_size=12))
def test_an_unknown_type_tag_is_refused_at_every_depth(pairs: list[Any], depth: int, tag: int, rest: bytes) -> None:
    content = b"\x01?" + bytes([tag]) + rest
    for _ in range(depth - 1):
        content = b"\x01nF" + with_length(content)
    content = Pairs.build(pairs)[4:] + content
    data = with_length(content)
    with pytest.raises(ConnectionException, match=rf"unknown type tag {tag}'") as refusal:
        decode_table(data)
    assert refusal.value.reply_code == 502
    assert_same_verdict(data)


@thorough(60)
@given(st.lists(st.sampled_from("AF"), min_size=DEPTH_MAX + 2, max_size=DEPTH_MAX + 2), st.booleans())
def test_nesting_up_to_the_limit_is_accepted_and_one_more_refused(kinds: list[str], leaf: bool) -> None:
    def nested(levels: int) -> bytes:
        field: dict[str, Any] = {"tag": "t", "value": leaf}
        for kind in kinds[: levels - 1]:
            inner = [field] if kind == "A" else [{"key": "k", "field": field}]
            field = {"tag": kind, "value": inner}
        data: bytes = Pairs.build([{"key": "k", "field": field}])
        return data

    assert isinstance(decode_table(nested(DEPTH_MAX)), dict)
    assert_same_verdict(nested(DEPTH_MAX))
    with pytest.raises(ConnectionException, match=f"nested deeper than {DEPTH_MAX}"):
        decode_table(nested(DEPTH_MAX + 1))
    assert_same_verdict(nested(DEPTH_MAX + 1))
    assert_same_verdict(nested(DEPTH_MAX + 2))


@thorough(4)
@given(st.integers(1, 20), st.sampled_from("AF"))
def test_entries_are_counted_over_all_levels_up_to_their_limit(containers: int, kind: str) -> None:
    def spread(entries: int) -> bytes:
        inside = entries - containers
        sizes = [inside // containers + (place < inside % containers) for place in range(containers)]
        scalar = {"tag": "V", "value": None}
        item = scalar if kind == "A" else {"key": "", "field": scalar}
        fields = [{"tag": kind, "value": [item] * size} for size in sizes]
        data: bytes = Pairs.build([{"key": "", "field": field} for field in fields])
        return data

    assert isinstance(decode_table(spread(ENTRIES_MAX)), dict)
    assert_same_verdict(spread(ENTRIES_MAX))
    with pytest.raises(ConnectionException, match=f"more than {ENTRIES_MAX} entries"):
        decode_table(spread(ENTRIES_MAX + 1))
    assert_same_verdict(spread(ENTRIES_MAX + 1))


@thorough(100)
@given(tagged_tables, keys)
def test_find_tag_names_the_type_of_the_last_entry_with_that_key(pairs: list[Any], other: str) -> None:
    data = TaggedTable.build(pairs)
    tags = {pair["key"]: pair["field"]["tag"] for pair in pairs}
    for key in [*tags, other]:
        assert find_tag(data, key) == tags.get(key, "")


@thorough(100)
@given(tagged_tables, tagged_tables, keys)
def test_without_key_takes_away_all_entries_of_that_name_and_no_other_byte(
    pairs: list[Any], more: list[Any], key: str
) -> None:
    named = [pair | {"key": key} for pair in more]
    mixed = [pair for two in zip(pairs, named, strict=False) for pair in two]
    kept = [pair for pair in mixed if pair["key"] != key]
    assert without_key(TaggedTable.build(mixed), key.encode()) == TaggedTable.build(kept)
