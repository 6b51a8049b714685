"""A schema registry with Confluent's API: HTTP clients get the schemas that a test registers."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import unquote


class FakeRegistry:
    """The server. `answers`: by path; `failures`: statuses that the next requests are answered with instead."""

    def __init__(self, login: str | None = None) -> None:
        self.asked: list[str] = []
        self.authorizations: list[str | None] = []
        self.failures: list[int] = []
        self.answers: dict[str, Any] = {}
        registry = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                registry.asked.append(self.path)
                registry.authorizations.append(self.headers.get("Authorization"))
                status, answer = registry._answer(unquote(self.path))
                if registry.failures:
                    status, answer = registry.failures.pop(0), {"message": "not now"}
                elif login is not None and self.headers.get("Authorization") != login:
                    status, answer = 401, {"message": "who are you"}
                raw = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def register(
        self, number: int, subject: str, schema: str, kind: str | None = None, references: Any = None, version: int = 1
    ) -> None:
        """Make a schema the newest version of a subject."""
        answer = {"id": number, "schema": schema, "subject": subject, "version": version}
        answer |= {} if kind is None else {"schemaType": kind}
        answer |= {} if references is None else {"references": references}
        query = "?format=serialized" if kind == "PROTOBUF" else ""
        for path in (f"ids/{number}", f"{subject}/versions/{version}", f"{subject}/versions/latest"):
            self.answers[f"{'/schemas' if path.startswith('ids/') else '/subjects'}/{path}{query}"] = answer

    def _answer(self, path: str) -> tuple[int, Any]:
        if path in self.answers:
            return 200, self.answers[path]
        return 404, {"error_code": 40403 if path.startswith("/schemas/") else 40401, "message": "not found"}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
