"""The client without a socket, against bytes that a test makes. amqp_client/connection.py, amqp_client/channel.py."""

from __future__ import annotations

import tracemalloc
from struct import pack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.amqp import methods
from warren.amqp.codec import decode_method, frame, method_frame
from warren.amqp.field_table import ENTRIES_MAX, encode_table
from warren.amqp.properties import BasicProperties
from warren.amqp_client.channel import ClientChannel, Confirm, Returned
from warren.amqp_client.client_errors import BrokerError, PeerClosed
from warren.amqp_client.connection import ANSWERS_MAX, FRAME_MAX_BYTES, ClientConnection, Login, State
from warren.amqp_client.frames import NO_PROPERTIES

MESSAGE_MAX_BYTES = 100_000
START = methods.ConnectionStart(0, 9, {"product": "peer"}, b"AMQPLAIN PLAIN", b"en_US")
LOGIN = Login("u", "s3cret", "v", properties={"product": "test"})


def sent(connection: ClientConnection) -> list[tuple[int, int, bytes]]:
    """Return type, channel and payload of the frames that the client wants to send."""
    data = b""
    while output := bytes(connection.take_output()):
        data += output
    connection.sent()
    found = []
    data = data.removeprefix(methods.PROTOCOL_HEADER)
    while data:
        size = int.from_bytes(data[3:7], "big")
        assert data[7 + size] == methods.FRAME_END
        found.append((data[0], int.from_bytes(data[1:3], "big"), data[7 : 7 + size]))
        data = data[8 + size :]
    return found


def sent_methods(connection: ClientConnection) -> list[Any]:
    return [decode_method(payload, 0, len(payload)) for kind, _, payload in sent(connection) if kind == 1]


def handshake(login: Login = LOGIN, tune: methods.ConnectionTune | None = None) -> tuple[ClientConnection, list[Any]]:
    """Return an open connection, and the methods that it has sent."""
    connection = ClientConnection("the peer", login, MESSAGE_MAX_BYTES)
    connection.greet()
    said = []
    for method in (START, tune or methods.ConnectionTune(100, 4096, 60), methods.ConnectionOpenOk("")):
        connection.receive(method_frame(0, method))
        said += sent_methods(connection)
    return connection, said


def opened() -> tuple[ClientConnection, ClientChannel]:
    """Return an open connection, and its channel 1."""
    connection, _ = handshake()
    channel = ClientChannel(connection, 1)
    connection.add_channel(channel)
    return connection, channel


def confirming() -> tuple[ClientConnection, ClientChannel]:
    connection, channel = opened()
    channel.expect_confirms()
    return connection, channel


def delivery(tag: int, body: bytes, announced: int | None = None, room: int = 4088) -> bytes:
    """Return the frames of a message on channel 1."""
    header = pack(">HHQ", 60, 0, len(body) if announced is None else announced) + NO_PROPERTIES
    parts = [method_frame(1, methods.BasicDeliver("t", tag, False, "x", "k")), frame(2, 1, header)]
    return b"".join(parts + [frame(3, 1, body[at : at + room]) for at in range(0, len(body), room)])


def returned() -> bytes:
    header = frame(2, 1, pack(">HHQ", 60, 0, 0) + NO_PROPERTIES)
    return method_frame(1, methods.BasicReturn(312, "NO_ROUTE", "", "q")) + header


# --- the handshake ----------------------------------------------------------------------------------------------------


def test_it_greets_logs_in_with_plain_and_opens_the_vhost() -> None:
    connection = ClientConnection("the peer", LOGIN, MESSAGE_MAX_BYTES)
    connection.greet()
    assert connection.take_output() == methods.PROTOCOL_HEADER and connection.take_output() == b""
    connection, said = handshake()
    assert said == [
        methods.ConnectionStartOk({"product": "test"}, "PLAIN", b"\0u\0s3cret", "en_US"),
        methods.ConnectionTuneOk(100, 4096, 0),
        methods.ConnectionOpen("v", "", False),
    ]
    assert connection.state is State.OPEN and connection.server_properties == {"product": "peer"}


