"""Packets of MQTT 3.1, 3.1.1 and 5.0: bytes to values, and values to bytes.

    packet      type << 4 | flags, remaining length as varint, then so many bytes
    varint      7 bits an octet, the lowest first, 80 on all but the last; at most 4, in 5.0 as few as possible
    text        length (2), UTF-8 without NUL and without halves of surrogate pairs
    binary      length (2), bytes
    properties  varint of their bytes, then each: identifier (varint), value      only in 5.0: (*)

     1 CONNECT      name (text), level, flags, keep alive (2), (*), client id, [will (*), topic, payload], [user],
                    [password]
     2 CONNACK      session present, code, (*)
     3 PUBLISH      topic, [packet id, with QoS 1 and 2], (*), payload           flags: DUP 8, QoS 6, RETAIN 1
     4 PUBACK  5 PUBREC  6 PUBREL  7 PUBCOMP      packet id, [reason, [(*)]]
     8 SUBSCRIBE    packet id, (*), then each: filter, options                  flags: 2, as of PUBREL and UNSUBSCRIBE
     9 SUBACK       packet id, (*), a code for each
    10 UNSUBSCRIBE  packet id, (*), filters
    11 UNSUBACK     packet id, (*), in 5.0 a code for each
    12 PINGREQ  13 PINGRESP
    14 DISCONNECT  15 AUTH        [reason, [(*)]]

1. A length is checked against the received bytes before anything is allocated for it.
2. A property is allowed only in certain packets, and only once. Exceptions: user properties and, in PUBLISH,
   subscription identifiers may be repeated.
3. Bytes after the last field make a packet malformed.

Source: docs.oasis-open.org, MQTT 3.1.1 and 5.0, sections 1.5, 2 and 3; MQTT 3.1 of IBM.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from warren.mqtt.reason_codes import BAD_ALIAS, BAD_FILTER, BAD_TOPIC, BAD_VERSION, MALFORMED, PROTOCOL_ERROR, MqttError

CONNECT: Final = 1
CONNACK: Final = 2
PUBLISH: Final = 3
PUBACK: Final = 4
PUBREC: Final = 5
PUBREL: Final = 6
PUBCOMP: Final = 7
SUBSCRIBE: Final = 8
SUBACK: Final = 9
UNSUBSCRIBE: Final = 10
UNSUBACK: Final = 11
PINGREQ: Final = 12
PINGRESP: Final = 13
DISCONNECT: Final = 14
AUTH: Final = 15
WILL: Final = 0  # not a packet: stands for the properties of a will

V3_1: Final = 3
V3_1_1: Final = 4
V5: Final = 5
_NAMES: Final = {V3_1: "MQIsdp", V3_1_1: "MQTT", V5: "MQTT"}
VERSION_NAMES: Final = {V3_1: "3-1-0", V3_1_1: "3-1-1", V5: "5-0"}

REMAINING_MAX: Final = 268_435_455
PACKET_BYTES_MAX: Final = REMAINING_MAX + 5
SUBSCRIPTION_ID_MAX: Final = REMAINING_MAX
LENGTH_MAX: Final = 65_535  # of texts and bytes

# Properties, by their identifiers.
PAYLOAD_FORMAT: Final = 0x01
MESSAGE_EXPIRY: Final = 0x02
CONTENT_TYPE: Final = 0x03
RESPONSE_TOPIC: Final = 0x08
CORRELATION: Final = 0x09
SUBSCRIPTION_ID: Final = 0x0B
SESSION_EXPIRY: Final = 0x11
ASSIGNED_ID: Final = 0x12
SERVER_KEEP_ALIVE: Final = 0x13
AUTH_METHOD: Final = 0x15
AUTH_DATA: Final = 0x16
REQUEST_PROBLEM: Final = 0x17
WILL_DELAY: Final = 0x18
REQUEST_RESPONSE: Final = 0x19
RESPONSE_INFORMATION: Final = 0x1A
SERVER_REFERENCE: Final = 0x1C
REASON_STRING: Final = 0x1F
RECEIVE_MAX: Final = 0x21
ALIAS_MAX: Final = 0x22
ALIAS: Final = 0x23
MAXIMUM_QOS: Final = 0x24
RETAIN_AVAILABLE: Final = 0x25
USER: Final = 0x26
PACKET_MAX: Final = 0x27
WILDCARDS_AVAILABLE: Final = 0x28
IDS_AVAILABLE: Final = 0x29
SHARED_AVAILABLE: Final = 0x2A

_BYTE: Final = 1
_SHORT: Final = 2
_LONG: Final = 4
_VARINT: Final = 5
_TEXT: Final = 6
_BINARY: Final = 7
_PAIR: Final = 8

_ACKS: Final = (PUBACK, PUBREC, PUBREL, PUBCOMP)
_ANSWERS: Final = (CONNACK, *_ACKS, SUBACK, UNSUBACK, DISCONNECT, AUTH)
_MESSAGE: Final = (PUBLISH, WILL)
PROPERTIES: Final[dict[int, tuple[int, tuple[int, ...]]]] = {
    PAYLOAD_FORMAT: (_BYTE, _MESSAGE),
    MESSAGE_EXPIRY: (_LONG, _MESSAGE),
    CONTENT_TYPE: (_TEXT, _MESSAGE),
    RESPONSE_TOPIC: (_TEXT, _MESSAGE),
    CORRELATION: (_BINARY, _MESSAGE),
    SUBSCRIPTION_ID: (_VARINT, (PUBLISH, SUBSCRIBE)),
    SESSION_EXPIRY: (_LONG, (CONNECT, CONNACK, DISCONNECT)),
    ASSIGNED_ID: (_TEXT, (CONNACK,)),
    SERVER_KEEP_ALIVE: (_SHORT, (CONNACK,)),
    AUTH_METHOD: (_TEXT, (CONNECT, CONNACK, AUTH)),
    AUTH_DATA: (_BINARY, (CONNECT, CONNACK, AUTH)),
    REQUEST_PROBLEM: (_BYTE, (CONNECT,)),
    WILL_DELAY: (_LONG, (WILL,)),
    REQUEST_RESPONSE: (_BYTE, (CONNECT,)),
    RESPONSE_INFORMATION: (_TEXT, (CONNACK,)),
    SERVER_REFERENCE: (_TEXT, (CONNACK, DISCONNECT)),
    REASON_STRING: (_TEXT, _ANSWERS),
    RECEIVE_MAX: (_SHORT, (CONNECT, CONNACK)),
    ALIAS_MAX: (_SHORT, (CONNECT, CONNACK)),
    ALIAS: (_SHORT, (PUBLISH,)),
    MAXIMUM_QOS: (_BYTE, (CONNACK,)),
    RETAIN_AVAILABLE: (_BYTE, (CONNACK,)),
    USER: (_PAIR, (CONNECT, PUBLISH, WILL, SUBSCRIBE, UNSUBSCRIBE, *_ANSWERS)),
    PACKET_MAX: (_LONG, (CONNECT, CONNACK)),
    WILDCARDS_AVAILABLE: (_BYTE, (CONNACK,)),
    IDS_AVAILABLE: (_BYTE, (CONNACK,)),
    SHARED_AVAILABLE: (_BYTE, (CONNACK,)),
}
_NOT_ZERO: Final = frozenset((SUBSCRIPTION_ID, RECEIVE_MAX, PACKET_MAX, ALIAS))
_TRUTHS: Final = frozenset(
    (
        PAYLOAD_FORMAT,
        REQUEST_PROBLEM,
        REQUEST_RESPONSE,
        MAXIMUM_QOS,
        RETAIN_AVAILABLE,
        WILDCARDS_AVAILABLE,
        IDS_AVAILABLE,
        SHARED_AVAILABLE,
    )
)


class Properties:
    """The properties of a packet. `values` has those that may appear only once, by their identifiers."""

    def __init__(self) -> None:
        self.values: dict[int, int | str | bytes] = {}
        self.users: list[tuple[str, str]] = []
        self.ids: list[int] = []

    def number(self, identifier: int, default: int) -> int:
        """Return a property that is a number."""
        value = self.values.get(identifier, default)
        assert isinstance(value, int)
        return value

    def maybe_text(self, identifier: int) -> str | None:
        """Return a property that is a text; None without."""
        value = self.values.get(identifier)
        return value if isinstance(value, str) else None

    def maybe_binary(self, identifier: int) -> bytes | None:
        """Return a property that is bytes; None without."""
        value = self.values.get(identifier)
        return value if isinstance(value, bytes) else None

    def encode(self) -> bytes:
        """Return them with the length in front."""
        out: list[bytes] = []
        for identifier, value in self.values.items():
            out.append(bytes([identifier]) + _value(PROPERTIES[identifier][0], value))
        out.extend(bytes([SUBSCRIPTION_ID]) + varint(each) for each in self.ids)
        out.extend(bytes([USER]) + text(name) + text(value) for name, value in self.users)
        encoded = b"".join(out)
        return varint(len(encoded)) + encoded


def _value(kind: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return varint(value) if kind == _VARINT else value.to_bytes(kind, "big")
    return text(value) if isinstance(value, str) else binary(value)


class Will:
    """The message to publish when the client goes without DISCONNECT."""

    def __init__(self, topic: str, payload: bytes, qos: int, retain: bool, properties: Properties) -> None:
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.properties = properties


class Connect:
    """CONNECT."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.clean = False
        self.keep_alive_s = 0
        self.client_id = ""
        self.will: Will | None = None
        self.user: str | None = None
        self.password: bytes | None = None
        self.properties = Properties()


