"""Random MQTT clients against the promises of their protocol: lasting sessions, every QoS, and a broker that dies.

Each device keeps its half of the session as a client has to: the packets that it has sent and may not forget yet, and
its packet ids of QoS 2. Connections are cut at any packet, taken over, and lost with the broker; commits take their
time. When all clients have come back and everything is answered:

1. A subscriber of QoS 2 has each message of QoS 2 exactly once.
2. A subscriber of QoS 1 or more has each message of QoS 1 or more at least once. A subscriber of QoS 0 has no message
   twice, unless the broker was killed: its deliveries are not on disk at once.
3. For each publisher, topic and QoS messages have come in the order in which they were published, the first time.
4. Each topic keeps the message that was retained last.
5. A client without a session, with QoS 0, has all messages published while it is connected, in that order.
"""

from __future__ import annotations

import random

import pytest
from durable_harness import DurableHarness
from mqtt_harness import Message, MqttClient, Packet, connect_packet, message, properties, publish_packet

from warren.mqtt import packets as p
from warren.mqtt.packets import acknowledgement, packet, text
from warren.mqtt.sessions import restore_sessions, sessions_of

TOPICS = ("t/0", "t/1", "u")
STEPS = 260


class Device:
    """A client with its half of the session. It publishes to one topic, and has subscribed to others."""

    def __init__(self, world: World, name: str, version: int, filters: dict[str, int]) -> None:
        self.world = world
        self.name = name
        self.version = version
        self.filters = filters
        self.client: MqttClient | None = None
        self.was_there = False
        self.subscribed = False
        self.unread: list[Packet] = []
        self.came: list[tuple[str, int, bytes]] = []  # topic, QoS, body
        self.has: set[int] = set()  # packet ids of QoS 2
        # By packet id: topic, body, QoS, retained, whether PUBREC has come.
        self.owed: dict[int, tuple[str, bytes, int, bool, bool]] = {}
        self.next_id = 1
        self.published = 0

    # --- the connection ---------------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Connect, or take the session over, and send again what is owed."""
        self.client = MqttClient(self.world.harness, self.version)
        given = properties({p.SESSION_EXPIRY: 86400}) if self.version == 5 else None
        packets = self.client.feed(connect_packet(self.version, self.name, clean=False, given=given))
        self.unread = []
        while not packets:  # the previous owner of the name is still leaving
            self.world.harness.settle()
            packets = self.client.take()
        assert packets[0].kind == p.CONNACK and packets[0].body[1] == 0, packets
        assert packets[0].body[0] == self.was_there, "the session is there when it has been"
        self.was_there = True
        self.unread = packets[1:]
        if not self.subscribed:
            body = b"\0\x01" + (b"\0" if self.version == 5 else b"")
            self.send(packet(8, 2, body + b"".join(text(each) + bytes([qos]) for each, qos in self.filters.items())))
        for packet_id, (topic, payload, qos, retain, has_it) in list(self.owed.items()):
            if has_it:
                self.send(acknowledgement(p.PUBREL, packet_id, self.version))
            else:
                self.send(publish(topic, payload, qos, packet_id, self.version, retain, dup=True))

    def cut(self) -> None:
        """Lose the connection, with what has not been read."""
        if self.client is not None and not self.client.ended:
            self.client.hang_up()
        self.client = None
        self.unread = []

    def send(self, data: bytes) -> None:
        assert self.client is not None
        if not self.client.ended:
            self.client.peer.feed(data)

    # --- what it does -----------------------------------------------------------------------------------------------

    def publish(self, qos: int, *, retain: bool) -> None:
        topic = TOPICS[int(self.name[1:]) % len(TOPICS)]
        self.published += 1
        body = f"{self.name} {qos} {self.published}".encode()
        packet_id = 0
        if qos:
            packet_id = self.next_id
            while packet_id in self.owed:
                packet_id = packet_id % 40 + 1
            self.next_id = packet_id % 40 + 1
            self.owed[packet_id] = (topic, body, qos, retain, False)
            self.world.published.append((topic, qos, body))
            if retain:
                self.world.retained[topic] = body
        if self.client is not None and not self.client.ended:
            self.world.tell_visitors(topic, body)
        self.send(publish(topic, body, qos, packet_id, self.version, retain))

    def read(self, most: int) -> bool:
        """Read `most` packets at most, and answer them; False without a packet."""
        client = self.client
        if client is None:
            return False
        self.unread += client.take()
        taken, self.unread = self.unread[:most], self.unread[most:]
        for each in taken:
            self._handle(each)
        return bool(taken)

    def _handle(self, given: Packet) -> None:
        kind = given.kind
        if kind == p.PUBLISH:
            self._handle_message(message(given, self.version))
        elif kind == p.SUBACK:
            self.subscribed = True
        elif kind == p.DISCONNECT:
            raise AssertionError(given)
        else:
            packet_id = int.from_bytes(given.body[:2], "big")
            assert len(given.body) == 2 or given.body[2] < 0x80 or kind == p.PUBCOMP, given
            if kind == p.PUBREL:
                self.has.discard(packet_id)
                self.send(acknowledgement(p.PUBCOMP, packet_id, self.version))
            elif kind == p.PUBREC:
                owed = self.owed[packet_id]
                self.owed[packet_id] = (*owed[:4], True)
                self.send(acknowledgement(p.PUBREL, packet_id, self.version))
            else:
                del self.owed[packet_id]

    def _handle_message(self, found: Message) -> None:
        if found.qos == 2:
            if found.packet_id not in self.has:
                self.has.add(found.packet_id)
                self.came.append((found.topic, 2, found.body))
            self.send(acknowledgement(p.PUBREC, found.packet_id, self.version))
            return
        self.came.append((found.topic, found.qos, found.body))
        if found.qos == 1:
            self.send(acknowledgement(p.PUBACK, found.packet_id, self.version))


