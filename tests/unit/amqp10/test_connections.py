"""Headers, SASL, open, sessions, idle time-outs, and how connections and sessions end."""

from __future__ import annotations

from typing import Any

import pytest
from amqp10_harness import (
    BEGIN,
    DISPOSITION,
    END,
    FLOW,
    Amqp10Client,
    Frame,
    amqp10_client,
    message,
    split_frames,
)
from engine_harness import PASSWORD, USER, Harness

from warren.amqp.methods import PROTOCOL_HEADER
from warren.amqp10.attaching import HANDLE_MAX
from warren.amqp10.peer import CHANNEL_MAX, EARLY_BYTES, Amqp10Peer
from warren.amqp10.performatives import (
    ACCEPTED,
    AMQP_HEADER,
    FRAME_SASL,
    HEARTBEAT,
    REJECTED,
    SASL_HEADER,
    SASL_INIT,
    TLS_HEADER,
    described,
    frame,
)
from warren.amqp10.values import Described, Symbol, UInt, ULong, UShort
from warren.channels.connection import Connection
from warren.channels.ending import force_close
from warren.channels.origin import Origin

from .test_publishing import error_of, outcomes


def sasl(mechanism: str, response: object = None) -> bytes:
    return frame(0, SASL_INIT, [Symbol(mechanism), response], frame_type=FRAME_SASL)


def ends_with(found: list[Frame], name: str) -> str:
    """Return the condition of the last frame, which is called `name`."""
    assert found and found[-1].name == name, found
    return error_of(found[-1])


def connect(harness: Harness, user: str | None = None) -> Connection:
    origin = Origin("127.0.0.1:1", "127.0.0.1:5672", "127.0.0.1", user, is_tls=True, is_web=True)
    peer = harness.broker.join(Connection, origin)
    assert isinstance(peer, Connection)
    return peer


def test_the_first_bytes_say_which_protocol_it_is() -> None:
    harness = Harness()
    harness.broker.other_protocols = {SASL_HEADER: Amqp10Peer}
    for cut in range(1, 8):
        connection = connect(harness, "somebody")
        connection.feed(SASL_HEADER[:cut])
        assert harness.broker.take_switched() is None
        connection.feed(SASL_HEADER[cut:])
        switched = harness.broker.take_switched()
        assert switched is not None
        peer, data = switched
        assert isinstance(peer, Amqp10Peer) and data == SASL_HEADER
        assert peer.key == connection.key and peer.origin is connection.origin
        assert peer.origin.shown(peer.protocol) == "Web AMQP 1.0"
        assert harness.broker.connections[peer.key] is peer
        peer.feed(data)
        peer.lost()
    assert not harness.broker.connections
    other = connect(harness)
    other.feed(PROTOCOL_HEADER)
    assert harness.broker.take_switched() is None and isinstance(other, Connection)


def test_the_time_for_the_handshake_begins_with_the_connection() -> None:
    harness = Harness()
    harness.broker.other_protocols = {SASL_HEADER: Amqp10Peer}
    connection = connect(harness)
    harness.advance(harness.broker.limits.handshake_timeout_s - 1)
    connection.feed(SASL_HEADER)
    switched = harness.broker.take_switched()
    assert switched is not None
    peer, data = switched
    peer.feed(data)
    harness.advance(0.5)
    assert peer.key in harness.broker.connections
    harness.advance(0.5)
    assert peer.key not in harness.broker.connections


def test_where_it_is_turned_off_the_answer_is_the_header_of_0_9_1() -> None:
    harness = Harness()
    connection = connect(harness)
    connection.feed(SASL_HEADER)
    assert connection.outbox.take() == [PROTOCOL_HEADER]


@pytest.mark.parametrize("header", [AMQP_HEADER, TLS_HEADER])
def test_without_sasl_the_answer_is_its_header_and_the_end(header: bytes) -> None:
    client = Amqp10Client(Harness())
    assert client.raw(header) == SASL_HEADER
    assert client.ended


def test_plain_and_anonymous_are_offered_and_external_to_whom_a_certificate_names() -> None:
    for certificate, offered in ((None, ["PLAIN", "ANONYMOUS"]), (USER, ["EXTERNAL", "PLAIN", "ANONYMOUS"])):
        client = Amqp10Client(Harness(), certificate_user=certificate)
        (mechanisms,) = client.feed(SASL_HEADER)
        assert mechanisms.field(0).elements == offered
        (outcome,) = client.feed(sasl("ANONYMOUS"))
        assert outcome.fields == [0]


