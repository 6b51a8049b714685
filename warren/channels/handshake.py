"""The exchange before a connection is open: our identity, the peer's identity, and the agreed numbers.

1. Before open-ok a frame may have 8 KiB, and at most ten frames and 64 KiB in all may come, without channels and
   contents.
2. Anything unexpected ends the connection without a word, because the peer cannot expect connection.close yet. The peer
   is told when a number of tune-ok or its vhost is refused, and when its login is, if its capabilities include that.
3. `LoginRequest` is taken by the shell, which verifies the credentials off the engine. Until it answers nothing more is
   read. An unknown user and a wrong password are refused alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mypy_extensions import i64

from warren import __version__
from warren.amqp import methods as m
from warren.amqp.codec import decode_method
from warren.amqp.errors import ACCESS_REFUSED, NOT_ALLOWED, SYNTAX_ERROR, ConnectionException
from warren.amqp.field_table import Table, decode_table, with_length
from warren.amqp.methods import (
    CONNECTION_OPEN,
    CONNECTION_TUNE_OK,
    FRAME_HEARTBEAT,
    FRAME_METHOD,
    FRAME_MIN_BYTES,
    FRAME_OVERHEAD_BYTES,
    PROTOCOL_HEADER,
)
from warren.channels.back_pressure import UNWANTED, WANTED
from warren.channels.connection_states import (
    AWAIT_OPEN,
    AWAIT_START_OK,
    AWAIT_TUNE_OK,
    CHECKING_LOGIN,
    STATE_NAMES,
)
from warren.channels.fast_path import FRAME_GRACE_BYTES
from warren.channels.login import LoginRequest, enter_vhost, note_opened, shared_name
from warren.channels.shared import PAUSED_LOGIN

if TYPE_CHECKING:
    from warren.channels.connection import Connection

# From AMQP 0-9, which can be taken for 0-9-1.
PROTOCOL_HEADER_0_9: Final = b"AMQP\x01\x01\x00\x09"
# Those of AMQP 0-8, whose methods have other numbers and arguments. RabbitMQ spoke it up to 4.2 and refuses it since.
PROTOCOL_HEADERS_0_8: Final = (b"AMQP\x01\x01\x08\x00", b"AMQP\x01\x01\x09\x01")

FRAME_MAX_BYTES: Final = 8192  # payload and frame overhead, before tune-ok
FRAMES_MAX: Final = 10
FRAMES_MAX_BYTES: Final = 65536

# Kombu, and so Celery, reads basic.qos after RabbitMQ's rules only from a product of this name; and we promise
# RabbitMQ's behaviour at this version. The server's own name and version stand in `platform` and `warren_version`.
COMPATIBLE_PRODUCT: Final = "RabbitMQ"
COMPATIBLE_VERSION: Final = "3.13.7"
CAPABILITIES: Final = (
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "consumer_priorities",
    "authentication_failure_close",
    "per_consumer_qos",
    "direct_reply_to",
    "amq.control",
)


def start_method(external: bool, cluster_name: str) -> m.ConnectionStart:
    """Return connection.start; `external`: the peer has shown a certificate that names a user there is."""
    capabilities: Table = {}
    for capability in CAPABILITIES:
        capabilities[capability] = True
    properties: Table = {
        "capabilities": capabilities,
        "cluster_name": cluster_name,
        "copyright": "The Warren contributors",
        "information": "An AMQP 0-9-1 broker that behaves as RabbitMQ does",
        "platform": f"Warren {__version__}",
        "product": COMPATIBLE_PRODUCT,
        "version": COMPATIBLE_VERSION,
        "warren_version": __version__,
    }
    mechanisms = b"EXTERNAL PLAIN AMQPLAIN" if external else b"PLAIN AMQPLAIN"
    return m.ConnectionStart(0, 9, properties, mechanisms, b"en_US")


def what_came_instead(data: bytes) -> str:
    """Name, for the log, the bytes of a peer that are not a protocol header that we speak."""
    if data[:4] in (b"GET ", b"POST", b"HEAD", b"PUT "):
        return "an HTTP request on the AMQP port"
    if data[:1] == b"\x16":
        return "a TLS handshake on the AMQP port without TLS"
    if data[:8] in PROTOCOL_HEADERS_0_8:
        return "AMQP 0-8, which is not supported"
    return "bad protocol header"


def read_credentials(mechanism: str, response: bytes) -> tuple[str, bytes]:
    """Return user and password of a SASL response.

    Raises:
        ConnectionException: 502, the mechanism is unknown or the response malformed. The peer is not told.
    """
    if mechanism == "PLAIN":
        parts = response.split(b"\x00")
        if len(parts) != 3:
            raise ConnectionException(SYNTAX_ERROR, "a malformed PLAIN response")
        try:
            return parts[1].decode(), parts[2]
        except UnicodeDecodeError:
            raise ConnectionException(SYNTAX_ERROR, "a malformed PLAIN response") from None
    if mechanism == "AMQPLAIN":
        table = decode_table(with_length(response))
        user = table.get("LOGIN")
        password = table.get("PASSWORD")
        if isinstance(password, str):
            password = password.encode()
        if isinstance(user, str) and isinstance(password, bytes):
            return user, password
        raise ConnectionException(SYNTAX_ERROR, "AMQPLAIN auth info is missing LOGIN or PASSWORD")
    raise ConnectionException(SYNTAX_ERROR, f"unknown authentication mechanism '{mechanism}'")


def check_tuned(what: str, value: int, lowest: int, highest: int) -> None:
    """Check a number of tune-ok against what we offered: RabbitMQ validates, it does not take the smaller of both.

    Raises:
        ConnectionException: 530.
    """
    if value == 0:
        text = f"negotiated {what} = 0 (no limit) is higher than the maximum allowed value ({highest})"
        raise ConnectionException(NOT_ALLOWED, text)
    if value < lowest:
        text = f"negotiated {what} = {value} is lower than the minimum allowed value ({lowest})"
        raise ConnectionException(NOT_ALLOWED, text)
    if value > highest:
        text = f"negotiated {what} = {value} is higher than the maximum allowed value ({highest})"
        raise ConnectionException(NOT_ALLOWED, text)


class Handshake:
    """The handshake of one connection, from the protocol header to open-ok; it fills in the facts about the peer."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._frames: i64 = 0
        self._bytes: i64 = 0  # of these frames; later bytes in the buffer do not count
        self._expects_refusal: bool = False  # the peer understands connection.close after a refused login

    def protocol_header(self, data: bytes) -> bool:
        """Check the first 8 bytes; True when they are there and right."""
        connection = self._connection
        broker = connection.broker
        if data[: len(PROTOCOL_HEADER)] in (PROTOCOL_HEADER, PROTOCOL_HEADER_0_9):
            connection.enter(AWAIT_START_OK)
            certified = connection.origin.certificate_user
            external = certified is not None and broker.access.get(certified) is not None
            connection.send_event(0, start_method(external, broker.cluster_name()))
            return True
        known = len(data) if len(data) < 4 else 4
        if data[:known] == b"AMQP"[:known] and len(data) < len(PROTOCOL_HEADER):
            connection.carry = data
            return False
        other = broker.other_protocols.get(data[: len(PROTOCOL_HEADER)])
        if other is not None:
            broker.switch(connection, other, data)
            return False
        broker.note(
            "warning", "connection.bad_header", {"peer": connection.origin.peer, "what": what_came_instead(data)}
        )
        connection.outbox.write(PROTOCOL_HEADER)
        connection.end()
        return False

    def frame(self, frame_type: i64, number: i64, data: bytes, start: i64, end: i64) -> None:
        """Handle a frame of channel `number` whose payload is ``data[start:end]``.

        Raises:
            ConnectionException: 530, a number of tune-ok or the vhost is refused.
        """
        connection = self._connection
        self._frames += 1
        self._bytes += end - start + FRAME_OVERHEAD_BYTES
        if self._frames > FRAMES_MAX or self._bytes > FRAMES_MAX_BYTES:
            connection.drop("too much data before the connection was open")
            return
        if frame_type == FRAME_HEARTBEAT and number == 0:
            return
        if frame_type != FRAME_METHOD or number != 0:
            connection.drop("a frame that does not belong to the handshake")
            return
        try:
            self._method(decode_method(data, start, end))
        except ConnectionException as error:
            if error.reply_code == NOT_ALLOWED and connection.state in (AWAIT_TUNE_OK, AWAIT_OPEN):
                connection.at_method = CONNECTION_TUNE_OK if connection.state == AWAIT_TUNE_OK else CONNECTION_OPEN
                raise
            connection.drop(error.reply_text)

    def _method(self, method: Any) -> None:
        connection = self._connection
        state = connection.state
        if state == AWAIT_START_OK and isinstance(method, m.ConnectionStartOk):
            self._start_ok(method)
        elif state == AWAIT_TUNE_OK and isinstance(method, m.ConnectionTuneOk):
            self._tune_ok(method)
        elif state == AWAIT_OPEN and isinstance(method, m.ConnectionOpen):
            self._open(method)
        elif isinstance(method, m.ConnectionClose):
            connection.send_event(0, m.ConnectionCloseOk())
            connection.end()
        else:
            connection.drop(f"an unexpected method in connection state {STATE_NAMES[state]}")

    def _start_ok(self, method: m.ConnectionStartOk) -> None:
        connection = self._connection
        connection.login.stated_properties = method.client_properties
        capabilities = method.client_properties.get("capabilities")
        if isinstance(capabilities, dict):
            connection.consumer_cancel_notify = capabilities.get("consumer_cancel_notify") is True
            connection.blocked_notice = WANTED if capabilities.get("connection.blocked") is True else UNWANTED
            self._expects_refusal = capabilities.get("authentication_failure_close") is True
        name = method.client_properties.get("connection_name")
        connection.login.name = name if isinstance(name, str) else ""
        connection.login.mechanism = shared_name(method.mechanism)
        connection.login.has_begun = True
        certified = connection.origin.certificate_user
        if method.mechanism == "EXTERNAL" and certified is not None:
            request = LoginRequest(connection, method.mechanism, certified, b"", True)
        else:
            try:
                user, password = read_credentials(method.mechanism, method.response)
                request = LoginRequest(connection, method.mechanism, user, password, False)
            except ConnectionException as error:
                # Repeated attempts are delayed as long as guessed passwords.
                request = LoginRequest(connection, method.mechanism, "", b"", False, error.reply_text)
        connection.enter(CHECKING_LOGIN)
        connection.pause(PAUSED_LOGIN)
        connection.broker.logins.append(request)

    def login_accepted(self) -> None:
        """Go on with tuning."""
        connection = self._connection
        connection.enter(AWAIT_TUNE_OK)
        limits = connection.broker.limits
        connection.send_event(0, m.ConnectionTune(limits.channel_max, limits.frame_max_bytes, limits.heartbeat_s))
        connection.resume(PAUSED_LOGIN)

    def login_refused(self, request: LoginRequest) -> None:
        """Close if the peer understands that, else end without a word."""
        connection = self._connection
        if request.problem:
            connection.drop(request.problem)
        elif self._expects_refusal:
            explanation = (
                f"Login was refused using authentication mechanism {request.mechanism}. "
                "For details see the broker logfile."
            )
            connection.send_close(ACCESS_REFUSED, explanation, 0)
            connection.resume(PAUSED_LOGIN)
        else:
            connection.end()

    def _tune_ok(self, method: m.ConnectionTuneOk) -> None:
        connection = self._connection
        limits = connection.broker.limits
        check_tuned("channel_max", method.channel_max, 1, limits.channel_max)
        check_tuned("frame_max", method.frame_max, FRAME_MIN_BYTES, limits.frame_max_bytes)
        connection.login.channel_max = method.channel_max
        connection.login.frame_max_bytes = method.frame_max
        connection.frame_limit_bytes = method.frame_max - FRAME_OVERHEAD_BYTES + FRAME_GRACE_BYTES
        connection.heartbeats.interval_s = method.heartbeat
        connection.heartbeats.own_interval_s = method.heartbeat
        connection.enter(AWAIT_OPEN)

    def _open(self, method: m.ConnectionOpen) -> None:
        connection = self._connection
        enter_vhost(connection, method.virtual_host)
        connection.send_event(0, m.ConnectionOpenOk(""))
        note_opened(connection)