@pytest.mark.parametrize(
    ("login", "offered", "agreed"),
    [
        (Login(), (0, 0, 60), (0, FRAME_MAX_BYTES, 0)),
        (Login(frame_max_bytes=0), (7, 0, 60), (7, 0, 0)),
        (Login(frame_max_bytes=0), (7, 1 << 20, 60), (7, 1 << 20, 0)),
        (Login(frame_max_bytes=5000, channel_max=5), (7, 1 << 20, 60), (5, 5000, 0)),
        (Login(heartbeat_s=5, channel_max=9), (0, 4096, 0), (9, 4096, 5)),
    ],
)
def test_of_two_limits_the_smaller_one_is_agreed_on(
    login: Login, offered: tuple[int, int, int], agreed: tuple[int, int, int]
) -> None:
    connection, said = handshake(login, methods.ConnectionTune(*offered))
    assert said[1] == methods.ConnectionTuneOk(*agreed)
    assert connection.frame_max_bytes == agreed[1]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "does not speak AMQP 0-9-1: it is a port of HTTP"),
        (b"AMQP\x00\x01\x00\x00", r"does not speak AMQP 0-9-1: it wants b'\\x00\\x01\\x00\\x00'"),
        (b"SSH-2.0-OpenSSH", "does not speak AMQP 0-9-1"),
        (b"\x01\x00\x00\xff\xff\xff\xff" + bytes(8), "does not speak AMQP 0-9-1"),
        (method_frame(1, START), "does not speak AMQP 0-9-1"),
        (method_frame(0, START._replace(mechanisms=b"EXTERNAL")), "offers EXTERNAL to log in with, .* use PLAIN"),
        (method_frame(0, methods.ConnectionOpenOk("")), r"connection\.open-ok during the handshake"),
        (method_frame(0, methods.ConnectionClose(403, "REFUSED", 0, 0)), "closed the connection: 403 REFUSED"),
        (frame(1, 0, b"\x00\x0a\x00\x0a\x00"), "malformed"),
        (
            method_frame(0, START) + method_frame(0, methods.ConnectionTune(0, 4095, 0)),
            "takes frames of 4095 bytes; 4096 are the least",
        ),
    ],
)
def test_a_handshake_that_goes_wrong_ends_with_a_reason(answer: bytes, text: str) -> None:
    connection = ClientConnection("the peer", LOGIN, MESSAGE_MAX_BYTES)
    with pytest.raises(BrokerError, match=text):
        connection.receive(answer)


def test_the_end_of_the_bytes_after_the_credentials_is_a_refused_login() -> None:
    connection = ClientConnection("the peer", LOGIN, MESSAGE_MAX_BYTES)
    assert "without giving a reason" in str(connection.eof())
    connection.receive(method_frame(0, START))
    assert "refused the login" in str(connection.eof())
    connection.receive(method_frame(0, methods.ConnectionTune(0, 0, 0)))
    assert "without giving a reason" in str(connection.eof())


def test_a_vhost_that_does_not_fit_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(ValueError, match="a vhost of 256 bytes"):
        Login(vhost="v" * 256)


# --- messages ---------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 5000), max_size=8))
def test_bytes_mean_the_same_however_they_are_cut(cuts: list[int]) -> None:
    connection, channel = opened()
    data = b"".join(delivery(tag, bytes([tag]) * size) for tag, size in enumerate((0, 1, 4088, 9000), 1))
    count = 0
    for size in cuts:
        count += connection.receive(data[:size])
        data = data[size:]
    count += connection.receive(data)
    assert count == 4 * 2 + 0 + 1 + 1 + 3
    found = channel.take_deliveries()
    assert [(each.delivery_tag, len(each.body), set(each.body)) for each in found] == [
        (1, 0, set()),
        (2, 1, {2}),
        (3, 4088, {3}),
        (4, 9000, {4}),
    ]
    assert connection.inbox_bytes == connection.partial_bytes == 0


