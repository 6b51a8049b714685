"""The basic class: qos, consuming, publishing, getting, acknowledging."""

from __future__ import annotations

import re
from typing import Any

import pytest
from engine_harness import (
    CAPABILITIES,
    USER,
    Client,
    Harness,
    Received,
    Refusal,
    basic_consume,
    body_of,
    publish_frames,
)

from warren.amqp import methods as m
from warren.amqp.field_table import Table, encode_table

from .rules import rule


def refused_basic(client: Client, call: Any, scope: str, code: int, text: str) -> None:
    assert client.refused(1, call) == Refusal(scope, code, text, type(call))


def fill(client: Client, queue: str, count: int) -> list[bytes]:
    """Declare `queue`, publish `count` messages to it and return their bodies."""
    client.declare(queue)
    bodies = [b"%d" % number for number in range(count)]
    client.feed(b"".join(publish_frames("", queue, body) for body in bodies))
    return bodies


def qos(client: Client, count: int, *, whole_channel: bool = False, number: int = 1) -> None:
    client.send(number, m.BasicQos(0, count, whole_channel))
    client.pick(m.BasicQosOk)


def seen(client: Client) -> list[tuple[bytes, bool]]:
    """Return body and redelivered of what came, deliveries only."""
    return [(body_of(each), each.method.redelivered) for each in client.deliveries()]


def tags(received: list[Received]) -> list[int]:
    return [each.method.delivery_tag for each in received]


# --- qos --------------------------------------------------------------------------------------------------------------


@rule(
    "basic.qos.prefetch-size.01",
    "A window in octets never holds back a single message.",
    deviation="There is no window in octets: prefetch_size other than 0 is 540, as in RabbitMQ.",
)
def test_a_prefetch_size_is_refused(client: Client) -> None:
    refused_basic(client, m.BasicQos(7, 0, False), "connection", 540, "NOT_IMPLEMENTED - prefetch_size!=0 (7)")


@rule("basic.qos.prefetch-count.01", "No consumer gets more messages in advance than its prefetch count.")
@pytest.mark.parametrize("count", [1, 2, 7, 65535])
def test_a_prefetch_count_is_never_exceeded(client: Client, other: Client, count: int) -> None:
    bodies = fill(client, "q", 20)
    qos(other, count)
    other.consume("q")
    assert other.bodies() == bodies[:count]
    fill(client, "q", 5)
    other.send(1, m.BasicAck(1, False))
    assert len(other.deliveries()) == (1 if count < 20 else 5)


@rule("rabbitmq.basic.qos", "Without global, the count holds for each consumer that comes later, not for earlier ones.")
def test_prefetch_counts_are_per_new_consumer(client: Client, other: Client) -> None:
    for name in ("p", "q", "r"):
        fill(client, name, 10)
    qos(other, 3)
    other.consume("p")
    qos(other, 2)
    other.consume("q")
    qos(other, 0)
    other.consume("r")
    assert len(other.deliveries()) == 3 + 2 + 10


@rule("rabbitmq.basic.qos", "With global, one limit is shared by all consumers of the channel, from now on.")
def test_a_global_prefetch_is_shared(client: Client, other: Client) -> None:
    fill(client, "p", 10)
    fill(client, "q", 10)
    qos(other, 5, whole_channel=True)
    qos(other, 4)
    other.consume("p")
    other.consume("q")
    assert len(other.deliveries()) == 5
    other.send(1, m.BasicAck(2, True))
    assert len(other.deliveries()) == 2
    qos(other, 7, whole_channel=True)
    assert len(other.deliveries()) == 2
    qos(other, 0, whole_channel=True)
    assert len(other.deliveries()) == 1, "each consumer's own limit holds as well"


@rule("rabbitmq.basic.qos", "Room under the shared limit is for all queues, however it is made.")
@pytest.mark.parametrize(
    "call",
    [m.BasicAck(1, False), m.BasicAck(1, True), m.BasicReject(1, False), m.BasicNack(0, multiple=True, requeue=False)],
)
def test_room_under_a_global_prefetch_is_for_all_queues(client: Client, other: Client, call: Any) -> None:
    fill(client, "p", 1)
    fill(client, "q", 1)
    qos(other, 1, whole_channel=True)
    other.consume("p")
    other.consume("q")
    assert len(other.deliveries()) == 1
    other.send(1, call)
    assert len(other.deliveries()) == 1


