"""CPU of a broker per MQTT message: one publisher, subscribers of a topic, raw sockets and packets made beforehand.

And what a connection that says nothing costs, without and with a subscription (`footprint`).

    .venv/bin/python -m benchmarks.mqtt

Warren and, where it is on the path or named by MOSQUITTO, mosquitto, in turns; each figure is the CPU of all the
broker's processes divided by the messages that came through. Of QoS 0 at most `IN_FLIGHT` messages are on their way,
of QoS 1 `UNACKED`.
"""

from __future__ import annotations

import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from benchmarks.brokers import Server, free_port
from benchmarks.stomp import START_S, cpu_s
from warren.perf.footprint import settled_sample

ROUNDS: Final = 5
SECONDS: Final = 4.0
IN_FLIGHT: Final = 20_000
UNACKED: Final = 1000
CHUNK: Final = 200
PAUSE_S: Final = 0.0005  # between two looks whether there is room
STALLED_S: Final = 10.0
IDLE: Final = 5000
IDLE_WARM: Final = 300  # before what is counted
IDLE_AT_ONCE: Final = 100
IDLE_RESTS_S: Final = 3.0  # until outboxes hold nothing
BODY: Final = b"x" * 100
TOPIC: Final = b"\x00\x05bench"
PUBLISH_0: Final = b"\x30\x6b" + TOPIC + BODY
PUBLISH_1_BYTES: Final = 2 + len(TOPIC) + 2 + len(BODY)
ID_AT: Final = 2 + len(TOPIC)


class Load(NamedTuple):
    """One kind of traffic."""

    name: str
    qos: int
    readers: int


LOADS: Final = (Load("QoS 0, 1 to 1", 0, 1), Load("QoS 1, 1 to 1", 1, 1), Load("QoS 0, 1 to 10", 0, 10))


class ProcessServer:
    """A broker that is one process."""

    def __init__(self, command: list[str], directory: Path) -> None:
        self._command = command
        self._output = directory / "output.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(self._command, stdout=output, stderr=output)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def exit_status(self) -> int | None:
        return None if self._process is None else self._process.poll()


def warren_server(directory: Path, port: int) -> Server:
    """Return Warren as it is installed beside this interpreter."""
    command = [sys.executable, "-P", "-m", "warren", "serve", "--data-dir", str(directory / "data")]
    command += ["--amqp", "127.0.0.1:0", "--http", "off", "--prometheus", "off", "--mqtt", f"127.0.0.1:{port}"]
    return ProcessServer(command, directory)


def mosquitto_server(program: str, directory: Path, port: int) -> Server:
    """Return a mosquitto that drops nothing of these loads."""
    settings = ["allow_anonymous true", "max_queued_messages 0", f"max_inflight_messages {UNACKED}", "user root"]
    path = directory / "mosquitto.conf"
    path.write_text("\n".join([f"listener {port} 127.0.0.1", *settings, ""]))
    return ProcessServer([program, "-c", str(path)], directory)


def connect_packet(name: str) -> bytes:
    """Return CONNECT of 3.1.1, of a session that ends with its connection."""
    rest = b"".join(len(each).to_bytes(2, "big") + each for each in (name.encode(), b"guest", b"guest"))
    body = b"\x00\x04MQTT\x04\xc2\x00\x00" + rest
    return b"\x10" + bytes([len(body)]) + body


def connected(port: int, name: str) -> socket.socket:
    """Return a socket that is logged in, as soon as somebody listens."""
    give_up_at = time.monotonic() + START_S
    while True:
        try:
            sock = socket.create_connection(("127.0.0.1", port), timeout=30)
            break
        except OSError:
            if time.monotonic() > give_up_at:
                raise
            time.sleep(0.1)
    sock.sendall(connect_packet(name))
    answer = sock.recv(65536)
    assert answer == b"\x20\x02\x00\x00", answer
    return sock


