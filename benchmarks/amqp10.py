"""CPU of Warren per message, AMQP 1.0 beside 0-9-1: one publisher, one consumer, raw sockets, 100 B.

    .venv/bin/python -m benchmarks.amqp10

Both in turns, over the same broker: unsettled deliveries, with 1,000 on their way to the broker and a credit of 1,000
from it; for 0-9-1 confirms, and acks with a prefetch of 1,000. Each figure is the CPU of the broker's process divided
by the messages that came through.
"""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from benchmarks.brokers import free_port
from benchmarks.stomp import cpu_s
from warren.amqp import methods as m
from warren.amqp.codec import frame as frame_0_9_1
from warren.amqp.codec import method_frame
from warren.amqp.field_table import EMPTY_TABLE
from warren.amqp10.performatives import (
    AMQP_HEADER,
    ATTACH,
    BEGIN,
    CLOSE,
    DETACH,
    DISPOSITION,
    END,
    FLOW,
    FRAME_SASL,
    OPEN,
    SASL_HEADER,
    SASL_INIT,
    SOURCE,
    TARGET,
    TRANSFER,
    described,
    frame,
)
from warren.amqp10.values import Described, Symbol, UByte, UInt, ULong, decode, encode
from warren.amqp_client.blocking import BlockingConnection
from warren.amqp_client.connection import Login

ROUNDS: Final = 5
SECONDS: Final = 3.0
IN_FLIGHT: Final = 1000
PRESETTLED_IN_FLIGHT: Final = 20_000
CHUNK: Final = 100
START_S: Final = 60.0
BODY: Final = b"x" * 100
PERSISTENT: Final = 2
READ_BYTES: Final = 262144
WAIT_S: Final = 0.002  # for room

Flow = Callable[[int, int, bool, float], tuple[float, float]]


def connect(port: int) -> socket.socket:
    """Return a socket to the broker, as soon as it listens."""
    give_up_at = time.monotonic() + START_S
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=10)
        except OSError:
            if time.monotonic() > give_up_at:
                raise
            time.sleep(0.1)


class Reader:
    """Cuts what comes into frames; `size_of` tells how long the one at a place is, 0: that cannot be said yet."""

    def __init__(self, sock: socket.socket, size_of: Callable[[bytes, int], int]) -> None:
        self._sock = sock
        self._size_of = size_of
        self._rest = b""
        self._kept: list[bytes] = []

    def frames(self) -> list[bytes]:
        """Return what was kept, or else read once, and return whole frames: none when nothing comes for a while."""
        if self._kept:
            found, self._kept = self._kept, []
            return found
        try:
            came = self._sock.recv(READ_BYTES)
        except (TimeoutError, BlockingIOError):
            return []
        if not came:
            raise ConnectionError("the broker has closed the connection")
        data = self._rest + came
        found = []
        pos = 0
        while (size := self._size_of(data, pos)) and pos + size <= len(data):
            found.append(data[pos : pos + size])
            pos += size
        self._rest = data[pos:]
        return found

    def keep(self, frames: list[bytes]) -> None:
        """Have these come first the next time."""
        self._kept = frames


def size_1_0(data: bytes, pos: int) -> int:
    if data[pos : pos + 4] == b"AMQP":
        return 8
    return int.from_bytes(data[pos : pos + 4], "big") if len(data) - pos >= 4 else 0


def size_0_9_1(data: bytes, pos: int) -> int:
    return 8 + int.from_bytes(data[pos + 3 : pos + 7], "big") if len(data) - pos >= 7 else 0


class Counts:
    """What the two ends of a flow tell each other."""

    def __init__(self) -> None:
        self.confirmed = 0
        self.received = 0
        self.is_over = False


def measure(
    pid: int, publish: Callable[[Counts], int], consume: Callable[[Counts], None], lasts_s: float
) -> tuple[float, float]:
    """Run both ends for a while; return CPU in us for each message, and messages for each second."""
    counts = Counts()
    sent = 0

    def run() -> None:
        nonlocal sent
        sent = publish(counts)

    thread = threading.Thread(target=run)
    begin, cpu = time.monotonic(), cpu_s(pid)
    thread.start()
    while thread.is_alive() or counts.received < sent:
        consume(counts)
        counts.is_over = counts.received > 0 and time.monotonic() - begin > lasts_s
    thread.join()
    spent, seconds = cpu_s(pid) - cpu, time.monotonic() - begin
    return spent * 1e6 / counts.received, counts.received / seconds


# --- AMQP 1.0 -----------------------------------------------------------------------------------------------------


class Begun(NamedTuple):
    """Where the broker begins to count: transfers of the session, and deliveries of the link."""

    transfer: int
    delivery: int


