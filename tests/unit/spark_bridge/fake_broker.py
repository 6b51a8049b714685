"""An HTTP server that answers what a test lays down, in that order, and keeps what it was asked."""

from __future__ import annotations

import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self


class Asked(NamedTuple):
    """A request as it came."""

    method: str
    path: str
    body: bytes
    headers: dict[str, str]
    connection: int

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Reply(NamedTuple):
    """An answer. `silence`: the connection is closed instead; `cut`: the number of missing bytes of the body."""

    value: object = None
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    silence: bool = False
    cut: int = 0


class FakeBroker:
    """The server; the last of `replies` stays."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.replies: list[Reply] = []
        self.asked: list[Asked] = []
        broker = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                asked = Asked(self.command, self.path, body, dict(self.headers), self.client_address[1])
                broker.asked.append(asked)
                reply = broker.replies.pop(0) if len(broker.replies) > 1 else broker.replies[0]
                if reply.silence:
                    self.close_connection = True
                    return
                raw = reply.value if isinstance(reply.value, bytes) else json.dumps(reply.value).encode()
                if reply.value is None:
                    raw = b""
                self.send_response(reply.status)
                for name, value in reply.headers:
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw[: len(raw) - reply.cut])
                self.close_connection = self.close_connection or reply.cut > 0

            do_GET = do_PUT = do_POST = do_DELETE = handle_any

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._scheme = "http" if tls is None else "https"
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def url(self) -> str:
        return f"{self._scheme}://localhost:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
