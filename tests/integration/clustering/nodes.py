"""Leaders and followers as processes, on one machine: started, killed, stopped, promoted, and what they say.

1. A node keeps its ports over restarts and promotions. They are chosen free beforehand: of its cluster port others
   have to be told, and a promoted follower opens those of AMQP and HTTP once more.
2. Every wait is for a condition.
"""

from __future__ import annotations

import json
import shutil
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pika
from broker_process import WarrenProcess, wait_until
from free_ports import free_port
from pika.adapters.blocking_connection import BlockingChannel

SECRET = "what the nodes of this test share"
PERSISTENT = pika.BasicProperties(delivery_mode=2)


class Node:
    """One node, with the `listeners`. It leads, unless it is started with `follow`."""

    def __init__(
        self,
        directory: Path,
        name: str,
        settings: Mapping[str, object] | None = None,
        *,
        secret: str = SECRET,
        listeners: Sequence[str] = ("amqp", "http"),
    ) -> None:
        self.name = f"rabbit@{name}"
        self.directory = directory / name
        self.directory.mkdir(parents=True, exist_ok=True)
        self.cluster_port = free_port()
        self._ports = {listener: f"127.0.0.1:{free_port()}" for listener in listeners}
        self.settings = dict(settings or {})
        self.wrapper: Sequence[str] = ()
        self._secret_path = self.directory / "secret"
        self._secret_path.write_text(secret)
        self.process = self._process(WarrenProcess)

    def _process(self, kind: type[WarrenProcess], follow: Node | None = None) -> WarrenProcess:
        flags = self._ports | {
            "cluster-listen": f"127.0.0.1:{self.cluster_port}",
            "cluster-secret-file": str(self._secret_path),
        }
        if follow is not None:
            flags["follow"] = f"127.0.0.1:{follow.cluster_port}"
        settings = {"node_name": self.name, **self.settings}
        return kind(self.directory, flags, settings, self.wrapper)

    def lead(self, *, is_enough: bool = True) -> None:
        """Start it as a leader, and wait until it is healthy; until it answers, if it is not enough by itself."""
        self.process = self._process(WarrenProcess if is_enough else AnsweringProcess)
        self.process.start()

    def follow(self, leader: Node) -> None:
        """Start it as a follower, and wait until it answers over HTTP."""
        self.process = self._process(AnsweringProcess, leader)
        self.process.start()

    def lose(self) -> None:
        """Kill it, and lose its directory."""
        self.process.kill()
        shutil.rmtree(self.process.data_directory)

    # --- over HTTP --------------------------------------------------------------------------------------------------

    def ask(self, method: str, path: str, body: Mapping[str, object] | None = None) -> tuple[int, Any]:
        """Make a request as the administrator; return status and document."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.process.http_port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": "Basic " + b64encode(b"guest:guest").decode()},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as refusal:
            return refusal.code, json.loads(refusal.read() or b"null")

    def ask_text(self, path: str) -> str:
        """Return what a page answers that is no JSON, as the administrator sees it."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.process.http_port}{path}",
            headers={"Authorization": "Basic " + b64encode(b"guest:guest").decode()},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return str(answer.read().decode())

    def status(self) -> dict[str, Any]:
        """Return what the node says of the cluster."""
        status, document = self.ask("GET", "/api/cluster/status")
        assert status == 200, document
        assert isinstance(document, dict)
        return document

    def await_in_sync(self, *names: str) -> None:
        """Wait until the in-sync set of this leader consists of these nodes, and itself."""
        wanted = sorted([self.name, *(f"rabbit@{name}" for name in names)])
        wait_until(lambda: self._in_sync() == wanted, f"the in-sync set {wanted}")

    def _in_sync(self) -> list[str]:
        status = self.status()
        noted = {row["node"] for row in status["followers"] if row["connected"] and not row["catching_up"]}
        return [name for name in status["in_sync"] if name == self.name or name in noted]

    def await_log(self, text: str) -> None:
        """Wait until the node says so in its log."""
        wait_until(lambda: text in self.process.log(), f"{self.name} to say: {text}")

    def await_lost(self) -> None:
        """Wait until this follower knows that its leader has gone."""
        wait_until(lambda: not self.status()["connected"], "the follower to lose its leader")

    def promote(self, *, accept_loss: bool = False) -> dict[str, Any]:
        """Promote this follower, and wait until it serves."""
        status, document = self.ask("POST", "/api/cluster/promote", {"accept_loss": accept_loss})
        assert status == 200, document
        assert isinstance(self.process, AnsweringProcess)
        self.process.await_promotion()
        return dict(document)

    # --- over AMQP --------------------------------------------------------------------------------------------------

    def connect(self, **parameters: Any) -> pika.BlockingConnection:
        """Return a connection of guest."""
        return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.process.amqp_port, **parameters))

    def publish(self, queue: str, bodies: Sequence[bytes]) -> None:
        """Declare a durable queue and publish to it, each message confirmed before the next one."""
        with self.connect() as connection:
            channel = connection.channel()
            channel.queue_declare(queue, durable=True)
            channel.confirm_delivery()
            for body in bodies:
                channel.basic_publish("", queue, body, PERSISTENT)

    def drain(self, queue: str) -> list[bytes]:
        """Return the bodies of all messages of a queue, and take them out."""
        with self.connect() as connection:
            return drained(connection.channel(), queue)


def drained(channel: BlockingChannel, queue: str) -> list[bytes]:
    """Return the bodies of all messages of a queue, and take them out."""
    bodies: list[bytes] = []
    while True:
        method, _, body = channel.basic_get(queue, auto_ack=True)
        if method is None or body is None:
            return bodies
        bodies.append(body)


class AnsweringProcess(WarrenProcess):
    """One that has started when it answers over HTTP, whether it serves clients or not."""

    def health(self) -> int:
        """Return 200 when it answers, with 503 too: a follower without a leader serves nobody, and says so."""
        return 200 if super().health() in (200, 503) else 0

    def await_promotion(self) -> None:
        """Wait until it serves AMQP."""
        wait_until(self.is_leading, "the follower to lead")

    def is_leading(self) -> bool:
        """Tell whether it serves AMQP, as it says."""
        assert self.is_running(), self.log_tail()
        self._is_serving()
        return self.http_port != 0 and self.health_of("leader") == 200
