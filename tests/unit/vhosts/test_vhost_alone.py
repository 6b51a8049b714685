"""A vhost without connections: tickets, default queue types, what a restore leaves out, and deletions."""

from __future__ import annotations

import pytest
from journalled_log import JournalledLog

from warren.amqp.declarations import ExchangeDeclaration, QueueDeclaration
from warren.amqp.errors import ChannelException
from warren.amqp.field_table import EMPTY_TABLE, Table, encode_table
from warren.exchanges.binding import Binding
from warren.exchanges.exchange import Exchange
from warren.queues.base_queue import BaseQueue
from warren.queues.timers import TimerQueue
from warren.vhosts.metadata import BindingPut, ExchangePut, QueuePut, VhostPut
from warren.vhosts.topology_watcher import TopologyWatcher
from warren.vhosts.virtual_host import VirtualHost


class Heard(TopologyWatcher):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def exchange_created(self, vhost: str, exchange: Exchange, by: str) -> None:
        self.told.append(f"+{exchange.name} by {by}")

    def exchange_deleted(self, vhost: str, exchange: Exchange, by: str) -> None:
        self.told.append(f"-{exchange.name} by {by}")

    def queue_created(self, vhost: str, queue: BaseQueue, by: str) -> None:
        self.told.append(f"+{queue.name} by {by}")

    def binding_created(self, vhost: str, binding: Binding, by: str) -> None:
        self.told.append(f"+{binding.source.name}->{binding.destination.name} by {by}")

    def binding_deleted(self, vhost: str, binding: Binding, by: str) -> None:
        self.told.append(f"-{binding.source.name}->{binding.destination.name} by {by}")


class Alone:
    """A vhost on a journal and a log, and what its watcher was told."""

    def __init__(self, default_queue_type: str = "") -> None:
        stored = JournalledLog()
        self.journal = stored.journal
        record = VhostPut("v", default_queue_type=default_queue_type)
        self.vhost = VirtualHost(record, self.journal, [], 1, stored.log, TimerQueue())
        self.vhost.work = stored.work
        self.heard = Heard()
        self.vhost.watcher = self.heard

    def queue(self, name: str, arguments: Table | None = None, **flags: bool) -> int:
        """Declare a queue, durable unless told otherwise; return the ticket."""
        flags.setdefault("durable", True)
        return self.vhost.declare_queue(QueueDeclaration(name, arguments=encode_table(arguments or {}), **flags))

    def exchange(self, name: str, kind: str = "direct", *, durable: bool = True, auto_delete: bool = False) -> int:
        """Declare an exchange; return the ticket."""
        return self.vhost.declare_exchange(ExchangeDeclaration(name, kind, durable=durable, auto_delete=auto_delete))

    def bind(self, source: str, queue: str, key: str = "k") -> int:
        """Bind a queue; return the ticket."""
        return self.vhost.bind(self.vhost.exchanges[source], self.vhost.queues[queue], key, EMPTY_TABLE)

    def unbind(self, source: str, queue: str, key: str = "k") -> int:
        """Unbind a queue; return the ticket."""
        return self.vhost.unbind(self.vhost.exchanges[source], self.vhost.queues[queue], key, EMPTY_TABLE)


def test_only_what_is_durable_has_a_ticket() -> None:
    alone = Alone()
    assert alone.queue("q") == 1
    assert alone.queue("t", durable=False) == 0
    assert alone.exchange("x") == 2
    assert alone.exchange("y", durable=False) == 0
    assert alone.bind("x", "q") == 3
    assert (alone.bind("x", "t"), alone.bind("y", "q")) == (0, 0)
    assert alone.unbind("x", "q") == 4
    assert (alone.unbind("x", "t"), alone.unbind("y", "q")) == (0, 0)
    assert alone.vhost.take_queue_out(alone.vhost.queues["t"]) == 0
    assert alone.vhost.take_queue_out(alone.vhost.queues["q"]) == 5
    assert alone.vhost.delete_exchange(alone.vhost.exchanges["y"]) == 0
    assert alone.vhost.delete_exchange(alone.vhost.exchanges["x"]) == 6


def test_a_declaration_of_what_is_there_waits_for_the_first_one() -> None:
    alone = Alone()
    assert (alone.queue("q"), alone.queue("other")) == (1, 2)
    assert alone.queue("q") == 1, "the ticket of its queue, not of the last change"
    assert alone.exchange("x") == 3
    assert alone.bind("x", "q") == alone.bind("x", "q") == 4
    assert alone.journal.last_ticket == 4
    assert alone.heard.told == [f"+{each} by rmq-internal" for each in ("q", "other", "x", "x->q")]


@pytest.mark.parametrize(("name", "code"), [("missing", 404), ("q", 405)])
def test_a_queue_is_not_there_for_everybody(name: str, code: int) -> None:
    alone, owner, other = Alone(), object(), object()
    alone.vhost.declare_queue(QueueDeclaration("q", durable=True, exclusive=True), owner)
    assert not alone.vhost.queue("q", owner).durable
    with pytest.raises(ChannelException) as refusal:
        alone.vhost.queue(name, other)
    assert refusal.value.reply_code == code
    with pytest.raises(ChannelException) as refusal:
        alone.vhost.exchange("missing")
    assert refusal.value.reply_code == 404