def session(port: int, link: bytes) -> tuple[socket.socket, Reader, Begun]:
    """Return a connection with one session and one link, attached."""
    sock = connect(port)
    login = frame(0, SASL_INIT, [Symbol("PLAIN"), b"\0guest\0guest"], frame_type=FRAME_SASL)
    sock.sendall(SASL_HEADER + login)
    reader = Reader(sock, size_1_0)
    await_code(reader, 0x44)
    opening = frame(0, OPEN, ["bench", "vhost:/", UInt(131072)])
    sock.sendall(AMQP_HEADER + opening + frame(0, BEGIN, [None, UInt(0), UInt(1 << 30), UInt(1 << 30)]) + link)
    begun = fields_of(await_code(reader, BEGIN))
    attached = [*fields_of(await_code(reader, ATTACH)), *[None] * 10]
    return sock, reader, Begun(int(str(begun[1])), int(str(attached[9] or 0)))


def await_code(reader: Reader, code: int) -> bytes:
    """Read until a performative comes, keep the bytes after it, and return it."""
    while True:
        frames = reader.frames()
        for at, each in enumerate(frames):
            if len(each) > 10 and each[10] == code:
                reader.keep(frames[at + 1 :])
                return each
            if len(each) > 10 and each[10] in (DETACH, END, CLOSE):
                raise ConnectionError(error_in(each))


def fields_of(each: bytes) -> list[object]:
    """Return the fields of a performative without a payload."""
    found = decode(each[8:])
    assert isinstance(found, Described) and isinstance(found.value, list)
    return found.value


def error_in(each: bytes) -> str:
    """Return why the other side has ended a link, a session or the connection."""
    for value in fields_of(each):
        if isinstance(value, Described) and isinstance(value.value, list):
            return ": ".join(str(part) for part in value.value if part is not None)
    return "it was ended without a reason"


class Window:
    """How far the sender may go: transfers that the session, and deliveries that the link, has room for.

    `settled`: how many deliveries the other side has settled.
    """

    def __init__(self) -> None:
        self.end = 0
        self.settled = 0

    def take(self, each: bytes) -> None:
        """See what a frame says about it."""
        if each[10] == FLOW:
            told = [*fields_of(each), *[None] * 7]
            if told[4] is not None:
                room, credit = int(str(told[0] or 0)) + int(str(told[1])), int(str(told[5] or 0)) + int(str(told[6]))
                self.end = min(room, credit)
        elif each[10] == DISPOSITION:
            told = [*fields_of(each), None, None]
            first = int(str(told[1]))
            self.settled += int(str(first if told[2] is None else told[2])) - first + 1
        elif each[10] in (DETACH, END, CLOSE):
            raise ConnectionError(error_in(each))


def flow_1_0(
    port: int,
    pid: int,
    durable: bool,
    lasts_s: float = SECONDS,
    *,
    address: str = "/queues/bench",
    presettled: bool = False,
) -> tuple[float, float]:
    """Publish and consume with AMQP 1.0; `presettled`: nobody answers a delivery."""
    ends = [described(SOURCE, [address]), described(TARGET, [address])]
    mode = UByte(1 if presettled else 0)
    attach: list[object] = ["link", UInt(0), False, mode, UByte(0), *ends, None, None, UInt(0)]
    writer, answers, _ = session(port, frame(0, ATTACH, attach))
    window = Window()
    while window.end == 0:
        for each in answers.frames():
            window.take(each)
    attach[2] = True
    taker, deliveries, begun = session(port, frame(0, ATTACH, attach))

    def credit(received: int) -> bytes:
        window = [UInt((begun.transfer + received) & 0xFFFFFFFF), UInt(1 << 30), UInt(0), UInt(1 << 30)]
        return frame(0, FLOW, [*window, UInt(0), UInt((begun.delivery + received) & 0xFFFFFFFF), UInt(IN_FLIGHT)])

    payload = encode(Described(ULong(0x70), [durable])) + encode(Described(ULong(0x75), BODY))
    # Delivery id and tag are patched into a transfer that is made once.
    made = frame(0, TRANSFER, [UInt(0), UInt(0x7FFFFFFF), b"\x7f\xff\xff\xff", UInt(0), presettled]) + payload
    made = len(made).to_bytes(4, "big") + made[4:]
    first, middle, last = made.split(b"\x7f\xff\xff\xff")

    def publish(counts: Counts) -> int:
        sent = 0
        while not counts.is_over:
            on_their_way = sent - (counts.received if presettled else window.settled)
            count = min(CHUNK, (PRESETTLED_IN_FLIGHT if presettled else IN_FLIGHT) - on_their_way, window.end - sent)
            if count > 0:
                numbers = [struct.pack(">I", number) for number in range(sent, sent + count)]
                writer.settimeout(None)
                writer.sendall(b"".join([first + each + middle + each + last for each in numbers]))
                sent += count
            writer.settimeout(0.0 if count > 0 else WAIT_S)
            for each in answers.frames():
                window.take(each)
        return sent

    credited = 0

    def consume(counts: Counts) -> None:
        nonlocal credited
        before = counts.received
        counts.received += sum(each[10] == TRANSFER for each in deliveries.frames())
        if counts.received > before:
            done = [True, UInt(before), UInt(counts.received - 1), True, described(0x24, [])]
            out = b"" if presettled else frame(0, DISPOSITION, done)
            if counts.received + IN_FLIGHT - credited >= IN_FLIGHT // 4:
                credited = counts.received + IN_FLIGHT
                out += credit(counts.received)
            taker.sendall(out)

    taker.sendall(credit(0))
    credited = IN_FLIGHT
    taker.settimeout(0.1)
    try:
        return measure(pid, publish, consume, lasts_s)
    finally:
        writer.close()
        taker.close()


