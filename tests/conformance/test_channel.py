"""The channel class, and access.request."""

from __future__ import annotations

from typing import Any

import pytest
from engine_harness import Client, Harness, Refusal, basic_consume, publish_frames, queue_declare

from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.amqp.field_table import EMPTY_TABLE
from warren.channels.connection import CLOSED_MAX, CLOSED_S

from .rules import rule


@rule("rabbitmq.channel.open", "open is answered by open-ok with an empty channel id.")
@pytest.mark.parametrize("number", [1, 2, 2047, 2048, 65535])
def test_any_channel_number_may_be_opened(client: Client, number: int) -> None:
    client.send(1, m.ChannelClose(200, "", 0, 0))
    client.expect(m.ChannelCloseOk)
    assert client.call(number, m.ChannelOpen("")) == m.ChannelOpenOk(b"")


@rule("channel.open.state", "Opening an open channel is refused with 504 for the connection.")
def test_a_channel_is_opened_once(client: Client) -> None:
    refusal = client.refused(1, m.ChannelOpen(""))
    assert refusal == Refusal("connection", 504, "CHANNEL_ERROR - second 'channel.open' seen", m.ChannelOpen)


@rule("rabbitmq.channel.open", "Any other method on a channel that is not open is refused with 504.")
@pytest.mark.parametrize(
    "call",
    [
        m.TxSelect(),
        m.BasicPublish(0, "", "", mandatory=False, immediate=False),
        m.BasicAck(1, False),
        m.ChannelClose(200, "", 0, 0),
    ],
)
def test_a_channel_has_to_be_opened_first(client: Client, call: Any) -> None:
    refusal = client.refused(2, call)
    assert refusal == Refusal("connection", 504, "CHANNEL_ERROR - expected 'channel.open'", type(call))


@rule(
    "rabbitmq.channel.close.under-way", "Frames for a channel that has just been closed are ignored; close is answered."
)
@pytest.mark.parametrize("closer", ["client", "server"])
def test_frames_that_were_under_way_when_a_channel_closed(client: Client, harness: Harness, closer: str) -> None:
    client.declare("q")
    if closer == "client":
        client.send(1, m.ChannelClose(200, "", 0, 0))
        client.expect(m.ChannelCloseOk)
    else:
        client.send(1, m.BasicAck(7, False))
        assert client.refusal().code == 406  # which is answered
    client.send(
        1, m.BasicAck(1, False), m.BasicNack(2, multiple=True, requeue=True), m.BasicGet(0, "q", True), m.TxSelect()
    )
    client.feed(publish_frames("", "q", b"small") + publish_frames("", "q", b"large" * 40_000))
    client.nothing()
    assert client.call(1, m.ChannelClose(200, "", 0, 0)) == m.ChannelCloseOk()
    assert client.call(1, m.ChannelOpen("")) == m.ChannelOpenOk(b"")
    assert client.get("q") is None


@rule(
    "warren.channel.close.under-way",
    "They are refused later on, and for a channel that was opened and closed before many others.",
)
@pytest.mark.parametrize("way", ["later", "many"])
def test_frames_for_a_channel_that_was_closed_long_ago(client: Client, harness: Harness, way: str) -> None:
    for number in range(1, 2 if way == "later" else CLOSED_MAX + 2):
        if number > 1:
            client.open(number)
        client.send(number, m.ChannelClose(200, "", 0, 0))
        client.expect(m.ChannelCloseOk)
    if way == "later":
        harness.pass_time(CLOSED_S)
    refusal = client.refused(1, m.BasicAck(1, False))
    assert refusal == Refusal("connection", 504, "CHANNEL_ERROR - expected 'channel.open'", m.BasicAck)


@rule("rabbitmq.channel.close.twice", "A second channel.close is answered, too.")
def test_a_second_close_is_answered(client: Client, harness: Harness) -> None:
    client.send(1, m.ChannelClose(200, "", 0, 0), m.ChannelClose(200, "", 0, 0))
    assert [each.method for each in client.take()] == [m.ChannelCloseOk()] * 2


@rule("rabbitmq.channel.open", "channel.open on channel 0 is refused with 504.")
def test_channel_0_cannot_be_opened(client: Client) -> None:
    refusal = client.refused(0, m.ChannelOpen(""))
    assert (refusal.scope, refusal.code, refusal.method) == ("connection", 504, m.ChannelOpen)