@pytest.mark.parametrize(
    ("default", "flags", "arguments", "queue_type"),
    [
        ("", {}, {}, "classic"),
        ("undefined", {}, {}, "classic"),
        ("quorum", {}, {}, "quorum"),
        ("quorum", {}, {"x-queue-type": "classic"}, "classic"),
        ("quorum", {"durable": False}, {}, "classic"),
        ("quorum", {"auto_delete": True}, {}, "classic"),
        ("classic", {"durable": False}, {}, "classic"),
        ("classic", {}, {"x-queue-type": "stream"}, "stream"),
        ("stream", {}, {"x-max-length-bytes": 1000}, "stream"),
    ],
)
def test_a_queue_without_a_type_has_the_default_if_it_may(
    default: str, flags: dict[str, bool], arguments: Table, queue_type: str
) -> None:
    alone = Alone(default)
    alone.queue("q", arguments, **flags)
    assert alone.vhost.queues["q"].rules.queue_type == queue_type
    version = int(alone.vhost.topology_version)
    alone.queue("q", arguments, **flags)
    assert alone.vhost.topology_version == version, "the same declaration is equivalent"


def test_a_queue_of_before_the_default_can_be_declared_as_it_was() -> None:
    alone = Alone("quorum")
    alone.vhost.restore(QueuePut("v", "old", False, EMPTY_TABLE, 7))
    assert alone.vhost.queues["old"].rules.queue_type == "classic"
    alone.queue("old")
    with pytest.raises(ChannelException, match="x-queue-type"):
        alone.queue("old", {"x-queue-type": "quorum"})


def test_a_restore_is_neither_journalled_nor_told() -> None:
    alone = Alone()
    alone.vhost.restore(
        ExchangePut("v", "x", "direct", auto_delete=False, internal=False, arguments=EMPTY_TABLE, declared_by="someone")
    )
    alone.vhost.restore(QueuePut("v", "q", False, EMPTY_TABLE, 41))
    alone.vhost.restore(BindingPut("v", "x", "q", "queue", "k", EMPTY_TABLE))
    assert (alone.journal.last_ticket, alone.heard.told) == (0, [])
    assert alone.vhost.exchanges["x"].declared_by == "someone"
    queue = alone.vhost.queues["q"]
    assert (queue.store_id, queue.ticket) == (41, 0)
    assert [source.name for source in alone.vhost.incoming.sources_of(queue)] == ["x"]
    alone.queue("next")
    assert int(alone.vhost.queues["next"].store_id) > 41, "numbers of restored queues are not given again"
    with pytest.raises(ChannelException, match="no queue 'gone'"):
        alone.vhost.restore(BindingPut("v", "x", "gone", "queue", "k", EMPTY_TABLE))
    assert (alone.queue("then"), alone.heard.told[-1]) == (2, "+then by rmq-internal")


def test_arguments_that_are_refused_change_nothing() -> None:
    alone = Alone()
    alone.queue("q", {"x-max-length": 5})
    queue = alone.vhost.queues["q"]
    arguments, parsed, rules = queue.arguments, queue.parsed, queue.rules
    with pytest.raises(ChannelException, match="x-max-length"):
        alone.vhost.change_arguments(queue, encode_table({"x-max-length": -1}))
    assert (queue.arguments, queue.parsed, queue.rules, queue.ticket) == (arguments, parsed, rules, 1)
    assert alone.vhost.change_arguments(queue, encode_table({"x-max-length": 7})) == queue.ticket == 2
    assert queue.rules.max_length == 7


def test_an_auto_delete_exchange_waits_for_both_changes() -> None:
    alone = Alone()
    alone.queue("q")
    alone.exchange("x", auto_delete=True)
    for key in ("a", "b"):
        alone.bind("x", "q", key)
    alone.heard.told.clear()
    assert alone.unbind("x", "q", "a") == alone.journal.last_ticket == 5
    assert "x" in alone.vhost.exchanges
    assert alone.unbind("x", "q", "b") == alone.journal.last_ticket == 7
    assert "x" not in alone.vhost.exchanges
    assert alone.heard.told == [f"{each} by rmq-internal" for each in ("-x->q", "-x", "-x->q")]
    assert alone.unbind("amq.direct", "q") == alone.journal.last_ticket, "it was not bound, or not any longer"


def test_a_vhost_that_is_deleted_journals_nothing() -> None:
    alone = Alone()
    alone.queue("q")
    alone.vhost.abandon()
    assert alone.exchange("x") == alone.vhost.take_queue_out(alone.vhost.queues["q"]) == 0
    assert alone.journal.last_ticket == 1


def test_an_exchange_is_deleted_once() -> None:
    alone = Alone()
    alone.exchange("x")
    exchange = alone.vhost.exchanges["x"]
    assert alone.vhost.delete_exchange(exchange) == 2
    alone.exchange("x", "fanout")
    assert alone.vhost.delete_exchange(exchange) == 0, "the one of that name now is another"
    assert alone.vhost.exchanges["x"].type_name == "fanout"
