"""One connection to the broker's HTTP API: requests with their repetitions, and the errors that answers stand for.

1. A request that may be repeated is repeated: after a lost connection, a 429 or a 5xx, `retries` times. The pause
   doubles from `backoff_s`, or is the one that the broker asks for.
2. It can be pickled: the connection is left out, and another is opened when it is needed.
3. An answer with messages is read into memory that Arrow can use as it is, as large as Content-Length says.
4. The password is not in any message.
"""

from __future__ import annotations

import base64
import copy
import json
import time
from collections.abc import Callable, Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar
from urllib.parse import quote, unquote, urlencode, urlsplit

import pyarrow as pa

from warren.spark_bridge.bridge_errors import (
    Ahead,
    AnotherQueue,
    BrokerError,
    Diverged,
    Fenced,
    Gone,
    NoDrain,
    NoSnapshot,
    NotAllowed,
    NotFound,
    Refused,
    Unreachable,
)

if TYPE_CHECKING:
    import ssl

RETRY_PAUSE_MAX_S: Final = 10.0
# No answer of the data port is larger: a chunk has one message when that is large, and 8 MiB else.
ANSWER_BYTES_MAX: Final = (1 << 31) - 1
_RETRIED: Final = (429, 500, 502, 503, 504)
_NOTHING_DONE: Final = (429, 503)  # the broker was too busy to begin
_READ_BYTES: Final = 1 << 20
NODE_CONNECT_S: Final = 2.0  # to one of several nodes

Object = dict[str, Any]
T = TypeVar("T")


class ClientTls(NamedTuple):
    """How a client secures a connection: a file with the CAs to trust, and files that prove who we are."""

    cacert: str | None
    certificate: str | None = None
    key: str | None = None
    insecure: bool = False

    def context(self) -> ssl.SSLContext:
        """Return the context; reads the files. Raises OSError."""
        import ssl

        context = ssl.create_default_context(cafile=self.cacert)
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.certificate is not None:
            context.load_cert_chain(self.certificate, self.key)
        return context


def connection_to(host: str, port: int | None, timeout_s: float, tls: ClientTls | None) -> HTTPConnection:
    """Return a connection that is opened when it is used; `tls`: None without."""
    if tls is None:
        return HTTPConnection(host, port, timeout=timeout_s)
    return HTTPSConnection(host, port, timeout=timeout_s, context=tls.context())


