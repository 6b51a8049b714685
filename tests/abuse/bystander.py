"""An innocent client: its requests while others misbehave, and its waits.

It asks in turn for a confirm of a persistent message in a durable queue, for a login on a new connection, and for the
health of the node, each on its own and again as soon as it is answered and a short pause is over.

``python -m abuse.bystander AMQP_PORT HTTP_PORT``, in tests/, is that client. It is a process of its own, so that its
waits are not those for the other threads of a test. It says that it is ready, begins when it is told to, ends with its
input, and prints its `Waits`.
"""

from __future__ import annotations

import gc
import http.client
import json
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
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
READY = b"ready\n"


class Waits:
    """The longest wait for each of ``confirm``, ``login`` and ``health`` in s, the number of waits, and the errors."""

    def __init__(self) -> None:
        self.worst_s: dict[str, float] = {}
        self.count: dict[str, int] = {}
        self.failures: list[str] = []

    def note(self, what: str, waited_s: float) -> None:
        self.worst_s[what] = max(self.worst_s.get(what, 0.0), waited_s)
        self.count[what] = self.count.get(what, 0) + 1


class Bystander(Waits):
    """The process of an innocent client: it makes its requests inside the ``with`` block, and has waits after it."""

    def __init__(self, process: WarrenProcess) -> None:
        super().__init__()
        ports = [process.amqp_port, process.http_port]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "abuse.bystander", *map(str, ports)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[1],
        )

    def __enter__(self) -> Self:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == READY
        self._process.stdin.write(b"begin\n")
        self._process.stdin.flush()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        said, _ = self._process.communicate(timeout=4 * DEADLINE_S)
        found = json.loads(said)
        self.worst_s = found["worst_s"]
        self.count = found["count"]
        self.failures = found["failures"]


class Requests:
    """The requests of the client, each in a thread, from `begin` to `end`."""

    def __init__(self, amqp_port: int, http_port: int) -> None:
        self.waits = Waits()
        self._amqp_port = amqp_port
        self._http_port = http_port
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(what, once, pause_s), daemon=True)
            for what, once, pause_s in (
                ("confirm", self._confirm, PAUSE_S),
                ("login", self._login, LOGIN_PAUSE_S),
                ("health", self._health, LOGIN_PAUSE_S),
            )
        ]
        self._client = Attacker(amqp_port, "/", "guest", "guest")
        self._client.ask(m.QueueDeclare(0, QUEUE, False, True, False, False, False, b"\x00\x00\x00\x00"))
        self._client.pump([method_frame(1, m.ConfirmSelect(False))])
        self._client.barrier()
        self._message = publish_frames("", QUEUE, b"x" * 100, {"delivery_mode": 2})

    def begin(self) -> None:
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Wait for the answers to the requests under way."""
        self._over.set()
        for thread in self._threads:
            thread.join(DEADLINE_S)
            if thread.is_alive():
                self.waits.failures.append(f"no answer within {DEADLINE_S:.0f} s")
        self._client.close()

    def _run(self, what: str, once: object, pause_s: float) -> None:
        assert callable(once)
        while not self._over.wait(pause_s):
            began_s = time.monotonic()
            try:
                once()
            except (OSError, http.client.HTTPException, AssertionError) as error:
                self.waits.failures.append(f"{what}: {error!r}")
                return
            self.waits.note(what, time.monotonic() - began_s)

    def _confirm(self) -> None:
        self._client.send(self._message)
        self._client.read_until(m.BasicAck, 1)

    def _login(self) -> None:
        with socket.create_connection(("127.0.0.1", self._amqp_port), timeout=DEADLINE_S) as sock:
            sock.sendall(login_frames("guest", "guest", "/"))
            received = b""
            wanted = method_frame(0, m.ConnectionOpenOk(""))
            while wanted not in received:
                data = sock.recv(4096)
                assert data, f"the broker hung up: {received[-60:]!r}"
                received += data

    def _health(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._http_port, timeout=DEADLINE_S)
        try:
            connection.request("GET", "/health")
            answer = connection.getresponse()
            body = answer.read()
            assert answer.status == 200, body
        finally:
            connection.close()


def main() -> None:
    amqp_port, http_port = map(int, sys.argv[1:])
    requests = Requests(amqp_port, http_port)
    gc.freeze()
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    if sys.stdin.buffer.readline():
        requests.begin()
        sys.stdin.buffer.read()
        requests.end()
    print(json.dumps(vars(requests.waits)))


if __name__ == "__main__":
    main()
