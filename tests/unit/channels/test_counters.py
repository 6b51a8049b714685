"""Counters: each field against a sequence of operations, as RabbitMQ 3.10.8 counts it; sums that never go back.

The random test keeps books of its own, of what clients send and see, over channels, connections, queues and vhosts that
come and go. On a failure pytest shows its seed.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from engine_harness import Client, Harness, content_frames, exchange_declare, publish_frames, queue_declare

from warren.amqp import methods as m
from warren.amqp.field_table import encode_table
from warren.amqp.methods import PROTOCOL_HEADER
from warren.queues.counters import (
    AT_LEAST_ONCE,
    AT_MOST_ONCE,
    DISABLED,
    SIZE_BOUNDS,
    DeathCounts,
    MessageCounts,
    SizeCounts,
)
from warren.vhosts.metadata import PermissionPut, VhostDelete, VhostPut

FIELDS = (
    *("publish", "publish_confirm", "published_bytes", "routed", "confirm", "return_unroutable", "drop_unroutable"),
    *("deliver", "deliver_no_ack", "get", "get_no_ack", "get_empty", "redeliver", "ack"),
)

CHURN = (
    *("connections_opened", "connections_closed", "channels_opened", "channels_closed"),
    *("queues_declared", "queues_created", "queues_deleted"),
    *("logins_accepted", "logins_refused"),
)


def told(counts: MessageCounts, *, but: tuple[str, ...] = ("published_bytes",)) -> dict[str, int]:
    """Return the counts that are not 0."""
    return {field: int(getattr(counts, field)) for field in FIELDS if getattr(counts, field) and field not in but}


def of_channel(client: Client, number: int = 1) -> dict[str, int]:
    counts = MessageCounts()
    client.connection.channels[number].add_counts(counts)
    return told(counts)


@pytest.fixture
def client(harness: Harness) -> Client:
    return harness.channel()


def ack(client: Client, tag: int, *, multiple: bool = False, number: int = 1) -> None:
    client.send(number, m.BasicAck(tag, multiple))


# --- publishing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("properties", [{}, {"expiration": "60000"}])
def test_only_the_exchange_published_to_counts_with_all_queues_that_got_the_message(
    client: Client, harness: Harness, properties: dict[str, Any]
) -> None:
    for name in ("q", "e1", "e2"):
        client.declare(name)
    client.declare_exchange("src", "fanout")
    client.declare_exchange("dst", "fanout")
    client.call(1, m.ExchangeBind(0, "dst", "src", "", False, encode_table({})))
    client.bind("e1", "dst")
    client.bind("e2", "dst")
    client.bind("q", "src")
    for _ in range(10):
        client.publish("src", "k", b"x" * 10, **properties)
    for _ in range(3):
        client.publish("dst", "k", b"x", **properties)
    exchanges = harness.vhost.exchanges
    assert (int(exchanges["src"].published_in), exchanges["src"].published_out) == (10, 30)
    assert (int(exchanges["dst"].published_in), exchanges["dst"].published_out) == (3, 6)
    assert [told(harness.queue(name).counts()) for name in ("q", "e1")] == [{"publish": 10}, {"publish": 13}]
    assert of_channel(client) == {"publish": 13, "routed": 36}
    assert harness.broker.totals().published_bytes == 103


@pytest.mark.parametrize("properties", [{}, {"expiration": "60000"}])
def test_what_nobody_takes_is_dropped_or_returned_and_counts_as_published(
    client: Client, harness: Harness, properties: dict[str, Any]
) -> None:
    for _ in range(4):
        client.publish("", "nowhere", **properties)
    for _ in range(2):
        client.publish("", "nowhere", mandatory=True, **properties)
    assert of_channel(client) == {"publish": 6, "drop_unroutable": 4, "return_unroutable": 2}
    default = harness.vhost.exchanges[""]
    assert (int(default.published_in), default.published_out) == (6, 0)


def test_a_confirm_counts_and_a_nack_does_not(client: Client, harness: Harness) -> None:
    client.declare("full", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    client.call(1, m.ConfirmSelect(False))
    for _ in range(4):
        client.publish("", "full")
    for _ in range(2):
        client.publish("", "nowhere", mandatory=True)
    client.publish("", "nowhere")
    assert of_channel(client) == {
        "publish": 7,
        "publish_confirm": 7,
        "routed": 4,
        "confirm": 4,
        "return_unroutable": 2,
        "drop_unroutable": 1,
    }
    assert told(harness.queue("full").counts()) == {"publish": 4}, "a queue counts what it refuses"


def test_refusals_count_nowhere_wherever_they_stand_among_what_waits_for_the_disk(
    client: Client, harness: Harness
) -> None:
    client.declare("full", arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    client.declare("q", durable=True)
    client.call(1, m.ConfirmSelect(False))
    refused = publish_frames("", "full")
    stored = publish_frames("", "q", properties={"delivery_mode": 2})
    confirmed = 0
    for pattern in ("r", "sr", "rs", "rsr", "rrsrrsrr", "s", "r", "ss"):
        # One read each, and what is stored in it in one batch; while it is written more comes.
        client.connection.feed(b"".join(refused if letter == "r" else stored for letter in pattern))
        harness.settle(commit=False)
        client.feed(b"".join(refused if letter == "r" else stored for letter in pattern))
        confirmed += 2 * pattern.count("s")
        assert of_channel(client).get("confirm", 0) == confirmed


def test_a_transaction_counts_at_its_commit(client: Client, harness: Harness) -> None:
    client.declare("t")
    client.call(1, m.TxSelect())
    for _ in range(3):
        client.publish("", "t", b"1")
    client.publish("", "nowhere", b"1")
    assert of_channel(client) == {}
    client.call(1, m.TxCommit())
    committed = {"publish": 4, "routed": 3, "drop_unroutable": 1}
    assert of_channel(client) == committed
    for _ in range(2):
        client.publish("", "t", b"2")
    client.call(1, m.TxRollback())
    assert of_channel(client) == committed
    client.get("t")
    client.get("t")
    ack(client, 2, multiple=True)
    assert of_channel(client) == committed | {"get": 2}
    client.call(1, m.TxRollback())
    ack(client, 1)
    client.call(1, m.TxCommit())
    assert of_channel(client) == committed | {"get": 2, "ack": 1}
    assert told(harness.queue("t").counts()) == {"publish": 3, "get": 2, "ack": 1}


@pytest.mark.parametrize("arguments", [{}, {"x-max-length": 100}])
def test_what_the_broker_publishes_itself_is_nobodys_publish(
    client: Client, harness: Harness, arguments: dict[str, Any]
) -> None:
    client.declare("letters", arguments=arguments)
    client.declare("events", arguments=arguments)
    client.declare_exchange("remembering", "x-recent-history")
    client.bind("events", "amq.rabbitmq.event", "#")
    client.declare("q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "letters"})
    client.publish("", "q")
    client.get("q")
    client.send(1, m.BasicReject(1, False))
    client.publish("remembering", "")
    client.bind("letters", "remembering")
    assert (harness.queue("letters").ready_count, told(harness.queue("letters").counts())) == (2, {})
    assert harness.queue("events").ready_count > 0
    assert told(harness.queue("events").counts()) == {}
    assert harness.broker.totals().publish == 2
    assert harness.vhost.exchanges["amq.rabbitmq.event"].published_in == 0


@pytest.mark.parametrize("table", [{}, {"x-delay": 1000}])
def test_of_repetitions_only_what_channels_published_counts(
    client: Client, harness: Harness, table: dict[str, Any]
) -> None:
    client.declare_exchange("remembering", "x-recent-history")
    client.declare("q", arguments={"x-message-deduplication": True})
    headers = encode_table({"x-deduplication-header": "once", **table})
    client.publish("remembering", "", headers=headers)
    client.bind("q", "remembering", "first")
    client.bind("q", "remembering", "repeated")
    harness.pass_time(2)
    assert (harness.queue("q").ready_count, told(harness.queue("q").counts())) == (1, {})
    for _ in range(2):
        client.publish("", "q", headers=headers)
    assert (harness.queue("q").ready_count, told(harness.queue("q").counts())) == (1, {"publish": 2})


def test_a_control_message_is_published_and_goes_nowhere(client: Client) -> None:
    client.declare("q")
    client.publish("", "q")
    client.get("q")
    client.call(1, m.ConfirmSelect(False))
    client.publish("amq.control", "touch", headers=encode_table({"delivery-tag": 1}))
    assert of_channel(client) == {"publish": 2, "publish_confirm": 1, "routed": 1, "get": 1, "confirm": 1}


def test_a_reply_is_routed_and_delivered(client: Client) -> None:
    client.declare("rpc")
    client.consume("amq.rabbitmq.reply-to", no_ack=True)
    client.publish("", "rpc", reply_to="amq.rabbitmq.reply-to")
    asked = client.get("rpc", no_ack=True)
    assert asked is not None and asked.content is not None
    client.publish("", asked.content.properties.reply_to or "")
    assert of_channel(client) == {"publish": 2, "routed": 2, "get_no_ack": 1, "deliver_no_ack": 1}


# --- delivering -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [{}, {"x-max-length": 100}, {"x-queue-type": "quorum"}, {"x-key-shared": True}])
def test_deliveries_include_what_is_delivered_again_and_only_acks_are_acks(
    client: Client, harness: Harness, arguments: dict[str, Any]
) -> None:
    client.declare("q", durable=True, arguments=arguments)
    client.call(1, m.BasicQos(0, 3, False))
    for _ in range(5):
        client.publish("", "q")
    client.consume("q")
    ack(client, 1)
    client.send(1, m.BasicNack(2, False, True))
    client.send(1, m.BasicReject(3, False))
    assert [each.method.redelivered for each in client.deliveries()].count(True) == 1
    expected = {"publish": 5, "deliver": 6, "redeliver": 1, "ack": 1}
    assert told(harness.queue("q").counts()) == expected
    assert of_channel(client) == expected | {"routed": 5}
    ack(client, 0, multiple=True)
    assert of_channel(client) == expected | {"routed": 5, "ack": 4}
    assert told(harness.queue("q").counts()) == expected | {"ack": 4}


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("arguments", [{}, {"x-max-length": 100}])
def test_deliveries_without_acks_count_apart(
    client: Client, harness: Harness, arguments: dict[str, Any], waits: bool
) -> None:
    client.declare("q", arguments=arguments)
    if not waits:
        client.consume("q", no_ack=True)
    for _ in range(5):
        client.publish("", "q")
    if waits:
        client.consume("q", no_ack=True)
    assert told(harness.queue("q").counts()) == {"publish": 5, "deliver_no_ack": 5}
    assert of_channel(client) == {"publish": 5, "routed": 5, "deliver_no_ack": 5}


@pytest.mark.parametrize("arguments", [{}, {"x-key-shared": True}])
def test_gets_count_by_mode_and_when_they_find_nothing(
    client: Client, harness: Harness, arguments: dict[str, Any]
) -> None:
    client.declare("q", arguments=arguments)
    for _ in range(3):
        client.publish("", "q")
    client.get("q")
    ack(client, 1)
    client.get("q", no_ack=True)
    client.get("q")
    client.send(1, m.BasicNack(3, False, True))
    again = client.get("q")
    assert again is not None and again.method.redelivered
    client.send(1, m.BasicReject(4, False))
    assert client.get("q") is None
    assert client.get("q", no_ack=True) is None
    expected = {"publish": 3, "get": 3, "get_no_ack": 1, "get_empty": 2, "redeliver": 1, "ack": 1}
    assert told(harness.queue("q").counts()) == expected
    assert of_channel(client) == expected | {"routed": 3}


def test_what_comes_back_after_a_delay_is_delivered_again(client: Client, harness: Harness) -> None:
    arguments = {"x-queue-type": "quorum", "x-delayed-retry-type": "all", "x-delayed-retry-min": 1000}
    client.declare("q", durable=True, arguments=arguments)
    client.consume("q")
    client.publish("", "q")
    client.send(1, m.BasicNack(1, False, True))
    assert harness.queue("q").redelivered == 0
    harness.pass_time(10)
    assert [each.method.redelivered for each in client.deliveries()] == [False, True]
    assert of_channel(client) == {"publish": 1, "routed": 1, "deliver": 2, "redeliver": 1}
    assert told(harness.queue("q").counts()) == {"publish": 1, "deliver": 2, "redeliver": 1}


# --- deaths -----------------------------------------------------------------------------------------------------------


def reasons(counts: DeathCounts | None) -> tuple[int, int, int, int]:
    if counts is None:
        return (0, 0, 0, 0)
    return (int(counts.expired), int(counts.maxlen), int(counts.rejected), int(counts.delivery_limit))


@pytest.mark.parametrize(
    ("is_quorum", "strategy"),
    [(False, AT_MOST_ONCE), (False, DISABLED), (True, AT_MOST_ONCE), (True, AT_LEAST_ONCE), (True, DISABLED)],
)
def test_deaths_count_by_reason_type_and_strategy(
    client: Client, harness: Harness, is_quorum: bool, strategy: str
) -> None:
    arguments: dict[str, Any] = {"x-message-ttl": 1000}
    if is_quorum:
        arguments |= {"x-queue-type": "quorum", "x-delivery-limit": 0}
    if strategy != DISABLED:
        arguments |= {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "letters"}
    if strategy == AT_LEAST_ONCE:
        arguments |= {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
    else:
        arguments |= {"x-max-length": 3}
    client.declare("letters")
    client.declare("q", durable=True, arguments=arguments)
    for _ in range(4):
        client.publish("", "q")  # the first is one too many, where there is a limit
    client.get("q")
    client.send(1, m.BasicReject(1, False))
    client.get("q")
    client.send(1, m.BasicReject(2, True))
    harness.pass_time(2)
    maxlen = int(strategy != AT_LEAST_ONCE)
    expected = (2 - maxlen, maxlen, 1, 1) if is_quorum else (3 - maxlen, maxlen, 1, 0)
    assert reasons(harness.plain_queue("q").deaths) == expected
    for key, counts in harness.broker.deaths.counts.items():
        assert reasons(counts) == (expected if key == (is_quorum, strategy) else (0, 0, 0, 0)), key
        assert counts.confirmed == (4 if key[1] == strategy == AT_LEAST_ONCE and key[0] else 0)
    client.call(1, m.QueueDelete(0, "q", False, False, False))
    assert reasons(harness.broker.deaths.counts[(is_quorum, strategy)]) == expected


def test_a_letter_that_waits_for_its_queue_is_confirmed_once_it_is_there(client: Client, harness: Harness) -> None:
    arguments: dict[str, Any] = {
        "x-queue-type": "quorum",
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "later",
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    }
    client.declare("q", durable=True, arguments=arguments)
    client.publish("", "q")
    client.get("q")
    client.send(1, m.BasicReject(1, False))
    counts = harness.broker.deaths.counts[(True, AT_LEAST_ONCE)]
    assert (counts.rejected, counts.confirmed) == (1, 0)
    client.declare("later")
    harness.pass_time(600)
    assert harness.queue("later").ready_count == 1
    assert (counts.rejected, counts.confirmed) == (1, 1)


def test_a_rejected_message_of_a_queue_without_rules_has_died_too(client: Client, harness: Harness) -> None:
    client.declare("q")
    client.publish("", "q")
    client.get("q")
    client.send(1, m.BasicReject(1, False))
    assert reasons(harness.plain_queue("q").deaths) == (0, 0, 1, 0)
    assert reasons(harness.broker.deaths.counts[(False, DISABLED)]) == (0, 0, 1, 0)


def test_a_publish_that_is_refused_and_dead_lettered_has_died_of_the_length(client: Client, harness: Harness) -> None:
    client.declare("letters")
    arguments = {
        "x-max-length": 0,
        "x-overflow": "reject-publish-dlx",
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "letters",
    }
    client.declare("q", arguments=arguments)
    client.publish("", "q")
    assert harness.queue("letters").ready_count == 1
    assert reasons(harness.broker.deaths.counts[(False, AT_MOST_ONCE)]) == (0, 1, 0, 0)


# --- sizes ------------------------------------------------------------------------------------------------------------


def test_sizes_are_counted_up_to_and_with_each_bound() -> None:
    sizes = SizeCounts()
    published = 0
    expected: list[int] = []
    for bound in SIZE_BOUNDS:
        published += 2
        expected.append(published - 1 if bound > SIZE_BOUNDS[0] else 1)
        if bound > SIZE_BOUNDS[0]:
            sizes.count(bound)
        sizes.count(bound + 1)
    assert sizes.buckets(published) == [2 * at + 1 for at in range(len(SIZE_BOUNDS))] + [published]


@pytest.mark.parametrize("properties", [{}, {"expiration": "60000"}])
def test_the_sizes_of_all_bodies_are_counted_whichever_way_they_come(
    client: Client, harness: Harness, properties: dict[str, Any]
) -> None:
    sizes = (0, 100, 101, 1000, 1001, 300_000)
    for size in sizes:
        client.publish("", "nowhere", bytes(size), **properties)
    client.send(1, m.BasicPublish(0, "", "nowhere", False, False))
    for byte in content_frames(1, bytes(150), properties):
        client.connection.feed(bytes([byte]))
    harness.settle()
    totals = harness.broker.totals()
    assert totals.published_bytes == sum(sizes) + 150
    assert harness.broker.size_buckets(totals) == [2, 5, 6, 6, 7, 7, 7, 7, 7]


# --- connections ------------------------------------------------------------------------------------------------------


def test_a_connection_counts_bytes_and_how_often_they_came_and_went(harness: Harness) -> None:
    client = harness.raw_client()
    client.connection.feed(PROTOCOL_HEADER[:5])
    client.connection.feed(PROTOCOL_HEADER[5:])
    harness.settle()
    connection = client.connection
    assert (int(connection.received_bytes), int(connection.received_reads)) == (8, 2)
    sent = len(client.take_bytes())
    assert sent > 0
    assert (int(connection.outbox.sent_bytes), int(connection.outbox.sent_writes)) == (sent, 1)
    assert connection.outbox.waiting_bytes() == 0
    client.start_ok()
    client.take_bytes()
    assert (int(connection.received_reads), int(connection.outbox.sent_writes)) == (3, 2)


def test_logins_count_and_only_open_connections_do(harness: Harness) -> None:
    churn = harness.broker.churn
    refused = harness.raw_client()
    refused.start()
    refused.start_ok(password=b"wrong")
    harness.raw_client().hang_up()
    assert (churn.logins_accepted, churn.logins_refused) == (0, 1)
    assert (churn.connections_opened, churn.connections_closed) == (0, 0)
    client = harness.channel()
    client.hang_up()
    assert (churn.logins_accepted, churn.logins_refused) == (1, 1)
    assert (churn.connections_opened, churn.connections_closed) == (1, 1)
    assert (churn.channels_opened, churn.channels_closed) == (1, 1)


def test_every_declare_counts_and_every_queue_once(client: Client, harness: Harness) -> None:
    churn = harness.broker.churn
    client.declare("q")
    client.declare("q")
    client.declare("q", passive=True)
    client.declare("mine", exclusive=True)
    assert (churn.queues_declared, churn.queues_created, churn.queues_deleted) == (3, 2, 0)
    client.call(1, m.QueueDelete(0, "q", False, False, False))
    client.call(1, m.QueueDelete(0, "q", False, False, False))
    client.declare("unused", arguments={"x-expires": 1000})
    harness.pass_time(2)
    client.hang_up()
    assert (churn.queues_declared, churn.queues_created, churn.queues_deleted) == (4, 3, 3)


# --- sums -------------------------------------------------------------------------------------------------------------


class Books:
    """The messages that clients of a vhost have sent and seen."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.queues: dict[str, int] = {}  # with the number of its declaration: there may be another of that name later
        self.bound: set[str] = set()

    def publish(self, size: int, mandatory: bool, queues: list[tuple[str, int]]) -> None:
        """A message was published to `queues`, as far as they are still there."""
        routed = sum(self.queues.get(name) == number for name, number in queues)
        self.counts += Counter({"publish": 1, "published_bytes": size, "routed": routed})
        if not routed:
            self.counts["return_unroutable" if mandatory else "drop_unroutable"] += 1


