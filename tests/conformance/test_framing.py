"""The protocol header, frames, contents and heartbeats: sections 2.3 and 4 of the specification."""

from __future__ import annotations

import os
from random import Random

import pytest
from engine_harness import Client, Harness, Refusal, body_of, content_frames, publish_frames, split_frames
from fuzz.session import ALL_PROPERTIES
from peer_frames import content_header

from warren.amqp import methods as m
from warren.amqp.codec import encode_method, frame, method_frame
from warren.amqp.field_table import TYPE_NAMES
from warren.amqp.methods import HEARTBEAT_FRAME, PROTOCOL_HEADER
from warren.channels.handshake import PROTOCOL_HEADER_0_9, PROTOCOL_HEADERS_0_8

from .rules import rule

PUBLISH = method_frame(1, m.BasicPublish(0, "", "q", mandatory=False, immediate=False))


def header(size: int, number: int = 1, class_id: int = 60) -> bytes:
    """A content header frame without properties."""
    return frame(2, number, class_id.to_bytes(2, "big") + b"\0\0" + size.to_bytes(8, "big") + b"\0\0")


def body(data: bytes, number: int = 1) -> bytes:
    return frame(3, number, data)


def closed(client: Client, data: bytes) -> Refusal:
    """Send bytes that cost the connection; return how it was closed."""
    client.feed(data)
    refusal = client.refusal()
    assert refusal.scope == "connection"
    return refusal


# --- the protocol header ----------------------------------------------------------------------------------------------


@rule("connection.start.protocol-name", "A protocol header we do not know is answered by ours, and the socket closes.")
@rule("connection.start.server-support", "A higher version is answered by the header of ours, which is lower.")
@rule("4.2.2", "After a wrong header the header that we want is written, nothing else, and the socket closes.")
@pytest.mark.parametrize(
    "data",
    [
        b"AMQP\x00\x00\x08\x00",
        b"AMQP\x01\x01\x08\x00",
        b"AMQP\x01\x01\x09\x01",
        b"AMQP\x01\x01\x00\x0a",
        b"AMQP\x00\x00\x09\x00",
        b"AMQP\x00\x00\x09\x02",
        b"AMQP\x01\x01\x00\x08",
        b"AMQP\xff\xff\xff\xff",
        b"AMQX",
        b"\x00",
        b"AMQP\x00\x00\x0a\x01",
        b"AMQP\x02\x00\x00\x00",
        b"AMQP\x03\x01\x00\x00",
        b"AMQP\x00\x01\x00\x00",
        b"HTTPHTTP",
        b"amqp\x00\x00\x09\x01",
        b"X",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
    ],
)
def test_a_wrong_protocol_header_is_answered_by_the_right_one(harness: Harness, data: bytes) -> None:
    client = harness.raw_client()
    client.feed(data)
    assert client.take_bytes() == PROTOCOL_HEADER
    assert client.ended
    assert harness.events() == ["connection.bad_header"]


@rule("4.2.2", "The protocol header may come in pieces.")
def test_the_protocol_header_may_come_byte_by_byte(harness: Harness) -> None:
    client = harness.raw_client()
    for byte in PROTOCOL_HEADER[:-1]:
        client.feed(bytes([byte]))
        client.nothing()
    client.feed(PROTOCOL_HEADER[-1:])
    client.expect(m.ConnectionStart)


@rule("rabbitmq.header", "AMQP 0-8, 1 1 8 0 or 1 1 9 1, is refused in any pieces; bytes after it are not read.")
@pytest.mark.parametrize("data", PROTOCOL_HEADERS_0_8)
@pytest.mark.parametrize("cut", range(9))
def test_the_header_of_0_8_is_refused(harness: Harness, data: bytes, cut: int) -> None:
    client = harness.raw_client()
    for part in (data[:cut], data[cut:] + PROTOCOL_HEADER + bytes(100)):
        client.feed(part)
    assert client.take_bytes() == PROTOCOL_HEADER
    assert client.ended
    assert harness.events() == ["connection.bad_header"]


