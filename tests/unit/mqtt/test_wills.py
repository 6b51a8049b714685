"""Wills on the engine: of every QoS, retained, and delayed until the session ends, or not at all."""

from __future__ import annotations

from typing import Any

import pytest
from durable_harness import DurableHarness
from engine_harness import Harness
from mqtt_harness import MqttClient, connect_packet, message, mqtt_client, properties

from warren.mqtt import packets as p
from warren.mqtt.packets import Properties, Will, packet
from warren.mqtt.reason_codes import MqttError
from warren.mqtt.sessions import restore_sessions, sessions_of
from warren.mqtt.wills import check_will, decode_will, encode_will
from warren.vhosts.metadata import VhostDelete, VhostPut


def reader_of(harness: Harness) -> MqttClient:
    reader = mqtt_client(harness, 5, "r")
    reader.subscribe("will", qos=2)
    return reader


def with_will(harness: Harness, *, delay_s: int = 10, expiry_s: int = 100, qos: int = 1, **options: Any) -> MqttClient:
    options.setdefault("will", ("will", b"gone", qos, False))
    return mqtt_client(
        harness,
        5,
        will_properties=properties({p.WILL_DELAY: delay_s, p.CONTENT_TYPE: "t"}),
        clean=False,
        given=properties({p.SESSION_EXPIRY: expiry_s}),
        **options,
    )


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("delay_s", [0, 10])
def test_a_will_has_its_qos_and_its_properties(harness: Harness, qos: int, delay_s: int) -> None:
    reader = reader_of(harness)
    with_will(harness, qos=qos, delay_s=delay_s).hang_up()
    if delay_s:
        harness.pass_time(9)
        assert reader.messages() == []
        harness.pass_time(2)
    (found,) = reader.messages()
    assert (found.topic, found.body, found.qos, found.properties) == ("will", b"gone", qos, b"\x03\0\x01t")
    assert harness.vhost.retained().count == 0


@pytest.mark.parametrize("delay_s", [0, 10])
def test_a_will_may_be_retained(harness: Harness, delay_s: int) -> None:
    with_will(harness, delay_s=delay_s, will=("will", b"gone", 1, True)).hang_up()
    harness.pass_time(11)
    (found,) = reader_of(harness).messages()
    assert (found.body, found.retain) == (b"gone", True)


def test_the_end_of_the_session_is_earlier(harness: Harness) -> None:
    reader = reader_of(harness)
    with_will(harness, delay_s=50, expiry_s=10).hang_up()
    harness.pass_time(11)
    assert reader.bodies() == [b"gone"]
    with_will(harness, delay_s=50, expiry_s=0).hang_up()
    assert reader.bodies() == [b"gone"]


@pytest.mark.parametrize("taken_over", [False, True])
def test_who_comes_back_in_time_takes_it_back(harness: Harness, taken_over: bool) -> None:
    reader = reader_of(harness)
    client = with_will(harness)
    if not taken_over:
        client.hang_up()
        harness.pass_time(5)
    client = with_will(harness, will=None)
    harness.pass_time(20)
    assert reader.bodies() == []
    client.hang_up()
    harness.pass_time(20)
    assert reader.bodies() == []


@pytest.mark.parametrize("taken_over", [False, True])
def test_a_clean_start_ends_the_session_and_so_the_will_goes_out(harness: Harness, taken_over: bool) -> None:
    reader = reader_of(harness)
    client = with_will(harness)
    if not taken_over:
        client.hang_up()
    mqtt_client(harness, 5)
    assert reader.bodies() == [b"gone"]


def test_a_takeover_publishes_a_will_without_delay(harness: Harness) -> None:
    reader = reader_of(harness)
    with_will(harness, delay_s=0)
    with_will(harness)
    assert reader.bodies() == [b"gone"]


@pytest.mark.parametrize(("reason", "comes"), [(0, False), (4, True), (0x80, True)])
def test_only_a_disconnect_with_success_takes_it_back(harness: Harness, reason: int, comes: bool) -> None:
    reader = reader_of(harness)
    with_will(harness).feed(packet(14, 0, bytes([reason])))
    harness.pass_time(11)
    assert reader.bodies() == ([b"gone"] if comes else [])


def test_the_expiry_that_disconnect_asks_for_counts(harness: Harness) -> None:
    reader = reader_of(harness)
    with_will(harness).feed(packet(14, 0, b"\x04" + properties({p.SESSION_EXPIRY: 0}).encode()))
    assert reader.bodies() == [b"gone"]


