"""A client of AMQP 1.0's view of a correct broker: every frame is whole and typed, and fits to those before it.

1. Protocol headers, SASL, `open` and everything else come in that order; after `close`, or a login that is refused,
   nothing follows.
2. A frame is not larger than its peer takes, and its fields are of the types that the specification gives them; those
   that are mandatory are there.
3. A session, a link and a delivery are mentioned only between their beginning and their end, and begun once.
4. Deliveries of a session are numbered without gaps; the transfers of one are not mixed with others of the session;
   they carry whole sections, in order.
5. An error has a condition of the specification, and not amqp:internal-error, which would be our fault.
"""

from __future__ import annotations

from typing import Any, Final, cast

from warren.amqp10 import error_conditions
from warren.amqp10.performatives import (
    ACCEPTED,
    AMQP_HEADER,
    ATTACH,
    BEGIN,
    CLOSE,
    DETACH,
    DISPOSITION,
    END,
    ERROR,
    FLOW,
    OPEN,
    REJECTED,
    RELEASED,
    SASL_HEADER,
    SASL_MECHANISMS,
    SASL_OUTCOME,
    SOURCE,
    TARGET,
    TRANSFER,
    code_of,
)
from warren.amqp10.values import Array, Described, Reader, Symbol, UByte, UInt, ULong, UShort, value_end

ANY: Final = object
# The types of the fields of a broker's performatives; the number is that of mandatory ones, which come first.
FIELDS: Final[dict[int, tuple[int, list[Any]]]] = {
    SASL_MECHANISMS: (1, [(Symbol, Array)]),
    SASL_OUTCOME: (1, [UByte, bytes]),
    OPEN: (1, [str, str, UInt, UShort, UInt, (Symbol, Array), (Symbol, Array), (Symbol, Array), (Symbol, Array), dict]),
    BEGIN: (4, [UShort, UInt, UInt, UInt, UInt, (Symbol, Array), (Symbol, Array), dict]),
    ATTACH: (
        3,
        [str, UInt, bool, UByte, UByte, ANY, ANY, dict, bool, UInt, ULong, (Symbol, Array), (Symbol, Array), dict],
    ),
    FLOW: (4, [UInt, UInt, UInt, UInt, UInt, UInt, UInt, UInt, bool, bool, dict]),
    TRANSFER: (3, [UInt, UInt, bytes, UInt, bool, bool, UByte, Described, bool, bool, bool]),
    DISPOSITION: (2, [bool, UInt, UInt, bool, Described, bool]),
    DETACH: (1, [UInt, bool, Described]),
    END: (0, [Described]),
    CLOSE: (0, [Described]),
}
CONDITIONS: Final = {
    value
    for name, value in vars(error_conditions).items()
    if name.isupper() and isinstance(value, str) and value.startswith("amqp:")
} | {
    "amqp:unauthorized-access",
    "amqp:resource-locked",
    "amqp:precondition-failed",
    "amqp:connection:forced",
}

# The input that is expected next.
AWAITS_HEADER: Final = 0
AWAITS_MECHANISMS: Final = 1
AWAITS_OUTCOME: Final = 2
AWAITS_SECOND_HEADER: Final = 3
AWAITS_OPEN: Final = 4
RUNNING: Final = 5
SILENT: Final = 6


class ServerSession:
    """A session as its client sees it. `links`: their roles by handle, True where the broker receives."""

    def __init__(self) -> None:
        self.links: dict[int, bool] = {}
        self.next_delivery_id = 0
        self.transfers = 0
        self.counts: dict[int, int] = {}  # deliveries by handle
        self.unsettled: list[int] = []  # ids of deliveries that it might say something of
        self.cut: tuple[int, bytes] | None = None  # handle and payload of a delivery that continues


