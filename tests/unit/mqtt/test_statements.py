"""Statements of MQTT 5 that no other test here shows; docs/mqtt-conformance.md has all with their tests."""

from __future__ import annotations

import pytest
from engine_harness import Harness
from mqtt_harness import MqttClient, connect_packet, mqtt_client, properties, publish_packet

from warren.mqtt import packets as p
from warren.mqtt.packets import packet, text


@pytest.fixture
def client(harness: Harness) -> MqttClient:
    return mqtt_client(harness, 5)


def test_a_byte_order_mark_is_a_character_of_the_topic(client: MqttClient) -> None:
    client.subscribe("\ufeffa", "a")
    client.publish("\ufeffa", b"x")
    assert [each.topic for each in client.messages()] == ["\ufeffa"]


def test_topics_are_compared_character_by_character(client: MqttClient) -> None:
    client.subscribe("A", "a/", "/a", "\u00e9")
    for topic in ("a", "A", "a/", "/a", "e\u0301"):
        client.publish(topic, topic.encode())
    assert client.bodies() == [b"A", b"a/", b"/a"]


def test_the_reserved_flag_of_connect_is_0(harness: Harness) -> None:
    client = MqttClient(harness, 5)
    client.feed(packet(1, 0, text("MQTT") + b"\x05\x03\0\0\0" + text("c")))
    assert client.ended


@pytest.mark.parametrize("flags", [0x1E, 0x0A, 0x22])  # QoS 3; QoS without a will; RETAIN without a will
def test_flags_of_a_will_that_contradict_each_other_are_malformed(harness: Harness, flags: int) -> None:
    client = MqttClient(harness, 5)
    client.feed(packet(1, 0, text("MQTT") + bytes([5, flags]) + b"\0\0\0" + text("c") + b"\0" + text("w") + text("x")))
    assert client.ended


def test_nothing_behind_a_refused_connect_is_handled(harness: Harness) -> None:
    reader, client = mqtt_client(harness, 5, "r"), MqttClient(harness, 5)
    reader.subscribe("a")
    came = client.feed(connect_packet(5, password="no") + publish_packet("a", b"x", version=5))
    assert [(each.kind, each.body[:2]) for each in came] == [(2, b"\0\x86")]
    assert client.ended and reader.messages() == []


def test_connack_is_the_first_packet_of_a_session_with_messages(harness: Harness) -> None:
    lasts = properties({p.SESSION_EXPIRY: 100})
    first = mqtt_client(harness, 5, clean=False, given=lasts)
    first.subscribe("a", qos=1)
    first.hang_up()
    mqtt_client(harness, 5, "w").publish("a", b"x", 1)
    came = MqttClient(harness, 5).feed(connect_packet(5, "c", clean=False, given=lasts))
    assert [each.kind for each in came] == [2, 3]


@pytest.mark.parametrize("client_id", ["0123456789abcdefghijklm", "ABCDEFGHIJKLMNOPQRSTUVW", "x" * 200])
def test_client_ids_of_letters_and_digits_are_taken(harness: Harness, client_id: str) -> None:
    assert MqttClient(harness, 5).connect(client_id).body[1] == 0


def test_what_is_no_client_id_is_told(harness: Harness) -> None:
    reply = MqttClient(harness, 5).connect("x" * 300)
    assert reply.body[:2] == b"\0\x85"


def test_a_message_that_is_not_retained_leaves_what_is(client: MqttClient) -> None:
    client.publish("a", b"old", retain=True)
    client.publish("a", b"new")
    client.subscribe("a")
    assert client.bodies() == [b"old"]


def test_one_message_for_overlapping_filters_has_all_their_identifiers(client: MqttClient) -> None:
    for number, filter_ in enumerate(("a/+", "a/#", "+/b"), 1):
        given = properties()
        given.ids = [number]
        client.subscribe(filter_, qos=1, given=given)
    client.publish("a/b", b"x", 1)
    (found,) = client.messages()
    encoded = p.varint(len(found.properties)) + found.properties
    assert sorted(p.Reader(encoded, 0, len(encoded)).properties(p.PUBLISH).ids) == [1, 2, 3]


