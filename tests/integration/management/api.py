"""The management API of a broker process, asked over HTTP with the standard library."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from typing import Any, NamedTuple

from broker_process import WarrenProcess


class Answer(NamedTuple):
    """What came back; `value` is the JSON of the body, None when there is no body."""

    status: int
    headers: dict[str, str]
    value: Any


class Api:
    """One user at one broker."""

    def __init__(self, process: WarrenProcess, user: str = "guest", password: str = "guest") -> None:
        self._process = process
        self._credentials = base64.b64encode(f"{user}:{password}".encode()).decode()

    def ask(self, method: str, path: str, body: object = None, content_type: str = "application/json") -> Answer:
        """Ask for ``/api`` + `path`; a body that is not bytes goes as JSON."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._process.http_port}/api{path}",
            data=data,
            method=method,
            headers={"Authorization": f"Basic {self._credentials}", "Content-Type": content_type},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return _answer(answer.status, dict(answer.headers), answer.read())
        except urllib.error.HTTPError as refusal:
            with refusal:
                return _answer(refusal.code, dict(refusal.headers), refusal.read())

    def get(self, path: str) -> Any:
        """Return what GET answers with 200."""
        answer = self.ask("GET", path)
        assert answer.status == 200, answer
        return answer.value

    def post(self, path: str, body: object) -> Answer:
        return self.ask("POST", path, body)

    def put(self, path: str, body: object) -> None:
        """PUT, which must succeed."""
        answer = self.ask("PUT", path, body)
        assert answer.status in (201, 204), answer


def _answer(status: int, headers: dict[str, str], body: bytes) -> Answer:
    return Answer(status, headers, json.loads(body) if body else None)