class Amqp10Transcript:
    """Reads what one client receives and raises AssertionError at the first thing that no broker may send."""

    def __init__(self) -> None:
        self.frame_max_bytes = 512
        self.stage = AWAITS_HEADER
        self.sessions: dict[int, ServerSession] = {}
        self.ended_sessions: set[int] = set()  # by the broker: an end is due
        self.detached: set[tuple[int, int]] = set()  # channel and handle, by the broker: a detach is due
        self.close_condition: str | None = None  # empty: without an error
        self.seen: dict[str, int] = {}  # how often what was received

    def read(self, data: bytes) -> None:
        """Check `data`, which ends where a frame ends."""
        pos = 0
        while pos < len(data):
            assert self.stage != SILENT, f"something behind the end: {data[pos : pos + 100]!r}"
            if self.stage in (AWAITS_HEADER, AWAITS_SECOND_HEADER):
                self._read_header(data[pos : pos + 8])
                pos += 8
                continue
            size = int.from_bytes(data[pos : pos + 4], "big")
            assert 8 <= size <= len(data) - pos, f"no whole frame: {data[pos : pos + 100]!r}"
            assert size <= self.frame_max_bytes, (
                f"{size} bytes for who takes {self.frame_max_bytes}: {data[pos : pos + 100]!r}"
            )
            assert data[pos + 4] == 2, "an extended header"
            self._read_frame(data[pos : pos + size])
            pos += size

    def _saw(self, what: str) -> None:
        self.seen[what] = self.seen.get(what, 0) + 1

    def _read_header(self, header: bytes) -> None:
        if self.stage == AWAITS_HEADER:
            assert header == SASL_HEADER, header
            self.stage = AWAITS_MECHANISMS
        else:
            assert header == AMQP_HEADER, header
            self.stage = AWAITS_OPEN

    def _read_frame(self, data: bytes) -> None:
        is_sasl = self.stage in (AWAITS_MECHANISMS, AWAITS_OUTCOME)
        assert data[5] == int(is_sasl), f"a frame of the wrong type: {data!r}"
        channel = int.from_bytes(data[6:8], "big")
        if len(data) == 8:
            assert self.stage == RUNNING and channel == 0, "an empty frame where nobody waits for one"
            self._saw("heartbeat")
            return
        reader = Reader(data, 8, len(data))
        value = reader.value()
        assert isinstance(value, Described) and isinstance(value.value, list), value
        assert isinstance(value.descriptor, ULong), value
        code = int(value.descriptor)
        fields = _checked(code, value.value)
        assert code == TRANSFER or reader.pos == len(data), f"bytes behind a performative: {data!r}"
        self._saw(f"{code:#x}")
        if self.stage != RUNNING:
            self._read_early(code, fields)
        elif code == CLOSE:
            self._closed(fields)
        elif code == BEGIN:
            assert channel not in self.sessions, f"a session begun twice: {channel}"
            assert fields[0] == channel
            self.sessions[channel] = ServerSession()
        else:
            assert code not in (OPEN, SASL_MECHANISMS, SASL_OUTCOME), f"{code:#x} at this time"
            assert channel in self.sessions, f"{code:#x} on channel {channel}, which has no session"
            self._read_of_session(channel, code, fields, data[reader.pos :])

    def _read_early(self, code: int, fields: list[Any]) -> None:
        if self.stage == AWAITS_MECHANISMS:
            assert code == SASL_MECHANISMS, code
            self.stage = AWAITS_OUTCOME
        elif self.stage == AWAITS_OUTCOME:
            assert code == SASL_OUTCOME, code
            assert fields[0] in (0, 1), fields
            self.stage = SILENT if fields[0] else AWAITS_SECOND_HEADER
        else:
            assert code == OPEN, code
            self.stage = RUNNING

    def _closed(self, fields: list[Any]) -> None:
        self.stage = SILENT
        self.close_condition = _condition(fields[0]) if fields and fields[0] is not None else ""

    def _read_of_session(self, channel: int, code: int, fields: list[Any], payload: bytes) -> None:
        session = self.sessions[channel]
        if code == END:
            del self.sessions[channel]
            self.detached = {each for each in self.detached if each[0] != channel}
            if fields and fields[0] is not None:
                _condition(fields[0])
                self._saw("end with an error")
                self.ended_sessions.add(channel)
        elif code == ATTACH:
            assert fields[1] not in session.links, f"attached twice: {fields}"
            _check_terminus(fields, 5, SOURCE)
            _check_terminus(fields, 6, TARGET)
            session.links[fields[1]] = fields[2]
            session.counts[fields[1]] = 0
        elif code == DETACH:
            assert session.links.pop(fields[0], None) is not None, f"a detach of no link: {fields}"
            if session.cut is not None and session.cut[0] == fields[0]:
                session.cut = None
            if len(fields) > 2 and fields[2] is not None:
                _condition(fields[2])
                self._saw("detach with an error")
                self.detached.add((channel, fields[0]))
        elif code == FLOW:
            if len(fields) > 4 and fields[4] is not None:
                assert fields[4] in session.links, f"a flow of no link: {fields}"
                assert len(fields) > 6 and fields[5] is not None and fields[6] is not None, fields
        elif code == DISPOSITION:
            _check_disposition(fields)
            if not fields[0]:
                self._saw("answer to a disposition")
        else:
            assert code == TRANSFER, code
            self._read_transfer(session, fields, payload)

    def _read_transfer(self, session: ServerSession, fields: list[Any], payload: bytes) -> None:
        handle, delivery_id = fields[0], fields[1]
        assert session.links.get(handle) is False, (
            f"a transfer on no link, or one on which the broker receives: {fields}"
        )
        session.transfers += 1
        if session.cut is None:
            assert delivery_id == session.next_delivery_id, f"{delivery_id}, not {session.next_delivery_id}"
            session.next_delivery_id += 1
            session.counts[handle] += 1
            if not (len(fields) > 4 and fields[4]):
                session.unsettled.append(delivery_id)
        else:
            assert handle == session.cut[0], "transfers of two deliveries in one another"
            assert delivery_id in (None, session.next_delivery_id - 1)
            payload = session.cut[1] + payload
            self._saw("delivery in parts")
        if len(fields) > 5 and fields[5]:
            session.cut = handle, payload
            return
        session.cut = None
        _check_message(payload)


