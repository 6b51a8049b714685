"""The exchange with a member of etcd: requests over HTTP, and the JSON of its gateway.

1. A connection has one request at a time. It is closed after a request was interrupted or an answer was invalid.
2. Input from a peer is limited before it is parsed: an answer has `ANSWER_BYTES_MAX` at most, its head
   `HEAD_BYTES_MAX`.
"""

from __future__ import annotations

import ssl
from base64 import b64encode
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import h11
import msgspec
import trio

ANSWER_BYTES_MAX: Final = 1 << 20
HEAD_BYTES_MAX: Final = 16 << 10
READ_BYTES: Final = 64 << 10
TEXT_BYTES: Final = 200
OK: Final = 200
DEFAULT_PORT: Final = 2379

T = TypeVar("T")


# --- JSON: etcd writes 64-bit numbers as strings, bytes in base64, and leaves out what is zero ------------------------


class Header(msgspec.Struct):
    cluster_id: int
    raft_term: int
    revision: int = 0


class Answer(msgspec.Struct):
    header: Header


class Pair(msgspec.Struct):
    key: bytes
    mod_revision: int
    value: bytes = b""


class RangeAnswer(Answer):
    kvs: list[Pair] = []
    more: bool = False


class TxnAnswer(Answer):
    succeeded: bool = False


class LeaseAnswer(Answer):
    ID: int = 0
    TTL: int = 0


class Token(msgspec.Struct):
    token: str


class Stream(msgspec.Struct):
    result: msgspec.Raw = msgspec.Raw()
    error: Any = None


class Event(msgspec.Struct):
    kv: Pair
    type: str = "PUT"


class WatchAnswer(Answer):
    events: list[Event] = []
    canceled: bool = False
    compact_revision: int = 0


class Error(msgspec.Struct):
    error: str = ""
    message: str = ""


def text(raw: bytes) -> str:
    return b64encode(raw).decode()


def end_of_prefix(prefix: bytes) -> bytes:
    """Return the first key after all that begin with `prefix`."""
    for length in range(len(prefix), 0, -1):
        if prefix[length - 1] < 0xFF:
            return prefix[: length - 1] + bytes([prefix[length - 1] + 1])
    return b"\x00"


class Nonsense(Exception):
    """The answer of a peer cannot be understood, or has stopped in the middle."""


def decoded(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind, strict=False)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise Nonsense(f"an answer that is not etcd's: {error}") from None


def error_text(data: bytes) -> str:
    try:
        error = decoded(data, Error)
    except Nonsense:
        return data[:TEXT_BYTES].decode(errors="replace").strip()  # not from etcd itself: from a proxy, or from TLS
    return error.message or error.error


# --- one connection ---------------------------------------------------------------------------------------------------


class EtcdConnection:
    """A connection to one endpoint, for one request at a time."""

    def __init__(self, endpoint: str, stream: trio.abc.Stream, socket: trio.SocketStream) -> None:
        self.endpoint = endpoint
        self._stream = stream
        self._socket = socket
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES_MAX)

    @classmethod
    async def open(cls, endpoint: str, tls: ssl.SSLContext | None) -> EtcdConnection:
        """Connect.

        Raises:
            OSError, trio.BrokenResourceError: that is not possible.
        """
        url = urlsplit(endpoint)
        host = url.hostname or ""
        socket = await trio.open_tcp_stream(host, url.port or DEFAULT_PORT)
        if url.scheme != "https":
            return cls(endpoint, socket, socket)
        stream = trio.SSLStream(
            socket, tls or ssl.create_default_context(), server_hostname=host, https_compatible=True
        )
        try:
            await stream.do_handshake()
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise
        return cls(endpoint, stream, socket)

    @property
    def is_usable(self) -> bool:
        """Whether another request can be sent. A readable socket cannot be used: the peer has hung up."""
        return self._http.our_state is h11.IDLE and not self._socket.socket.is_readable()

    async def send(self, path: str, body: bytes, token: str) -> None:
        """Send a request."""
        headers = [("Host", urlsplit(self.endpoint).netloc), ("Content-Length", str(len(body)))]
        headers += [("Content-Type", "application/json")] + ([("Authorization", token)] if token else [])
        request = h11.Request(method="POST", target=f"/v3/{path}", headers=headers)
        parts = [self._http.send(part) or b"" for part in (request, h11.Data(body), h11.EndOfMessage())]
        await self._stream.send_all(b"".join(parts))

    async def receive(self) -> tuple[int, bytes]:
        """Return the status and the body of an answer.

        Raises:
            Nonsense, h11.ProtocolError, trio.BrokenResourceError: the answer did not come, or is not valid.
        """
        status = await self.receive_head()
        body = bytearray()
        while part := await self.receive_part():
            body += part
            if len(body) > ANSWER_BYTES_MAX:
                raise Nonsense(f"an answer of more than {ANSWER_BYTES_MAX} bytes")
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
        return status, bytes(body)

    async def receive_head(self) -> int:
        """Return the status of an answer."""
        event = await self._event()
        while isinstance(event, h11.InformationalResponse):
            event = await self._event()
        if not isinstance(event, h11.Response):
            raise Nonsense("the connection was closed before an answer")
        return event.status_code

    async def receive_part(self) -> bytes:
        """Return more of the body of an answer; nothing at its end."""
        while True:
            event = await self._event()
            if isinstance(event, h11.Data):
                if event.data:
                    return bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return b""
            else:
                raise Nonsense("the connection was closed in the middle of an answer")

    async def _event(self) -> Any:
        while True:
            event = self._http.next_event()
            if event is not h11.NEED_DATA:
                return event
            self._http.receive_data(bytes(await self._stream.receive_some(READ_BYTES)))

    async def close(self) -> None:
        """Hang up."""
        await trio.aclose_forcefully(self._stream)


# The errors of an endpoint that cannot be reached, breaks off, or sends an invalid answer.
BROKEN: Final = (OSError, trio.BrokenResourceError, trio.TooSlowError, h11.ProtocolError, ssl.SSLError, Nonsense)