def test_a_body_in_tiny_frames_takes_its_size_in_memory() -> None:
    size = 90_000
    connection, channel = opened()
    connection.receive(delivery(1, b"", announced=size))
    tracemalloc.start()
    try:
        for _ in range(0, size, 2):
            connection.receive(b"\x03\x00\x01\x00\x00\x00\x02ab\xce")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * size
    (found,) = channel.take_deliveries()
    assert found.body == b"ab" * (size // 2)


def test_what_is_not_complete_when_the_channel_ends_counts_no_longer() -> None:
    connection, channel = opened()
    connection.receive(delivery(1, b"x") + delivery(2, bytes(5000), announced=90_000))
    assert connection.partial_bytes == 5000 and connection.inbox_bytes
    connection.drop(channel)
    assert connection.partial_bytes == connection.inbox_bytes == 0
    connection.receive(frame(3, 1, b"late"))  # to a channel that is no longer there


def test_a_message_larger_than_a_frame_is_published_in_several() -> None:
    connection, channel = opened()
    assert channel.publish("x", "key", NO_PROPERTIES, bytes(10_000)) == 1
    assert channel.publish("x", "key", NO_PROPERTIES, b"small") == 2
    assert channel.publish("x", "key", NO_PROPERTIES, b"") == 3
    found = sent(connection)
    publish = methods.BasicPublish(0, "x", "key", mandatory=False, immediate=False)
    assert found[0] == (1, 1, method_frame(1, publish)[7:-1])
    assert found[1] == (2, 1, pack(">HHQ", 60, 0, 10_000) + NO_PROPERTIES)
    assert [(kind, len(payload)) for kind, _, payload in found if kind == 3] == [
        (3, 4088),
        (3, 4088),
        (3, 1824),
        (3, 5),
    ]


def test_a_content_header_is_one_frame_with_a_valid_table() -> None:
    def with_headers(count: int) -> bytes:
        properties = BasicProperties()
        properties.headers = encode_table({f"{number:03x}": True for number in range(count)})
        return properties.encode()

    connection, channel = opened()
    assert channel.takes(NO_PROPERTIES) and channel.takes(bytes(4096 - 8 - 12))
    assert not channel.takes(bytes(4096 - 8 - 12 + 1))
    with pytest.raises(BrokerError, match="does not accept content headers of 4077 bytes"):
        channel.publish("", "q", bytes(4096 - 8 - 12 + 1), b"")
    connection.frame_max_bytes = 1 << 17
    assert channel.takes(with_headers(ENTRIES_MAX)) and not channel.takes(with_headers(ENTRIES_MAX + 1))


def test_names_that_do_not_fit_are_refused() -> None:
    connection, channel = opened()
    with pytest.raises(BrokerError, match="has 256 bytes"):
        channel.publish("", "k" * 256, NO_PROPERTIES, b"")
    assert channel.published == 0 and not sent(connection)


def test_confirms_and_returns_come_in_the_order_of_the_peer() -> None:
    connection, channel = confirming()
    for _ in range(3):
        channel.publish("", "q", NO_PROPERTIES, b"", mandatory=True)
    nack = method_frame(1, methods.BasicNack(3, multiple=False, requeue=False))
    connection.receive(returned() + method_frame(1, methods.BasicAck(2, True)) + nack)
    assert channel.returned == [Returned(312, "NO_ROUTE", "", "q")]
    assert channel.take_confirms() == [Confirm(2, True, True), Confirm(3, False, False)] and not channel.confirms


def test_replies_are_taken_by_the_request() -> None:
    connection, channel = opened()
    request = methods.BasicQos(0, 5, False)
    channel.request(request)
    assert sent_methods(connection) == [request]
    connection.receive(method_frame(1, methods.BasicQosOk()))
    assert channel.take_reply(request, methods.BasicQosOk) == methods.BasicQosOk()
    channel.request(request)
    connection.receive(method_frame(1, methods.ConfirmSelectOk()))
    with pytest.raises(BrokerError, match=r"answered basic\.qos with confirm\.select-ok"):
        channel.take_reply(request, methods.BasicQosOk)
    with pytest.raises(BrokerError, match=r"answered basic\.qos"):
        connection.check()


# --- the bounds on a peer ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\x03\x00\x01\x00\x00\x10\x01" + bytes(100), "a frame of 4097 bytes; 4096 were agreed on"),
        (frame(1, 1, b"\x00\x3c\x00\x50" + bytes(9))[:-1] + b"\x00", "without its end octet"),
        (frame(9, 1, b""), "unknown type 9"),
        (frame(8, 1, b""), "heartbeat on a channel"),
        (frame(8, 0, b"x"), "heartbeat on a channel"),
        (frame(3, 1, b"x"), "a body that belongs to nothing"),
        (frame(2, 1, bytes(14)), "a content header that belongs to nothing"),
        (frame(2, 0, bytes(14)), "content on channel 0"),
        (frame(1, 1, b"\x00\x3c"), "shorter than a method id"),
        (frame(1, 1, b"\x00\x3c\x00\x3c\x05"), "malformed basic.deliver"),
        (frame(1, 1, b"\x00\x3c\x00\x3c"), "malformed basic.deliver"),
        (frame(1, 1, b"\x00\x63\x00\x63"), "malformed"),
        (
            method_frame(1, methods.BasicDeliver("t", 1, False, "x", "k")) + frame(2, 1, bytes(13)),
            "a content header that is too short",
        ),
        (delivery(1, b"", announced=5) + frame(1, 1, bytes(4)), "a method where a content was due"),
        (delivery(1, b"", announced=5) + frame(3, 1, b""), "longer than announced, or empty"),
        (delivery(1, b"four", announced=3), "longer than announced, or empty"),
        (delivery(1, b"", announced=100_001), "a message of 100001 bytes; 100000 are accepted at most"),
        (delivery(1, b"", announced=1 << 63), "100000 are accepted at most"),
        (method_frame(1, methods.QueueDeclareOk("q", 0, 0)), r"queue\.declare-ok unasked"),
        (method_frame(1, methods.BasicAck(1, False)), "confirmed a publish that it has not got"),
        (
            method_frame(1, methods.BasicNack(1, multiple=True, requeue=False)),
            "confirmed a publish that it has not got",
        ),
        (returned(), "returned a message that it has not got"),
        (method_frame(1, methods.BasicCancel("t", True)), "cancelled a consumer that it has not got"),
        (method_frame(1, methods.ChannelFlow(True)) * (ANSWERS_MAX + 1), f"more than {ANSWERS_MAX} answers"),
        (method_frame(0, methods.ConnectionTune(0, 0, 0)), r"connection\.tune unasked"),
    ],
)
def test_a_peer_that_breaks_the_protocol_is_left_with_a_reason(data: bytes, text: str) -> None:
    connection, _ = opened()
    with pytest.raises(BrokerError, match=text):
        connection.receive(data)