@rule("rabbitmq.basic.qos", "Limits do not hold for no-ack consumers nor for basic.get.")
def test_prefetch_does_not_limit_no_ack_nor_get(client: Client, other: Client) -> None:
    fill(client, "q", 20)
    qos(other, 1)
    qos(other, 1, whole_channel=True)
    for _ in range(3):
        assert other.get("q") is not None
    other.consume("q", no_ack=True)
    assert len(other.deliveries()) == 17


@rule("rabbitmq.basic.qos", "Channels have their own limits.")
def test_prefetch_is_per_channel(client: Client, other: Client) -> None:
    fill(client, "q", 10)
    other.open(2)
    qos(other, 1, whole_channel=True)
    other.consume("q")
    other.consume("q", number=2)
    received = other.deliveries()
    assert sorted(each.channel for each in received) == [1] + [2] * 9


# --- consume ----------------------------------------------------------------------------------------------------------


@rule("basic.consume.01", "16 consumers of a queue are no problem, nor are 1000.")
def test_a_queue_may_have_many_consumers(client: Client, other: Client) -> None:
    client.declare("q")
    for number in range(1000):
        other.consume("q", f"t{number}")
    assert client.declare("q").consumer_count == 1000


@rule("basic.consume.consumer-tag.01", "A tag in use on the channel is refused with 530 for the connection.")
def test_a_consumer_tag_is_used_once(client: Client) -> None:
    client.declare("q")
    client.consume("q", "t")
    text = "NOT_ALLOWED - attempt to reuse consumer tag 't'"
    refused_basic(client, basic_consume("q", "t"), "connection", 530, text)


@rule("basic.consume.consumer-tag.02", "Tags belong to their channel: others may use the same, and cannot cancel it.")
def test_consumer_tags_are_local_to_their_channel(client: Client) -> None:
    client.open(2)
    client.declare("q")
    client.consume("q", "t")
    client.consume("q", "t", number=2)
    client.consume("q", "one only")
    assert client.call(2, m.BasicCancel("one only", False)) == m.BasicCancelOk("one only")
    assert client.declare("q").consumer_count == 3


@rule("rabbitmq.basic.consume", "An empty tag asks for a new one: amq.ctag- and 22 characters.")
def test_the_server_makes_consumer_tags(client: Client) -> None:
    client.declare("q")
    made = {client.consume("q") for _ in range(50)}
    assert len(made) == 50
    assert all(re.fullmatch(r"amq\.ctag-[A-Za-z0-9_-]{22}", tag) for tag in made)


@rule("rabbitmq.basic.consume", "consume-ok comes before the first delivery.")
def test_consume_ok_comes_first(client: Client) -> None:
    fill(client, "q", 2)
    client.send(1, basic_consume("q", "t"))
    kinds = [type(each.method) for each in client.take()]
    assert kinds == [m.BasicConsumeOk, m.BasicDeliver, m.BasicDeliver]


@rule("rabbitmq.basic.consume", "A missing queue cannot be consumed: 404.")
def test_a_missing_queue_cannot_be_consumed(client: Client) -> None:
    refused_basic(client, basic_consume("missing"), "channel", 404, "NOT_FOUND - no queue 'missing' in vhost '/'")


@rule("rabbitmq.basic.consume", "no_local is ignored: who publishes may consume.")
def test_no_local_is_ignored(client: Client) -> None:
    client.declare("q")
    client.send(1, basic_consume("q", "t")._replace(no_local=True))
    client.expect(m.BasicConsumeOk)
    client.publish("", "q", b"m")
    assert client.bodies() == [b"m"]


@rule(
    "basic.consume.exclusive.01", "An exclusive consumer has its queue alone: 403 for it or for those who come later."
)
def test_an_exclusive_consumer_is_alone(client: Client, other: Client) -> None:
    client.declare("q")
    client.consume("q", "t")
    text = "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use"
    refused_basic(other, basic_consume("q", exclusive=True), "channel", 403, text)
    client.call(1, m.BasicCancel("t", False))
    other.consume("q", "alone", exclusive=True)
    refused_basic(client, basic_consume("q"), "channel", 403, text)
    refused_basic(client, basic_consume("q", exclusive=True), "channel", 403, text)
    other.call(1, m.BasicCancel("alone", False))
    client.consume("q")


