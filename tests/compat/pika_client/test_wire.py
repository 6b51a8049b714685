"""Details that only a misbehaving or a very careful peer sees: frames, negotiation, and ids in every close."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from pika import BasicProperties, amqp_object, frame, spec
from pika.adapters.blocking_connection import BlockingChannel
from pika.compat import as_bytes

from .. import cluster
from ..broker import Broker
from ..conftest import Names
from .dialogue import drain, wait_for_ready
from .wire import PROTOCOL_HEADER, Ended, WireClient

HEARTBEAT = b"\x08\x00\x00\x00\x00\x00\x00\xce"
Dialogue = Callable[[WireClient], None]
KNOWS_REFUSAL = {"authentication_failure_close": True}


@pytest.fixture
def wire(broker: Broker) -> Iterator[WireClient]:
    """A socket to the broker, nothing sent yet."""
    with WireClient(broker) as client:
        yield client


@pytest.fixture
def opened(wire: WireClient) -> WireClient:
    """An open connection with channel 1 open."""
    wire.handshake()
    wire.open_channel(1)
    return wire


# protocol header


@pytest.mark.parametrize("header", [b"AMQP\x00\x00\x09\x02", b"AMQP\x00\x00\x0a\x00"], ids=["revision 2", "minor 10"])
def test_a_near_miss_of_the_protocol_header_is_answered_with_the_right_one(wire: WireClient, header: bytes) -> None:
    wire.send_bytes(header)
    assert wire.read_exactly(8) == PROTOCOL_HEADER
    wire.expect_end()


@pytest.mark.parametrize("header", [b"GET / HT", b"\x16\x03\x01\x02\x00\x01\x00\x01", b"AMQP\x09\x09\x09\x09"])
def test_any_other_greeting_is_answered_with_a_protocol_header(wire: WireClient, header: bytes) -> None:
    wire.send_bytes(header)
    assert wire.read_exactly(4) == b"AMQP"


def test_the_header_of_the_first_0_9_1_draft_is_understood(wire: WireClient) -> None:
    wire.send_bytes(b"AMQP\x01\x01\x00\x09")
    start = wire.expect(spec.Connection.Start, 0)
    assert (start.version_major, start.version_minor) == (0, 9)


def test_start_offers_plain_and_amqplain_in_english(wire: WireClient) -> None:
    start = wire.start()
    assert (start.version_major, start.version_minor) == (0, 9)
    assert {b"PLAIN", b"AMQPLAIN"} <= set(as_bytes(start.mechanisms).split())
    assert b"en_US" in as_bytes(start.locales).split()


# login


def test_a_refused_login_with_the_capability_is_told(wire: WireClient) -> None:
    wire.start()
    wire.start_ok(capabilities=KNOWS_REFUSAL, response=b"\0guest\0wrong")
    text = "Login was refused using authentication mechanism PLAIN. For details see the broker logfile."
    assert wire.expect_connection_close() == (403, f"ACCESS_REFUSED - {text}", (0, 0))


def _log_in(wire: WireClient) -> None:
    wire.start()
    wire.start_ok()


def _refused_login(wire: WireClient) -> None:
    wire.start()
    wire.start_ok(capabilities={}, response=b"\0guest\0wrong")


def _unknown_mechanism(wire: WireClient) -> None:
    wire.start()
    wire.start_ok(capabilities=KNOWS_REFUSAL, mechanism="HANDSHAKE")


def _method_out_of_turn(wire: WireClient) -> None:
    wire.start()
    wire.send(0, spec.Connection.Open("/"))


def _small_frames(wire: WireClient) -> None:
    _log_in(wire)
    wire.tune(frame_max=4095)


def _endless_frames(wire: WireClient) -> None:
    _log_in(wire)
    wire.tune(frame_max=0)


def _large_frames(wire: WireClient) -> None:
    _log_in(wire)
    wire.tune(frame_max=131073)


def _endless_channels(wire: WireClient) -> None:
    _log_in(wire)
    wire.tune(channel_max=0)


def _many_channels(wire: WireClient) -> None:
    _log_in(wire)
    wire.tune(channel_max=2048)


def _silent_peer(wire: WireClient) -> None:
    wire.handshake(heartbeat=1)


ENDED_UNSAID: list[Dialogue] = [_refused_login, _unknown_mechanism, _method_out_of_turn, _silent_peer]
BAD_TUNE_OK: dict[Dialogue, str] = {
    _small_frames: "negotiated frame_max = 4095 is lower than the minimum allowed value (4096)",
    _large_frames: "negotiated frame_max = 131073 is higher than the maximum allowed value (131072)",
    _endless_frames: "negotiated frame_max = 0 (no limit) is higher than the maximum allowed value (131072)",
    _many_channels: "negotiated channel_max = 2048 is higher than the maximum allowed value (2047)",
    _endless_channels: "negotiated channel_max = 0 (no limit) is higher than the maximum allowed value (2047)",
}


@pytest.fixture(scope="module")
def doomed(broker: Broker) -> Iterator[dict[Dialogue, WireClient]]:
    """Sockets on which a broker hangs up, slowly on purpose (3 s): all at once, so that the waits overlap."""
    with ExitStack() as stack:
        sockets: dict[Dialogue, WireClient] = {
            dialogue: stack.enter_context(WireClient(broker)) for dialogue in (*ENDED_UNSAID, *BAD_TUNE_OK)
        }
        for dialogue, wire in sockets.items():
            dialogue(wire)
        yield sockets


@pytest.mark.parametrize("dialogue", ENDED_UNSAID, ids=lambda dialogue: dialogue.__name__.strip("_"))
def test_some_refusals_end_the_connection_without_a_word(
    doomed: dict[Dialogue, WireClient], dialogue: Dialogue
) -> None:
    if dialogue is _silent_peer and cluster.is_asked_for():
        # A node that passes clients on does not know why the leader hangs up on one: it is told to connect again.
        reply_code, text, _ = doomed[dialogue].expect_connection_close()
        assert (reply_code, text.endswith("connect again")) == (320, True)
        return
    doomed[dialogue].expect_end()


@pytest.mark.parametrize("dialogue", BAD_TUNE_OK, ids=lambda dialogue: dialogue.__name__.strip("_"))
def test_a_tune_ok_outside_the_offer_is_refused(doomed: dict[Dialogue, WireClient], dialogue: Dialogue) -> None:
    doomed[dialogue].expect_refusal(530, f"NOT_ALLOWED - {BAD_TUNE_OK[dialogue]}", (10, 31))


# tune and open


def test_tune_offers_the_limits_of_rabbitmq(wire: WireClient) -> None:
    wire.start()
    wire.start_ok()
    offered = wire.tune()
    assert (offered.channel_max, offered.frame_max, offered.heartbeat) == (2047, 131072, 60)
    wire.open_vhost()


def test_a_missing_vhost_is_refused_at_open(wire: WireClient) -> None:
    wire.start()
    wire.start_ok()
    wire.tune()
    wire.send(0, spec.Connection.Open("nowhere"))
    assert wire.expect_connection_close() == (530, "NOT_ALLOWED - vhost nowhere not found", (10, 40))


def test_more_channels_than_negotiated_are_refused(wire: WireClient) -> None:
    wire.handshake(channel_max=3)
    for number in (1, 2, 3):
        wire.open_channel(number)
    wire.send(4, spec.Channel.Open())
    text = "number of channels opened (3) has reached the negotiated channel_max (3)"
    assert wire.expect_connection_close()[:2] == (530, f"NOT_ALLOWED - {text}")


def test_a_second_open_is_a_method_in_the_wrong_state(opened: WireClient) -> None:
    opened.send(0, spec.Connection.Open("/"))
    code, text, failing = opened.expect_connection_close()
    assert (code, failing) == (504, (10, 40))
    assert text == "CHANNEL_ERROR - unexpected method in connection state running"


# the stream of octets


def test_frames_may_arrive_octet_by_octet(opened: WireClient, names: Names) -> None:
    queue = names.queue()
    opened.declare_exclusive(queue)
    octets = b"".join(
        part.marshal()
        for part in (
            frame.Method(1, spec.Basic.Publish(routing_key=queue)),
            frame.Header(1, 5, BasicProperties(content_type="text/plain")),
            frame.Body(1, b"he"),
            frame.Body(1, b"llo"),
            frame.Method(1, spec.Basic.Get(queue=queue, no_ack=True)),
        )
    )
    for octet in octets:
        opened.send_bytes(bytes([octet]))
    opened.expect(spec.Basic.GetOk, 1)
    header = opened.next_frame()
    assert isinstance(header, frame.Header)
    assert (header.body_size, header.properties.content_type) == (5, "text/plain")
    body = b""
    while len(body) < 5:
        part = opened.next_frame()
        assert isinstance(part, frame.Body)
        body += part.fragment
    assert body == b"hello"


def test_many_frames_may_arrive_in_one_piece(opened: WireClient, names: Names) -> None:
    queue = names.queue()
    opened.declare_exclusive(queue)
    publish = frame.Method(1, spec.Basic.Publish(routing_key=queue)).marshal()
    content = frame.Header(1, 1, BasicProperties()).marshal() + frame.Body(1, b"x").marshal()
    purge = frame.Method(1, spec.Queue.Purge(queue=queue)).marshal()
    opened.send_bytes((publish + content) * 1000 + HEARTBEAT + purge)
    assert opened.expect(spec.Queue.PurgeOk, 1).message_count == 1000


def test_a_body_comes_in_as_few_frames_as_the_receiver_accepts(wire: WireClient, names: Names) -> None:
    wire.handshake(frame_max=4096)
    wire.open_channel(1)
    queue = names.queue()
    wire.declare_exclusive(queue)
    size = 4088 * 2 + 10
    wire.send(1, spec.Basic.Publish(routing_key=queue))
    wire.send_header(1, size)
    for fragment in (b"a" * 1000, b"b" * 4088, b"c" * (size - 5088)):
        wire.send_body(1, fragment)
    wire.send(1, spec.Basic.Get(queue=queue, no_ack=True))
    wire.expect(spec.Basic.GetOk, 1)
    header = wire.next_frame()
    assert isinstance(header, frame.Header)
    assert header.body_size == size
    fragments: list[bytes] = []
    while len(b"".join(fragments)) < size:
        part = wire.next_frame()
        assert isinstance(part, frame.Body)
        assert 0 < len(part.fragment) <= 4088
        fragments.append(part.fragment)
    assert b"".join(fragments) == b"a" * 1000 + b"b" * 4088 + b"c" * (size - 5088)


def test_an_empty_body_has_no_body_frame(opened: WireClient, names: Names) -> None:
    queue = names.queue()
    opened.declare_exclusive(queue)
    opened.send(1, spec.Basic.Publish(routing_key=queue))
    opened.send_header(1, 0)
    opened.send(1, spec.Basic.Get(queue=queue, no_ack=True))
    opened.expect(spec.Basic.GetOk, 1)
    header = opened.next_frame()
    assert isinstance(header, frame.Header)
    assert header.body_size == 0
    opened.send(1, spec.Basic.Get(queue=queue, no_ack=True))
    assert opened.expect(spec.Basic.GetEmpty, 1).cluster_id == ""


def test_contents_of_different_channels_may_interleave(opened: WireClient, names: Names) -> None:
    opened.open_channel(2)
    first, second = names.queue(), names.queue()
    opened.declare_exclusive(first, 1)
    opened.declare_exclusive(second, 2)
    for number, queue in ((1, first), (2, second)):
        opened.send(number, spec.Basic.Publish(routing_key=queue))
    for number in (2, 1):
        opened.send_header(number, 4)
    for fragment in (b"ab", b"cd"):
        for number in (1, 2):
            opened.send_body(number, fragment)
    for number, queue in ((1, first), (2, second)):
        opened.send(number, spec.Queue.Purge(queue=queue))
        assert opened.expect(spec.Queue.PurgeOk, number).message_count == 1


# frame errors: all of the connection


def test_a_wrong_end_octet_is_a_frame_error(opened: WireClient) -> None:
    good = frame.Method(1, spec.Queue.Purge(queue="q")).marshal()
    opened.send_bytes(good[:-1] + b"\xcd")
    code, text, _ = opened.expect_connection_close()
    assert code == 501
    assert text.startswith("FRAME_ERROR - type 1, ")
    assert "{invalid_frame_end_marker,205}" in text


def test_a_frame_larger_than_negotiated_is_a_frame_error(wire: WireClient) -> None:
    wire.handshake(frame_max=4096)
    wire.open_channel(1)
    wire.send_bytes(struct.pack(">BHI", 3, 1, 5000) + b"x" * 5000 + b"\xce")
    code, text, _ = wire.expect_connection_close()
    assert code == 501
    assert text.startswith("FRAME_ERROR - type 3, ")
    assert "{frame_too_large,5000,4088}" in text


def test_an_unknown_frame_type_is_a_frame_error(opened: WireClient) -> None:
    opened.send_bytes(struct.pack(">BHI", 9, 1, 3) + b"abc\xce")
    code, text, _ = opened.expect_connection_close()
    assert code == 501
    assert text.endswith("unknown_frame")


def test_a_heartbeat_on_a_channel_is_an_unexpected_frame(opened: WireClient) -> None:
    opened.send_bytes(HEARTBEAT[:2] + b"\x01" + HEARTBEAT[3:])
    assert opened.expect_connection_close()[0] == 505


def test_content_on_channel_zero_is_an_unexpected_frame(opened: WireClient) -> None:
    opened.send_body(0, b"x")
    assert opened.expect_connection_close()[0] == 505


@pytest.mark.parametrize(
    ("octets", "text", "failing"),
    [
        (
            frame.Body(1, b"x").marshal(),
            "expected method frame, got non method frame instead",
            (0, 0),
        ),
        (
            frame.Header(1, 1, BasicProperties()).marshal(),
            "expected method frame, got non method frame instead",
            (0, 0),
        ),
        (
            frame.Method(1, spec.Basic.Publish(routing_key="q")).marshal()
            + frame.Method(1, spec.Queue.Purge(queue="q")).marshal(),
            "expected content header for class 60, got non content header frame instead",
            (60, 40),
        ),
        (
            frame.Method(1, spec.Basic.Publish(routing_key="q")).marshal() + frame.Body(1, b"x").marshal(),
            "expected content header for class 60, got non content header frame instead",
            (60, 40),
        ),
        (
            frame.Method(1, spec.Basic.Publish(routing_key="q")).marshal()
            + frame.Header(1, 2, BasicProperties()).marshal()
            + frame.Method(1, spec.Queue.Purge(queue="q")).marshal(),
            "expected content body, got non content body frame instead",
            (60, 40),
        ),
        (
            frame.Method(1, spec.Basic.Publish(routing_key="q")).marshal()
            + b"\x02\x00\x01\x00\x00\x00\x0e\x00\x32\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\xce",
            "expected content header for class 60, got one for class 50 instead",
            (60, 40),
        ),
    ],
    ids=["body first", "header first", "no header", "body for header", "no body", "header of another class"],
)
def test_content_out_of_sequence_is_an_unexpected_frame(
    opened: WireClient, octets: bytes, text: str, failing: tuple[int, int]
) -> None:
    opened.send_bytes(octets)
    assert opened.expect_connection_close() == (505, f"UNEXPECTED_FRAME - {text}", failing)


def test_more_body_than_announced_is_a_frame_error(opened: WireClient, broker: Broker) -> None:
    if broker.older_than(3, 13):
        pytest.skip("RabbitMQ before 3.13 does not hold a body to the size its header announced")
    opened.send(1, spec.Basic.Publish(routing_key="q"))
    opened.send_header(1, 3)
    opened.send_body(1, b"four")
    text = "FRAME_ERROR - content body frame exceeds remaining content size"
    assert opened.expect_connection_close()[:2] == (501, text)


def test_an_announced_size_beyond_the_hard_limit_is_refused_before_the_body(opened: WireClient, broker: Broker) -> None:
    if broker.older_than(3, 13):
        pytest.skip("RabbitMQ before 3.13 looks at the size of a message only once all of it is there")
    opened.send(1, spec.Basic.Publish(routing_key="q"))
    opened.send_header(1, 536_870_913)
    text = "FRAME_ERROR - content body size 536870913 exceeds maximum allowed size 536870912"
    assert opened.expect_connection_close()[:2] == (501, text)


def test_a_method_nobody_knows_ends_the_connection(opened: WireClient) -> None:
    opened.send_bytes(struct.pack(">BHIHH", 1, 1, 4, 60, 999) + b"\xce")
    try:
        got = opened.next_frame()
    except Ended:
        return
    assert isinstance(got, frame.Method)
    assert isinstance(got.method, spec.Connection.Close)
    assert got.method.reply_code in (501, 503, 540, 541)


# class and method ids of refusals


@pytest.mark.parametrize(
    ("method", "code", "failing"),
    [
        (spec.Queue.Declare(queue="compat-none", passive=True), 404, (50, 10)),
        (spec.Queue.Bind(queue="compat-none", exchange="amq.direct", routing_key="k"), 404, (50, 20)),
        (spec.Queue.Unbind(queue="", exchange="amq.direct", routing_key="k"), 404, (50, 50)),
        (spec.Queue.Purge(queue="compat-none"), 404, (50, 30)),
        (spec.Queue.Delete(queue=""), 404, (50, 40)),
        (spec.Exchange.Declare(exchange="compat-none", passive=True), 404, (40, 10)),
        (spec.Exchange.Delete(exchange="amq.direct"), 403, (40, 20)),
        (spec.Exchange.Bind(destination="compat-none", source="amq.direct"), 404, (40, 30)),
        (spec.Exchange.Unbind(destination="", source="amq.direct"), 403, (40, 40)),
        (spec.Basic.Consume(queue="compat-none"), 404, (60, 20)),
        (spec.Basic.Get(queue="compat-none"), 404, (60, 70)),
        (spec.Basic.Ack(delivery_tag=5), 406, (60, 80)),
        (spec.Basic.Reject(delivery_tag=5), 406, (60, 90)),
        (spec.Basic.Nack(delivery_tag=5), 406, (60, 120)),
        (spec.Tx.Commit(), 406, (90, 20)),
        (spec.Tx.Rollback(), 406, (90, 30)),
    ],
    ids=lambda value: value.NAME if isinstance(value, amqp_object.Method) else None,
)
def test_a_channel_close_names_the_method_that_failed(
    opened: WireClient, method: amqp_object.Method, code: int, failing: tuple[int, int]
) -> None:
    opened.send(1, method)
    got_code, _, got_failing = opened.expect_channel_close(1)
    assert (got_code, got_failing) == (code, failing)
    opened.open_channel(1)


def test_a_channel_close_for_a_publish_names_basic_publish(opened: WireClient) -> None:
    opened.send(1, spec.Basic.Publish(exchange="compat-none", routing_key="k"))
    opened.send_header(1, 2)
    opened.send_body(1, b"hi")
    code, _, failing = opened.expect_channel_close(1)
    assert (code, failing) == (404, (60, 40))


@pytest.mark.parametrize(
    ("method", "code", "text", "failing"),
    [
        (spec.Channel.Open(), 504, "CHANNEL_ERROR - second 'channel.open' seen", (20, 10)),
        (spec.Channel.Flow(active=False), 540, "NOT_IMPLEMENTED - active=false", (20, 20)),
        (spec.Basic.Qos(prefetch_size=1), 540, "NOT_IMPLEMENTED - prefetch_size!=0 (1)", (60, 10)),
        (spec.Basic.Recover(requeue=False), 540, "NOT_IMPLEMENTED - requeue=false", (60, 110)),
        (spec.Basic.RecoverAsync(requeue=False), 540, "NOT_IMPLEMENTED - requeue=false", (60, 100)),
        (spec.Basic.Publish(routing_key="q", immediate=True), 540, "NOT_IMPLEMENTED - immediate=true", (60, 40)),
    ],
    ids=lambda value: value.NAME if isinstance(value, amqp_object.Method) else None,
)
def test_a_connection_close_names_the_method_that_failed(
    opened: WireClient, method: amqp_object.Method, code: int, text: str, failing: tuple[int, int]
) -> None:
    opened.send(1, method)
    if isinstance(method, spec.Basic.Publish):
        opened.send_header(1, 0)
    assert opened.expect_connection_close() == (code, text, failing)


def test_a_method_on_a_channel_never_opened_is_a_channel_error(opened: WireClient) -> None:
    opened.send(2, spec.Queue.Purge(queue="q"))
    code, text, _ = opened.expect_connection_close()
    assert (code, text) == (504, "CHANNEL_ERROR - expected 'channel.open'")


# closing


def test_what_follows_connection_close_is_ignored(opened: WireClient, names: Names) -> None:
    opened.send(0, spec.Connection.Close(200, "bye", 0, 0))
    opened.send(1, spec.Queue.Declare(queue=names.queue()))
    opened.expect(spec.Connection.CloseOk, 0)


def test_channel_close_is_answered_and_the_number_reusable_at_once(opened: WireClient) -> None:
    for _ in range(5):
        opened.send(1, spec.Channel.Close(200, "done", 0, 0))
        opened.expect(spec.Channel.CloseOk, 1)
        opened.open_channel(1)


def test_both_sides_closing_a_channel_at_once_is_no_error(opened: WireClient, names: Names) -> None:
    opened.send(1, spec.Queue.Declare(queue=names.unused(), passive=True))
    opened.send(1, spec.Queue.Declare(queue=names.unused(), passive=True))
    opened.send(1, spec.Channel.Close(200, "done", 0, 0))
    close = opened.expect(spec.Channel.Close, 1)
    assert close.reply_code == 404
    opened.expect(spec.Channel.CloseOk, 1)
    opened.send(1, spec.Channel.CloseOk())
    opened.open_channel(1)


def test_a_bare_connection_and_goodbye_does_no_harm(broker: Broker) -> None:
    for greeting in (b"", b"AMQ", PROTOCOL_HEADER):
        with WireClient(broker) as client:
            client.send_bytes(greeting)
    with WireClient(broker) as client:
        client.handshake()
        client.end()


def test_a_peer_that_ends_in_the_middle_of_a_message_leaves_nothing_of_it(
    broker: Broker, channel: BlockingChannel, names: Names
) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    with WireClient(broker) as client:
        client.handshake()
        client.open_channel(1)
        for size, body in ((5, b"whole"), (100, b"only a part")):
            client.send(1, spec.Basic.Publish(routing_key=queue))
            client.send_header(1, size)
            client.send_body(1, body)
    wait_for_ready(channel, queue, 1)
    assert drain(channel, queue) == [b"whole"]


# heartbeats


def test_the_broker_sends_heartbeat_frames(wire: WireClient) -> None:
    wire.handshake(heartbeat=1)
    assert wire.read_exactly(16) == HEARTBEAT * 2


def test_any_traffic_counts_as_a_heartbeat(wire: WireClient) -> None:
    wire.handshake(heartbeat=1)
    wire.open_channel(1)
    heartbeats = 0
    # a peer without traffic would be dropped before the broker has sent five heartbeats
    while heartbeats < 5:
        if isinstance(wire.next_frame(), frame.Heartbeat):
            heartbeats += 1
            wire.send(1, spec.Channel.Flow(active=True))