def test_a_certificate_is_a_login() -> None:
    harness = Harness()
    client = Amqp10Client(harness, certificate_user=USER)
    client.feed(SASL_HEADER)
    client.peer.feed(sasl("EXTERNAL"))
    (request,) = harness.broker.logins
    assert request.certificate and request.user == USER


@pytest.mark.parametrize(
    "init",
    [
        sasl("PLAIN", b"\0guest\0wrong"),
        sasl("PLAIN", b"\0nobody\0guest"),
        sasl("PLAIN", b"guest"),
        sasl("PLAIN", b"\0\xff\0x"),
        sasl("PLAIN"),
        sasl("EXTERNAL"),
        sasl("SCRAM-SHA-256", b""),
    ],
)
def test_wrong_logins_are_refused_by_the_outcome(init: bytes) -> None:
    client = Amqp10Client(Harness())
    client.feed(SASL_HEADER)
    (outcome,) = client.feed(init)
    assert outcome.name == "sasl-outcome" and outcome.fields == [1]
    assert client.ended


@pytest.mark.parametrize(
    "data",
    [
        frame(0, 0x10, ["c"]),
        frame(0, SASL_INIT, [], frame_type=2),
        frame(0, 0x42, [], frame_type=FRAME_SASL),
        b"x" * 64,
    ],
)
def test_what_does_not_belong_to_sasl_ends_it(data: bytes) -> None:
    client = Amqp10Client(Harness())
    client.feed(SASL_HEADER)
    client.raw(data)
    assert client.ended


def test_open_tells_what_clients_of_rabbitmq_look_at() -> None:
    client = Amqp10Client(Harness())
    (opened,) = client.open()
    properties = opened.field(9)
    assert properties["product"] == "RabbitMQ"
    assert [int(part) for part in properties["version"].split(".")] >= [4, 0, 0]
    assert opened.fields[2:5] == [131072, CHANNEL_MAX, 30000]
    assert opened.field(7).elements == ["LINK_PAIR_V1_0", "ANONYMOUS-RELAY"]


def test_open_says_which_vhost_and_is_refused_with_a_reason() -> None:
    harness = Harness()
    client = Amqp10Client(harness)
    found = client.open("none")
    assert [each.name for each in found] == ["open", "close"]
    assert found[0].field(9)["amqp:connection-establishment-failed"] is True
    assert "amqp:connection-establishment-failed" not in Amqp10Client(Harness()).open()[0].field(9)
    assert ends_with(found, "close") == "amqp:not-allowed"
    assert not client.ended
    client.send(0x18, [])
    assert client.ended
    assert not harness.broker.connections


def test_another_host_name_is_the_default_vhost() -> None:
    client = Amqp10Client(Harness())
    client.login()
    client.raw(AMQP_HEADER)
    assert client.send(0x10, ["c", "broker.example.com"])[0].name == "open"
    assert client.peer.login.vhost_name == "/"


@pytest.mark.parametrize(
    ("fields", "condition"),
    [
        ([], "amqp:invalid-field"),
        (["c", None, UInt(511)], "amqp:invalid-field"),
        (["c", None, None, None, UInt(999)], "amqp:invalid-field"),
        ([5], "amqp:decode-error"),
        (["c", None, "much"], "amqp:decode-error"),
        (["c", *[None] * 8, ["no map"]], "amqp:decode-error"),
    ],
)
def test_an_open_that_cannot_be_is_refused(fields: list[Any], condition: str) -> None:
    client = Amqp10Client(Harness())
    client.login()
    client.raw(AMQP_HEADER)
    found = client.send(0x10, fields)
    assert [each.name for each in found] == ["open", "close"]
    assert error_of(found[1]) == condition


def test_the_idle_time_out_of_a_client_is_kept_with_empty_frames() -> None:
    harness = Harness()
    client = Amqp10Client(harness)
    client.open(idle=UInt(4000))
    for _ in range(8):
        client.raw(HEARTBEAT)
        harness.pass_time(0.5)
    assert client.peer.outbox.sent_bytes > 0
    assert client.raw(HEARTBEAT) in (HEARTBEAT, HEARTBEAT * 2)


def test_a_client_that_says_nothing_is_gone() -> None:
    harness = Harness(heartbeat_s=10)
    client = amqp10_client(harness)
    for _ in range(30):
        harness.pass_time(0.5)
    assert client.ended
    quiet = Amqp10Client(harness)
    quiet.raw(SASL_HEADER)
    harness.pass_time(20)
    assert quiet.ended