@rule("4.2.2", "Any other 8 bytes than a known header end the connection with one header, however they are cut.")
def test_any_wrong_header_is_answered_once(harness: Harness) -> None:
    seed = int(os.environ.get("WARREN_TEST_HEADER_SEED", "1"))
    print(f"WARREN_TEST_HEADER_SEED={seed}")
    random = Random(seed)
    known = (PROTOCOL_HEADER, PROTOCOL_HEADER_0_9)
    near = [
        bytes([*header[:at], byte, *header[at + 1 :]]) for header in known for at in range(8) for byte in range(256)
    ]
    for data in [*near, *(random.randbytes(8) for _ in range(500))]:
        if data in known:
            continue
        client = harness.raw_client()
        cut = random.randrange(9)
        client.feed(data[:cut])
        if not client.ended:
            client.feed(data[cut:])
        assert client.take_bytes() == PROTOCOL_HEADER, data
        assert client.ended
    assert not harness.broker.connections


@rule("4.2.2", "A peer that sends a part of a header and no more is given up like one that sends nothing.")
@pytest.mark.parametrize("size", range(1, 8))
def test_a_part_of_a_header_waits_for_the_rest_or_the_deadline(harness: Harness, size: int) -> None:
    leaving = harness.raw_client()
    leaving.feed(PROTOCOL_HEADER[:size])
    leaving.hang_up()
    waiting = harness.raw_client()
    waiting.feed(PROTOCOL_HEADER[:size])
    waiting.nothing()
    harness.pass_time(harness.broker.limits.handshake_timeout_s)
    assert waiting.ended and waiting.take_bytes() == b""
    assert not harness.broker.connections


@rule("rabbitmq.header", "The header of AMQP 0-9, 1 1 0 9, is taken for 0-9-1.")
def test_the_header_of_0_9_is_accepted(harness: Harness) -> None:
    client = harness.raw_client()
    client.feed(b"AMQP\x01\x01\x00\x09")
    start = client.expect(m.ConnectionStart)
    assert (start.version_major, start.version_minor) == (0, 9)


@rule("rabbitmq.header", "Who connects, says nothing and leaves is a probe and no news.")
def test_a_peer_that_says_nothing_leaves_no_trace(harness: Harness) -> None:
    client = harness.raw_client()
    client.hang_up()
    assert harness.events() == []
    assert not harness.broker.connections


# --- frames -----------------------------------------------------------------------------------------------------------


@rule("4.2.3", "A frame without its end octet is a fatal framing error, 501, and names no method.")
def test_a_wrong_frame_end_closes_the_connection(client: Client) -> None:
    # Something legal first: the close must not blame it.
    client.call(1, m.ConfirmSelect(False))
    broken = method_frame(1, m.TxSelect())[:-1] + b"\x00"
    refusal = closed(client, broken)
    assert refusal == Refusal("connection", 501, "FRAME_ERROR - type 1, 4 octets: {invalid_frame_end_marker,0}", None)


@rule("4.2.3", "After a framing error nothing more is read, and the socket closes without a close-ok.")
def test_nothing_is_understood_after_a_framing_error(client: Client, harness: Harness) -> None:
    client.feed(frame(1, 1, b"")[:-1] + b"\x00" + method_frame(1, m.TxSelect()) * 3)
    client.expect(m.ConnectionClose)
    client.send(0, m.ConnectionCloseOk())
    client.nothing()
    harness.pass_time(3.0)
    assert client.ended


@rule("4.2.3", "A frame larger than negotiated is a framing error, 501.")
@rule("rabbitmq.frame-max", "8 octets more than negotiated are forgiven, the ninth is not.")
def test_a_frame_may_be_8_octets_too_large(harness: Harness) -> None:
    client = harness.client(frame_max_bytes=4096)
    client.open(1)
    client.declare("q")
    client.feed(PUBLISH + header(4096) + body(bytes(4096)))
    got = client.get("q")
    assert got is not None and body_of(got) == bytes(4096)
    refusal = closed(client, PUBLISH + header(4097) + body(bytes(4097)))
    text = "FRAME_ERROR - type 3, 4097 octets: {frame_too_large,4097,4088}"
    assert refusal == Refusal("connection", 501, text, None)


