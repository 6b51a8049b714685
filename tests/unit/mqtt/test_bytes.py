"""MQTT by bytes: packets cut anywhere, too large, mutated, never ending or never read."""

from __future__ import annotations

import random

import pytest
from engine_harness import Harness
from mqtt_harness import MqttClient, connect_packet, mqtt_client, properties, publish_packet, split_packets

from warren.mqtt import packets as p
from warren.mqtt.packets import packet, text
from warren.mqtt.peer import COMMAND_BYTES, EARLY_BYTES, PUBLISH_HEAD_BYTES


def transcript(version: int) -> bytes:
    """Return what a client may say, one packet of each kind."""
    given = properties({p.CONTENT_TYPE: "t", p.MESSAGE_EXPIRY: 60}, [("k", "v")]) if version == 5 else None
    subscribe = b"\0\x05" + (b"\0" if version == 5 else b"") + text("a/#") + b"\x01"
    unsubscribe = b"\0\x06" + (b"\0" if version == 5 else b"") + text("a/#")
    return b"".join(
        [
            connect_packet(version, will=("w", b"x", 1, True)),
            packet(8, 2, subscribe),
            publish_packet("a/b", b"one", 1, version=version, given=given),
            publish_packet("a/c", b"two" * 100, version=version, retain=True),
            packet(4, 0, b"\0\x01"),
            packet(12, 0, b""),
            packet(10, 2, unsubscribe),
            packet(14, 0, b""),
        ]
    )


@pytest.mark.parametrize("version", [3, 4, 5])
def test_packets_may_be_cut_anywhere(version: int) -> None:
    whole = transcript(version)
    answers: list[list[int]] = []
    for size in (1, 3, 7, len(whole)):
        client = MqttClient(Harness(), version)
        kinds: list[int] = []
        for at in range(0, len(whole), size):
            kinds += [each.kind for each in client.feed(whole[at : at + size])]
        assert client.ended
        answers.append(sorted(kinds))
    assert all(each == [2, 3, 3, 4, 9, 11, 13] for each in answers), answers


@pytest.mark.parametrize("version", [3, 4, 5])
def test_whatever_is_changed_the_broker_goes_on(version: int) -> None:
    chance = random.Random(version)
    whole = transcript(version)
    harness = Harness()
    bystander = mqtt_client(harness, client_id="bystander")
    bystander.subscribe("safe")
    for _ in range(400):
        changed = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            changed[chance.randrange(len(changed))] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
        client = MqttClient(harness, version)
        client.peer.feed(bytes(changed))
        harness.settle()
        if not client.ended:
            client.hang_up()
    assert "internal" not in " ".join(harness.events())
    bystander.publish("safe", b"x")
    assert bystander.bodies()[-1] == b"x"
    harness.check()


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"\x30\xff\xff\xff\xff\x01", "a length of five octets"),
        (b"\x36\x05\0\x01a\0\x01", "QoS 3"),
        (b"\x38\x03\0\x01a", "DUP with QoS 0"),
        (b"\x32\x05\0\x01a\0\0", "a packet id of 0"),
        (b"\x30\x02\0\x05", "a topic that is not there"),
        (b"\x30\x03\0\x01+", "a topic with a wildcard"),
        (b"\x30\x03\0\x01\xff", "a topic that is not UTF-8"),
        (b"\x30\x03\0\x01\0", "a topic with a NUL"),
        (b"\x80\x06\0\x01\0\x01a\0", "flags of SUBSCRIBE"),
        (b"\x82\x02\0\x01", "SUBSCRIBE without filters"),
        (b"\x82\x06\0\x01\0\x01a\x03", "a subscription with QoS 3"),
        (b"\xc0\x01\0", "PINGREQ that is not empty"),
        (b"\x00\x00", "type 0"),
        (b"\xf0\x00", "AUTH"),
        (b"\x10\x00", "CONNECT again"),
        (b"\x20\x02\0\0", "a packet of the server's"),
    ],
)
def test_what_is_malformed_ends_the_connection(harness: Harness, data: bytes, what: str) -> None:
    client = mqtt_client(harness)
    assert client.feed(data) == [], what
    assert client.ended, what
    assert "connection.error" in harness.events()


@pytest.mark.parametrize(
    "encoded",
    [
        b"\x02\x21\0",  # cut
        b"\x03\x21\0\0",  # Receive Maximum 0
        b"\x06\x21\0\x01\x21\0\x01",  # twice
        b"\x02\x01\x01",  # of PUBLISH
        b"\x02\x7f\x01",  # unknown
        b"\x02\x17\x02",  # neither true nor false
        b"\xff\xff\x03",  # longer than the packet
        b"\x80\x00",  # a length with an octet too much
    ],
)
def test_wrong_properties_are_refused(harness: Harness, encoded: bytes) -> None:
    client = MqttClient(harness, 5)
    client.feed(packet(1, 0, text("MQTT") + b"\x05\x02\0\0" + encoded + text("c")))
    assert client.ended


def padded(data: bytes) -> bytes:
    """Return a packet of up to 127 bytes with an octet too much in its remaining length."""
    return data[:1] + bytes([data[1] | 0x80, 0]) + data[2:]


