"""Connections that are being closed while something else happens to them."""

from __future__ import annotations

from engine_harness import Harness

from warren.amqp import methods as m


def test_a_broker_that_is_shut_down_leaves_the_time_to_answer_to_those_that_it_is_closing() -> None:
    harness = Harness()
    client = harness.channel()
    client.send(2, m.BasicQos(0, 1, False))  # there is no such channel
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