@rule("rabbitmq.basic.consume", "x-priority has to be an integer: 406.")
def test_a_consumer_priority_is_an_integer(client: Client) -> None:
    client.declare("q")
    reason = '"expected integer, got longstr"'
    text = f"PRECONDITION_FAILED - invalid arg 'x-priority' for queue 'q' in vhost '/': {reason}"
    refused_basic(client, basic_consume("q", arguments={"x-priority": "high"}), "channel", 406, text)


@rule("rabbitmq.consumers.dispatch", "Ready consumers of one queue are served in turn.")
def test_consumers_are_served_in_turn(client: Client, other: Client) -> None:
    client.declare("q")
    for tag in ("a", "b", "c"):
        other.consume("q", tag, no_ack=True)
    for _ in range(9):
        client.publish("", "q")
    got = [each.method.consumer_tag for each in other.deliveries()]
    assert sorted(got[:3]) == ["a", "b", "c"]
    assert got == got[:3] * 3


@rule("rabbitmq.consumers.dispatch", "A consumer whose prefetch is full is passed over.")
def test_a_busy_consumer_is_passed_over(client: Client, other: Client) -> None:
    client.declare("q")
    qos(other, 1)
    other.consume("q", "busy")
    client.publish("", "q")
    qos(other, 0)
    other.consume("q", "free")
    for _ in range(4):
        client.publish("", "q")
    assert [each.method.consumer_tag for each in other.deliveries()] == ["busy"] + ["free"] * 4


@rule("rabbitmq.consumers.priority", "Higher x-priority is served first, lower only when the higher are blocked.")
def test_priorities_of_consumers(client: Client, other: Client) -> None:
    client.declare("q")
    qos(other, 2)
    for tag, priority in (("low", -5), ("none", None), ("high", 10)):
        arguments: Table | None = None if priority is None else {"x-priority": priority}
        other.consume("q", tag, arguments=arguments)
    for _ in range(7):
        client.publish("", "q")
    received = other.deliveries()
    assert [each.method.consumer_tag for each in received] == ["high"] * 2 + ["none"] * 2 + ["low"] * 2
    other.send(1, m.BasicAck(tags(received)[0], False))
    assert [each.method.consumer_tag for each in other.deliveries()] == ["high"]


@rule("rabbitmq.consumers.single-active", "Only the first consumer is served; when it goes, the next in order is.")
def test_a_single_active_consumer(client: Client, other: Client) -> None:
    client.declare("q", arguments={"x-single-active-consumer": True})
    qos(client, 1)
    client.consume("q", "first")
    other.consume("q", "second", arguments={"x-priority": 10})
    other.consume("q", "third")
    for body in (b"1", b"2", b"3"):
        client.publish("", "q", body)
    assert client.bodies() == [b"1"]
    other.nothing()
    client.send(1, m.BasicCancel("first", False))
    client.expect(m.BasicCancelOk)
    received = other.deliveries()
    assert [(each.method.consumer_tag, body_of(each)) for each in received] == [("second", b"2"), ("second", b"3")]
    other.send(1, m.BasicCancel("second", False))
    other.expect(m.BasicCancelOk)
    client.send(1, m.BasicReject(1, True))
    assert [(each.method.consumer_tag, body_of(each)) for each in other.deliveries()] == [("third", b"1")]


@rule(
    "rabbitmq.consumers.single-active",
    "There is no exclusive consumer, 403, beside a single active one; basic.get works.",
)
def test_a_single_active_consumer_excludes_others(client: Client) -> None:
    client.declare("q", arguments={"x-single-active-consumer": True})
    text = "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use"
    refused_basic(client, basic_consume("q", exclusive=True), "channel", 403, text)
    assert client.call(1, m.BasicGet(0, "q", False)) == m.BasicGetEmpty("")


# --- cancel -----------------------------------------------------------------------------------------------------------


