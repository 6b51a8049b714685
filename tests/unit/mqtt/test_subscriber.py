"""Subscriptions of QoS 0 without a queue: messages that arrive, messages that do not, and leftovers."""

from __future__ import annotations

from typing import Any

import pytest
from engine_harness import Harness
from mqtt_harness import MqttClient, connect_packet, message, mqtt_client, properties, publish_packet, split_packets

from warren.amqp import methods as m
from warren.amqp.field_table import encode_table
from warren.amqp.properties import BasicProperties
from warren.mqtt import packets as p
from warren.mqtt.packets import packet
from warren.mqtt.subscriber import Subscriber
from warren.msgstore.log.message import Envelope, build_message
from warren.vhosts.retained import Retained

NAME = "mqtt-subscription-rqos0"
LIMIT = 1 << 16


def subscribers(harness: Harness) -> list[str]:
    """Return the subscribers that are destinations of bindings of amq.topic."""
    bindings = harness.vhost.exchange("amq.topic").bindings
    return [each.destination.name for each in bindings if isinstance(each.destination, Subscriber)]


def stall(client: MqttClient, *, stalled: bool = True) -> None:
    client._client.stalled = stalled


# --- what it is -----------------------------------------------------------------------------------------------------


def test_a_session_that_ends_with_its_connection_has_no_queue(harness: Harness) -> None:
    reader, writer = mqtt_client(harness, client_id="r"), mqtt_client(harness, client_id="w")
    assert reader.subscribe("a/+", "b") == [0, 0]
    assert not harness.vhost.queues
    assert subscribers(harness) == [NAME, NAME]
    binding = next(iter(harness.vhost.exchange("amq.topic").bindings))
    assert (binding.destination.kind, binding.destination.durable) == ("subscriber", False)
    writer.publish("a/x", b"1")
    writer.publish("b", b"2", 1)
    assert [(each.topic, each.body, each.qos) for each in reader.messages()] == [("a/x", b"1", 0), ("b", b"2", 0)]


def test_a_session_that_lasts_has_one(harness: Harness) -> None:
    reader = mqtt_client(harness, client_id="r", clean=False)
    reader.subscribe("a")
    assert list(harness.vhost.queues) == [NAME]
    assert not subscribers(harness)


def test_what_is_left_of_a_session_that_lasted_goes_on_with_its_queue(harness: Harness) -> None:
    lasting = {p.SESSION_EXPIRY: 100}
    reader = mqtt_client(harness, 5, client_id="r", clean=False, given=properties(lasting))
    reader.subscribe("a")
    reader.hang_up()
    writer = mqtt_client(harness, client_id="w")
    writer.publish("a", b"away")
    reader = MqttClient(harness, 5)
    connack, away = reader.feed(connect_packet(5, "r", clean=False))
    assert connack.body[0] == 1
    assert message(away, 5).body == b"away"
    reader.subscribe("+")
    writer.publish("a", b"once")
    assert reader.bodies() == [b"once"]
    reader.hang_up()
    assert not harness.vhost.queues
    assert not harness.vhost.exchange("amq.topic").bindings


def test_a_message_for_several_of_its_filters_comes_once(harness: Harness) -> None:
    reader, writer = mqtt_client(harness, client_id="r"), mqtt_client(harness, client_id="w")
    reader.subscribe("a/#", "a/b", "+/b")
    writer.publish("a/b", b"x")
    assert reader.bodies() == [b"x"]


def test_with_a_filter_of_qos_1_it_comes_with_each(harness: Harness) -> None:
    reader, writer = mqtt_client(harness, client_id="r"), mqtt_client(harness, client_id="w")
    reader.subscribe("a/#")
    reader.subscribe("a/b", qos=1)
    writer.publish("a/b", b"x", 1)
    assert sorted(each.qos for each in reader.messages()) == [0, 1]


def test_a_subscription_goes_from_one_qos_to_another(harness: Harness) -> None:
    reader, writer = mqtt_client(harness, client_id="r"), mqtt_client(harness, client_id="w")
    for qos in (0, 1, 0, 2, 0):
        assert reader.subscribe("a", qos=qos) == [qos]
        writer.publish("a", b"x", 2)
        writer.answer(6, 1)
        (came,) = reader.messages()
        assert came.qos == qos
        if qos:
            reader.answer(4 if qos == 1 else 5, came.packet_id)
            reader.answer(7, came.packet_id)
    assert reader.unsubscribe("a") == [] and not subscribers(harness)