# --- AMQP 0-9-1 ---------------------------------------------------------------------------------------------------


def channel(port: int) -> tuple[socket.socket, Reader]:
    """Return a connection with channel 1 open."""
    connection = BlockingConnection(connect(port), "the broker", Login())
    connection.enter()
    return connection.sock, Reader(connection.sock, size_0_9_1)


def call(sock: socket.socket, reader: Reader, method: object) -> None:
    """Send a method, and await its answer."""
    sock.sendall(method_frame(1, method))
    while not reader.frames():
        pass


def flow_0_9_1(port: int, pid: int, durable: bool, lasts_s: float = SECONDS) -> tuple[float, float]:
    """Publish with confirms and consume with acks."""
    writer, answers = channel(port)
    call(writer, answers, m.ConfirmSelect(False))
    taker, deliveries = channel(port)
    call(taker, deliveries, m.BasicQos(0, IN_FLIGHT, False))
    call(taker, deliveries, m.BasicConsume(0, "bench", "c", False, False, False, False, EMPTY_TABLE))
    properties = b"\x10\x00\x02" if durable else b"\x00\x00"
    header = struct.pack(">HHQ", 60, 0, len(BODY)) + properties
    one = method_frame(1, m.BasicPublish(0, "", "bench", False, False))
    one += frame_0_9_1(m.FRAME_HEADER, 1, header) + frame_0_9_1(m.FRAME_BODY, 1, BODY)
    chunk = one * CHUNK

    def publish(counts: Counts) -> int:
        sent = 0
        while not counts.is_over:
            while sent - counts.confirmed <= IN_FLIGHT - CHUNK:
                writer.sendall(chunk)
                sent += CHUNK
            for each in answers.frames():
                counts.confirmed = int.from_bytes(each[11:19], "big")
        return sent

    def consume(counts: Counts) -> None:
        before = counts.received
        counts.received += sum(each[0] == m.FRAME_BODY for each in deliveries.frames())
        if counts.received > before:
            taker.sendall(method_frame(1, m.BasicAck(counts.received, True)))

    taker.settimeout(0.1)
    try:
        return measure(pid, publish, consume, lasts_s)
    finally:
        writer.close()
        taker.close()


def main() -> None:
    """Measure in turns, and print the medians."""
    flows: dict[str, Flow] = {"AMQP 1.0": flow_1_0, "AMQP 0-9-1": flow_0_9_1}
    port = free_port()
    with tempfile.TemporaryDirectory() as temporary:
        output = Path(temporary) / "output.log"
        command = [sys.executable, "-P", "-m", "warren", "serve", "--data-dir", str(Path(temporary) / "data")]
        command += ["--amqp", f"127.0.0.1:{port}", "--http", "off", "--prometheus", "off"]
        with output.open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as broker:
            try:
                sock, reader = channel(port)
                call(sock, reader, m.QueueDeclare(0, "bench", False, True, False, False, False, EMPTY_TABLE))
                sock.close()
                for durable in (False, True):
                    found: dict[str, list[tuple[float, float]]] = {name: [] for name in flows}
                    for _ in range(ROUNDS):
                        for name, flow in flows.items():
                            found[name].append(flow(port, broker.pid, durable, SECONDS))
                    for name, rounds in found.items():
                        cpu_us, rate = median(each[0] for each in rounds), median(each[1] for each in rounds)
                        what = "durable" if durable else "transient"
                        print(f"{name:10} {what:9} {cpu_us:8.2f} us/message {rate:10,.0f} messages/s")
            finally:
                broker.terminate()


if __name__ == "__main__":
    main()