@rule("basic.cancel.01", "Cancelling an unknown tag, or one whose queue is gone, succeeds.")
def test_cancelling_what_is_not_there_succeeds(client: Client, other: Client) -> None:
    client.declare("q")
    other.consume("q", "t")
    client.call(1, m.QueueDelete(0, "q", if_unused=False, if_empty=False, no_wait=False))
    other.expect(m.BasicCancel)
    assert other.call(1, m.BasicCancel("t", False)) == m.BasicCancelOk("t")
    assert other.call(1, m.BasicCancel("never", False)) == m.BasicCancelOk("never")


@rule("rabbitmq.basic.cancel", "Nothing is delivered after cancel-ok, and unacked messages stay with the channel.")
def test_cancel_keeps_what_is_unacked(client: Client) -> None:
    fill(client, "q", 3)
    qos(client, 1)
    client.consume("q", "t")
    assert client.bodies() == [b"0"]
    client.call(1, m.BasicCancel("t", False))
    client.publish("", "q", b"3")
    client.send(1, m.BasicAck(1, False))
    client.nothing()
    assert client.declare("q").message_count == 3


@rule("rabbitmq.basic.cancel", "With no_wait cancel is not answered; a client's cancel-ok is taken.")
def test_cancel_may_go_unanswered(client: Client) -> None:
    client.declare("q")
    client.consume("q", "t")
    client.send(1, m.BasicCancel("t", True), m.BasicCancelOk("t"))
    client.nothing()
    assert client.declare("q").consumer_count == 0


# --- publish ----------------------------------------------------------------------------------------------------------


def refused_publish(client: Client, scope: str, code: int, text: str) -> None:
    assert client.refusal() == Refusal(scope, code, text, m.BasicPublish)


@rule("basic.publish.exchange.must-exist", "Publishing to a missing exchange is 404; its content is skipped.")
@pytest.mark.parametrize("cut", [0, 20, 40])
def test_publishing_to_a_missing_exchange(client: Client, cut: int) -> None:
    data = publish_frames("missing", "k", b"body" * 10)
    client.connection.feed(data[:cut])
    client.feed(data[cut:])
    refused_publish(client, "channel", 404, "NOT_FOUND - no exchange 'missing' in vhost '/'")


@rule("basic.publish.exchange.default-exchange", "An empty exchange name means the default exchange.")
def test_an_empty_exchange_name_is_the_default_exchange(client: Client) -> None:
    client.declare("q")
    client.publish("", "q", b"m")
    got = client.get("q")
    assert got is not None
    assert (got.method.exchange, got.method.routing_key) == ("", "q")


@rule("basic.publish.exchange.02", "An internal exchange refuses publishes: 403.")
def test_an_internal_exchange_cannot_be_published_to(client: Client) -> None:
    client.declare_exchange("x", internal=True)
    client.publish("x", "k")
    text = "ACCESS_REFUSED - cannot publish to internal exchange 'x' in vhost '/'"
    refused_publish(client, "channel", 403, text)


@rule("basic.publish.mandatory.01", "An unroutable mandatory message comes back with 312 NO_ROUTE, others vanish.")
def test_an_unroutable_mandatory_message_comes_back(client: Client) -> None:
    client.publish("amq.direct", "nowhere", b"lost")
    client.nothing()
    client.publish(
        "amq.direct", "nowhere", b"found", mandatory=True, correlation_id="c", headers=encode_table({"a": 1})
    )
    (returned,) = client.take()
    assert returned.method == m.BasicReturn(312, "NO_ROUTE", "amq.direct", "nowhere")
    assert returned.content is not None
    assert returned.content.body == b"found"
    assert returned.content.properties.correlation_id == "c"


@rule("basic.publish.mandatory.01", "A mandatory message that is routed does not come back, consumed or not.")
def test_a_routed_mandatory_message_stays(client: Client) -> None:
    client.declare("q")
    client.publish("", "q", mandatory=True)
    client.nothing()


@rule(
    "basic.publish.immediate.01",
    "The immediate flag is refused: 540 for the connection.",
    deviation="as in RabbitMQ since 3.0.",
)
def test_immediate_is_refused(client: Client) -> None:
    client.publish("", "q", immediate=True)
    refused_publish(client, "connection", 540, "NOT_IMPLEMENTED - immediate=true")


