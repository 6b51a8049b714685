"""Bodies in Avro and Protobuf, and their schemas, as publishers make them."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

from fastavro import parse_schema, schemaless_writer
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

ORDER = {
    "type": "record",
    "name": "shop.Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"], "default": None}],
}


def record(*fields: tuple[str, Any], name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": each, "type": kind} for each, kind in fields]}


def avro(schema: Any, value: Any) -> bytes:
    data = io.BytesIO()
    schemaless_writer(data, parse_schema(json.loads(json.dumps(schema))), value)
    return data.getvalue()


def framed(number: int, body: bytes, indexes: bytes = b"") -> bytes:
    return b"\x00" + number.to_bytes(4, "big") + indexes + body


def order_file() -> FileDescriptorProto:
    """Return shop.Order { int64 id = 1; optional string note = 2; repeated string tags = 3; } and shop.Refund."""
    file = FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    order = file.message_type.add(name="Order")
    order.oneof_decl.add(name="_note")
    field(order, "id", FieldDescriptorProto.TYPE_INT64)
    field(order, "note", FieldDescriptorProto.TYPE_STRING, proto3_optional=True, oneof_index=0)
    field(order, "tags", FieldDescriptorProto.TYPE_STRING, label=FieldDescriptorProto.LABEL_REPEATED)
    refund = file.message_type.add(name="Refund")
    field(refund, "order", FieldDescriptorProto.TYPE_INT64)
    return file


def field(message: Any, name: str, kind: Any, **more: Any) -> None:
    more.setdefault("label", FieldDescriptorProto.LABEL_OPTIONAL)
    message.field.add(name=name, number=len(message.field) + 1, type=kind, **more)


def set_of(*files: FileDescriptorProto) -> bytes:
    return FileDescriptorSet(file=files).SerializeToString()


def serialized(file: FileDescriptorProto) -> str:
    """Return a file as a registry has it with format=serialized."""
    return base64.b64encode(file.SerializeToString()).decode()


def protobuf(file: FileDescriptorProto, message: str, **values: Any) -> bytes:
    pool = DescriptorPool()
    pool.Add(file)
    made: bytes = GetMessageClass(pool.FindMessageTypeByName(message))(**values).SerializeToString()
    return made
