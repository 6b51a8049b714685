"""Each end of a consumer: it leaves channel and queue once, and listeners hear of it once (consuming (4))."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from engine_harness import USER, Client, Harness

from warren.amqp import methods as m
from warren.channels.consuming import REPLY_TO_NAME, cancel_by_broker, cancel_by_operator
from warren.channels.ending import force_close
from warren.channels.session import Session
from warren.queues.consumer import Consumer
from warren.vhosts.topology_watcher import TopologyWatcher

End = Callable[[Harness, Client, Consumer], None]


class Listening(TopologyWatcher):
    def __init__(self) -> None:
        self.created: list[str] = []
        self.deleted: list[str] = []

    def consumer_created(self, consumer: Consumer) -> None:
        assert isinstance(consumer.owner, Session)
        self.created.append(consumer.tag)

    def consumer_deleted(self, consumer: Consumer) -> None:
        assert isinstance(consumer.owner, Session), "it names its channel"
        self.deleted.append(consumer.tag)


def session_of(client: Client) -> Session:
    return client.connection.channels[1]


def _cancelled(harness: Harness, client: Client, consumer: Consumer) -> None:
    client.call(1, m.BasicCancel("t", False))
    client.call(1, m.BasicCancel("t", False))


def _channel_closed(harness: Harness, client: Client, consumer: Consumer) -> None:
    client.call(1, m.ChannelClose(200, "", 0, 0))


def _lost(harness: Harness, client: Client, consumer: Consumer) -> None:
    client.hang_up()


def _forced(harness: Harness, client: Client, consumer: Consumer) -> None:
    force_close(client.connection, "enough")
    harness.settle()


def _deleted(harness: Harness, client: Client, consumer: Consumer) -> None:
    client.send(1, m.QueueDelete(0, "q", False, False, False))


def _deleted_by_another(harness: Harness, client: Client, consumer: Consumer) -> None:
    harness.channel().call(1, m.QueueDelete(0, "q", False, False, False))


def _forbidden(harness: Harness, client: Client, consumer: Consumer) -> None:
    harness.permit(USER, read="other")


def _overdue(harness: Harness, client: Client, consumer: Consumer) -> None:
    client.publish("", "q", b"m")
    harness.pass_time(1)


def _by_operator(harness: Harness, client: Client, consumer: Consumer) -> None:
    assert cancel_by_operator(session_of(client), consumer, "enough")


ENDS: list[End] = [
    _cancelled,
    _channel_closed,
    _lost,
    _forced,
    _deleted,
    _deleted_by_another,
    _forbidden,
    _overdue,
    _by_operator,
]


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__[1:])
def test_a_consumer_ends_once_however_it_ends(end: End) -> None:
    harness = Harness()
    listening = Listening()
    harness.broker.watchers.add(listening)
    client = harness.channel()
    client.declare("q", arguments={"x-consumer-timeout": 1000})
    client.consume("q", "t")
    client.consume(REPLY_TO_NAME, "replies", no_ack=True)
    consumer = session_of(client).ledger.consumers["t"]
    queue = harness.queue("q")
    end(harness, client, consumer)
    assert listening.created == listening.deleted == ["t"]
    assert consumer.owner is None
    assert not queue.consumers
    assert "t" not in consumer.ledger.consumers
    client.hang_up()
    assert listening.deleted == ["t"]
    assert harness.vhost.reply_queues == {}


def test_a_consumer_that_has_left_does_not_take_the_next_of_its_name_along() -> None:
    harness = Harness()
    listening = Listening()
    harness.broker.watchers.add(listening)
    client = harness.channel()
    client.declare("q")
    client.consume("q", "t")
    session = session_of(client)
    first = session.ledger.consumers["t"]
    client.call(1, m.BasicCancel("t", False))
    client.consume("q", "t")
    cancel_by_broker(session, first)
    harness.settle()
    client.nothing()
    assert listening.deleted == ["t"]
    assert list(session.ledger.consumers) == ["t"]
    client.publish("", "q", b"m")
    assert client.bodies() == [b"m"]


def test_sessions_without_consumers_share_a_table_that_does_not_change() -> None:
    harness = Harness()
    one, other = harness.channel(), harness.channel()
    assert session_of(one).ledger.consumers is session_of(other).ledger.consumers
    one.declare("q")
    one.consume("q", "t")
    assert list(session_of(one).ledger.consumers) == ["t"]
    assert session_of(other).ledger.consumers == {}
