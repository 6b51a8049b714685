"""A process that may open few files: the broker survives and keeps its promises when the rest are used up."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from broker_process import WarrenProcess, wait_until
from free_ports import free_port
from mqtt_harness import connect_packet
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError

from .peers import connect

LIMIT = 128
LIMITED = ("prlimit", f"--nofile={LIMIT}")
PERSISTENT = pika.BasicProperties(delivery_mode=2)


@pytest.fixture
def process(tmp_path: Path) -> Iterator[WarrenProcess]:
    settings = {"limits.handshake_timeout_s": 600, "store.segment_bytes": 1 << 20}
    with WarrenProcess(tmp_path, settings=settings, wrapper=LIMITED) as started:
        yield started


def crowd(port: int, count: int, stack: contextlib.ExitStack, greeting: bytes = b"") -> None:
    """Open sockets, say `greeting` and nothing more."""
    for _ in range(count):
        with contextlib.suppress(OSError):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            sock.send(greeting)


def works(channel: BlockingChannel, name: str) -> None:
    """Make what needs files: rows of the metadata store, and more than a segment of messages, all confirmed."""
    channel.queue_declare(name, durable=True)
    for _ in range(6):
        channel.basic_publish("", name, bytes(1 << 20), PERSISTENT)
    _, _, body = channel.basic_get(name, auto_ack=True)
    assert body == bytes(1 << 20)


def can_connect(process: WarrenProcess) -> bool:
    try:
        connect(process).close()
    except AMQPError:
        return False
    return True


def connect_when_there_is_room(process: WarrenProcess) -> pika.BlockingConnection:
    """Connect. While a crowd is still being accepted, a newcomer may be refused."""
    clients: list[pika.BlockingConnection] = []

    def is_connected() -> bool:
        with contextlib.suppress(AMQPError):
            clients.append(connect(process))
        return bool(clients)

    wait_until(is_connected, "room for a client")
    return clients[0]


def can_connect_mqtt(process: WarrenProcess) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", process.mqtt_port), timeout=10) as sock:
            sock.send(connect_packet(4, "client"))
            return sock.recv(4)[:2] == b"\x20\x02"
    except OSError:
        return False


def has_dropped_one(process: WarrenProcess) -> bool:
    """Connect, and tell whether a silent connection had to go: one that is too young does not."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", process.amqp_port), timeout=10):
        pass
    return "connection.dropped" in process.log()


def test_a_crowd_without_a_login_takes_nothing_that_others_need(process: WarrenProcess) -> None:
    client = connect(process)
    channel = client.channel()
    channel.confirm_delivery()
    with contextlib.ExitStack() as stack:
        crowd(process.http_port, 2 * LIMIT, stack)
        crowd(process.amqp_port, 2 * LIMIT, stack)
        wait_until(lambda: has_dropped_one(process), "silent connections that make room")
        works(channel, "one")
        assert process.is_running()
    wait_until(lambda: can_connect(process), "room for a new client")
    wait_until(lambda: process.health() == 200, "HTTP")
    works(channel, "two")
    client.close()
    assert "a task has failed" not in process.log()
    process.stop()


def test_a_crowd_of_clients_takes_nothing_that_others_need(process: WarrenProcess) -> None:
    client = connect(process)
    channel = client.channel()
    channel.confirm_delivery()
    crowded: list[pika.BlockingConnection] = []
    with contextlib.suppress(AMQPError):
        while len(crowded) < LIMIT:
            crowded.append(connect(process))
    assert 20 <= len(crowded) < LIMIT
    assert process.health() == 200
    works(channel, "one")
    crowded.pop().close()
    wait_until(lambda: can_connect(process), "room for a new client")
    for each in crowded:
        each.close()
    client.close()
    assert "a task has failed" not in process.log()
    process.stop()


def test_fewer_connections_than_are_set_are_said_at_the_start(process: WarrenProcess) -> None:
    (line,) = [line for line in process.log().splitlines() if "fewer connections" in line]
    assert f"descriptors={LIMIT}" in line


def test_a_process_that_could_serve_nobody_does_not_start(tmp_path: Path) -> None:
    wrapper = ("prlimit", "--nofile=64")
    process = WarrenProcess(tmp_path, wrapper=wrapper)
    process.spawn()
    assert process.wait() == 1
    assert process.log().strip() == "warren: 64 open files (ulimit -n) are not enough: a broker needs at least 128"


def test_a_thousand_silent_connections_to_the_ports_of_http_refuse_no_client(tmp_path: Path) -> None:
    """The ports of HTTP have their share of the descriptors together, not each."""
    wrapper = ("prlimit", "--nofile=1024")
    metrics = free_port()
    settings = {"prometheus": f"127.0.0.1:{metrics}"}
    with WarrenProcess(tmp_path, settings=settings, wrapper=wrapper) as process, contextlib.ExitStack() as stack:
        for _ in range(10):
            for port in (process.http_port, metrics):
                crowd(port, 60, stack)
            assert can_connect(process)
        assert process.health() == 200
        assert "connection.refused" not in process.log()
        assert len(os.listdir(f"/proc/{process.pid}/fd")) < 250


@pytest.mark.parametrize("greeting", [b"", b"AMQP\0\0\x09\x01"])
def test_a_thousand_silent_connections_to_a_port_of_clients_refuse_no_client(tmp_path: Path, greeting: bytes) -> None:
    """Neither at that port nor at another one: they make room before their handshake times out."""
    wrapper = ("prlimit", "--nofile=1024")
    settings = {"limits.handshake_timeout_s": 3600}
    process = WarrenProcess(tmp_path, {"mqtt": "127.0.0.1:0"}, settings, wrapper)
    process.start()
    with contextlib.ExitStack() as stack:
        for port in (process.amqp_port, process.mqtt_port):
            crowd(port, 1000, stack, greeting)
        client = connect_when_there_is_room(process)
        works(client.channel(), "one")
        wait_until(lambda: can_connect_mqtt(process), "room for a client of MQTT")
        client.close()
    process.stop()
