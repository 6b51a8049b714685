"""Retained messages on their way to the queues of a session, and sessions with very many subscriptions that return."""

from __future__ import annotations

import pytest
from engine_harness import USER, Harness
from mqtt_harness import MqttClient, connect_packet, message, mqtt_client, properties, split_packets

from warren.amqp.properties import BasicProperties
from warren.mqtt.packets import SESSION_EXPIRY, Properties, packet, text
from warren.mqtt.replays import REPLAYED_AHEAD
from warren.vhosts.retained import Retained

LIMIT = 100_000
MANY = 3 * REPLAYED_AHEAD


def filled(count: int, body: bytes = b"", **limits: float) -> Harness:
    """Return a broker that has something retained for `count` topics."""
    harness = Harness(mqtt_qos0_outbox_bytes=LIMIT, **limits)
    retained = harness.vhost.retained()
    properties = BasicProperties()
    properties.delivery_mode = 2
    for number in range(count):
        retained.put(f"a/{number}", Retained("guest", harness.broker.now_ms(), 0, properties.encode(), body))
    return harness


def subscribe_packet(*filters: str, qos: int = 1) -> bytes:
    return packet(8, 2, b"\0\x01" + b"".join(text(each) + bytes([qos]) for each in filters))


def ready(harness: Harness, client_id: str, qos: int = 1) -> int:
    names = [name for name in harness.vhost.queues if client_id in name and name.endswith(f"qos{qos}")]
    return int(harness.queue(names[0]).ready_count)


def publishes(client: MqttClient) -> list[str]:
    return [message(each, 4).topic for each in split_packets(client._client.take()) if each.kind == 3]


def answer_all(harness: Harness, client: MqttClient) -> list[str]:
    """Answer every message of QoS 1 until none comes; return their topics."""
    topics: list[str] = []
    while True:
        came = [each for each in split_packets(client._client.take()) if each.kind == 3]
        if not came:
            return topics
        for each in came:
            found = message(each, 4)
            topics.append(found.topic)
            client.peer.feed(packet(4, 0, found.packet_id.to_bytes(2, "big")))
        harness.settle()


def test_the_same_filter_in_one_packet_replays_once() -> None:
    harness = filled(3)
    client = mqtt_client(harness, client_id="r")
    client.peer.feed(subscribe_packet(*["#"] * 1000))
    harness.settle()
    assert sorted(publishes(client)) == ["a/0", "a/1", "a/2"]


def test_a_client_gets_so_much_of_what_is_retained_as_it_takes() -> None:
    harness = filled(MANY)
    client = mqtt_client(harness, client_id="r")
    client.peer.feed(subscribe_packet("#", "a/#", "a/+"))
    harness.settle()
    assert ready(harness, "r") <= REPLAYED_AHEAD + 1
    assert not harness.broker.has_work()
    topics = answer_all(harness, client)
    assert len(topics) == 3 * MANY
    assert len(set(topics)) == MANY


def test_large_ones_count_by_their_bytes() -> None:
    body = bytes(20_000)
    harness = filled(200, body, unacked_per_channel_max=5)
    client = mqtt_client(harness, client_id="r")
    client.peer.feed(subscribe_packet("#", "a/#"))
    harness.settle()
    assert ready(harness, "r") * len(body) <= LIMIT + len(body)
    assert len(answer_all(harness, client)) == 400


def test_pings_are_answered_while_retained_messages_wait() -> None:
    harness = filled(MANY)
    client = mqtt_client(harness, client_id="r")
    client.peer.feed(subscribe_packet("#", "a/#") + packet(12, 0, b""))
    harness.settle()
    assert 13 in [each.kind for each in split_packets(client._client.take())]


