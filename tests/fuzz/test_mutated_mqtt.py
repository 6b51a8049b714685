"""Broken MQTT packets, several clients at a time, against one broker (WARREN_TEST_FUZZ_FRAMES: how many).

1. No exception leaves the engine, and it comes to rest.
2. A client receives whole packets of the kinds that a broker sends; after an error only the end.
3. A client that is gone leaves only the sessions that it asked for, within their limits.
4. Other clients continue: one that publishes to itself after each batch gets its messages.
"""

from __future__ import annotations

import os
import random

import pytest
from engine_harness import Harness
from mqtt_harness import MqttClient, connect_packet, mqtt_client, properties, publish_packet

from warren.mqtt import packets as p
from warren.mqtt.packets import Properties, acknowledgement, packet, text, varint
from warren.mqtt.session import UNANSWERED_MAX
from warren.mqtt.sessions import sessions_of

MUTATED_PACKETS = int(os.environ.get("WARREN_TEST_FUZZ_FRAMES", "6000"))
BATCH = 500
CLIENTS = 4
SENT_BY_BROKERS = {
    p.CONNACK,
    p.PUBLISH,
    p.PUBACK,
    p.PUBREC,
    p.PUBREL,
    p.PUBCOMP,
    p.SUBACK,
    p.UNSUBACK,
    p.PINGRESP,
    p.DISCONNECT,
}
TOPICS = ("a", "a/b", "$share/g/a", "+/b", "#", "x" * 300, "", "a/*", "$x")
NUMBERS = (0, 1, 2, 127, 128, 255, 256, 32767, 32768, 65535)


class RandomPackets:
    """Valid packets, and what becomes of them."""

    def __init__(self, choices: random.Random, version: int) -> None:
        self.choices = choices
        self.version = version

    def properties(self) -> bytes:
        if self.version != 5:
            return b""
        given = Properties()
        for identifier in self.choices.sample(sorted(p.PROPERTIES), self.choices.randrange(3)):
            kind = p.PROPERTIES[identifier][0]
            if kind <= 5:
                given.values[identifier] = self.choices.choice(NUMBERS) & (0xFF if kind == 1 else 0xFFFF)
            elif identifier != p.USER:
                given.values[identifier] = "t" if kind == 6 else b"b"
        given.users = [("k", "v")] * self.choices.randrange(3)
        return given.encode()

    def valid(self) -> bytes:
        """Return a packet that would be well-formed, if its properties belong there."""
        choices = self.choices
        packet_id = choices.choice(NUMBERS)
        topic = choices.choice(TOPICS)
        kind = choices.choice((1, 3, 3, 3, 4, 5, 6, 6, 7, 8, 8, 10, 12, 14, 15))
        if kind == p.CONNECT:
            will = (topic, b"w", choices.randrange(3), choices.random() < 0.5)
            return connect_packet(self.version, choices.choice("abc"), clean=choices.random() < 0.5, will=will)
        if kind == p.PUBLISH:
            qos = choices.randrange(4)
            made = text(topic) + (packet_id.to_bytes(2, "big") if qos else b"") + self.properties()
            return packet(3, choices.randrange(16) & 9 | qos << 1, made + b"x" * choices.choice((0, 1, 200)))
        if kind in (4, 5, 6, 7):
            return acknowledgement(kind, packet_id, self.version, choices.choice((0, 0, 0x80, 0x92)))
        if kind == p.SUBSCRIBE:
            wanted = b"".join(text(choices.choice(TOPICS)) + bytes([choices.randrange(64)]) for _ in range(3))
            return packet(8, 2, packet_id.to_bytes(2, "big") + self.properties() + wanted)
        if kind == p.UNSUBSCRIBE:
            return packet(10, 2, packet_id.to_bytes(2, "big") + self.properties() + text(topic))
        if kind in (p.DISCONNECT, p.AUTH):
            return packet(kind, 0, bytes([choices.choice((0, 4, 24))]) + self.properties())
        return packet(kind, 0, b"")

    def mutated(self) -> bytes:
        """Return a packet that need not be well-formed at all."""
        choices = self.choices
        data = bytearray(self.valid())
        how = choices.randrange(7)
        at = choices.randrange(len(data))
        if how == 0:
            data[at] ^= 1 << choices.randrange(8)
        elif how == 1:
            data[at] = choices.choice((0, 1, 127, 128, 255))
        elif how == 2:
            del data[at:]
        elif how == 3:
            data[at:at] = choices.randbytes(choices.randrange(1, 9))
        elif how == 4:
            data[1:2] = varint(choices.choice((0, 1, 127, 128, 16383, 70000, 268_435_455)))
        elif how == 5:
            data += self.valid()[choices.randrange(2) :]
        return bytes(data)


