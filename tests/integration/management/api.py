"""The API of a broker process, as one user asks it: a request each, over a connection of its own."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from email.message import Message
from typing import Any, NamedTuple

from broker_process import WarrenProcess


class Answer(NamedTuple):
    """An HTTP answer; `value` is the body decoded from JSON, None without a body."""

    status: int
    headers: Message
    value: Any


class Api:
    """A user's view of `process`, which may be restarted meanwhile."""

    def __init__(self, process: WarrenProcess, user: str = "guest", password: str = "guest") -> None:
        self._process = process
        self._authorization = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()

    def ask(self, method: str, path: str, body: object = None, content_type: str = "application/json") -> Answer:
        """Ask for a path below ``/api``; `body` is bytes, or something to be encoded as JSON."""
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        headers = {"Authorization": self._authorization, "Content-Type": content_type}
        url = f"http://127.0.0.1:{self._process.http_port}/api{path}"
        request = urllib.request.Request(url, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return Answer(answer.status, answer.headers, _decoded(answer.read()))
        except urllib.error.HTTPError as refusal:
            with refusal:
                return Answer(refusal.code, refusal.headers, _decoded(refusal.read()))

    def get(self, path: str) -> Any:
        """Return what is at a path; it must be there."""
        answer = self.ask("GET", path)
        assert answer.status == 200, (path, answer)
        return answer.value

    def put(self, path: str, body: object) -> None:
        """Put something that must be accepted."""
        answer = self.ask("PUT", path, body)
        assert answer.status in (201, 204), (path, answer)

    def post(self, path: str, body: object) -> Answer:
        return self.ask("POST", path, body)


def _decoded(body: bytes) -> Any:
    return json.loads(body) if body else None