@rule("rabbitmq.channel.open", "Methods of the connection class belong on channel 0.")
def test_connection_methods_belong_on_channel_0(client: Client) -> None:
    refusal = client.refused(1, m.ConnectionOpen("/", "", False))
    assert (refusal.scope, refusal.code) == ("connection", 503)


@rule("rabbitmq.channel.open", "More channels than negotiated are refused with 530; it is their number that counts.")
def test_the_number_of_channels_is_limited(harness: Harness) -> None:
    client = harness.client(channel_max=3)
    for number in (7, 1, 60000):
        client.open(number)
    client.send(7, m.ChannelClose(200, "", 0, 0))
    client.expect(m.ChannelCloseOk)
    client.open(8)
    refusal = client.refused(2, m.ChannelOpen(""))
    text = "NOT_ALLOWED - number of channels opened (3) has reached the negotiated channel_max (3)"
    assert refusal == Refusal("connection", 530, text, m.ChannelOpen)


@rule("channel.flow.initial-state", "A new channel is active, and flow(active=true) is answered by flow-ok(true).")
@rule("channel.flow.bidirectional", "flow is answered at once, also while deliveries go out.")
def test_flow_true_is_answered(client: Client) -> None:
    client.declare("q")
    client.consume("q", no_ack=True)
    client.feed(publish_frames("", "q", b"m") * 5 + method_frame(1, m.ChannelFlow(True)))
    received = client.take()
    assert received[-1].method == m.ChannelFlowOk(True)
    assert len(received) == 6


@rule("rabbitmq.channel.flow", "flow(active=false) is not implemented: 540 for the connection.")
def test_flow_false_is_refused(client: Client) -> None:
    refusal = client.refused(1, m.ChannelFlow(False))
    assert refusal == Refusal("connection", 540, "NOT_IMPLEMENTED - active=false", m.ChannelFlow)


@rule("rabbitmq.channel.close", "close brings unacked messages back, in order and redelivered, before close-ok.")
def test_close_requeues_what_is_unacked(client: Client, other: Client) -> None:
    client.declare("q")
    for body in (b"1", b"2", b"3", b"4"):
        client.publish("", "q", body)
    client.send(1, m.BasicQos(0, 3, False))
    client.expect(m.BasicQosOk)
    client.consume("q")
    assert client.bodies() == [b"1", b"2", b"3"]
    client.send(1, m.BasicAck(2, False), m.ChannelClose(200, "", 0, 0))
    last = client.take()[-1]
    assert last.method == m.ChannelCloseOk()
    other.consume("q")
    seen = [(each.content.body, each.method.redelivered) for each in other.deliveries() if each.content]
    assert seen == [(b"1", True), (b"3", True), (b"4", False)]


@rule("rabbitmq.channel.close", "close removes the consumers, and auto-delete queues that lost their last one.")
def test_close_removes_consumers(client: Client, harness: Harness) -> None:
    client.declare("auto", auto_delete=True)
    client.declare("q")
    client.consume("auto")
    client.consume("q")
    client.send(1, m.ChannelClose(200, "", 0, 0))
    client.expect(m.ChannelCloseOk)
    assert list(harness.vhost.queues) == ["q"]
    assert not harness.queue("q").consumers


@rule("rabbitmq.channel.close", "The number of a closed channel may be used again at once, and starts afresh.")
def test_a_channel_number_is_reusable_at_once(client: Client) -> None:
    client.declare("q")
    client.publish("", "q", b"1")
    client.get("q")
    client.send(1, m.ConfirmSelect(False), m.ChannelClose(200, "", 0, 0), m.ChannelOpen(""))
    assert [type(each.method) for each in client.take()] == [m.ConfirmSelectOk, m.ChannelCloseOk, m.ChannelOpenOk]
    got = client.get("q")
    assert got is not None and got.method.delivery_tag == 1
    assert client.call(1, m.TxSelect()) == m.TxSelectOk()
    refusal = client.refused(1, m.QueuePurge(0, "", False))
    assert refusal.text == "NOT_FOUND - no previously declared queue"


@rule("channel.close.stability", "After our close the channel ignores all methods and contents until close-ok.")
def test_after_close_a_channel_ignores_everything(client: Client, harness: Harness) -> None:
    client.declare("q")
    client.send(1, m.QueuePurge(0, "missing", False))
    client.expect(m.ChannelClose, 1)
    client.publish("", "q", b"ignored")
    client.send(
        1,
        m.QueueDelete(0, "q", if_unused=False, if_empty=False, no_wait=False),
        m.ChannelOpen(""),
        m.BasicQos(1, 1, True),
    )
    client.nothing()
    assert harness.queue("q").ready_count == 0
    client.send(1, m.ChannelCloseOk())
    client.open(1)