@rule("4.2.3", "The size limit holds for content headers too, with and without a body, in one piece or not.")
@pytest.mark.parametrize("body_bytes", [0, 1])
@pytest.mark.parametrize("whole", [True, False])
def test_a_content_header_has_to_fit_into_a_frame(harness: Harness, body_bytes: int, whole: bool) -> None:
    client = harness.client(frame_max_bytes=4096)
    client.open(1)
    table = {"headers": (5000).to_bytes(4, "big") + b"\x01kS" + (4993).to_bytes(4, "big") + bytes(4993)}
    content = frame(2, 1, content_header(table, body_bytes)) + body(b"x") * body_bytes
    if whole:
        client.feed(PUBLISH + content)
    else:
        client.feed(PUBLISH)
        client.feed(content)
    refusal = client.refusal()
    assert (refusal.scope, refusal.code) == ("connection", 501)
    assert "frame_too_large" in refusal.text


@rule("4.2.3", "Frames of unknown types are a framing error, 501.")
@pytest.mark.parametrize("kind", [0, 4, 5, 7, 9, 206, 255])
def test_unknown_frame_types_close_the_connection(client: Client, kind: int) -> None:
    refusal = closed(client, frame(kind, 0, b"abc"))
    assert refusal == Refusal("connection", 501, f"FRAME_ERROR - type {kind}, 3 octets: unknown_frame", None)


@rule("4.2.3", "Frames may be cut anywhere by the network.")
def test_frames_may_come_byte_by_byte(client: Client) -> None:
    client.declare("q")
    for byte in publish_frames("", "q", b"hello", properties=ALL_PROPERTIES):
        client.connection.feed(bytes([byte]))
    got = client.get("q")
    assert got is not None and body_of(got) == b"hello"


@rule("4.2.4", "A method that does not exist is refused with 503, naming its ids.")
@pytest.mark.parametrize("ids", [(60, 130), (61, 10), (0, 0), (65535, 65535)])
def test_an_unknown_method_closes_the_connection(client: Client, ids: tuple[int, int]) -> None:
    refusal = closed(client, frame(1, 1, ids[0].to_bytes(2, "big") + ids[1].to_bytes(2, "big")))
    named = ids if any(ids) else None
    assert refusal == Refusal("connection", 503, "COMMAND_INVALID - unimplemented method", named)


@rule("4.2.4", "A method frame too short for a method id is a syntax error, 502.")
def test_a_method_frame_without_method_id_closes_the_connection(client: Client) -> None:
    refusal = closed(client, frame(1, 1, b"\x00\x3c\x00"))
    text = "SYNTAX_ERROR - a method frame shorter than a method id"
    assert refusal == Refusal("connection", 502, text, None)


@rule("4.2.4", "Arguments that end early or leave octets over are a syntax error, 502, that names the method.")
@pytest.mark.parametrize("change", ["shorter", "longer"])
def test_arguments_have_to_fill_their_frame(client: Client, change: str) -> None:
    payload = encode_method(m.BasicQos(0, 1, False))
    refusal = closed(client, frame(1, 1, payload[:-1] if change == "shorter" else payload + b"\0"))
    text = "SYNTAX_ERROR - arguments of basic.qos do not fill their frame"
    assert refusal == Refusal("connection", 502, text, m.BasicQos)