def test_options_hold_for_each_subscription(harness: Harness) -> None:
    reader, writer = mqtt_client(harness, 5, "r"), mqtt_client(harness, 5, "w")
    reader.subscribe("a", given=_with_id(7))
    reader.subscribe("+", options=8)  # Retain As Published
    reader.subscribe("own", options=4)  # No Local
    writer.publish("a", b"x", retain=True)
    (came,) = reader.messages()
    assert came.retain and came.properties == bytes([p.SUBSCRIPTION_ID, 7])
    reader.unsubscribe("+")
    reader.publish("own", b"of its own")
    writer.publish("own", b"of another")
    assert reader.bodies() == [b"of another"]


def _with_id(identifier: int) -> p.Properties:
    given = p.Properties()
    given.ids.append(identifier)
    return given


def test_wildcards_in_front_do_not_match_a_dollar(harness: Harness) -> None:
    reader, writer = mqtt_client(harness, client_id="r"), mqtt_client(harness, client_id="w")
    reader.subscribe("#")
    writer.publish("$x/a", b"hidden")
    writer.publish("x/a", b"seen")
    assert reader.bodies() == [b"seen"]
    reader.subscribe("$x/#")
    writer.publish("$x/a", b"asked for")
    assert reader.bodies() == [b"asked for"]


def test_each_version_gets_its_form_of_a_message(harness: Harness) -> None:
    readers = [mqtt_client(harness, version, f"r{version}") for version in (3, 5, 4)]
    for reader in readers:
        reader.subscribe("a")
    writer = mqtt_client(harness, 5, "w")
    given = properties({p.MESSAGE_EXPIRY: 60}, [("k", "v")])
    for body in (b"", b"x", b"y" * 200, b"z" * 20_000):
        writer.publish("a", body, given=given)
        writer.publish("a", body)
    expected = properties({p.MESSAGE_EXPIRY: 60}, [("k", "v")]).encode()[1:]
    for reader in readers:
        came = reader.messages()
        assert [len(each.body) for each in came] == [0, 0, 1, 1, 200, 200, 20_000, 20_000]
        assert [each.properties for each in came] == ([expected, b""] * 4 if reader.version == 5 else [b""] * 8)


def test_what_is_larger_than_a_client_takes_is_passed_over(harness: Harness) -> None:
    reader = mqtt_client(harness, 5, "r", given=properties({p.PACKET_MAX: 40}))
    reader.subscribe("a")
    writer = mqtt_client(harness, client_id="w")
    for size in (10, 100, 34, 35, 20):
        writer.publish("a", b"x" * size)
    assert [len(each) for each in reader.bodies()] == [10, 34, 20]


# --- its effects on publishers ---------------------------------------------------------------------------------------


def test_a_mandatory_message_is_routed_and_confirmed(harness: Harness) -> None:
    publisher = harness.channel()
    publisher.call(1, m.ConfirmSelect(False))
    reader = mqtt_client(harness, client_id="r")
    reader.subscribe("a")
    publisher.publish("amq.topic", "a", b"x", mandatory=True)
    assert publisher.expect(m.BasicAck).delivery_tag == 1
    assert reader.bodies() == [b"x"]
    reader.hang_up()
    publisher.publish("amq.topic", "a", b"y", mandatory=True)
    assert isinstance(publisher.take()[0].method, m.BasicReturn)


def test_an_alternate_exchange_is_not_asked(harness: Harness) -> None:
    publisher = harness.channel()
    publisher.declare_exchange("front", "direct", arguments={"alternate-exchange": "amq.fanout"})
    publisher.declare("rest")
    publisher.bind("rest", "amq.fanout")
    publisher.send(1, m.ExchangeBind(0, "amq.topic", "front", "a", False, encode_table({})))
    publisher.take()
    reader = mqtt_client(harness, client_id="r")
    reader.subscribe("a")
    publisher.publish("front", "a", b"x")
    assert reader.bodies() == [b"x"]
    assert harness.queue("rest").ready_count == 0


def test_a_transaction_comes_with_its_commit(harness: Harness) -> None:
    reader = mqtt_client(harness, client_id="r")
    reader.subscribe("a")
    publisher = harness.channel()
    publisher.call(1, m.TxSelect())
    publisher.publish("amq.topic", "a", b"x", delivery_mode=2)
    assert reader.bodies() == []
    assert isinstance(publisher.call(1, m.TxCommit()), m.TxCommitOk)
    assert reader.bodies() == [b"x"]


