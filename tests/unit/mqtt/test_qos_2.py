"""QoS 2 on the engine: exactly once, both ways, across reconnects, takeovers and crashes of the broker."""

from __future__ import annotations

from typing import Any

import pytest
from durable_harness import DurableHarness
from engine_harness import Harness, queue_declare
from mqtt_harness import Message, MqttClient, Packet, connect_packet, message, mqtt_client, properties, publish_packet

from warren.amqp import methods as m
from warren.amqp.field_table import EMPTY_TABLE
from warren.channels.wide_publish import QUEUES_AT_ONCE
from warren.mqtt import packets as p
from warren.mqtt.session import UNANSWERED_MAX
from warren.mqtt.sessions import MqttSessions, restore_sessions, sessions_of
from warren.vhosts.metadata import PolicyPut

PUBREC, PUBREL, PUBCOMP = 5, 6, 7
LASTS: dict[str, Any] = {"clean": False, "given": properties({p.SESSION_EXPIRY: 100})}


def sessions(harness: Harness) -> MqttSessions:
    return sessions_of(harness.broker, harness.vhost)


def lasting(harness: Harness, client_id: str, version: int = 5, **options: Any) -> tuple[MqttClient, list[Packet]]:
    """Return a client with a session that lasts, and what came with CONNACK."""
    client = MqttClient(harness, version)
    connack, *rest = client.feed(connect_packet(version, client_id, **LASTS, **options))
    assert connack.body[1] == 0, connack
    return client, rest


def ready(harness: Harness, topic: str = "a", version: int = 5) -> tuple[MqttClient, MqttClient]:
    """Return a reader and a writer, both with sessions that last."""
    reader, _ = lasting(harness, "r", version)
    writer, _ = lasting(harness, "w", version)
    assert reader.subscribe(topic, qos=2) == [2]
    return reader, writer


def only(packets: list[Packet], version: int = 5) -> Message:
    (found,) = packets
    return message(found, version)


# --- in -------------------------------------------------------------------------------------------------------------


def test_both_ways_it_takes_four_packets(harness: Harness, version: int) -> None:
    reader, writer = mqtt_client(harness, version, "r"), mqtt_client(harness, version, "w")
    assert reader.subscribe("a", qos=2) == [2]
    assert writer.publish("a", b"x", 2, packet_id=9) == [(PUBREC, 0, b"\0\x09")]
    assert writer.answer(PUBREL, 9) == [(PUBCOMP, 0, b"\0\x09")]
    (found,) = reader.messages()
    assert (found.body, found.qos, found.dup) == (b"x", 2, False)
    identifier = found.packet_id.to_bytes(2, "big")
    assert reader.answer(PUBREC, found.packet_id) == [(PUBREL, 2, identifier)]
    assert reader.answer(PUBCOMP, found.packet_id) == []
    assert harness.queue("mqtt-subscription-rqos2").message_count == 0


def test_what_is_sent_again_is_published_once(harness: Harness, version: int) -> None:
    reader, writer = mqtt_client(harness, version, "r"), mqtt_client(harness, version, "w")
    reader.subscribe("a", qos=0)
    for _ in range(3):
        assert writer.publish("a", b"x", 2, packet_id=9, dup=True) == [(PUBREC, 0, b"\0\x09")]
    writer.answer(PUBREL, 9)
    assert writer.publish("a", b"y", 2, packet_id=9) == [(PUBREC, 0, b"\0\x09")]
    assert reader.bodies() == [b"x", b"y"]


def test_it_is_not_taken_twice_after_a_reconnect_or_a_takeover(harness: Harness) -> None:
    reader, writer = ready(harness)
    writer.publish("a", b"x", 2, packet_id=9)
    writer.hang_up()
    writer, _ = lasting(harness, "w")
    assert writer.publish("a", b"x", 2, packet_id=9, dup=True) == [(PUBREC, 0, b"\0\x09")]
    writer, _ = lasting(harness, "w")
    assert writer.publish("a", b"x", 2, packet_id=9, dup=True) == [(PUBREC, 0, b"\0\x09")]
    assert writer.answer(PUBREL, 9) == [(PUBCOMP, 0, b"\0\x09")]
    assert reader.bodies() == [b"x"]
    sessions(harness).check_invariants()


