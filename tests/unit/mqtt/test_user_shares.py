"""No MQTT user takes all sessions, packet ids, wills or retained messages of a vhost."""

from __future__ import annotations

from typing import Any

from durable_harness import DurableHarness
from engine_harness import Harness
from mqtt_harness import MqttClient, mqtt_client, properties

from warren.mqtt import packets as p
from warren.mqtt.sessions import restore_sessions, sessions_of
from warren.vhosts.retained import Retained, RetainedMessages

LASTS: dict[str, Any] = {"clean": False, "given": properties({p.SESSION_EXPIRY: 100})}
QUOTA = 0x97


def as_other(harness: Harness) -> dict[str, str]:
    harness.add_user("other")
    return {"user": "other", "password": "other"}


def connack(harness: Harness, client_id: str, **options: Any) -> int:
    return MqttClient(harness, 5).connect(client_id, **LASTS, **options).body[1]


def test_sessions() -> None:
    harness = Harness()
    other = as_other(harness)
    sessions_of(harness.broker, harness.vhost).session_shares.most = 8
    first = mqtt_client(harness, 5, "c0", **LASTS)
    assert [connack(harness, f"c{number}") for number in range(1, 8)] == [0] * 5 + [QUOTA] * 2
    assert connack(harness, "o", **other) == 0
    # One that another user comes back to is the other's.
    first.hang_up()
    assert connack(harness, "c0", **other) == 0
    assert sessions_of(harness.broker, harness.vhost).session_shares.used("other") == 2
    sessions_of(harness.broker, harness.vhost).check_invariants()


def test_packet_ids_of_qos_2() -> None:
    harness = Harness()
    other = as_other(harness)
    kept = sessions_of(harness.broker, harness.vhost)
    kept.id_shares.most = 8
    client = MqttClient(harness, 5)
    client.connect("c", **LASTS)
    for number in range(1, 7):
        client.publish("t", b"x", 2, packet_id=number)
    second = MqttClient(harness, 5)
    second.connect("d", **other, **LASTS)
    second.publish("t", b"x", 2, packet_id=1)
    assert not second.ended and (kept.id_shares.used("guest"), kept.id_shares.used("other")) == (6, 1)
    client.publish("t", b"x", 2, packet_id=7)
    assert client.ended
    kept.check_invariants()


def retained(user: str, size: int) -> Retained:
    return Retained(user, 0, 0, b"\0\0", b"x" * size)


def test_retained_messages() -> None:
    harness = DurableHarness()
    found: RetainedMessages = harness.vhost.retained()
    found.topic_shares.most = 8
    assert [found.put(f"t{number}", retained("a", 10)) for number in range(7)] == [True] * 6 + [False]
    assert found.put("t0", retained("a", 10)) and not found.put("t7", retained("a", 1))
    assert found.put("u", retained("b", 10))
    size = found.byte_shares.used("a")
    assert found.put("t0", retained("b", 5)) and found.topic_shares.used("b") == 2
    assert found.byte_shares.used("a") == size * 5 // 6
    found.byte_shares.most = found.bytes
    assert not found.put("t1", retained("a", 11)) and found.put("t1", retained("a", 9))
    found.byte_shares.most = 2 * found.bytes
    mqtt_client(harness).publish("q", b"x", 1, retain=True)  # its PUBACK waits for the disk
    before = (found.count, found.bytes, found.byte_shares.used("a"), found.byte_shares.used("b"))
    assert found.topic_shares.used("guest") == 1
    found = harness.restart(clean=False).vhost.retained()
    assert (found.count, found.bytes, found.byte_shares.used("a"), found.byte_shares.used("b")) == before
    assert found.remove("u") and found.topic_shares.used("b") == 1


def test_whose_a_session_is_survives_a_restart() -> None:
    harness = DurableHarness()
    mqtt_client(harness, 5, "c", **LASTS)
    harness.settle()
    harness = harness.restart(clean=False)
    for _ in restore_sessions(harness.broker):
        pass
    kept = sessions_of(harness.broker, harness.vhost)
    assert (kept.sessions["c"].user, kept.session_shares.used("guest")) == ("guest", 1)


def test_what_an_earlier_version_has_retained_is_nobodys() -> None:
    harness = Harness()
    found = harness.vhost.retained()
    value = bytes(16) + (2).to_bytes(4, "big") + b"\0\0" + b"body"
    harness.vhost.records.store("retained:old", value)
    again = RetainedMessages(harness.vhost.records)
    for _ in again.read():
        pass
    kept = again.maybe("old", 1)
    assert kept is not None and (kept.user, kept.properties, kept.body) == ("", b"\0\0", b"body")
    assert again.put("old", retained("a", 4)) and again.topic_shares.used("") == 0
    assert found.count == 0
