"""Sections of AMQP 1.0 to a message as it is stored, and back: properties, headers and body of 0-9-1.

    1.0                                    0-9-1
    header durable, priority, ttl          delivery_mode 2 or 1, priority, expiration
    message-id, correlation-id             the same: a text as it is, uuid as urn:uuid:…, ulong as its digits; a binary
                                           or a long text as the header x-message-id or x-correlation-id
    user-id, content-type, -encoding       the same
    reply-to                               reply_to: /queues/Q as Q, any other as it is
    creation-time, in ms                   timestamp, in s; ms that are lost there in the header x-creation-time-ms
    group-id                               app_id
    to, subject, absolute-expiry-time,     the headers x-amqp10-to, -subject, -expiry, -group-sequence, -reply-to-group
      group-sequence, reply-to-group-id
    message annotation x-cc                header CC
    message annotation x-basic-type        type
    message annotation x-…                 a header of the same name
    application property                   a header of the same name; one called CC or BCC is in x-amqp10-sections only
    one data section, or several           the body, joined
    any other body                         the sections as they are encoded, with the type amqp-1.0

In the other direction, headers x-… become annotations, with x-death as x-opt-deaths. Any other header of a simple type
becomes an application property. Other headers that are lists or tables are dropped, since application properties must
be simple. Exchange and routing key become the annotations x-exchange and x-routing-key.

docs/amqp10.md lists the losses.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from warren.amqp.codec import NAME_MAX_BYTES
from warren.amqp.field_table import Table, decode_table, encode_table
from warren.amqp.field_table import Timestamp as Seconds
from warren.amqp.numbers import number_text
from warren.amqp.properties import PERSISTENT, BasicProperties
from warren.amqp10.addresses import maybe_queue_of, queue_address
from warren.amqp10.error_conditions import INVALID_FIELD, MESSAGE_SIZE, LinkError
from warren.amqp10.performatives import Arguments, Head, arguments_of, write_binary_head
from warren.amqp10.values import (
    BINARY_8,
    BINARY_32,
    Array,
    Decimal,
    Described,
    Reader,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    Uuid,
    encode,
    malformed,
    value_end,
    write_value,
)
from warren.queues.retry import DELIVERY_COUNT

HEADER: Final = 0x70
MESSAGE_ANNOTATIONS: Final = 0x72
PROPERTIES: Final = 0x73
APPLICATION_PROPERTIES: Final = 0x74
DATA: Final = 0x75
SEQUENCE: Final = 0x76
VALUE: Final = 0x77
FOOTER: Final = 0x78
PROPERTY_COUNT: Final = 13  # fields of the section `properties`

ENCODED_TYPE: Final = "amqp-1.0"
TRANSIENT: Final = 1
_TIMESTAMP_MAX: Final = (1 << 63) - 1
_TTL_MAX_MS: Final = 4_000_000_000  # the largest that a queue accepts; a longer time means no limit
_MESSAGE_ID: Final = "x-message-id"
_CORRELATION_ID: Final = "x-correlation-id"
_TO: Final = "x-amqp10-to"
_SUBJECT: Final = "x-amqp10-subject"
_EXPIRY: Final = "x-amqp10-expiry"
_GROUP_SEQUENCE: Final = "x-amqp10-group-sequence"
_REPLY_TO_GROUP: Final = "x-amqp10-reply-to-group"
_CREATED_MS: Final = "x-creation-time-ms"
# The headers that `originals` keeps.
ORIGINAL_SECTIONS: Final = "x-amqp10-sections"
ORIGINAL_BODY: Final = "x-amqp10-body"
ORIGINAL_FOOTER: Final = "x-amqp10-footer"
_OWN: Final = frozenset(
    (
        *(_MESSAGE_ID, _CORRELATION_ID, _TO, _SUBJECT, _EXPIRY, _GROUP_SEQUENCE, _REPLY_TO_GROUP, _CREATED_MS),
        *(ORIGINAL_SECTIONS, ORIGINAL_BODY, ORIGINAL_FOOTER),
    )
)
# Annotations that the broker sets; it ignores them from clients.
OURS: Final = frozenset(("x-exchange", "x-routing-key", "x-opt-deaths", "x-death", "x-stream-offset"))
# Headers that have more routing keys. An application property of the same name means something else, and routing by it
# could fail.
_ROUTED_BY: Final = frozenset(("CC", "BCC"))
_URN: Final = "urn:uuid:"
ANNOTATIONS_MAX_BYTES: Final = 4096
_NOT_KEPT: Final = OURS | frozenset(
    ("x-cc", "x-basic-type", "x-opt-delivery-time", "x-delivery-count", "x-acquired-count")
)


# --- in -----------------------------------------------------------------------------------------------------------


class Body:
    """Where the body of a message is in its sections. `start` and `end`: of the bytes of a data section.

    `is_plain`: the body is just this data section.
    """

    def __init__(self) -> None:
        self.sections: i64 = 0  # where the first section of the body begins
        self.is_plain: bool = False
        self.start: i64 = 0
        self.end: i64 = 0
        self._head = Head()

    def find(self, data: bytes, pos: i64, end: i64, head_max_bytes: i64) -> None:
        """Look into the sections between `pos` and `end`.

        Raises:
            Amqp10Error: they are malformed. LinkError: more than `head_max_bytes` stand before the body.
        """
        self.is_plain = False
        most: i64 = pos + head_max_bytes
        while pos < end:
            # Nearly always: a descriptor of three bytes.
            code: i64 = -1
            at: i64 = pos + 3
            if end - pos > 3 and data[pos] == 0 and data[pos + 1] == 0x53:
                code = data[pos + 2]
            else:
                self._head.read(data, pos, end)
                code = self._head.code
                at = self._head.pos
            if code >= DATA:
                self.sections = pos
                if code == DATA:
                    self.start, self.end = binary(data, at, end)
                    self.is_plain = self.end == end
                return
            if code < HEADER:
                raise malformed("not a valid section")
            pos = value_end(data, at, end)
            if pos > most:
                text = f"more than {int(head_max_bytes)} bytes of sections before a body"
                raise LinkError(MESSAGE_SIZE, text)
        self.sections = end


def binary(data: bytes, pos: i64, end: i64) -> tuple[i64, i64]:
    """Return where the bytes of a binary begin and end.

    Raises:
        Amqp10Error: it is malformed.
    """
    stop: i64 = value_end(data, pos, end)
    code: i64 = data[pos]
    if code == BINARY_8:
        return pos + 2, stop
    if code == BINARY_32:
        return pos + 5, stop
    raise malformed("a data section that is not binary")


class Sections:
    """The sections before the body of a message, as properties of 0-9-1. `to`: the destination in the message.

    `headers` has the values for which 0-9-1 has no property; `encode` puts everything together. `fields` (of the
    section `properties`), `application` (properties) and `annotations` keep the original values. `bare`: the bytes of
    the first two; `kept`: those of all three.
    """

    def __init__(self) -> None:
        self.properties = BasicProperties()
        self.headers: Table = {}
        self.to: str | None = None
        self.subject: str | None = None
        self.reply_to: str | None = None
        self.fields: list[object] = []
        self.application: dict[object, object] = {}
        self.annotations: dict[object, object] = {}
        self.bare = b""
        self.kept = b""
        self.too_long = ""  # a property that 0-9-1 has no room for

    def read(self, data: bytes) -> None:
        """Take all sections of `data`.

        Raises:
            Amqp10Error: they are malformed. LinkError: something in them is too long.
        """
        self.properties.delivery_mode = TRANSIENT
        head = Head()
        seen: set[int] = set()
        pos: i64 = 0
        end: i64 = len(data)
        while pos < end:
            head.read(data, pos, end)
            stop: i64 = value_end(data, head.pos, end)
            if head.code < DATA:
                if int(head.code) in seen:
                    raise malformed("a duplicate section")
                seen.add(int(head.code))
            if head.code == HEADER:
                self._header(arguments_of("a header", data, head.pos, stop))
            elif head.code == MESSAGE_ANNOTATIONS:
                self.kept += data[pos:stop]
                self._annotate(_map_at(data, head.pos, stop))
            elif head.code == PROPERTIES:
                self.kept += data[pos:stop]
                self.bare += data[pos:stop]
                self._properties(arguments_of("properties", data, head.pos, stop))
            elif head.code == APPLICATION_PROPERTIES:
                self.kept += data[pos:stop]
                self.bare += data[pos:stop]
                self._apply(_map_at(data, head.pos, stop))
            pos = stop

    def encode(self) -> bytes:
        """Return the properties as they are stored."""
        if self.headers:
            self.properties.headers = encode_table(self.headers)
        return self.properties.encode()

    def _header(self, fields: Arguments) -> None:
        found = self.properties
        if fields.flag(0):
            found.delivery_mode = PERSISTENT
        if fields.any(1) is not None:
            found.priority = min(fields.number(1, 0), 255)
        if fields.any(2) is not None:
            ttl_ms = fields.number(2, 0)
            if ttl_ms <= _TTL_MAX_MS:
                found.expiration = str(ttl_ms)

    def _apply(self, application: dict[object, object]) -> None:
        for name, value in application.items():
            if not isinstance(name, str) or isinstance(value, list | dict | Array | Described):
                raise malformed("application properties that are not simple values with names")
            self.application[name] = value
            if name not in _ROUTED_BY:
                _put(self.headers, name, value)

    def _annotate(self, annotations: dict[object, object]) -> None:
        for name, value in annotations.items():
            self.annotations[name] = value
            if not isinstance(name, str) or not name.startswith("x-") or name in OURS or name in _OWN:
                continue
            if name == "x-cc":
                copies = value.elements if isinstance(value, Array) else value
                _put(self.headers, "CC", [str(each) for each in copies] if isinstance(copies, list) else copies)
            elif name == "x-basic-type" and isinstance(value, str):
                if len(value.encode()) <= NAME_MAX_BYTES:
                    self.properties.type = str(value)
            else:
                _put(self.headers, name, value)

    def _properties(self, fields: Arguments) -> None:
        found = self.properties
        headers = self.headers
        self.fields = [fields.any(at) for at in range(PROPERTY_COUNT)]
        found.message_id = _identifier(fields.any(0), headers, _MESSAGE_ID)
        user = fields.any(1)
        if isinstance(user, bytes):
            found.user_id = _short("user-id", user.decode("utf-8", "surrogateescape"))
        self.to = fields.text(2)
        if self.to is not None:
            headers[_TO] = str(self.to)
        self.subject = fields.text(3)
        if self.subject is not None:
            headers[_SUBJECT] = str(self.subject)
        self.reply_to = fields.text(4)
        if self.reply_to is not None:
            found.reply_to = self._maybe_short("reply-to", maybe_queue_of(self.reply_to) or str(self.reply_to))
        found.correlation_id = _identifier(fields.any(5), headers, _CORRELATION_ID)
        content_type = fields.text(6)
        if content_type is not None:
            found.content_type = self._maybe_short("content-type", str(content_type))
        content_encoding = fields.text(7)
        if content_encoding is not None:
            found.content_encoding = self._maybe_short("content-encoding", str(content_encoding))
        expiry = fields.any(8)
        if isinstance(expiry, int) and expiry <= _TIMESTAMP_MAX:
            headers[_EXPIRY] = int(expiry)
        created = fields.any(9)
        if isinstance(created, int) and 0 <= created <= _TIMESTAMP_MAX:
            found.timestamp = int(created) // 1000
            if created % 1000:
                headers[_CREATED_MS] = int(created)
        group = fields.text(10)
        if group is not None:
            found.app_id = self._maybe_short("group-id", str(group))
        sequence = fields.any(11)
        if isinstance(sequence, int) and sequence <= _TIMESTAMP_MAX:
            headers[_GROUP_SEQUENCE] = int(sequence)
        reply_to_group = fields.text(12)
        if reply_to_group is not None:
            headers[_REPLY_TO_GROUP] = str(reply_to_group)

    def _maybe_short(self, what: str, text: str) -> str | None:
        """Return `text` if 0-9-1 has room for it; None if not: then only clients of 1.0 see it (`originals`)."""
        if len(text.encode("utf-8", "surrogateescape")) <= NAME_MAX_BYTES:
            return text
        self.too_long = what
        return None


def annotations_to_keep(annotations: dict[object, object]) -> Table:
    """Return the headers from a `modified` outcome: its annotations, except those on which the broker acts.

    Empty if these have more than `ANNOTATIONS_MAX_BYTES`: one outcome may be for very many messages.
    """
    found: Table = {}
    for name, value in annotations.items():
        if isinstance(name, str) and name.startswith("x-") and name not in _NOT_KEPT and name not in _OWN:
            _put(found, name, value)
    if found and len(encode_table(found)) > ANNOTATIONS_MAX_BYTES:
        return {}
    return found


def _map_at(data: bytes, pos: i64, end: i64) -> dict[object, object]:
    found = Reader(data, pos, end).value()
    if isinstance(found, dict):
        return found
    raise malformed("a section that is not a map")


def _short(what: str, text: str) -> str:
    if len(text.encode("utf-8", "surrogateescape")) > NAME_MAX_BYTES:
        raise LinkError(INVALID_FIELD, f"{what} is longer than {NAME_MAX_BYTES} bytes")
    return text


def _identifier(value: object, headers: Table, header: str) -> str | None:
    """Return a message id as a short string; any other value goes into a header."""
    if isinstance(value, Uuid):
        text = value.hex()
        return f"{_URN}{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
    if isinstance(value, str):
        if len(value.encode()) <= NAME_MAX_BYTES:
            return str(value)
        headers[header] = str(value)
    elif isinstance(value, bytes):
        headers[header] = bytes(value)
    elif isinstance(value, int) and not isinstance(value, bool):
        return number_text(value)
    return None


def _put(headers: Table, name: str, value: object) -> None:
    if isinstance(value, Decimal | Described):
        return  # 0-9-1 has no such
    if len(name.encode()) <= NAME_MAX_BYTES:
        headers[str(name)] = _to_field(value)


def table_of(arguments: dict[object, object]) -> Table:
    """Return a map as a table of 0-9-1."""
    found: Table = {}
    for name, value in arguments.items():
        if isinstance(name, str):
            _put(found, name, value)
    return found


def _to_field(value: object) -> object:
    """Return a value as one that a table of 0-9-1 can have."""
    if isinstance(value, Timestamp):
        return Seconds(max(0, int(value)) // 1000)
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return int(value) if value <= _TIMESTAMP_MAX else number_text(value)
    if isinstance(value, Uuid):
        return _identifier(value, {}, "")
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes):
        return bytes(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, list):
        return [_to_field(each) for each in value if not isinstance(each, Decimal | Described)]
    if isinstance(value, Array):
        return [_to_field(each) for each in value.elements if not isinstance(each, Decimal | Described)]
    if isinstance(value, dict):
        return table_of(value)
    return None


# --- out ----------------------------------------------------------------------------------------------------------


def header_section(found: BasicProperties, ttl_ms: int | None, *, first: bool, delivery_count: int) -> bytes:
    """Return the section `header`. `first`: the message has not been delivered before."""
    fields: list[object] = [
        found.delivery_mode == PERSISTENT,
        None if found.priority is None else UByte(found.priority),
        None if ttl_ms is None else UInt(min(ttl_ms, 0xFFFFFFFF)),
        first,
        UInt(delivery_count) if delivery_count else None,
    ]
    if fields[4] is None:
        fields.pop()
    return encode(Described(ULong(HEADER), fields))


def delivery_count_of(found: BasicProperties) -> int:
    """Return the number of failed deliveries of a stored message, as its queue has counted them."""
    headers = found.headers
    if headers is None or DELIVERY_COUNT.encode() not in headers:
        return 0
    count = decode_table(headers).get(DELIVERY_COUNT)
    return count if isinstance(count, int) and not isinstance(count, bool) and 0 <= count <= 0xFFFFFFFF else 0


def is_hidden(name: str) -> bool:
    """Tell whether clients of 1.0 do not see a header in its stored form."""
    return name in _OWN or name in ("", "BCC", DELIVERY_COUNT)


def is_annotation(name: str) -> bool:
    """Tell whether a header is an annotation for clients of 1.0."""
    return (name == "CC" or (name.startswith("x-") and name.isascii())) and not is_hidden(name)


def annotations_of(found: BasicProperties, headers: Table) -> dict[object, object]:
    """Return the annotations of a stored message."""
    annotations: dict[object, object] = {}
    for name, value in headers.items():
        if not is_annotation(name):
            continue
        if name == "x-death":
            deaths = _deaths(value)
            if deaths is not None:
                annotations[Symbol("x-opt-deaths")] = deaths
        else:
            annotations[Symbol("x-cc" if name == "CC" else name)] = from_field(value)
    if found.type is not None and found.type != ENCODED_TYPE:
        annotations[Symbol("x-basic-type")] = found.type
    return annotations


def application_properties(headers: Table) -> dict[object, object]:
    """Return the application properties of a stored message."""
    found: dict[object, object] = {}
    for name, value in headers.items():
        if not (isinstance(value, list | dict) or is_annotation(name) or is_hidden(name)):
            found[name] = from_field(value)
    return found


def bare_sections(fields: list[object], application: dict[object, object]) -> bytes:
    """Return properties and application properties as they are encoded here; `fields` lose trailing None values."""
    out = BytesWriter()
    while fields and fields[-1] is None:
        fields.pop()
    if fields:
        write_value(out, Described(ULong(PROPERTIES), fields))
    if application:
        write_value(out, Described(ULong(APPLICATION_PROPERTIES), application))
    return out.getvalue()


def property_fields(found: BasicProperties, headers: Table) -> list[object]:
    """Return the fields of the section `properties` of a stored message, None for missing ones."""
    created = headers.get(_CREATED_MS)
    if not isinstance(created, int) and found.timestamp is not None:
        created = min(found.timestamp, _TIMESTAMP_MAX // 1000) * 1000
    reply_to = found.reply_to
    if reply_to is not None and not reply_to.startswith("/"):
        reply_to = queue_address(reply_to)
    sequence = headers.get(_GROUP_SEQUENCE)
    expiry = headers.get(_EXPIRY)
    return [
        _from_identifier(found.message_id, headers.get(_MESSAGE_ID)),
        None if found.user_id is None else found.user_id.encode("utf-8", "surrogateescape"),
        _maybe_text(headers.get(_TO)),
        _maybe_text(headers.get(_SUBJECT)),
        reply_to,
        _from_identifier(found.correlation_id, headers.get(_CORRELATION_ID)),
        _maybe_symbol(found.content_type),
        _maybe_symbol(found.content_encoding),
        # Only a number in range: a timestamp of 0-9-1, which another client may have set, can be larger.
        Timestamp(expiry) if isinstance(expiry, int) and expiry <= _TIMESTAMP_MAX else None,
        Timestamp(created) if isinstance(created, int) and created <= _TIMESTAMP_MAX else None,
        found.app_id,
        UInt(sequence) if isinstance(sequence, int) and 0 <= sequence <= 0xFFFFFFFF else None,
        _maybe_text(headers.get(_REPLY_TO_GROUP)),
    ]


def _maybe_text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _maybe_symbol(value: str | None) -> object:
    return None if value is None else Symbol(value.encode("ascii", "replace").decode())


def _from_identifier(text: str | None, other: object) -> object:
    if isinstance(other, bytes | str):
        return other
    if text is not None and text.startswith(_URN):
        digits = text[len(_URN) :].replace("-", "")
        if len(digits) == 32 and digits.isascii():
            try:
                return Uuid(bytes.fromhex(digits))
            except ValueError:
                return text
    return text


def from_field(value: object) -> object:
    """Return a value of a table of 0-9-1 as one of 1.0."""
    if isinstance(value, Seconds):
        return Timestamp(min(int(value), _TIMESTAMP_MAX // 1000) * 1000)
    if isinstance(value, list):
        return [from_field(each) for each in value]
    if isinstance(value, dict):
        return {str(name): from_field(each) for name, each in value.items()}
    if value is None or isinstance(value, bool | int | str | bytes | float):
        return value
    return str(value)  # a decimal


def _deaths(value: object) -> object:
    """Return x-death as x-opt-deaths, None when it is not a valid x-death."""
    if not isinstance(value, list):
        return None
    found: list[object] = []
    for death in value:
        if not isinstance(death, dict):
            continue
        time = death.get("time")
        at = from_field(Seconds(time)) if isinstance(time, int) and time >= 0 else None
        keys = death.get("routing-keys")
        count = death.get("count")
        found.append(
            {
                Symbol("queue"): from_field(death.get("queue")),
                Symbol("reason"): Symbol(str(death.get("reason"))),
                Symbol("count"): ULong(count if isinstance(count, int) and count >= 0 else 1),
                Symbol("first-time"): at,
                Symbol("last-time"): at,
                Symbol("exchange"): from_field(death.get("exchange")),
                Symbol("routing-keys"): Array(0xB1, [key for key in keys if isinstance(key, str)])
                if isinstance(keys, list)
                else None,
            }
        )
    return Array(0xD1, found)


def data_head(size: i64) -> bytes:
    """Return the bytes before the content of a data section."""
    out = BytesWriter()
    out.write(b"\x00\x53\x75")
    write_binary_head(out, size)
    return out.getvalue()