class ApiConnection:
    """Requests of one user to the API at `url`, over one connection that is kept alive; for one thread at a time.

    `username` and `password`: None for those in `url`, or else guest; with `token` they are not sent.
    """

    def __init__(
        self,
        url: str,
        username: str | None,
        password: str | None,
        *,
        token: str | None,
        tls: ClientTls,
        connect_timeout_s: float,
        timeout_s: float,
        retries: int,
        backoff_s: float,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{_shown(url)}: not of the form http://HOST:PORT or https://HOST:PORT")
        try:
            port = parts.port
        except ValueError:
            raise ValueError(f"{_shown(url)}: not a port: it is a number from 0 to 65535") from None
        self._host = parts.hostname
        self._secure = parts.scheme == "https"
        self._port = port or (15671 if self._secure else 15672)
        self._prefix = parts.path.rstrip("/").removesuffix("/api") + "/api/"
        self.username = username if username is not None else unquote(parts.username or "guest")
        if password is None:
            password = unquote(parts.password) if parts.password is not None else "guest"
        credentials = base64.b64encode(f"{self.username}:{password}".encode()).decode()
        self._authorization = f"Basic {credentials}" if token is None else f"Bearer {token}"
        self._tls = tls
        self._connect_timeout_s = connect_timeout_s
        self._timeout_s = timeout_s
        self._retries = retries
        self._backoff_s = backoff_s
        self._connection: HTTPConnection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connection": None}

    @property
    def url(self) -> str:
        """Where the broker is, without credentials."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'https' if self._secure else 'http'}://{host}:{self._port}"

    def at(self, url: str) -> Self | None:
        """Return a client of another node of this broker, in which nothing is waited for long.

        None: the text about it is not such a URL, or it is not reached as safely as this broker.
        """
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            return None
        if parts.scheme != ("https" if self._secure else "http") or not parts.hostname or port is None:
            return None
        other = copy.copy(self)
        other._host, other._port, other._prefix = parts.hostname, port, "/api/"
        other._retries = min(self._retries, 1)
        other._connect_timeout_s = min(self._connect_timeout_s, NODE_CONNECT_S)
        return other

    def impatient(self, answer_s: float) -> Self:
        """Return a client that waits at most so long for a connection, or an answer, before it tries again."""
        other = copy.copy(self)
        other._timeout_s = min(self._timeout_s, answer_s)
        other._connect_timeout_s = min(self._connect_timeout_s, answer_s)
        return other

    def close(self) -> None:
        """Close the connection; the next call opens another one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _made(self, make: Callable[[], T]) -> T:
        """Return the result of `make` for an answer."""
        try:
            return make()
        except (KeyError, TypeError, ValueError) as error:
            raise self._unlike(f"an answer lacks {error}") from None

    def _object(self, method: str, segments: tuple[str, ...], body: object = None, *, repeat: bool = True) -> Object:
        found = self._json(method, segments, body, repeat=repeat)
        if not isinstance(found, dict):
            raise self._unlike(f"the answer for {'/'.join(segments)} is not an object")
        return found

    def _list(self, method: str, segments: tuple[str, ...]) -> list[Object]:
        found = self._json(method, segments)
        if not isinstance(found, list):
            raise self._unlike(f"the answer for {'/'.join(segments)} is not a list")
        return found

    def _json(
        self,
        method: str,
        segments: tuple[str, ...],
        body: object = None,
        *,
        query: Mapping[str, str] | None = None,
        repeat: bool = True,
    ) -> Any:
        raw = None if body is None else json.dumps(body).encode()
        _, data = self._send(method, segments, query=query, raw=raw, is_json=True, repeat=repeat)
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            raise self._unlike(f"the answer for {'/'.join(segments)} is not JSON") from None

    def _send(
        self,
        method: str,
        segments: tuple[str, ...],
        *,
        query: Mapping[str, str] | None = None,
        raw: bytes | None = None,
        is_json: bool = False,
        binary: bool = False,
        repeat: bool = True,
    ) -> tuple[Mapping[str, str], Any]:
        """Send a request, again if it must be, and return the headers, with small letters, and the body."""
        path = self._prefix + "/".join(quote(segment, safe="") for segment in segments)
        if query:
            path += "?" + urlencode(query)
        headers = {"Authorization": self._authorization}
        if raw is not None:
            headers["Content-Type"] = "application/json" if is_json else "application/octet-stream"
        attempt = 0
        while True:
            fresh = self._connection is None
            was_sent = False
            wait_s: float | None = None
            try:
                connection = self._connected()
                was_sent = True
                connection.request(method, path, raw, headers)
                response = connection.getresponse()
                status = response.status
                received = {name.lower(): value for name, value in response.getheaders()}
                data = self._body(response, binary and status < 300)
                if response.will_close:
                    self.close()
                if status < 300:
                    return received, data
                error = _refusal(status, bytes(data), segments, self.url)
                may_repeat = status in (_RETRIED if repeat else _NOTHING_DONE)
                if not may_repeat or attempt >= self._retries:
                    raise error
                wait_s = _seconds(received.get("retry-after"))
            except (OSError, HTTPException) as failure:
                self.close()
                what = _words(failure, self._timeout_s)
                is_final = hasattr(failure, "verify_code")  # its certificate is the same a second later
                if is_final or (was_sent and not repeat) or attempt >= self._retries:
                    raise Unreachable(f"cannot reach {self.url}: {what}") from None
                if not fresh and attempt == 0:
                    wait_s = 0.0  # a kept connection that had been closed meanwhile
            self._pause(attempt, wait_s)
            attempt += 1

    def _body(self, response: HTTPResponse, binary: bool) -> Any:
        """Read the body; `binary`: into memory of Arrow's."""
        length = response.length
        if not binary or length is None:
            return response.read()
        if length > ANSWER_BYTES_MAX:
            raise HTTPException(f"an answer of {length} bytes")
        buffer = pa.allocate_buffer(length)
        view = memoryview(buffer)
        at = 0
        while at < length:
            read = response.readinto(view[at : at + _READ_BYTES])
            if read == 0:
                raise HTTPException(f"the answer ends after {at} of {length} bytes")
            at += read
        response.read()  # to its end, so that the connection can be used again
        return buffer

    def _connected(self) -> HTTPConnection:
        if self._connection is None:
            made = connection_to(self._host, self._port, self._connect_timeout_s, self._tls if self._secure else None)
            made.connect()
            made.sock.settimeout(self._timeout_s)
            self._connection = made
        return self._connection

    def _pause(self, attempt: int, wait_s: float | None) -> None:
        if wait_s is None:
            wait_s = self._backoff_s * 2**attempt
        if wait_s > 0:
            time.sleep(min(wait_s, RETRY_PAUSE_MAX_S))

    def _unlike(self, what: str) -> Unreachable:
        return Unreachable(f"{self.url} does not answer as a Warren broker does: {what}")


def _refusal(status: int, data: bytes, segments: tuple[str, ...], url: str) -> BrokerError:
    """Return the error that an answer stands for."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        value = None
    error = value.get("error") if isinstance(value, dict) else None
    reason = value.get("reason") if isinstance(value, dict) else None
    error = error if isinstance(error, str) else ""
    text = reason if isinstance(reason, str) and reason else error or f"HTTP status {status}"
    what = f"{'/'.join(segments[3:]) or segments[-1]}: {text}"
    kind: type[BrokerError] = Refused
    if status in (401, 403):
        kind = NotAllowed
        what = f"{url}: refused: {text}"
    elif status == 410:
        kind = Gone
    elif status == 409 and error == "another_queue":
        kind = AnotherQueue
    elif status == 409 and error == "fenced":
        kind = Fenced
    elif status == 409 and error == "ahead":
        kind = Ahead
    elif status == 409 and error == "diverged":
        kind = Diverged
    elif status in (404, 405):
        kind = {"no_snapshot": NoSnapshot, "no_drain": NoDrain}.get(error, NotFound)
    elif status in _RETRIED:
        kind = Unreachable
        what = f"{url}: {text}"
    return kind(what, status, error)


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else max(0.0, float(text))
    except ValueError:
        return None


# By OpenSSL's number of what is wrong with a certificate.
_UNVERIFIED: Final = {
    9: "its certificate is not valid yet: compare the clocks",
    10: "its certificate has expired",
    **dict.fromkeys(
        (18, 19, 20, 21),
        "its certificate is from an unknown authority: name the file with that CA's certificate by --cacert FILE "
        "(with Spark the option tls.caFile)",
    ),
    **dict.fromkeys((62, 64), "its certificate is for another host name than the one in the URL"),
}


def _words(error: Exception, timeout_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer in {timeout_s:g} s"
    if (code := getattr(error, "verify_code", None)) is not None:
        return _UNVERIFIED.get(code, f"its certificate cannot be verified: {getattr(error, 'verify_message', '')}")
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def _shown(url: str) -> str:
    """Return `url` without a password."""
    head, at, tail = url.rpartition("@")
    return f"…@{tail}" if at and head else url