@rule("channel.close.stability", "A close that crosses ours is answered by close-ok; the channel waits for its own.")
def test_crossing_closes_are_both_answered(client: Client) -> None:
    client.send(1, m.QueuePurge(0, "missing", False))
    client.expect(m.ChannelClose, 1)
    assert client.call(1, m.ChannelClose(200, "", 0, 0)) == m.ChannelCloseOk()
    client.send(1, m.ChannelCloseOk())
    client.open(1)


@rule("channel.close.stability", "Replies keep their order when a close crosses one that waits for a commit.")
def test_close_ok_does_not_overtake_replies_that_wait_for_a_commit(client: Client, harness: Harness) -> None:
    harness.hold_commits = True
    client.send(
        1, queue_declare("durable", durable=True), m.QueuePurge(0, "missing", False), m.ChannelClose(200, "", 0, 0)
    )
    client.nothing()
    harness.hold_commits = False
    harness.settle()
    kinds = [type(each.method) for each in client.take()]
    assert kinds == [m.QueueDeclareOk, m.ChannelClose, m.ChannelCloseOk]


@rule("4.4", "What was answered to one client is there for every other one.")
def test_what_was_answered_is_visible_to_others(client: Client, other: Client) -> None:
    client.declare("q")
    client.bind("q", "amq.fanout")
    other.publish("amq.fanout", "", b"m")
    assert client.declare("q").message_count == 1
    assert other.call(1, m.QueuePurge(0, "q", False)) == m.QueuePurgeOk(1)
    assert client.get("q") is None


@rule(
    "rabbitmq.replies", "Replies come in the order of their requests, when some wait for commits and others need not."
)
def test_replies_keep_their_order_while_commits_wait(client: Client, harness: Harness) -> None:
    client.declare("q")
    client.publish("", "q", b"m")
    harness.hold_commits = True
    client.send(1, queue_declare("durable", durable=True), m.BasicGet(0, "q", True), m.BasicQos(0, 1, False))
    client.send(1, basic_consume("q", "t"))
    client.send(2, m.ChannelOpen(""))
    client.nothing()
    harness.hold_commits = False
    harness.settle()
    kinds = [type(each.method) for each in client.take()]
    assert kinds == [m.QueueDeclareOk, m.BasicGetOk, m.BasicQosOk, m.BasicConsumeOk, m.ChannelOpenOk]


@rule("channel.close-ok.reporting", "A channel exception is logged with code and text.")
def test_a_channel_exception_is_logged(client: Client, harness: Harness) -> None:
    client.refused(1, m.QueuePurge(0, "missing", False))
    notice = next(notice for notice in harness.notices if notice.event == "channel.error")
    assert notice.fields["reply_code"] == 404
    assert notice.fields["channel"] == 1


@rule("rabbitmq.channel.close", "A close-ok that nobody waits for is refused with 504; behind a close it is ignored.")
def test_a_stray_close_ok(client: Client) -> None:
    client.send(9, m.ChannelCloseOk())
    client.nothing()
    refusal = client.refused(1, m.ChannelCloseOk())
    assert (refusal.scope, refusal.code, refusal.method) == ("connection", 504, m.ChannelCloseOk)


@rule("rabbitmq.access.request", "access.request of AMQP 0-9 is granted ticket 1, and tickets mean nothing.")
def test_access_request_is_granted(client: Client) -> None:
    granted = client.call(1, m.AccessRequest("/data", True, True, True, True, True))
    assert granted == m.AccessRequestOk(1)
    client.send(1, m.QueueDeclare(777, "q", False, False, False, False, False, EMPTY_TABLE))
    client.expect(m.QueueDeclareOk)


SERVER_METHODS = [
    m.ChannelOpenOk(b""),
    m.ChannelFlowOk(True),
    m.QueueDeclareOk("q", 0, 0),
    m.BasicDeliver("t", 1, False, "", ""),
    m.BasicReturn(312, "", "", ""),
    m.BasicGetEmpty(""),
    m.ConfirmSelectOk(),
    m.TxCommitOk(),
]


@rule("4.8.1", "Methods that only servers send are refused with 503.")
@pytest.mark.parametrize("call", SERVER_METHODS)
def test_a_client_does_not_send_what_servers_send(client: Client, call: Any) -> None:
    refusal = client.refused(1, call)
    assert refusal == Refusal("connection", 503, "COMMAND_INVALID - unimplemented method", type(call))