def test_sessions_have_channels_and_limits() -> None:
    harness = Harness()
    client = Amqp10Client(harness)
    client.open()
    for channel in range(CHANNEL_MAX + 1):
        begun = client.begin(channel)
        assert begun.channel == channel and begun.fields == [channel, 0, 4096, 0x7FFFFFFF, HANDLE_MAX]
    assert len(client.peer.channels) == CHANNEL_MAX + 1
    (close,) = client.send(0x11, [None, UInt(0), UInt(1), UInt(1)], CHANNEL_MAX + 1)
    assert close.name == "close"


def test_a_session_that_has_ended_may_begin_again() -> None:
    harness = Harness()
    client = amqp10_client(harness)
    (end,) = client.send(0x17, [])
    assert end.name == "end"
    assert client.begin().name == "begin"
    assert client.peer.login.usage is not None and client.peer.login.usage.channels == 1


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (0x11, [None, UInt(0), UInt(1), UInt(1)]),  # begin again
        (0x10, ["c"]),
        (0x40, []),
        (0x99, []),
    ],
)
def test_performatives_at_the_wrong_time_close_the_connection(code: int, fields: list[Any]) -> None:
    client = amqp10_client(Harness())
    found = client.send(code, fields)
    assert ends_with(found, "close") == "amqp:illegal-state"
    assert client.feed(b"\0\0\0\0" * 100) == []
    client.send(0x18, [])


@pytest.mark.parametrize("code", [0x12, 0x13, 0x14, 0x15, 0x16, 0x17])
def test_performatives_without_a_session_close_the_connection(code: int) -> None:
    client = Amqp10Client(Harness())
    client.open()
    assert ends_with(client.send(code, [], 3), "close") == "amqp:illegal-state"


@pytest.mark.parametrize(
    ("code", "fields", "condition"),
    [
        (0x12, ["n", UInt(0)], "amqp:invalid-field"),
        (0x12, [None, UInt(0), True], "amqp:invalid-field"),
        (0x12, ["n", UInt(HANDLE_MAX + 1), True], "amqp:resource-limit-exceeded"),
        (0x12, ["n" * 5000, UInt(0), True], "amqp:invalid-field"),
        (0x13, [UInt(0), UInt(1), UInt(0), UInt(1), UInt(9)], "amqp:session:unattached-handle"),
        (0x13, [], "amqp:invalid-field"),
        (0x14, [UInt(9), UInt(0), b"t"], "amqp:session:unattached-handle"),
        (0x16, [UInt(9)], "amqp:session:unattached-handle"),
    ],
)
def test_errors_of_a_session_end_it_and_not_the_connection(code: int, fields: list[Any], condition: str) -> None:
    harness = Harness()
    client = amqp10_client(harness)
    client.begin(1)
    found = client.send(code, fields)
    assert [each.name for each in found] == ["end"] and error_of(found[0]) == condition
    # Until the client has ended it, too, whatever comes is dropped.
    assert client.sender(0, "/queues/q") == []
    assert client.send(0x17, []) == []
    assert client.begin().name == "begin"
    assert client.sender(0, "/queues/q", channel=1)[0].name == "attach"


def test_a_handle_in_use_ends_the_session() -> None:
    client = amqp10_client(Harness())
    client.sender(0, "/queues/q")
    assert ends_with(client.sender(0, "/queues/q"), "end") == "amqp:session:handle-in-use"


def test_a_link_is_attached_once_more_when_both_have_detached() -> None:
    client = amqp10_client(Harness())
    client.sender(0, "/exchanges/none")
    assert ends_with(client.sender(0, "/queues/q"), "end") == "amqp:session:handle-in-use"


def test_close_is_answered_when_everything_has_ended() -> None:
    harness = Harness()
    harness.channel().declare("q")
    client = amqp10_client(harness)
    client.sender(0, "/queues/q")
    client.receiver(1, "/queues/q")
    client.transfer(0, message(b"x"))
    client.credit(1, 1)
    (close,) = client.send(0x18, [])
    assert close.name == "close" and close.fields == []
    assert client.ended
    assert harness.queue("q").ready_count == 1
    harness.check()


def test_what_was_published_is_answered_before_the_end() -> None:
    harness = Harness()
    harness.channel().declare("q")
    client = amqp10_client(harness)
    client.sender(0, "/queues/q")
    sent = client.transfer_frame(0, message(b"x")) + frame(0, 0x17, [])
    disposition, end = client.feed(sent)
    assert outcomes([disposition]) == [(0, 0, 0x24)] and end.name == "end"


def test_an_operator_closes_a_connection_with_a_reason() -> None:
    harness = Harness()
    client = amqp10_client(harness)
    force_close(client.peer, "enough")
    harness.settle()
    (close,) = client.take()
    error = close.field(0)
    assert isinstance(error, Described)
    assert error.value == ["amqp:connection:forced", "enough"]
    client.send(0x18, [])
    assert client.ended


