"""A management API of a few lines: it gives the answers that a test prepared and records the requests.

1. It listens on a free loopback port, speaks HTTP/1.1 with keep-alive from threads, and ends when closed.
2. A request without a prepared answer gets RabbitMQ's 404, except `whoami`, which every API knows.
3. An answer may be a list of answers: each request takes the next one, and the last one stays.
"""

from __future__ import annotations

import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

NOT_FOUND = {"error": "Object Not Found", "reason": "Not Found"}


class Asked(NamedTuple):
    """One request as it came: the path with its query, the parsed body."""

    method: str
    path: str
    body: Any
    headers: dict[str, str]
    connection: int  # numbered by the port the client used


class Reply(NamedTuple):
    """One answer; `value` bytes go out as they are, None is an empty body."""

    value: object = None
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    hang_up: bool = False  # close the connection afterwards, without saying so
    silence: bool = False  # close the connection instead of answering


class FakeApi:
    """The server; `answers` are found by method and path without ``/api/`` and query."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.answers: dict[tuple[str, str], Reply | list[Reply]] = {}
        self.asked: list[Asked] = []
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                text = self.rfile.read(length)
                body = json.loads(text) if text else None
                api.asked.append(Asked(self.command, self.path, body, dict(self.headers), self.client_address[1]))
                reply = api.reply_to(self.command, self.path)
                if reply.silence:
                    self.close_connection = True
                    return
                data = reply.value if isinstance(reply.value, bytes) else b""
                if reply.value is not None and not isinstance(reply.value, bytes):
                    data = json.dumps(reply.value).encode()
                self.send_response(reply.status)
                for name, value in reply.headers:
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
                self.close_connection = reply.hang_up

            do_GET = do_PUT = do_POST = do_DELETE = handle_any

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self._scheme = "http" if tls is None else "https"
        if tls is not None:
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True)
        self._thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    @property
    def port(self) -> int:
        port: int = self.server.server_address[1]
        return port

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self.port}"

    def answer(self, method: str, path: str, value: object = None, status: int = 200, **more: Any) -> None:
        """Prepare an answer; a second one for the same request is for the next of these requests."""
        reply = Reply(value, status, **more)
        before = self.answers.get((method, path))
        if before is None:
            self.answers[method, path] = reply
        else:
            self.answers[method, path] = [*(before if isinstance(before, list) else [before]), reply]

    def reply_to(self, method: str, path: str) -> Reply:
        found = self.answers.get((method, path.partition("?")[0].removeprefix("/api/")))
        if found is None and (method, path) == ("GET", "/api/whoami"):
            return Reply({"name": "guest"})
        if found is None:
            return Reply(NOT_FOUND, 404)
        if isinstance(found, list):
            return found.pop(0) if len(found) > 1 else found[0]
        return found

    def changes(self) -> list[tuple[str, str, Any]]:
        """Return the requests that were not GETs: method, path and body."""
        return [(asked.method, asked.path, asked.body) for asked in self.asked if asked.method != "GET"]

    def close(self) -> None:
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()