class Reader:
    """A subscriber. `received`: how many messages have come."""

    def __init__(self, port: int, number: int, qos: int) -> None:
        self.received = 0
        self._is_asked = qos > 0
        self._size = PUBLISH_1_BYTES if qos else len(PUBLISH_0)
        self._sock = connected(port, f"reader{number}")
        self._sock.sendall(b"\x82\x0a\x00\x01" + TOPIC + bytes([qos]))
        answer = self._sock.recv(65536)
        assert answer == b"\x90\x03\x00\x01" + bytes([qos]), answer
        self._thread = threading.Thread(target=self._read)

    def begin(self) -> None:
        self._thread.start()

    def _read(self) -> None:
        rest = b""
        size = self._size
        while True:
            try:
                data = self._sock.recv(262144)
            except OSError:
                return
            if not data:
                return
            data = rest + data
            count = len(data) // size
            if self._is_asked and count:
                ids = [data[at + ID_AT : at + ID_AT + 2] for at in range(0, count * size, size)]
                self._sock.sendall(b"\x40\x02" + b"\x40\x02".join(ids))
            rest = data[count * size :]
            self.received += count

    def close(self) -> None:
        self._sock.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._sock.close()


class Writer:
    """The publisher. `acknowledged`: how many messages of QoS 1 were."""

    def __init__(self, port: int, qos: int) -> None:
        self.sent = 0
        self.acknowledged = 0
        self._qos = qos
        self._sock = connected(port, "writer")
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def send(self) -> None:
        """Send `CHUNK` messages."""
        if self._qos == 0:
            self._sock.sendall(PUBLISH_0 * CHUNK)
        else:
            ids = [(at % 65535 + 1).to_bytes(2, "big") for at in range(self.sent, self.sent + CHUNK)]
            self._sock.sendall(b"".join([b"\x32\x6d" + TOPIC + each + BODY for each in ids]))
        self.sent += CHUNK

    def _read(self) -> None:
        received = 0
        while True:
            try:
                data = self._sock.recv(65536)
            except OSError:
                return
            if not data:
                return
            received += len(data)
            self.acknowledged = received // 4

    def close(self) -> None:
        self._sock.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._sock.close()


def flow(port: int, pid: int, load: Load, seconds: float = SECONDS) -> tuple[float, float]:
    """Send for a while; return CPU in us for each message that came, and such messages for each second.

    Raises:
        TimeoutError: nothing has come for `STALLED_S`: messages are lost.
    """
    readers = [Reader(port, number, load.qos) for number in range(load.readers)]
    writer = Writer(port, load.qos)
    begin, cpu = time.monotonic(), cpu_s(pid)
    for reader in readers:
        reader.begin()
    while writer.sent == 0 or time.monotonic() - begin < seconds:
        slowest = min(reader.received for reader in readers)
        most = IN_FLIGHT // load.readers
        done = min(slowest, writer.acknowledged) if load.qos else slowest
        if writer.sent - done < (UNACKED if load.qos else most):
            writer.send()
        else:
            time.sleep(PAUSE_S)
    came, came_at = 0, time.monotonic()
    while min(reader.received for reader in readers) < writer.sent:
        received = sum(reader.received for reader in readers)
        if received > came:
            came, came_at = received, time.monotonic()
        is_lost = time.monotonic() - came_at > STALLED_S
        if is_lost:
            break
        time.sleep(PAUSE_S)
    else:
        is_lost = False
    spent, lasted_s = cpu_s(pid) - cpu, time.monotonic() - begin
    received = sum(reader.received for reader in readers)
    for reader in readers:
        reader.close()
    writer.close()
    if is_lost:
        raise TimeoutError(f"of {writer.sent * load.readers:,} messages {received:,} have come")
    return spent * 1e6 / received, received / lasted_s


class Footprint(NamedTuple):
    """Memory of a connection that says nothing, and CPU until it is answered; of a subscription the same besides."""

    idle_bytes: float
    connect_us: float
    subscription_bytes: float
    subscribe_us: float


