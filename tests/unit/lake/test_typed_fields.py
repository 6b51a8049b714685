"""Rows of a table out of bodies in Avro and Protobuf. typed_fields (1)."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field

from unit.spark_bridge.typed_messages import avro, field, order_file, protobuf, record, set_of
from warren.lake.decoder import FieldDecoder
from warren.lake.table import Change
from warren.lake.typed_fields import fields_of
from warren.spark_bridge.typed_bodies import BodyFormat, avro_format, protobuf_format

from .test_decoder import decode, of


def decoder_of(form: BodyFormat) -> FieldDecoder:
    schema, parse = fields_of(form)
    return FieldDecoder(None, schema, parse=parse)


def test_fields_of_avro_are_columns() -> None:
    inner = record(("at", {"type": "long", "logicalType": "timestamp-millis"}), ("raw", "bytes"), name="Inner")
    schema = record(
        ("id", "int"),
        ("at", {"type": "long", "logicalType": "timestamp-micros"}),
        ("day", {"type": "int", "logicalType": "date"}),
        ("raw", "bytes"),
        ("total", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
        ("inner", ["null", inner]),
        ("x", "double"),
        ("y", "float"),
    )
    made = decoder_of(avro_format(json.dumps(schema)))
    columns = made.first_columns()
    kinds = [pa.int32(), pa.timestamp("us", "UTC"), pa.date32(), pa.binary(), pa.string(), pa.string()]
    assert [field.type for field in columns][-8:] == [*kinds, pa.float64(), pa.float32()]
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    value: dict[str, Any] = {"id": 1, "at": moment, "day": date(2026, 1, 2), "raw": b"\xff", "total": Decimal("1.50")}
    value |= {"inner": {"at": moment, "raw": b"ab"}, "x": float("inf"), "y": 0.5}
    found = decode(made, columns, avro(schema, value), avro(schema, {**value, "inner": None}), b"?")
    assert found.changes == ()
    assert found.rows.num_rows == 2 and found.refused.column("reason").to_pylist() == ["it ends within its value"]
    text = '{"at":"2026-01-02T00:00:00Z","raw":"YWI="}'
    assert of(found, "id", "at", "day", "raw", "total", "inner", "x", "y") == [
        (1, moment, date(2026, 1, 2), b"\xff", "1.50", text, float("inf"), 0.5),
        (1, moment, date(2026, 1, 2), b"\xff", "1.50", None, float("inf"), 0.5),
    ]


def test_a_newer_schema_changes_the_table() -> None:
    made = decoder_of(avro_format(json.dumps(record(("id", "int")))))
    newer = decoder_of(avro_format(json.dumps(record(("id", "long"), ("raw", "bytes")))))
    changes = newer.pending(made.first_columns(), can_widen=True)
    assert changes == (Change("id", "long", False), Change("raw", "binary", True))


def test_maps_by_booleans_and_numbers_that_are_not_finite_are_texts_in_json() -> None:
    file = order_file()
    order = file.message_type[0]
    entry = order.nested_type.add(name="RatesEntry")
    entry.options.map_entry = True
    field(entry, "key", Field.TYPE_BOOL)
    field(entry, "value", Field.TYPE_DOUBLE)
    field(order, "rates", Field.TYPE_MESSAGE, type_name=".shop.Order.RatesEntry", label=Field.LABEL_REPEATED)
    made = decoder_of(protobuf_format("shop.Order", set_of(file)))
    body = protobuf(file, "shop.Order", rates={True: float("nan"), False: 0.5})
    [(text,)] = of(decode(made, made.first_columns(), body), "rates")
    assert json.loads(text) == {"true": "NaN", "false": 0.5}


def test_messages_of_protobuf_are_columns() -> None:
    made = decoder_of(protobuf_format("shop.Order", set_of(order_file())))
    columns = made.first_columns()
    body = protobuf(order_file(), "shop.Order", id=1, tags=["a"])
    found = decode(made, columns, body, b"\xff")
    assert of(found, "id", "note", "tags") == [(1, None, '["a"]')]
    assert found.refused.column("reason").to_pylist() == ["it is not a shop.Order"]