@pytest.mark.parametrize("resource", ["memory", "disk"])
def test_retained_messages_for_queues_wait_for_the_end_of_an_alarm(resource: str) -> None:
    harness = filled(50)
    client = mqtt_client(harness, client_id="r")
    client.peer.feed(subscribe_packet("#"))  # the queue is there
    harness.settle()
    answer_all(harness, client)
    harness.broker.set_alarm(resource, True)
    client.peer.feed(subscribe_packet("#") + packet(12, 0, b""))
    harness.settle()
    kinds = [each.kind for each in split_packets(client._client.take())]
    assert kinds == [9, 13]
    assert not harness.broker.has_work()
    harness.broker.set_alarm(resource, False)
    harness.settle()
    assert len(answer_all(harness, client)) == 50


def test_a_session_that_lasts_has_all_of_them_when_its_client_has_left() -> None:
    harness = filled(MANY)
    client = mqtt_client(harness, client_id="r", clean=False)
    client.peer.feed(subscribe_packet("#"))
    harness.settle()
    client.hang_up()
    harness.settle()
    assert ready(harness, "r") == MANY


def test_a_session_that_ends_with_its_connection_leaves_nothing() -> None:
    harness = filled(MANY)
    client = mqtt_client(harness, client_id="r")
    client.peer.feed(subscribe_packet("#"))
    harness.settle()
    client.hang_up()
    harness.settle()
    assert harness.vhost.queues == {}
    assert not harness.broker.has_work() and len(harness.broker.work) == 0


def test_what_is_unsubscribed_is_not_replayed() -> None:
    harness = filled(MANY)
    client = mqtt_client(harness, client_id="r")
    client.peer.feed(subscribe_packet("#"))
    harness.settle()
    client.peer.feed(packet(10, 2, b"\0\x02" + text("#")))
    harness.settle()
    assert len(answer_all(harness, client)) < MANY


def test_a_session_with_many_subscriptions_returns_in_many_turns() -> None:
    harness = Harness()
    client = mqtt_client(harness, client_id="r", clean=False)
    for first in range(0, 6000, 1000):
        client.peer.feed(subscribe_packet(*[f"t/{number}" for number in range(first, first + 1000)]))
        harness.settle()
    client.hang_up()
    harness.settle()
    writer = mqtt_client(harness, client_id="w")
    writer.publish("t/5999", b"while it was away", 1)
    harness.broker.work.turn_steps = 2000
    back = MqttClient(harness)
    back.peer.feed(connect_packet(4, "r", clean=False))
    (request,) = harness.broker.logins
    harness.broker.logins.clear()
    request.accept(USER)
    turns = 0
    while len(harness.broker.work):
        harness.broker.end_turn()
        turns += 1
    assert turns > 10
    harness.settle()
    assert publishes(back) == ["t/5999"]
    writer.publish("t/3", b"x", 1)
    assert publishes(back) == ["t/3"]
    session = harness.broker.named_clients[("/", "r")].channels[1]
    assert len(session.subscribed()) == 6000


def held_up(version: int, qos: int, *, clean: bool) -> tuple[Harness, MqttClient]:
    """Return a client of a session with a subscription of each QoS, whose disk takes its time from now on."""
    harness = filled(3)
    client = mqtt_client(harness, version, "r", clean=clean, given=None if clean else lasting())
    for each in range(3):
        client.subscribe(f"other/{each}", qos=each, packet_id=5)
    client.take()
    harness.hold_commits = True
    if clean:
        # An answer of an exclusive queue need not wait for the disk; one that follows such an answer has to.
        client.peer.write_when_stored(packet(13, 0, b""), syncs=True)
    return harness, client


def lasting() -> Properties:
    return properties({SESSION_EXPIRY: 100})


def kinds(client: MqttClient) -> list[int]:
    return [each.kind for each in client.take()]


def subscribe(client: MqttClient, filter_: str, qos: int, *, packet_id: int = 1, retain_handling: int = 0) -> None:
    head = packet_id.to_bytes(2, "big") + (b"\0" if client.version == 5 else b"")
    client.peer.feed(packet(8, 2, head + text(filter_) + bytes([qos | retain_handling << 4])))
    client.harness.settle()