def test_answers_that_are_taken_do_not_count() -> None:
    connection, _ = opened()
    for _ in range(3):
        connection.receive(method_frame(1, methods.ChannelFlow(True)) * ANSWERS_MAX)
        assert sent_methods(connection) == [methods.ChannelFlowOk(True)] * ANSWERS_MAX


def test_a_peer_may_confirm_and_return_what_was_published_and_no_more() -> None:
    connection, channel = confirming()
    channel.publish("x", "key", NO_PROPERTIES, b"")
    with pytest.raises(BrokerError, match="returned a message"):
        connection.receive(returned())
    channel.publish("x", "key", NO_PROPERTIES, b"", mandatory=True)
    connection.receive(returned())
    with pytest.raises(BrokerError, match="returned a message"):
        connection.receive(returned())
    connection.receive(method_frame(1, methods.BasicAck(2, True)))
    with pytest.raises(BrokerError, match="confirmed a publish"):
        connection.receive(method_frame(1, methods.BasicAck(3, True)))


@pytest.mark.parametrize("confirm", [methods.BasicAck(0, True), methods.BasicNack(0, True, False)])
def test_a_confirm_names_a_number_for_everything_would_be_more_than_the_peer_has(confirm: object) -> None:
    connection, channel = confirming()
    channel.publish("x", "key", NO_PROPERTIES, b"")
    with pytest.raises(BrokerError, match="confirmed a publish that it has not got"):
        connection.receive(method_frame(1, confirm))


def test_a_peer_may_cancel_a_consumer_once() -> None:
    connection, channel = opened()
    channel.request(methods.BasicQos(0, 1, False))
    cancel = method_frame(1, methods.BasicCancel("t", no_wait=False))
    connection.receive(method_frame(1, methods.BasicConsumeOk("t")) + cancel)
    assert channel.cancelled == {"t"} and sent_methods(connection)[-1] == methods.BasicCancelOk("t")
    with pytest.raises(BrokerError, match="cancelled a consumer"):
        connection.receive(cancel)


def test_the_close_of_the_connection_is_answered_and_reaches_every_call() -> None:
    connection, channel = opened()
    close = methods.ConnectionClose(320, "CONNECTION_FORCED - amqp://u:s3cret@h is gone", 0, 0)
    with pytest.raises(PeerClosed) as closed:
        connection.receive(method_frame(0, close))
    connection.fail(closed.value)
    assert sent_methods(connection) == [methods.ConnectionCloseOk()]
    for call in (lambda: channel.publish("", "q", NO_PROPERTIES, b""), lambda: channel.ack(1), connection.check):
        with pytest.raises(
            PeerClosed, match="the peer closed the connection: 320 CONNECTION_FORCED - amqp://h is gone"
        ):
            call()


def test_the_close_of_a_channel_leaves_the_connection() -> None:
    connection, channel = opened()
    connection.receive(method_frame(1, methods.ChannelClose(404, "NOT_FOUND", 50, 10)))
    assert sent_methods(connection) == [methods.ChannelCloseOk()]
    with pytest.raises(PeerClosed) as closed:
        channel.check()
    assert (closed.value.scope, closed.value.reply_code) == ("channel", 404)
    connection.check()