def test_codes_of_suback_and_unsuback_are_in_the_order_of_the_filters(client: MqttClient) -> None:
    body = b"\0\x05\0" + b"".join(text(each) + bytes([qos]) for each, qos in (("a", 2), ("a#", 1), ("b", 0), ("c", 1)))
    (reply,) = client.feed(packet(8, 2, body))
    assert (reply.kind, reply.body) == (9, b"\0\x05\0\x02\x8f\0\x01")
    assert client.unsubscribe("b", "x", "a") == [0, 0x11, 0]


def test_a_subscription_that_is_made_again_is_replaced_and_has_what_is_retained_again(client: MqttClient) -> None:
    client.publish("a", b"kept", retain=True)
    client.subscribe("a")
    assert client.bodies() == [b"kept"]
    client.subscribe("a")
    assert client.bodies() == [b"kept"]
    client.publish("a", b"once")
    assert client.bodies() == [b"once"]


@pytest.mark.parametrize("qos", [1, 2])
def test_what_is_on_its_way_is_completed_after_unsubscribe(client: MqttClient, qos: int) -> None:
    client.subscribe("a", qos=qos)
    client.publish("a", b"x", qos)
    (found,) = client.messages()
    assert client.unsubscribe("a") == [0]
    client.publish("a", b"y", qos, packet_id=2)
    assert client.messages() == []
    if qos == 1:
        assert client.ack(found.packet_id) == []
    else:
        assert [each.kind for each in client.answer(5, found.packet_id)] == [6]
        assert client.answer(7, found.packet_id) == []
    assert client.peer.channels[1].ledger.unacked_count == 0


def test_pubrel_has_its_flags(client: MqttClient) -> None:
    (reply,) = client.feed(packet(6, 0, b"\0\x01"))
    assert (reply.kind, reply.body[0]) == (14, 0x81)


@pytest.mark.parametrize("data", [packet(10, 2, b"\0\x01\0"), packet(8, 2, b"\0\x01\0")])
def test_a_request_without_filters_is_a_protocol_error(client: MqttClient, data: bytes) -> None:
    (reply,) = client.feed(data)
    assert (reply.kind, reply.body[0]) == (14, 0x82)


def test_reserved_options_of_a_subscription_are_malformed(client: MqttClient) -> None:
    (reply,) = client.feed(packet(8, 2, b"\0\x01\0" + text("a") + b"\x40"))
    assert (reply.kind, reply.body[0]) == (14, 0x81)


def test_a_subscription_identifier_from_a_publisher_is_a_protocol_error(client: MqttClient) -> None:
    given = properties()
    given.ids = [1]
    (reply,) = client.publish("a", b"x", given=given)
    assert (reply.kind, reply.body[0]) == (14, 0x82)


@pytest.mark.parametrize(
    ("topic", "alias", "reason"), [("a", 0, 0x94), ("", 0, 0x94), ("a", 17, 0x94), ("", 5, 0x82), ("", None, 0x82)]
)
def test_a_topic_alias_that_cannot_be_is_refused(
    client: MqttClient, topic: str, alias: int | None, reason: int
) -> None:
    (reply,) = client.publish(topic, b"x", given=properties({} if alias is None else {p.ALIAS: alias}))
    assert (reply.kind, reply.body[0]) == (14, reason)


def test_aliases_end_with_the_connection(harness: Harness) -> None:
    first = mqtt_client(harness, 5)
    first.publish("a", b"x", given=properties({p.ALIAS: 1}))
    second = mqtt_client(harness, 5)
    (reply,) = second.publish("", b"x", given=properties({p.ALIAS: 1}))
    assert (reply.kind, reply.body[0]) == (14, 0x82)


