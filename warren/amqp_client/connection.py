"""One connection of a client, without a socket: received bytes come to `receive`, `take_output` has bytes to send.

    GREETED -- start --> LOGGING_IN -- tune --> OPENING -- open-ok --> OPEN

A driver owns the socket and time. It is a subclass: it reads, calls `receive`, sends what `take_output` returns, and
overrides `notify` and `holds` if tasks wait or the memory of connections is bounded together.

1. `receive` raises a `BrokerError` for everything that ends the connection; the driver passes it to `fail`. Every later
   call on the connection or its channels raises that.
2. Frames of at most the agreed size are accepted. A broker whose frames are smaller than `FRAME_MIN_BYTES` is refused:
   the cost of a frame would be that of a byte.
3. A peer may have `ANSWERS_MAX` answers unsent.
4. Everything queued for sending before a request goes out before it: acks are never overtaken.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

from warren.amqp import methods
from warren.amqp.codec import NAME_MAX_BYTES, decode_method, method_frame
from warren.amqp.errors import REPLY_SUCCESS, AmqpError
from warren.amqp.field_table import Table
from warren.amqp_client import frames
from warren.amqp_client.channel import ClientChannel, method_name
from warren.amqp_client.client_errors import BrokerError, PeerClosed, Violation

ANSWERS_MAX: Final = 1000  # to unsolicited methods of the peer
SEND_BYTES: Final = 1 << 20  # are handed to the socket at a time
FRAME_MAX_BYTES: Final = 131072
SHOWN_CHARACTERS: Final = 200  # of a value that a peer offers, which may be a frame full of it


@dataclass(frozen=True)
class Login:
    """A user, a vhost, and the limits that both sides agree on.

    ``heartbeat_s`` is ours, whatever the broker proposes. ``frame_max_bytes``, ``channel_max``: the smaller number of
    both ends applies; 0 takes the broker's.
    """

    user: str = "guest"
    password: str = field(default="guest", repr=False)
    vhost: str = "/"
    mechanisms: tuple[str, ...] = ("PLAIN",)
    properties: Table = field(default_factory=dict)
    heartbeat_s: int = 0
    frame_max_bytes: int = FRAME_MAX_BYTES
    channel_max: int = 0

    def __post_init__(self) -> None:
        """Raises ValueError for a vhost whose name is too long."""
        if len(self.vhost.encode()) > NAME_MAX_BYTES:
            raise ValueError(f"a vhost of {len(self.vhost.encode())} bytes: names hold {NAME_MAX_BYTES}")


class State(enum.Enum):
    """The next method that the connection waits for, or `OPEN`."""

    GREETED = methods.ConnectionStart
    LOGGING_IN = methods.ConnectionTune
    OPENING = methods.ConnectionOpenOk
    OPEN = None


OPEN: Final = State.OPEN


class ClientConnection:
    """A connection from the protocol header on. `where` names the peer in errors."""

    def __init__(self, where: str, login: Login, max_message_bytes: int) -> None:
        self.where = where
        self.login = login
        self.max_message_bytes = max_message_bytes
        self.state = State.GREETED
        self.frame_max_bytes = FRAME_MAX_BYTES  # 0: any
        self.server_properties: Table = {}
        self.blocked_reason: str | None = None
        self.failure: BrokerError | None = None
        self.is_closing = False
        self.inbox_bytes = 0  # of deliveries that were not taken
        self.partial_bytes = 0  # of contents that are not complete
        self.unsent_bytes = 0
        self._channels: dict[int, ClientChannel] = {}
        self._carry = b""
        self._out: deque[bytes | memoryview] = deque()
        self._answers = 0  # that are unsent

    # --- for drivers to override --------------------------------------------------------------------------------

    def notify(self) -> None:
        """Note that the connection has failed, or that `blocked_reason` has changed."""

    def holds(self, count: int) -> None:
        """Count bytes of incomplete contents, which have come, or which are complete or dropped (negative)."""
        self.partial_bytes += count

    def freed(self, size: int) -> None:
        """Note that `size` bytes of deliveries were taken."""
        self.inbox_bytes -= size

    def knows(self, capability: str) -> bool:
        """Tell whether the broker has announced a capability."""
        announced = self.server_properties.get("capabilities")
        return isinstance(announced, dict) and announced.get(capability) is True

    # --- failing ------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise the error that ended the connection."""
        if self.failure is not None:
            raise self.failure.fresh()

    def fail(self, error: BrokerError) -> None:
        """End the connection and its channels; the first error is kept."""
        if self.failure is None:
            self.failure = error.fresh()
        for channel in list(self._channels.values()):
            channel.drop_content()
            channel.fail(self.failure)
        self.notify()

    def fail_with(self, what: str) -> BrokerError:
        """End the connection for a reason of ours, and return the error with that reason."""
        self.fail(BrokerError(f"{self.where} {what}"))
        assert self.failure is not None
        return self.failure.fresh()

    def eof(self) -> BrokerError:
        """Return the meaning of the end of the peer's bytes."""
        if self.state is State.LOGGING_IN:
            return BrokerError(f"{self.where} refused the login")
        return BrokerError(f"{self.where} closed the connection without giving a reason")

    # --- sending ------------------------------------------------------------------------------------------------

    def send(self, data: bytes | memoryview) -> None:
        """Queue bytes for sending."""
        self._out.append(data)
        self.unsent_bytes += len(data)

    def send_answer(self, data: bytes) -> None:
        """Queue an answer to an unsolicited method of the peer."""
        self._answers += 1
        if self._answers > ANSWERS_MAX:
            raise Violation(f"asks for more than {ANSWERS_MAX} answers and does not take them")
        self.send(data)

    def take_output(self) -> bytes | memoryview:
        """Take about `SEND_BYTES` of the bytes that wait to be sent, ``b""`` if nothing waits."""
        out = self._out
        if not out:
            return b""
        taken = [out.popleft()]
        size = len(taken[0])
        while out and size + len(out[0]) <= SEND_BYTES:
            size += len(out[0])
            taken.append(out.popleft())
        self.unsent_bytes -= size
        return taken[0] if len(taken) == 1 else b"".join(taken)

    def sent(self) -> None:
        """Note that the socket has taken the last output."""
        if not self._out:
            self._answers = 0

    def greet(self) -> None:
        """Queue the protocol header."""
        self.send(methods.PROTOCOL_HEADER)

    def say_goodbye(self) -> None:
        """Queue connection.close."""
        self.send(method_frame(0, methods.ConnectionClose(REPLY_SUCCESS, "done", 0, 0)))

    # --- channels -----------------------------------------------------------------------------------------------

    def add_channel(self, channel: ClientChannel) -> None:
        """Hand the frames of its number to `channel`."""
        self._channels[channel.number] = channel

    def drop(self, channel: ClientChannel) -> None:
        """Forget a channel that was closed; its deliveries that were not taken no longer count."""
        self._channels.pop(channel.number, None)
        channel.drop_content()
        self.freed(channel.delivery_bytes)
        channel.delivery_bytes = 0

    # --- receiving ----------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> int:
        """Handle received bytes, and return how many whole frames there were.

        Raises:
            BrokerError: the peer has closed the connection, breaks the protocol, or refuses the login.
        """
        try:
            return self._receive(self._carry + data if self._carry else data)
        except Violation as error:
            raise BrokerError(f"{self.where} {error}") from None
        except AmqpError as error:
            raise BrokerError(f"{self.where} sent something malformed: {error.explanation}") from None

    def _receive(self, data: bytes) -> int:
        pos = count = 0
        end = len(data)
        head = frames.HEAD.unpack_from
        while end - pos >= 7:
            if self.state is not OPEN:
                self._check_handshake(data, pos)
            kind, number, size = head(data, pos)
            start = pos + 7
            stop = start + size
            if size > self.frame_max_bytes - 8 and self.frame_max_bytes:
                raise Violation(f"sent a frame of {size} bytes; {self.frame_max_bytes} were agreed on")
            if stop >= end:
                break
            if data[stop] != 0xCE:
                raise Violation("sent a frame without its end octet")
            self._frame(kind, number, data, start, stop)
            pos = stop + 1
            count += 1
        self._carry = data[pos:] if pos else data
        return count

    def _check_handshake(self, data: bytes, pos: int) -> None:
        """Raise a `Violation` if the bytes at `pos` do not begin a frame of the handshake."""
        if data.startswith(b"HTTP/", pos):
            raise Violation("does not speak AMQP 0-9-1: it is a port of HTTP; AMQP clients connect to another one")
        if data.startswith(b"AMQP", pos):
            raise Violation(f"does not speak AMQP 0-9-1: it wants {data[pos + 4 : pos + 8]!r}")
        kind, number, size = frames.HEAD.unpack_from(data, pos)
        if size > FRAME_MAX_BYTES or number or kind not in (methods.FRAME_METHOD, methods.FRAME_HEARTBEAT):
            raise Violation("does not speak AMQP 0-9-1")

    def _frame(self, kind: int, number: int, data: bytes, start: int, stop: int) -> None:
        if kind == methods.FRAME_HEARTBEAT:
            if number or stop != start:
                raise Violation("sent a heartbeat on a channel")
            return
        if not number:
            if kind != methods.FRAME_METHOD:
                raise Violation("sent a content on channel 0")
            self._receive_method(decode_method(data, start, stop))
            return
        channel = self._channels.get(number)
        if channel is None:
            return  # it was closed while this was on its way
        if kind == methods.FRAME_BODY:
            channel.receive_body(data, start, stop)
        elif kind == methods.FRAME_HEADER:
            channel.receive_header(data, start, stop)
        elif kind == methods.FRAME_METHOD:
            channel.receive_method_frame(data, start, stop)
        else:
            raise Violation(f"sent a frame of the unknown type {kind}")

    def _receive_method(self, method: Any) -> None:
        """Handle a method on channel 0."""
        if isinstance(method, methods.ConnectionClose):
            self.send(method_frame(0, methods.ConnectionCloseOk()))
            raise PeerClosed(self.where, "connection", method.reply_code, method.reply_text)
        if self.state is not OPEN:
            if type(method) is not self.state.value:
                raise Violation(f"sent {method_name(method)} during the handshake")
            self._continue_handshake(method)
        elif isinstance(method, methods.ConnectionCloseOk):
            raise BrokerError(f"the connection to {self.where} is closed")
        elif isinstance(method, methods.ConnectionBlocked):
            self.blocked_reason = method.reason
            self.notify()
        elif isinstance(method, methods.ConnectionUnblocked):
            self.blocked_reason = None
            self.notify()
        else:
            raise Violation(f"sent {method_name(method)} unasked")

    # --- the handshake ------------------------------------------------------------------------------------------

    def _continue_handshake(self, method: Any) -> None:
        login = self.login
        if isinstance(method, methods.ConnectionStart):
            self.server_properties = method.server_properties
            mechanism, response = self._credentials(method.mechanisms.decode("ascii", "replace").split())
            self._answer(methods.ConnectionStartOk(login.properties, mechanism, response, "en_US"))
            self.state = State.LOGGING_IN
        elif isinstance(method, methods.ConnectionTune):
            frame_max = _smaller(method.frame_max, login.frame_max_bytes)
            if 0 < frame_max < methods.FRAME_MIN_BYTES:
                raise Violation(f"takes frames of {frame_max} bytes; {methods.FRAME_MIN_BYTES} are the least")
            self.frame_max_bytes = frame_max
            channel_max = _smaller(method.channel_max, login.channel_max)
            self._answer(methods.ConnectionTuneOk(channel_max, frame_max, login.heartbeat_s))
            self._answer(methods.ConnectionOpen(login.vhost, "", reserved_2=False))
            self.state = State.OPENING
        else:
            self.state = State.OPEN

    def _answer(self, method: Any) -> None:
        self.send(method_frame(0, method))

    def _credentials(self, offered: list[str]) -> tuple[str, bytes]:
        """Return mechanism and response to log in with."""
        wanted = self.login.mechanisms
        known = set(offered)  # which may be tens of thousands
        for mechanism in wanted:
            if mechanism == "EXTERNAL" and mechanism in known:
                return mechanism, b""
            if mechanism == "PLAIN" and mechanism in known:
                return mechanism, b"\0" + self.login.user.encode() + b"\0" + self.login.password.encode()
        theirs, ours = " ".join(offered)[:SHOWN_CHARACTERS], " or ".join(wanted)[:SHOWN_CHARACTERS]
        raise Violation(f"offers {theirs} to log in with, this client is to use {ours}")


def _smaller(one: int, other: int) -> int:
    """Return the smaller of two limits; 0 means unlimited."""
    return min(one, other) if one and other else one or other