class Wanted:
    """One filter of SUBSCRIBE with its options."""

    def __init__(self, filter_: str, options: int) -> None:
        self.filter = filter_
        self.qos = options & 3
        self.no_local = options & 4 != 0
        self.as_published = options & 8 != 0
        self.handling = options >> 4 & 3  # of retained messages: 0 send, 1 send if the subscription is new, 2 do not


class Subscribe:
    """SUBSCRIBE and UNSUBSCRIBE; the latter has no options."""

    def __init__(self, packet_id: int, wanted: list[Wanted], properties: Properties) -> None:
        self.packet_id = packet_id
        self.wanted = wanted
        self.properties = properties


class Answer:
    """PUBACK, PUBREC, PUBREL, PUBCOMP, and without a packet id DISCONNECT and AUTH."""

    def __init__(self, packet_id: int, reason: int, properties: Properties) -> None:
        self.packet_id = packet_id
        self.reason = reason
        self.properties = properties


# --- in -------------------------------------------------------------------------------------------------------------


def malformed(what: str) -> MqttError:
    return MqttError(MALFORMED, what)


def overlong() -> MqttError:
    return malformed("a number with redundant octets")


class Reader:
    """Walks over the bytes of one packet, ``data[pos:end]``.

    Each method raises `MqttError` when the value is missing or not valid.
    """

    def __init__(self, data: bytes, pos: i64, end: i64) -> None:
        self.data = data
        self.pos: i64 = pos
        self.end: i64 = end

    def _take(self, size: i64) -> i64:
        pos = self.pos
        if size > self.end - pos:
            raise malformed("a packet that is shorter than its content")
        self.pos = pos + size
        return pos

    def byte(self) -> i64:
        return i64(self.data[self._take(1)])

    def short(self) -> i64:
        pos = self._take(2)
        return i64(self.data[pos]) << 8 | i64(self.data[pos + 1])

    def long(self) -> i64:
        return self.short() << 16 | self.short()

    def varint(self) -> i64:
        value: i64 = 0
        shift: i64 = 0
        while True:
            byte: i64 = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if byte == 0 and shift > 0:
                    raise overlong()
                return value
            shift += 7
            if shift > 21:
                raise malformed("a number of more than four octets")

    def binary(self) -> bytes:
        size: i64 = self.short()
        pos = self._take(size)
        return self.data[pos : pos + size]

    def text(self) -> str:
        return decode_text(self.binary())

    def packet_id(self) -> int:
        packet_id = int(self.short())
        if packet_id == 0:
            raise malformed("a packet id of 0")
        return packet_id

    def properties(self, packet: int) -> Properties:
        """Return the properties of `packet`; see (2)."""
        size: i64 = self.varint()
        found = Properties()
        if size == 0:
            return found
        if size > self.end - self.pos:
            raise malformed("properties that are longer than their packet")
        whole = self.end
        self.end = self.pos + size
        while self.pos < self.end:
            self._property(packet, found)
        self.end = whole
        return found

    def _property(self, packet: int, found: Properties) -> None:
        identifier = int(self.varint())
        known = PROPERTIES.get(identifier)
        if known is None or packet not in known[1]:
            raise malformed(f"the property {identifier} does not belong here")
        kind = known[0]
        if kind == _PAIR:
            name = self.text()
            found.users.append((name, self.text()))
            return
        value: int | str | bytes
        if kind == _BYTE:
            value = int(self.byte())
        elif kind == _SHORT:
            value = int(self.short())
        elif kind == _LONG:
            value = int(self.long())
        elif kind == _VARINT:
            value = int(self.varint())
        elif kind == _TEXT:
            value = self.text()
        else:
            value = self.binary()
        wrong_zero = identifier in _NOT_ZERO and value == 0
        if wrong_zero or (identifier in _TRUTHS and value not in (0, 1)):
            reason = BAD_ALIAS if identifier == ALIAS else PROTOCOL_ERROR
            raise MqttError(reason, f"the property {identifier} may not be {value!r}")
        if identifier == SUBSCRIPTION_ID and isinstance(value, int):
            if packet == SUBSCRIBE and found.ids:
                raise MqttError(PROTOCOL_ERROR, "more than one subscription identifier")
            found.ids.append(value)
            return
        if identifier in found.values:
            raise MqttError(PROTOCOL_ERROR, f"the property {identifier} appears twice")
        found.values[identifier] = value

    def done(self) -> None:
        """Make sure that nothing is left."""
        if self.pos != self.end:
            raise malformed("a packet with bytes after its content")


