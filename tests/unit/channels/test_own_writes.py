"""The broker's own writes wait for the disk, for space on it, and for memory. See ``own_writes.py``.

Each `Case` makes the broker write some megabytes for a few bytes of a client. While the disk takes its time the open
batch gets its share of that and no more, and the broker is at rest: `settle` fails where a turn is due for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from engine_harness import Client, Harness, publish_frames

from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.amqp.field_table import encode_table
from warren.msgstore.log.queue_index import IndexOwner
from warren.queues.held_messages import TAKEN_MAX
from warren.queues.lanes import DELAYED
from warren.queues.timers import WORKED_MAX
from warren.vhosts.metadata import PolicyPut

BATCH_BYTES = 64 << 10
BODY = bytes(10_000)
COUNT = 100
STORED = {"delivery_mode": 2}
NO_TABLE = encode_table({})


class Case(NamedTuple):
    """`begin` gets everything ready; `go` makes the broker write. `adds`: it waits for memory, too."""

    begin: Callable[[Client], None]
    go: Callable[[Client], None]
    is_done: Callable[[Harness], bool]
    adds: bool = False
    waits_for_space: bool = True


def dead_letters(**arguments: Any) -> dict[str, Any]:
    table = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    return {**table, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "letters"}


def fill(client: Client, name: str, **arguments: Any) -> None:
    client.declare("letters", durable=True)
    client.declare(name, durable=True, arguments=arguments.get("arguments"))
    client.feed(publish_frames("", name, BODY, properties=STORED) * COUNT)


def has_letters(harness: Harness) -> bool:
    return harness.queue("letters").ready_count == COUNT and harness.queue("q").message_count == 0


def many_that_take_nothing(client: Client) -> None:
    client.declare("letters", durable=True)
    for at in range(COUNT):
        client.declare(f"q{at}", durable=True, arguments=dead_letters(max_length=0))
        client.bind(f"q{at}", "amq.fanout")


def publish_to_all(client: Client) -> None:
    client.feed(publish_frames("amq.fanout", "", BODY, properties=STORED))


def remember(client: Client) -> None:
    client.declare_exchange("seen", "x-recent-history", arguments={"x-recent-history-length": COUNT})
    client.declare("q", durable=True)
    client.feed(publish_frames("seen", "", BODY, properties=STORED) * COUNT)


def bind_to_history(client: Client) -> None:
    client.send(1, m.QueueBind(0, "q", "seen", "", False, NO_TABLE))


def quorum(client: Client) -> None:
    fill(client, "q", arguments={"x-queue-type": "quorum"})
    client.send(1, m.BasicConsume(0, "q", "", False, False, False, False, NO_TABLE))
    client.take()


def quorum_with_delay(client: Client) -> None:
    arguments = {"x-queue-type": "quorum", "x-delayed-retry-type": "all", "x-delayed-retry-min": 3_600_000}
    fill(client, "q", arguments=arguments)
    client.send(1, m.BasicConsume(0, "q", "", False, False, False, False, NO_TABLE))
    client.take()


def leave(client: Client) -> None:
    client.send(1, m.ChannelClose(200, "", 0, 0))


def quorum_in_a_transaction(client: Client) -> None:
    fill(client, "q", arguments={"x-queue-type": "quorum"})
    client.call(1, m.TxSelect())
    client.consume("q", "c")
    client.take()
    client.send(1, m.BasicNack(0, multiple=True, requeue=True), m.BasicCancel("c", True))


def quorum_with_limit(client: Client, limit: str) -> None:
    fill(client, "q", arguments={"x-queue-type": "quorum", limit: 1000})
    client.send(1, m.BasicConsume(0, "q", "", False, False, False, False, NO_TABLE))
    client.take()
    client.harness.queue("q").pause(paused=True)  # returned messages are not delivered again


def quorum_and_paused(client: Client) -> None:
    quorum(client)
    client.harness.queue("q").pause(paused=True)


def exceed_the_limit(client: Client) -> None:
    client.harness.broker.limits.delivery_timeout_s = 60.0
    for _ in range(12):
        client.harness.pass_time(15)


def is_back(harness: Harness) -> bool:
    queue = harness.queue("q")
    return (queue.ready_count, queue.unacked_count) == (COUNT, 0)


def is_held(harness: Harness) -> bool:
    lane = harness.queue("q").held(DELAYED)
    return lane is not None and lane.count == COUNT


def out_of_plain(client: Client) -> None:
    fill(client, "q", arguments=dead_letters())
    client.send(1, m.BasicConsume(0, "q", "", False, False, False, False, NO_TABLE))
    client.take()


def give_back_each(client: Client) -> None:
    client.feed(
        b"".join(method_frame(1, m.BasicNack(tag, multiple=False, requeue=True)) for tag in range(1, COUNT + 1))
    )


def set_time_to_live(client: Client) -> None:
    client.harness.broker.administer(PolicyPut("/", "short", "^q$", "all", 0, '{"message-ttl": 1}'))
    client.harness.pass_time(1)


def delayed(client: Client) -> None:
    client.declare_exchange("later", "x-delayed-message", arguments={"x-delayed-type": "fanout"})
    client.declare("letters", durable=True)
    client.bind("letters", "later")
    client.declare("q", durable=True)
    properties = {**STORED, "headers": encode_table({"x-delay": 500})}
    client.feed(publish_frames("later", "", BODY, properties=properties) * COUNT)


CASES = {
    "dead letters of one publish": Case(
        many_that_take_nothing, publish_to_all, lambda harness: harness.queue("letters").ready_count == COUNT
    ),
    "history": Case(remember, bind_to_history, lambda harness: harness.queue("q").ready_count == COUNT, adds=True),
    "a consumer of a quorum queue leaves": Case(quorum, leave, is_back, waits_for_space=False),
    "a transaction gives all back": Case(
        quorum_in_a_transaction, lambda client: client.send(1, m.TxCommit()), is_back, waits_for_space=False
    ),
    "each delivery is given back": Case(quorum, give_back_each, lambda harness: True, waits_for_space=False),
    "delayed retry": Case(quorum_with_delay, leave, is_held, waits_for_space=False),
    "visibility timeouts": Case(
        lambda client: quorum_with_limit(client, "x-visibility-timeout"),
        lambda client: client.harness.pass_time(1),
        is_back,
        waits_for_space=False,
    ),
    "consumer timeouts": Case(
        lambda client: quorum_with_limit(client, "x-consumer-timeout"),
        lambda client: client.harness.pass_time(1),
        is_back,
        waits_for_space=False,
    ),
    "the limit of the broker": Case(quorum_and_paused, exceed_the_limit, is_back, waits_for_space=False),
    "nack of all": Case(
        out_of_plain, lambda client: client.send(1, m.BasicNack(0, multiple=True, requeue=False)), has_letters
    ),
    "a policy with a time to live": Case(
        lambda client: fill(client, "q", arguments=dead_letters()), set_time_to_live, has_letters
    ),
    "delayed messages are due": Case(
        delayed,
        lambda client: client.harness.pass_time(1),
        lambda harness: harness.queue("letters").ready_count == COUNT,
    ),
}


class Slow:
    """A broker with small batches, and a case that is ready."""

    def __init__(self, case: Case) -> None:
        self.harness = Harness()
        self.log = self.harness.broker.log
        self.client = self.harness.channel()
        case.begin(self.client)
        self.log.force()
        self.harness.settle()
        self.log.batch_bytes = BATCH_BYTES
        self.largest = 0
        self.commits = 0

    def commit(self) -> bool:
        """Make the disk do what it has been given; False when that is nothing."""
        self.largest = max(self.largest, int(self.log.batch.row_bytes))
        before = self.harness.store.commits
        self.harness.hold_commits = False
        self.harness.store.run()
        self.harness.hold_commits = True
        self.harness.pass_time(0.001)
        self.commits += self.harness.store.commits - before
        return self.harness.store.commits > before


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_batch_gets_its_share_of_what_the_broker_writes_by_itself(case: Case) -> None:
    """(1)"""
    slow = Slow(case)
    slow.harness.hold_commits = True
    case.go(slow.client)
    while slow.commit():
        assert slow.log.batch.row_bytes <= BATCH_BYTES // 2 + 2 * len(BODY)
    slow.harness.hold_commits = False
    slow.harness.settle()
    assert case.is_done(slow.harness)
    assert slow.commits > 5, "it was not much"
    assert slow.largest <= BATCH_BYTES


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_nothing_is_written_while_the_disk_has_no_space(case: Case) -> None:
    slow = Slow(case)
    slow.harness.broker.set_alarm("disk", True)
    before = slow.harness.store.written_bytes
    case.go(slow.client)
    slow.log.force()
    slow.harness.settle()
    assert slow.harness.store.written_bytes - before < 10 * len(BODY)
    if case.waits_for_space:
        assert not case.is_done(slow.harness)
    else:
        queue = slow.harness.queue("q")
        assert queue.ready_count + queue.unacked_count == COUNT
    slow.harness.broker.set_alarm("disk", False)
    slow.harness.settle()
    slow.harness.pass_time(0.001)
    if case.waits_for_space:
        assert case.is_done(slow.harness)


@pytest.mark.parametrize("case", [case for case in CASES.values() if case.adds])
def test_copies_wait_for_memory(case: Case) -> None:
    slow = Slow(case)
    slow.harness.broker.set_alarm("memory", True)
    before = slow.harness.store.written_bytes
    case.go(slow.client)
    slow.harness.settle()
    assert slow.harness.store.written_bytes - before < 2 * len(BODY) and not case.is_done(slow.harness)
    slow.harness.broker.set_alarm("memory", False)
    slow.harness.settle()
    assert case.is_done(slow.harness)


@pytest.mark.parametrize("case", [case for case in CASES.values() if not case.adds])
def test_what_moves_does_not_wait_for_memory(case: Case) -> None:
    """(3)"""
    slow = Slow(case)
    slow.harness.hold_commits = True
    case.go(slow.client)
    slow.harness.broker.set_alarm("memory", True)
    slow.harness.hold_commits = False
    slow.harness.settle()
    slow.harness.pass_time(0.1)
    assert case.is_done(slow.harness)


def test_an_innocent_publisher_has_room_in_every_batch() -> None:
    case = CASES["dead letters of one publish"]
    slow = Slow(case)
    innocent = slow.harness.channel()
    innocent.declare("other", durable=True)
    innocent.call(1, m.ConfirmSelect(False))
    slow.harness.hold_commits = True
    case.go(slow.client)
    confirmed = 0
    for _ in range(5):
        innocent.feed(publish_frames("", "other", b"x", properties=STORED))
        assert slow.commit() and slow.commit()
        confirmed += len(innocent.take())
    assert confirmed >= 4


def test_what_expires_waits_in_its_queue_while_many_letters_wait() -> None:
    """`dead_lettering.py` (6)"""
    harness = Harness()
    client = harness.channel()
    client.declare("letters", durable=True)
    client.declare("q", durable=True, arguments=dead_letters(message_ttl=100))
    body = bytes(1 << 20)
    for _ in range(60):
        client.feed(publish_frames("", "q", body, properties=STORED))
    harness.broker.set_alarm("disk", True)
    harness.pass_time(1)
    waiting = int(harness.broker.letters_in_line.waiting)
    assert 30 <= waiting <= 34
    assert harness.queue("q").ready_count == 60 - waiting
    consumer = harness.channel()
    consumer.send(1, m.BasicConsume(0, "q", "", False, False, False, False, NO_TABLE))
    assert [each.method for each in consumer.take() if isinstance(each.method, m.BasicDeliver)] == []
    assert harness.queue("q").ready_count == 60 - waiting
    harness.broker.set_alarm("disk", False)
    harness.settle()
    harness.pass_time(1)
    assert harness.queue("letters").ready_count == 60
    assert harness.queue("q").message_count == 0


@pytest.mark.parametrize("exchange", ["", "x"])
def test_timers_count_what_each_of_them_releases(exchange: str) -> None:
    """Otherwise 512 queues or exchanges would release 512 messages each, in one call."""
    harness = Harness()
    client = harness.channel()
    client.declare("q")
    arguments: dict[str, object] = {"x-delayed-type": "fanout"}
    delayed = {"headers": encode_table({"x-delay": 1000})}
    for at in range(5):
        name = f"d{at}"
        if exchange:
            client.declare_exchange(name, "x-delayed-message", arguments=arguments)
            client.bind("q", name)
        else:
            client.declare(name)
        client.feed(publish_frames(name if exchange else "", name, b"x", properties=delayed) * TAKEN_MAX)

    def released() -> int:
        return sum(int(queue.ready_count) for queue in harness.vhost.queues.values())

    harness.broker.keep_time(int(harness.broker.log.now_ms) + 2000)
    assert 0 < released() <= WORKED_MAX + TAKEN_MAX
    harness.settle()
    harness.pass_time(0.1)
    assert released() == 5 * TAKEN_MAX


def test_those_that_wait_after_one_that_fails_are_called_in_the_next_turn() -> None:
    class Fails(IndexOwner):
        def batch_closed(self) -> None:
            raise MemoryError

    class Counts(IndexOwner):
        called = 0

        def batch_closed(self) -> None:
            Counts.called += 1

    harness = Harness()
    own = harness.broker.log.own
    own.call_when_open(Fails())
    for _ in range(2):
        own.call_when_open(Counts())
    with pytest.raises(MemoryError):
        harness.settle()
    harness.settle()
    assert Counts.called == 2
