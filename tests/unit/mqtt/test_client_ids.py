"""Client ids on the engine: one owner at a time, a successor that waits for its end, and who takes its place."""

from __future__ import annotations

from engine_harness import USER, Harness
from mqtt_harness import MqttClient, connect_packet, mqtt_client

from warren.mqtt.client_ids import maybe_owner
from warren.vhosts.metadata import VhostPut


def waiting(harness: Harness) -> MqttClient:
    """Return a client whose login is accepted, and that waits for the client id: the broker has had no turn since."""
    client = MqttClient(harness, 5)
    client.peer.feed(connect_packet(5, "c"))
    (request,) = harness.broker.logins
    harness.broker.logins.clear()
    request.accept(USER)
    assert client.peer.session is None
    return client


def reasons(client: MqttClient) -> list[tuple[int, int]]:
    """Return the packets that have come, with their reasons."""
    return [(each.kind, each.body[1 if each.kind == 2 else 0]) for each in client.take()]


def owned(harness: Harness) -> MqttClient:
    """Return a client whose session takes many turns to end."""
    owner = mqtt_client(harness, 5, "c")
    owner.subscribe("a", qos=1)
    for number in range(1, 501):
        owner.publish("a", b"x", 1, packet_id=number)
    assert len(owner.messages()) == 500
    harness.broker.work.turn_steps = 10
    harness.settle()
    return owner


def test_a_successor_begins_when_the_owner_has_released_everything(harness: Harness) -> None:
    owner = owned(harness)
    client = waiting(harness)
    assert maybe_owner(client.peer) is owner.peer and owner.peer.successor is client.peer
    harness.settle()
    assert reasons(owner) == [(14, 0x8E)] and owner.ended
    assert reasons(client) == [(2, 0)]
    assert maybe_owner(client.peer) is client.peer
    for each in (owner, client):
        assert each.peer.successor is None


def test_a_later_successor_takes_the_place_of_the_one_that_waits(harness: Harness) -> None:
    owner = owned(harness)
    first = waiting(harness)
    second = waiting(harness)
    assert owner.peer.successor is second.peer
    harness.settle()
    assert reasons(owner) == [(14, 0x8E)]
    assert reasons(first) == [(2, 0x8E)] and first.ended
    assert reasons(second) == [(2, 0)]


def test_the_id_is_free_when_the_successor_has_gone_meanwhile(harness: Harness) -> None:
    owner = owned(harness)
    client = waiting(harness)
    client.peer.lost()
    harness.settle()
    assert reasons(owner) == [(14, 0x8E)]
    assert maybe_owner(client.peer) is None
    mqtt_client(harness, 5, "c")


def test_another_user_does_not_end_the_owner(harness: Harness) -> None:
    harness.add_user("other")
    owner = mqtt_client(harness, 5, "c")
    client = MqttClient(harness, 5)
    (reply,) = client.feed(connect_packet(5, "c", user="other", password="other"))
    assert (reply.kind, reply.body[1]) == (2, 0x85)
    assert client.ended and not owner.ended


def test_clients_of_two_vhosts_may_have_the_same_id(harness: Harness) -> None:
    harness.broker.administer(VhostPut("other"))
    harness.permit(USER, vhost="other")
    first = mqtt_client(harness, 5, "c")
    second = mqtt_client(harness, 5, "c", user=f"other:{USER}")
    assert not first.ended
    assert (maybe_owner(first.peer), maybe_owner(second.peer)) == (first.peer, second.peer)
