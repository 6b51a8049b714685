"""The client's side of a WebSocket, by wsproto: on bytes, and on a socket. Frames that no client sends are by hand."""

from __future__ import annotations

import socket
import struct

from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Ping,
    Pong,
    RejectConnection,
    RejectData,
    Request,
    TextMessage,
)

MASK = b"\x01\x02\x03\x04"


def frame(
    opcode: int, payload: bytes = b"", *, fin: bool = True, size: int | None = None, masked: bool = True
) -> bytes:
    """Return a frame; `size`: the announced size, if it differs from the real one."""
    said = len(payload) if size is None else size
    mask = 0x80 if masked else 0
    if said < 126:
        head = bytes((fin << 7 | opcode, mask | said))
    elif said < 65536:
        head = struct.pack("!BBH", fin << 7 | opcode, mask | 126, said)
    else:
        head = struct.pack("!BBQ", fin << 7 | opcode, mask | 127, said)
    if not masked:
        return head + payload
    return head + MASK + bytes(byte ^ MASK[at % 4] for at, byte in enumerate(payload))


def request(path: str = "/ws", subprotocol: str | None = "mqtt", host: str = "localhost:15675", **fields: str) -> bytes:
    """Return a request for a WebSocket; a field with the value ``""`` is left out."""
    headers = {
        "Host": host,
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Protocol": subprotocol or "",
    } | {name.replace("_", "-"): value for name, value in fields.items()}
    lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items() if value)]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


class WebClient:
    """A client's input as bytes, and the broker's answers."""

    def __init__(self, subprotocols: tuple[str, ...] = ("mqtt",), path: str = "/ws") -> None:
        self._ws = WSConnection(ConnectionType.CLIENT)
        self.hello = self._ws.send(Request(host="localhost", target=path, subprotocols=list(subprotocols)))
        self.is_open = False
        self.subprotocol: str | None = None
        self.status = 101
        self.refusal = b""
        self.data = b""
        self.kinds: list[str] = []  # of the messages in `data`
        self.pongs: list[bytes] = []
        self.close_code: int | None = None

    def said(self, data: bytes, *, as_text: bool = False) -> bytes:
        """Return a message with `data`."""
        return self._ws.send(TextMessage(data=data.decode()) if as_text else BytesMessage(data=data))

    def ping(self, payload: bytes = b"") -> bytes:
        return self._ws.send(Ping(payload=payload))

    def close(self) -> bytes:
        return self._ws.send(CloseConnection(code=1000))

    def heard(self, data: bytes) -> None:
        """Take what the broker has sent."""
        self._ws.receive_data(data)
        for event in self._ws.events():
            self._take(event)

    def _take(self, event: Event) -> None:
        if isinstance(event, AcceptConnection):
            self.is_open = True
            self.subprotocol = event.subprotocol
        elif isinstance(event, RejectConnection):
            self.status = event.status_code
        elif isinstance(event, RejectData):
            self.refusal += event.data
        elif isinstance(event, BytesMessage | TextMessage):
            self.kinds.append("text" if isinstance(event, TextMessage) else "binary")
            self.data += event.data.encode() if isinstance(event, TextMessage) else event.data
        elif isinstance(event, Pong):
            self.pongs.append(bytes(event.payload))
        elif isinstance(event, CloseConnection):
            self.close_code = event.code

    def taken(self) -> bytes:
        data, self.data = self.data, b""
        return data


class WebSocketOn:
    """Looks like a socket to the client of a protocol, and is a WebSocket on `sock`."""

    def __init__(self, sock: socket.socket, *subprotocols: str, as_text: bool = False) -> None:
        self.client = WebClient(subprotocols)
        self._sock = sock
        self._as_text = as_text
        sock.sendall(self.client.hello)
        while not self.client.is_open:
            self._hear()

    def _hear(self) -> None:
        data = self._sock.recv(65536)
        if not data:
            raise EOFError
        self.client.heard(data)

    def settimeout(self, seconds: float) -> None:
        self._sock.settimeout(seconds)

    def sendall(self, data: bytes) -> None:
        self._sock.sendall(self.client.said(data, as_text=self._as_text))

    def recv(self, limit_bytes: int) -> bytes:
        """Return what the broker has said; ``b""`` when it has closed."""
        while not self.client.data:
            if self.client.close_code is not None:
                return b""
            try:
                self._hear()
            except EOFError:
                return b""
        data, self.client.data = self.client.data[:limit_bytes], self.client.data[limit_bytes:]
        return data

    def close(self) -> None:
        self._sock.close()
