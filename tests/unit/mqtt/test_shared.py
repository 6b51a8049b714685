"""Shared subscriptions on the engine: one queue for a group and a filter, whose consumers take turns."""

from __future__ import annotations

import pytest
from durable_harness import DurableHarness
from engine_harness import Harness
from mqtt_harness import MqttClient, Packet, connect_packet, message, mqtt_client, properties

from warren.mqtt import packets as p
from warren.mqtt.client_subscriptions import SHARES_MAX
from warren.mqtt.sessions import restore_sessions, sessions_of

QUEUE = "mqtt-shared-g/a/+"


def lasting(harness: Harness, client_id: str) -> tuple[MqttClient, list[Packet]]:
    """Return a client with a session that lasts, and what came with CONNACK."""
    client = MqttClient(harness, 5)
    given = properties({p.SESSION_EXPIRY: 100})
    connack, *rest = client.feed(connect_packet(5, client_id, clean=False, given=given))
    assert connack.body[1] == 0, connack
    return client, rest


def test_a_group_has_each_message_once_and_in_turn(harness: Harness, version: int) -> None:
    readers = [mqtt_client(harness, version, str(number)) for number in range(3)]
    alone = mqtt_client(harness, version, "alone")
    for reader in readers:
        assert reader.subscribe("$share/g/a/+", qos=1) == [1]
    alone.subscribe("a/+")
    writer = mqtt_client(harness, version, "w")
    for number in range(6):
        writer.publish("a/b", b"%d" % number, 1)
    taken = [[each.body for each in reader.messages()] for reader in readers]
    assert [len(each) for each in taken] == [2, 2, 2]
    assert sorted(body for each in taken for body in each) == [b"%d" % number for number in range(6)]
    assert len(alone.bodies()) == 6


def test_two_groups_have_each_message_both(harness: Harness) -> None:
    one, two = mqtt_client(harness, 5, "1"), mqtt_client(harness, 5, "2")
    one.subscribe("$share/g/a")
    two.subscribe("$share/h/a")
    mqtt_client(harness, 5, "w").publish("a", b"x")
    assert one.bodies() == two.bodies() == [b"x"]


def test_sessions_with_many_shares_that_end_at_one_time_take_turns(harness: Harness) -> None:
    many = 12
    clients = [lasting(harness, str(number))[0] for number in range(many)]
    for number, client in enumerate(clients):
        client.subscribe(*(f"$share/{number}/{at}" for at in range(SHARES_MAX)))
    for client in clients:
        client.hang_up()
    kept = sessions_of(harness.broker, harness.vhost).sessions
    harness.broker.keep_time(int(harness.broker.log.now_ms) + 101_000)
    assert 0 < len(kept) < many
    harness.pass_time(101)
    assert not kept and not harness.vhost.queues


def test_qos_1_is_granted_at_most_and_the_lower_one_counts(harness: Harness) -> None:
    zero, one = mqtt_client(harness, 5, "0"), mqtt_client(harness, 5, "1")
    assert zero.subscribe("$share/g/a", qos=0) == [0]
    assert one.subscribe("$share/g/a", qos=2) == [1]
    writer = mqtt_client(harness, 5, "w")
    writer.publish("a", b"x", 2, packet_id=1)
    writer.publish("a", b"y", 2, packet_id=2)
    assert [each.qos for each in zero.messages()] == [0]
    assert [each.qos for each in one.messages()] == [1]


def test_what_one_does_not_acknowledge_another_one_gets(harness: Harness) -> None:
    one, two = mqtt_client(harness, 5, "1"), mqtt_client(harness, 5, "2")
    one.subscribe("$share/g/a", qos=1)
    mqtt_client(harness, 5, "w").publish("a", b"x", 1)
    assert one.bodies() == [b"x"]
    two.subscribe("$share/g/a", qos=1)
    one.hang_up()
    (found,) = two.messages()
    assert (found.body, found.dup) == (b"x", True)


def test_retained_messages_and_own_ones(harness: Harness) -> None:
    client = mqtt_client(harness, 5)
    client.publish("a/b", b"old", retain=True)
    assert client.subscribe("$share/g/a/+", options=8) == [0]
    assert client.messages() == [], "nothing retained comes with a shared subscription"
    client.publish("a/b", b"new", retain=True)
    assert [each.retain for each in client.messages()] == [True], "as it was published"
    (reply,) = client.feed(p.packet(8, 2, b"\0\x01\0" + p.text("$share/g/a") + b"\x04"))
    assert (reply.kind, reply.body[0]) == (14, 0x82)


