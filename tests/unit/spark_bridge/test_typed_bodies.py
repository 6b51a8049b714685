"""Bodies with a schema as a struct column. typed_bodies (1) and (2)."""

from __future__ import annotations

import builtins
import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from warren.spark_bridge.bridge_errors import UsageError
from warren.spark_bridge.schema_registry import SchemaRegistry
from warren.spark_bridge.typed_bodies import (
    AvroFormat,
    avro_format,
    protobuf_format,
    reader_of,
    struct_array,
    with_reason,
)

from .fake_registry import FakeRegistry
from .typed_messages import ORDER, avro, framed, order_file, protobuf, serialized, set_of


def rows(found: pa.Array) -> list[Any]:
    listed: list[Any] = found.to_pylist()
    return listed


def test_a_corrupt_body_touches_no_other() -> None:
    reader = reader_of(avro_format(json.dumps(ORDER)))
    bodies = pa.array([avro(ORDER, {"id": 1}), b"", None, avro(ORDER, {"id": 2, "note": "x"})], pa.binary())
    found = rows(struct_array(reader, bodies, "_corrupt"))
    assert [row and row["id"] for row in found] == [1, None, None, 2]
    assert [row and row["_corrupt"] for row in found] == [None, "it ends within its value", None, None]
    assert len(struct_array(reader, pa.array([], pa.binary()), "_corrupt")) == 0


def test_neither_does_a_value_that_its_column_refuses() -> None:
    class Reader:
        schema = pa.schema([("x", pa.int32())])

        def value(self, body: bytes) -> dict[str, Any]:
            return {"x": 2**40 if body == b"large" else 1}

    found = rows(struct_array(Reader(), pa.array([b"a", b"large", b"b"], pa.binary()), "why"))
    assert [row["x"] for row in found] == [1, None, 1]
    assert found[1]["why"]


def test_formats_are_compared_and_sent_to_executors() -> None:
    one = avro_format(json.dumps(ORDER), registry=SchemaRegistry("http://u:p@registry:8081"))
    other = pickle.loads(pickle.dumps(one))
    assert other == one and reader_of(other) is reader_of(one)
    assert "'p'" not in repr(one)
    there = protobuf_format("shop.Order", set_of(order_file()))
    assert reader_of(pickle.loads(pickle.dumps(there))) is reader_of(there)


def test_the_newest_schema_of_a_subject_is_that_of_the_columns() -> None:
    with FakeRegistry() as registry:
        registry.register(1, "orders", json.dumps(ORDER))
        form = avro_format(registry=registry.url, subject="orders")
        assert reader_of(form).value(framed(1, avro(ORDER, {"id": 1})))["id"] == 1
        registry.register(2, "orders-p", serialized(order_file()), "PROTOBUF")
        for message in (None, "shop.Order"):
            there = protobuf_format(message, registry=registry.url, subject="orders-p")
            body = framed(2, protobuf(order_file(), "shop.Order", id=1), b"\x00")
            assert reader_of(there).value(body)["id"] == 1
        registry.answers["/subjects/orders/versions/latest"] = {"schema": "{}", "schemaType": "JSON"}
        with pytest.raises(UsageError, match="is JSON, not AVRO"):
            avro_format(registry=registry.url, subject="orders")


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    for refused, reason in (
        (lambda: avro_format(), "a schema is needed"),
        (lambda: avro_format(subject="x"), "a schema is needed"),
        (lambda: protobuf_format(), "descriptors are needed"),
        (lambda: protobuf_format(None, b""), "name the message"),
        (lambda: avro_format(tmp_path / "none.avsc"), "none.avsc: No such file"),
        (lambda: with_reason(pa.schema([("_Corrupt", pa.int32())]), "_corrupt"), "has a field '_corrupt'"),
    ):
        with pytest.raises(UsageError, match=reason):
            refused()
    (tmp_path / "order.avsc").write_text(json.dumps(ORDER))
    assert avro_format(tmp_path / "order.avsc") == AvroFormat(json.dumps(ORDER))


def test_a_library_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    there = builtins.__import__

    def without(name: str, *more: Any, **named: Any) -> Any:
        if name in ("fastavro", "google.protobuf"):
            raise ImportError(name)
        return there(name, *more, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UsageError, match=r"fastavro is not installed: pip install './warren\[schemas\]'"):
        avro_format("{}")
    with pytest.raises(UsageError, match="protobuf is not installed"):
        protobuf_format("x", b"")
