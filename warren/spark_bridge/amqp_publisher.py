"""A publisher with confirms over a socket of its own: the part of AMQP 0-9-1 that a writer needs.

    connect  ->  PLAIN, tune, open  ->  channel 1, confirm.select  ->  publish ... publish  ->  finish  ->  close

1. At most `max_in_flight` messages are unconfirmed at a time; confirms are counted, never guessed.
2. `finish` returns when every message is confirmed and none was nacked or returned. If it does not return, the caller
   must send all of them again.
3. One thread uses it. Nothing runs in the background: heartbeats are sent while it publishes and waits.
4. A broker may send frames of `frame_bytes_max` at most, which are at least `_FRAME_LEAST_BYTES`, and confirm and
   return only messages that were sent. Received bytes take the memory of one frame and one read.

It does not use `warren.amqp_client`: the codec of that needs a compiled package, and executors to which this package is
shipped have pyarrow and numpy only (`helpers.make_archive`).

Messages come encoded (``frames``), on channel 1 and in frames no larger than `frame_bytes_max`.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
import time
from typing import Final, NoReturn, Self

import pyarrow as pa

from warren.spark_bridge.bridge_errors import BrokerError, NotAllowed, Unreachable
from warren.spark_bridge.frames import FRAME_BYTES_MAX, bounds_of, content_of

HEARTBEAT_S: Final = 60
_PROTOCOL: Final = b"AMQP\x00\x00\x09\x01"
_METHOD: Final = 1
_HEARTBEAT_FRAME: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"
_READ_BYTES: Final = 64 << 10
_READS_MAX: Final = 16  # without a look at the time
_FRAME_LEAST_BYTES: Final = 4096
_RETURNED_SHOWN: Final = 3
# Sent in one go before confirms are looked at.
_SEND_BYTES: Final = 1 << 20

_START: Final = (10, 10)
_TUNE: Final = (10, 30)
_OPEN_OK: Final = (10, 41)
_CONNECTION_CLOSE: Final = (10, 50)
_UNBLOCKED: Final = (10, 61)
_CHANNEL_OPEN_OK: Final = (20, 11)
_CHANNEL_CLOSE: Final = (20, 40)
_RETURN: Final = (60, 50)
_ACK: Final = (60, 80)
_NACK: Final = (60, 120)
_SELECT_OK: Final = (85, 11)

Method = tuple[tuple[int, int], bytes]


class Unconfirmed(BrokerError):
    """Messages were nacked, returned, or not confirmed in time."""


class Publisher:
    """One connection with one channel.

    `timeout_s`: for connecting and each answer of the handshake; `confirm_timeout_s`: how long nothing may be confirmed
    while something is unconfirmed. `context`: of TLS, None without.
    """

    def __init__(
        self,
        host: str,
        port: int,
        vhost: str,
        username: str,
        password: str,
        *,
        context: ssl.SSLContext | None = None,
        max_in_flight: int = 1000,
        timeout_s: float = 10.0,
        confirm_timeout_s: float = 60.0,
    ) -> None:
        self.confirmed = 0
        self.sent = 0
        self.frame_bytes_max = FRAME_BYTES_MAX
        self._where = f"{host}:{port}"
        self._max_in_flight = max_in_flight
        self._confirm_timeout_s = confirm_timeout_s
        self._nacked = 0
        self._returned = 0
        self._first_returned: list[str] = []
        self._settled: set[int] = set()  # confirmed by themselves, above `confirmed`
        self._received = bytearray()
        self._heartbeat_s = 0
        self._last_sent_s = time.monotonic()
        self._progress_s = time.monotonic()
        try:
            sock: socket.socket = socket.create_connection((host, port), timeout=timeout_s)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sock = sock if context is None else context.wrap_socket(sock, server_hostname=host)
        except OSError as error:
            raise Unreachable(f"cannot reach {self._where}: {error}") from None
        try:
            self._handshake(vhost, username, password)
        except BaseException:
            self._sock.close()
            raise
        self._sock.setblocking(False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(in_order=kind is None)

    # --- publishing --------------------------------------------------------------------------------------------------

    def publish(self, messages: pa.Array) -> None:
        """Send `messages`, a binary each, as fast as they are confirmed.

        Raises:
            Unconfirmed: some were refused or returned, or confirms do not come. NotAllowed, BrokerError: the broker
            has closed the channel. Unreachable: the connection is lost.
        """
        bounds = bounds_of(messages)
        content = content_of(messages)
        at = 0
        while at < len(messages):
            room = self._max_in_flight - (self.sent - self.confirmed)
            if room <= 0:
                self._wait()
                continue
            stop = min(at + room, len(messages))
            limit = int(bounds[at]) + _SEND_BYTES
            while stop > at + 1 and int(bounds[stop]) > limit:
                stop = at + max(1, (stop - at) // 2)
            if self.confirmed == self.sent:
                self._progress_s = time.monotonic()
            self.sent += stop - at
            self._send(content[int(bounds[at]) : int(bounds[stop])])
            at = stop
            self._check()

    def finish(self) -> None:
        """Wait until everything is confirmed.

        Raises:
            As `publish`.
        """
        while self.confirmed < self.sent:
            self._wait()
        self._check()

    def close(self, *, in_order: bool = True) -> None:
        """End the connection; `in_order`: say so to the broker, and wait a moment for its answer."""
        if in_order:
            try:
                self._send(_method(0, _CONNECTION_CLOSE, struct.pack(">H", 200) + _short("") + b"\0\0\0\0"))
                self._sock.settimeout(1.0)
                while self._sock.recv(_READ_BYTES):
                    pass
            except OSError:
                pass  # it is over either way
            except BrokerError:
                pass
        self._sock.close()

    def _check(self) -> None:
        if self._nacked:
            raise Unconfirmed(f"{self._where} has refused {self._nacked} messages")
        if self._returned:
            shown = ", ".join(self._first_returned)
            raise Unconfirmed(f"{self._where}: {self._returned} messages were routed to no queue: {shown}")

    def _wait(self) -> None:
        """Wait for something to come, and take it."""
        left_s = self._progress_s + self._confirm_timeout_s - time.monotonic()
        if left_s <= 0:
            missing = self.sent - self.confirmed
            raise Unconfirmed(f"{self._where}: {missing} messages were not confirmed in {self._confirm_timeout_s:g} s")
        beat_s = self._last_sent_s + self._heartbeat_s / 2 - time.monotonic() if self._heartbeat_s else left_s
        self._select(min(left_s, max(beat_s, 0.0)), write=False)
        if self._heartbeat_s and time.monotonic() - self._last_sent_s >= self._heartbeat_s / 2:
            self._send(memoryview(_HEARTBEAT_FRAME))
        self._receive()

    # --- the socket --------------------------------------------------------------------------------------------------

    def _send(self, data: memoryview | bytes) -> None:
        """Send everything; incoming data is taken meanwhile, so that the two sides do not wait for each other."""
        left = memoryview(data)
        stuck_s = time.monotonic() + self._confirm_timeout_s
        while left:
            try:
                left = left[self._sock.send(left) :]
                stuck_s = time.monotonic() + self._confirm_timeout_s
                continue
            except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                pass
            except OSError as error:
                self._lost(error)
            if time.monotonic() > stuck_s:
                raise Unconfirmed(f"{self._where} has taken nothing for {self._confirm_timeout_s:g} s")
            self._select(1.0, write=True)
            self._receive()
        self._last_sent_s = time.monotonic()
        self._receive()

    def _select(self, timeout_s: float, *, write: bool) -> None:
        if isinstance(self._sock, ssl.SSLSocket) and self._sock.pending():
            return
        select.select([self._sock], [self._sock] if write else [], [], timeout_s)

    def _receive(self) -> None:
        """Take available data, without waiting. What comes before the end of a connection gives the reason."""
        for _ in range(_READS_MAX):
            try:
                data = self._sock.recv(_READ_BYTES)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                break
            except OSError as error:
                self._lost(error)
            if not data:
                self._lost(None)
            self._received += data
            while (found := self._next_frame()) is not None:
                kind, _, payload = found
                if kind == _METHOD:
                    self._take(_method_of(payload))

    def _lost(self, error: OSError | None) -> NoReturn:
        raise Unreachable(f"{self._where}: the connection is lost" + (f": {error}" if error else ""))

    def _next_frame(self) -> tuple[int, int, bytes] | None:
        received = self._received
        if len(received) < 7:
            return None
        kind, channel, size = struct.unpack_from(">BHI", received)
        if size > FRAME_BYTES_MAX:
            raise Unreachable(f"{self._where} sent a frame of {size} bytes; {FRAME_BYTES_MAX} are the most")
        if len(received) < size + 8:
            return None
        if received[size + 7] != 0xCE:
            raise Unreachable(f"{self._where} does not speak AMQP 0-9-1")
        payload = bytes(received[7 : 7 + size])
        del received[: size + 8]
        return kind, channel, payload

    # --- methods -----------------------------------------------------------------------------------------------------

    def _take(self, method: Method) -> None:
        """React to a method of the broker."""
        name, arguments = method
        if name == _ACK:
            tag, multiple = struct.unpack(">QB", arguments)
            self._confirm(tag, is_multiple=bool(multiple & 1))
        elif name == _NACK:
            tag, flags = struct.unpack(">QB", arguments)
            before = self.confirmed
            self._confirm(tag, is_multiple=bool(flags & 1))
            self._nacked += max(1, self.confirmed - before) if flags & 1 else 1
        elif name == _RETURN:
            self._returned += 1
            if self._returned > self.sent:
                raise BrokerError(f"{self._where} returned more than the {self.sent} messages that were sent")
            at = 2
            texts = []
            for _ in range(3):
                texts.append(arguments[at + 1 : at + 1 + arguments[at]].decode("utf-8", "replace"))
                at += 1 + arguments[at]
            if self._returned <= _RETURNED_SHOWN:
                self._first_returned.append(f"exchange {texts[1]!r}, routing key {texts[2]!r}")
        elif name in (_CHANNEL_CLOSE, _CONNECTION_CLOSE):
            raise self._closed(arguments)
        elif name == _UNBLOCKED:
            self._progress_s = time.monotonic()  # while it was blocked, nothing could be confirmed

    def _confirm(self, tag: int, *, is_multiple: bool) -> None:
        if tag > self.sent:
            raise BrokerError(f"{self._where} confirmed message {tag} of {self.sent}")
        self._progress_s = time.monotonic()
        settled = self._settled
        if is_multiple:
            self.confirmed = max(self.confirmed, tag)
            if settled:
                settled -= {each for each in settled if each <= tag}
        elif tag > self.confirmed:
            settled.add(tag)
        while self.confirmed + 1 in settled:
            self.confirmed += 1
            settled.remove(self.confirmed)

    def _closed(self, arguments: bytes) -> BrokerError:
        code = int.from_bytes(arguments[:2], "big")
        text = arguments[3 : 3 + arguments[2]].decode("utf-8", "replace")
        kind = NotAllowed if code in (403, 530) else BrokerError
        return kind(f"{self._where}: {text}", code)

    # --- the handshake -----------------------------------------------------------------------------------------------

    def _handshake(self, vhost: str, username: str, password: str) -> None:
        sasl = b"\0" + username.encode() + b"\0" + password.encode()
        capabilities = b"".join(
            _short(name) + b"t\x01" for name in ("publisher_confirms", "basic.nack", "connection.blocked")
        )
        properties = _short("product") + b"S" + _long(b"Warren for Spark")
        properties += _short("capabilities") + b"F" + _long(capabilities)
        self._write(_PROTOCOL)
        self._expect(_START)
        self._write(_method(0, (10, 11), _long(properties) + _short("PLAIN") + _long(sasl) + _short("en_US")))
        tune = self._expect(_TUNE)
        channel_max, frame_max, heartbeat_s = struct.unpack(">HIH", tune)
        self.frame_bytes_max = min(frame_max or FRAME_BYTES_MAX, FRAME_BYTES_MAX)
        if self.frame_bytes_max < _FRAME_LEAST_BYTES:
            raise Unreachable(
                f"{self._where} takes frames of {self.frame_bytes_max} bytes; {_FRAME_LEAST_BYTES} are the least"
            )
        self._heartbeat_s = min(heartbeat_s, HEARTBEAT_S)
        self._write(
            _method(0, (10, 31), struct.pack(">HIH", channel_max, self.frame_bytes_max, self._heartbeat_s))
            + _method(0, (10, 40), _short(vhost) + _short("") + b"\0")
        )
        self._expect(_OPEN_OK)
        self._write(_method(1, (20, 10), _short("")))
        self._expect(_CHANNEL_OPEN_OK)
        self._write(_method(1, (85, 10), b"\0"))
        self._expect(_SELECT_OK)

    def _write(self, data: bytes) -> None:
        try:
            self._sock.sendall(data)
        except OSError as error:
            raise Unreachable(f"{self._where}: {error}") from None

    def _expect(self, wanted: tuple[int, int]) -> bytes:
        """Return the arguments of the next method, which must be `wanted`."""
        while True:
            found = self._next_frame()
            if found is None:
                try:
                    data = self._sock.recv(_READ_BYTES)
                except OSError as error:
                    raise Unreachable(f"{self._where}: {error}") from None
                if not data:
                    # Before connection.open-ok a broker says by closing that it does not know the user.
                    kind = NotAllowed if wanted == _TUNE else Unreachable
                    raise kind(f"{self._where} has closed the connection" + (": login refused" * (wanted == _TUNE)))
                self._received += data
                if self._received[:4] == b"AMQP":
                    raise Unreachable(f"{self._where} does not speak AMQP 0-9-1")
                continue
            kind_of_frame, _, payload = found
            if kind_of_frame != _METHOD:
                continue
            name, arguments = _method_of(payload)
            if name in (_CONNECTION_CLOSE, _CHANNEL_CLOSE):
                raise self._closed(arguments)
            if name == wanted:
                return arguments


def _method(channel: int, name: tuple[int, int], arguments: bytes) -> bytes:
    payload = struct.pack(">HH", *name) + arguments
    return struct.pack(">BHI", _METHOD, channel, len(payload)) + payload + b"\xce"


def _method_of(payload: bytes) -> Method:
    class_id, method_id = struct.unpack_from(">HH", payload)
    return (class_id, method_id), payload[4:]


def _short(text: str) -> bytes:
    raw = text.encode()
    return bytes([len(raw)]) + raw


def _long(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data