def test_a_star_and_a_dollar_are_what_they_are_elsewhere(harness: Harness) -> None:
    client = mqtt_client(harness, 5)
    one = properties()
    one.ids = [7]
    client.subscribe("$share/g/#", "$share/g/b/*", given=one)
    client.publish("$internal/x", b"no")
    client.publish("b/c", b"once")
    (found,) = client.messages()
    assert (found.body, found.properties) == (b"once", b"\x0b\x07")


@pytest.mark.parametrize("filter_", ["$share/g", "$share//a", "$share/g/", "$share/+/a", "$share/g#/a", "$share/g/a+"])
def test_what_is_no_shared_filter_is_refused(harness: Harness, filter_: str) -> None:
    assert mqtt_client(harness, 5).subscribe(filter_) == [0x8F]


def test_a_group_or_filter_that_makes_no_name_of_a_queue_is_refused(harness: Harness) -> None:
    assert mqtt_client(harness, 5).subscribe("$share/" + "g" * 242 + "/a", "$share/g\n/a") == [0x8F, 0x8F]


def test_a_session_has_so_many_at_most(harness: Harness) -> None:
    client = mqtt_client(harness, 5)
    filters = [f"$share/{number}/a" for number in range(SHARES_MAX + 1)]
    assert client.subscribe(*filters) == [0] * SHARES_MAX + [0x97]
    assert client.unsubscribe(filters[0], "$share/x/a") == [0, 0x11]
    assert client.subscribe(filters[0]) == [0]


def test_rights_are_those_of_the_queue_and_the_topic(harness: Harness) -> None:
    harness.add_user("other", configure="^mqtt-subscription", write="^mqtt-", read=".*")
    client = mqtt_client(harness, 5, "c", user="other", password="other")
    assert client.subscribe("$share/g/a") == [0x87]
    harness.permit("other", "^mqtt-", "^mqtt-", "^mqtt-")
    client = mqtt_client(harness, 5, "c", user="other", password="other")
    assert client.subscribe("$share/g/a") == [0x87], "it may not read amq.topic"
    assert "mqtt-shared-g/a" not in harness.vhost.queues


def test_the_queue_goes_with_its_last_subscriber(harness: Harness) -> None:
    one, two = mqtt_client(harness, 5, "1"), mqtt_client(harness, 5, "2")
    for each in (one, two):
        each.subscribe("$share/g/a/+", qos=1)
    assert one.unsubscribe("$share/g/a/+") == [0]
    assert QUEUE in harness.vhost.queues
    two.hang_up()
    assert QUEUE not in harness.vhost.queues


def test_the_queue_waits_for_sessions_that_last(harness: Harness) -> None:
    client, _ = lasting(harness, "1")
    client.subscribe("$share/g/a/+", qos=1)
    client.hang_up()
    mqtt_client(harness, 5, "w").publish("a/b", b"x", 1)
    _, came = lasting(harness, "1")
    assert [message(each, 5).body for each in came] == [b"x"]
    lasting(harness, "1")[0].hang_up()
    harness.pass_time(101)
    assert QUEUE not in harness.vhost.queues
    lasting(harness, "1")[0].subscribe("$share/g/a/+")
    mqtt_client(harness, 5, "1")
    assert QUEUE not in harness.vhost.queues, "a clean start ends the session"


def test_shares_survive_a_kill() -> None:
    harness = DurableHarness()
    client, _ = lasting(harness, "1")
    assert client.subscribe("$share/g/a/+", qos=1) == [1]
    transient = mqtt_client(harness, 5, "2")
    transient.subscribe("$share/h/a/+", qos=1)
    mqtt_client(harness, 5, "w").publish("a/b", b"x", 1)
    harness = harness.restart(clean=False)
    for _ in restore_sessions(harness.broker):
        pass
    _, came = lasting(harness, "1")
    assert [message(each, 5).body for each in came] == [b"x"]
    harness.pass_time(86401)
    assert "mqtt-shared-h/a/+" not in harness.vhost.queues, "nobody came back to it"


def test_a_subscription_is_replaced_by_one_with_another_qos(harness: Harness) -> None:
    client = mqtt_client(harness, 5)
    assert client.subscribe("$share/g/a", qos=1) == [1]
    assert client.subscribe("$share/g/a", qos=0) == [0]
    client.publish("a", b"x", 1)
    assert [each.qos for each in client.messages()] == [0]


@pytest.mark.parametrize(("write", "read"), [("", ""), ("", ".*"), (".*", "^amq")])
def test_a_client_without_the_rights_does_not_delete_the_queue_of_a_group(
    harness: Harness, write: str, read: str
) -> None:
    harness.channel().declare(QUEUE, durable=True)
    harness.add_user("other", configure="", write=write, read=read)
    client = mqtt_client(harness, 5, user="other", password="other")
    assert client.subscribe("$share/g/a/+", qos=1) == [0x87]
    assert QUEUE in harness.vhost.queues
