"""Bodies in Protobuf as columns.

    Protobuf                                column
    bool, int32, int64 and their like       boolean, int32, int64
    uint32, fixed32                         int64
    uint64, fixed64                         decimal128(20, 0)
    float, double                           float, double
    string, bytes                           string, binary
    enum                                    string: the name of the value, or its number if it has none
    message                                 struct
    repeated, map                           list, map
    google.protobuf.Timestamp               timestamp[us, UTC]; parts below a microsecond are cut off
    google.protobuf.Int32Value, …           that of the value
    google.protobuf.Struct, Value, ListValue   string: as JSON

1. A missing field is null if its type can tell that it is missing; other fields have their default then. Fields that
   the descriptor does not have are ignored, as everywhere in Protobuf.
2. The descriptor of the reader defines the columns. A registry only says which message a body is. A body of another
   message than the reader's is corrupt, even though its bytes may well be readable as one.
3. A message that contains itself is refused: a column must be finite.
"""

from __future__ import annotations

import base64
import binascii
from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from warren.spark_bridge.avro_bodies import COLUMNS_MAX, WRITERS_MAX
from warren.spark_bridge.bridge_errors import CorruptBody, UsageError
from warren.spark_bridge.schema_registry import RegistryClient, Schema, taken_apart

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_INDEXES_MAX: Final = 32
_VARINT_BYTES_MAX: Final = 5
_JSON: Final = ("google.protobuf.Struct", "google.protobuf.Value", "google.protobuf.ListValue")
_WRAPPED: Final = ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
_WRAPPERS: Final = frozenset(f"google.protobuf.{name}Value" for name in _WRAPPED)

Convert = Callable[[Any], Any]


class ProtobufBodies:
    """Makes values of bodies. `descriptors`: a set, as ``protoc --descriptor_set_out`` writes it.

    `message`: the full name of the bodies' message. `registry`: that of the writers.
    """

    def __init__(self, descriptors: bytes, message: str, registry: RegistryClient | None = None) -> None:
        from google.protobuf import message_factory

        try:
            descriptor = _pool_of_set(descriptors).FindMessageTypeByName(message)
        except KeyError:
            raise UsageError(f"the descriptors have no message {message!r}") from None
        self._columns = _Columns()
        kind, self._convert = self._columns.message(descriptor)
        self.schema: pa.Schema = pa.schema([kind.field(at) for at in range(kind.num_fields)])
        self._made = message_factory.GetMessageClass(descriptor)
        self._name = message
        self._registry = registry
        self._writers: OrderedDict[int, Any] = OrderedDict()

    def value(self, body: bytes) -> dict[str, Any]:
        """Return the fields of a body.

        Raises:
            CorruptBody: it does not fit the message. BrokerError: the registry does not answer.
        """
        from google.protobuf.message import DecodeError

        if self._registry is not None:
            number, body = taken_apart(body)
            indexes, body = _indexes(body)
            name = self._written(number, indexes)
            if name != self._name:
                raise CorruptBody(f"it is a {name}, not a {self._name}")
        try:
            return self._convert(self._made.FromString(body))  # type: ignore[no-any-return]
        except DecodeError:
            raise CorruptBody(f"it is not a {self._name}") from None
        except (OverflowError, ValueError) as error:
            raise CorruptBody(f"it is not a {self._name} with values that columns have: {error}"[:300]) from None

    def _written(self, number: int, indexes: list[int]) -> str:
        """Return the name of the message at `indexes` of a schema."""
        assert self._registry is not None
        file = self._writers.get(number)
        if file is None:
            schema = self._registry.maybe_schema(number, descriptor=True)
            if schema is None:
                raise CorruptBody(f"the registry has no schema {number}")
            if schema.kind != "PROTOBUF":
                raise CorruptBody(f"schema {number} is {schema.kind}, not PROTOBUF")
            try:
                file = _file_of(schema.text)
            except UsageError as error:
                raise CorruptBody(f"schema {number}: {error}") from None
            self._writers[number] = file
            if len(self._writers) > WRITERS_MAX:
                self._writers.popitem(last=False)
        else:
            self._writers.move_to_end(number)
        try:
            return message_name(file, indexes)
        except IndexError:
            raise CorruptBody(f"schema {number} has no message {indexes}") from None


