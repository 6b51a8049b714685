"""Frames and performatives. Transfer, disposition and flow have their own readers and writers; others are lists.

    frame    size:u32 doff:u8 type:u8 channel:u16, extended header up to 4 * doff, then a performative and a payload
    type     0: AMQP, 1: SASL; an empty frame of type 0 shows that the peer is alive

1. A missing field has its default; a mandatory field is checked where it is used.
2. Sizes that a peer announces are checked against the received bytes before anything is allocated for them.

Source: AMQP 1.0, part 2 "Transport", part 3 "Messaging" and part 5 "Security".
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, read_i32_be, read_i64_be, write_i16_be, write_i32_be
from mypy_extensions import i32, i64, u8

from warren.amqp.codec import wire_short
from warren.amqp10.values import (
    BINARY_8,
    BINARY_32,
    BOOLEAN,
    FALSE,
    LIST_0,
    NULL,
    SMALL_UINT,
    SMALL_ULONG,
    TRUE,
    UINT,
    UINT_0,
    Described,
    Reader,
    Symbol,
    ULong,
    malformed,
    value_end,
    write_list,
)

AMQP_HEADER: Final = b"AMQP\x00\x01\x00\x00"
TLS_HEADER: Final = b"AMQP\x02\x01\x00\x00"
SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"

FRAME_HEAD_BYTES: Final = 8
FRAME_AMQP: Final = 0
FRAME_SASL: Final = 1
FRAME_MIN_MAX_BYTES: Final = 512  # every peer has to take this size

OPEN: Final = 0x10
BEGIN: Final = 0x11
ATTACH: Final = 0x12
FLOW: Final = 0x13
TRANSFER: Final = 0x14
DISPOSITION: Final = 0x15
DETACH: Final = 0x16
END: Final = 0x17
CLOSE: Final = 0x18
ERROR: Final = 0x1D
RECEIVED: Final = 0x23
ACCEPTED: Final = 0x24
REJECTED: Final = 0x25
RELEASED: Final = 0x26
MODIFIED: Final = 0x27
SOURCE: Final = 0x28
TARGET: Final = 0x29
COORDINATOR: Final = 0x30
SASL_MECHANISMS: Final = 0x40
SASL_INIT: Final = 0x41
SASL_OUTCOME: Final = 0x44

HEARTBEAT: Final = b"\x00\x00\x00\x08\x02\x00\x00\x00"
U32: Final = 0xFFFFFFFF
DELIVERY_TAG_MAX_BYTES: Final = 32
ERROR_TEXT_BYTES: Final = 384

_NAMES: Final = {
    "amqp:open:list": OPEN,
    "amqp:begin:list": BEGIN,
    "amqp:attach:list": ATTACH,
    "amqp:flow:list": FLOW,
    "amqp:transfer:list": TRANSFER,
    "amqp:disposition:list": DISPOSITION,
    "amqp:detach:list": DETACH,
    "amqp:end:list": END,
    "amqp:close:list": CLOSE,
    "amqp:error:list": ERROR,
    "amqp:received:list": RECEIVED,
    "amqp:accepted:list": ACCEPTED,
    "amqp:rejected:list": REJECTED,
    "amqp:released:list": RELEASED,
    "amqp:modified:list": MODIFIED,
    "amqp:source:list": SOURCE,
    "amqp:target:list": TARGET,
    "amqp:coordinator:list": COORDINATOR,
    "amqp:sasl-mechanisms:list": SASL_MECHANISMS,
    "amqp:sasl-init:list": SASL_INIT,
    "amqp:sasl-outcome:list": SASL_OUTCOME,
    "amqp:header:list": 0x70,
    "amqp:delivery-annotations:map": 0x71,
    "amqp:message-annotations:map": 0x72,
    "amqp:properties:list": 0x73,
    "amqp:application-properties:map": 0x74,
    "amqp:data:binary": 0x75,
    "amqp:amqp-sequence:list": 0x76,
    "amqp:amqp-value:*": 0x77,
    "amqp:footer:map": 0x78,
}


def code_of(descriptor: object) -> int:
    """Return the number of a descriptor, which may be its name; -1: unknown."""
    if isinstance(descriptor, ULong):
        return int(descriptor)
    if isinstance(descriptor, str):
        return _NAMES.get(descriptor, -1)
    return -1


class Head:
    """A described value: its descriptor, and the beginning of its content."""

    def __init__(self) -> None:
        self.code: i64 = -1
        self.pos: i64 = 0

    def read(self, data: bytes, pos: i64, end: i64) -> None:
        """Take the descriptor at `pos`.

        Raises:
            Amqp10Error: the descriptor is missing.
        """
        if end - pos < 3 or data[pos] != 0:
            raise malformed("a value that is not described")
        if data[pos + 1] == SMALL_ULONG:
            self.code = data[pos + 2]
            self.pos = pos + 3
        elif data[pos + 1] == 0x80:
            if end - pos < 10:
                raise malformed("it ends too early")
            self.code = read_i64_be(data, pos + 2)
            self.pos = pos + 10
        else:
            reader = Reader(data, pos + 1, end)
            self.code = code_of(reader.value())
            self.pos = reader.pos


class Fields:
    """The fields of a performative that lie between `pos` and `end`, one after the other."""

    def __init__(self) -> None:
        self.data: bytes = b""
        self.pos: i64 = 0
        self.end: i64 = 0  # of the list: the payload begins here
        self.left: i64 = 0

    def open(self, data: bytes, pos: i64, end: i64) -> None:
        """Begin with the list at `pos`.

        Raises:
            Amqp10Error: the list is missing.
        """
        if pos >= end:
            raise malformed("a performative without fields")
        self.data = data
        code: i64 = data[pos]
        size: i64 = 0
        if code == 0xC0 and end - pos >= 3:
            size = data[pos + 1]
            self.left = data[pos + 2]
            self.pos = pos + 3
            self.end = pos + 2 + size
        elif code == 0xD0 and end - pos >= 9:
            size = i64(read_i32_be(data, pos + 1)) & U32
            self.left = i64(read_i32_be(data, pos + 5)) & U32
            self.pos = pos + 9
            self.end = pos + 5 + size
        elif code == LIST_0:
            self.left = 0
            self.pos = pos + 1
            self.end = pos + 1
            return
        else:
            raise malformed("a performative that is not a list")
        if self.end > end or self.pos > self.end:
            raise malformed("a size exceeds the available bytes")

    def _code(self) -> i64:
        """Take the constructor of the next field; null when no field is left."""
        if self.left <= 0:
            return NULL
        self.left -= 1
        pos: i64 = self.pos
        if pos >= self.end:
            raise malformed("it ends too early")
        self.pos = pos + 1
        return self.data[pos]

    def uint(self, absent: i64) -> i64:
        """Take a uint."""
        code: i64 = self._code()
        if code == NULL:
            return absent
        if code == UINT_0:
            return 0
        pos: i64 = self.pos
        if code == SMALL_UINT and pos < self.end:
            self.pos = pos + 1
            return self.data[pos]
        if code == UINT and self.end - pos >= 4:
            self.pos = pos + 4
            return i64(read_i32_be(self.data, pos)) & U32
        raise malformed("a field that is not a uint")

    def boolean(self, absent: bool) -> bool:
        """Take a boolean."""
        code: i64 = self._code()
        if code == NULL:
            return absent
        if code == TRUE:
            return True
        if code == FALSE:
            return False
        pos: i64 = self.pos
        if code == BOOLEAN and pos < self.end and self.data[pos] < 2:
            self.pos = pos + 1
            return self.data[pos] == 1
        raise malformed("a field that is not a boolean")

    def skip(self) -> None:
        """Pass over a field."""
        if self.left > 0:
            self.left -= 1
            self.pos = value_end(self.data, self.pos, self.end)

    def skip_tag(self) -> None:
        """Pass over a delivery tag."""
        code: i64 = self._code()
        if code == NULL:
            return
        pos: i64 = self.pos
        size: i64
        if code == BINARY_8 and pos < self.end:
            size = self.data[pos]
            pos += 1
        elif code == BINARY_32 and pos + 4 <= self.end:
            size = i64(read_i32_be(self.data, pos)) & U32
            pos += 4
        else:
            raise malformed("a delivery tag that is not binary")
        self.pos = pos + size
        if size > DELIVERY_TAG_MAX_BYTES or self.pos > self.end:
            raise malformed(f"a delivery tag of more than {DELIVERY_TAG_MAX_BYTES} bytes")

    def value(self) -> object:
        """Take a field of any type."""
        if self.left <= 0:
            return None
        self.left -= 1
        reader = Reader(self.data, self.pos, self.end)
        found = reader.value()
        self.pos = reader.pos
        return found

    def outcome(self) -> i64:
        """Take a delivery state without fields that matter here; return its code, 0: it is missing."""
        if self.left <= 0 or self.pos >= self.end or self.data[self.pos] == NULL:
            self.skip()
            return 0
        pos: i64 = self.pos
        self.skip()
        head = Head()
        head.read(self.data, pos, self.end)
        return head.code


class Transfer:
    """The fields of a transfer."""

    def __init__(self) -> None:
        self._fields = Fields()
        self.handle: i64 = -1
        self.delivery_id: i64 = -1
        self.message_format: i64 = 0
        self.settled: bool = False
        self.more: bool = False
        self.resume: bool = False
        self.aborted: bool = False
        self.payload: i64 = 0  # where it begins

    def read(self, data: bytes, pos: i64, end: i64) -> None:
        """Take the fields after the descriptor.

        Raises:
            Amqp10Error: it is malformed.
        """
        fields = self._fields
        fields.open(data, pos, end)
        self.handle = fields.uint(-1)
        self.delivery_id = fields.uint(-1)
        fields.skip_tag()
        self.message_format = fields.uint(0)
        self.settled = fields.boolean(False)
        self.more = fields.boolean(False)
        fields.skip()  # rcv-settle-mode
        fields.skip()  # state
        self.resume = fields.boolean(False)
        self.aborted = fields.boolean(False)
        self.payload = fields.end


class Disposition:
    """The fields of a disposition. `state`: its code, 0 without."""

    def __init__(self) -> None:
        self._fields = Fields()
        self.is_receiver: bool = False
        self.first: i64 = -1
        self.last: i64 = -1
        self.settled: bool = False
        self.state: i64 = 0
        self._state_at: i64 = 0
        self._state_end: i64 = 0

    def read(self, data: bytes, pos: i64, end: i64) -> None:
        """Take the fields after the descriptor.

        Raises:
            Amqp10Error: it is malformed.
        """
        fields = self._fields
        fields.open(data, pos, end)
        self.is_receiver = fields.boolean(False)
        self.first = fields.uint(-1)
        self.last = fields.uint(self.first)
        self.settled = fields.boolean(False)
        self._state_at = fields.pos
        self.state = fields.outcome()
        self._state_end = fields.pos

    def state_value(self) -> object:
        """Decode the state, which is there.

        Raises:
            Amqp10Error: it is malformed.
        """
        return Reader(self._fields.data, self._state_at, self._state_end).value()


class Flow:
    """The fields of a flow; -1: not there."""

    def __init__(self) -> None:
        self.next_incoming_id: i64 = -1
        self.incoming_window: i64 = -1
        self.handle: i64 = -1
        self.delivery_count: i64 = -1
        self.link_credit: i64 = -1
        self.drain: bool = False
        self.echo: bool = False

    def read(self, data: bytes, pos: i64, end: i64) -> None:
        """Take the fields after the descriptor.

        Raises:
            Amqp10Error: it is malformed.
        """
        fields = Fields()
        fields.open(data, pos, end)
        self.next_incoming_id = fields.uint(-1)
        self.incoming_window = fields.uint(-1)
        fields.uint(-1)  # next-outgoing-id
        fields.uint(-1)  # outgoing-window
        self.handle = fields.uint(-1)
        self.delivery_count = fields.uint(-1)
        self.link_credit = fields.uint(-1)
        fields.uint(-1)  # available
        self.drain = fields.boolean(False)
        self.echo = fields.boolean(False)


class Arguments:
    """The fields of any other performative, or of a described list: by place, each with the type that it must have.

    `what` names it in error texts.
    """

    def __init__(self, what: str, values: list[object]) -> None:
        self._what = what
        self._values = values

    def any(self, at: int) -> object:
        """Return the field, None: it is missing."""
        return self._values[at] if at < len(self._values) else None

    def text(self, at: int) -> str | None:
        """Return a string or symbol."""
        value = self.any(at)
        if value is None or isinstance(value, str):
            return value
        raise malformed(f"field {at} of {self._what} is not a string")

    def number(self, at: int, absent: int) -> int:
        """Return a number without a sign."""
        value = self.any(at)
        if value is None:
            return absent
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
        raise malformed(f"field {at} of {self._what} is not a number")

    def flag(self, at: int) -> bool:
        """Return a boolean; false when it is missing."""
        value = self.any(at)
        if value is None:
            return False
        if isinstance(value, bool):
            return value
        raise malformed(f"field {at} of {self._what} is not a boolean")

    def table(self, at: int) -> dict[object, object]:
        """Return a map, empty when it is missing."""
        value = self.any(at)
        if value is None:
            return {}
        if isinstance(value, dict):
            return value
        raise malformed(f"field {at} of {self._what} is not a map")


def arguments_of(what: str, data: bytes, pos: i64, end: i64) -> Arguments:
    """Decode the list at `pos`.

    Raises:
        Amqp10Error: it is not a list.
    """
    found = Reader(data, pos, end).value()
    if isinstance(found, list):
        return Arguments(what, found)
    raise malformed(f"{what} that is not a list")


def maybe_described(what: str, value: object) -> tuple[int, Arguments] | None:
    """Return code and fields of a described list; None when `value` is None.

    Raises:
        Amqp10Error: it is something else.
    """
    if value is None:
        return None
    if isinstance(value, Described):
        fields = value.value
        if isinstance(fields, list):
            return code_of(value.descriptor), Arguments(what, fields)
    raise malformed(f"{what} that is not a described list")


# --- out ----------------------------------------------------------------------------------------------------------


def described(code: int, values: list[object]) -> Described:
    """Return a described list; missing fields at its end are left out."""
    kept = len(values)
    while kept and values[kept - 1] is None:
        kept -= 1
    return Described(ULong(code), values[:kept])


def frame(channel: int, code: int, values: list[object], *, frame_type: int = FRAME_AMQP) -> bytes:
    """Return a frame with a performative."""
    kept = len(values)
    while kept and values[kept - 1] is None:
        kept -= 1
    out = BytesWriter()
    out.append(0)
    out.append(SMALL_ULONG)
    out.append(u8(i64(code)))
    write_list(out, values[:kept])
    return framed(channel, out.getvalue(), frame_type)


def framed(channel: int, content: bytes, frame_type: int = FRAME_AMQP) -> bytes:
    """Return a frame with `content`."""
    return (
        (FRAME_HEAD_BYTES + len(content)).to_bytes(4, "big")
        + bytes([2, frame_type, channel >> 8, channel & 255])
        + content
    )


def error_value(condition: str, description: str, info: dict[object, object] | None = None) -> Described:
    """Return an error. Its text is cut so that it fits into the smallest frame."""
    raw = description.encode("utf-8", "replace")
    if len(raw) > ERROR_TEXT_BYTES:
        description = raw[:ERROR_TEXT_BYTES].decode("utf-8", "ignore")
    return described(ERROR, [Symbol(condition), description or None, info])


def write_uint(out: BytesWriter, value: i64) -> None:
    """Write a uint."""
    if value < 256:
        out.append(SMALL_UINT)
        out.append(u8(value))
    else:
        out.append(UINT)
        write_i32_be(out, to_i32(value))


def to_i32(value: i64) -> i32:
    """Return the low 32 bits, as they are written."""
    value &= U32
    if value > 0x7FFFFFFF:
        value -= 1 << 32
    return i32(value)


def write_accepted(out: BytesWriter, channel: i64, first: i64, last: i64) -> None:
    """Write the disposition of a receiver: deliveries `first` to `last` are accepted and settled."""
    out.write(b"\x00\x00\x00\x1e\x02\x00")
    write_i16_be(out, wire_short(channel))
    out.write(b"\x00\x53\x15\xc0\x11\x05\x41\x70")
    write_i32_be(out, to_i32(first))
    out.append(UINT)
    write_i32_be(out, to_i32(last))
    out.write(b"\x41\x00\x53\x24\x45")


def write_flow(
    out: BytesWriter,
    channel: i64,
    next_incoming_id: i64,
    incoming_window: i64,
    next_outgoing_id: i64,
    handle: i64,
    delivery_count: i64,
    link_credit: i64,
    available: i64,
    drain: bool,
) -> None:
    """Write a flow of a session, and of a link unless `handle` is -1; `available` -1: left out."""
    fields = BytesWriter()
    write_uint(fields, next_incoming_id)
    write_uint(fields, incoming_window)
    write_uint(fields, next_outgoing_id)
    write_uint(fields, 0x7FFFFFFF)  # outgoing-window
    count: i64 = 4
    if handle >= 0:
        count = 9
        write_uint(fields, handle)
        write_uint(fields, delivery_count)
        write_uint(fields, link_credit)
        if available < 0:
            fields.append(NULL)
        else:
            write_uint(fields, available)
        fields.append(TRUE if drain else FALSE)
    size: i64 = len(fields)
    write_i32_be(out, i32(FRAME_HEAD_BYTES + 6 + size))
    out.append(2)
    out.append(0)
    write_i16_be(out, wire_short(channel))
    out.write(b"\x00\x53\x13\xc0")
    out.append(u8(size + 1))
    out.append(u8(count))
    out.write(fields.getvalue())


def write_binary_head(out: BytesWriter, size: i64) -> None:
    """Write the prefix of a binary of `size` bytes."""
    if size < 256:
        out.append(BINARY_8)
        out.append(u8(size))
    else:
        out.append(BINARY_32)
        write_i32_be(out, i32(size))
