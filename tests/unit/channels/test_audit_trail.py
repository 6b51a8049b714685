"""Deletes and purges over AMQP, with their users. Numbers: ``channels/audit_trail.py``."""

from __future__ import annotations

from engine_harness import Client, Harness
from peer_frames import USER

from warren.amqp import methods as m
from warren.channels.audit_trail import EVENT, LINES_MAX
from warren.channels.broker import Notice
from warren.channels.ending import force_close

PEER = "127.0.0.1:50000"


def told(harness: Harness) -> list[Notice]:
    return [notice for notice in harness.notices if notice.event == EVENT]


def lines(harness: Harness) -> list[dict[str, object]]:
    return [notice.fields for notice in told(harness)]


def line(did: str, **more: object) -> dict[str, object]:
    return {"did": did, "vhost": "/", "user": USER, "peer": PEER, **more}


def declare_exchange(client: Client, name: str, *, durable: bool = True, auto_delete: bool = False) -> None:
    client.call(1, m.ExchangeDeclare(0, name, "fanout", False, durable, auto_delete, False, False, b"\0\0\0\0"))


def test_what_is_deleted_and_emptied_has_a_line_with_who_and_how_much(harness: Harness) -> None:
    """(1)"""
    client = harness.channel()
    client.declare("orders", durable=True)
    client.publish("", "orders", b"1")
    client.publish("", "orders", b"2")
    client.call(1, m.QueuePurge(0, "orders", False))
    client.publish("", "orders", b"3")
    client.call(1, m.QueueDelete(0, "orders", if_unused=False, if_empty=False, no_wait=False))
    declare_exchange(client, "events")
    client.call(1, m.ExchangeDelete(0, "events", if_unused=False, no_wait=False))
    assert lines(harness) == [
        line("queue.purge orders", messages=2),
        line("queue.delete orders", messages=1),
        line("exchange.delete events"),
    ]
    assert {notice.level for notice in told(harness)} == {"info"}


def test_a_method_without_a_reply_has_a_line_too(harness: Harness) -> None:
    """(1)"""
    client = harness.channel()
    client.declare("orders", durable=True)
    client.send(1, m.QueueDelete(0, "orders", if_unused=False, if_empty=False, no_wait=True))
    assert lines(harness) == [line("queue.delete orders", messages=0)]


def test_what_comes_and_goes_with_its_clients_has_none(harness: Harness) -> None:
    """(1)"""
    client = harness.channel()
    client.declare("transient")
    client.declare("own", durable=True, exclusive=True)
    client.declare("short", durable=True, auto_delete=True)
    for name in ("transient", "own", "short"):
        client.publish("", name, b"x")
        client.call(1, m.QueuePurge(0, name, False))
        client.call(1, m.QueueDelete(0, name, if_unused=False, if_empty=False, no_wait=False))
    for durable, auto_delete in ((False, False), (True, True)):
        declare_exchange(client, "e", durable=durable, auto_delete=auto_delete)
        client.call(1, m.ExchangeDelete(0, "e", if_unused=False, no_wait=False))
    assert lines(harness) == []


def test_what_changes_nothing_has_none(harness: Harness) -> None:
    """(1)"""
    client = harness.channel()
    client.declare("empty", durable=True)
    client.call(1, m.QueuePurge(0, "empty", False))
    client.call(1, m.QueueDelete(0, "nowhere", if_unused=False, if_empty=False, no_wait=False))
    client.call(1, m.ExchangeDelete(0, "nowhere", if_unused=False, no_wait=False))
    client.publish("", "empty", b"x")
    client.send(1, m.QueueDelete(0, "empty", if_unused=False, if_empty=True, no_wait=False))
    assert client.refusal().code == 406
    assert lines(harness) == []


def test_more_than_a_user_may_have_is_one_line_with_their_number(harness: Harness) -> None:
    """(2) And another user has lines of their own meanwhile."""
    harness.add_user("other")
    many, few = harness.channel(), harness.channel("other")
    names = [f"q{at}" for at in range(LINES_MAX + 30)]
    for name in (*names, "last"):
        many.declare(name, durable=True)
    for name in names:
        many.send(1, m.QueueDelete(0, name, if_unused=False, if_empty=False, no_wait=True))
    few.declare("kept", durable=True)
    few.call(1, m.QueueDelete(0, "kept", if_unused=False, if_empty=False, no_wait=False))
    assert [each["did"] for each in lines(harness)] == [f"queue.delete q{at}" for at in range(LINES_MAX)] + [
        "queue.delete kept"
    ]
    harness.pass_time(1)
    assert lines(harness)[LINES_MAX + 1 :] == [{"did": "more deletes and purges", "user": USER, "count": 30}]
    assert told(harness)[-1].level == "warning"
    many.call(1, m.QueueDelete(0, "last", if_unused=False, if_empty=False, no_wait=False))
    assert lines(harness)[-1]["did"] == "queue.delete last"
    harness.pass_time(1)
    assert lines(harness)[-1]["did"] == "queue.delete last"


def test_what_management_does_for_a_user_has_no_line_here(harness: Harness) -> None:
    """(3)"""
    client = harness.channel()
    client.declare("orders", durable=True)
    harness.broker.open_direct(USER, "/").command(
        m.QueueDelete(0, "orders", if_unused=False, if_empty=False, no_wait=False)
    )
    harness.settle()
    assert "orders" not in harness.vhost.queues
    assert lines(harness) == []


def test_a_connection_that_is_closed_from_here_has_a_line_with_the_reason(harness: Harness) -> None:
    client = harness.channel()
    force_close(client.connection, "maintenance at noon")
    harness.settle()
    (notice,) = [notice for notice in harness.notices if notice.event == "connection.forced"]
    assert notice.fields == {"peer": PEER, "user": USER, "vhost": "/", "reason": "maintenance at noon"}


def test_a_broker_that_stops_says_so_once_and_not_for_each_connection(harness: Harness) -> None:
    client = harness.channel()
    harness.broker.shut_down("shutdown")
    harness.settle()
    assert client.refusal().code == 320
    assert "connection.forced" not in harness.events()