def decode_text(raw: bytes) -> str:
    """Return a text that came from a peer."""
    try:
        found = raw.decode()
    except UnicodeDecodeError:
        raise malformed("a text that is not UTF-8") from None
    if "\0" in found:
        raise malformed("a text with a NUL")
    return found


def decode_connect(data: bytes, pos: i64, end: i64) -> Connect:
    """Take CONNECT apart.

    Raises:
        MqttError: it is malformed, or of a version that is not supported.
    """
    reader = Reader(data, pos, end)
    name = reader.binary()
    version = int(reader.byte())
    if version not in _NAMES or name != _NAMES[version].encode():
        raise MqttError(BAD_VERSION, "supported versions are 3.1, 3.1.1 and 5.0")
    flags: i64 = reader.byte()
    found = Connect(version)
    will_qos = int(flags >> 3 & 3)
    has_will = flags & 4 != 0
    if flags & 1 or will_qos == 3 or (not has_will and flags & 0x38):
        raise malformed("flags of CONNECT that contradict each other")
    if version != V5 and flags & 0xC0 == 0x40:
        raise malformed("a password without a user")
    found.clean = flags & 2 != 0
    found.keep_alive_s = int(reader.short())
    if version == V5:
        found.properties = reader.properties(CONNECT)
    found.client_id = reader.text()
    if has_will:
        properties = reader.properties(WILL) if version == V5 else Properties()
        topic = reader.text()
        check_topic(topic)
        payload = reader.binary()
        found.will = Will(topic, payload, will_qos, flags & 0x20 != 0, properties)
    if flags & 0x80:
        found.user = reader.text()
    if flags & 0x40:
        found.password = reader.binary()
    reader.done()
    return found