@rule("rabbitmq.basic.publish", "A message larger than configured is refused at its header: 406.")
def test_a_large_message_is_refused(harness: Harness) -> None:
    harness = Harness(message_max_bytes=1000)
    client = harness.channel()
    client.declare("q")
    client.publish("", "q", bytes(1000))
    client.publish("", "q", bytes(1001))
    text = "PRECONDITION_FAILED - message size 1001 is larger than configured max size 1000"
    refused_publish(client, "channel", 406, text)
    assert harness.queue("q").ready_count == 1


EXPIRATIONS = {
    "": "no_integer",
    "soon": "no_integer",
    " 5": "no_integer",
    "5 ": '{leftover_string," "}',
    "-1": "{value_negative,-1}",
    "1.5": '{leftover_string,".5"}',
    "5s": '{leftover_string,"s"}',
    "315360000001": "{value_too_large,315360000001}",
}


@rule("rabbitmq.basic.publish", "expiration is a number of milliseconds of at most ten years: 406.")
@pytest.mark.parametrize("expiration", EXPIRATIONS)
def test_an_impossible_expiration_is_refused(client: Client, expiration: str) -> None:
    client.publish("", "q", expiration=expiration)
    text = f"PRECONDITION_FAILED - invalid expiration '{expiration}': {EXPIRATIONS[expiration]}"
    refused_publish(client, "channel", 406, text)


@rule("rabbitmq.basic.publish", "expirations from 0 to ten years are taken.")
@pytest.mark.parametrize("expiration", ["1", "60000", "315360000000"])
def test_a_possible_expiration_is_taken(client: Client, expiration: str) -> None:
    client.declare("q")
    client.publish("", "q", expiration=expiration)
    client.nothing()


@rule("rabbitmq.user-id", "user_id has to be the name of the login: 406.")
def test_user_id_is_the_login(client: Client) -> None:
    client.declare("q")
    client.publish("", "q", user_id=USER)
    assert client.declare("q").message_count == 1
    client.publish("", "q", user_id="a")
    text = "PRECONDITION_FAILED - user_id property set to 'a' but authenticated user was 'guest'"
    refused_publish(client, "channel", 406, text)


@rule("rabbitmq.user-id", "A user with the tag impersonator may set any user_id.")
def test_an_impersonator_may_set_any_user_id(harness: Harness) -> None:
    harness.add_user("imp", tags=("impersonator",))
    client = harness.channel("imp")
    client.declare("q")
    client.publish("", "q", user_id="anybody")
    got = client.get("q")
    assert got is not None and got.content is not None
    assert got.content.properties.user_id == "anybody"


@rule("basic.08", "Persistent and transient messages keep their order.")
def test_persistence_does_not_change_the_order(client: Client) -> None:
    client.declare("q", durable=True)
    for number in range(10):
        client.publish("", "q", b"%d" % number, delivery_mode=1 + number % 2)
    client.consume("q", no_ack=True)
    assert client.bodies() == [b"%d" % number for number in range(10)]


# --- deliver and get --------------------------------------------------------------------------------------------------


@rule("basic.09", "With no_ack a delivered message is gone.")
def test_no_ack_deliveries_are_gone(client: Client, other: Client) -> None:
    fill(client, "q", 3)
    other.consume("q", no_ack=True)
    assert len(other.deliveries()) == 3
    other.hang_up()
    assert client.declare("q").message_count == 0


@rule("basic.10", "Without no_ack a message stays until it is acked; what was not comes back.")
def test_what_was_not_acked_comes_back(client: Client, other: Client) -> None:
    fill(client, "q", 6)
    other.consume("q")
    assert len(other.deliveries()) == 6
    other.send(1, m.BasicAck(2, True), m.BasicAck(5, False))
    other.hang_up()
    client.consume("q")
    assert seen(client) == [(b"2", True), (b"3", True), (b"5", True)]