def test_a_new_session_knows_nothing_of_the_packet_ids_of_the_old_one(harness: Harness) -> None:
    reader = mqtt_client(harness, 5, "r")
    reader.subscribe("a", qos=1)
    lasting(harness, "w")[0].publish("a", b"x", 2, packet_id=9)
    mqtt_client(harness, 5, "w").publish("a", b"y", 2, packet_id=9)
    assert reader.bodies() == [b"x", b"y"]


def test_it_is_not_taken_twice_after_a_kill() -> None:
    harness = DurableHarness()
    _, writer = ready(harness)
    assert writer.publish("a", b"x", 2, packet_id=9) == [(PUBREC, 0, b"\0\x09")]
    harness = harness.restart(clean=False)
    sessions(harness).check_invariants()
    writer, _ = lasting(harness, "w")
    assert writer.publish("a", b"x", 2, packet_id=9, dup=True) == [(PUBREC, 0, b"\0\x09")]
    assert writer.answer(PUBREL, 9) == [(PUBCOMP, 0, b"\0\x09")]
    _, came = lasting(harness, "r")
    assert only(came).body == b"x"
    harness = harness.restart(clean=False)
    assert sessions(harness).sessions["w"].received == {}, "PUBCOMP means that it is on disk"


def test_another_message_under_a_packet_id_of_an_earlier_life_is_taken() -> None:
    """As after the restore of a backup: the client is further, and its packet ids are those of other messages."""
    harness = DurableHarness()
    _, writer = ready(harness)
    for packet_id in (1, 2, 3, 4):
        writer.publish("a", b"old %d" % packet_id, 2, packet_id=packet_id)
    harness = harness.restart(clean=False)
    writer, _ = lasting(harness, "w")
    assert writer.publish("a", b"old 1", 2, packet_id=1) == [(PUBREC, 0, b"\0\x01")], "without DUP"
    assert writer.publish("a", b"new 2", 2, packet_id=2, dup=True) == [(PUBREC, 0, b"\0\x02")]
    assert writer.publish("a", b"old 3", 2, packet_id=3, dup=True) == [(PUBREC, 0, b"\0\x03")], "a repetition"
    # From now on this one is of this life.
    assert writer.publish("a", b"again", 2, packet_id=2) == [(PUBREC, 0, b"\0\x02")]
    sessions(harness).check_invariants()
    for packet_id in (1, 2, 3, 4):
        assert writer.answer(PUBREL, packet_id) == [(PUBCOMP, 0, bytes([0, packet_id]))]
    _, came = lasting(harness, "r")
    bodies = sorted(each.body[-5:] for each in came)
    assert bodies == [b"new 2", b"old 1", b"old 2", b"old 3", b"old 4"]
    harness = harness.restart(clean=False)
    assert sessions(harness).sessions["w"].received == {}


def test_what_was_not_on_disk_is_taken_again() -> None:
    harness = DurableHarness()
    _, writer = ready(harness)
    harness.store.hold = True
    writer.peer.feed(publish_packet("a", b"x", 2, 9, version=5))
    harness.settle()
    assert writer.take() == [], "PUBREC waits for the disk"
    writer.peer.feed(publish_packet("a", b"x", 2, 9, version=5, dup=True))
    harness.settle()
    assert writer.take() == []
    harness = harness.restart(clean=False)
    writer, _ = lasting(harness, "w")
    writer.publish("a", b"x", 2, packet_id=9, dup=True)
    _, came = lasting(harness, "r")
    assert only(came).body == b"x"


def test_pubcomp_waits_for_the_disk() -> None:
    harness = DurableHarness()
    _, writer = ready(harness)
    writer.publish("a", b"x", 2, packet_id=9)
    harness.store.hold = True
    assert writer.answer(PUBREL, 9) == []
    harness.store.hold = False
    harness.settle()
    assert writer.take() == [(PUBCOMP, 0, b"\0\x09")]