def client_of(harness: Harness, choices: random.Random, version: int) -> MqttClient:
    given = properties({p.SESSION_EXPIRY: choices.choice((0, 10)), p.RECEIVE_MAX: choices.choice((1, 2, 65535))})
    client = MqttClient(harness, version)
    name = choices.choice("abcdef")
    client.peer.feed(connect_packet(version, name, clean=choices.random() < 0.5, given=given))
    harness.settle()
    return client


def run(seed: int, count: int) -> dict[int, int]:
    """Send `count` packets; return the number received of each kind."""
    choices = random.Random(seed)
    harness = Harness()
    came: dict[int, int] = {}
    for _ in range(0, count, BATCH):
        clients: list[tuple[MqttClient, RandomPackets, float]] = []
        for _ in range(BATCH):
            clients = [each for each in clients if not each[0].ended]
            while len(clients) < CLIENTS:
                version = choices.choice((3, 4, 5))
                client = client_of(harness, choices, version)
                clients.append((client, RandomPackets(choices, version), choices.choice((0.02, 0.2, 0.8))))
            client, made, rate = choices.choice(clients)
            data = made.mutated() if choices.random() < rate else made.valid()
            half = choices.randrange(len(data)) if choices.random() < 0.2 and data else 0
            client.peer.feed(data[:half])
            client.peer.feed(data[half:])
            if choices.random() < 0.5:
                harness.settle()
            if choices.random() < 0.02:
                client.hang_up()
            for each in client.take():
                assert each.kind in SENT_BY_BROKERS, each
                came[each.kind] = came.get(each.kind, 0) + 1
        check(harness, [each[0] for each in clients])
    return came


def check(harness: Harness, clients: list[MqttClient]) -> None:
    for each in clients:
        each.hang_up()
    harness.pass_time(0.5)
    sessions = sessions_of(harness.broker, harness.vhost)
    sessions.check_invariants()
    assert all(len(each.received) <= UNANSWERED_MAX for each in sessions.sessions.values())
    harness.pass_time(1.5 * 86400)
    assert sessions.sessions == {} and sessions.ids == 0 and sessions.will_bytes == 0
    assert not [name for name in harness.vhost.queues if name.startswith("mqtt-")]
    assert not harness.broker.named_clients
    assert harness.broker.shared.inbound.held_bytes == 0
    witness = mqtt_client(harness, 5, "witness")
    assert witness.subscribe("witness", qos=2) == [2]
    came = witness.feed(publish_packet("witness", b"x", 2, 1, version=5))
    assert sorted(each.kind for each in came) == [p.PUBLISH, p.PUBREC]
    witness.hang_up()


@pytest.mark.timeout(300 + MUTATED_PACKETS // 50)
def test_broken_mqtt_packets_get_normal_answers_or_the_end() -> None:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    came = run(seed, MUTATED_PACKETS)
    # A fuzzer that is refused at the door tests the door only.
    assert set(came) == SENT_BY_BROKERS, came


def test_the_same_seed_gets_the_same_packets() -> None:
    assert run(7, 1000) == run(7, 1000)
