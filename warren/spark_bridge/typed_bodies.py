"""Bodies with a schema, in Avro or Protobuf, as a struct column: its definition before the first body comes.

1. A format is resolved where the query is made, the newest schema of a subject too, and is the same for the whole
   query. It can be pickled and compared; a process that decodes makes one reader of it, which keeps the registry's
   answers.
2. A corrupt body becomes a struct of nulls, except for the field with the reason; other rows are not affected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa

from warren.spark_bridge.bridge_errors import CorruptBody, UsageError
from warren.spark_bridge.schema_registry import SchemaRegistry

READERS_MAX: Final = 16
REASON_MAX: Final = 300


class BodyReader(Protocol):
    """Makes values of bodies: the columns of `schema`."""

    schema: pa.Schema

    def value(self, body: bytes) -> dict[str, Any]:
        """Return the fields of a body.

        Raises:
            CorruptBody: it does not fit the schema.
        """


@dataclass(frozen=True)
class AvroFormat:
    """The schema of the columns, the schemas it refers to, and the place of the writers' schemas."""

    schema: str
    others: tuple[str, ...] = ()
    registry: SchemaRegistry | None = None
    name = "Avro"

    def reader(self) -> BodyReader:
        """Return the reader for its bodies.

        Raises:
            UsageError: the schema is invalid, or has no columns.
        """
        from warren.spark_bridge.avro_bodies import AvroBodies

        _need_avro()
        return AvroBodies(self.schema, None if self.registry is None else self.registry.client(), others=self.others)


@dataclass(frozen=True)
class ProtobufFormat:
    """A set of descriptors, which of their messages bodies are, and where the schemas of the writers are."""

    descriptors: bytes
    message: str
    registry: SchemaRegistry | None = None
    name = "Protobuf"

    def reader(self) -> BodyReader:
        """Return the reader for its bodies.

        Raises:
            UsageError: the descriptors are invalid, or the message has no columns.
        """
        from warren.spark_bridge.protobuf_bodies import ProtobufBodies

        _need_protobuf()
        return ProtobufBodies(self.descriptors, self.message, None if self.registry is None else self.registry.client())


BodyFormat = AvroFormat | ProtobufFormat


def avro_format(
    schema: str | Path | None = None, *, registry: SchemaRegistry | str | None = None, subject: str | None = None
) -> AvroFormat:
    """Return the format of bodies in Avro. `schema`: as JSON, or a file with it; None: the newest of `subject`.

    Raises:
        UsageError: neither is given, or the schema does not exist. BrokerError: the registry does not answer.
    """
    _need_avro()
    access = _access(registry)
    if schema is not None:
        return AvroFormat(_read(schema).decode(errors="replace") if isinstance(schema, Path) else schema, (), access)
    if access is None or subject is None:
        raise UsageError("a schema is needed, or a registry and a subject, whose newest schema is taken")
    client = access.client()
    try:
        newest = client.newest(subject)
        if newest.kind != "AVRO":
            raise UsageError(f"the newest schema of {subject!r} is {newest.kind}, not AVRO")
        return AvroFormat(newest.text, tuple(each.text for each in client.below(newest).values()), access)
    finally:
        client.close()


def protobuf_format(
    message: str | None = None,
    descriptors: bytes | Path | None = None,
    *,
    registry: SchemaRegistry | str | None = None,
    subject: str | None = None,
) -> ProtobufFormat:
    """Return the format of bodies in Protobuf. `descriptors`: a set, or a file with it; None: the newest of `subject`.

    `message`: its full name; None: the first one of the newest schema of `subject`.

    Raises:
        UsageError: neither is given, or the message does not exist. BrokerError: the registry does not answer.
    """
    _need_protobuf()
    access = _access(registry)
    if descriptors is not None:
        if message is None:
            raise UsageError("name the message of the descriptors")
        return ProtobufFormat(_read(descriptors) if isinstance(descriptors, Path) else descriptors, message, access)
    if access is None or subject is None:
        raise UsageError("descriptors are needed, or a registry and a subject, whose newest schema is taken")
    from warren.spark_bridge.protobuf_bodies import set_of_schema

    client = access.client()
    try:
        newest = client.newest(subject, descriptor=True)
        found, first = set_of_schema(newest, client.below(newest, descriptor=True))
    finally:
        client.close()
    return ProtobufFormat(found, message or first, access)


def _access(registry: SchemaRegistry | str | None) -> SchemaRegistry | None:
    return SchemaRegistry(registry) if isinstance(registry, str) else registry


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None


def _need_avro() -> None:
    try:
        import fastavro  # noqa: F401
    except ImportError:
        raise UsageError("fastavro is not installed: pip install './warren[schemas]'") from None


def _need_protobuf() -> None:
    try:
        import google.protobuf  # noqa: F401
    except ImportError:
        raise UsageError("protobuf is not installed: pip install './warren[schemas]'") from None


@lru_cache(READERS_MAX)
def reader_of(form: BodyFormat) -> BodyReader:
    """Return the reader for bodies of a format in this process."""
    return form.reader()


def with_reason(schema: pa.Schema, corrupt: str) -> pa.DataType:
    """Return the struct that `struct_array` makes.

    Raises:
        UsageError: the schema has a field of the name `corrupt`.
    """
    if corrupt.lower() in (name.lower() for name in schema.names):
        raise UsageError(f"the schema has a field {corrupt!r}: corrupt names the one that says what is wrong")
    return pa.struct([*schema, pa.field(corrupt, pa.string())])


def struct_array(reader: BodyReader, bodies: pa.Array, corrupt: str) -> pa.Array:
    """Return the values of `bodies`, with the field `corrupt` for corrupt ones; null where a body is null."""
    kind = with_reason(reader.schema, corrupt)
    rows: list[dict[str, Any] | None] = []
    for body in bodies.to_pylist():
        if body is None:
            rows.append(None)
            continue
        try:
            rows.append(reader.value(body))
        except CorruptBody as error:
            rows.append({corrupt: str(error)[:REASON_MAX]})
    return _made(rows, lambda each: pa.array(each, kind), corrupt)


def _made(rows: list[dict[str, Any] | None], make: Callable[[list[Any]], pa.Array], corrupt: str) -> pa.Array:
    """Make an array of rows; those whose values their columns do not take are corrupt."""
    try:
        return make(rows)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        pass
    for at, row in enumerate(rows):
        try:
            make([row])
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            rows[at] = {corrupt: str(error)[:REASON_MAX]}
    return make(rows)
