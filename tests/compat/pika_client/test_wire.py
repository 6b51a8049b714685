"""Details that only a misbehaving or a very careful peer sees: greetings, pieces of frames, and silent ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from pika import BasicProperties, frame, spec
from pika.adapters.blocking_connection import BlockingChannel
from pika.compat import as_bytes

from .. import cluster
from ..broker import Broker
from ..conftest import Names
from .dialogue import drain, wait_for_ready
from .wire import PROTOCOL_HEADER, WireClient

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


@pytest.mark.parametrize("header", [b"GET / HT", b"\x16\x03\x01\x02\x00\x01\x00\x01", b"AMQP\x09\x09\x09\x09"])
def test_any_other_greeting_is_answered_with_a_protocol_header(wire: WireClient, header: bytes) -> None:
    wire.send_bytes(header)
    assert wire.read_exactly(4) == b"AMQP"


def test_start_offers_plain_and_amqplain_in_english(wire: WireClient) -> None:
    start = wire.start()
    assert (start.version_major, start.version_minor) == (0, 9)
    assert {b"PLAIN", b"AMQPLAIN"} <= set(as_bytes(start.mechanisms).split())
    assert b"en_US" in as_bytes(start.locales).split()


# login


def _refused_login(wire: WireClient) -> None:
    wire.start()
    wire.start_ok(capabilities={}, response=b"\0guest\0wrong")


def _unknown_mechanism(wire: WireClient) -> None:
    wire.start()
    wire.start_ok(capabilities=KNOWS_REFUSAL, mechanism="HANDSHAKE")


def _method_out_of_turn(wire: WireClient) -> None:
    wire.start()
    wire.send(0, spec.Connection.Open("/"))


def _silent_peer(wire: WireClient) -> None:
    wire.handshake(heartbeat=1)


ENDED_UNSAID: list[Dialogue] = [_refused_login, _unknown_mechanism, _method_out_of_turn, _silent_peer]


@pytest.fixture(scope="module")
def doomed(broker: Broker) -> Iterator[dict[Dialogue, WireClient]]:
    """Sockets on which a broker hangs up, slowly on purpose (3 s): all at once, so that the waits overlap."""
    with ExitStack() as stack:
        sockets: dict[Dialogue, WireClient] = {
            dialogue: stack.enter_context(WireClient(broker)) for dialogue in ENDED_UNSAID
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


# closing


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


def test_any_traffic_counts_as_a_heartbeat(wire: WireClient) -> None:
    wire.handshake(heartbeat=1)
    wire.open_channel(1)
    heartbeats = 0
    # a peer without traffic would be dropped before the broker has sent five heartbeats
    while heartbeats < 5:
        if isinstance(wire.next_frame(), frame.Heartbeat):
            heartbeats += 1
            wire.send(1, spec.Channel.Flow(active=True))
