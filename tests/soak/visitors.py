"""Visitors beside the AMQP clients of a soak, in threads of their own: management, drains, and coming and going.

A visitor repeats its visits for as long as it lives. A failure while the broker is up is a violation; a failure while
it is away is not. `Presence` knows which holds, and is told before the broker is ended.
"""

from __future__ import annotations

import queue
import random
import threading
from abc import ABC, abstractmethod
from typing import Any

from column_rows import rows_of
from integration.management.client import Answer, Api, q

from warren.amqp_client import frames
from warren.perf.client import Address, PerfConnection

from .books import maybe_number
from .topology import QUEUES

_JOIN_S = 90.0
_ROWS_MOST = 2000
_PAGES = (
    "/overview",
    "/nodes",
    "/queues?page=1&page_size=20&sort=messages",
    "/queues/%2F/plain",
    "/connections?page=1&page_size=20",
    "/channels",
    "/consumers",
    "/exchanges",
    "/bindings",
    "/policies",
    "/shovels",
    "/warren/stream-groups",
    "/warren/drains",
    "/stream/super-streams",
    "//",
    "//metrics",
    "//health",
)


class Presence:
    """Whether the broker is there, and how often it was not."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_there = True
        self._absences = 0

    def leave(self) -> None:
        """Note that it is about to be ended."""
        with self._lock:
            self._is_there = False
            self._absences += 1

    def come(self) -> None:
        """Note that it serves again."""
        with self._lock:
            self._is_there = True

    def token(self) -> int:
        """Return what `was_there_since` wants."""
        with self._lock:
            return self._absences if self._is_there else -1

    def was_there_since(self, token: int) -> bool:
        with self._lock:
            return self._is_there and token == self._absences


class Visitor(threading.Thread, ABC):
    """Makes one visit after the other, with a pause between them. `failures` is what went wrong, `visits` how many."""

    pause_s = 0.05

    def __init__(self, presence: Presence, chooser: random.Random) -> None:
        super().__init__(daemon=True)
        self.failures: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.visits = 0
        self.chooser = chooser
        self._presence = presence
        self._over = threading.Event()
        self._may = threading.Event()
        self._may.set()
        self._at_rest = threading.Event()

    def run(self) -> None:
        while not self._over.wait(self.pause_s):
            if not self._may.is_set():
                self._at_rest.set()
                self._may.wait(0.2)
                continue
            self._at_rest.clear()
            token = self._presence.token()
            if token < 0:
                continue
            try:
                self.visit()
                self.visits += 1
            except Exception as error:
                self._failed(token, error)
        self._at_rest.set()

    @abstractmethod
    def visit(self) -> None:
        """Do it once."""

    def _failed(self, token: int, error: Exception) -> None:
        if self._presence.was_there_since(token):
            self.failures.put(f"{type(self).__name__}: {error!r}")

    def rest(self) -> None:
        """Make it end its visit, and begin no other."""
        self._may.clear()

    def is_at_rest(self) -> bool:
        return not self._may.is_set() and self._at_rest.is_set()

    def resume(self) -> None:
        self._at_rest.clear()
        self._may.set()

    def end(self) -> None:
        """End it."""
        self._over.set()
        self._may.set()
        self.join(_JOIN_S)


class Manager(Visitor):
    """Looks at pages, changes policies, imports definitions, makes snapshots of the long queue."""

    def __init__(self, presence: Presence, chooser: random.Random, port: int) -> None:
        super().__init__(presence, chooser)
        self._port = port
        self._definitions: object = None

    def visit(self) -> None:
        api = Api(self._port)
        try:
            for _ in range(self.chooser.randint(1, 10)):
                self._look(api, self.chooser.choice(_PAGES))
            act = self.chooser.choice([self._policy, self._policy, self._import, self._vhost, self._snapshot])
            act(api)
        finally:
            api.close()

    def _look(self, api: Api, path: str) -> None:
        answer = api.ask("GET", path)
        assert answer.status == 200, (path, answer.status, answer.body[:200])

    def _policy(self, api: Api) -> None:
        pattern = f"^churn-{self.chooser.randrange(10)}"
        definition = {"max-length": self.chooser.randint(1, 1000), "message-ttl": 60_000}
        api.put("/policies/%2F/soak", {"pattern": pattern, "definition": definition, "apply-to": "queues"})
        if self.chooser.random() < 0.5:
            api.delete("/policies/%2F/soak")

    def _import(self, api: Api) -> None:
        # Of a fixed set: short-lived objects are gone by the time of the import.
        if self._definitions is None:
            names = {each.name for each in QUEUES}
            found: dict[str, Any] = api.get("/definitions")
            self._definitions = {
                "users": found["users"],
                "exchanges": found["exchanges"],
                "queues": [each for each in found["queues"] if each["name"] in names],
                "bindings": [each for each in found["bindings"] if each["destination"] in names],
            }
        api.post("/definitions", self._definitions)

    def _vhost(self, api: Api) -> None:
        name = f"churn-{self.chooser.randrange(3)}"
        api.put(f"/vhosts/{name}")
        api.put(f"/queues/{name}/some", {"durable": True})
        api.ask("POST", f"/exchanges/{name}/amq.default/publish", _PUBLISH)
        api.delete(f"/vhosts/{name}")

    def _snapshot(self, api: Api) -> None:
        answer = api.ask("POST", "/warren/snapshots/%2F/deep", {"ttl_s": 60})
        if answer.status == 507:
            return  # while the disk is nearly full none is made
        made = _checked(answer, 201, 202)
        end = min(int(made["end"] or 0), _ROWS_MOST)
        snapshot = made["snapshot"]
        at, last = 0, ""
        while at < end and made["state"] == "ready":
            path = f"/warren/data/%2F/deep/chunks?from={at}&to={end}&id={made['id']}&snapshot={snapshot}"
            answer = api.ask("GET", path)
            assert answer.status == 200, (answer.status, answer.body[:200])
            for row in rows_of(answer.body):
                assert maybe_number(row.body) is not None, f"row {row.offset} of a snapshot: {row.body[:40]!r}"
                last = row.routing_key
            at = int(answer.headers["x-warren-next"])
        assert last in ("", "deep"), last
        assert api.ask("DELETE", f"/warren/snapshots/%2F/deep/{snapshot}").status == 204


_PUBLISH = {"properties": {"delivery_mode": 2}, "routing_key": "some", "payload": "x", "payload_encoding": "string"}


class Drainer(Visitor):
    """Drains a queue over HTTP as a reader with a checkpoint; `rows` are the bodies of what it committed."""

    pause_s = 0.01

    def __init__(self, presence: Presence, chooser: random.Random, port: int) -> None:
        super().__init__(presence, chooser)
        self.rows: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._port = port
        self._path = "/warren/drains/%2F/drained/reader"
        self._after = 0  # committed up to here
        self._planned = 0  # and this is where the batch under way ends

    def visit(self) -> None:
        """Open the session, and drain until it forgets everything but its checkpoint."""
        api = Api(self._port)
        try:
            session = _checked(api.ask("POST", f"{self._path}/open", {"owner": "soak"}), 200)
            while self._may.is_set() and not self._over.is_set() and self.chooser.random() > 0.02:
                if not self._batch(api, session):
                    self._over.wait(0.05)
        finally:
            api.close()

    def _batch(self, api: Api, session: dict[str, Any]) -> bool:
        if self._planned == self._after:
            order = {"epoch": session["epoch"], "after": self._after, "max_rows": self.chooser.choice([10, 100, 1000])}
            claimed = _checked(api.ask("POST", f"{self._path}/claim", order), 200)
            assert claimed["first"] == self._after, (claimed, self._after)
            self._planned = int(claimed["end"])
        bodies: list[bytes] = []
        at = self._after
        while at < self._planned:
            span = f"from={at}&to={self._planned}&id={session['id']}"
            answer = api.ask("GET", f"/warren/data/%2F/{q(str(session['queue']))}/chunks?{span}")
            _checked(answer, 200, is_json=False)
            bodies += [row.body for row in rows_of(answer.body)]
            at = int(answer.headers["x-warren-next"])
        assert len(bodies) == self._planned - self._after, (len(bodies), self._after, self._planned)
        for body in bodies:
            self.rows.put(body)
        self._after = self._planned
        return bool(bodies)


def _checked(answer: Answer, *statuses: int, is_json: bool = True) -> Any:
    if answer.status == 503:
        raise ConnectionError("the broker is busy or starting")
    assert answer.status in statuses, (answer.status, answer.body[:300])
    return answer.json if is_json else None


class Comer(Visitor):
    """Connects, opens, declares, binds, publishes, gets, deletes, and leaves with or without a word."""

    def __init__(self, presence: Presence, chooser: random.Random, address: Address, name: str) -> None:
        super().__init__(presence, chooser)
        self.name = name
        self._address = address
        self._count = 0
        self._made: list[str] = []  # and perhaps not deleted

    def visit(self) -> None:
        connection = PerfConnection.open(self._address, name=self.name)
        try:
            connection.delete_queues(self._made)
            self._made = []
            for _ in range(self.chooser.randint(1, 5)):
                self._use(connection, self._new_name())
            if self.chooser.random() < 0.3:
                # Exclusive queues go with the connection.
                name = self._new_name()
                connection.declare_queue(name, exclusive=True)
                connection.consume(name, "c", no_ack=True)
        except BaseException:
            connection.abort()
            raise
        if self.chooser.random() < 0.4:
            connection.abort()
        else:
            connection.close()

    def _new_name(self) -> str:
        self._count += 1
        return f"churn-{self._count % 10}-{self.name}-{self._count}"

    def _use(self, connection: PerfConnection, name: str) -> None:
        self._made.append(name)
        kind: dict[str, object] = self.chooser.choice(
            [{}, {"x-queue-type": "quorum"}, {"x-max-priority": 3}, {"x-message-ttl": 1000}, {"x-expires": 600_000}]
        )
        connection.declare_queue(name, durable=True, arguments=kind)
        connection.bind("amq.topic", [(name, f"{name}.#", {}), (name, "*.x", {})])
        for _ in range(self.chooser.randint(0, 5)):
            connection.send(
                frames.publish(1, "amq.topic", f"{name}.a", b"x" * 100, frame_max_bytes=connection.frame_max_bytes)
            )
        connection.maybe_get(name)
        connection.delete_queue(name)
        self._made.remove(name)