def test_a_client_that_never_closes_is_ended_all_the_same() -> None:
    harness = Harness()
    client = amqp10_client(harness)
    force_close(client.peer, "enough")
    harness.pass_time(60)
    assert client.ended


@pytest.mark.parametrize(
    "data",
    [
        b"\0\0\0\7\2\0\0\0",
        b"\xff\xff\xff\xff\2\0\0\0",
        (131073).to_bytes(4, "big") + b"\2\0\0\0",
        b"\0\0\0\x0c\1\0\0\0" + bytes(4),
        b"\0\0\0\x0c\4\0\0\0" + bytes(4),
        b"\0\0\0\x0c\2\1\0\0" + bytes(4),
    ],
)
def test_frames_that_are_none_close_the_connection(data: bytes) -> None:
    harness = Harness()
    client = amqp10_client(harness)
    found = client.feed(data + b"garbage" * 100)
    assert ends_with(found, "close") == "amqp:connection:framing-error"
    harness.pass_time(5)
    assert client.ended


def test_frames_before_open_are_small() -> None:
    client = Amqp10Client(Harness())
    client.login()
    client.raw(AMQP_HEADER)
    found = client.feed((EARLY_BYTES + 1).to_bytes(4, "big") + b"\2\0\0\0")
    assert ends_with(found, "close") == "amqp:connection:framing-error"


def test_an_extended_header_is_passed_over() -> None:
    client = amqp10_client(Harness())
    plain = frame(0, 0x17, [])
    extended = (len(plain) + 8).to_bytes(4, "big") + b"\4" + plain[5:8] + b"extended" + plain[8:]
    assert [each.name for each in client.feed(extended)] == ["end"]


def test_the_limits_of_a_user_hold() -> None:
    harness = Harness(connections_max=1)
    amqp10_client(harness)
    second = Amqp10Client(harness)
    assert ends_with(second.open(), "close") == "amqp:not-allowed"


BEGUN = frame(1, BEGIN, [None, UInt(0), UInt(9), UInt(9)])
ENDED = frame(1, END, [])
LONG_STATE: list[object] = [Described(ULong(0x1D), [Symbol("no:good"), "x" * 4000])]


@pytest.mark.parametrize(
    ("asked", "count"),
    [
        (frame(0, DISPOSITION, [True, UInt(0), UInt(2), False, described(REJECTED, LONG_STATE)]), 50),
        # Sessions that fail, each ended by both.
        (BEGUN + frame(1, FLOW, [UInt(0), UInt(9), UInt(0), UInt(9), UInt(5)]) + ENDED, 500),
        (BEGUN + ENDED, 1000),
    ],
    ids=["dispositions", "sessions that fail", "sessions"],
)
def test_who_does_not_take_answers_is_not_read_beyond_a_limit_and_then_again(asked: bytes, count: int) -> None:
    harness = Harness(outbox_soft_bytes=10_000, outbox_hard_bytes=20_000)
    harness.channel().declare("q")
    publisher = harness.channel()
    for _ in range(3):
        publisher.publish("", "q", b"x")
    client = amqp10_client(harness)
    client.receiver(0, "/queues/q")
    assert len(client.credit(0, 3)) == 3
    client.stall(stalled=True)
    for _ in range(count):
        client.feed(asked)
    assert 20_000 < client.peer.outbox.waiting_bytes() < 25_000
    assert client.peer.paused
    client.stall(stalled=False)
    answers = [each for each in client.take() if each.name != "begin"]
    assert len(answers) == count
    assert not client.peer.paused


def test_what_is_settled_is_taken_while_much_waits() -> None:
    harness = Harness(outbox_soft_bytes=1000, outbox_hard_bytes=2000)
    publisher = harness.channel()
    publisher.declare("q")
    publisher.publish("", "q", bytes(3000))
    client = amqp10_client(harness)
    client.receiver(0, "/queues/q")
    client.stall(stalled=True)
    client.credit(0, 1)
    assert harness.queue("q").unacked_count == 1
    client.settle(0, 0, ACCEPTED)
    assert harness.queue("q").unacked_count == 0


def test_a_connection_is_listed_as_what_it_is() -> None:
    harness = Harness()
    client = amqp10_client(harness)
    assert client.peer.protocol == "AMQP 1.0"
    assert client.peer.login.name == "client" and client.peer.login.user_name == USER and PASSWORD
    assert split_frames(b"") == []
    assert UShort(1) == 1