def publish(
    topic: str, body: bytes, qos: int, packet_id: int, version: int, retain: bool, *, dup: bool = False
) -> bytes:
    return publish_packet(topic, body, qos, packet_id, version=version, retain=retain, dup=dup)


class Visitor(Device):
    """A client without a session, which only reads. `expected`: the messages that it has to get meanwhile."""

    is_here = False
    came_before = 0
    expected: list[bytes]

    def connect(self) -> None:
        self.leave()
        self.client = MqttClient(self.world.harness, self.version)
        self.subscribed = False
        packets = self.client.feed(connect_packet(self.version, self.name))
        self.unread = []
        while not packets:
            self.world.harness.settle()
            packets = self.client.take()
        assert packets[0].kind == p.CONNACK and packets[0].body[:2] == b"\0\0", packets
        body = b"\0\x01" + (b"\0" if self.version == 5 else b"")
        self.send(packet(8, 2, body + b"".join(text(each) + b"\0" for each in self.filters)))
        self.is_here = True
        self.expected = []
        self.came_before = len(self.came)

    def publish(self, qos: int, *, retain: bool) -> None:
        pass

    def cut(self) -> None:
        self.leave()
        super().cut()

    def leave(self) -> None:
        """Read everything, and see whether it was all."""
        if not self.is_here:
            return
        self.is_here = False
        self.world.harness.settle()
        self.read(10_000)
        assert self.subscribed
        came = iter([body for _, _, body in self.came[self.came_before :]])
        assert all(body in came for body in self.expected), (self.name, self.expected)


