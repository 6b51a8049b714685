"""Serve one WebSocket (RFC 6455), by way of wsproto: bytes in, bytes out, without a socket.

    the request, at most `HEAD_BYTES_MAX`  ->  101, or the status that says what is wrong with it
    frames                                 ->  what is in them, as it comes: messages and fragments mean nothing
    what is in an outbox                   ->  one message of one frame

1. Messages are not assembled here. A peer may announce a frame of any size, or never end a message: the broker holds
   what it has sent, and its protocol counts that as on a bare port.
2. A frame costs some microseconds, however little is in it: it counts as `FRAME_UNITS` of work. `read` decodes as many
   frames as it may. The rest of the received data waits (`is_behind`), and the caller must not receive more meanwhile.
3. If several pings come together only the last one is answered, as section 5.5.3 allows. So the broker keeps a single
   answer for a client that sends a million pings and reads nothing.
4. Extensions are not offered: compressed data could expand to a thousand times its size.
5. A browser lets every page open a WebSocket to any server, and tells the origin of the page. `WebRules.admits`
   decides. Other programs do not send an origin.
6. A client that sends text gets text, if the protocol is one of text. A piece that is not UTF-8 by itself goes out as a
   binary frame even then: a browser would disconnect because of it.
"""

from __future__ import annotations

import re
import struct
from typing import Final

from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Ping,
    RejectConnection,
    RejectData,
    Request,
    TextMessage,
)
from wsproto.frame_protocol import CloseReason
from wsproto.handshake import H11Handshake
from wsproto.utilities import RemoteProtocolError

from warren.server.network.web_rules import FRAME_UNITS, WebRules, WebSocketEnd

PATH: Final = "/ws"
HEAD_BYTES_MAX: Final = 8192
_HEAD_END: Final = b"\r\n\r\n"
_EMPTY_KEY: Final = re.compile(rb"(?im)^sec-websocket-key:[ \t]*\r?$")
_BINARY: Final = 0x82  # a whole message
_TEXT: Final = 0x81