def message_name(file: Any, indexes: list[int]) -> str:
    """Return the full name of a message by its places in a file and in the messages around it.

    Raises:
        IndexError: the file has no such message.
    """
    messages = file.message_type
    names = [file.package] if file.package else []
    for index in indexes:
        if index < 0:
            raise IndexError(index)
        names.append(messages[index].name)
        messages = messages[index].nested_type
    return ".".join(names)


def _pool_of_set(data: bytes) -> Any:
    """Return the descriptors in a file of ``protoc --descriptor_set_out``.

    Raises:
        UsageError: the data is not such a set, or lacks a file that others import.
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.message import DecodeError

    try:
        found = FileDescriptorSet.FromString(data)
    except DecodeError:
        raise UsageError("no set of descriptors, as protoc --descriptor_set_out writes it") from None
    if not found.file:
        raise UsageError("the set of descriptors is empty")
    return _pool({file.name: file for file in found.file})


def set_of_schema(schema: Schema, others: Mapping[str, Schema]) -> tuple[bytes, str]:
    """Return the descriptors of a schema of a registry as a set, and the name of its first message.

    Raises:
        UsageError: it is not Protobuf, or has no message.
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    if schema.kind != "PROTOBUF":
        raise UsageError(f"the schema is {schema.kind}, not PROTOBUF")
    found = FileDescriptorSet()
    for name, each in others.items():
        file = _file_of(each.text)
        file.name = name
        found.file.append(file)
    main = _file_of(schema.text)
    if not main.name or main.name in others:
        main.name = "main.proto"
    found.file.append(main)
    if not main.message_type:
        raise UsageError("the schema has no message")
    return found.SerializeToString(), message_name(main, [0])


def _file_of(text: str) -> Any:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.message import DecodeError

    try:
        return FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (DecodeError, binascii.Error, ValueError):
        raise UsageError("the registry does not give its schemas as descriptors (format=serialized)") from None


def _pool(files: Mapping[str, Any]) -> Any:
    """Return the descriptors of files, each added after its imports."""
    from google.protobuf.descriptor_pool import DescriptorPool

    known = _known_files()
    pool = DescriptorPool()
    added: set[str] = set()

    def add(name: str, by: str) -> None:
        if name in added:
            return
        added.add(name)
        if name in files:
            for each in files[name].dependency:
                add(each, name)
            pool.Add(files[name])
        elif name in known:
            for each in known[name].dependencies:
                add(each.name, name)
            pool.AddSerializedFile(known[name].serialized_pb)
        else:
            raise UsageError(f"{by} imports {name}, which is not among the descriptors (protoc --include_imports)")

    try:
        for name in files:
            add(name, name)
    except UsageError:
        raise
    except Exception as error:  # of upb: TypeError and others
        raise UsageError(f"descriptors that do not fit together: {error}"[:500]) from None
    return pool


def _known_files() -> dict[str, Any]:
    """Return Google's own files, which come with the library and not with descriptors of a registry, by name."""
    from google.protobuf import (
        any_pb2,
        api_pb2,
        descriptor_pb2,
        duration_pb2,
        empty_pb2,
        field_mask_pb2,
        source_context_pb2,
        struct_pb2,
        timestamp_pb2,
        type_pb2,
        wrappers_pb2,
    )

    modules: tuple[Any, ...] = (any_pb2, api_pb2, descriptor_pb2, duration_pb2, empty_pb2, field_mask_pb2)
    modules += (source_context_pb2, struct_pb2, timestamp_pb2, type_pb2, wrappers_pb2)
    return {module.DESCRIPTOR.name: module.DESCRIPTOR for module in modules}


def _indexes(body: bytes) -> tuple[list[int], bytes]:
    """Return which message of its schema a body is, and the message."""
    count, at = _varint(body, 0)
    if count == 0:
        return [0], body[at:]
    if not 0 < count <= _INDEXES_MAX:
        raise CorruptBody("it does not say which message of its schema it is")
    found = []
    for _ in range(count):
        index, at = _varint(body, at)
        found.append(index)
    return found, body[at:]