def resume(harness: Harness) -> None:
    harness.hold_commits = False
    harness.settle()


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", [4, 5])
def test_retained_messages_follow_a_suback_that_waits_for_the_disk(version: int, qos: int, clean: bool) -> None:
    """session.py (6)"""
    harness, client = held_up(version, qos, clean=clean)
    subscribe(client, "a/#", qos)
    subscribe(client, "a/1", qos, packet_id=2)
    assert kinds(client) == []
    resume(harness)
    came = client.take()
    order = [each.kind for each in came]
    if clean:
        assert order.pop(0) == 13
    assert sorted(order) == [3, 3, 3, 3, 9, 9] and order[0] == 9
    assert 3 in order[order.index(9, 1) :], "the one of the second subscription"
    assert sorted(message(each, version).topic for each in came if each.kind == 3) == ["a/0", "a/1", "a/1", "a/2"]


def test_a_later_answer_that_waits_holds_back_no_retained_messages() -> None:
    harness, client = held_up(4, 1, clean=False)
    subscribe(client, "a/1", 1)
    harness.hold_commits = False
    harness.settle()
    harness.hold_commits = True
    subscribe(client, "a/2", 1, packet_id=2)
    assert kinds(client) == [9, 3]
    resume(harness)
    assert kinds(client) == [9, 3]


@pytest.mark.parametrize("qos", [0, 1])
def test_what_is_unsubscribed_while_suback_waits_is_not_sent(qos: int) -> None:
    harness, client = held_up(4, qos, clean=False)
    subscribe(client, "a/#", qos)
    client.peer.feed(packet(10, 2, b"\0\x02" + text("a/#")))
    resume(harness)
    assert kinds(client) == [9, 11]


def test_a_subscription_that_is_changed_while_suback_waits_sends_as_it_is_now() -> None:
    harness, client = held_up(5, 1, clean=False)
    subscribe(client, "a/1", 0)
    subscribe(client, "a/1", 1, packet_id=2, retain_handling=1)
    resume(harness)
    came = client.take()
    assert came[0].kind == 9
    assert [message(each, 5).qos for each in came if each.kind == 3] == [1]


def test_a_client_that_leaves_before_its_suback_finds_them_later_if_its_session_lasts() -> None:
    harness, client = held_up(4, 1, clean=False)
    subscribe(client, "a/#", 1)
    client.hang_up()
    resume(harness)
    assert ready(harness, "r") == 3
    assert len(harness.broker.work) == 0
    harness, client = held_up(4, 1, clean=True)
    subscribe(client, "a/#", 1)
    client.hang_up()
    resume(harness)
    assert harness.vhost.queues == {} and len(harness.broker.work) == 0


def test_a_client_that_reads_slowly_gets_what_several_subacks_held_back() -> None:
    """Without queues: each SUBACK begins a replay, and all wait for the client."""
    harness = filled(200, bytes(20_000))
    client = mqtt_client(harness, client_id="r")
    client.subscribe("other")
    client.take()
    harness.hold_commits = True
    client.peer.write_when_stored(packet(13, 0, b""), syncs=True)
    client.peer.outbox.writable = True
    subscribe(client, "a/#", 0)
    subscribe(client, "a/+", 0, packet_id=2)
    subscribe(client, "+/1", 0, packet_id=3)
    resume(harness)
    topics: list[str] = []
    while came := publishes(client):
        topics += came
        client.peer.drained()
        harness.settle()
    assert len(topics) == 401


def test_retained_messages_for_a_session_that_has_ended_do_not_come_to_the_next_one() -> None:
    harness = filled(2 * REPLAYED_AHEAD)
    client = mqtt_client(harness, client_id="r", clean=False)
    client.subscribe("a/#", qos=1)
    harness.broker.work.turn_steps = 64
    client.peer.lost()
    client = MqttClient(harness)
    client.peer.feed(connect_packet(client_id="r"))
    while client.peer.session is None:
        assert len(harness.broker.work) > 0, "a part of the replay is left"
        harness._turn(True)
    client.take()
    client.subscribe("b", qos=1)
    assert client.messages() == []