def decode_subscribe(data: bytes, pos: i64, end: i64, version: int) -> Subscribe:
    """Take SUBSCRIBE apart.

    Raises:
        MqttError: it is malformed.
    """
    reader = Reader(data, pos, end)
    packet_id = reader.packet_id()
    properties = reader.properties(SUBSCRIBE) if version == V5 else Properties()
    wanted: list[Wanted] = []
    allowed = 0x3F if version == V5 else 3
    while reader.pos < end:
        filter_ = reader.text()
        options = int(reader.byte())
        if options & ~allowed or options & 3 == 3 or options & 0x30 == 0x30:
            raise malformed("options of a subscription that do not exist")
        if options & 4 and filter_.startswith("$share/"):
            raise MqttError(PROTOCOL_ERROR, "a shared subscription with No Local")
        wanted.append(Wanted(filter_, options))
    if not wanted:
        raise MqttError(PROTOCOL_ERROR, "SUBSCRIBE without a filter")
    return Subscribe(packet_id, wanted, properties)


def decode_unsubscribe(data: bytes, pos: i64, end: i64, version: int) -> Subscribe:
    """Take UNSUBSCRIBE apart.

    Raises:
        MqttError: it is malformed.
    """
    reader = Reader(data, pos, end)
    packet_id = reader.packet_id()
    properties = reader.properties(UNSUBSCRIBE) if version == V5 else Properties()
    wanted: list[Wanted] = []
    while reader.pos < end:
        wanted.append(Wanted(reader.text(), 0))
    if not wanted:
        raise MqttError(PROTOCOL_ERROR, "UNSUBSCRIBE without a filter")
    return Subscribe(packet_id, wanted, properties)