def test_who_takes_a_session_over_is_told_nothing_that_is_not_on_disk() -> None:
    harness = DurableHarness()
    reader, writer = ready(harness)
    writer.publish("a", b"x", 2, packet_id=1)
    (found,) = reader.messages()
    harness.store.hold = True
    assert reader.answer(PUBREC, found.packet_id) == []
    reader, came = lasting(harness, "r")
    assert came == [], "PUBREL waits as it did in the connection before"
    writer.peer.feed(publish_packet("a", b"y", 2, 2, version=5))
    writer, _ = lasting(harness, "w")
    assert writer.publish("a", b"y", 2, packet_id=2, dup=True) == [], "and PUBREC"
    harness.store.hold = False
    harness.settle()
    assert sorted(each.kind for each in reader.take()) == [p.PUBLISH, PUBREL]
    assert [each.kind for each in writer.take()] == [PUBREC]


def test_an_unknown_packet_id_is_told_in_5_0(harness: Harness) -> None:
    client = mqtt_client(harness, 5)
    assert client.answer(PUBREL, 7) == [(PUBCOMP, 0, b"\0\x07\x92")]
    assert client.answer(PUBREC, 0x8007) == [(PUBREL, 2, b"\x80\x07\x92")]
    assert client.answer(PUBCOMP, 0x8007) == []
    old = mqtt_client(harness, 4, "old")
    assert old.answer(PUBREL, 7) == [(PUBCOMP, 0, b"\0\x07")]


