"""An HTTP service that dies in the middle of a request: a proxy that passes everything on until then.

1. A trap is for one request: the n-th that it fits. The request is held until the owner of the trap releases it, so
   that something else can be killed meanwhile. Then the service appears dead: either it has never seen the request, or
   it has carried it out and the answer is lost. All connections are cut, and so is a given number of the next requests.
2. The data of the service is not touched: it comes back as it was.
3. Requests are passed on as they came, with their Host, by a connection each.
"""

from __future__ import annotations

import http.client
import re
import socket
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

DEADLINE_S = 120.0
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "expect"}


@dataclass
class Trap:
    """`fits`: of method, space and path; `skip`: how many that fit pass before; `away`: how many are cut after it."""

    fits: str
    skip: int
    is_carried_out: bool
    away: int
    sprung: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)


class LossyProxy:
    """Runs while it is entered, in front of the service at `host` and `port`."""

    def __init__(self, host: str, port: int) -> None:
        self._behind = (host, port)
        self._lock = threading.Lock()
        self._trap: Trap | None = None
        self._away = 0
        self._connections: set[socket.socket] = set()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                proxy._connections.add(self.connection)

            def finish(self) -> None:
                proxy._connections.discard(self.connection)
                super().finish()

            def _pass_on(self) -> None:
                proxy._pass_on(self)

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass_on

            def log_message(self, format: str, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                pass  # the client is gone: it was killed, or its connection was cut

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.disarm()
        self._server.shutdown()
        self._server.server_close()
        self._cut()

    def arm(self, fits: str, *, skip: int = 0, is_carried_out: bool, away: int = 0) -> Trap:
        """Wait for a request; the trap says when it is there."""
        with self._lock:
            self._trap = Trap(fits, skip, is_carried_out, away)
            return self._trap

    def disarm(self) -> None:
        """Pass everything."""
        with self._lock:
            if self._trap is not None:
                self._trap.released.set()
            self._trap, self._away = None, 0

    def _sprung(self, request: str) -> tuple[bool, Trap | None]:
        """Return whether the service is away, and the trap of this request."""
        with self._lock:
            if self._away:
                self._away -= 1
                return True, None
            trap = self._trap
            if trap is None or re.search(trap.fits, request) is None:
                return False, None
            if trap.skip:
                trap.skip -= 1
                return False, None
            self._trap = None
            return False, trap

    def _pass_on(self, asked: BaseHTTPRequestHandler) -> None:
        body = _body(asked)
        is_away, trap = self._sprung(f"{asked.command} {asked.path}")
        if is_away:
            _close(asked.connection)
            asked.close_connection = True
            return
        answer = None
        if trap is None or trap.is_carried_out:
            answer = self._ask(asked, body)
        if trap is not None:
            trap.sprung.set()
            assert trap.released.wait(DEADLINE_S), "nobody has released the trap"
            with self._lock:
                self._away = trap.away
            self._cut(asked.connection)
            asked.close_connection = True
            return
        assert answer is not None
        status, headers, data = answer
        asked.send_response_only(status)
        for name, value in headers:
            asked.send_header(name, value)
        asked.end_headers()
        asked.wfile.write(data)

    def _ask(self, asked: BaseHTTPRequestHandler, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(*self._behind, timeout=DEADLINE_S)
        try:
            connection.putrequest(asked.command, asked.path, skip_host=True, skip_accept_encoding=True)
            for name, value in asked.headers.items():
                if name.lower() not in _HOP_BY_HOP:
                    connection.putheader(name, value)
            if body or asked.command in {"PUT", "POST"}:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            found = connection.getresponse()
            data = found.read()
            headers = [(name, value) for name, value in found.getheaders() if name.lower() not in _HOP_BY_HOP]
            length = found.getheader("Content-Length") if asked.command == "HEAD" else str(len(data))
            if length is not None and found.status != 204:
                headers.append(("Content-Length", length))
            return found.status, headers, data
        finally:
            connection.close()

    def _cut(self, last: socket.socket | None = None) -> None:
        """Cut all connections, `last` at the end: a client that sees this cut may know that the others are cut."""
        for connection in list(self._connections):
            if connection is not last:
                _close(connection)
        if last is not None:
            _close(last)


def _body(asked: BaseHTTPRequestHandler) -> bytes:
    """Return the body of a request, which may come in chunks."""
    if asked.headers.get("Transfer-Encoding", "").lower() != "chunked":
        return asked.rfile.read(int(asked.headers.get("Content-Length") or 0))
    whole = b""
    while size := int(asked.rfile.readline().partition(b";")[0], 16):
        whole += asked.rfile.read(size)
        asked.rfile.readline()
    while asked.rfile.readline().strip():
        pass
    return whole


def _close(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it is closed
