"""A plain client of the management API, and pika beside it."""

from __future__ import annotations

import base64
import http.client
import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import quote

import pika

DEADLINE_S = 60.0
EVERYTHING = {"configure": ".*", "write": ".*", "read": ".*"}
# Of a quorum queue: its dead letters go to a queue, given as x-dead-letter-routing-key, or stay as undelivered.
AT_LEAST_ONCE = {
    "x-queue-type": "quorum",
    "x-dead-letter-exchange": "",
    "x-dead-letter-strategy": "at-least-once",
    "x-overflow": "reject-publish",
}


class Answer(NamedTuple):
    """The answer to a request; names of `headers` are lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def refusal(self) -> tuple[int, str, Any]:
        """The status, the error and the reason of a request that was refused."""
        assert self.status >= 400, self
        return self.status, self.json["error"], self.json["reason"]


class Api:
    """The API as one user sees it, over one connection that stays open."""

    def __init__(self, port: int, user: str | None = "guest", password: str = "guest", host: str = "127.0.0.1") -> None:
        self.port = port
        self.host = host
        self.headers: dict[str, str] = {}
        if user is not None:
            self.headers["Authorization"] = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
        self._connection = http.client.HTTPConnection(host, port, timeout=30)

    def close(self) -> None:
        self._connection.close()

    def as_user(self, user: str | None, password: str = "x") -> Api:
        return Api(self.port, user, password, self.host)

    def ask(self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None) -> Answer:
        """Ask for a path below ``/api``, or any after ``//``; `body` is bytes, or something to be encoded as JSON."""
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        given = self.headers | ({} if data is None else {"Content-Type": "application/json"}) | (headers or {})
        # If the server closes the connection just then, ask once more, as browsers do.
        for attempt in range(2):
            try:
                self._connection.request(method, path[1:] if path.startswith("//") else "/api" + path, data, given)
                answer = self._connection.getresponse()
                break
            except (ConnectionError, http.client.RemoteDisconnected):
                self._connection.close()
                if attempt:
                    raise
        return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())

    def get(self, path: str) -> Any:
        """Return what is at a path; it must be there."""
        answer = self.ask("GET", path)
        assert answer.status == 200, (path, answer)
        return answer.json

    def put(self, path: str, body: object = None) -> int:
        """Put something that must be accepted; return the status."""
        return self._change("PUT", path, {} if body is None else body)

    def post(self, path: str, body: object = None) -> Answer:
        answer = self.ask("POST", path, {} if body is None else body)
        assert answer.status in (200, 201, 204), (path, answer)
        return answer

    def delete(self, path: str) -> int:
        return self._change("DELETE", path, None)

    def _change(self, method: str, path: str, body: object) -> int:
        answer = self.ask(method, path, body)
        assert answer.status in (201, 204), (method, path, answer)
        assert answer.body == b""
        return answer.status

    def eventually(self, path: str, wanted: Callable[[Any], Any]) -> Any:
        """Return what is at a path as soon as it is as `wanted`."""
        give_up_at = time.monotonic() + DEADLINE_S
        while True:
            found = self.get(path)
            if wanted(found):
                return found
            assert time.monotonic() < give_up_at, (path, found)
            time.sleep(0.02)


def q(name: str) -> str:
    """Return a name as a segment of a path."""
    return quote(name, safe="")


class Place:
    """A vhost of a test's own: its name, and its paths."""

    def __init__(self, api: Api, vhost: str) -> None:
        self.api = api
        self.vhost = vhost
        self.v = q(vhost)

    def user(self, name: str, tags: str, permissions: dict[str, str] | None = EVERYTHING) -> Api:
        """Make a user with the password ``x``, and permissions here unless None; return the API as it sees it."""
        self.api.put(f"/users/{q(name)}", {"password": "x", "tags": tags})
        if permissions is not None:
            self.api.put(f"/permissions/{self.v}/{q(name)}", permissions)
        return self.api.as_user(name)


def connect(
    port: int, vhost: str, user: str = "guest", password: str = "guest", **more: Any
) -> pika.BlockingConnection:
    """Return a pika connection to a broker on this machine."""
    credentials = pika.PlainCredentials(user, password)
    return pika.BlockingConnection(
        pika.ConnectionParameters("127.0.0.1", port, vhost, credentials, blocked_connection_timeout=30, **more)
    )