@rule("4.2.5.3", "A short string that is not UTF-8 is a framing error, 501, with RabbitMQ's text.")
def test_short_strings_are_utf_8(client: Client) -> None:
    payload = encode_method(m.QueueDelete(0, "q\x7f", if_unused=False, if_empty=False, no_wait=False)).replace(
        b"\x7f", b"\xff"
    )
    refusal = closed(client, frame(1, 1, payload))
    assert refusal == Refusal("connection", 501, "FRAME_ERROR - Malformed UTF-8 in shortstr", m.QueueDelete)


@rule("4.2.5.2", "Bits share an octet, the first one lowest; the unused ones are ignored.")
def test_unused_bits_are_ignored(client: Client) -> None:
    payload = encode_method(m.QueueDelete(0, "q", if_unused=False, if_empty=False, no_wait=False))
    client.feed(frame(1, 1, payload[:-1] + b"\xf8"))
    assert client.expect(m.QueueDeleteOk) == m.QueueDeleteOk(0)


# --- contents ---------------------------------------------------------------------------------------------------------

OUT_OF_ORDER = {
    "a header without a method": (
        header(0),
        "UNEXPECTED_FRAME - expected method frame, got non method frame instead",
        None,
    ),
    "a body without a method": (
        body(b"x"),
        "UNEXPECTED_FRAME - expected method frame, got non method frame instead",
        None,
    ),
    "a method instead of the header": (
        PUBLISH + method_frame(1, m.TxSelect()),
        "UNEXPECTED_FRAME - expected content header for class 60, got non content header frame instead",
        m.BasicPublish,
    ),
    "a body instead of the header": (
        PUBLISH + body(b"x"),
        "UNEXPECTED_FRAME - expected content header for class 60, got non content header frame instead",
        m.BasicPublish,
    ),
    "a header of another class": (
        PUBLISH + header(1, class_id=50),
        "UNEXPECTED_FRAME - expected content header for class 60, got one for class 50 instead",
        m.BasicPublish,
    ),
    "a header instead of the body": (
        PUBLISH + header(1) + header(1),
        "UNEXPECTED_FRAME - expected content body, got non content body frame instead",
        m.BasicPublish,
    ),
    "a method instead of the body": (
        PUBLISH + header(2) + body(b"x") + PUBLISH,
        "UNEXPECTED_FRAME - expected content body, got non content body frame instead",
        m.BasicPublish,
    ),
    "a body too many": (
        PUBLISH + header(1) + body(b"x") + body(b"x"),
        "UNEXPECTED_FRAME - expected method frame, got non method frame instead",
        None,
    ),
    "a body behind an empty content": (
        PUBLISH + header(0) + body(b""),
        "UNEXPECTED_FRAME - expected method frame, got non method frame instead",
        None,
    ),
}


@rule("4.2.6", "Content is a method, a header and bodies in this order; anything else is 505.")
@rule("4.6", "Frames of one channel's content are not interleaved with other frames of that channel.")
@pytest.mark.parametrize("case", OUT_OF_ORDER)
@pytest.mark.parametrize("pieces", [1, 2])
def test_content_out_of_order_closes_the_connection(client: Client, case: str, pieces: int) -> None:
    data, text, failing = OUT_OF_ORDER[case]
    if pieces == 2:
        client.feed(data[:-3])
        data = data[-3:]
    assert closed(client, data) == Refusal("connection", 505, text, failing)


@rule("4.2.6", "Content frames on a channel that is not open are refused with 504, on channel 0 with 505.")
def test_content_needs_a_channel(harness: Harness) -> None:
    refusal = closed(harness.channel(), header(0, number=7))
    assert refusal == Refusal("connection", 504, "CHANNEL_ERROR - expected 'channel.open'", None)
    refusal = closed(harness.channel(), body(b"x", number=0))
    assert refusal == Refusal("connection", 505, "UNEXPECTED_FRAME - a content frame on channel 0", None)


@rule("4.2.6.2", "Bodies that exceed the announced size are a framing error, 501.")
@pytest.mark.parametrize("parts", [[b"12345"], [b"123", b"45"]])
def test_a_body_larger_than_announced_closes_the_connection(client: Client, parts: list[bytes]) -> None:
    refusal = closed(client, PUBLISH + header(4) + b"".join(body(part) for part in parts))
    text = "FRAME_ERROR - content body frame exceeds remaining content size"
    assert refusal == Refusal("connection", 501, text, m.BasicPublish)


