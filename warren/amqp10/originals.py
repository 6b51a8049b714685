"""Parts of AMQP 1.0 messages that 0-9-1 cannot express: kept in headers, and given back to clients of 1.0.

    x-amqp10-sections   binary   annotations, properties and application properties, as they were encoded
    x-amqp10-body       list     for each data section the bytes before its content, and then its size; the size of the
                                 last one is left out. The list is empty for a body without sections
    x-amqp10-footer     binary   the footer, as it was encoded

    in the list, a binary        descriptor and type of the data section, without its size: 00 53 75 A0, or B0 …
    and a number                 its size

1. A message has these headers only if its properties, annotations and body would otherwise come back with other values,
   or with values of other types. A footer may hold signatures: a message with a footer also has them if its bare
   message would come back with other bytes.
2. The headers are used only as far as they agree with the message. A client of 0-9-1 may have published the message
   again, with these headers and other ones, or with another body. Then its changes take precedence.
3. Values larger than `SECTIONS_MAX_BYTES` or `LAYOUT_MAX_BYTES` are not kept, since a header frame cannot be divided.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, write_i32_be
from mypy_extensions import i32, i64, u8

from warren.amqp.codec import NAME_MAX_BYTES
from warren.amqp.errors import AmqpError
from warren.amqp.field_table import Table, decode_table
from warren.amqp.properties import BasicProperties
from warren.amqp10.conversion import (
    DATA,
    ENCODED_TYPE,
    FOOTER,
    ORIGINAL_BODY,
    ORIGINAL_FOOTER,
    ORIGINAL_SECTIONS,
    OURS,
    VALUE,
    Sections,
    annotations_of,
    application_properties,
    bare_sections,
    binary,
    data_head,
    is_annotation,
    is_hidden,
    property_fields,
)
from warren.amqp10.error_conditions import INVALID_FIELD, MESSAGE_SIZE, LinkError
from warren.amqp10.performatives import Head
from warren.amqp10.values import BINARY_8, BINARY_32, Described, Symbol, ULong, encode, malformed, value_end

SECTIONS_MAX_BYTES: Final = 16_384
LAYOUT_MAX_BYTES: Final = 4_096

_MESSAGE_ANNOTATIONS: Final = 0x72
# After the sections before a body, this byte begins the layout of an unusual body. No section begins with it.
_MARK: Final = b"\xff"


# --- in -----------------------------------------------------------------------------------------------------------


class Layout:
    """The sections of a body that are not one data section of the usual encoding.

    `is_encoded`: not all are data sections; then the body of the message is the encoded sections themselves.
    """

    def __init__(self) -> None:
        self.is_encoded: bool = False
        self.content = b""
        self._heads: list[object] = []
        self._footer = b""

    def read(self, data: bytes, pos: i64, end: i64, beside_max_bytes: i64) -> None:
        """Take the sections between `pos` and `end`.

        Raises:
            Amqp10Error: they are malformed. LinkError: the footer and what each of the others begins with have more
                than `beside_max_bytes`.
        """
        beside: i64 = 0
        parts: list[bytes] = []
        head = Head()
        start: i64 = pos
        footer_at: i64 = end
        while pos < end:
            head.read(data, pos, end)
            if not DATA <= head.code <= FOOTER:
                raise malformed("a section that does not belong in a body")
            stop: i64 = value_end(data, head.pos, end)
            beside += (stop if head.code == FOOTER else head.pos) - pos
            if beside > beside_max_bytes:
                text = f"more than {int(beside_max_bytes)} bytes besides the content of a body"
                raise LinkError(MESSAGE_SIZE, text)
            if head.code == FOOTER:
                footer_at = pos
                self._footer = data[pos:stop]
                if stop < end:
                    raise malformed("a section after the footer")
                break
            if head.code == DATA:
                first, last = binary(data, head.pos, end)
                if parts:
                    self._heads.append(len(parts[-1]))
                self._heads.append(data[pos : head.pos + 1])
                parts.append(data[first:last])
            else:
                self.is_encoded = True
            pos = stop
        if self.is_encoded:
            self._heads = []
            self.content = data[start:footer_at]
        else:
            self.content = b"".join(parts)

    def mark(self) -> bytes:
        """Return bytes that identify this layout."""
        return _MARK + repr((self.is_encoded, self._heads, self._footer)).encode()

    @property
    def has_footer(self) -> bool:
        """Whether the bytes of the bare message count."""
        return len(self._footer) > 0

    def describe(self, sections: Sections) -> None:
        """Put it into the properties and headers of its message."""
        if self.is_encoded:
            sections.properties.type = ENCODED_TYPE
        size = len(self._footer) + sum(len(head) if isinstance(head, bytes) else 8 for head in self._heads)
        if size > LAYOUT_MAX_BYTES:
            return
        if not self.is_encoded:
            sections.headers[ORIGINAL_BODY] = self._heads
        if self._footer:
            sections.headers[ORIGINAL_FOOTER] = self._footer


def keep_sections(sections: Sections, *, exactly: bool) -> None:
    """Put sections that would come back otherwise into the headers. `exactly`: their bytes count, not the values.

    Raises:
        LinkError: they are too large for that, and a property is too long to be kept otherwise.
    """
    if len(sections.kept) > SECTIONS_MAX_BYTES:
        if sections.too_long:
            text = f"{sections.too_long} is longer than {NAME_MAX_BYTES} bytes in sections of over {SECTIONS_MAX_BYTES}"
            raise LinkError(INVALID_FIELD, text)
        return
    found, headers = sections.properties, sections.headers
    sent = sections.bare if exactly else bare_sections(list(sections.fields), sections.application)
    if sent == bare_sections(property_fields(found, headers), application_properties(headers)):
        theirs = {name: value for name, value in sections.annotations.items() if name not in OURS}
        if _encoded(theirs) == _encoded(annotations_of(found, headers)):
            return
    headers[ORIGINAL_SECTIONS] = sections.kept


def _encoded(annotations: dict[object, object]) -> list[bytes]:
    return sorted(encode(name) + encode(value) for name, value in annotations.items())


# --- out ----------------------------------------------------------------------------------------------------------


class Shown:
    """A stored message as a client of AMQP 1.0 sees it: as it was sent, or as converted from its properties."""

    def __init__(self, found: BasicProperties) -> None:
        self._found = found
        self.headers: Table = {} if found.headers is None else decode_table(found.headers)
        self._original = _maybe_original(found, self.headers)

    def fields(self) -> list[object]:
        """Return the fields of the section `properties`, None for missing ones."""
        original = self._original
        return property_fields(self._found, self.headers) if original is None else original.fields

    def application(self) -> dict[object, object]:
        """Return the application properties."""
        original = self._original
        return application_properties(self.headers) if original is None else original.application

    def sections(self, exchange: str, routing_key: str) -> bytes:
        """Return annotations, properties and application properties as they are encoded."""
        annotations: dict[object, object] = {Symbol("x-exchange"): exchange, Symbol("x-routing-key"): routing_key}
        original = self._original
        if original is None:
            annotations |= annotations_of(self._found, self.headers)
            bare = bare_sections(self.fields(), self.application())
        else:
            annotations |= self._annotations(original)
            bare = original.bare
        return encode(Described(ULong(_MESSAGE_ANNOTATIONS), annotations)) + bare

    def _annotations(self, original: Sections) -> dict[object, object]:
        """Return the original annotations, except those that a client has changed since, and those added since."""
        if self._found.type == ENCODED_TYPE:
            original.properties.type = ENCODED_TYPE  # in the place of an x-basic-type, which is as it was
        now = annotations_of(self._found, self.headers)
        then = annotations_of(original.properties, original.headers)
        shown: dict[object, object] = {}
        for name, value in original.annotations.items():
            if name not in OURS and _is_same(now.get(name), then.get(name)):
                shown[name] = value
        for name, value in now.items():
            if name not in shown and name not in original.application:
                shown[name] = value
        return shown


def _maybe_original(found: BasicProperties, headers: Table) -> Sections | None:
    """Return the original sections of a message; None: it has none, or they do not belong to this message."""
    kept = headers.get(ORIGINAL_SECTIONS)
    if not isinstance(kept, bytes) or len(kept) > SECTIONS_MAX_BYTES:
        return None
    original = Sections()
    try:
        original.read(kept)
    except AmqpError:
        return None
    if original.kept != kept or _said(original.properties) != _said(found):
        return None
    for name, value in original.headers.items():
        if (name in original.application or not is_annotation(name)) and not _is_same(headers.get(name), value):
            return None
    for name, value in headers.items():
        # A property that a client has added since.
        shows = not isinstance(value, list | dict) and not is_annotation(name) and not is_hidden(name)
        if shows and name not in original.headers:
            return None
    return original


def _said(found: BasicProperties) -> list[object]:
    """Return the fields that the section `properties` can hold, besides headers."""
    return [
        *(found.message_id, found.user_id, found.reply_to, found.correlation_id),
        *(found.content_type, found.content_encoding, found.timestamp, found.app_id),
    ]


def _is_same(one: object, other: object) -> bool:
    return one == other or (one != one and other != other)  # NaN does not equal itself


class StoredLayout:
    """The sections of the body of a stored message. `is_usual`: one data section, and no footer."""

    def __init__(self, found: BasicProperties, headers: Table) -> None:
        self._is_encoded = found.type == ENCODED_TYPE
        self._heads: list[object] | None = None
        self._footer = b""
        heads = headers.get(ORIGINAL_BODY)
        if isinstance(heads, list) and len(heads) <= LAYOUT_MAX_BYTES and _are_heads(heads):
            self._heads = heads
        footer = headers.get(ORIGINAL_FOOTER)
        if isinstance(footer, bytes) and _is_footer(footer):
            self._footer = footer
        self.is_usual = not self._is_encoded and self._heads is None and not self._footer

    def sections(self, body: bytes) -> bytes:
        """Return the sections of `body`, and the footer."""
        if self._is_encoded and _is_section(body, DATA, VALUE):
            return body + self._footer
        divided = self._divided(body)
        return (data_head(len(body)) + body if divided is None else divided) + self._footer

    def _divided(self, body: bytes) -> bytes | None:
        """Return the data sections; None: the message has no valid layout for them, or the body has too few bytes."""
        heads = self._heads
        if heads is None or self._is_encoded:
            return None
        if not heads:
            return None if body else b""
        out = BytesWriter()
        at: i64 = 0
        for number in range(0, len(heads), 2):
            head = heads[number]
            size: i64 = len(body) - at
            if number + 1 < len(heads):
                said = heads[number + 1]
                if not isinstance(said, int) or said < 0 or said > size:
                    return None
                size = said
            if not isinstance(head, bytes):
                return None
            out.write(head)
            if head[len(head) - 1] == BINARY_32:
                write_i32_be(out, i32(size))
            elif size < 256:
                out.append(u8(size))
            else:
                return None
            out.write(body[at : at + size])
            at += size
        return out.getvalue()


def _are_heads(heads: list[object]) -> bool:
    """Tell whether they are heads of data sections with a size between each two."""
    if heads and len(heads) % 2 == 0:
        return False
    found = Head()
    for number, head in enumerate(heads):
        if number % 2:
            if not isinstance(head, int) or isinstance(head, bool):
                return False
        elif isinstance(head, bytes) and head and head[len(head) - 1] in (BINARY_8, BINARY_32):
            try:
                found.read(head, 0, len(head))
            except AmqpError:
                return False
            if found.code != DATA or found.pos != len(head) - 1:
                return False
        else:
            return False
    return True


def _is_section(data: bytes, first: int, last: int) -> bool:
    """Tell whether `data` is sections of these kinds, at least one: any client may have written the header."""
    head = Head()
    pos: i64 = 0
    end: i64 = len(data)
    try:
        while pos < end:
            head.read(data, pos, end)
            if not first <= head.code <= last:
                return False
            pos = value_end(data, head.pos, end)
    except AmqpError:
        return False
    return end > 0


def _is_footer(data: bytes) -> bool:
    """Tell whether `data` is a footer, and one only."""
    head = Head()
    end: i64 = len(data)
    try:
        head.read(data, 0, end)
        return head.code == FOOTER and value_end(data, head.pos, end) == end
    except AmqpError:
        return False
