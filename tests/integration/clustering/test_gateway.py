"""Clients of a node that does not lead are served by the one that does, and told when that changes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pika
import pika.exceptions
import pytest
from broker_process import wait_until

from .nodes import PERSISTENT, Node


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Node, Node]]:
    """A leader and a follower in sync."""
    leader, follower = Node(tmp_path, "one"), Node(tmp_path, "two")
    try:
        leader.lead()
        follower.follow(leader)
        leader.await_in_sync("two")
        yield leader, follower
    finally:
        for node in (follower, leader):
            node.process.kill()


def bodies(first: int, count: int) -> list[bytes]:
    return [f"message {number}".encode() for number in range(first, first + count)]


def own_address(connection: pika.BlockingConnection) -> tuple[str, int]:
    host, port = cast(Any, connection)._impl._transport._sock.getsockname()[:2]
    return host, port


def connections(leader: Node) -> list[dict[str, Any]]:
    status, rows = leader.ask("GET", "/api/connections")
    assert status == 200
    return list(rows)


def test_a_client_of_a_follower_is_one_of_the_leader_with_its_own_address(pair: tuple[Node, Node]) -> None:
    leader, follower = pair
    follower.publish("orders", [*bodies(0, 20), bytes(3 << 20)])
    assert leader.drain("orders") == [*bodies(0, 20), bytes(3 << 20)]
    leader.publish("orders", bodies(20, 5))
    assert follower.drain("orders") == bodies(20, 5)
    with follower.connect() as connection:
        wait_until(lambda: len(connections(leader)) == 1, "the row of the connection")
        (row,) = connections(leader)
        ours = own_address(connection)
        assert (row["peer_host"], row["peer_port"]) == ours
        assert (row["host"], row["port"]) == ("127.0.0.1", follower.process.amqp_port)
        assert row["user"] == "guest"
        assert row["node"] == follower.name
        connection.channel()
        (channel,) = leader.ask("GET", "/api/channels")[1]
        assert channel["node"] == follower.name
        with leader.connect() as direct:
            name = f"127.0.0.1:{own_address(direct)[1]} -> 127.0.0.1:{leader.process.amqp_port}"
            wait_until(lambda: len(connections(leader)) == 2, "the other row")
            assert {each["name"]: each["node"] for each in connections(leader)}[name] == leader.name
        assert not row["ssl"]
    wait_until(lambda: not connections(leader), "the connection to be gone")


@pytest.mark.long
def test_whoever_is_connected_when_the_leader_dies_is_told_and_confirmed_messages_are_there(
    pair: tuple[Node, Node],
) -> None:
    leader, follower = pair
    confirmed: list[bytes] = []
    reasons: list[pika.exceptions.ConnectionClosed] = []
    connections_ready = threading.Barrier(4)

    def publish(name: str) -> None:
        with suppress(threading.BrokenBarrierError):
            connection = follower.connect()
            channel = connection.channel()
            channel.queue_declare("orders", durable=True)
            channel.confirm_delivery()
            connections_ready.wait(60)
            try:
                for number in range(1_000_000):
                    body = f"{name} {number}".encode()
                    channel.basic_publish("", "orders", body, PERSISTENT)
                    confirmed.append(body)
            except pika.exceptions.ConnectionClosed as closed:
                reasons.append(closed)

    publishers = [threading.Thread(target=publish, args=(f"publisher {number}",)) for number in range(3)]
    for thread in publishers:
        thread.start()
    connections_ready.wait(60)
    wait_until(lambda: len(confirmed) > 100, "messages to be confirmed")
    leader.process.kill()
    for thread in publishers:
        thread.join(60)
    assert [reason.reply_code for reason in reasons] == [320] * 3
    assert all("connect again" in reason.reply_text for reason in reasons)

    follower.await_lost()
    follower.promote()
    kept = follower.drain("orders")
    assert set(confirmed) <= set(kept)


@pytest.mark.long
def test_a_client_waits_for_a_leader_and_is_told_when_there_is_none(tmp_path: Path) -> None:
    leader = Node(tmp_path, "one")
    hasty, patient = (
        Node(tmp_path, name, {"limits.handshake_timeout_s": limit}) for name, limit in (("two", "1"), ("three", "600"))
    )
    leader.lead()
    for follower in (hasty, patient):
        follower.follow(leader)
    leader.await_in_sync("three", "two")
    leader.process.kill()
    for follower in (hasty, patient):
        follower.await_lost()
    served = threading.Event()

    def wait_for_a_leader() -> None:
        with patient.connect(socket_timeout=60, stack_timeout=60):
            served.set()

    waiting = threading.Thread(target=wait_for_a_leader)
    waiting.start()
    with socket.create_connection(("127.0.0.1", hasty.process.amqp_port)) as client:
        client.settimeout(30)
        client.sendall(b"AMQP\x00\x00\x09\x01")
        answer = b"".join(iter(lambda: client.recv(4096), b""))
    assert b"CONNECTION_FORCED - no node that leads this cluster could be reached" in answer
    assert waiting.is_alive() and not served.is_set()
    leader.lead()
    waiting.join(60)
    assert served.is_set()
    for node in (hasty, patient, leader):
        node.process.kill()


@pytest.mark.long
def test_the_management_api_is_that_of_the_leader_on_any_node(pair: tuple[Node, Node]) -> None:
    leader, follower = pair
    assert follower.ask("PUT", "/api/queues/%2F/orders", {"durable": True})[0] == 201
    leader.publish("orders", [b"x" * 1000] * 50)
    taken = follower.ask(
        "POST", "/api/queues/%2F/orders/get", {"count": 50, "ackmode": "ack_requeue_true", "encoding": "auto"}
    )
    assert (taken[0], len(taken[1])) == (200, 50)
    assert follower.ask("GET", "/api/queues/%2F/nosuch") == leader.ask("GET", "/api/queues/%2F/nosuch")
    rows = follower.ask("GET", "/api/nodes")[1]
    assert [(row["name"], row["role"], row["running"]) for row in rows] == [
        ("rabbit@one", "leader", True),
        ("rabbit@two", "follower", True),
    ]
    assert rows[1]["lag_s"] == 0
    assert follower.ask("GET", "/api/nodes/rabbit@two")[1] == rows[1]
    cluster = follower.ask("GET", "/api/overview")[1]["cluster"]
    assert (cluster["leader"], cluster["nodes"]) == ("rabbit@one", ["rabbit@one", "rabbit@two"])
    assert follower.status()["role"] == "follower", "what is its own is its own to tell"
    assert [node.process.health_of("leader") for node in pair] == [200, 503]
    # A definition of the size of many parts, there and back.
    names = [f"queue-{number:05}" for number in range(2000)]
    queues = [{"name": name, "vhost": "/", "durable": False, "auto_delete": False, "arguments": {}} for name in names]
    assert follower.ask("POST", "/api/definitions", {"queues": queues})[0] in (200, 204)
    assert {row["name"] for row in follower.ask("GET", "/api/queues/%2F")[1]} == {*names, "orders"}
    leader.process.kill()
    follower.await_lost()
    rows = follower.ask("GET", "/api/nodes")[1]
    assert [(row["name"], row["state"]) for row in rows] == [("rabbit@two", "waiting"), ("rabbit@one", "gone")]
    status, refusal = follower.ask("GET", "/api/queues")
    assert status == 503
    assert "the leader of this cluster could not be reached" in refusal["reason"]
