"""An innocent client: its requests while others misbehave, and its waits.

It asks in turn for a confirm of a persistent message in a durable queue, for a login on a new connection, and for the
health of the node, each on its own and again as soon as it is answered and a short pause is over.
"""

from __future__ import annotations

import http.client
import socket
import threading
import time
from types import TracebackType
from typing import Self

from broker_process import WarrenProcess

from warren.amqp import methods as m
from warren.amqp.codec import method_frame

from .attacker import Attacker, login_frames, publish_frames

PAUSE_S = 0.002
LOGIN_PAUSE_S = 0.1
DEADLINE_S = 60.0
QUEUE = "bystander"


class Bystander:
    """Runs in three threads inside its ``with`` block.

    `worst_s` holds the longest wait for each of ``confirm``, ``login`` and ``health``, `count` the number of waits, and
    `failures` the errors, which must stay empty.
    """

    def __init__(self, process: WarrenProcess) -> None:
        self.worst_s: dict[str, float] = {}
        self.count: dict[str, int] = {}
        self.failures: list[str] = []
        self._process = process
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(what, once, pause_s), daemon=True)
            for what, once, pause_s in (
                ("confirm", self._confirm, PAUSE_S),
                ("login", self._login, LOGIN_PAUSE_S),
                ("health", self._health, LOGIN_PAUSE_S),
            )
        ]
        self._client = Attacker(process.amqp_port, "/", "guest", "guest")
        self._client.ask(m.QueueDeclare(0, QUEUE, False, True, False, False, False, b"\x00\x00\x00\x00"))
        self._client.pump([method_frame(1, m.ConfirmSelect(False))])
        self._client.barrier()
        self._message = publish_frames("", QUEUE, b"x" * 100, {"delivery_mode": 2})

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(DEADLINE_S)
        self._client.close()

    def _run(self, what: str, once: object, pause_s: float) -> None:
        assert callable(once)
        while not self._over.wait(pause_s):
            began_s = time.monotonic()
            try:
                once()
            except (OSError, http.client.HTTPException, AssertionError) as error:
                self.failures.append(f"{what}: {error!r}")
                return
            waited_s = time.monotonic() - began_s
            self.worst_s[what] = max(self.worst_s.get(what, 0.0), waited_s)
            self.count[what] = self.count.get(what, 0) + 1

    def _confirm(self) -> None:
        self._client.send(self._message)
        self._client.read_until(m.BasicAck, 1)

    def _login(self) -> None:
        with socket.create_connection(("127.0.0.1", self._process.amqp_port), timeout=DEADLINE_S) as sock:
            sock.sendall(login_frames("guest", "guest", "/"))
            received = b""
            wanted = method_frame(0, m.ConnectionOpenOk(""))
            while wanted not in received:
                data = sock.recv(4096)
                assert data, f"the broker hung up: {received[-60:]!r}"
                received += data

    def _health(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._process.http_port, timeout=DEADLINE_S)
        try:
            connection.request("GET", "/health")
            answer = connection.getresponse()
            body = answer.read()
            assert answer.status == 200, body
        finally:
            connection.close()
