"""Contents received in part: unlimited ones, and the publisher that continues when too much is held."""

from __future__ import annotations

from engine_harness import Client, Harness, body_of
from peer_frames import content_header

from warren.amqp import methods as m
from warren.amqp.codec import frame, method_frame
from warren.channels.shared import PAUSED_INBOUND

PUBLISH = method_frame(1, m.BasicPublish(0, "", "q", mandatory=False, immediate=False))
CHUNK = frame(3, 1, bytes(100_000))


def shortage() -> tuple[Harness, list[Client]]:
    """Return a broker that holds more of unfinished contents than it should, and the clients whose these are."""
    harness = Harness(inbound_max_bytes=1_000_000)
    clients = [harness.channel() for _ in range(4)]
    clients[0].declare("q")
    for client in clients:
        client.feed(PUBLISH + frame(2, 1, content_header({}, 600_000)) + CHUNK * 4)
    assert harness.broker.shared.inbound.is_short
    return harness, clients


def test_without_a_limit_a_content_may_take_as_long_as_it_likes() -> None:
    harness = Harness(content_timeout_s=0.0)
    client = harness.channel()
    client.declare("q")
    client.feed(PUBLISH + frame(2, 1, content_header({}, 2)) + frame(3, 1, b"a"))
    for _ in range(5):
        harness.pass_time(1000)
    client.nothing()
    client.feed(frame(3, 1, b"b"))
    got = client.get("q")
    assert got is not None and body_of(got) == b"ab"


def test_whoever_is_done_passes_the_floor_on_at_once_while_too_much_is_still_held() -> None:
    harness, clients = shortage()
    inbound = harness.broker.shared.inbound
    rounds = 0
    while inbound.is_short:
        for client in clients:
            if client.connection.paused & PAUSED_INBOUND == 0 and client.connection.inbound_bytes:
                client.feed(CHUNK)
        rounds += 1
        assert rounds < 20, "nobody goes on"
    for client in clients:
        if client.connection.inbound_bytes:
            client.feed(CHUNK * (6 - client.connection.inbound_bytes // 100_000))
    assert harness.queue("q").ready_count == len(clients)
    assert inbound.floor is None and inbound.held_bytes == 0


def test_who_ends_while_too_much_is_still_held_does_not_end_the_shortage() -> None:
    harness, clients = shortage()
    inbound = harness.broker.shared.inbound
    clients[-1].hang_up()
    assert inbound.held_bytes > inbound.max_bytes and inbound.is_short
    clients[-2].hang_up()
    assert inbound.held_bytes <= inbound.max_bytes and not inbound.is_short
