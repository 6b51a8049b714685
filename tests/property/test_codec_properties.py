"""The fast content header against the grammar: properties (1) and (2), and the same refusals."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from warren.amqp.errors import ConnectionException
from warren.amqp.field_table import encode_table
from warren.amqp.properties import (
    decode_properties,
    expiration_ms_of,
    find_property,
    headers_of,
    priority_of,
    scan_properties,
)
from warren.amqp.specification import PROPERTIES, PROPERTY_FLAGS, ContentHeader

from .wire import (
    REFUSED,
    damaged,
    every_small_damage,
    exact,
    fast_outcome,
    lenient_shortstrs,
    longlongs,
    property_sets,
    reference_outcome,
    shorts,
    thorough,
)

Properties = dict[str, Any]
FLAGS_OFFSET = 12


def header(properties: Properties, class_id: int = 60, weight: int = 0, body_size: int = 0) -> bytes:
    data: bytes = ContentHeader.build(
        {"class_id": class_id, "weight": weight, "body_size": body_size, "properties": properties}
    )
    return data


def decoded(data: bytes) -> Properties:
    properties = decode_properties(data, 0, len(data))
    return {name: getattr(properties, name) for name in PROPERTIES}


def scanned(data: bytes) -> int | None:
    """The flag word, or None when the scan refuses."""
    try:
        return int(scan_properties(data, 0, len(data)))
    except ConnectionException:
        return None


def assert_same_verdict(data: bytes) -> None:
    fast = fast_outcome(lambda: decoded(data))
    assert fast == reference_outcome(lambda: ContentHeader.parse(data)["properties"]), data.hex()
    assert (scanned(data) is None) == (fast == REFUSED), data.hex()
    if fast != REFUSED:
        assert decode_properties(data, 0, len(data)).encode() == data[FLAGS_OFFSET:]


@thorough(250)
@given(property_sets, shorts, shorts, longlongs)
def test_properties_decode_as_the_grammar_says(properties: Properties, cls: int, weight: int, size: int) -> None:
    data = header(properties, cls, weight, size)
    assert exact(decoded(data)) == exact(dict.fromkeys(PROPERTIES) | properties)
    assert_same_verdict(data)


@thorough(150)
@given(property_sets)
def test_encoding_what_was_decoded_gives_the_same_bytes(properties: Properties) -> None:
    data = header(properties)
    assert decode_properties(data, 0, len(data)).encode() == data[FLAGS_OFFSET:]


@thorough(150)
@given(property_sets)
def test_the_scan_returns_the_flags_and_knows_a_persistent_message(properties: Properties) -> None:
    flags = sum(PROPERTY_FLAGS[name] for name in properties)
    persistent = 2 if properties.get("delivery_mode") == 2 else 0
    assert scanned(header(properties)) == flags | persistent


@thorough(250)
@given(damaged(property_sets.map(header)))
def test_a_damaged_header_is_the_same_to_scan_decoder_and_grammar(data: bytes) -> None:
    assert_same_verdict(data)


def test_every_truncation_and_single_byte_change_of_a_full_header_is_judged_alike() -> None:
    full: Properties = dict.fromkeys(PROPERTIES, "caf\u00e9")
    full |= {
        "headers": encode_table({"k": [1, None]}),
        "delivery_mode": 2,
        "priority": 9,
        "timestamp": 2**64 - 1,
    }
    for variant in every_small_damage(header(full)):
        assert_same_verdict(variant)


@thorough(250)
@given(shorts, st.binary(max_size=80))
def test_any_flag_word_over_noise_is_judged_alike(flags: int, rest: bytes) -> None:
    assert_same_verdict(bytes(FLAGS_OFFSET) + flags.to_bytes(2, "big") + rest)


@thorough(100)
@given(property_sets, st.integers(1, 3))
def test_flags_that_are_none_of_basics_are_refused(properties: Properties, extra: int) -> None:
    data = bytearray(header(properties))
    data[FLAGS_OFFSET + 1] |= extra
    assert scanned(bytes(data)) is None
    assert_same_verdict(bytes(data))


@thorough(150)
@given(property_sets, st.binary(max_size=8), st.binary(max_size=8), st.data())
def test_a_header_is_read_in_place_and_never_beyond_its_end(
    properties: Properties, before: bytes, after: bytes, data: st.DataObject
) -> None:
    payload = header(properties)
    end = data.draw(st.integers(0, len(payload)))
    buffer = before + payload + after

    def in_place() -> Properties:
        found = decode_properties(buffer, len(before), len(before) + end)
        return {name: getattr(found, name) for name in PROPERTIES}

    assert fast_outcome(in_place) == fast_outcome(lambda: decoded(payload[:end]))


# --- single properties --------------------------------------------------------------------------------------

expirations = st.one_of(
    st.integers(0, 10**14).map(str),
    st.text("+-0123456789 x", max_size=14),
    lenient_shortstrs,
)


def expiration_by_hand(text: str | None) -> int:
    """Return the milliseconds in a text: at most 12 digits, zeros and maybe a sign before them, no minus; else -1."""
    return int(text) if text is not None and re.fullmatch(r"\+?0*[0-9]{1,12}|-0+", text) else -1


@thorough(300)
@given(property_sets, st.none() | expirations, shorts, longlongs)
def test_looking_for_one_property_finds_what_decoding_all_finds(
    properties: Properties, expiration: str | None, weight: int, size: int
) -> None:
    if expiration is not None and len(expiration.encode("utf-8", "surrogateescape")) < 256:
        properties = properties | {"expiration": expiration}
    data = header(properties, weight=weight, body_size=size)
    every = decode_properties(data, 0, len(data))
    assert priority_of(data, 0) == (every.priority or 0)
    assert headers_of(data) == (every.headers or b"")
    assert expiration_ms_of(data) == expiration_by_hand(every.expiration)


@thorough(200)
@given(property_sets)
def test_a_property_begins_where_those_before_it_end(properties: Properties) -> None:
    data = header(properties)
    for name, flag in PROPERTY_FLAGS.items():
        before = {other: value for other, value in properties.items() if PROPERTY_FLAGS[other] > flag}
        assert find_property(data, flag) == (len(header(before)) if name in properties else -1)