def _varint(body: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place, byte in enumerate(body[at : at + _VARINT_BYTES_MAX]):
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at + place + 1
    raise CorruptBody("it does not say which message of its schema it is")


class _Columns:
    """The conversion of the fields of messages: their Arrow types, and how values are read."""

    def __init__(self) -> None:
        self._open: set[str] = set()
        self._count = 0

    def message(self, descriptor: Any) -> tuple[pa.DataType, Convert]:
        """Return the struct of a message, and the function that makes it."""
        name = descriptor.full_name
        if name in self._open:
            raise UsageError(f"the message {name} contains itself, which cannot become a column")
        self._open.add(name)
        fields = []
        getters: list[tuple[str, Convert | None, bool]] = []
        for field in descriptor.fields:
            self._count += 1
            if self._count > COLUMNS_MAX:
                raise UsageError(f"a message with more than {COLUMNS_MAX} fields")
            kind, convert = self._field(field)
            fields.append(pa.field(field.name, kind))
            getters.append((field.name, convert, field.has_presence))
        self._open.discard(name)
        if not fields:
            raise UsageError(f"the message {name} has no fields, which cannot become a column")

        def made(message: Any) -> dict[str, Any]:
            found: dict[str, Any] = {}
            for field, convert, can_lack in getters:
                if can_lack and not message.HasField(field):
                    found[field] = None
                else:
                    value = getattr(message, field)
                    found[field] = value if convert is None else convert(value)
            return found

        return pa.struct(fields), made

    def _field(self, field: Any) -> tuple[pa.DataType, Convert | None]:
        if not field.is_repeated:
            return self._single(field)
        entry = field.message_type
        if entry is not None and entry.GetOptions().map_entry:
            key, of_key = self._single(entry.fields_by_name["key"])
            value, of_value = self._single(entry.fields_by_name["value"])
            take_key, take_value = of_key or _same, of_value or _same
            return pa.map_(key, value), lambda all: {take_key(each): take_value(all[each]) for each in all}
        kind, convert = self._single(field)
        return pa.list_(kind), list if convert is None else (lambda all: [convert(each) for each in all])

    def _single(self, field: Any) -> tuple[pa.DataType, Convert | None]:
        if field.message_type is not None:
            return self._nested(field.message_type)
        if field.enum_type is not None:
            names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
            return pa.string(), lambda number: names.get(number) or str(number)
        if field.cpp_type == field.CPPTYPE_STRING:
            return (pa.binary() if field.type == field.TYPE_BYTES else pa.string()), None
        return {
            field.CPPTYPE_BOOL: (pa.bool_(), None),
            field.CPPTYPE_INT32: (pa.int32(), None),
            field.CPPTYPE_INT64: (pa.int64(), None),
            field.CPPTYPE_UINT32: (pa.int64(), None),
            field.CPPTYPE_UINT64: (pa.decimal128(20, 0), Decimal),
            field.CPPTYPE_FLOAT: (pa.float32(), None),
            field.CPPTYPE_DOUBLE: (pa.float64(), None),
        }[field.cpp_type]

    def _nested(self, descriptor: Any) -> tuple[pa.DataType, Convert]:
        name = descriptor.full_name
        if name == "google.protobuf.Timestamp":
            return pa.timestamp("us", "UTC"), _moment
        if name in _JSON:
            return pa.string(), _json
        if name in _WRAPPERS:
            kind, convert = self._single(descriptor.fields_by_name["value"])
            return kind, lambda message: message.value if convert is None else convert(message.value)
        return self.message(descriptor)


def _moment(message: Any) -> datetime:
    return _EPOCH + timedelta(seconds=message.seconds, microseconds=message.nanos // 1000)


def _json(message: Any) -> str:
    from google.protobuf.json_format import MessageToJson

    return str(MessageToJson(message, indent=None))


def _same(value: Any) -> Any:
    return value
