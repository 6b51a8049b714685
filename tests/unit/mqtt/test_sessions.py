"""MQTT on the engine: a client's packets and the answers, without sockets."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, cast

import pytest
from durable_harness import DurableHarness
from engine_harness import USER, Harness
from mqtt_harness import MqttClient, connect_packet, message, mqtt_client, properties, publish_packet

from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.amqp.field_table import EMPTY_TABLE, Table, decode_table, encode_table
from warren.mqtt import packets as p
from warren.mqtt.packets import Properties, Will, packet
from warren.mqtt.sessions import notes_of, queue_name, restore_sessions, sessions_of
from warren.mqtt.topics import shared_queue
from warren.mqtt.wills import encode_will
from warren.vhosts.metadata import PolicyPut, TopicPermissionPut, UserLimitsPut, VhostDelete, VhostLimitsPut, VhostPut
from warren.vhosts.retained import Retained

# --- CONNECT --------------------------------------------------------------------------------------------------------


def test_a_client_logs_in_and_is_named(harness: Harness, version: int) -> None:
    client = mqtt_client(harness, version, "thermometer")
    names = {3: "MQTT 3-1-0", 4: "MQTT 3-1-1", 5: "MQTT 5-0"}
    assert client.peer.protocol == names[version]
    assert client.peer.client_properties["client_id"] == "thermometer"
    assert client.feed(packet(12, 0, b"")) == [(13, 0, b"")]


def test_a_wrong_password_is_refused(harness: Harness, version: int) -> None:
    client = MqttClient(harness, version)
    assert client.connect(password="no").body[1] == (0x86 if version == 5 else 4)
    assert client.ended


def test_without_a_user_nobody_enters(harness: Harness) -> None:
    client = MqttClient(harness)
    assert client.connect(user=None, password=None).body[1] == 4


def test_the_user_may_name_the_vhost(harness: Harness) -> None:
    harness.broker.administer(VhostPut("other"))
    harness.permit("guest", vhost="other")
    client = mqtt_client(harness, user="other:guest")
    assert client.peer.login.vhost_name == "other"
    assert MqttClient(harness).connect(user="missing:guest").body[1] == 5


def test_an_unknown_version_is_told_so(harness: Harness) -> None:
    client = MqttClient(harness)
    (reply,) = client.feed(packet(1, 0, b"\0\x04MQTT\x09\x02\0\0\0\x01c"))
    assert (reply.kind, reply.body[1]) == (2, 1)
    assert client.ended


def test_an_empty_client_id_is_assigned(harness: Harness) -> None:
    client = MqttClient(harness, 5)
    reply = client.connect("")
    reader = p.Reader(reply.body, 2, len(reply.body))
    assert reader.properties(p.CONNACK).values[p.ASSIGNED_ID] == client.peer.login.name
    assert MqttClient(harness).connect("", clean=False).body[1] == 2


def test_keep_alive_is_one_and_a_half(harness: Harness) -> None:
    client = mqtt_client(harness, keep_alive_s=10)
    harness.pass_time(0.5)
    harness.pass_time(7)
    harness.pass_time(7)
    assert not client.ended
    harness.pass_time(2)
    assert client.ended


def test_what_comes_before_connect_ends_the_connection(harness: Harness) -> None:
    client = MqttClient(harness)
    assert client.feed(publish_packet("a", b"x")) == []
    assert client.ended


def test_another_way_to_log_in_is_refused_before_the_password_is_looked_at(harness: Harness) -> None:
    client = MqttClient(harness, 5)
    client.peer.feed(connect_packet(5, given=properties({p.AUTH_METHOD: "SCRAM"})))
    assert harness.broker.logins == []
    harness.settle()
    (reply,) = client.take()
    assert (reply.kind, reply.body[1]) == (2, 0x8C)
    assert b"PLAIN, EXTERNAL" in reply.body
    assert client.ended


def test_a_connect_that_is_refused_counts_as_no_channel(harness: Harness) -> None:
    refused = MqttClient(harness)
    assert refused.connect(will=("t" * 256, b"", 0, False)).body[1] != 0
    assert refused.ended and harness.broker.access.usage(USER).channels == 0
    client = mqtt_client(harness)
    assert harness.broker.access.usage(USER).channels == 1
    client.hang_up()
    assert harness.broker.access.usage(USER).channels == 0


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("expiry_s", [0, 100])
@pytest.mark.parametrize("read", ["", ".*"])
def test_a_client_without_the_right_does_not_delete_the_queues_of_its_id(
    harness: Harness, clean: bool, expiry_s: int, read: str
) -> None:
    harness.channel().declare("mqtt-subscription-cqos1", durable=True)
    harness.add_user("other", configure="", write="", read=read)
    client = MqttClient(harness, 5)
    given = properties({p.SESSION_EXPIRY: expiry_s})
    reply = client.connect("c", clean=clean, user="other", password="other", given=given)
    assert reply.body[:2] == b"\0\x87"
    client.hang_up()
    harness.pass_time(101)
    assert "mqtt-subscription-cqos1" in harness.vhost.queues


# --- messages -------------------------------------------------------------------------------------------------------


def test_qos_0_reaches_who_has_subscribed(harness: Harness, version: int) -> None:
    reader, writer = mqtt_client(harness, version, "r"), mqtt_client(harness, version, "w")
    assert reader.subscribe("a/+/c", "x/#") == [0, 0]
    for topic in ("a/b/c", "a/b", "x", "x/y/z", "a.b"):
        assert writer.publish(topic, topic.encode()) == []
    assert reader.bodies() == [b"a/b/c", b"x", b"x/y/z"]


def test_qos_1_is_answered_both_ways(harness: Harness, version: int) -> None:
    reader, writer = mqtt_client(harness, version, "r"), mqtt_client(harness, version, "w")
    assert reader.subscribe("a", qos=1) == [1]
    assert writer.publish("a", b"x", 1, packet_id=77) == [(4, 0, b"\0\x4d")]
    (found,) = reader.messages()
    assert (found.topic, found.body, found.qos, found.packet_id) == ("a", b"x", 1, 1)
    queue = harness.queue("mqtt-subscription-rqos1")
    assert queue.unacked_count == 1
    assert reader.ack(found.packet_id) == []
    assert queue.message_count == 0
    assert reader.ack(found.packet_id) == [] and not reader.ended


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_that_is_not_answered_in_time_comes_again_with_its_packet_id(
    harness: Harness, qos: int, clean: bool
) -> None:
    harness.broker.administer(PolicyPut("/", "p", ".*", "queues", 0, '{"visibility-timeout":1000}'))
    reader = mqtt_client(harness, client_id="r", clean=clean)
    reader.subscribe("a", qos=qos)
    mqtt_client(harness, client_id="w").publish("a", b"x", qos)
    (first,) = reader.messages()
    for _ in range(3):
        harness.pass_time(1.1)
        (again,) = reader.messages()
        assert (again.packet_id, again.dup) == (first.packet_id, True)
    if qos == 2:
        (reply,) = reader.answer(5, first.packet_id)
        assert reply.kind == 6 and reader.answer(7, first.packet_id) == []
    else:
        reader.ack(first.packet_id)
    assert harness.queue(f"mqtt-subscription-rqos{qos}").message_count == 0


def test_the_lower_qos_counts(harness: Harness) -> None:
    zero, one = mqtt_client(harness, client_id="zero"), mqtt_client(harness, client_id="one")
    zero.subscribe("a", qos=0)
    one.subscribe("a", qos=1)
    writer = mqtt_client(harness, client_id="w")
    writer.publish("a", b"0", 0)
    writer.publish("a", b"1", 1)
    assert [each.qos for each in zero.messages()] == [0, 0]
    assert [each.qos for each in one.messages()] == [0, 1]
    assert harness.queue("mqtt-subscription-oneqos1").unacked_count == 1


def test_a_dot_and_a_slash_are_two_things(harness: Harness) -> None:
    client = mqtt_client(harness)
    client.subscribe("a.b/+")
    client.publish("a.b/c", b"1")
    client.publish("a/b/c", b"2")
    assert [(each.topic, each.body) for each in client.messages()] == [("a.b/c", b"1")]


def test_wildcards_do_not_stand_for_topics_with_a_dollar(harness: Harness) -> None:
    client = mqtt_client(harness)
    client.subscribe("#", "+/x")
    client.publish("$internal/x", b"no")
    client.publish("y/x", b"yes")
    assert client.bodies() == [b"yes"]
    client.subscribe("$internal/#")
    client.publish("$internal/x", b"now")
    assert client.bodies() == [b"now"]


def test_a_star_in_a_filter_is_no_wildcard(harness: Harness) -> None:
    client = mqtt_client(harness)
    client.subscribe("a/*")
    client.publish("a/b", b"no")
    client.publish("a/*", b"yes")
    assert client.bodies() == [b"yes"]


def test_amqp_and_mqtt_pass_messages(harness: Harness) -> None:
    client, amqp = mqtt_client(harness, 5), harness.channel()
    client.subscribe("a/b", qos=1)
    amqp.publish("amq.topic", "a.b", b"x", delivery_mode=2, content_type="text/plain")
    (found,) = client.messages()
    assert (found.body, found.qos, found.properties) == (b"x", 1, b"\x03\0\x0atext/plain")


@pytest.mark.parametrize("payload_format", [0, 1])
def test_properties_come_out_as_they_went_in(harness: Harness, payload_format: int) -> None:
    client = mqtt_client(harness, 5)
    client.subscribe("a")
    values = {
        p.PAYLOAD_FORMAT: payload_format,
        p.CONTENT_TYPE: "text/plain",
        p.RESPONSE_TOPIC: "back/to.me",
        p.CORRELATION: b"\xff\0",
    }
    users = [("k", "1"), ("k", "2"), ("CC", "x"), ("x-delay", "9"), ("mqtt.k", "3")]
    given = properties(values, users)
    client.publish("a", b"x", given=given)
    (found,) = client.messages()
    came = decoded(found.properties)
    assert came.values == values
    assert came.users == users


def decoded(encoded: bytes) -> p.Properties:
    encoded = p.varint(len(encoded)) + encoded
    return p.Reader(encoded, 0, len(encoded)).properties(p.PUBLISH)


def test_user_properties_come_in_their_order(harness: Harness) -> None:
    client, amqp = mqtt_client(harness, 5), harness.channel()
    client.subscribe("a", qos=1)
    amqp.declare("copy")
    amqp.bind("copy", "amq.topic", "a")
    users = [("k", "1"), ("CC", "x"), ("k", "2"), ("j", "3"), ("CC", "y"), ("k", "4")]
    client.publish("a", b"x", qos=1, given=properties({}, users))
    assert decoded(client.messages()[0].properties).users == users
    # A program of 0-9-1 that sends the message on has left one value of a name, and has added one.
    got = amqp.get("copy", no_ack=True)
    assert got is not None and got.content is not None and got.content.properties.headers is not None
    headers = decode_table(got.content.properties.headers)
    amqp.publish("amq.topic", "a", b"x", delivery_mode=2, headers=encode_table(headers | {"k": "5", "new": 6}))
    (found,) = client.messages()
    assert decoded(found.properties).users == [("k", "5"), ("CC", "x"), ("j", "3"), ("CC", "y"), ("new", "6")]
    absurd = {"x-mqtt-order": ["k", 5, None, "nobody", "k", "x-mqtt-order"], "k": ["1", "2", {}, "3"]}
    amqp.publish("amq.topic", "a", b"x", delivery_mode=2, headers=encode_table(absurd))
    assert decoded(client.messages()[0].properties).users == [("k", "1"), ("k", "2"), ("k", "3")]


ABSURD: dict[str, Any] = {
    "x-payload-format": [0.0, 1.0, Decimal(1), 2, -1, True, 1 << 40, "1", b"1", None, [1], {}],
    "x-correlation-id": [b"c" * 70_000, 5, "text", None],
    "x-reply-to-topic": ["r" * 70_000, "", "a.+", "#", "\0", 5, b"r"],
    "x-mqtt-order": ["k" * 70_000, ["k"] * 100, [["k"]], 5],
    "x-mqtt-retain": [1.0, True, "1", -1, 3],
    "x-mqtt-client": ["c" * 70_000, 5],
    "x-mqtt-qos": [2.0, "2", Decimal(2), -2],
    "any": ["v" * 70_000, "\N{SNOWMAN}" * 30_000, ["v" * 70_000, "short"], float("nan"), 1e400, Decimal("1e5"), "\0"],
}


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("name", ABSURD)
def test_headers_of_others_do_no_harm_whatever_they_are(harness: Harness, name: str, qos: int, version: int) -> None:
    """conversion.py: values that MQTT does not have, or too long for a packet, are left out."""
    client, amqp = mqtt_client(harness, version), harness.channel()
    client.subscribe("a", qos=qos)
    for number, value in enumerate(ABSURD[name]):
        headers = encode_table({name: value, "k": "v"})
        amqp.publish("amq.topic", "a", b"%d" % number, delivery_mode=2, headers=headers)
    found = client.messages()
    assert [each.body for each in found] == [b"%d" % number for number in range(len(ABSURD[name]))]
    if version == 5 and name != "x-mqtt-order":
        assert all(("k", "v") in decoded(each.properties).users for each in found)
    assert not client.ended
    amqp.declare("the publisher goes on")


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("key", ["", "a.+", "#", "+.x", "a#"])
def test_what_no_topic_can_say_is_passed_over(harness: Harness, key: str, qos: int) -> None:
    """MQTT-4.7.3-1, MQTT-3.3.2-2: else clients drop the connection, and get it again for ever."""
    client, amqp = mqtt_client(harness, client_id="c", clean=False), harness.channel()
    client.subscribe("#", qos=qos)
    amqp.publish("amq.topic", key, b"no topic", delivery_mode=2)
    amqp.publish("amq.topic", "a.b", b"x", delivery_mode=2)
    assert [(each.topic, each.body) for each in client.messages()] == [("a/b", b"x")]
    assert all(queue.unacked_count <= qos and queue.ready.count == 0 for queue in harness.vhost.queues.values())


@pytest.mark.parametrize("identifier", [-1, 0, 1 << 28, 1 << 62, True, 1.5, "1", b"1"])
def test_an_identifier_in_a_binding_of_somebody_elses_is_none(harness: Harness, identifier: object) -> None:
    lasting = properties({p.SESSION_EXPIRY: 100})
    client = mqtt_client(harness, 5, "c", clean=False, given=lasting)
    client.subscribe("a", qos=1)
    client.hang_up()
    (queue,) = harness.vhost.queues
    amqp = harness.channel()
    arguments = encode_table(cast(Table, {"x-mqtt-subscription-id": identifier}))
    amqp.call(1, m.QueueBind(0, queue, "amq.topic", "b", False, arguments))
    amqp.publish("amq.topic", "b", b"x", delivery_mode=2)
    client = MqttClient(harness, 5)
    _, packet = client.feed(connect_packet(5, "c", clean=False, given=lasting))
    assert message(packet, 5).body == b"x"
    assert decoded(message(packet, 5).properties).ids == []


def test_what_is_left_of_an_expiry_goes_out(harness: Harness) -> None:
    reader = mqtt_client(harness, 5, "r", clean=False, given=properties({p.SESSION_EXPIRY: 100}))
    reader.subscribe("a", qos=1)
    reader.hang_up()
    writer = mqtt_client(harness, 5, "w")
    for expiry_s in (5, 60):
        writer.publish("a", b"%d" % expiry_s, 1, given=properties({p.MESSAGE_EXPIRY: expiry_s}))
    harness.pass_time(20)
    reader = MqttClient(harness, 5)
    _, *rest = reader.feed(connect_again("r"))
    (left,) = [message(each, 5) for each in rest]
    assert left.body == b"60"
    assert left.properties == b"\x02" + (40).to_bytes(4, "big")


TEN_YEARS_S = 315_360_000


@pytest.mark.parametrize("expiry_s", [4_000_001, TEN_YEARS_S, 4_294_967_295])
@pytest.mark.parametrize("retain", [False, True])
def test_a_long_message_expiry_is_kept(harness: Harness, expiry_s: int, retain: bool) -> None:
    client = mqtt_client(harness, 5)
    if not retain:
        client.subscribe("a", qos=1)
        harness.queue("mqtt-subscription-cqos1").pause(paused=True)
    client.publish("a", b"x", 1, retain=retain, given=properties({p.MESSAGE_EXPIRY: expiry_s}))
    harness.pass_time(100)
    if retain:
        client.subscribe("a", qos=1)
    else:
        harness.queue("mqtt-subscription-cqos1").pause(paused=False)
        harness.settle()
    (found,) = client.messages()
    assert found.properties == b"\x02" + (min(expiry_s, TEN_YEARS_S) - 100).to_bytes(4, "big")


def test_an_alias_stands_for_a_topic(harness: Harness) -> None:
    client = mqtt_client(harness, 5)
    client.subscribe("a/b")
    client.publish("a/b", b"1", given=properties({p.ALIAS: 3}))
    client.publish("", b"2", given=properties({p.ALIAS: 3}))
    assert client.bodies() == [b"1", b"2"]
    (reply,) = client.publish("", b"3", given=properties({p.ALIAS: 4}))
    assert (reply.kind, reply.body[0]) == (14, 0x82)


def test_nobody_has_subscribed(harness: Harness) -> None:
    client = mqtt_client(harness, 5)
    assert client.publish("a", b"x", 1) == [(4, 0, b"\0\x01\x10")]


def test_what_a_client_cannot_take_is_passed_over(harness: Harness) -> None:
    client = mqtt_client(harness, 5, given=properties({p.PACKET_MAX: 100}))
    client.subscribe("a", qos=1)
    client.publish("a", b"x" * 200, 1)
    client.publish("a", b"y", 1)
    assert client.bodies() == [b"y"]
    assert harness.queue("mqtt-subscription-cqos1").unacked_count == 1


def test_no_more_than_the_receive_maximum_is_out(harness: Harness) -> None:
    client = mqtt_client(harness, 5, given=properties({p.RECEIVE_MAX: 2}))
    client.subscribe("a", qos=1)
    writer = mqtt_client(harness, 5, "w")
    for number in range(4):
        writer.publish("a", b"%d" % number, 1)
    first, _ = client.messages()
    client.peer.feed(packet(4, 0, first.packet_id.to_bytes(2, "big")))
    harness.settle()
    assert client.bodies() == [b"2"]


# --- subscriptions --------------------------------------------------------------------------------------------------


def test_an_unsubscribed_filter_is_gone(harness: Harness) -> None:
    client = mqtt_client(harness, 5)
    client.subscribe("a", "b")
    assert client.unsubscribe("a", "c") == [0, 0x11]
    client.publish("a", b"no")
    client.publish("b", b"yes")
    assert client.bodies() == [b"yes"]


def test_a_subscription_is_replaced_by_one_with_another_qos(harness: Harness) -> None:
    client = mqtt_client(harness)
    client.subscribe("a", qos=0)
    client.subscribe("a", qos=1)
    client.publish("a", b"x")
    assert client.bodies() == [b"x"]


@pytest.mark.parametrize("filter_", ["a/#/b", "a+", "", "#b", "x" * 256, "/" * 128])
def test_what_is_no_filter_is_refused(harness: Harness, filter_: str) -> None:
    assert mqtt_client(harness, 5).subscribe(filter_) == [0x8F]
    assert mqtt_client(harness, 4, "d").subscribe(filter_) == [0x80]


def test_a_filter_has_as_many_levels_as_a_binding_key_has_words(harness: Harness) -> None:
    client = mqtt_client(harness, 5)
    assert client.subscribe("/" * 127, "$share/g/" + "/" * 127, "$share/g/" + "/" * 128) == [0, 0, 0x8F]
    client.publish("/" * 127, b"x")
    assert client.bodies() == [b"x", b"x"]


def test_identifiers_come_with_messages(harness: Harness) -> None:
    client = mqtt_client(harness, 5)
    one, two = properties(), properties()
    one.ids, two.ids = [1], [200]
    client.subscribe("a/#", given=one)
    client.subscribe("a/b", given=two)
    client.publish("a/b", b"x")
    (found,) = client.messages()
    assert found.properties in (b"\x0b\x01\x0b\xc8\x01", b"\x0b\xc8\x01\x0b\x01")


def test_own_messages_are_left_out_where_asked(harness: Harness) -> None:
    client, other = mqtt_client(harness, 5), mqtt_client(harness, 5, "other")
    client.subscribe("a", qos=1, options=4)
    client.publish("a", b"own")
    other.publish("a", b"other")
    assert client.bodies() == [b"other"]


def test_permissions_hold(harness: Harness) -> None:
    harness.add_user("reader", configure="^mqtt-", write="^mqtt-", read=".*")
    client = mqtt_client(harness, 5, user="reader", password="reader")
    assert client.subscribe("a") == [0]
    (reply,) = client.publish("a", b"x")
    assert (reply.kind, reply.body[0]) == (14, 0x87)


def test_topic_permissions_hold(harness: Harness) -> None:
    harness.broker.administer(TopicPermissionPut("guest", "/", "amq.topic", "^a\\.", "^b\\."))
    client = mqtt_client(harness, 5)
    assert client.subscribe("a/x", "b/x") == [0x87, 0]
    assert client.publish("a/x", b"x", 1) == [(4, 0, b"\0\x01\x10")]
    (reply,) = client.publish("b/x", b"x", 1)
    assert (reply.kind, reply.body[0]) == (14, 0x87)


# --- sessions -------------------------------------------------------------------------------------------------------


def connect_again(client_id: str, version: int = 5) -> bytes:
    return connect_packet(version, client_id, clean=False, given=properties({p.SESSION_EXPIRY: 100}))


def test_a_session_lasts(harness: Harness) -> None:
    client = mqtt_client(harness, 4, clean=False)
    client.subscribe("a", qos=1)
    client.feed(packet(14, 0, b""))
    assert client.ended
    mqtt_client(harness, client_id="w").publish("a", b"x", 1)
    again = MqttClient(harness)
    connack, publish = again.feed(connect_again("c", 4))
    assert connack.body == b"\x01\0"
    assert publish.body.endswith(b"x")
    assert MqttClient(harness).connect("c").body == b"\0\0", "a clean one begins anew"
    assert not [name for name in harness.vhost.queues if name.startswith("mqtt-")]


def test_a_session_survives_a_restart() -> None:
    harness = DurableHarness()
    client = mqtt_client(harness, 5, clean=False, given=properties({p.SESSION_EXPIRY: 100}))
    one = properties()
    one.ids = [7]
    client.subscribe("a/+", qos=1, given=one)
    assert mqtt_client(harness, 5, "w").publish("a/b", b"x", 1) == [(4, 0, b"\0\x01")]
    harness = harness.restart(clean=False)
    connack, publish = MqttClient(harness, 5).feed(connect_again("c"))
    assert connack.body[:2] == b"\x01\0"
    assert b"\x02\x0b\x07" in publish.body, "with the identifier of its subscription"


def test_a_session_expires(harness: Harness) -> None:
    client = mqtt_client(harness, 5, clean=False, given=properties({p.SESSION_EXPIRY: 10}))
    client.subscribe("a", qos=1)
    client.feed(packet(14, 0, b"\0" + properties({p.SESSION_EXPIRY: 1000}).encode()))
    harness.pass_time(500)
    assert "mqtt-subscription-cqos1" in harness.vhost.queues
    harness.pass_time(600)
    assert "mqtt-subscription-cqos1" not in harness.vhost.queues


def test_an_unacknowledged_message_comes_again(harness: Harness) -> None:
    client = mqtt_client(harness, 5, clean=False, given=properties({p.SESSION_EXPIRY: 100}))
    client.subscribe("a", qos=1)
    client.publish("a", b"x", 1)
    client.hang_up()
    _, publish = MqttClient(harness, 5).feed(connect_again("c"))
    assert publish.flags == 0b1010, "DUP, QoS 1"


def test_the_later_connection_has_the_client_id(harness: Harness) -> None:
    first = mqtt_client(harness, 5)
    first.subscribe("a")
    second = mqtt_client(harness, 5)
    (reply,) = first.take()
    assert (reply.kind, reply.body[0]) == (14, 0x8E)
    assert first.ended
    second.subscribe("a")
    second.publish("a", b"x")
    assert second.bodies() == [b"x"]


@pytest.mark.parametrize("limited", ["vhost", "user", "node"])
def test_the_later_connection_takes_the_place_of_the_earlier_where_connections_are_limited(limited: str) -> None:
    harness = Harness(connections_max=1 if limited == "node" else 10)
    if limited == "vhost":
        harness.broker.administer(VhostLimitsPut("/", '{"max-connections": 1}'))
    elif limited == "user":
        harness.broker.administer(UserLimitsPut(USER, '{"max-connections": 1}'))
    first = MqttClient(harness, 5)
    first.feed(connect_again("c"))
    first.subscribe("a", qos=1)
    assert MqttClient(harness, 5).connect("other").body[1] == 0x97
    assert MqttClient(harness, 4).connect("other").body[1] == 3
    second = MqttClient(harness, 5)
    (connack,) = second.feed(connect_again("c"))
    assert connack.body[:2] == b"\1\0", "the session is there"
    (reply,) = first.take()
    assert (reply.kind, reply.body[0]) == (14, 0x8E)
    assert first.ended
    second.publish("a", b"x")
    assert second.bodies() == [b"x"]
    assert harness.broker.open_connections == harness.vhost.open_connections == 1


def test_another_user_does_not_get_the_client_id(harness: Harness) -> None:
    harness.add_user("other")
    first = mqtt_client(harness)
    assert MqttClient(harness).connect(user="other", password="other").body[1] == 2
    assert not first.ended


# --- wills ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["lost", "silent", "error", "taken over"])
def test_a_will_is_published(harness: Harness, how: str) -> None:
    reader = mqtt_client(harness, client_id="r")
    reader.subscribe("will")
    client = mqtt_client(harness, keep_alive_s=10, will=("will", b"gone", 1, False))
    if how == "lost":
        client.hang_up()
    elif how == "silent":
        for _ in range(4):
            harness.pass_time(7)
    elif how == "error":
        client.feed(b"\xff\x00")
    else:
        mqtt_client(harness)
    assert reader.bodies() == [b"gone"]


def test_a_goodbye_takes_the_will_back(harness: Harness) -> None:
    reader = mqtt_client(harness, client_id="r")
    reader.subscribe("will")
    mqtt_client(harness, will=("will", b"gone", 0, False)).feed(packet(14, 0, b""))
    assert reader.bodies() == []
    mqtt_client(harness, 5, will=("will", b"gone", 0, False)).feed(packet(14, 0, b"\x04"))
    assert reader.bodies() == [b"gone"]


def test_a_will_needs_the_permission(harness: Harness) -> None:
    harness.add_user("silent", write="^mqtt-")
    reader = mqtt_client(harness, client_id="r")
    reader.subscribe("will")
    mqtt_client(harness, user="silent", password="silent", will=("will", b"gone", 0, False)).hang_up()
    assert reader.bodies() == []
    assert "mqtt.will_refused" in harness.events()


# --- retained -------------------------------------------------------------------------------------------------------


def test_the_last_retained_message_comes_with_a_subscription(harness: Harness, version: int) -> None:
    writer = mqtt_client(harness, version, "w")
    for topic in ("a/b", "a/c", "a", "$x/b", "d"):
        writer.publish(topic, b"old", retain=True)
        writer.publish(topic, topic.encode(), 1, retain=True)
    writer.publish("d", b"", retain=True)
    reader = mqtt_client(harness, version, "r")
    reader.subscribe("a/#", qos=1)
    found = reader.messages()
    assert sorted(each.body for each in found) == [b"a", b"a/b", b"a/c"]
    assert {(each.retain, each.qos) for each in found} == {(True, 1)}
    reader.subscribe("+/b", "d")
    assert [each.body for each in reader.messages()] == [b"a/b"]
    writer.publish("a", b"new", retain=True)
    assert [each.retain for each in reader.messages()] == [False]


def test_topics_of_the_server_are_found_by_who_names_them(harness: Harness) -> None:
    assert harness.vhost.retained().put("$SYS/a", Retained("guest", 0, 0, b"\0\0", b"x"))
    client = mqtt_client(harness, 5)
    for filter_, found in (("#", 0), ("+/a", 0), ("$SYS/#", 1), ("$SYS/+", 1), ("$SYS/a", 1)):
        client.subscribe(filter_)
        assert [each.topic for each in client.messages()] == ["$SYS/a"] * found


def test_a_retained_message_goes_and_those_of_the_levels_above_and_below_stay(harness: Harness) -> None:
    retained = harness.vhost.retained()
    for topic in ("a", "a/b", "a/b/c", "a/b/c/d"):
        assert retained.put(topic, Retained("guest", 0, 0, b"", b"x"))
    for topic, left in (("a/b/c", 3), ("a/b/c/d", 2), ("a", 1), ("a/b", 0)):
        assert retained.remove(topic) and retained.count == left
    assert not retained.remove("a") and not retained.root.below


def test_what_is_retained_survives_a_crash() -> None:
    harness = DurableHarness()
    writer = mqtt_client(harness, 5, "w")
    given = properties({p.CONTENT_TYPE: "t"})
    assert writer.publish("a/b", b"x", 1, retain=True, given=given)[0].kind == 4
    writer.publish("a/c", b"x", 1, retain=True)
    writer.publish("a/c", b"", 1, retain=True)
    harness = harness.restart(clean=False)
    reader = mqtt_client(harness, 5, "r")
    reader.subscribe("#")
    (found,) = reader.messages()
    assert (found.topic, found.body, found.retain, found.properties) == ("a/b", b"x", True, b"\x03\0\x01t")


def test_retain_handling(harness: Harness) -> None:
    client = mqtt_client(harness, 5)
    client.publish("a", b"x", retain=True)
    client.subscribe("a", options=0x20)
    assert client.messages() == []
    client.subscribe("a", options=0x10)
    assert client.messages() == [], "it is not new"
    client.subscribe("a", options=8)
    assert client.bodies() == [b"x"]
    client.publish("a", b"y", retain=True)
    assert [each.retain for each in client.messages()] == [True], "as it was published"


def test_a_retained_message_expires(harness: Harness) -> None:
    client = mqtt_client(harness, 5)
    client.publish("a", b"x", retain=True, given=properties({p.MESSAGE_EXPIRY: 10}))
    harness.pass_time(4)
    client.subscribe("a")
    (found,) = client.messages()
    assert found.properties == b"\x02\0\0\0\x06"
    harness.pass_time(7)
    client.subscribe("a")
    assert client.messages() == []


def test_there_is_an_end_to_what_is_retained(harness: Harness) -> None:
    client = mqtt_client(harness, 5)
    body = b"x" * (1 << 22)
    for number in range(18):
        client.publish(str(number), body, retain=True)
    retained = harness.vhost.retained()
    assert (retained.count, retained.bytes > 18 << 22) == (18, True)
    (reply,) = client.publish("more", body, retain=True)
    assert (reply.kind, reply.body[0]) == (14, 0x97)
    other = mqtt_client(harness, 5, "other")
    other.publish("3", b"", retain=True)
    other.publish("more", body, retain=True)
    assert (retained.count, other.ended) == (18, False)
    for number in range(18):
        other.publish(str(number), b"", retain=True)
    other.publish("more", b"", retain=True)
    assert (retained.count, retained.bytes, len(retained.root.below)) == (0, 0, 0)


def test_a_subscription_that_is_made_again_while_its_session_resumes_hides_no_others(harness: Harness) -> None:
    """The walk paused at its binding, which was in no chain any longer; an equal one was."""
    client = mqtt_client(harness, 4, "c", clean=False)
    for number in range(100):
        client.subscribe(str(number), qos=1)
    client.hang_up()
    other = harness.channel()
    harness.broker.work.turn_steps = 64
    harness.settle()
    again = MqttClient(harness)
    again.peer.feed(connect_packet(4, "c", clean=False))
    harness._answer_logins()
    session = again.peer.session
    assert session is not None and 0 < len(session.subscriptions.filters) < 50, "it has paused"
    key = str(len(session.subscriptions.filters))
    name = queue_name("c", 1)
    other.connection.feed(method_frame(1, m.QueueUnbind(0, name, "amq.topic", key, EMPTY_TABLE)))
    other.connection.feed(method_frame(1, m.QueueBind(0, name, "amq.topic", key, True, EMPTY_TABLE)))
    harness.settle()
    assert len(session.subscriptions.filters) == 100


class Left:
    """A broker after a restart, with very many sessions and retained messages of a process before it."""

    def __init__(self, count: int) -> None:
        before = DurableHarness()
        records = before.vhost.records
        client = mqtt_client(before, 5, "first", clean=False, given=properties({p.SESSION_EXPIRY: 100}))
        client.publish("t/first", b"x", 1, retain=True)
        will = (1 << 50).to_bytes(8, "big") + encode_will("guest", Will("will", b"gone", 1, False, Properties()))
        for number in range(count):
            records.store(f"session:{number}", (100).to_bytes(4, "big") + notes_of("guest", []))
            records.store(f"session-in:0007{number}", b"\0\0\0\1")
            records.store(f"session-out:8007{number}", b"")
            records.store(f"session-will:{number}", will)
            records.store(f"retained:t/{number}", bytes(16) + (2).to_bytes(4, "big") + b"\0\0x")
        before.write()
        self.harness = before.restart(clean=False)
        self.count = count


def test_sessions_and_retained_messages_of_an_earlier_process_are_read_in_pieces() -> None:
    """They were read in one turn at the promotion of a follower: 150,000 sessions took seconds."""
    left = Left(2000)
    broker, vhost = left.harness.broker, left.harness.vhost
    pieces = 0
    for _ in restore_sessions(broker):
        pieces += 1
        assert vhost.kept_sessions is None or len(vhost.kept_sessions.sessions) == left.count + 1, "all, or none"
    assert pieces > 5 * left.count // 500
    kept = sessions_of(broker, vhost)
    kept.check_invariants()
    assert (kept.ids, vhost.retained().count) == (2 * left.count, left.count + 1)
    left.harness.pass_time(101)
    assert not kept.sessions


@pytest.mark.parametrize("first", ["a client", "a deletion"])
def test_what_happens_while_sessions_are_read(first: str) -> None:
    left = Left(1000)
    broker, vhost = left.harness.broker, left.harness.vhost
    reading = restore_sessions(broker)
    next(reading)
    if first == "a client":
        MqttClient(left.harness, 5).feed(connect_packet(5, "5", clean=False, given=properties({p.SESSION_EXPIRY: 100})))
        assert vhost.retained().count == left.count + 1
    else:
        broker.administer(VhostDelete("/"))
        left.harness.settle()
    for _ in reading:
        pass
    left.harness.settle()
    if first == "a client":
        kept = sessions_of(broker, vhost)
        kept.check_invariants()
        assert kept.sessions["5"].is_connected and len(kept.sessions) == left.count + 1
    else:
        assert vhost.kept_sessions is None
        left.harness.pass_time(101)
        assert len(broker.timers) == 0 and "mqtt.will_refused" not in left.harness.events()


@pytest.mark.parametrize("default", ["classic", "quorum", "stream"])
def test_the_queues_of_a_session_keep_their_type(default: str) -> None:
    """A client that came again made a quorum queue a classic one. In a vhost of streams nobody could subscribe."""
    harness = DurableHarness()
    harness.broker.administer(VhostPut("/", default_queue_type=default))
    wanted = "quorum" if default == "quorum" else "classic"
    given = properties({p.SESSION_EXPIRY: 100})
    client = mqtt_client(harness, 5, "c", clean=False, given=given)
    assert client.subscribe("a", qos=1) == [1] and client.subscribe("$share/g/a", qos=1) == [1]
    for expiry_s in (100, 200):
        client.hang_up()
        client = mqtt_client(harness, 5, "c", clean=False, given=properties({p.SESSION_EXPIRY: expiry_s}))
        for name in (queue_name("c", 1), shared_queue("g", "a")):
            assert harness.queue(name).rules.queue_type == wanted
    harness.write()
    harness = harness.restart(clean=False)
    queue = harness.queue(queue_name("c", 1))
    assert (queue.rules.queue_type, decode_table(queue.arguments)["x-expires"]) == (wanted, 200_000)


@pytest.mark.parametrize("may_configure", [False, True])
def test_a_queue_of_others_ends_with_a_session_only_if_its_user_may_delete_it(may_configure: bool) -> None:
    """A session with its name took it over, and had it deleted, although the user might only read it."""
    harness = DurableHarness()
    name = queue_name("c", 1)
    harness.channel().declare(name, durable=True)
    harness.add_user("other")
    harness.permit("other", configure=name if may_configure else "^$", write="^$", read=".*")
    client = MqttClient(harness, 5)
    expiry = properties({p.SESSION_EXPIRY: 1})
    reply, *_ = client.feed(connect_packet(5, "c", clean=False, user="other", password="other", given=expiry))
    assert (reply.body[1] == 0) == may_configure
    client.hang_up()
    harness.pass_time(2)
    assert (name in harness.vhost.queues) == (not may_configure)