@pytest.mark.parametrize("down_s", [1, 60])
def test_a_will_that_waits_survives_a_kill(down_s: int) -> None:
    harness = DurableHarness()
    reader = mqtt_client(harness, 5, "r", clean=False, given=properties({p.SESSION_EXPIRY: 1000}))
    reader.subscribe("will", qos=1)
    with_will(harness).hang_up()
    harness.write()
    harness = harness.restart(clean=False, down_s=down_s)
    for _ in restore_sessions(harness.broker):
        pass
    sessions_of(harness.broker, harness.vhost).check_invariants()
    harness.pass_time(0 if down_s > 10 else 10)
    client = MqttClient(harness, 5)
    _, came = client.feed(connect_packet(5, "r", clean=False, given=properties({p.SESSION_EXPIRY: 1000})))
    assert message(came, 5).body == b"gone"


def test_a_delayed_will_needs_the_permission_when_it_goes_out(harness: Harness) -> None:
    harness.add_user("other")
    reader = reader_of(harness)
    with_will(harness, user="other", password="other").hang_up()
    harness.permit("other", write="^mqtt-")
    harness.pass_time(11)
    assert reader.bodies() == []
    assert "mqtt.will_refused" in harness.events()


def test_nothing_goes_out_of_a_vhost_that_is_deleted(harness: Harness) -> None:
    harness.broker.administer(VhostPut("other"))
    harness.permit("guest", vhost="other")
    with_will(harness, user="other:guest").hang_up()
    harness.broker.administer(VhostDelete("other"))
    harness.settle()
    harness.pass_time(101)
    assert harness.broker.timers.next_ms() > harness.broker.now_ms() + 1_000_000
    assert "mqtt.will_refused" not in harness.events()


def test_too_much_does_not_wait(harness: Harness) -> None:
    sessions_of(harness.broker, harness.vhost).will_shares.most = 100
    reader = reader_of(harness)
    with_will(harness, will=("will", b"x" * 100, 1, False)).hang_up()
    assert reader.bodies() == [b"x" * 100]


@pytest.mark.parametrize(
    "given",
    [properties({p.CONTENT_TYPE: "x" * 256}), properties({}, [("n" * 256, "v")]), properties({p.RESPONSE_TOPIC: "#"})],
)
@pytest.mark.parametrize("delay_s", [0, 10])
def test_a_will_that_can_never_be_published_is_refused_at_once(
    harness: Harness, given: Properties, delay_s: int
) -> None:
    given.values[p.WILL_DELAY] = delay_s
    reply = MqttClient(harness, 5).connect(will=("will", b"gone", 1, False), will_properties=given)
    assert reply.body[1] in (0x83, 0x90)
    reply = MqttClient(harness, 5).connect(will=("t" * 300, b"gone", 1, False))
    assert reply.body[1] >= 0x80


def test_a_disconnect_that_is_refused_leaves_the_will(harness: Harness) -> None:
    reader = mqtt_client(harness, 5, "reader")
    reader.subscribe("will")
    client = with_will(harness, delay_s=0, expiry_s=0)
    expiry = properties({p.SESSION_EXPIRY: 10}).encode()
    (reply,) = client.feed(packet(14, 0, b"\0" + expiry))
    assert (reply.kind, reply.body[0]) == (14, 0x82)
    assert reader.bodies() == [b"gone"]


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("retain", [False, True])
def test_a_will_that_waits_is_read_as_it_was_written(qos: int, retain: bool) -> None:
    given = properties({p.WILL_DELAY: 7, p.CONTENT_TYPE: "t"}, [("a", "b")])
    user, found = decode_will(encode_will("us\u00e9r", Will("to/pic", b"\0body", qos, retain, given)))
    assert (user, found.topic, found.payload) == ("us\u00e9r", "to/pic", b"\0body")
    assert (found.qos, found.retain, found.properties.encode()) == (qos, retain, given.encode())


def test_a_will_that_could_never_be_published_is_refused(harness: Harness) -> None:
    check_will(Will("x" * 200, b"", 0, False, properties()))
    with pytest.raises(MqttError) as caught:
        check_will(Will("x" * 300, b"", 0, False, properties()))
    (reply,) = MqttClient(harness, 5).feed(connect_packet(5, will=("x" * 300, b"", 0, False)))
    assert (reply.kind, reply.body[1]) == (2, caught.value.reason)
