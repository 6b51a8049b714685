"""The limits for input of clients that have not logged in. Numbers are those of `channels/early_input.py`."""

from __future__ import annotations

from engine_harness import Harness
from mqtt_harness import MqttClient, connect_packet

from warren.channels.early_input import EARLY_MAX_BYTES, FREE_BYTES
from warren.mqtt.peer import EARLY_BYTES


def large_connect() -> bytes:
    data = connect_packet(will=("t", b"w" * (EARLY_BYTES - 200), 0, False))
    assert EARLY_BYTES // 2 < len(data) <= EARLY_BYTES
    return data


def test_what_unfinished_connects_hold_is_bounded_and_the_first_of_them_give_way() -> None:
    """(2)"""
    harness = Harness()
    early = harness.broker.shared.early
    data = large_connect()
    clients = [MqttClient(harness) for _ in range(2 * EARLY_MAX_BYTES // len(data))]
    for client in clients:
        client.peer.feed(data[:-1])
        assert early.held_bytes <= EARLY_MAX_BYTES
    harness.settle()
    dropped = [client.ended for client in clients]
    assert dropped == sorted(dropped, reverse=True) and 0 < sum(dropped) < len(clients)
    # A client that sends all of it is served meanwhile.
    whole = MqttClient(harness)
    whole.peer.feed(data[:40_000])
    whole.peer.feed(data[40_000:])
    harness.settle()
    assert whole.peer.running
    for client in clients[sum(dropped) :]:
        client.peer.feed(data[-1:])
    harness.settle()
    assert early.held_bytes == 0


def test_small_packets_are_not_counted() -> None:
    """(1)"""
    harness = Harness()
    client = MqttClient(harness)
    client.peer.feed(large_connect()[:FREE_BYTES])
    assert harness.broker.shared.early.held_bytes == 0
    client.peer.feed(b"x")
    assert harness.broker.shared.early.held_bytes == FREE_BYTES + 1
    client.peer.lost()
    assert harness.broker.shared.early.held_bytes == 0
