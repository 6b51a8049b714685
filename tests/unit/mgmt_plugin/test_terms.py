"""Field tables and properties as JSON, and back."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from warren.amqp.field_table import EMPTY_TABLE, Timestamp, decode_table, encode_table
from warren.amqp.properties import BasicProperties, decode_properties
from warren.mgmt_plugin.http.server import HttpError
from warren.mgmt_plugin.terms import (
    NUMBER_PROPERTIES,
    TEXT_PROPERTIES,
    properties_from_json,
    properties_to_json,
    table_from_json,
    table_to_json,
    value_to_json,
)


def refusal(function: Any, *given: Any) -> str:
    with pytest.raises(HttpError) as caught:
        function(*given)
    assert (caught.value.status, caught.value.error) == (400, "bad_request")
    json.dumps(caught.value.reason)
    return str(caught.value.reason)


def random_value(random_source: random.Random, depth: int = 0) -> Any:
    kind = random_source.randrange(8 if depth < 4 else 6)
    if kind == 0:
        return None
    if kind == 1:
        return random_source.random() < 0.5
    if kind == 2:
        return random_source.choice([0, 1, -1, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), random_source.getrandbits(40)])
    if kind == 3:
        return random_source.choice([0.5, -1.25e300, 1e-300])
    if kind in (4, 5):
        return "".join(random_source.choice('aé€😀\x00\n"\\ ') for _ in range(random_source.randrange(12)))
    if kind == 6:
        return [random_value(random_source, depth + 1) for _ in range(random_source.randrange(4))]
    return {f"k{number}": random_value(random_source, depth + 1) for number in range(random_source.randrange(4))}


def test_what_is_put_in_as_json_comes_out_as_json() -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    random_source = random.Random(seed)
    for _ in range(300):
        table = {f"k{number}": random_value(random_source) for number in range(5)}
        given = msgspec.json.decode(msgspec.json.encode(table))
        assert table_to_json(table_from_json(given)) == given


def test_nothing_is_an_empty_table_and_so_is_an_empty_array() -> None:
    nothings: list[object] = [None, [], {}]
    for nothing in nothings:
        assert table_from_json(nothing) == EMPTY_TABLE
    assert table_to_json(EMPTY_TABLE) == {} == table_to_json(b"")


@pytest.mark.parametrize("given", ["x", 1, True, [1], 1.5])
def test_what_is_no_object_is_no_table(given: object) -> None:
    assert refusal(table_from_json, given) == "arguments must be an object"


@pytest.mark.parametrize("number", [1 << 63, -(1 << 63) - 1, 10**400])
def test_numbers_out_of_range_are_refused_wherever_they_are(number: int) -> None:
    for given in ({"a": number}, {"a": [number]}, {"a": {"b": [{"c": number}]}}):
        assert "does not fit into 64 bits" in refusal(table_from_json, given)


@pytest.mark.parametrize(
    "given",
    [
        {"k" * 256: 1},
        {"é" * 128: 1},
        {"a\ud800": 1},
        {"a": "\ud800"},
        {"a": ["\udfff"]},
    ],
)
def test_keys_that_are_too_long_and_halves_of_surrogate_pairs_are_refused(given: object) -> None:
    refusal(table_from_json, given)


def test_a_table_that_is_too_deep_is_refused_and_not_a_crash() -> None:
    for depth in (40, 900, 100_000):
        value: Any = 1
        for _ in range(depth):
            value = [value]
        refusal(table_from_json, {"a": value})


def test_what_json_has_not_is_shown_as_something_near() -> None:
    table = encode_table(
        {
            "time": Timestamp(1700000000),
            "price": Decimal("1.25"),
            "bytes": b"\xff\x00hi",
            "nan": float("nan"),
            "infinite": float("-inf"),
            "none": None,
        }
    )
    shown = table_to_json(table)
    assert shown == {
        "time": 1700000000,
        "price": 1.25,
        "bytes": "\ufffd\x00hi",
        "nan": "nan",
        "infinite": "-inf",
        "none": None,
    }
    json.loads(msgspec.json.encode(shown))


@pytest.mark.parametrize("text", [b"caf\xe9", b"\xed\xa0\x80", b"\xff" * 20])
def test_text_that_is_not_utf_8_can_be_shown(text: bytes) -> None:
    table = b"\x01kS" + len(text).to_bytes(4, "big") + text
    encoded = len(table).to_bytes(4, "big") + table
    shown = table_to_json(encoded)
    assert msgspec.json.decode(msgspec.json.encode(shown)) == shown
    assert value_to_json(list(decode_table(encoded).values())) == list(shown.values())


# --- properties -------------------------------------------------------------------------------------------------------

ALL = {name: f"<{name}> é" for name in TEXT_PROPERTIES} | {
    "delivery_mode": 2,
    "priority": 255,
    "timestamp": (1 << 64) - 1,
    "headers": {"a": [1, {"b": None}], "": "x"},
}


def test_every_property_goes_there_and_back() -> None:
    assert properties_to_json(properties_from_json(ALL)) == ALL
    for name in ALL:
        assert properties_to_json(properties_from_json({name: ALL[name]})) == {name: ALL[name]}
    encoded = properties_from_json(ALL).encode()
    header = b"\x00\x3c\x00\x00" + bytes(8) + encoded
    assert properties_to_json(decode_properties(header, 0, len(header))) == ALL


def test_properties_that_are_not_there_are_not_shown() -> None:
    assert properties_to_json(BasicProperties()) == {}
    assert properties_to_json(properties_from_json({"priority": None, "nosuch": 1, "headers": {}})) == {}
    assert properties_to_json(properties_from_json([])) == {}


@pytest.mark.parametrize("given", ["x", 1, None, [1]])
def test_properties_are_an_object(given: object) -> None:
    assert refusal(properties_from_json, given) == "properties must be an object"


@pytest.mark.parametrize("name", TEXT_PROPERTIES)
def test_texts_must_be_texts_that_fit(name: str) -> None:
    wrongs: list[object] = [1, True, [], {}, "x" * 256, "é" * 128]
    for wrong in wrongs:
        refusal(properties_from_json, {name: wrong})
    assert getattr(properties_from_json({name: "x" * 255}), name) == "x" * 255


@pytest.mark.parametrize("name", NUMBER_PROPERTIES)
def test_numbers_must_be_numbers_that_fit(name: str) -> None:
    wrongs: list[object] = ["1", True, 1.0, -1, NUMBER_PROPERTIES[name] + 1, [], {}]
    for wrong in wrongs:
        assert name in refusal(properties_from_json, {name: wrong})


def test_headers_that_are_no_table_are_refused_by_their_name() -> None:
    assert refusal(properties_from_json, {"headers": "x"}) == "headers must be an object"
    assert refusal(properties_from_json, {"headers": {"a": 1 << 64}}).startswith("headers: ")