def test_a_delayed_message_comes_at_its_time(harness: Harness) -> None:
    reader = mqtt_client(harness, client_id="r")
    reader.subscribe("a")
    publisher = harness.channel()
    for delay, body in ((5000, b"later"), (2000, b"soon"), (0, b"now")):
        publisher.publish("amq.topic", "a", body, headers=encode_table({"x-delay": delay}))
    assert reader.bodies() == [b"now"]
    harness.pass_time(3)
    assert reader.bodies() == [b"soon"]
    harness.pass_time(3)
    assert reader.bodies() == [b"later"]


def test_no_more_is_delayed_for_a_client_than_may_wait_for_it() -> None:
    harness = Harness(mqtt_qos0_outbox_bytes=LIMIT)
    reader = mqtt_client(harness, client_id="r")
    reader.subscribe("a")
    publisher = harness.channel()
    for _ in range(20):
        publisher.publish("amq.topic", "a", b"x" * 10_000, headers=encode_table({"x-delay": 2000}))
    harness.pass_time(3)
    assert LIMIT // 10_000 <= len(reader.bodies()) <= LIMIT // 10_000 + 1
    assert harness.broker.churn.dropped_qos_0 > 10


def test_nothing_delayed_is_left_of_a_client_that_has_gone(harness: Harness) -> None:
    reader = mqtt_client(harness, client_id="r")
    reader.subscribe("a")
    harness.channel().publish("amq.topic", "a", b"x", headers=encode_table({"x-delay": 2000}))
    reader.hang_up()
    assert harness.broker.timers.next_ms() > harness.broker.now_ms() + 10**9
    harness.pass_time(3)


def test_deliveries_are_counted_and_traced(harness: Harness) -> None:
    watcher = harness.channel()
    watcher.declare("traces")
    watcher.bind("traces", "amq.rabbitmq.trace", "#")
    harness.broker.trace("/", True)
    reader, writer = mqtt_client(harness, client_id="r"), mqtt_client(harness, client_id="w")
    reader.subscribe("a")
    writer.publish("a", b"x")
    keys = []
    while (got := watcher.get("traces", no_ack=True)) is not None:
        keys.append(got.method.routing_key)
    assert sorted(keys) == [f"deliver.{NAME}", "publish.amq.topic"]
    counts: Any = harness.broker.totals()
    assert counts.deliver_no_ack == 1


# --- clients that do not read
# ----------------------------------------------------------------------------------------------


