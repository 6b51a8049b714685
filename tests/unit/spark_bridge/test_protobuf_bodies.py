"""Bodies in Protobuf. protobuf_bodies (1) to (3)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from hypothesis import given
from hypothesis import strategies as st

from warren.spark_bridge.bridge_errors import CorruptBody, Unreachable, UsageError
from warren.spark_bridge.protobuf_bodies import ProtobufBodies, set_of_schema
from warren.spark_bridge.schema_registry import RegistryClient, Schema, SchemaRegistry

from .fake_registry import FakeRegistry
from .typed_messages import field, framed, order_file, protobuf, serialized, set_of

ORDER = "shop.Order"
WELL_KNOWN = ("timestamp", "wrappers", "struct")


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with FakeRegistry() as made:
        yield made


def client_of(registry: FakeRegistry) -> RegistryClient:
    return RegistryClient(SchemaRegistry(registry.url), retries=0)


def all_kinds() -> FileDescriptorProto:
    file = FileDescriptorProto(name="all.proto", package="a", syntax="proto3")
    file.dependency.extend(f"google/protobuf/{name}.proto" for name in WELL_KNOWN)
    enum = file.enum_type.add(name="Color")
    for number, name in enumerate(("RED", "BLUE")):
        enum.value.add(name=name, number=number)
    file.message_type.add(name="Inner").field.add(name="x", number=1, type=Field.TYPE_BOOL, label=1)
    message = file.message_type.add(name="All")
    for name in ("bool", "int32", "sint64", "uint32", "fixed64", "float", "double", "string", "bytes"):
        field(message, f"f_{name}", getattr(Field, f"TYPE_{name.upper()}"))
    field(message, "color", Field.TYPE_ENUM, type_name=".a.Color")
    field(message, "inner", Field.TYPE_MESSAGE, type_name=".a.Inner")
    field(message, "inners", Field.TYPE_MESSAGE, type_name=".a.Inner", label=Field.LABEL_REPEATED)
    entry = message.nested_type.add(name="ColorsEntry")
    entry.options.map_entry = True
    field(entry, "key", Field.TYPE_INT32)
    field(entry, "value", Field.TYPE_ENUM, type_name=".a.Color")
    field(message, "colors", Field.TYPE_MESSAGE, type_name=".a.All.ColorsEntry", label=Field.LABEL_REPEATED)
    field(message, "at", Field.TYPE_MESSAGE, type_name=".google.protobuf.Timestamp")
    field(message, "maybe", Field.TYPE_MESSAGE, type_name=".google.protobuf.UInt64Value")
    field(message, "more", Field.TYPE_MESSAGE, type_name=".google.protobuf.Struct")
    return file


def written(made: ProtobufBodies, **values: Any) -> bytes:
    """Return a body of the class that `made` reads."""
    body: bytes = made._made(**values).SerializeToString()
    return body


def test_every_type_has_its_column() -> None:
    made = ProtobufBodies(set_of(all_kinds()), "a.All")
    struct = pa.struct([("x", pa.bool_())])
    columns: dict[str, tuple[pa.DataType, Any, Any]] = {  # column, value, what it is when nothing is said
        "f_bool": (pa.bool_(), True, False),
        "f_int32": (pa.int32(), -5, 0),
        "f_sint64": (pa.int64(), -(2**63), 0),
        "f_uint32": (pa.int64(), 2**32 - 1, 0),
        "f_fixed64": (pa.decimal128(20, 0), Decimal(2**64 - 1), Decimal(0)),
        "f_float": (pa.float32(), 0.5, 0.0),
        "f_double": (pa.float64(), 1e300, 0.0),
        "f_string": (pa.string(), "ä", ""),
        "f_bytes": (pa.binary(), b"\xff", b""),
        "color": (pa.string(), "BLUE", "RED"),
        "inner": (struct, {"x": True}, None),
        "inners": (pa.list_(struct), [{"x": False}], []),
        "colors": (pa.map_(pa.int32(), pa.string()), {1: "BLUE", 2: "7"}, {}),
        "at": (pa.timestamp("us", "UTC"), datetime(2026, 1, 2, tzinfo=UTC), None),
        "maybe": (pa.decimal128(20, 0), Decimal(5), None),
        "more": (pa.string(), '{"x": 1.5}', None),
    }
    assert made.schema == pa.schema([(name, kind) for name, (kind, _, _) in columns.items()])
    values: dict[str, Any] = {name: value for name, (_, value, _) in columns.items()}
    sent = values | {"f_fixed64": 2**64 - 1, "maybe": {"value": 5}, "colors": {1: 1, 2: 7}, "more": {"x": 1.5}}
    assert made.value(written(made, **sent)) == values
    assert made.value(b"") == {name: default for name, (_, _, default) in columns.items()}


def test_fields_that_the_descriptor_does_not_have_are_passed_over() -> None:
    newer = order_file()
    field(newer.message_type[0], "more", Field.TYPE_STRING)
    made = ProtobufBodies(set_of(order_file()), ORDER)
    assert made.value(protobuf(newer, ORDER, id=1, more="x")) == {"id": 1, "note": None, "tags": []}


@given(st.binary(max_size=60))
def test_no_bytes_are_more_than_corrupt(body: bytes) -> None:
    made = ProtobufBodies(set_of(all_kinds()), "a.All")
    with suppress(CorruptBody):
        pa.array([made.value(body)], pa.struct(list(made.schema)))


def test_a_time_that_no_column_has_is_corrupt() -> None:
    made = ProtobufBodies(set_of(all_kinds()), "a.All")
    with pytest.raises(CorruptBody):
        made.value(written(made, at={"seconds": 2**62}))


def test_descriptors_of_which_no_columns_can_be_made_are_refused() -> None:
    file = order_file()
    field(file.message_type[0], "self", Field.TYPE_MESSAGE, type_name=".shop.Order")
    file.message_type.add(name="Empty")
    lacking = order_file()
    lacking.dependency.append("money.proto")
    for descriptors, message, reason in (
        (set_of(file), ORDER, "shop.Order contains itself"),
        (set_of(file), "shop.Empty", "has no fields"),
        (set_of(file), "shop.Nothing", "no message 'shop.Nothing'"),
        (set_of(lacking), ORDER, "order.proto imports money.proto"),
        (set_of(), ORDER, "empty"),
        (b"\xff", ORDER, "no set of descriptors"),
    ):
        with pytest.raises(UsageError, match=reason):
            ProtobufBodies(descriptors, message)
    broken = order_file()
    field(broken.message_type[0], "x", Field.TYPE_MESSAGE, type_name=".shop.Nowhere")
    with pytest.raises(UsageError, match="do not fit together"):
        ProtobufBodies(set_of(broken), ORDER)


def test_a_registry_says_which_message_a_body_is(registry: FakeRegistry) -> None:
    registry.register(3, "orders-value", serialized(order_file()), "PROTOBUF")
    made = ProtobufBodies(set_of(order_file()), ORDER, client_of(registry))
    body = protobuf(order_file(), ORDER, id=5)
    for indexes in (b"\x00", b"\x02\x00"):  # one index, 0, in short and as it is
        assert made.value(framed(3, body, indexes))["id"] == 5
    with pytest.raises(CorruptBody, match=r"it is a shop\.Refund, not a shop\.Order"):
        made.value(framed(3, body, b"\x02\x02"))
    assert registry.asked == ["/schemas/ids/3?format=serialized"]
    for indexes in (b"\x02\x08", b"\x02\x01", b"\x04\x00\x00", b"\x7e", b"\x01", b"", b"\xff" * 9):
        with pytest.raises(CorruptBody):
            made.value(framed(3, b"", indexes))


def test_what_a_registry_cannot_say_is_not_the_fault_of_a_body(registry: FakeRegistry) -> None:
    made = ProtobufBodies(set_of(order_file()), ORDER, client_of(registry))
    registry.register(4, "x", '"string"', "PROTOBUF")
    registry.answers["/schemas/ids/5?format=serialized"] = {"schema": '"string"'}
    for number, reason in ((9, "no schema 9"), (4, "format=serialized"), (5, "AVRO, not PROTOBUF")):
        with pytest.raises(CorruptBody, match=reason):
            made.value(framed(number, b"", b"\x00"))
    registry.failures = [500]
    with pytest.raises(Unreachable):
        made.value(framed(8, b"", b"\x00"))


def test_the_schemas_of_a_registry_are_a_set_of_descriptors(registry: FakeRegistry) -> None:
    money = FileDescriptorProto(name="default", package="shop", syntax="proto3")
    field(money.message_type.add(name="Money"), "cents", Field.TYPE_INT64)
    order = order_file()
    order.dependency.append("shop/money.proto")
    field(order.message_type[0], "price", Field.TYPE_MESSAGE, type_name=".shop.Money")
    registry.register(1, "money", serialized(money), "PROTOBUF")
    references = [{"name": "shop/money.proto", "subject": "money", "version": 1}]
    registry.register(2, "orders-value", serialized(order), "PROTOBUF", references)
    client = client_of(registry)
    newest = client.newest("orders-value", descriptor=True)
    descriptors, first = set_of_schema(newest, client.below(newest, descriptor=True))
    made = ProtobufBodies(descriptors, first)
    assert first == ORDER
    assert made.value(written(made, price={"cents": 5}))["price"] == {"cents": 5}
    with pytest.raises(UsageError, match="AVRO, not PROTOBUF"):
        set_of_schema(Schema("AVRO", '"string"'), {})
    with pytest.raises(UsageError, match="has no message"):
        set_of_schema(Schema("PROTOBUF", serialized(FileDescriptorProto(name="x.proto"))), {})