@pytest.mark.parametrize("asks", [0, 1])
def test_what_is_refused_is_not_remembered(harness: Harness, asks: int) -> None:
    amqp = harness.channel()
    amqp.declare("small", arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    amqp.bind("small", "amq.topic", "a")
    client = mqtt_client(harness, 5, given=properties({p.REQUEST_PROBLEM: asks}))
    (reply,) = client.publish("a", b"x", 2)
    assert (reply.kind, reply.body[:3]) == (PUBREC, b"\0\x01\x97")
    assert (b"a full queue" in reply.body) is (asks == 1), "why is told to those who want to know"
    assert sessions(harness).sessions["c"].received == {}
    assert not client.ended


@pytest.mark.parametrize("kind", [4, 5])
def test_an_answer_of_the_other_qos_ends_the_connection(harness: Harness, kind: int) -> None:
    client = mqtt_client(harness, 5)
    (reply,) = client.answer(kind, 0x8001 if kind == 4 else 1)
    assert (reply.kind, reply.body[0]) == (14, 0x82)


def test_nobody_leaves_more_unanswered_than_the_receive_maximum(harness: Harness, version: int) -> None:
    client = MqttClient(harness, version)
    reply = client.connect("c")
    if version == 5:
        granted = p.Reader(reply.body, 2, len(reply.body)).properties(p.CONNACK)
        assert granted.values[p.RECEIVE_MAX] == UNANSWERED_MAX
    for number in range(1, UNANSWERED_MAX + 1):
        client.peer.feed(publish_packet("a", b"x", 2, number, version=version))
    harness.settle()
    assert len(client.take()) == UNANSWERED_MAX
    assert client.publish("a", b"x", 2, packet_id=1, dup=True) == [(PUBREC, 0, b"\0\x01")]
    replies = client.publish("a", b"x", 2, packet_id=UNANSWERED_MAX + 1)
    assert [(each.kind, each.body[0]) for each in replies] == ([(14, 0x93)] if version == 5 else [])
    assert client.ended
    assert sessions(harness).ids == 0


# --- out ------------------------------------------------------------------------------------------------------------


def test_the_lowest_qos_counts(harness: Harness) -> None:
    reader, writer = ready(harness)
    reader.subscribe("b", qos=1)
    for qos in (0, 1, 2):
        writer.publish("a", b"a", qos, packet_id=10 + qos)
        writer.publish("b", b"b", qos, packet_id=20 + qos)
    amqp = harness.channel()
    amqp.publish("amq.topic", "a", b"amqp", delivery_mode=2)
    found = reader.messages()
    assert sorted((each.body, each.qos) for each in found) == [
        (b"a", 0),
        (b"a", 1),
        (b"a", 2),
        (b"amqp", 1),
        (b"b", 0),
        (b"b", 1),
        (b"b", 1),
    ]


def test_it_is_sent_again_with_its_packet_id_until_pubrec(harness: Harness) -> None:
    reader, writer = ready(harness)
    for number in range(3):
        writer.publish("a", b"%d" % number, 2, packet_id=number + 1)
    first = reader.messages()
    reader.answer(PUBREC, first[1].packet_id)
    reader.hang_up()
    _, came = lasting(harness, "r")
    assert (PUBREL, 2, first[1].packet_id.to_bytes(2, "big")) in came
    again = [message(each, 5) for each in came if each.kind == p.PUBLISH]
    assert [(each.packet_id, each.body, each.dup) for each in again] == [
        (each.packet_id, each.body, True) for each in (first[0], first[2])
    ]


def test_qos_1_is_sent_again_with_its_packet_id(harness: Harness) -> None:
    reader, writer = ready(harness)
    reader.subscribe("b", qos=1)
    for number in range(3):
        writer.publish("b", b"%d" % number, 1)
    first = reader.messages()
    reader.ack(first[0].packet_id)
    reader.hang_up()
    _, came = lasting(harness, "r")
    again = [message(each, 5) for each in came]
    assert [(each.packet_id, each.body) for each in again] == [(each.packet_id, each.body) for each in first[1:]]


@pytest.mark.parametrize("answered", ["nothing", "PUBREC", "PUBCOMP"])
def test_a_delivery_goes_on_after_a_kill_where_it_was(answered: str) -> None:
    harness = DurableHarness()
    reader, writer = ready(harness)
    writer.publish("a", b"x", 2)
    (found,) = reader.messages()
    identifier = found.packet_id.to_bytes(2, "big")
    if answered != "nothing":
        assert reader.answer(PUBREC, found.packet_id) == [(PUBREL, 2, identifier)]
    if answered == "PUBCOMP":
        reader.answer(PUBCOMP, found.packet_id)
        harness.write()
    harness = harness.restart(clean=False)
    reader, came = lasting(harness, "r")
    sessions(harness).check_invariants()
    if answered == "nothing":
        again = only(came)
        assert (again.packet_id, again.body, again.dup) == (found.packet_id, b"x", True)
        assert reader.answer(PUBREC, found.packet_id) == [(PUBREL, 2, identifier)]
    elif answered == "PUBREC":
        assert came == [(PUBREL, 2, identifier)]
        assert reader.answer(PUBCOMP, found.packet_id) == []
    else:
        assert came == []


def test_publish_and_pubrel_wait_for_the_disk() -> None:
    harness = DurableHarness()
    reader, _ = ready(harness)
    harness.store.hold = True
    other = mqtt_client(harness, 5, "other")
    other.publish("a", b"x", 2)
    assert reader.take() == [], "after a crash its packet id would be that of another message"
    harness.store.hold = False
    harness.settle()
    (found,) = reader.messages()
    harness.store.hold = True
    assert reader.answer(PUBREC, found.packet_id) == [], "after a crash it would be sent as a new one"
    harness.store.hold = False
    harness.settle()
    assert reader.take() == [(PUBREL, 2, found.packet_id.to_bytes(2, "big"))]


def test_who_does_not_read_gets_all_when_it_does() -> None:
    limit = 1 << 16
    harness = Harness(outbox_soft_bytes=limit)
    reader, writer = ready(harness)
    reader._client.stalled = True
    for number in range(1, 101):
        writer.peer.feed(publish_packet("a", b"%d" % number + b" " * 10_000, 2, number, version=5))
    harness.settle()
    assert reader.peer.outbox.waiting_bytes() < 2 * limit
    harness.wake(reader._client)
    assert [int(each.body) for each in reader.messages()] == list(range(1, 101))


def test_no_more_waits_for_the_disk_than_an_outbox() -> None:
    limit = 1 << 16
    harness = Harness(outbox_soft_bytes=limit)
    reader, writer = ready(harness)
    reader.hang_up()
    for number in range(1, 101):
        writer.peer.feed(publish_packet("a", b"%d" % number + b" " * 10_000, 2, number, version=5))
    harness.settle()
    harness.store.hold = True
    writer.publish("a", b"101", 2, packet_id=101)
    reader = MqttClient(harness, 5)
    reader.peer.feed(connect_packet(5, "r", **LASTS))
    harness.settle()
    queue = harness.queue("mqtt-subscription-rqos2")
    assert queue.unacked_bytes < 2 * limit
    harness.store.hold = False
    harness.settle()
    came = [each for each in reader.take() if each.kind == p.PUBLISH]
    assert [int(message(each, 5).body) for each in came] == list(range(1, 102))


def test_what_a_client_does_not_want_is_not_sent_again(harness: Harness) -> None:
    reader, writer = ready(harness)
    writer.publish("a", b"x", 2)
    (found,) = reader.messages()
    assert reader.answer(PUBREC, found.packet_id, 0x99) == []
    reader.hang_up()
    assert lasting(harness, "r")[1] == []


@pytest.mark.parametrize("expiry_s", [0, 100])
def test_a_message_that_is_received_after_its_time_is_not_doubled(harness: Harness, expiry_s: int) -> None:
    harness.broker.administer(PolicyPut("/", "p", ".*", "queues", 0, '{"visibility-timeout":1000}'))
    reader = MqttClient(harness, 5)
    reader.feed(connect_packet(5, "r", given=properties({p.SESSION_EXPIRY: expiry_s})))
    reader.subscribe("a", qos=2)
    mqtt_client(harness, client_id="w").publish("a", b"x", 2)
    (first,) = reader.messages()
    queue = harness.queue("mqtt-subscription-rqos2")
    queue.pause(paused=True)
    harness.pass_time(1.1)
    assert reader.answer(PUBREC, first.packet_id) == []  # not 0x92: the client would take it for another message
    queue.pause(paused=False)
    queue.wake()
    harness.settle()
    (again,) = reader.messages()
    assert (again.packet_id, again.dup) == (first.packet_id, True)
    assert reader.answer(PUBREC, again.packet_id) == [(PUBREL, 2, again.packet_id.to_bytes(2, "big"))]
    assert reader.answer(PUBCOMP, again.packet_id) == []
    assert queue.message_count == 0


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("cause", ["reconnect", "timeout"])
def test_retries_of_qos_2_are_not_delayed_and_keep_their_packet_id(cause: str, qos: int) -> None:
    """They came back from the held messages with another packet id: the client could not tell that it has them."""
    harness = DurableHarness()
    rules = '{"visibility-timeout":1000,"delayed-retry-type":"all","delayed-retry-min":5000}'
    harness.broker.administer(PolicyPut("/", "p", ".*", "queues", 0, rules))
    reader, writer = ready(harness)
    reader.subscribe("a", qos=qos)
    writer.publish("a", b"x", qos)
    writer.publish("a", b"y", qos, packet_id=2)
    first = reader.messages()
    if cause == "timeout":
        harness.pass_time(1.1)
    else:
        reader.hang_up()
        reader, came = lasting(harness, "r")
    again = reader.messages() if cause == "timeout" else [message(each, 5) for each in came]
    if qos == 1:
        assert again == []
        harness.pass_time(5.1)
        assert sorted(reader.bodies()) == [b"x", b"y"]
        return
    assert [(each.packet_id, each.body) for each in again] == [(each.packet_id, each.body) for each in first]
    for each in again:
        assert reader.answer(PUBREC, each.packet_id) == [(PUBREL, 2, each.packet_id.to_bytes(2, "big"))]
    harness.pass_time(10)
    assert reader.messages() == [] and harness.queue("mqtt-subscription-rqos2").message_count == 0


def test_a_message_that_is_received_before_it_is_sent_again_is_not_sent() -> None:
    harness = DurableHarness()
    harness.broker.administer(PolicyPut("/", "p", ".*", "queues", 0, '{"visibility-timeout":1000}'))
    reader, writer = ready(harness)
    writer.publish("a", b"x", 2)
    (first,) = reader.messages()
    harness.store.hold = True
    writer.publish("b", b"y", 2, packet_id=2)  # now the log is not on disk, and what is sent again waits for that
    harness.pass_time(1.1)
    assert reader.answer(PUBREC, first.packet_id) == []
    harness.store.hold = False
    harness.settle()
    assert reader.take() == [(PUBREL, 2, first.packet_id.to_bytes(2, "big"))]
    assert reader.answer(PUBCOMP, first.packet_id) == []
    assert harness.queue("mqtt-subscription-rqos2").message_count == 0


@pytest.mark.parametrize("qos", [1, 2])
def test_the_receive_maximum_holds_until_the_last_answer(harness: Harness, qos: int) -> None:
    reader = mqtt_client(harness, 5, "r", given=properties({p.RECEIVE_MAX: 2}))
    reader.subscribe("a", qos=2)
    reader.subscribe("b", qos=1)
    writer = mqtt_client(harness, 5, "w")
    for number in range(4):
        writer.publish("a" if number % 2 else "b", b"%d" % number, qos, packet_id=number + 1)
    first, second = reader.messages()
    both = {first.body, second.body}
    for each in (first, second):
        if each.qos == 2:
            (released,) = reader.answer(PUBREC, each.packet_id)
            assert released.kind == PUBREL, "and no PUBLISH"
            (more,) = reader.answer(PUBCOMP, each.packet_id)
        else:
            (more,) = reader.ack(each.packet_id)
        both.add(message(more, 5).body)
    assert both == {b"0", b"1", b"2", b"3"}


def test_a_packet_id_in_use_is_waited_for(harness: Harness) -> None:
    reader, writer = ready(harness)
    writer.publish("a", b"first", 2, packet_id=1)
    (first,) = reader.messages()
    for _ in range(0x8000 - 1):
        writer.peer.feed(publish_packet("a", b"", 0, version=5))
    harness.settle()
    reader.take()
    writer.publish("a", b"second", 2, packet_id=2)
    writer.publish("a", b"third", 2, packet_id=3)
    assert reader.bodies() == []
    (released,) = reader.answer(PUBREC, first.packet_id)
    assert released.kind == PUBREL
    second, third = [message(each, 5) for each in reader.answer(PUBCOMP, first.packet_id)]
    assert (second.body, second.packet_id) == (b"second", first.packet_id)
    assert third.body == b"third"


def test_a_retained_message_of_qos_2_comes_with_it(harness: Harness) -> None:
    reader, writer = ready(harness, "other")
    writer.publish("a", b"x", 2, retain=True)
    came = reader.feed(p.packet(p.SUBSCRIBE, 2, b"\0\x05\0" + p.text("a") + b"\x02"))
    found = only([each for each in came if each.kind == p.PUBLISH])
    assert (found.body, found.qos, found.retain) == (b"x", 2, True)


def test_what_is_sent_again_is_not_retained_again(harness: Harness) -> None:
    _, writer = ready(harness)
    writer.publish("a", b"old", 2, retain=True, packet_id=1)
    mqtt_client(harness, 5, "other").publish("a", b"new", 1, retain=True)
    writer.publish("a", b"old", 2, retain=True, packet_id=1, dup=True)
    found = harness.vhost.retained().maybe("a", 0)
    assert found is not None and found.body == b"new"


# --- sessions -------------------------------------------------------------------------------------------------------


def test_a_session_without_subscriptions_lasts_too(harness: Harness) -> None:
    lasting(harness, "w")[0].hang_up()
    client = MqttClient(harness, 5)
    assert client.connect("w", **LASTS).body[:2] == b"\x01\0"
    client.hang_up()
    harness.pass_time(101)
    assert MqttClient(harness, 5).connect("w", **LASTS).body[:2] == b"\0\0"


def test_nothing_is_left_of_a_session_that_is_over() -> None:
    harness = DurableHarness()
    reader, writer = ready(harness)
    writer.publish("a", b"x", 2)
    (found,) = reader.messages()
    reader.answer(PUBREC, found.packet_id)
    reader.hang_up()
    writer.hang_up()
    harness = harness.restart(clean=False)
    for _ in restore_sessions(harness.broker):
        pass
    assert len(harness.vhost.records) == 4
    harness.pass_time(99)
    assert "mqtt-subscription-rqos2" in harness.vhost.queues
    harness.pass_time(2)
    assert len(harness.vhost.records) == 0
    assert (sessions(harness).ids, sessions(harness).sessions) == (0, {})
    assert "mqtt-subscription-rqos2" not in harness.vhost.queues


def test_what_a_session_is_can_be_seen_and_ended(harness: Harness) -> None:
    reader, writer = ready(harness)
    writer.publish("a", b"x", 2, packet_id=9)
    (found,) = reader.messages()
    session = reader.peer.session
    assert session is not None
    assert (session.client_id, reader.peer.version, session.expiry_s) == ("r", 5, 100)
    assert {each.filter: each.qos for each in session.subscriptions.filters.values()} == {"a": 2}
    reader.answer(PUBREC, found.packet_id)
    kept = sessions(harness)
    reader.hang_up()
    assert (kept.sessions["r"].is_connected, kept.sessions["w"].is_connected) == (False, True)
    kept.session_over(kept.sessions["r"])
    kept.end(kept.sessions["r"])
    assert "mqtt-subscription-rqos2" not in harness.vhost.queues
    kept.check_invariants()


def test_there_is_an_end_to_the_sessions_that_last(harness: Harness) -> None:
    sessions(harness).session_shares.most = 1
    lasting(harness, "w")[0].hang_up()
    lasting(harness, "w")
    assert MqttClient(harness, 5).connect("x", **LASTS).body[:2] == b"\0\x97"
    assert MqttClient(harness, 4).connect("y", clean=False).body == b"\0\x03"
    mqtt_client(harness, 5, "z")


def test_an_earlier_session_needs_the_rights_that_its_queues_need(harness: Harness) -> None:
    harness.add_user("other", configure="^x", write=".*", read="^x")
    lasting(harness, "w")[0].hang_up()
    for clean in (True, False):
        client = MqttClient(harness, 5)
        assert client.connect("w", clean=clean, user="other", password="other").body[1] == 0x87
    assert "w" in sessions(harness).sessions


@pytest.mark.parametrize("expiry_s", [0, 1])
def test_who_may_only_read_a_session_does_not_end_it_earlier(harness: Harness, expiry_s: int) -> None:
    harness.add_user("reader", configure="", write="", read=".*")
    session, _ = lasting(harness, "r")
    session.subscribe("a", qos=1)
    session.hang_up()
    sooner = properties({p.SESSION_EXPIRY: expiry_s})
    reader = MqttClient(harness, 5)
    refused = reader.connect("r", clean=False, user="reader", password="reader", given=sooner)
    assert refused.body[1] == 0x87
    reader = MqttClient(harness, 5)
    assert reader.connect("r", user="reader", password="reader", **LASTS).body[:2] == b"\x01\0"
    (reply,) = reader.feed(p.packet(p.DISCONNECT, 0, b"\0" + sooner.encode()))
    assert (reply.kind, reply.body[0]) == (p.DISCONNECT, 0x87)
    harness.pass_time(50)
    assert "mqtt-subscription-rqos1" in harness.vhost.queues
    assert sessions(harness).sessions["r"].expiry_s == 100


def test_who_has_made_a_session_may_end_it_while_connected(harness: Harness) -> None:
    harness.add_user("writer", configure="", write=".*", read="")
    client = MqttClient(harness, 5)
    client.connect("w", user="writer", password="writer", **LASTS)
    assert client.feed(p.packet(p.DISCONNECT, 0, b"\0" + properties({p.SESSION_EXPIRY: 0}).encode())) == []
    assert "w" not in sessions(harness).sessions


@pytest.mark.parametrize("will", [None, ("gone", b"", 1, False)])
def test_a_message_that_takes_turns_is_taken_over_once_though_its_client_leaves(
    harness: Harness, will: tuple[str, bytes, int, bool] | None
) -> None:
    writer, _ = lasting(harness, "w", will=will)
    queues = [queue_declare(f"q{number}", durable=True) for number in range(QUEUES_AT_ONCE + 1)]
    bound = [m.QueueBind(0, f"q{number}", "amq.topic", "a", False, EMPTY_TABLE) for number in range(len(queues))]
    harness.channel().send(1, *queues, *bound)
    harness.broker.work.turn_steps = 200
    harness.broker.work.end_turn()
    writer.peer.feed(publish_packet("a", b"x", 2, version=5, packet_id=9))
    writer.peer.lost()
    assert len(harness.broker.work) == 1 and not sessions(harness).ids, "a part of it is done"
    writer, _ = lasting(harness, "w")
    assert writer.publish("a", b"x", 2, packet_id=9, dup=True) == [(PUBREC, 0, b"\0\x09")]
    assert {int(queue.message_count) for queue in harness.vhost.queues.values()} == {1}
    assert writer.answer(PUBREL, 9) == [(PUBCOMP, 0, b"\0\x09")]
    sessions(harness).check_invariants()