@rule("redelivered.implementation", "redelivered is set on what was delivered before, to whomever, by consume or get.")
def test_redelivered_is_set(client: Client, other: Client) -> None:
    fill(client, "q", 2)
    got = other.get("q")
    assert got is not None and not got.method.redelivered
    other.hang_up()
    again = client.get("q")
    assert again is not None and again.method.redelivered
    client.send(1, m.BasicReject(1, True))
    client.consume("q")
    assert seen(client) == [(b"0", True), (b"1", False)]


@rule("delivery-tag.non-zero", "Delivery tags count from 1 over all consumers and gets of a channel.")
def test_delivery_tags_count_from_1(client: Client) -> None:
    fill(client, "p", 2)
    fill(client, "q", 4)
    got = client.get("q")
    assert got is not None and got.method.delivery_tag == 1
    client.consume("p", no_ack=True)
    assert tags(client.deliveries()) == [2, 3]
    client.consume("q")
    assert tags(client.deliveries()) == [4, 5, 6]


@rule("delivery-tag.channel-local", "Tags of one channel mean nothing on another.")
def test_delivery_tags_are_local_to_their_channel(client: Client) -> None:
    fill(client, "q", 1)
    client.open(2)
    assert client.get("q") is not None
    client.send(2, m.BasicAck(1, False))
    close = client.expect(m.ChannelClose, 2)
    assert close.reply_text == "PRECONDITION_FAILED - unknown delivery tag 1"


@rule("rabbitmq.basic.get", "get-ok tells how many ready messages are left, get-empty has an empty cluster id.")
def test_get_counts_what_is_left(client: Client) -> None:
    fill(client, "q", 3)
    left = []
    for _ in range(3):
        got = client.get("q")
        assert got is not None
        left.append(got.method.message_count)
    assert left == [2, 1, 0]
    assert client.call(1, m.BasicGet(0, "q", False)) == m.BasicGetEmpty("")


@rule("rabbitmq.basic.get", "A missing queue cannot be got from: 404.")
def test_a_missing_queue_cannot_be_got_from(client: Client) -> None:
    text = "NOT_FOUND - no queue 'missing' in vhost '/'"
    refused_basic(client, m.BasicGet(0, "missing", False), "channel", 404, text)


@rule("rabbitmq.basic.deliver", "A delivery names exchange and routing key of the publish, over all detours.")
def test_a_delivery_names_the_publish(client: Client) -> None:
    client.declare("q")
    client.declare_exchange("x", "fanout")
    client.bind("q", "x")
    client.call(1, m.ExchangeBind(0, "x", "amq.topic", "#", False, b"\0\0\0\0"))
    client.consume("q", "t")
    client.publish("amq.topic", "a.b")
    (delivery,) = client.deliveries()
    assert delivery.method == m.BasicDeliver("t", 1, False, "amq.topic", "a.b")


# --- ack, nack, reject, recover ---------------------------------------------------------------------------------------


@rule(
    "basic.ack.multiple.exists", "A tag that is not outstanding is 406: unknown, acked before, or of a no-ack delivery."
)
@pytest.mark.parametrize("multiple", [False, True])
@pytest.mark.parametrize("case", ["unknown", "twice", "no-ack", "huge"])
def test_an_unknown_delivery_tag_is_refused(client: Client, case: str, multiple: bool) -> None:
    fill(client, "q", 3)
    client.get("q")
    client.get("q", no_ack=True)
    client.get("q")
    tag = {"unknown": 4, "twice": 1, "no-ack": 2, "huge": (1 << 64) - 1}[case]
    if case == "twice":
        client.send(1, m.BasicAck(1, False))
    client.nothing()
    text = f"PRECONDITION_FAILED - unknown delivery tag {tag}"
    refused_basic(client, m.BasicAck(tag, multiple), "channel", 406, text)


@rule("rabbitmq.basic.ack", "Tag 0 with multiple means all, also when there are none; without multiple it is unknown.")
def test_tag_0_means_all(client: Client) -> None:
    fill(client, "q", 3)
    client.send(1, m.BasicAck(0, True), m.BasicNack(0, multiple=True, requeue=True))
    client.nothing()
    for _ in range(3):
        client.get("q")
    client.send(1, m.BasicAck(0, True))
    client.nothing()
    text = "PRECONDITION_FAILED - unknown delivery tag 0"
    refused_basic(client, m.BasicAck(0, False), "channel", 406, text)
    assert client.declare("q").message_count == 0