def test_a_client_that_never_reads_costs_its_limit_and_what_is_more_is_dropped() -> None:
    harness = Harness(outbox_soft_bytes=LIMIT // 2, mqtt_qos0_outbox_bytes=LIMIT)
    reader, writer = mqtt_client(harness, client_id="r"), mqtt_client(harness, client_id="w")
    other = mqtt_client(harness, client_id="o")
    reader.subscribe("a")
    other.subscribe("a")
    stall(reader)
    for _ in range(100):
        writer.feed(publish_packet("a", b"x" * 1000))
    assert LIMIT < reader.peer.outbox.waiting_bytes() < LIMIT + 1100
    assert len(other.bodies()) == 100
    details: Any = reader.peer.details()
    dropped = details["mqtt"]["dropped_qos_0"]
    assert 30 < dropped < 40 and harness.broker.churn.dropped_qos_0 == dropped
    stall(reader, stalled=False)
    harness.settle()
    assert len(reader.bodies()) == 100 - dropped
    writer.publish("a", b"again")
    assert reader.bodies() == [b"again"]


def test_a_client_that_reads_slowly_has_its_queues_served_in_between() -> None:
    harness = Harness(outbox_soft_bytes=LIMIT // 2, mqtt_qos0_outbox_bytes=LIMIT)
    reader, writer = mqtt_client(harness, client_id="r"), mqtt_client(harness, client_id="w")
    reader.subscribe("loud")
    reader.subscribe("quiet", qos=1)
    stall(reader)
    for _ in range(LIMIT // 2000):
        writer.feed(publish_packet("loud", b"x" * 1000))
    writer.publish("quiet", b"heard", 1)
    for _ in range(100):
        writer.feed(publish_packet("loud", b"x" * 1000))
    outbox = reader.peer.outbox
    came: list[bytes] = []
    for chunk in outbox.take():  # it reads a piece, and more follows
        reader.peer.broker.take_dirty()
        came.append(chunk)
        writer.feed(publish_packet("loud", b"y" * 1000))
        if outbox.sent(len(chunk)):
            reader.peer.drained()
    stall(reader, stalled=False)
    harness.settle()
    came.append(reader._client.take())
    found = [message(each, 4).body for each in split_packets(b"".join(came))]
    assert b"heard" in found


@pytest.mark.parametrize("size", [1000, 20_000])
def test_what_is_retained_comes_as_fast_as_it_is_read(size: int) -> None:
    harness = Harness(outbox_soft_bytes=LIMIT, mqtt_qos0_outbox_bytes=LIMIT)
    retained = harness.vhost.retained()
    for number in range(200):
        retained.put(
            f"a/{number}", Retained("guest", harness.broker.now_ms(), 0, BasicProperties().encode(), b"x" * size)
        )
    reader = mqtt_client(harness, client_id="r")
    stall(reader)
    reader.peer.feed(packet(8, 2, b"\0\x01\0\x03a/#\0") + packet(12, 0, b""))
    harness.settle()
    assert reader.peer.outbox.waiting_bytes() < LIMIT + size + 100
    assert not harness.broker.has_work()
    stall(reader, stalled=False)
    harness.settle()
    packets = split_packets(reader._client.take())
    assert [each.kind for each in packets].count(3) == 200
    assert packets[0].kind == 9, "SUBACK comes first"
    assert packets[-1].kind == 13, "PINGRESP, of which nothing was read before"
    assert harness.broker.churn.dropped_qos_0 == 0


# --- the end --------------------------------------------------------------------------------------------------------


def test_nothing_is_left_of_it(harness: Harness) -> None:
    writer = mqtt_client(harness, client_id="w")
    for end in (MqttClient.hang_up, lambda client: client.feed(packet(14, 0, b""))):
        reader = mqtt_client(harness, client_id="r")
        reader.subscribe("a", "b/#")
        writer.publish("a", b"x")
        end(reader)
        assert not harness.vhost.exchange("amq.topic").bindings
        assert writer.publish("a", b"x", 1)[0].kind == 4


def test_the_client_id_goes_over_with_what_its_new_owner_asks_for(harness: Harness) -> None:
    first, writer = mqtt_client(harness, client_id="r"), mqtt_client(harness, client_id="w")
    first.subscribe("a")
    second = mqtt_client(harness, client_id="r")
    assert first.ended and not subscribers(harness)
    second.subscribe("b")
    writer.publish("a", b"of the first")
    writer.publish("b", b"of the second")
    assert second.bodies() == [b"of the second"]


def test_a_will_comes_to_it(harness: Harness) -> None:
    reader = mqtt_client(harness, client_id="r")
    reader.subscribe("#")
    dying = mqtt_client(harness, client_id="d", will=("end", b"of d", 1, False))
    dying.subscribe("#")  # it no longer gets its own will
    dying.hang_up()
    assert reader.bodies() == [b"of d"]


def test_who_may_not_read_any_more_is_closed(harness: Harness) -> None:
    harness.add_user("u")
    reader = mqtt_client(harness, client_id="r", user="u", password="u")
    reader.subscribe("a")
    harness.permit("u", read="amq.*")
    harness.settle()
    assert reader.ended and not subscribers(harness)


@pytest.mark.parametrize("lacking", ["configure", "write", "read"])
def test_it_needs_the_rights_that_its_queue_would_need(harness: Harness, lacking: str) -> None:
    harness.add_user("u")
    harness.permit("u", **{lacking: "amq.*"})
    reader = mqtt_client(harness, client_id="r", user="u", password="u")
    assert reader.subscribe("a") == [128]
    assert not subscribers(harness)


def test_while_memory_is_short_subscriptions_are_limited(harness: Harness) -> None:
    reader = mqtt_client(harness, client_id="r")
    harness.broker.set_alarm("memory", True)
    codes = [reader.subscribe(f"a/{number}")[0] for number in range(100)]
    assert codes[0] == 0 and codes[-1] == 128
    assert codes == sorted(codes)
    harness.broker.set_alarm("memory", False)
    assert reader.subscribe("b") == [0]


# --- many -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [20, 40])
def test_a_message_is_looked_at_once_for_all(harness: Harness, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    readers = [mqtt_client(harness, client_id=f"r{number}") for number in range(count)]
    for reader in readers:
        reader.subscribe("a")
    writer = mqtt_client(harness, client_id="w")
    body = b"x" * 10_000
    for reader in readers:
        stall(reader)
    writer.feed(publish_packet("a", body))
    chunks = [reader.peer.outbox.take() for reader in readers]
    assert all(each[-1] is chunks[0][-1] for each in chunks), "all have the same bytes"
    assert chunks[0][-1] == body


def test_a_large_message_is_let_go_of_at_the_end_of_the_turn(harness: Harness) -> None:
    reader, writer = mqtt_client(harness, client_id="r"), mqtt_client(harness, client_id="w")
    reader.subscribe("a")
    session = reader.peer.session
    assert session is not None
    for _ in range(3):
        writer.peer.feed(publish_packet("a", b"x" * 100_000))
        assert session.sessions.fanout.message is not None
        harness.settle()
        assert session.sessions.fanout.message is None
        assert reader.bodies() == [b"x" * 100_000]
    assert not harness.broker.has_work()


def test_a_publish_to_very_many_goes_on_without_those_that_have_gone(harness: Harness) -> None:
    reader, writer = mqtt_client(harness, client_id="r"), mqtt_client(harness, client_id="w")
    reader.subscribe("b")
    session = reader.peer.session
    assert session is not None
    fanout, source = session.sessions.fanout, harness.vhost.exchange("amq.topic")
    ledger: Any = session.ledger
    many = [Subscriber(f"s{number}", ledger, fanout, 1 << 30) for number in range(5000)]
    for each in many:
        harness.vhost.bind(source, each, "a", encode_table({}))
    harness.broker.work.turn_steps = 200
    harness.broker.work.end_turn()
    writer.peer.feed(publish_packet("a", b"x", 1))
    for each in many[2500:]:
        harness.vhost.end_subscriber(each)
        each.close()
    harness.settle()
    assert len(reader.bodies()) == 2500
    (answer,) = writer.take()
    assert answer.kind == 4


def test_what_waits_for_its_answer_costs_nothing_for_each_message_that_needs_none(harness: Harness) -> None:
    reader, writer = mqtt_client(harness, client_id="r"), mqtt_client(harness, client_id="w")
    reader.subscribe("loud")
    reader.subscribe("quiet", qos=1)
    writer.publish("quiet", b"1", 1)
    for _ in range(100):
        writer.publish("loud", b"x")
    writer.publish("quiet", b"2", 1)
    session = reader.peer.session
    assert session is not None
    assert session.ledger.next_tag == 3
    counts: Any = harness.broker.totals()
    assert (counts.deliver_no_ack, counts.deliver) == (100, 2)
    reader.hang_up()
    counts = harness.broker.totals()
    assert (counts.deliver_no_ack, counts.deliver) == (100, 2)


def test_what_a_turn_sends_is_cut_into_pieces(harness: Harness) -> None:
    reader, writer = mqtt_client(harness, client_id="r"), mqtt_client(harness, client_id="w")
    reader.subscribe("a")
    outbox = reader.peer.outbox
    body = bytes(1000)
    writer.peer.feed(publish_packet("a", body) * (2 * int(outbox.piece_bytes) // len(body)))
    assert len(outbox.writer) <= outbox.piece_bytes
    harness.settle()
    assert len(reader.messages()) == 2 * int(outbox.piece_bytes) // len(body)


# --- defects of ours --------------------------------------------------------------------------------------------------


def test_what_we_have_failed_to_make_packets_of_is_dropped_and_what_follows_comes(harness: Harness) -> None:
    """Once for all subscribers, which else would be ended one after the other."""
    readers = [mqtt_client(harness, client_id=name) for name in ("r", "s")]
    for reader in readers:
        reader.subscribe("a")
    bindings = harness.vhost.exchange("amq.topic").bindings
    found = [each.destination for each in bindings if isinstance(each.destination, Subscriber)]
    unfit = build_message(Envelope("amq.topic", "a"), b"\0\0", b"unfit", 4096, False)
    found[0]._fanout.give_up(unfit)
    for subscriber in found:
        subscriber.publish(unfit)
    harness.settle()
    assert [subscriber.dropped for subscriber in found] == [1, 1]
    mqtt_client(harness, client_id="w").publish("a", b"x")
    assert [reader.bodies() for reader in readers] == [[b"x"], [b"x"]]