@pytest.mark.parametrize("data", [packet(12, 0, b""), publish_packet("a", b"x", version=5)])
def test_a_remaining_length_with_an_octet_too_much_is_malformed(harness: Harness, data: bytes) -> None:
    client = mqtt_client(harness, 5)
    (reply,) = client.feed(padded(data))
    assert (reply.kind, reply.body[0]) == (14, 0x81)
    early = MqttClient(harness, 5)
    assert early.feed(padded(connect_packet(5))) == []
    assert early.ended


def test_before_5_0_a_remaining_length_may_be_longer_than_it_has_to_be(harness: Harness) -> None:
    client = MqttClient(harness)
    connack, pingresp = client.feed(padded(connect_packet()) + padded(packet(12, 0, b"")))
    assert (connack.kind, pingresp.kind) == (2, 13)


def test_before_the_login_packets_are_small(harness: Harness) -> None:
    client = MqttClient(harness)
    client.feed(b"\x10" + p.varint(EARLY_BYTES + 1))
    assert client.ended


def test_a_large_command_is_refused_by_its_head(harness: Harness) -> None:
    client = mqtt_client(harness, 5)
    (reply,) = client.feed(b"\x82" + p.varint(COMMAND_BYTES + 1))
    assert (reply.kind, reply.body[0]) == (14, 0x95)


def test_a_message_that_is_too_large_is_refused_by_its_head() -> None:
    client = mqtt_client(Harness(message_max_bytes=1000), 5)
    (reply,) = client.feed(b"\x30" + p.varint(1 << 24))
    assert (reply.kind, reply.body[0]) == (14, 0x95)


@pytest.mark.parametrize("body", [b"", b"x" * 1000])
def test_topic_and_properties_have_a_bound_of_their_own(harness: Harness, body: bytes) -> None:
    def publish(head_bytes: int) -> bytes:
        room = head_bytes - len("topic")
        sizes = [min(60_000, room - at) for at in range(0, room, 60_000)]
        # A user property of an empty name has five bytes around its value.
        users = b"".join(b"\x26" + text("") + text("v" * (size - 5)) for size in sizes)
        return packet(3, 0, text("topic") + p.varint(len(users)) + users + body)

    client = mqtt_client(harness, 5)
    client.subscribe("topic")
    (largest,) = client.feed(publish(PUBLISH_HEAD_BYTES))
    assert len(largest.body) > PUBLISH_HEAD_BYTES and largest.body.endswith(body)
    (reply,) = client.feed(publish(PUBLISH_HEAD_BYTES + 1))
    assert (reply.kind, reply.body[0]) == (14, 0x95)


def test_a_message_in_pieces_is_counted(harness: Harness) -> None:
    client = mqtt_client(harness)
    client.subscribe("a")
    whole = publish_packet("a", b"x" * 100_000)
    client.peer.feed(whole[:60_000])
    assert 60_000 <= client.peer.inbound_bytes < 61_000
    client.peer.feed(whole[60_000:])
    harness.settle()
    assert client.peer.inbound_bytes == 0
    assert client.bodies() == [b"x" * 100_000]


def test_a_client_that_never_reads_is_sent_no_more_than_an_outbox(harness: Harness) -> None:
    limit = 1 << 16
    harness = Harness(outbox_soft_bytes=limit)
    reader, writer = mqtt_client(harness, client_id="r", clean=False), mqtt_client(harness, client_id="w")
    reader.subscribe("a")
    reader._client.stalled = True
    for _ in range(100):
        writer.feed(publish_packet("a", b"x" * 10_000))
    assert reader.peer.outbox.waiting_bytes() < 2 * limit
    assert harness.queue("mqtt-subscription-rqos0").ready_count > 80
    reader._client.stalled = False
    harness.settle()


@pytest.mark.parametrize(
    ("asked", "kind"),
    [
        (packet(p.SUBSCRIBE, 2, b"\0\7" + (text("a") + b"\0") * 10), p.SUBACK),
        (packet(p.UNSUBSCRIBE, 2, b"\0\7" + text("a")), p.UNSUBACK),
        (packet(p.PINGREQ, 0, b""), p.PINGRESP),
    ],
    ids=["SUBSCRIBE", "UNSUBSCRIBE", "PINGREQ"],
)
def test_who_does_not_take_answers_is_not_read_beyond_a_limit_and_then_again(asked: bytes, kind: int) -> None:
    harness = Harness(outbox_soft_bytes=1000, outbox_hard_bytes=2000)
    client = mqtt_client(harness)
    client._client.stalled = True
    for _ in range(2000):
        client.feed(asked)
    assert 2000 < client.peer.outbox.waiting_bytes() < 2200
    assert client.peer.paused
    harness.wake(client._client)
    replies = client.take()
    assert len(replies) == 2000
    assert {each.kind for each in replies} == {kind}
    assert not client.peer.paused


def test_a_publisher_waits_while_memory_is_short(harness: Harness) -> None:
    client, reader = mqtt_client(harness), mqtt_client(harness, client_id="r")
    reader.subscribe("a")
    harness.broker.set_alarm("memory", True)
    client.peer.feed(publish_packet("a", b"x", 1))
    harness.settle()
    assert reader.bodies() == []
    harness.broker.set_alarm("memory", False)
    harness.settle()
    assert reader.bodies() == [b"x"]
    assert [each.kind for each in split_packets(client._client.take())] == [4]