class WebSocket:
    """A WebSocket with a peer at `address`.

    `units`: the cost of the last `read`; `is_behind`: it has left data, so call it again.
    """

    def __init__(self, rules: WebRules, address: str) -> None:
        self.units: int = 0
        self.is_behind: bool = False
        self._rules = rules
        self._address = address
        self._head = bytearray()  # of the request, as far as received
        self._connection: Connection | None = None  # when the handshake is done
        self._control: bytes = b""  # sent before anything else
        self._pong: bytes = b""
        self._is_text: bool | None = None  # what the peer sends; None: nothing yet
        self._end: str | None = None

    def control_bytes(self) -> int:
        """Return the number of bytes to send that are not data."""
        return len(self._control) + len(self._pong)

    def received(self, data: bytes) -> None:
        """Take what came next; not while `is_behind`. Input after the end is ignored."""
        if self._end is not None:
            return
        connection = self._connection
        if connection is not None:
            connection.receive_data(data)
            return
        head = self._head
        searched = max(len(head) - len(_HEAD_END) + 1, 0)
        head += data
        end = head.find(_HEAD_END, searched)
        if end < 0 and len(head) <= HEAD_BYTES_MAX:
            return
        self._head = bytearray()
        end += len(_HEAD_END)
        if end < len(_HEAD_END) or end > HEAD_BYTES_MAX:
            self._reject(H11Handshake(ConnectionType.SERVER), 431, f"more than {HEAD_BYTES_MAX} bytes of headers")
        else:
            self._shake_hands(bytes(head[:end]), bytes(head[end:]))

    def read(self, frames_max: int) -> bytes | None:
        """Return the data in the peer's next frames, at most `frames_max`; None: nothing yet.

        Raises:
            WebSocketEnd: the peer has sent its last data.
        """
        self.units = 0
        self.is_behind = False
        said = self._decoded(frames_max) if self._end is None else b""
        if said:
            self.is_behind = self.is_behind or self._end is not None
            return said
        if self._end is not None:
            raise WebSocketEnd(self._end)
        return None

    def close(self) -> None:
        """Release everything: nothing comes or goes."""
        connection = self._connection
        if connection is not None:
            self._connection = None
            # It and the generator that decodes for it refer to each other; only the cyclic collector would free them.
            connection._proto._parse_more.close()

    # --- the handshake ----------------------------------------------------------------------------------------------

    def _shake_hands(self, head: bytes, behind: bytes) -> None:
        handshake = H11Handshake(ConnectionType.SERVER)
        if not head.startswith(b"GET "):
            self._reject(handshake, 405, "a WebSocket needs the method GET", ("Allow", "GET"))
            return
        try:
            handshake.receive_data(head)
            request = next(handshake.events())
        except RemoteProtocolError as error:
            self._reject_bad(handshake, error)
            return
        except UnicodeError:
            self._reject(handshake, 400, "a header that is not ASCII")
            return
        assert isinstance(request, Request)
        headers = {bytes(name): bytes(value).decode("latin-1") for name, value in request.extra_headers}
        if request.target.partition("?")[0] != PATH:
            self._reject(handshake, 404, f"WebSockets are at {PATH} here")
        elif headers.keys() & {b"transfer-encoding", b"content-length"}:
            self._reject(handshake, 400, "a request with a body")
        elif _EMPTY_KEY.search(head) is not None:
            self._reject(handshake, 400, "an empty Sec-WebSocket-Key")
        elif b"origin" in headers and not self._rules.admits(headers[b"origin"], request.host, self._address):
            text = "this origin may not connect: see the setting ws_origins"
            self._reject(handshake, 403, text)
        else:
            self._choose(handshake, request, behind)

    def _choose(self, handshake: H11Handshake, request: Request, behind: bytes) -> None:
        """Accept the first known subprotocol."""
        rules = self._rules
        chosen = next((each for each in request.subprotocols if each in rules.subprotocols), None)
        if chosen is None and (request.subprotocols or not rules.may_name_none):
            self._reject(handshake, 400, f"no supported subprotocol: {', '.join(rules.subprotocols)}")
            return
        self._control += handshake.send(AcceptConnection(subprotocol=chosen))
        connection = handshake.connection
        assert connection is not None
        self._connection = connection
        if behind:
            connection.receive_data(behind)

    def _reject_bad(self, handshake: H11Handshake, error: RemoteProtocolError) -> None:
        """Answer a request that does not ask for a WebSocket."""
        hint = error.event_hint
        text = str(error)
        if isinstance(hint, RejectConnection) and hint.status_code == 426:
            self._reject(handshake, 426, "only version 13 of WebSocket is supported", ("Sec-WebSocket-Version", "13"))
        elif "Upgrade" in text:
            self._reject(handshake, 426, "this path is for WebSockets only", ("Upgrade", "websocket"))
        else:
            self._reject(handshake, 400, text)

    def _reject(self, handshake: H11Handshake, status: int, text: str, *headers: tuple[str, str]) -> None:
        body = f"{text}\n".encode()
        fields = [*headers, ("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))]
        fields += [("Connection", "close"), ("Cache-Control", "no-store")]
        encoded = [(name.encode(), value.encode()) for name, value in fields]
        answer = handshake.send(RejectConnection(status_code=status, headers=encoded, has_body=True))
        self._control += answer + handshake.send(RejectData(data=body, body_finished=True))
        self._end = f"no WebSocket: {text}"

    # --- frames in --------------------------------------------------------------------------------------------------

    def _decoded(self, frames_max: int) -> bytes:
        connection = self._connection
        if connection is None:
            return b""
        parts: list[bytes] = []
        count = 0
        for event in connection.events():
            count += 1
            if isinstance(event, BytesMessage):
                if self._is_text is None:
                    self._is_text = False
                parts.append(bytes(event.data))
            elif isinstance(event, TextMessage):
                if not self._rules.takes_text:
                    self._fail(connection, CloseReason.UNSUPPORTED_DATA, "text: only binary frames are supported")
                    break
                if self._is_text is None:
                    self._is_text = True
                parts.append(event.data.encode())
            elif isinstance(event, Ping):
                self._pong = connection.send(event.response())
            elif isinstance(event, CloseConnection):
                if connection.state is ConnectionState.OPEN:
                    self._fail(connection, event.code, event.reason or "")
                else:
                    self._control += connection.send(event.response())
                    self._end = ""
                break
            if count >= frames_max:
                self.is_behind = True
                break
        self.units = count * FRAME_UNITS
        return b"".join(parts)

    def _fail(self, connection: Connection, code: int, reason: str) -> None:
        """End the WebSocket: the peer has broken one of its rules."""
        self._control += connection.send(CloseConnection(code=code, reason=reason))
        self._end = f"WebSocket: {reason}"

    # --- out --------------------------------------------------------------------------------------------------------

    def framed(self, chunks: list[bytes]) -> list[bytes]:
        """Return the bytes to send for `chunks`: control frames first, then one message with all of them."""
        control = self._control + self._pong
        self._control = self._pong = b""
        connection = self._connection
        if not chunks or connection is None or connection.state is not ConnectionState.OPEN:
            return [control] if control else []
        size = sum(map(len, chunks))
        kind = _BINARY
        if self._is_text:
            chunks = [b"".join(chunks)]
            kind = _TEXT if _is_utf8(chunks[0]) else _BINARY
        # By hand, since wsproto copies the data four times.
        head = control + frame_head(kind, size)
        return [head + chunks[0]] if len(chunks) == 1 and size < 8192 else [head, *chunks]

    def farewell(self) -> bytes:
        """Return the closing frame to send; empty if the connection does not need one."""
        connection = self._connection
        if connection is None or connection.state is not ConnectionState.OPEN:
            return b""
        return connection.send(CloseConnection(code=CloseReason.NORMAL_CLOSURE))


def frame_head(kind: int, size: int) -> bytes:
    """Return the head of an unmasked frame with `size` bytes (section 5.2)."""
    if size < 126:
        return bytes((kind, size))
    if size < 65536:
        return struct.pack("!BBH", kind, 126, size)
    return struct.pack("!BBQ", kind, 127, size)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