def _checked(code: int, fields: list[Any]) -> list[Any]:
    """Check the types of the fields, and return them."""
    assert code in FIELDS, f"a broker does not send {code:#x}"
    needed, kinds = FIELDS[code]
    assert needed <= len(fields) <= len(kinds), f"{code:#x} with {len(fields)} fields: {fields}"
    for at, (value, kind) in enumerate(zip(fields, kinds, strict=False)):
        if value is None:
            assert at >= needed or (code == FLOW and at == 0), f"field {at} of {code:#x} is mandatory: {fields}"
        elif kind is str:
            assert type(value) is str, f"field {at} of {code:#x}: {fields}"
        else:
            assert isinstance(value, kind), f"field {at} of {code:#x}: {fields}"
    return fields


def _condition(error: Any) -> str:
    assert isinstance(error, Described) and error.descriptor == ERROR, error
    fields = cast("list[Any]", error.value)
    assert isinstance(fields[0], Symbol), fields
    assert fields[0] in CONDITIONS, f"not a condition: {fields}"
    assert len(fields) < 2 or fields[1] is None or type(fields[1]) is str, fields
    return str(fields[0])


def _check_terminus(fields: list[Any], at: int, code: int) -> None:
    # The client's own terminus is returned unchanged; our terminus is of the right kind.
    ours = 5 if fields[2] is False else 6
    if at == ours and len(fields) > at and fields[at] is not None:
        assert isinstance(fields[at], Described) and fields[at].descriptor == code, fields


def _check_disposition(fields: list[Any]) -> None:
    assert len(fields) > 3 and fields[3] is True, f"not settled: {fields}"
    assert fields[2] is None or (fields[2] - fields[1]) & 0xFFFFFFFF < 1 << 31, f"a range that is none: {fields}"
    if fields[0]:
        state = fields[4]
        assert isinstance(state, Described) and state.descriptor in (ACCEPTED, REJECTED, RELEASED), state
        assert isinstance(state.value, list)
        if state.value:
            _condition(state.value[0])


def _check_message(payload: bytes) -> None:
    """Check that `payload` is whole sections in their order, and what is decodable of them.

    Properties, application properties, body and footer come as they were published, in what order among them that was.
    """
    assert payload, "a message of nothing"
    pos, last = 0, 0
    while pos < len(payload):
        assert payload[pos] == 0, f"no section: {payload[pos : pos + 100]!r}"
        reader = Reader(payload, pos + 1, len(payload))
        code = code_of(reader.value())  # by its name in what is passed on as it was published
        assert 0x70 <= code <= 0x78, f"no section: {code}"
        place = min(code, 0x73) if code < 0x75 else min(code, 0x75) if code < 0x78 else code
        assert place > last or (place in (0x73, 0x75) and place == last), f"sections out of order: {payload[:200]!r}"
        if code < 0x75:
            found = reader.value()
            assert isinstance(found, list if code in (0x70, 0x73) else dict), found
            pos = reader.pos
        else:
            pos = int(value_end(payload, reader.pos, len(payload)))
        last = place