def decode_answer(packet: int, data: bytes, pos: i64, end: i64, version: int) -> Answer:
    """Take PUBACK, PUBREC, PUBREL, PUBCOMP, DISCONNECT or AUTH apart.

    Raises:
        MqttError: it is malformed.
    """
    reader = Reader(data, pos, end)
    packet_id = reader.packet_id() if packet in _ACKS else 0
    reason = 0
    properties = Properties()
    if version == V5 and reader.pos < end:
        reason = int(reader.byte())
        if reader.pos < end:
            properties = reader.properties(packet)
    reader.done()
    return Answer(packet_id, reason, properties)


def decode_topic(topic: bytes) -> str:
    """Return a topic to publish to.

    Raises:
        MqttError: it is not valid UTF-8, or `check_topic` refuses it.
    """
    found = decode_text(topic)
    check_topic(found)
    return found


def check_topic(topic: str) -> None:
    """Make sure that messages can be published to `topic`.

    Raises:
        MqttError: it has wildcards, or is empty.
    """
    if topic == "" or "+" in topic or "#" in topic:
        raise MqttError(BAD_TOPIC, f"{topic[:64]!a} is not a topic: it is empty, or has a wildcard")


def check_filter(filter_: str) -> None:
    """Make sure that `filter_` is a valid filter.

    Raises:
        MqttError: it is empty, or a wildcard is not a level of its own, or # is not the last.
    """
    levels = filter_.split("/")
    for at, level in enumerate(levels):
        if level == "+" or (level == "#" and at == len(levels) - 1):
            continue
        if "+" in level or "#" in level:
            raise MqttError(BAD_FILTER, f"{filter_[:64]!a} is not a filter: a wildcard is a whole level, # the last")
    if filter_ == "":
        raise MqttError(BAD_FILTER, "an empty filter")


# --- out ------------------------------------------------------------------------------------------------------------


def varint(value: int) -> bytes:
    """Return a number of at most `REMAINING_MAX`."""
    out = bytearray()
    while value > 127:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def fits(value: str | bytes) -> bool:
    """Tell whether a text, or bytes, can be sent whole."""
    size = len(value)
    if size * 3 > LENGTH_MAX and isinstance(value, str):
        size = len(value.encode("utf-8", "replace"))
    return size <= LENGTH_MAX


def text(value: str) -> bytes:
    """Return an encoded text. Characters that cannot be sent are left out, and a text that is too long is cut off."""
    encoded = value.replace("\0", " ").encode("utf-8", "replace")
    if len(encoded) > LENGTH_MAX:
        encoded = encoded[:LENGTH_MAX].decode("utf-8", "ignore").encode()
    return binary(encoded)


def binary(value: bytes) -> bytes:
    """Return bytes with their length."""
    return len(value).to_bytes(2, "big") + value


def packet(kind: int, flags: int, body: bytes) -> bytes:
    """Return a packet."""
    return bytes([kind << 4 | flags]) + varint(len(body)) + body


def connack(version: int, present: bool, code: int, properties: Properties) -> bytes:
    """Return CONNACK."""
    body = bytes([1 if present else 0, code])
    return packet(CONNACK, 0, body + properties.encode() if version == V5 else body)


def acknowledgement(kind: int, packet_id: int, version: int, reason: int = 0, explanation: str = "") -> bytes:
    """Return PUBACK, PUBREC, PUBREL or PUBCOMP."""
    body = packet_id.to_bytes(2, "big")
    if version == V5 and reason:
        body += bytes([reason])
        if explanation:
            properties = Properties()
            properties.values[REASON_STRING] = explanation
            body += properties.encode()
    return packet(kind, 2 if kind == PUBREL else 0, body)


def suback(packet_id: int, codes: list[int], version: int) -> bytes:
    """Return SUBACK."""
    return packet(SUBACK, 0, packet_id.to_bytes(2, "big") + (b"\0" if version == V5 else b"") + bytes(codes))


def unsuback(packet_id: int, codes: list[int], version: int) -> bytes:
    """Return UNSUBACK."""
    return packet(UNSUBACK, 0, packet_id.to_bytes(2, "big") + (b"\0" + bytes(codes) if version == V5 else b""))


def auth(reason: int, method: str, data: bytes) -> bytes:
    """Return AUTH."""
    properties = Properties()
    properties.values[AUTH_METHOD] = method
    if data:
        properties.values[AUTH_DATA] = data
    return packet(AUTH, 0, bytes([reason]) + properties.encode())


def disconnect(reason: int, explanation: str) -> bytes:
    """Return DISCONNECT, which only 5.0 lets a server send."""
    properties = Properties()
    if explanation:
        properties.values[REASON_STRING] = explanation[:1024]
    return packet(DISCONNECT, 0, bytes([reason]) + properties.encode())