@rule("4.2.6.1", "A header announcing more than 512 MiB is a framing error, 501, before any body.")
@pytest.mark.parametrize("size", [536870913, 1 << 62, (1 << 64) - 1])
def test_an_absurd_body_size_closes_the_connection(client: Client, size: int) -> None:
    refusal = closed(client, PUBLISH + header(size))
    text = f"FRAME_ERROR - content body size {size} exceeds maximum allowed size 536870912"
    assert refusal == Refusal("connection", 501, text, m.BasicPublish)


@rule("4.2.6.1", "A header too short for its fixed part is a framing error, 501; one with broken properties 502.")
def test_broken_content_headers_close_the_connection(harness: Harness) -> None:
    refusal = closed(harness.channel(), PUBLISH + frame(2, 1, bytes(13)))
    assert refusal == Refusal("connection", 501, "FRAME_ERROR - content header too short", m.BasicPublish)
    cut = content_header({"content_type": "text/plain"}, 0)[:-1]
    left_over = content_header({"content_type": "text/plain"}, 0) + b"x"
    unknown_flag = b"\x00\x3c\x00\x00" + bytes(8) + b"\x00\x02"
    for payload in (cut, left_over, unknown_flag):
        refusal = closed(harness.channel(), PUBLISH + frame(2, 1, payload))
        assert (refusal.code, refusal.method) == (502, m.BasicPublish)
        assert refusal.text.startswith("SYNTAX_ERROR - malformed content header")


@rule("4.2.6.2", "A content of size 0 has no body frame, neither in nor out.")
def test_an_empty_body_has_no_frame(client: Client) -> None:
    client.declare("q")
    client.feed(PUBLISH + header(0))
    client.send(1, m.BasicGet(0, "q", True))
    assert [kind for kind, _, _ in split_frames(client.take_bytes())] == [1, 2]


@rule("4.2.6.2", "A body may come in any number of frames of any size.")
def test_a_body_may_come_in_many_frames(client: Client) -> None:
    client.declare("q")
    client.feed(PUBLISH + header(6) + body(b"a") + body(b"") + body(b"bcd") + body(b"ef"))
    got = client.get("q")
    assert got is not None and body_of(got) == b"abcdef"


