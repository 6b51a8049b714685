"""Connections that are being closed while something else happens to them."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from engine_harness import Harness, basic_consume, publish_frames

from warren.amqp import methods as m
from warren.channels.channel import Channel
from warren.channels.ending import close_broken
from warren.channels.peer import CLOSE_TIMEOUT_S
from warren.channels.publisher import Publisher


def test_a_broker_that_is_shut_down_leaves_the_time_to_answer_to_those_that_it_is_closing() -> None:
    harness = Harness()
    client = harness.channel()
    client.send(2, m.BasicQos(0, 1, False))  # the channel does not exist
    assert [type(each.method) for each in client.take()] == [m.ConnectionClose]
    harness.broker.shut_down("test")
    harness.settle()
    assert client.take() == [] and not client.ended
    client.send(0, m.ConnectionCloseOk())
    assert client.ended


def test_a_broker_that_is_shut_down_drops_who_is_not_connected_yet() -> None:
    harness = Harness()
    client = harness.raw_client()
    client.start()
    harness.broker.shut_down("test")
    harness.settle()
    assert client.take() == [] and client.ended


def test_a_peer_has_its_time_to_answer_a_close_whenever_that_comes() -> None:
    harness = Harness()
    client = harness.channel()
    harness.pass_time(1000)
    client.send(2, m.BasicQos(0, 1, False))  # the channel does not exist
    harness.pass_time(CLOSE_TIMEOUT_S - 1)
    assert not client.ended
    harness.pass_time(2)
    assert client.ended


def test_a_fault_of_ours_closes_an_open_connection_with_541_and_drops_another_one() -> None:
    harness = Harness()
    client, stranger = harness.channel(), harness.raw_client()
    stranger.start()
    for each in (client, stranger):
        close_broken(each.connection)
        harness.settle()
    refusal = client.refusal()
    assert (refusal.code, refusal.text) == (541, "INTERNAL_ERROR - an internal error, see the broker's log")
    assert stranger.take() == [] and stranger.ended


@pytest.mark.parametrize(
    ("number", "end"),
    [(1, m.ChannelClose(200, "", 0, 0)), (0, m.ConnectionClose(200, "", 0, 0))],
    ids=["channel.close", "connection.close"],
)
def test_a_channel_that_has_ended_leaves_nothing_to_the_cyclic_collector(number: int, end: Any) -> None:
    harness = Harness()
    client = harness.channel()
    client.declare("q")
    client.feed(publish_frames("", "q", b"x", properties={"expiration": "60000"}))
    client.send(1, basic_consume("q", "c"))
    gc.collect()
    before = _channels()
    gc.disable()
    try:
        client.send(number, end)
        assert before - _channels() == 2, "the channel and its publisher"
    finally:
        gc.enable()


def _channels() -> int:
    return sum(isinstance(each, Channel | Publisher) for each in gc.get_objects())