def footprint(port: int, pid: int, count: int = IDLE) -> Footprint:
    """Have so many clients connect to a broker that is new, then subscribe, `IDLE_AT_ONCE` at a time."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    kept = _connect_many(port, range(IDLE_WARM))
    _subscribe_many(kept, 0)
    before, cpu = _rested(pid), cpu_s(pid)
    made = _connect_many(port, range(IDLE_WARM, IDLE_WARM + count))
    connected_s = cpu_s(pid) - cpu
    idle, cpu = _rested(pid), cpu_s(pid)
    _subscribe_many(made, IDLE_WARM)
    subscribed_s = cpu_s(pid) - cpu
    subscribed = _rested(pid)
    for each in kept + made:
        each.close()
    found = ((idle - before) / count, connected_s * 1e6 / count)
    return Footprint(*found, (subscribed - idle) / count, subscribed_s * 1e6 / count)


def _rested(pid: int) -> int:
    """Return the resident memory of a broker once its connections rest."""
    time.sleep(IDLE_RESTS_S)
    return settled_sample(pid).rss_bytes


def _connect_many(port: int, numbers: range) -> list[socket.socket]:
    made: list[socket.socket] = []
    for first in range(numbers.start, numbers.stop, IDLE_AT_ONCE):
        some: list[socket.socket] = []
        for number in range(first, min(first + IDLE_AT_ONCE, numbers.stop)):
            sock = socket.create_connection(("127.0.0.1", port), timeout=30)
            sock.sendall(connect_packet(f"device-{number:06d}"))
            some.append(sock)
        for sock in some:
            answer = sock.recv(4)
            assert answer == b"\x20\x02\x00\x00", answer
        made += some
    return made


def _subscribe_many(clients: list[socket.socket], first: int) -> None:
    for begin in range(0, len(clients), IDLE_AT_ONCE):
        some = clients[begin : begin + IDLE_AT_ONCE]
        for number, sock in enumerate(some, first + begin):
            topic = f"devices/{number:06d}/commands".encode()
            head = bytes([len(topic) + 5]) + b"\x00\x01\x00" + bytes([len(topic)])
            sock.sendall(b"\x82" + head + topic + b"\x00")
        for sock in some:
            answer = sock.recv(5)
            assert answer == b"\x90\x03\x00\x01\x00", answer


def main() -> None:
    """Measure in turns, and print the medians of each load."""
    mosquitto = os.environ.get("MOSQUITTO") or shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
    with tempfile.TemporaryDirectory() as temporary:
        servers: dict[str, tuple[Server, int]] = {}
        for name in ("warren", "mosquitto"):
            directory = Path(temporary) / name
            directory.mkdir()
            port = free_port()
            if name == "warren":
                servers[name] = warren_server(directory, port), port
            elif name == "mosquitto" and mosquitto is not None:
                servers[name] = mosquitto_server(mosquitto, directory, port), port
        try:
            for server, port in servers.values():
                server.start()
                connected(port, "first").close()
            for name, (server, port) in servers.items():
                cost = footprint(port, server.pid)
                print(f"{'idle':15} {name:10} {cost.idle_bytes:8,.0f} B {cost.connect_us:8.0f} us/connect")
                print(f"{'QoS 0 besides':15} {name:10} {cost.subscription_bytes:8,.0f} B {cost.subscribe_us:8.0f} us")
            for load in LOADS:
                found: dict[str, list[tuple[float, float]]] = {name: [] for name in servers}
                for _ in range(ROUNDS):
                    for name, (server, port) in servers.items():
                        found[name].append(flow(port, server.pid, load))
                for name, rounds in found.items():
                    cpu_us, rate = median(each[0] for each in rounds), median(each[1] for each in rounds)
                    print(f"{load.name:15} {name:10} {cpu_us:8.2f} us/message {rate:10,.0f} messages/s", flush=True)
        finally:
            for server, _ in servers.values():
                server.stop()


if __name__ == "__main__":
    main()