@rule("rabbitmq.basic.ack", "multiple takes everything up to the tag, over all queues of the channel.")
def test_multiple_goes_over_all_queues(client: Client, harness: Harness) -> None:
    fill(client, "p", 2)
    fill(client, "q", 2)
    for name in ("p", "q", "p", "q"):
        client.get(name)
    client.send(1, m.BasicAck(3, True))
    assert (harness.queue("p").unacked_count, harness.queue("q").unacked_count) == (0, 1)


@rule("basic.reject.02", "What is rejected with requeue is delivered again, marked redelivered, in its old place.")
@rule("rabbitmq.basic.nack", "nack is reject for many: requeued messages have their original order.")
@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1), (2, 3, 1)])
def test_requeued_messages_have_their_old_places(client: Client, order: tuple[int, ...]) -> None:
    fill(client, "q", 5)
    for _ in range(3):
        client.get("q")
    client.send(1, *[m.BasicReject(tag, True) for tag in order])
    client.consume("q")
    assert seen(client) == [(b"0", True), (b"1", True), (b"2", True), (b"3", False), (b"4", False)]


@rule("rabbitmq.basic.nack", "nack with multiple puts a whole run back before any of it leaves again.")
def test_nack_multiple_keeps_the_order(client: Client, other: Client) -> None:
    fill(client, "q", 6)
    qos(client, 4)
    client.consume("q")
    assert len(client.deliveries()) == 4
    client.send(1, m.BasicNack(3, multiple=True, requeue=True))
    assert seen(client) == [(b"0", True), (b"1", True), (b"2", True)]
    other.consume("q")
    assert seen(other) == [(b"4", False), (b"5", False)]


@rule(
    "basic.reject.requeue.01",
    "What is rejected goes back for all consumers of the queue.",
    deviation="The one who rejected may get it again, as in RabbitMQ: there may be no other.",
)
def test_a_rejected_message_may_come_back(client: Client) -> None:
    fill(client, "q", 1)
    client.consume("q")
    assert seen(client) == [(b"0", False)]
    client.send(1, m.BasicReject(1, True))
    assert seen(client) == [(b"0", True)]


@rule("rabbitmq.basic.reject", "Without requeue a rejected message is gone.")
def test_reject_without_requeue_drops(client: Client, harness: Harness) -> None:
    fill(client, "q", 3)
    for _ in range(3):
        client.get("q")
    client.send(1, m.BasicReject(1, False), m.BasicNack(3, multiple=True, requeue=False))
    client.nothing()
    assert (harness.queue("q").ready_count, harness.queue("q").unacked_count) == (0, 0)


@rule("rabbitmq.basic.reject", "nack and reject of an unknown tag are 406 that name their method.")
@pytest.mark.parametrize(
    "call",
    [
        m.BasicReject(1, True),
        m.BasicNack(1, multiple=False, requeue=True),
        m.BasicNack(1, multiple=True, requeue=False),
    ],
)
def test_rejecting_an_unknown_tag_is_refused(client: Client, call: Any) -> None:
    refused_basic(client, call, "channel", 406, "PRECONDITION_FAILED - unknown delivery tag 1")


@rule("basic.recover.01", "recover requeues all that is unacked, redelivered and in order, then recover-ok.")
def test_recover_requeues_everything(client: Client) -> None:
    fill(client, "q", 3)
    for _ in range(3):
        client.get("q")
    client.send(1, m.BasicAck(2, False))
    assert client.call(1, m.BasicRecover(True)) == m.BasicRecoverOk()
    client.consume("q")
    assert seen(client) == [(b"0", True), (b"2", True)]


@rule("basic.recover-async.01", "recover-async does the same and is not answered.")
def test_recover_async_requeues_everything(client: Client) -> None:
    fill(client, "q", 1)
    client.consume("q")
    assert seen(client) == [(b"0", False)]
    client.send(1, m.BasicRecoverAsync(True))
    assert seen(client) == [(b"0", True)]


