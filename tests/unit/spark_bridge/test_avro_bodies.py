"""Bodies in Avro. avro_bodies (1) to (4)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.spark_bridge import avro_bodies
from warren.spark_bridge.avro_bodies import AvroBodies
from warren.spark_bridge.bridge_errors import CorruptBody, Unreachable, UsageError
from warren.spark_bridge.schema_registry import RegistryClient, SchemaRegistry

from .fake_registry import FakeRegistry
from .typed_messages import ORDER, avro, framed, record

DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with FakeRegistry() as made:
        yield made


def reader(schema: Any, registry: FakeRegistry | None = None) -> AvroBodies:
    client = None if registry is None else RegistryClient(SchemaRegistry(registry.url), retries=0)
    return AvroBodies(json.dumps(schema), client)


def test_every_type_has_its_column() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 6000, tzinfo=UTC)
    columns: dict[str, tuple[Any, pa.DataType, Any]] = {
        "a": ("boolean", pa.bool_(), True),
        "b": ("int", pa.int32(), -(2**31)),
        "c": ("long", pa.int64(), 2**63 - 1),
        "d": ("float", pa.float32(), 0.5),
        "e": ("double", pa.float64(), 1e300),
        "f": ("string", pa.string(), "ä"),
        "g": ("bytes", pa.binary(), b"\xff"),
        "h": ({"type": "fixed", "name": "F", "size": 2}, pa.binary(), b"xy"),
        "i": ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, pa.string(), "B"),
        "j": ({"type": "array", "items": ["null", DECIMAL]}, pa.list_(pa.decimal128(5, 2)), [Decimal("-1.50"), None]),
        "k": ({"type": "map", "values": "int"}, pa.map_(pa.string(), pa.int32()), {"x": 1}),
        "l": (record(("x", ["null", "int"]), name="N"), pa.struct([("x", pa.int32())]), {"x": None}),
        "m": ({"type": "long", "logicalType": "timestamp-millis"}, pa.timestamp("us", "UTC"), moment),
        "n": ({"type": "long", "logicalType": "timestamp-micros"}, pa.timestamp("us", "UTC"), moment),
        "o": (
            {"type": "long", "logicalType": "local-timestamp-millis"},
            pa.timestamp("us"),
            moment.replace(tzinfo=None),
        ),
        "p": ({"type": "int", "logicalType": "date"}, pa.date32(), date(1969, 12, 31)),
        "q": ({"type": "int", "logicalType": "time-millis"}, pa.int32(), 5),
        "r": (["int", "long"], pa.int64(), 5),
        "s": (["null", "float", "double"], pa.float64(), 0.25),
    }
    schema = record(*((name, kind) for name, (kind, _, _) in columns.items()))
    made = reader(schema)
    assert made.schema == pa.schema([(name, kind) for name, (_, kind, _) in columns.items()])
    values = {name: value for name, (_, _, value) in columns.items()}
    plain = json.loads(json.dumps(schema).replace('"time-millis"', '"none"'))  # which fastavro wants to be a time
    assert made.value(avro(plain, values)) == values
    assert pa.array([values], pa.struct(list(made.schema))).to_pylist()[0]["j"] == values["j"]


def test_what_is_behind_the_value_or_missing_is_corrupt() -> None:
    made = reader(ORDER)
    body = avro(ORDER, {"id": 1, "note": "x"})
    assert made.value(body) == {"id": 1, "note": "x"}
    with pytest.raises(CorruptBody, match="1 bytes after the end"):
        made.value(body + b"\x00")
    for end in range(len(body)):
        with pytest.raises(CorruptBody):
            made.value(body[:end])


@given(st.binary(max_size=60))
def test_no_bytes_are_more_than_corrupt(body: bytes) -> None:
    schema = record(("a", {"type": "array", "items": ["null", ORDER]}), ("b", DECIMAL), ("c", "string"))
    made = reader(schema)
    with suppress(CorruptBody):
        made.value(body)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ({"type": "long", "logicalType": "timestamp-millis"}, 2**62),
        ({"type": "int", "logicalType": "date"}, 2**31 - 1),
        (DECIMAL, b"\x7f" * 3),
        (DECIMAL, b"\x00" * 1000),
    ],
)
def test_a_value_that_its_column_has_not_is_corrupt(kind: Any, value: Any) -> None:
    body = avro(record(("x", kind["type"])), {"x": value})
    with pytest.raises(CorruptBody):
        reader(record(("x", kind))).value(body)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("string", "must be a record"),
        (["null", ORDER], "must be a record"),
        ([ORDER, record(("x", "int"))], "union of several types"),
        (record(("x", ["int", "string"])), "'x' is a union of several types"),
        (record(("x", "null")), "'x' is null"),
        (record(("x", ["null"])), "union"),
        (record(("x", record(name="N"))), "record without fields"),
        (record(("x", ["null", "R"])), "R contains itself"),
        (record(("x", {"type": "array", "items": record(("y", "R"), name="N")})), "R contains itself"),
        (record(("x", "nothing")), "no Avro schema"),
        ({"type": "record"}, "no Avro schema"),
        (5, "no Avro schema"),
    ],
)
def test_a_schema_of_which_no_columns_can_be_made_is_refused(schema: Any, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        reader(schema)


def test_a_schema_is_not_larger_than_it_looks() -> None:
    names = {"type": "record", "name": "N0", "fields": [{"name": "x", "type": "int"}]}
    schema: Any = names
    for level in range(1, 30):
        schema = record(("a", schema), ("b", f"N{level - 1}"), name=f"N{level}")
    with pytest.raises(UsageError, match="more than 5000 fields"):
        reader(schema)
    with pytest.raises(UsageError, match="not JSON"):
        AvroBodies("[" * 100_000)


def test_each_body_is_read_as_it_was_written(registry: FakeRegistry) -> None:
    old = record(("id", "int"), name="shop.Order")
    newer = record(("id", "long"), ("note", ["null", "string"]), ("more", "string"), name="shop.Order")
    registry.register(1, "orders-value", json.dumps(old))
    registry.register(2, "orders-value", json.dumps(newer), version=2)
    made = reader(ORDER, registry)
    for _ in range(2):
        assert made.value(framed(1, avro(old, {"id": 1}))) == {"id": 1, "note": None}
        assert made.value(framed(2, avro(newer, {"id": 2, "note": "x", "more": "y"}))) == {"id": 2, "note": "x"}
    assert len(registry.asked) == 2


def test_schemas_that_a_schema_refers_to_are_found(registry: FakeRegistry) -> None:
    money = record(("cents", "long"), name="shop.Money")
    schema = record(("price", "shop.Money"), name="shop.Order")
    registry.register(1, "money", json.dumps(money))
    references = [{"name": "shop.Money", "subject": "money", "version": 1}]
    registry.register(2, "orders-value", json.dumps(schema), references=references)
    client = RegistryClient(SchemaRegistry(registry.url), retries=0)
    made = AvroBodies(json.dumps(schema), client, others=[json.dumps(money)])
    body = avro(record(("price", money), name="shop.Order"), {"price": {"cents": 5}})
    assert made.value(framed(2, body)) == {"price": {"cents": 5}}


def test_what_a_registry_cannot_say_is_not_the_fault_of_a_body(registry: FakeRegistry) -> None:
    made = reader(ORDER, registry)
    with pytest.raises(CorruptBody, match="no schema 9"):
        made.value(framed(9, b""))
    registry.failures = [500]
    with pytest.raises(Unreachable):
        made.value(framed(8, b""))


@pytest.mark.parametrize(
    ("schema", "kind", "reason"),
    [
        (record(("id", "string"), name="shop.Order"), None, "cannot be resolved"),
        (record(("x", "int"), name="shop.Order"), None, "cannot be resolved|no value"),
        (record(("id", "long"), ("x", ["null", "shop.Order"]), name="shop.Order"), None, "contains itself"),
        (["null", record(("x", ["null", "shop.Order"]), name="shop.Order")], None, "contains itself"),
        (record(("id", "long"), ("x", {"type": "array", "items": "null"}), name="shop.Order"), None, "take no bytes"),
        (
            record(("id", "long"), ("x", {"type": "array", "items": record(name="E")}), name="shop.Order"),
            None,
            "no bytes",
        ),
        ({"type": "nothing"}, None, "no Avro schema"),
        (ORDER, "JSON", "is JSON, not AVRO"),
    ],
)
def test_a_schema_that_a_writer_should_not_have_had_is_the_fault_of_its_bodies(
    registry: FakeRegistry, schema: Any, kind: str | None, reason: str
) -> None:
    registry.register(1, "orders-value", json.dumps(schema), kind)
    with pytest.raises(CorruptBody, match=reason):
        reader(ORDER, registry).value(framed(1, b"\x02\x02\xfe\xff\xff\xff\xff\xff\xff\xff\x7f"))


def test_writers_that_are_remembered_are_bounded(registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro_bodies, "WRITERS_MAX", 2)
    made = reader(ORDER, registry)
    for number in range(5):
        registry.register(number, f"s{number}", json.dumps(ORDER))
        assert made.value(framed(number, avro(ORDER, {"id": number}))) == {"id": number, "note": None}
    assert len(made._writers) == 2
