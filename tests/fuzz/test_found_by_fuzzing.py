"""Faults that the fuzzer and the splits have found, each as the shortest dialogue that shows it."""

from __future__ import annotations

from typing import Any

import pytest
from engine import Client, Engine
from peer_frames import content_header

from warren.amqp import methods as m
from warren.amqp.field_table import EMPTY_TABLE
from warren.amqp.methods import PROTOCOL_HEADER
from warren.amqp.specification import parse_frames
from warren.channels.ending import force_close

from .session import WireFrame, closed, handshake, method, opened, publish


def encoded(frames: list[WireFrame]) -> bytes:
    return b"".join(frame.encode() for frame in frames)


def connected(engine: Engine, channels: list[int]) -> Client:
    client = engine.connect()
    client.connection.feed(PROTOCOL_HEADER + encoded(handshake()))
    engine.settle()
    client.connection.feed(encoded([frame for number in channels for frame in opened(number)]))
    engine.settle()
    client.take()
    return client


def methods_received(client: Client) -> list[tuple[int, Any]]:
    return [(frame.channel, frame.payload) for frame in parse_frames(client.take()) if frame.type == m.FRAME_METHOD]


@pytest.mark.parametrize(
    "broken",
    [b"\x01\x00\x00\x00\x00\x00\x04\x00\x0a\x00\x33\x00", b"\x01\x00\x00\xff\xff\xff\xff"],
    ids=["bad frame end", "huge frame"],
)
def test_a_broken_frame_behind_our_close_is_not_answered_by_a_second_close(broken: bytes) -> None:
    engine = Engine()
    client = connected(engine, [1])
    force_close(client.connection, "enough")
    client.connection.feed(broken)
    engine.settle()
    assert [type(call) for _, call in methods_received(client)] == [m.ConnectionClose]


@pytest.mark.parametrize("number", [0x7FFF, 0x8000, 0xFFFF])
def test_the_highest_channel_numbers_get_deliveries_gets_and_returns(number: int) -> None:
    engine = Engine()
    client = connected(engine, [number])
    client.connection.feed(
        encoded(
            [
                method(number, m.QueueDeclare(0, "q", False, False, False, False, False, EMPTY_TABLE)),
                method(number, m.BasicConsume(0, "q", "c", False, True, False, False, EMPTY_TABLE)),
                *publish(number, "", "q", {}, b"delivered"),
                method(number, m.BasicCancel("c", False)),
                *publish(number, "", "q", {}, b"gotten"),
                method(number, m.BasicGet(0, "q", True)),
                *publish(number, "", "nowhere", {"reply_to": "r"}, b"returned", mandatory=True),
            ]
        )
    )
    engine.settle()
    calls = methods_received(client)
    assert {channel for channel, _ in calls} == {number}
    assert {m.BasicDeliver, m.BasicGetOk, m.BasicReturn} < {type(call) for _, call in calls}


def test_close_ok_does_not_overtake_replies_that_wait_for_a_commit() -> None:
    engine = Engine()
    client = connected(engine, [1])
    durable = m.QueueDeclare(0, "q", False, True, False, False, False, EMPTY_TABLE)
    refused = m.ExchangeDelete(0, "amq.topic", if_unused=False, no_wait=False)
    client.connection.feed(encoded([method(1, durable), method(1, refused), *closed(1)]))
    engine.settle(commit=False)
    assert methods_received(client) == []
    engine.settle()
    assert [type(call) for _, call in methods_received(client)] == [
        m.QueueDeclareOk,
        m.ChannelClose,
        m.ChannelCloseOk,
    ]


def test_what_lies_behind_the_handshake_in_the_same_read_does_not_count_as_early() -> None:
    engine = Engine(commits_at_once=True)
    client = engine.connect()
    start_ok, *rest = handshake()
    client.connection.feed(PROTOCOL_HEADER + start_ok.encode())
    engine.settle()
    much = [frame for _ in range(30) for frame in publish(1, "", "nowhere", {}, b"x" * 4000)]
    client.connection.feed(encoded([*rest, *opened(1), *much]))
    engine.settle()
    assert [type(call) for _, call in methods_received(client)][-2:] == [m.ConnectionOpenOk, m.ChannelOpenOk]
    assert not client.ended


def test_a_content_refused_behind_frames_of_other_channels_names_its_publish() -> None:
    engine = Engine()
    client = connected(engine, [1, 2])
    call, _, body = publish(1, "", "q", {}, b"hello")
    refused = WireFrame(m.FRAME_HEADER, 1, content_header({"expiration": "soon"}, 5))
    client.connection.feed(encoded([call, method(2, m.BasicRecover(True)), refused, body]))
    engine.settle()
    closes = [reply for _, reply in methods_received(client) if isinstance(reply, m.ChannelClose)]
    assert [(close.reply_code, close.class_id, close.method_id) for close in closes] == [(406, 60, 40)]


@pytest.mark.parametrize("body", [b"", b"hello", b"x" * 20000], ids=["no body", "small", "several frames"])
def test_a_message_whose_queue_is_deleted_before_its_last_frame_is_returned_and_leaves_nothing(body: bytes) -> None:
    engine = Engine()
    client = connected(engine, [1, 2])
    durable = m.QueueDeclare(0, "q", False, True, False, False, False, EMPTY_TABLE)
    deleted = m.QueueDelete(0, "q", if_unused=False, if_empty=False, no_wait=False)
    *first, last = publish(1, "", "q", {"delivery_mode": 2}, body, mandatory=True)
    client.connection.feed(encoded([method(2, durable), *first, method(2, deleted), last]))
    engine.settle()
    assert m.BasicReturn in [type(call) for _, call in methods_received(client)]
    assert not engine.indexes
