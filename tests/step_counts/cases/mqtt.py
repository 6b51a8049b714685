"""MQTT: requests of one client at once, with n objects of its own."""

from __future__ import annotations

from mqtt_harness import MqttClient, mqtt_client, publish_packet

from step_counts.cases.case import BOUNDED, LINEAR, TIDIED, Act, case
from step_counts.meter import Meter
from warren.mqtt.packets import packet, text


def feeding(client: MqttClient, data: bytes) -> Act:
    return lambda: client.peer.feed(data)


@case(None, LINEAR)  # a packet is taken apart at once, and paid for by its bytes
def mqtt_subscribe_to_many(meter: Meter, n: int) -> Act:
    client = mqtt_client(meter)
    return feeding(client, packet(8, 2, b"\0\x01" + b"".join(text(str(at)) + b"\0" for at in range(n))))


@case(None, BOUNDED)
def mqtt_subscribe_to_many_retained(meter: Meter, n: int) -> Act:
    client = mqtt_client(meter)
    for at in range(n):
        client.feed(publish_packet(str(at), b"x", retain=True))
    return feeding(client, packet(8, 2, b"\0\x01" + text("#") + b"\0"))


@case(None, TIDIED)
def mqtt_end_with_subscriptions(meter: Meter, n: int) -> Act:
    client = mqtt_client(meter)
    for at in range(n):
        client.subscribe(str(at))
    return feeding(client, packet(14, 0, b""))


@case(None, LINEAR)
def mqtt_packet_in_pieces(meter: Meter, n: int) -> Act:
    client = mqtt_client(meter)
    client.feed(publish_packet("a", bytes(100 * n + 1))[:20])

    def act() -> None:
        for _ in range(n):
            client.peer.feed(b"x" * 100)

    return act


@case(None, LINEAR)
def mqtt_publishes_of_qos_2(meter: Meter, n: int) -> Act:
    client = mqtt_client(meter, clean=False)
    return feeding(client, (publish_packet("a", b"x", 2, 7) + packet(6, 2, b"\0\7")) * n)


@case(None, LINEAR)
def mqtt_publishes(meter: Meter, n: int) -> Act:
    return feeding(mqtt_client(meter), publish_packet("a", b"x") * n)