@rule("4.2.6.2", "Contents go out in frames that the receiver accepts, filled as far as they may be.")
@pytest.mark.parametrize("size", [1, 4088, 4089, 8176, 8177, 100_000, 131_064, 131_065, 300_000])
def test_bodies_are_cut_to_the_receivers_frame_max(harness: Harness, client: Client, size: int) -> None:
    client.declare("q")
    data = bytes(range(256)) * (size // 256 + 1)
    small = harness.client(frame_max_bytes=4096)
    small.open(3)
    client.publish("", "q", data[:size])
    got = small.get("q", number=3)
    assert got is not None and got.content is not None
    assert got.content.body == data[:size]
    assert max(got.content.frame_bytes) <= 4096
    assert set(got.content.frame_bytes[:-1]) <= {4096}


@rule("4.2.6", "Properties and headers arrive as they were sent, octet for octet.")
@rule("rabbitmq.properties", "All 14 properties travel, in the order of their flags.")
def test_properties_travel_unchanged(client: Client) -> None:
    client.declare("q")
    client.feed(PUBLISH + content_frames(1, b"x", ALL_PROPERTIES))
    client.send(1, m.BasicGet(0, "q", True))
    frames = split_frames(client.take_bytes())
    assert frames[1][2] == content_header(ALL_PROPERTIES, 1)
    assert len(ALL_PROPERTIES) == 14


ALL_TYPES = (
    b"\x01tt\x01"
    b"\x01bb\xff"
    b"\x01BB\xff"
    b"\x01ss\xff\xfe"
    b"\x01uu\xff\xfe"
    b"\x01II\xff\xff\xff\xfe"
    b"\x01ii\xff\xff\xff\xfe"
    b"\x01ll\xff\xff\xff\xff\xff\xff\xff\xfe"
    b"\x01LL\x00\x00\x00\x00\x00\x00\x00\x01"
    b"\x01ff\x3f\x80\x00\x00"
    b"\x01dd\x3f\xf0\x00\x00\x00\x00\x00\x00"
    b"\x01DD\x02\x00\x00\x00\x7b"
    b"\x01TT\x00\x00\x00\x00\x65\x00\x00\x00"
    b"\x01SS\x00\x00\x00\x02hi"
    b"\x01xx\x00\x00\x00\x02\x00\xff"
    b"\x01AA\x00\x00\x00\x04t\x01t\x00"
    b"\x01FF\x00\x00\x00\x04\x01kt\x01"
    b"\x01VV"
)


@rule("4.2.5.5", "Headers may hold every field type, and keep duplicate keys, types and widths.")
@rule("rabbitmq.field-table", "s is a 16-bit integer, l and L are signed, x is binary, V is nothing.")
def test_every_field_type_travels_unchanged(client: Client) -> None:
    assert {ALL_TYPES[at + 2 : at + 3].decode() for at in type_tags()} == set(TYPE_NAMES)
    client.declare("q")
    twice = ALL_TYPES + ALL_TYPES
    table = len(twice).to_bytes(4, "big") + twice
    client.publish("", "q", b"x", headers=table)
    got = client.get("q")
    assert got is not None and got.content is not None
    assert got.content.properties.headers == table


def type_tags() -> list[int]:
    """Where the keys of `ALL_TYPES` begin: each is one letter, the same as its tag."""
    return [
        at
        for at in range(len(ALL_TYPES) - 2)
        if ALL_TYPES[at] == 1 and ALL_TYPES[at + 1] == ALL_TYPES[at + 2] and chr(ALL_TYPES[at + 1]) in TYPE_NAMES
    ]


# --- channels ---------------------------------------------------------------------------------------------------------


@rule("4.3", "Contents of different channels may be interleaved frame by frame.")
def test_contents_of_channels_may_be_interleaved(client: Client) -> None:
    client.open(2)
    client.declare("q")
    streams = [
        [
            method_frame(n, m.BasicPublish(0, "", "q", mandatory=False, immediate=False)),
            header(4, n),
            body(b"%d1" % n, n),
            body(b"%d2" % n, n),
        ]
        for n in (1, 2)
    ]
    client.feed(b"".join(part for pair in zip(*streams, strict=True) for part in pair))
    assert [body_of(each) for each in (client.get("q"), client.get("q")) if each] == [b"1112", b"2122"]


@rule("4.3", "A body belongs to the content of its own channel, however well it would fit another one.")
def test_a_body_goes_to_its_own_channel(client: Client) -> None:
    client.open(2)
    client.declare("q")
    client.feed(method_frame(2, m.BasicPublish(0, "", "q", mandatory=False, immediate=False)) + header(4, 2))
    client.feed(PUBLISH + header(4) + body(b"two.", 2) + body(b"one.", 1))
    assert [body_of(each) for each in (client.get("q"), client.get("q")) if each] == [b"two.", b"one."]


@rule("4.6", "A frame of another type is no body, however well it would fit.")
def test_a_method_of_the_right_size_is_no_body(client: Client) -> None:
    select = method_frame(1, m.TxSelect())
    refusal = closed(client, PUBLISH + header(4) + select)
    text = "UNEXPECTED_FRAME - expected content body, got non content body frame instead"
    assert (refusal.code, refusal.text) == (505, text)


@rule("4.3", "Deliveries name the channel of their consumer in every frame, whatever channel they were published on.")
@pytest.mark.parametrize(("source", "target"), [(1, 300), (300, 1), (258, 514), (65535, 65280)])
def test_contents_change_channels(client: Client, other: Client, source: int, target: int) -> None:
    client.declare("q")
    for peer, number in ((client, source), (other, target)):
        if number != 1:
            peer.open(number)
    other.consume("q", number=target)
    data = bytes(range(256)) * 1000
    client.publish("", "q", data, number=source)
    (delivery,) = other.deliveries()
    assert (delivery.channel, body_of(delivery)) == (target, data)


@rule("4.6", "Between the frames of a content, other channels may speak and heartbeats may come.")
def test_other_channels_may_speak_within_a_content(client: Client) -> None:
    client.open(2)
    client.declare("q")
    client.feed(PUBLISH)
    client.feed(HEARTBEAT_FRAME + method_frame(2, m.ConfirmSelect(False)))
    client.expect(m.ConfirmSelectOk, 2)
    client.feed(header(2) + body(b"a") + HEARTBEAT_FRAME + method_frame(2, m.BasicGet(0, "q", True)))
    client.expect(m.BasicGetEmpty, 2)
    client.feed(body(b"b"))
    got = client.get("q")
    assert got is not None and body_of(got) == b"ab"


@rule("4.8.1", "An error in a content names basic.publish, whatever other channels did since.")
def test_an_error_in_a_content_names_the_publish(harness: Harness) -> None:
    harness.broker.shared.message_max_bytes = 10
    client = harness.channel()
    client.open(2)
    client.feed(PUBLISH + method_frame(2, m.ConfirmSelect(False)))
    client.expect(m.ConfirmSelectOk, 2)
    client.feed(header(11))
    assert client.refusal().method is m.BasicPublish


@rule("4.7", "Messages of one channel to one queue are delivered in the order of publishing.")
def test_order_holds_from_channel_to_queue_to_consumer(client: Client, other: Client) -> None:
    client.declare("q")
    other.consume("q", no_ack=True)
    numbers = [b"%d" % number for number in range(500)]
    for start in range(0, 500, 50):
        client.feed(b"".join(publish_frames("", "q", number) for number in numbers[start : start + 50]))
    assert other.bodies() == numbers


@rule("4.7", "What is published in the turn in which an ack makes room does not overtake what waits.")
def test_a_publish_does_not_overtake_what_waits(client: Client) -> None:
    client.declare("q")
    client.send(1, m.BasicQos(0, 1, False))
    client.expect(m.BasicQosOk)
    client.consume("q")
    for data in (b"1", b"2", b"3"):
        client.publish("", "q", data)
    assert client.bodies() == [b"1"]
    client.feed(method_frame(1, m.BasicAck(1, False)) + publish_frames("", "q", b"4"))
    assert client.bodies() == [b"2"]


@rule("4.8.1", "A channel exception closes its channel; other channels and the connection go on.")
def test_a_channel_exception_leaves_other_channels_alone(client: Client) -> None:
    client.open(2)
    client.send(1, m.QueueDelete(0, "", if_unused=False, if_empty=False, no_wait=False))
    assert client.expect(m.ChannelClose, 1).reply_code == 404
    assert client.call(2, m.ConfirmSelect(False)) == m.ConfirmSelectOk()


@rule("4.8.1", "A connection exception closes the connection with all its channels.")
def test_a_connection_exception_ends_everything(client: Client, other: Client, harness: Harness) -> None:
    client.open(2)
    client.declare("private", exclusive=True)
    client.declare("q", number=2)
    client.publish("", "q", b"m")
    assert client.get("q", number=2) is not None
    closed(client, method_frame(1, m.BasicQos(1, 0, False)))
    assert list(harness.vhost.queues) == ["q"]
    assert harness.queue("q").ready_count == 1
    assert other.refused(1, m.QueueDeclare(0, "private", True, False, False, False, False, b"\0\0\0\0")).code == 404


@rule("4.8.2", "Reply texts begin with the name of the code and are cut to what a short string holds.")
def test_long_reply_texts_are_cut(client: Client) -> None:
    name = "\u00fc" * 120
    refusal = client.refused(1, m.BasicGet(0, name, False))
    assert refusal.code == 404
    assert refusal.text.startswith("NOT_FOUND - no queue '\u00fc\u00fc")
    assert refusal.text.endswith("...")
    assert 253 <= len(refusal.text.encode()) <= 255


# --- heartbeats -------------------------------------------------------------------------------------------------------


@rule("4.2.7", "A heartbeat on another channel than 0 closes the connection, 505; so does content on channel 0.")
def test_a_heartbeat_belongs_to_channel_0(client: Client) -> None:
    refusal = closed(client, frame(8, 1, b""))
    text = "UNEXPECTED_FRAME - a heartbeat on a channel other than 0"
    assert refusal == Refusal("connection", 505, text, None)


def beating(harness: Harness, heartbeat_s: int) -> Client:
    return harness.client(heartbeat_s=heartbeat_s)


@rule("4.2.7", "When nothing was sent for half an interval, a heartbeat is.")
def test_a_heartbeat_goes_out_when_nothing_else_does(harness: Harness) -> None:
    client = beating(harness, 10)
    for _ in range(12):
        harness.pass_time(0.5)
    assert client.take_bytes() == HEARTBEAT_FRAME


@rule("4.2.7", "Any octet sent is as good as a heartbeat.")
def test_traffic_replaces_heartbeats(harness: Harness) -> None:
    client = beating(harness, 10)
    client.open(1)
    for _ in range(20):
        harness.pass_time(1.0)
        client.send(1, m.ConfirmSelect(False))
    assert HEARTBEAT_FRAME not in client.take_bytes()


@rule("4.2.7", "A peer that is silent for more than two intervals is given up, without a close method.")
def test_a_silent_peer_is_given_up(harness: Harness) -> None:
    client = beating(harness, 10)
    client.open(1)
    client.declare("private", exclusive=True)
    for _ in range(20):
        harness.pass_time(1.0)
    assert not client.ended
    harness.pass_time(1.5)
    assert client.ended
    assert set(client.take_bytes()) <= set(HEARTBEAT_FRAME)
    assert not harness.vhost.queues
    assert harness.notices[-1].fields["reason"] == "missed heartbeats from client, timeout: 10s"


@rule("4.2.7", "Any octet received, half a frame included, is as good as a heartbeat.")
def test_any_octet_shows_that_a_peer_lives(harness: Harness) -> None:
    client = beating(harness, 2)
    slow = HEARTBEAT_FRAME + method_frame(1, m.ChannelOpen(""))
    for byte in slow:
        harness.pass_time(3.0)
        client.feed(bytes([byte]))
    assert not client.ended
    client.expect(m.ChannelOpenOk, 1)


@rule("4.2.7", "A heartbeat of 0 means none, in both directions.")
def test_without_an_interval_nobody_beats(harness: Harness) -> None:
    client = beating(harness, 0)
    for _ in range(10):
        harness.pass_time(100.0)
    assert client.take_bytes() == b""
    assert not client.ended


@rule("rabbitmq.heartbeat", "The client's interval counts, whatever the server proposed.")
def test_the_clients_interval_counts(harness: Harness) -> None:
    client = beating(harness, 600)
    for _ in range(30):
        harness.pass_time(9.0)
    assert client.take_bytes() == b""
    harness.pass_time(40.0)
    assert client.take_bytes() == HEARTBEAT_FRAME


@rule("rabbitmq.heartbeat", "While we do not read from a publisher because of an alarm, its silence means nothing.")
def test_a_blocked_publisher_need_not_beat(harness: Harness) -> None:
    client = harness.client(heartbeat_s=10)
    client.open(1)
    harness.broker.set_alarm("memory", True)
    client.publish("", "q")
    for _ in range(10):
        harness.pass_time(10.0)
    assert not client.ended
