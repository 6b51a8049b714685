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


def test_many_frames_may_arrive_in_one_piece(opened: WireClient, names: Names) -> None:
    queue = names.queue()
    opened.declare_exclusive(queue)
    publish = frame.Method(1, spec.Basic.Publish(routing_key=queue)).marshal()
    content = frame.Header(1, 1, BasicProperties()).marshal() + frame.Body(1, b"x").marshal()
    purge = frame.Method(1, spec.Queue.Purge(queue=queue)).marshal()
    opened.send_bytes((publish + content) * 1000 + HEARTBEAT + purge)
    assert opened.expect(spec.Queue.PurgeOk, 1).message_count == 1000


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
