"""CPU of a broker per STOMP message: one publisher, one subscriber of a topic, raw sockets and frames made beforehand.

    .venv/bin/python -m benchmarks.stomp

Warren and, where it is installed, RabbitMQ with its STOMP plugin, in turns; each figure is the CPU of all the broker's
processes divided by the messages that came through. At most `IN_FLIGHT` messages are on their way.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks import rabbitmq
from benchmarks.brokers import Server, free_port
from warren.perf.process_stats import descendants

ROUNDS: Final = 5
SECONDS: Final = 4.0
IN_FLIGHT: Final = 20_000
CHUNK: Final = 200
PAUSE_S: Final = 0.0005  # between two looks whether there is room
START_S: Final = 60.0
BODY: Final = b"x" * 100
SEND: Final = b"SEND\ndestination:/topic/bench\ncontent-length:100\n\n" + BODY + b"\0"
CONNECT: Final = b"CONNECT\naccept-version:1.2\nhost:/\nlogin:guest\npasscode:guest\n\n\0"
SUBSCRIBE: Final = b"SUBSCRIBE\ndestination:/topic/bench\nid:0\nack:auto\nreceipt:ready\n\n\0"


class WarrenServer:
    """Warren as it is installed beside this interpreter."""

    def __init__(self, directory: Path, port: int) -> None:
        self._command = [sys.executable, "-P", "-m", "warren", "serve", "--data-dir", str(directory / "data")]
        self._command += ["--amqp", "127.0.0.1:0", "--http", "off", "--prometheus", "off"]
        self._command += ["--stomp", f"127.0.0.1:{port}"]
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


def rabbitmq_server(program: Path, directory: Path, port: int) -> Server:
    """Return a RabbitMQ that listens for STOMP on `port`."""
    (directory / "enabled_plugins").write_text("[rabbitmq_stomp].\n")
    (directory / "rabbitmq.conf").write_text(f"stomp.listeners.tcp.1 = 127.0.0.1:{port}\n")
    return rabbitmq.RabbitMQ(
        [str(program)], directory, amqp_port=free_port(), dist_port=free_port(), epmd_port=free_port()
    )


def connected(port: int) -> socket.socket:
    """Return a socket that is logged in, as soon as somebody listens."""
    give_up_at = time.monotonic() + START_S
    while True:
        try:
            sock = socket.create_connection(("127.0.0.1", port), timeout=10)
            break
        except OSError:
            if time.monotonic() > give_up_at:
                raise
            time.sleep(0.1)
    sock.sendall(CONNECT)
    answer = sock.recv(65536)
    assert answer.startswith(b"CONNECTED"), answer
    return sock


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process and all it has started."""
    ticks = 0
    for each in descendants(pid):
        try:
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def flow(port: int, pid: int, lasts_s: float = SECONDS) -> tuple[float, float]:
    """Send for a while; return CPU in us for each message, and messages for each second."""
    reader, writer = connected(port), connected(port)
    reader.sendall(SUBSCRIBE)
    assert b"RECEIPT" in reader.recv(65536)
    sent = 0
    received = 0
    is_over = False

    def write() -> None:
        nonlocal sent
        chunk = SEND * CHUNK
        while not is_over:
            if sent - received < IN_FLIGHT:
                writer.sendall(chunk)
                sent += CHUNK
            else:
                time.sleep(PAUSE_S)

    thread = threading.Thread(target=write)
    begin, cpu = time.monotonic(), cpu_s(pid)
    thread.start()
    while not is_over or received < sent:
        received += reader.recv(262144).count(b"\0")
        if not is_over and time.monotonic() - begin > lasts_s:
            is_over = True
            thread.join()
    spent, seconds = cpu_s(pid) - cpu, time.monotonic() - begin
    reader.close()
    writer.close()
    return spent * 1e6 / received, received / seconds


def main() -> None:
    """Measure in turns, and print each round and the medians."""
    with tempfile.TemporaryDirectory() as temporary:
        servers: dict[str, tuple[Server, int]] = {}
        program = rabbitmq.maybe_program()
        for name in ("warren", "rabbitmq"):
            directory = Path(temporary) / name
            directory.mkdir()
            port = free_port()
            if name == "warren":
                servers[name] = WarrenServer(directory, port), port
            elif program is not None:
                servers[name] = rabbitmq_server(program, directory, port), port
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in servers}
        try:
            for server, port in servers.values():
                server.start()
                connected(port).close()
            for _ in range(ROUNDS):
                for name, (server, port) in servers.items():
                    cpu_us, rate = flow(port, server.pid)
                    found[name].append((cpu_us, rate))
                    print(f"{name:10} {cpu_us:8.2f} us/message {rate:10,.0f} messages/s")
        finally:
            for server, _ in servers.values():
                server.stop()
        for name, rounds in found.items():
            cpu_us, rate = median(each[0] for each in rounds), median(each[1] for each in rounds)
            print(f"{name:10} {cpu_us:8.2f} us/message {rate:10,.0f} messages/s, medians of {len(rounds)}")


if __name__ == "__main__":
    main()