class User:
    """One channel of a client, and what its user has in mind."""

    def __init__(self, client: Client, vhost: str, books: Books, mode: str) -> None:
        self.client = client
        self.vhost = vhost
        self.books = books
        self.mode = mode  # "", "confirm", "tx"
        self.reset()

    def reset(self) -> None:
        """The channel is new."""
        self.no_ack: dict[str, bool] = {}  # of each consumer tag
        self.outstanding: list[int] = []
        self.unconfirmed: list[int] = []
        self.published = 0
        # In the transaction.
        self.publishes: list[tuple[int, bool, list[tuple[str, int]]]] = []
        self.acked = 0
        self.answered: list[int] = []
        self.getting_no_ack = False
        self.closed = False


class World:
    """A broker, users of two vhosts, and the books."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.harness = Harness()
        self.churn: Counter[str] = Counter()
        self.large: list[int] = []  # sizes of what counts as published
        self.books: dict[str, Books] = {}
        self.old: Counter[str] = Counter()  # of vhosts that are gone
        self.users: list[User] = []
        self.tags = 0
        for vhost in ("/", "b"):
            self.add_vhost(vhost)

    def add_vhost(self, name: str) -> None:
        if name != "/":
            self.harness.broker.administer(VhostPut(name))
            self.harness.broker.administer(PermissionPut("guest", name, ".*", ".*", ".*"))
        self.books[name] = Books()

    # What happens

    def step(self) -> None:
        names = ("publish", "publish", "publish", "get", "consume", "ack", "ack", "reject", "topology")
        rare = ("connect", "end", "error", "transaction", "transaction", "vhost")
        name = self.random.choice(names) if self.users and self.random.random() < 0.85 else self.random.choice(rare)
        if name in ("connect", "vhost") or not self.users:
            self.vhost() if name == "vhost" else self.connect()
        else:
            getattr(self, name)(self.random.choice(self.users))
        self.see()

    def connect(self) -> None:
        if len(self.users) > 5:
            return
        vhost = self.random.choice(sorted(self.books))
        client = self.harness.client(vhost=vhost)
        client.open(1)
        user = User(client, vhost, self.books[vhost], ("confirm", "tx", "")[self.churn["connections_opened"] % 3])
        self.churn.update(["connections_opened", "channels_opened", "logins_accepted"])
        self.users.append(user)
        self.set_up(user)

    def set_up(self, user: User) -> None:
        if user.mode == "confirm":
            user.client.call(1, m.ConfirmSelect(False))
        elif user.mode == "tx":
            user.client.call(1, m.TxSelect())
        user.client.call(1, m.BasicQos(0, self.random.choice([0, 1, 5]), False))

    def publish(self, user: User) -> None:
        many = []
        for _ in range(self.random.choice([1, 1, 4])):
            size = self.random.choice([0, 16, 100, 101, 5000])
            exchange = self.random.choice(["", "", "amq.fanout"])
            key = self.random.choice(["plain", "kept", "full", "nowhere"])
            mandatory = self.random.random() < 0.3
            properties: dict[str, Any] = self.random.choice([{}, {"delivery_mode": 2}, {"expiration": "1000000"}])
            many.append(publish_frames(exchange, key, bytes(size), 1, mandatory, False, properties))
            names = user.books.bound if exchange else {key} & user.books.queues.keys()
            publish = (size, mandatory, [(name, user.books.queues[name]) for name in sorted(names)])
            if user.mode == "tx":
                user.publishes.append(publish)
                continue
            user.books.publish(*publish)
            user.published += 1
            if user.mode == "confirm":
                user.books.counts["publish_confirm"] += 1
                user.unconfirmed.append(user.published)
        user.client.feed(b"".join(many))

    def get(self, user: User) -> None:
        name = self.random.choice(["plain", "kept", "full"])
        if name in user.books.queues:
            user.getting_no_ack = self.random.random() < 0.5
            user.client.send(1, m.BasicGet(0, name, user.getting_no_ack))

    def consume(self, user: User) -> None:
        name = self.random.choice(["plain", "kept", "full"])
        if name in user.books.queues and len(user.no_ack) < 2:
            self.tags += 1
            tag = f"tag-{self.tags}"
            user.no_ack[tag] = self.random.random() < 0.5
            user.client.send(1, m.BasicConsume(0, name, tag, False, user.no_ack[tag], False, False, encode_table({})))

    def taken(self, user: User) -> tuple[int, bool, list[int]]:
        tag = self.random.choice(user.outstanding)
        multiple = self.random.random() < 0.5
        named = [each for each in user.outstanding if each == tag or (multiple and each < tag)]
        user.outstanding = [each for each in user.outstanding if each not in named]
        return tag, multiple, named

    def ack(self, user: User) -> None:
        if user.outstanding:
            tag, multiple, named = self.taken(user)
            if user.mode == "tx":
                user.answered += named
                user.acked += len(named)
            else:
                user.books.counts["ack"] += len(named)
            user.client.send(1, m.BasicAck(tag, multiple))

    def reject(self, user: User) -> None:
        if user.outstanding:
            tag, multiple, named = self.taken(user)
            if user.mode == "tx":
                user.answered += named
            user.client.send(1, m.BasicNack(tag, multiple, self.random.random() < 0.7))

    def topology(self, user: User) -> None:
        name = self.random.choice(["plain", "kept", "full"])
        books = user.books
        if name in books.queues and self.random.random() < 0.3:
            user.client.send(1, m.QueueDelete(0, name, False, False, False))
            books.queues.pop(name)
            books.bound.discard(name)
            self.churn["queues_deleted"] += 1
            return
        arguments: dict[str, dict[str, Any]] = {
            "full": {"x-max-length": 2, "x-overflow": "reject-publish"},
            "kept": {"x-max-length": 5},
        }
        user.client.send(1, queue_declare(name, durable=name == "kept", arguments=arguments.get(name)))
        self.churn["queues_declared"] += 1
        self.churn["queues_created"] += name not in books.queues
        books.queues.setdefault(name, self.churn["queues_created"])
        if self.random.random() < 0.3:
            user.client.send(1, m.QueueBind(0, name, "amq.fanout", "", False, encode_table({})))
            books.bound.add(name)

    def transaction(self, user: User) -> None:
        if user.mode != "tx":
            return
        if self.random.random() < 0.6:
            user.client.send(1, m.TxCommit())
            for publish in user.publishes:
                user.books.publish(*publish)
            user.books.counts["ack"] += user.acked
            self.see()
            if user.closed:  # not everything was taken
                self.reopen(user)
        else:
            user.client.send(1, m.TxRollback())
            user.outstanding = sorted(user.outstanding + user.answered)
        user.publishes = []
        user.acked = 0
        user.answered = []

    def end(self, user: User) -> None:
        how = self.random.choice(["channel", "connection", "socket"])
        if how == "channel":
            user.client.send(1, m.ChannelClose(200, "", 0, 0))
            self.see()
            self.ended(user)
            user.client.open(1)
            self.churn["channels_opened"] += 1
            user.reset()
            self.set_up(user)
            return
        if how == "socket":
            user.client.hang_up()
        else:
            user.client.send(0, m.ConnectionClose(200, "", 0, 0))
            self.see()
        self.ended(user)
        self.churn["connections_closed"] += 1
        self.users.remove(user)

    def ended(self, user: User) -> None:
        self.churn["channels_closed"] += 1
        user.no_ack = {}

    def error(self, user: User) -> None:
        user.client.send(1, queue_declare("missing", passive=True))
        self.see()
        assert user.closed
        self.reopen(user)

    def reopen(self, user: User) -> None:
        """The broker has closed the channel."""
        self.ended(user)
        self.check()
        user.client.send(1, m.ChannelCloseOk())
        user.client.open(1)
        self.churn["channels_opened"] += 1
        user.reset()
        self.set_up(user)

    def vhost(self) -> None:
        if "b" not in self.books:
            self.add_vhost("b")
            return
        self.harness.broker.administer(VhostDelete("b"))
        self.harness.settle()
        self.see()
        for user in [user for user in self.users if user.vhost == "b"]:
            self.ended(user)
            user.client.send(0, m.ConnectionCloseOk())
            self.churn["connections_closed"] += 1
            self.users.remove(user)
        books = self.books.pop("b")
        self.churn["queues_deleted"] += len(books.queues)
        self.old += books.counts

    # What is seen

    def see(self) -> None:
        for user in self.users:
            counts = user.books.counts
            for received in user.client.take():
                method = received.method
                if isinstance(method, m.BasicDeliver):
                    no_ack = user.no_ack[method.consumer_tag]
                    counts["deliver_no_ack" if no_ack else "deliver"] += 1
                    counts["redeliver"] += method.redelivered
                    if not no_ack:
                        user.outstanding.append(method.delivery_tag)
                elif isinstance(method, m.BasicGetOk):
                    counts["get_no_ack" if user.getting_no_ack else "get"] += 1
                    counts["redeliver"] += method.redelivered
                    if not user.getting_no_ack:
                        user.outstanding.append(method.delivery_tag)
                elif isinstance(method, m.BasicGetEmpty):
                    counts["get_empty"] += 1
                elif isinstance(method, m.BasicAck):
                    tag = method.delivery_tag
                    done = [each for each in user.unconfirmed if each == tag or (method.multiple and each < tag)]
                    user.unconfirmed = [each for each in user.unconfirmed if each not in done]
                    counts["confirm"] += len(done)
                elif isinstance(method, m.BasicNack):
                    user.unconfirmed.remove(method.delivery_tag)
                elif isinstance(method, m.BasicCancel):
                    user.no_ack.pop(method.consumer_tag)
                elif isinstance(method, m.BasicReturn):
                    counts["returns"] += 1
                elif isinstance(method, m.ChannelClose):
                    user.closed = True

    def check(self) -> None:
        broker = self.harness.broker
        by_vhost = broker.sums().by_vhost
        total = Counter(self.old)
        for name, books in self.books.items():
            expected = {field: books.counts[field] for field in FIELDS if books.counts[field]}
            assert told(broker.totals(name), but=()) == expected
            assert told(by_vhost[name], but=()) == expected
            assert books.counts["returns"] == books.counts["return_unroutable"]
            total += books.counts
        assert told(broker.totals(), but=()) == {field: total[field] for field in FIELDS if total[field]}
        assert sorted(by_vhost) == sorted(self.books)
        for field in CHURN:
            assert getattr(broker.churn, field) == self.churn[field], field


@pytest.mark.parametrize("seed", range(12))
def test_sums_are_what_clients_have_seen_whatever_ends(seed: int) -> None:
    world = World(seed)
    kinds: Counter[str] = Counter()
    for _ in range(400):
        world.step()
        world.check()
    kinds.update(field for books in world.books.values() for field in FIELDS if books.counts[field])
    for user in list(world.users):
        user.client.hang_up()
        world.ended(user)
        world.churn["connections_closed"] += 1
        world.users.remove(user)
        world.see()  # its unanswered messages may go to others
    world.check()
    assert set(kinds) | set(world.old) >= set(FIELDS), "something was never counted"


def test_a_deleted_vhost_leaves_its_counts_to_the_broker(harness: Harness) -> None:
    harness.broker.administer(VhostPut("v"))
    harness.broker.administer(PermissionPut("guest", "v", ".*", ".*", ".*"))
    client = harness.client(vhost="v")
    client.open(1)
    client.publish("", "nowhere")
    assert told(harness.broker.totals("v")) == {"publish": 1, "drop_unroutable": 1}
    harness.broker.administer(VhostDelete("v"))
    assert told(harness.broker.totals()) == {"publish": 1, "drop_unroutable": 1}
    with pytest.raises(KeyError):
        harness.broker.totals("v")
    harness.broker.administer(VhostPut("v"))
    assert told(harness.broker.totals("v")) == {}


def test_an_exchange_declared_anew_counts_from_nothing(client: Client, harness: Harness) -> None:
    client.declare_exchange("x", "fanout")
    client.publish("x", "")
    client.call(1, m.ExchangeDelete(0, "x", False, False))
    client.send(1, exchange_declare("x", "fanout"))
    client.publish("x", "")
    assert harness.vhost.exchanges["x"].published_in == 1