@rule("rabbitmq.basic.recover", "requeue=false is not implemented: 540 for the connection.")
@pytest.mark.parametrize("call", [m.BasicRecover(False), m.BasicRecoverAsync(False)])
def test_recover_without_requeue_is_refused(client: Client, call: Any) -> None:
    refused_basic(client, call, "connection", 540, "NOT_IMPLEMENTED - requeue=false")


# --- direct reply-to --------------------------------------------------------------------------------------------------

REPLY_TO = "amq.rabbitmq.reply-to"


def asked(client: Client, server: Client) -> str:
    """Send a request; return the reply_to that the server sees."""
    server.declare("service")
    client.publish("", "service", b"?", reply_to=REPLY_TO, correlation_id="7")
    got = server.get("service", no_ack=True)
    assert got is not None and got.content is not None
    address = got.content.properties.reply_to
    assert address is not None
    return address


@rule("rabbitmq.reply-to", "reply_to becomes an address that nobody can guess; what is sent there comes to the asker.")
def test_a_request_gets_its_reply(client: Client, other: Client) -> None:
    tag = client.consume(REPLY_TO, no_ack=True)
    address = asked(client, other)
    assert re.fullmatch(r"amq\.rabbitmq\.reply-to\.[A-Za-z0-9_-]{22}", address)
    other.publish("", address, b"!", correlation_id="7", mandatory=True)
    other.nothing()
    (reply,) = client.take()
    assert reply.method == m.BasicDeliver(tag, 1, False, "", address)
    assert body_of(reply) == b"!"


@rule("rabbitmq.reply-to", "Only no-ack consumers get replies, 406, and one per channel, 406.")
def test_there_is_one_reply_consumer_per_channel(client: Client) -> None:
    call = basic_consume(REPLY_TO)
    refused_basic(client, call, "channel", 406, "PRECONDITION_FAILED - reply consumer cannot acknowledge")
    client.consume(REPLY_TO, no_ack=True)
    call = basic_consume(REPLY_TO, no_ack=True)
    refused_basic(client, call, "channel", 406, "PRECONDITION_FAILED - reply consumer already set")


@rule("rabbitmq.reply-to", "Who asks has to consume replies on the same channel: 406.")
def test_a_request_needs_a_reply_consumer(client: Client) -> None:
    client.open(2)
    client.consume(REPLY_TO, no_ack=True, number=2)
    client.publish("", "service", reply_to=REPLY_TO)
    refused_publish(client, "channel", 406, "PRECONDITION_FAILED - fast reply consumer does not exist")


@rule("rabbitmq.reply-to", "Replies to who is gone vanish, and the address with them.")
@pytest.mark.parametrize("how", ["cancel", "channel", "connection"])
def test_replies_to_who_is_gone_vanish(client: Client, other: Client, harness: Harness, how: str) -> None:
    tag = client.consume(REPLY_TO, no_ack=True)
    address = asked(client, other)
    if how == "cancel":
        client.call(1, m.BasicCancel(tag, False))
    elif how == "channel":
        client.call(1, m.ChannelClose(200, "", 0, 0))
    else:
        client.hang_up()
    other.publish("", address, b"!")
    other.nothing()
    assert other.refused(1, m.QueueDeclare(0, address, True, False, False, False, False, b"\0\0\0\0")).code == 404
    assert harness.vhost.reply_queues == {}


@rule("rabbitmq.reply-to", "Any other reply_to is left alone.")
def test_another_reply_to_is_left_alone(client: Client) -> None:
    client.declare("q")
    client.publish("", "q", reply_to="answers")
    got = client.get("q")
    assert got is not None and got.content is not None
    assert got.content.properties.reply_to == "answers"


@rule("rabbitmq.basic.cancel", "Without consumer_cancel_notify a client is not told that its consumer is gone.")
def test_who_does_not_understand_cancel_is_not_told(harness: Harness, client: Client) -> None:
    plain = harness.client(capabilities=tuple(each for each in CAPABILITIES if each != "consumer_cancel_notify"))
    plain.open(1)
    client.declare("q")
    plain.consume("q", "t")
    client.call(1, m.QueueDelete(0, "q", if_unused=False, if_empty=False, no_wait=False))
    plain.nothing()