class World:
    """A broker and the devices around it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.harness = DurableHarness()
        self.published: list[tuple[str, int, bytes]] = []
        self.retained: dict[str, bytes] = {}
        self.was_killed = False
        self.devices = [
            Device(self, "d0", 5, {"t/+": 2}),
            Device(self, "d1", 4, {"t/0": 2, "u": 1}),
            Device(self, "d2", 3, {"#": 1}),
            Device(self, "d3", 5, {"#": 2, "t/#": 0}),
            Visitor(self, "v0", 4, {"t/+": 0, "t/0": 0}),
            Visitor(self, "v1", 5, {"#": 0}),
        ]
        for device in self.devices:
            device.connect()
            self.harness.settle()
            while device.read(10):
                self.harness.settle()
            assert device.subscribed

    def step(self) -> None:
        dice = self.random.random()
        device = self.random.choice(self.devices)
        if dice < 0.02:
            self.restart(clean=self.random.random() < 0.3)
        elif dice < 0.08:
            device.cut()
        elif dice < 0.2:
            if device.client is None or self.random.random() < 0.2:
                device.connect()
        elif dice < 0.3:
            self.harness.store.hold = self.random.random() < 0.5
        elif dice < 0.6 and device.client is not None and len(device.owed) < 20:
            self._publish(device)
        else:
            device.read(self.random.randrange(1, 8))
        if self.random.random() < 0.7:
            self.harness.settle()

    def tell_visitors(self, topic: str, body: bytes) -> None:
        """Make visitors that are here expect a message."""
        for device in self.devices:
            if isinstance(device, Visitor) and device.is_here and any(matches(each, topic) for each in device.filters):
                device.expected.append(body)

    def _publish(self, device: Device) -> None:
        # One retains a topic, with one QoS: messages of another one need not be sent again in order with those.
        retained_qos = {"d0": 2, "d1": 1, "d2": 2}.get(device.name, 0)
        qos = self.random.choice((0, 1, 2, 2))
        device.publish(qos, retain=qos > 0 and qos == retained_qos and self.random.random() < 0.3)

    def restart(self, *, clean: bool) -> None:
        self.harness.store.hold = False
        self.was_killed = self.was_killed or not clean
        if clean:
            self.harness.settle()
        self.harness = self.harness.restart(clean=clean)
        for _ in restore_sessions(self.harness.broker):
            pass
        for device in self.devices:
            device.client = None
            device.unread = []
            if isinstance(device, Visitor):
                device.is_here = False  # unread messages are lost

    def come_to_rest(self) -> None:
        """Bring all clients back, and answer everything."""
        self.harness.store.hold = False
        self.harness.settle()
        for device in self.devices:
            device.connect()
        is_busy = True
        while is_busy:
            self.harness.settle()
            is_busy = sum(device.read(1000) for device in self.devices) > 0

    def check(self) -> None:
        sessions_of(self.harness.broker, self.harness.vhost).check_invariants()
        assert all(not device.owed and not device.has for device in self.devices)
        for device in self.devices:
            if isinstance(device, Visitor):
                device.leave()
                continue
            for topic in TOPICS:
                for qos in (1, 2):
                    self._check_device(device, topic, qos)
        retained = self.harness.vhost.retained()
        for topic, body in self.retained.items():
            found = retained.maybe(topic, self.harness.broker.now_ms())
            assert found is not None and found.body == body
        for queue in self.harness.vhost.queues.values():
            assert queue.message_count == 0, queue.name
        bindings = self.harness.vhost.exchange("amq.topic").bindings
        assert sum(each.destination.kind == "subscriber" for each in bindings) == 3

    def _check_device(self, device: Device, topic: str, qos: int) -> None:
        granted = [each for filter_, each in device.filters.items() if matches(filter_, topic)]
        wanted = [body for at, of, body in self.published if (at, of) == (topic, qos)]
        for level in set(granted) - {0}:
            lower = min(level, qos)
            bodies = [body for at, of, body in device.came if (at, of) == (topic, lower) and b" %d " % qos in body]
            firsts = list(dict.fromkeys(bodies))
            assert set(firsts) == set(wanted), (device.name, topic, qos, level)
            if lower == 2:
                assert bodies == firsts, "exactly once"
            for name in {body.split()[0] for body in wanted}:
                order = [body for body in wanted if body.split()[0] == name]
                assert [body for body in firsts if body.split()[0] == name] == order
        if 0 in granted:
            bodies = [body for at, of, body in device.came if (at, of) == (topic, 0) and b" %d " % qos in body]
            assert len(bodies) == len(set(bodies)) or qos == 1 or self.was_killed


def matches(filter_: str, topic: str) -> bool:
    return {"#": True, "t/+": topic[0] == "t", "t/#": topic[0] == "t"}.get(filter_, filter_ == topic)


@pytest.mark.parametrize("seed", range(12))
def test_clients_have_what_their_qos_promises(seed: int) -> None:
    world = World(seed)
    for _ in range(STEPS):
        world.step()
    world.come_to_rest()
    world.check()