def test_no_alias_is_sent(harness: Harness) -> None:
    client = mqtt_client(harness, 5, given=properties({p.ALIAS_MAX: 10}))
    client.subscribe("a")
    for _ in range(3):
        client.publish("a", b"x")
    assert {(each.topic, each.properties) for each in client.messages()} == {("a", b"")}


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_come_in_the_order_in_which_they_were_published(
    harness: Harness, client: MqttClient, qos: int
) -> None:
    client.subscribe("a", qos=qos)
    writer = mqtt_client(harness, 5, "w")
    for number in range(1, 21):
        writer.peer.feed(publish_packet("a", b"%d" % number, qos, number, version=5))
    harness.settle()
    assert client.bodies() == [b"%d" % number for number in range(1, 21)]
    ids = [each.body[:2] for each in writer.take()]
    assert ids == ([] if qos == 0 else [number.to_bytes(2, "big") for number in range(1, 21)])


def test_a_reason_string_is_left_out_where_the_packet_would_be_too_large(harness: Harness) -> None:
    for size, has_words in ((100, False), (100_000, True)):
        client = mqtt_client(harness, 5, given=properties({p.PACKET_MAX: size}))
        (reply,) = client.feed(packet(6, 0, b"\0\x01"))
        assert (len(reply.body) > 10) is has_words


@pytest.mark.parametrize(("size", "answers"), [(1, []), (10, [(2, b"\0\x95\0")])])
def test_no_connack_is_larger_than_the_client_takes(
    harness: Harness, size: int, answers: list[tuple[int, bytes]]
) -> None:
    client = MqttClient(harness, 5)
    came = client.feed(connect_packet(5, given=properties({p.PACKET_MAX: size})))
    assert [(each.kind, each.body) for each in came] == answers
    assert client.ended
    assert "c" not in [name for _, name in harness.broker.named_clients]


def test_who_is_refused_because_of_its_size_leaves_the_earlier_session_as_it_was(harness: Harness) -> None:
    lasts = properties({p.SESSION_EXPIRY: 100})
    earlier = mqtt_client(harness, 5, given=lasts)
    earlier.subscribe("a", qos=1)
    earlier.hang_up()
    MqttClient(harness, 5).feed(connect_packet(5, given=properties({p.PACKET_MAX: 10})))
    assert MqttClient(harness, 5).connect("c", clean=False, given=lasts).body[:2] == b"\x01\0"


def test_no_refusal_is_larger_than_the_client_takes(harness: Harness) -> None:
    client = MqttClient(harness, 5)
    (reply,) = client.feed(connect_packet(5, password="no", given=properties({p.PACKET_MAX: 10})))
    assert (reply.kind, reply.body) == (2, b"\0\x86\0")


@pytest.mark.parametrize(("kind", "option"), [(8, b"\0"), (10, b"")])
def test_what_has_an_answer_that_the_client_does_not_take_is_refused(
    harness: Harness, kind: int, option: bytes
) -> None:
    client = mqtt_client(harness, 5, given=properties({p.PACKET_MAX: 20}))
    fifteen = b"\0\x01\0" + (text("a") + option) * 15
    (reply,) = client.feed(packet(kind, 2, fifteen))
    assert (reply.kind, len(reply.body)) == (9 if kind == 8 else 11, 18)
    (reply,) = client.feed(packet(kind, 2, fifteen + text("b") + option))
    assert (reply.kind, reply.body) == (14, b"\x95\0")
    assert client.ended


def test_disconnect_may_not_make_a_session_last_that_was_not_to(client: MqttClient) -> None:
    (reply,) = client.feed(packet(14, 0, b"\0" + properties({p.SESSION_EXPIRY: 5}).encode()))
    assert (reply.kind, reply.body[0]) == (14, 0x82)


def test_auth_without_a_method_is_a_protocol_error(client: MqttClient) -> None:
    (reply,) = client.feed(packet(15, 0, b"\x18\0"))
    assert (reply.kind, reply.body[0]) == (14, 0x82)
