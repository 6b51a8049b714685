"""Replies that wait until what they report is on disk: reply_gate (1) to (3)."""

from __future__ import annotations

from typing import Any

import pytest
from engine_harness import Harness, exchange_declare, queue_declare

from warren.amqp import methods as m
from warren.amqp.codec import frame
from warren.amqp.field_table import EMPTY_TABLE
from warren.amqp.outbox import Outbox
from warren.channels.reply_gate import REPLIES_MAX, ReplyGate


def opened(gate: ReplyGate, ticket: int, batch: int) -> bytes:
    """Return the bytes that leave when `ticket` and `batch` are on disk."""
    outbox = Outbox(1, [])
    gate.open(ticket, batch, outbox)
    return b"".join(bytes(piece) for piece in outbox.take())


def test_a_reply_waits_for_its_ticket_and_its_batch_and_those_behind_it_for_it() -> None:
    gate = ReplyGate()
    gate.hold(5, 0, b"a")
    gate.hold(0, 7, b"b")
    gate.hold(5, 0, b"c")
    assert opened(gate, 4, 7) == b""
    assert opened(gate, 5, 6) == b"a"
    assert gate.is_shut()
    assert opened(gate, 5, 7) == b"bc"
    assert not gate.is_shut()
    assert opened(gate, 5, 7) == b""


def test_it_is_full_with_as_many_as_may_wait() -> None:
    gate = ReplyGate()
    for number in range(REPLIES_MAX):
        assert not gate.is_full()
        gate.hold(number, 0, b"")
    assert gate.is_full()
    assert opened(gate, 0, 0) == b"" and not gate.is_full()


def test_nothing_that_waited_follows_a_close_by_the_broker() -> None:
    harness = Harness()
    client = harness.channel()
    harness.hold_commits = True
    client.send(1, queue_declare("q", durable=True))
    client.nothing()
    client.feed(frame(200, 0, b""))  # the type does not exist
    assert [type(each.method) for each in client.take()] == [m.ConnectionClose]
    harness.hold_commits = False
    harness.settle()
    assert client.take() == []
    assert "q" in harness.vhost.queues


def test_a_peer_that_closes_has_the_replies_that_waited_first() -> None:
    harness = Harness()
    client = harness.channel()
    harness.hold_commits = True
    client.send(1, queue_declare("q", durable=True))
    client.send(0, m.ConnectionClose(200, "", 0, 0))
    client.nothing()
    harness.hold_commits = False
    harness.settle()
    assert [type(each.method) for each in client.take()] == [m.QueueDeclareOk, m.ConnectionCloseOk]


@pytest.mark.parametrize("durable", [False, True])
def test_a_binding_that_is_there_already_waits_for_what_it_promises(durable: bool) -> None:
    harness = Harness()
    client, other = harness.channel(), harness.channel()
    client.declare("q", durable=durable)
    bind = m.QueueBind(0, "q", "amq.direct", "k", False, EMPTY_TABLE)
    client.call(1, bind)
    harness.hold_commits = True
    other.send(1, queue_declare("durable", durable=True))
    client.send(1, bind)
    at_once = [type(each.method) for each in client.take()]
    harness.hold_commits = False
    harness.settle()
    later = [type(each.method) for each in client.take()]
    assert (at_once, later) == (([], [m.QueueBindOk]) if durable else ([m.QueueBindOk], []))


@pytest.mark.parametrize("call", [
    m.QueueDelete(0, "q", if_unused=False, if_empty=False, no_wait=False),
    m.ExchangeDelete(0, "x", if_unused=False, no_wait=False),
    m.QueueUnbind(0, "q", "x", "k", EMPTY_TABLE),
    m.ExchangeUnbind(0, "y", "x", "k", False, EMPTY_TABLE),
])  # fmt: skip
def test_a_client_is_not_told_that_something_is_gone_before_that_is_on_disk(call: Any) -> None:
    """Another client has removed it; after a crash it may be there again."""
    harness = Harness()
    one, other = harness.channel(), harness.channel()
    for name in ("x", "y"):
        one.call(1, exchange_declare(name, durable=True))
    one.declare("q", durable=True)
    one.bind("q", "x", "k")
    one.call(1, m.ExchangeBind(0, "y", "x", "k", False, EMPTY_TABLE))
    harness.hold_commits = True
    one.send(1, call)
    other.send(1, call)
    one.nothing()
    other.nothing()
    harness.hold_commits = False
    harness.settle()
    assert len(one.take()) == len(other.take()) == 1
