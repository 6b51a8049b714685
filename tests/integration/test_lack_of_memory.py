"""A process whose address space is used up (`ulimit -v`): a MemoryError ends what met it, and later clients are served.

The allocator of the system fails at different places in each round, in the reactor's reads above all. The broker either
serves again when the memory is free, or ends so that its supervisor starts it again: it is never alive and deaf.
"""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path

import pytest
from broker_process import WarrenProcess, wait_until
from pika.exceptions import AMQPError

from warren.amqp import methods as m
from warren.amqp.codec import frame, method_frame

from .peers import connect, open_wire

MIB = 1 << 20
PIECE = frame(m.FRAME_BODY, 1, bytes(128 * 1024 - m.FRAME_OVERHEAD_BYTES))


def address_space_bytes(process: WarrenProcess) -> int:
    pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def fill(process: WarrenProcess, count: int) -> None:
    """Send `count` bodies of 100 MiB at the same time, as far as the broker takes them."""
    with contextlib.ExitStack() as stack:
        clients = []
        for _ in range(count):
            with contextlib.suppress(OSError, AssertionError, AMQPError):
                client = open_wire(process)
                stack.callback(client.close)
                client.send_bytes(method_frame(1, m.BasicPublish(0, "", "q", mandatory=False, immediate=False)))
                client.send_header(1, 100 * MIB)
                client.socket.settimeout(5)
                clients.append(client)
        for _ in range(800):
            for client in list(clients):
                try:
                    client.send_bytes(PIECE)
                except OSError:  # ended, or not read for long
                    clients.remove(client)


def can_connect(process: WarrenProcess) -> bool:
    try:
        with connect(process) as client:
            channel = client.channel()
            queue = channel.queue_declare("", exclusive=True).method.queue
            channel.basic_publish("", queue, b"m")
            return channel.basic_get(queue)[2] == b"m"
    except (AMQPError, OSError):
        return False


@pytest.mark.parametrize("room_mib", [24, 64])
def test_a_broker_without_memory_serves_clients_when_it_has_some_again(tmp_path: Path, room_mib: int) -> None:
    settings = {"limits.handshake_timeout_s": 5}
    with WarrenProcess(tmp_path, settings=settings) as process:
        with connect(process) as client:
            client.channel().queue_declare("q", durable=True)
        most = address_space_bytes(process) + room_mib * MIB
        resource.prlimit(process.pid, resource.RLIMIT_AS, (most, most))
        for _ in range(2):
            fill(process, 4)
            wait_until(lambda: can_connect(process) or not process.is_running(), "room for a client", 60)
            assert process.is_running(), process.log()[-4000:]
        assert "MemoryError" in process.log()
        assert process.health() == 200
        # The end of the block wants a clean stop, which gets no thread in this address space.
