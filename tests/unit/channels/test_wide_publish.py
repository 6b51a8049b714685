"""A publish to very many queues takes several turns: order, confirms, the log, and what goes meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
from engine_harness import USER, Client, Harness, exchange_declare, publish_frames, queue_declare

from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.amqp.field_table import decode_table, encode_table
from warren.channels.commit_check import CommitCheck
from warren.channels.direct_session import StagedPublishes
from warren.channels.transaction import commit_checked
from warren.channels.wide_publish import QUEUES_AT_ONCE
from warren.vhosts.metadata import VhostDelete

MANY = QUEUES_AT_ONCE + 100
EMPTY = encode_table({})
PERSISTENT = {"delivery_mode": 2}


class Wide:
    """A broker with a fanout to very many queues, little long work in a turn, and a publisher."""

    def __init__(self, *, durable: bool = False) -> None:
        self.harness = Harness()
        self.client: Client = self.harness.channel()
        calls: list[Any] = [exchange_declare("x", "fanout", durable=durable)]
        for number in range(MANY):
            calls += [queue_declare(f"q{number}", durable=durable), m.QueueBind(0, f"q{number}", "x", "", False, EMPTY)]
        self.client.send(1, *calls)
        self.client.take_bytes()
        self.harness.broker.work.turn_steps = 200
        self.harness.broker.work.end_turn()

    def publish(
        self, *bodies: bytes, exchange: str = "x", key: str = "k", properties: dict[str, Any] | None = None
    ) -> None:
        """Publish in one read, without a turn after it."""
        frames = (publish_frames(exchange, key, body, properties=properties) for body in bodies)
        self.client.connection.feed(b"".join(frames))

    def answers(self) -> list[Any]:
        """Return the methods that the publisher has received."""
        return [received.method for received in self.client.take()]

    def counts(self) -> set[int]:
        """Return how many messages the queues have."""
        return {int(queue.message_count) for queue in self.harness.vhost.queues.values()}

    def bodies(self, name: str) -> list[bytes]:
        """Get all messages of a queue, from another connection."""
        client = self.harness.channel()
        found = []
        while (got := client.get(name, no_ack=True)) is not None:
            assert got.content is not None
            found.append(got.content.body)
        return found


def test_it_takes_turns_and_comes_to_every_queue_once() -> None:
    wide = Wide()
    wide.publish(b"one")
    assert wide.counts() == {0, 1}, "a part of it is done"
    wide.harness.settle()
    assert wide.counts() == {1}
    assert len(wide.harness.broker.work) == 0


@pytest.mark.parametrize("durable", [False, True])
def test_each_queue_has_the_messages_of_a_channel_in_their_order(durable: bool) -> None:
    wide = Wide(durable=durable)
    wide.client.call(1, m.ConfirmSelect(False))
    properties = PERSISTENT if durable else {}
    wide.publish(b"one", b"two", properties=properties)
    wide.publish(b"three", exchange="", key=f"q{MANY - 1}", properties=properties)
    wide.harness.settle()
    assert wide.answers()[-1].delivery_tag == 3
    assert wide.bodies("q0") == [b"one", b"two"]
    assert wide.bodies(f"q{MANY - 1}") == [b"one", b"two", b"three"]


def test_nothing_is_confirmed_or_written_before_the_last_queue_has_it() -> None:
    wide = Wide(durable=True)
    log = wide.harness.broker.log
    other = wide.harness.channel()
    for client in (wide.client, other):
        client.call(1, m.ConfirmSelect(False))
    wide.harness.settle()
    written = int(log.next_lsn)
    wide.publish(b"one", properties=PERSISTENT)
    other.connection.feed(publish_frames("", "q0", b"beside", properties=PERSISTENT))
    for _ in range(3):
        wide.harness.broker.end_turn()
        log.close_if_due(lingered=True)
    assert wide.counts() >= {0, 1} and int(log.next_lsn) == written
    wide.harness.settle()
    assert wide.answers() == [m.BasicAck(1, False)]
    assert [each.method for each in other.take()] == [m.BasicAck(1, False)]
    assert wide.counts() == {1, 2}


def test_what_is_written_in_portions_is_confirmed_when_all_of_it_is() -> None:
    wide = Wide(durable=True)
    log = wide.harness.broker.log
    wide.client.call(1, m.ConfirmSelect(False))
    wide.harness.settle()
    wide.publish(b"one", properties=PERSISTENT)
    consumer = wide.harness.channel()
    consumer.connection.feed(method_frame(1, m.BasicGet(0, "q0", True)) + method_frame(1, m.BasicGet(0, "q1", False)))
    while len(wide.harness.broker.work):
        wide.harness.broker.end_turn()
        if log.batch.is_held:
            log.write_ahead()
        assert wide.answers() == []
    wide.harness.settle()
    assert wide.answers() == [m.BasicAck(1, False)]
    assert wide.harness.queue(f"q{MANY - 1}").persistent() == (1, 3)
    assert wide.harness.queue("q0").persistent() == (0, 0) and wide.harness.queue("q1").unacked_count == 1
    log.check_invariants()


@pytest.mark.parametrize("transacted", [False, True])
def test_no_turn_is_due_while_the_batch_that_it_waits_for_waits_for_the_disk(transacted: bool) -> None:
    wide = Wide(durable=True)
    other = wide.harness.channel()
    if transacted:
        other.call(1, m.TxSelect())
        other.feed(publish_frames("x", "k", b"three", properties=PERSISTENT))
    wide.harness.hold_commits = True
    for body in (b"one", b"two"):
        wide.publish(body, properties=PERSISTENT)
        wide.harness.settle()
    assert wide.counts() == {2} and wide.harness.broker.log.batch.was_held
    if transacted:
        other.connection.feed(method_frame(1, m.TxCommit()))
    else:
        wide.publish(b"three", properties=PERSISTENT)
    wide.harness.settle()
    assert wide.counts() == {2} and not wide.harness.broker.has_work()
    wide.harness.hold_commits = False
    wide.harness.settle()
    assert wide.counts() == {3}


def test_a_queue_that_refuses_makes_it_a_nack_and_the_others_keep_theirs() -> None:
    wide = Wide()
    wide.client.call(1, queue_declare("full", arguments={"x-max-length": 0, "x-overflow": "reject-publish"}))
    wide.client.call(1, m.QueueBind(0, "full", "x", "", False, EMPTY))
    wide.client.call(1, m.ConfirmSelect(False))
    wide.publish(b"one")
    wide.harness.settle()
    assert wide.answers() == [m.BasicNack(1, multiple=False, requeue=False)]
    assert wide.counts() == {0, 1} and wide.harness.queue("full").message_count == 0


def test_a_queue_that_is_deleted_meanwhile_takes_nothing() -> None:
    wide = Wide()
    other = wide.harness.channel()
    wide.publish(b"one")
    last = wide.harness.queue(f"q{MANY - 1}")
    other.connection.feed(method_frame(1, m.QueueDelete(0, last.name, if_unused=False, if_empty=False, no_wait=False)))
    wide.harness.settle()
    assert last.deleted and last.message_count == 0 and wide.counts() == {1}


@pytest.mark.parametrize("durable", [False, True])
def test_a_connection_that_is_lost_meanwhile_has_published(durable: bool) -> None:
    wide = Wide(durable=durable)
    wide.publish(b"one", properties=PERSISTENT if durable else {})
    assert 0 in wide.counts()
    wide.client.hang_up()
    wide.harness.settle()
    assert wide.counts() == {1}


def test_a_commit_is_as_whole_as_ever() -> None:
    wide = Wide(durable=True)
    wide.client.call(1, m.TxSelect())
    log = wide.harness.broker.log
    wide.harness.settle()
    wide.publish(b"one", b"two", properties=PERSISTENT)
    wide.publish(b"three", exchange="", key="q0", properties=PERSISTENT)
    assert wide.counts() == {0}
    written = int(log.next_lsn)
    wide.client.connection.feed(method_frame(1, m.TxCommit()))
    for _ in range(3):
        wide.harness.broker.end_turn()
        log.close_if_due(lingered=True)
    assert wide.counts() == {0, 1} and int(log.next_lsn) == written
    wide.harness.settle()
    assert wide.answers() == [m.TxCommitOk()]
    assert wide.bodies("q0") == [b"one", b"two", b"three"] and wide.bodies(f"q{MANY - 1}") == [b"one", b"two"]


class Once(Wide):
    """The same, with exchange ``once`` that drops repetitions, and another publisher, which waits for confirms."""

    def __init__(self, *, durable: bool) -> None:
        super().__init__(durable=durable)
        arguments: dict[str, object] = {"x-message-deduplication": True}
        self.client.call(1, exchange_declare("once", "fanout", durable=durable, arguments=arguments))
        self.client.send(1, *[m.QueueBind(0, f"q{number}", "once", "", False, EMPTY) for number in range(MANY)])
        self.client.take_bytes()
        self.client.call(1, m.ConfirmSelect(False))
        self.other = self.harness.channel()
        self.properties: dict[str, Any] = dict(PERSISTENT) if durable else {}

    def once(self, client: Client, body: bytes, **headers: object) -> None:
        table: dict[str, object] = headers or {"x-deduplication-header": "k1"}
        properties = {**self.properties, "headers": encode_table(table)}
        client.connection.feed(publish_frames("once", "k", body, properties=properties))

    def turns(self, count: int = 3) -> None:
        for _ in range(count):
            self.harness.broker.end_turn()

    def dropped(self) -> int:
        return int(self.harness.vhost.seen_keys["once"].dropped)


DURABILITY = pytest.mark.parametrize("durable", [False, True])


@DURABILITY
def test_a_publish_to_an_exchange_that_drops_repetitions_takes_turns(durable: bool) -> None:
    wide = Once(durable=durable)
    wide.once(wide.client, b"one")
    assert wide.counts() == {0, 1}
    wide.harness.settle()
    assert wide.answers() == [m.BasicAck(1, False)] and wide.counts() == {1}
    assert not wide.harness.vhost.has_claims()


@pytest.mark.parametrize("header", [{"x-deduplication-header": "k1"}, {"x-producer": "p", "x-seq": 7}])
def test_nothing_is_remembered_of_a_publish_whose_vhost_is_deleted_meanwhile(header: dict[str, object]) -> None:
    """A later vhost of the name would find the key after a restart, and drop messages. ``record_lane.py`` (4)"""
    wide = Once(durable=True)
    seen = wide.harness.vhost.seen_keys["once"]
    wide.once(wide.client, b"one", **header)
    assert wide.counts() == {0, 1}
    wide.harness.broker.administer(VhostDelete("/"))
    wide.harness.settle()
    assert len(wide.harness.broker.work) == 0
    assert wide.harness.indexes == []
    assert (seen.count(), seen.producer_count()) == (0, 0)


def test_an_exchange_that_is_declared_again_meanwhile_does_not_know_the_message() -> None:
    """It has not had it: a message with that key is the first for its queues. ``seen_keys.py`` (5)"""
    wide = Once(durable=True)
    wide.once(wide.client, b"one")
    assert wide.counts() == {0, 1}
    wide.other.connection.feed(method_frame(1, m.ExchangeDelete(0, "once", if_unused=False, no_wait=True)))
    again = exchange_declare("once", "fanout", durable=True, arguments={"x-message-deduplication": True})
    wide.other.connection.feed(method_frame(1, again))
    assert wide.counts() == {0, 1}, "it is under way"
    wide.harness.settle()
    wide.other.take()
    wide.other.call(1, queue_declare("later", durable=True))
    wide.other.bind("later", "once")
    wide.other.call(1, m.ConfirmSelect(False))
    wide.once(wide.other, b"first")
    wide.harness.settle()
    assert [each.method for each in wide.other.take()] == [m.BasicAck(1, False)]
    assert wide.bodies("later") == [b"first"]


@DURABILITY
def test_a_repetition_that_comes_while_the_first_is_under_way_is_dropped(durable: bool) -> None:
    wide = Once(durable=durable)
    wide.other.call(1, m.ConfirmSelect(False))
    wide.once(wide.client, b"one")
    wide.once(wide.client, b"again")
    wide.once(wide.other, b"and again")
    wide.turns()
    assert wide.other.take() == [] and wide.counts() == {0, 1}, "it is not said yet"
    wide.harness.settle()
    assert wide.counts() == {1} and wide.dropped() == 2
    assert [each.method for each in wide.other.take()] == [m.BasicAck(1, False)]
    assert wide.answers()[-1].delivery_tag == 2


@DURABILITY
def test_what_comes_while_the_first_is_under_way_is_none_when_that_is_refused(durable: bool) -> None:
    wide = Once(durable=durable)
    full: dict[str, object] = {"x-max-length": 0, "x-overflow": "reject-publish"}
    wide.client.call(1, queue_declare("full", durable=durable, arguments=full))
    wide.client.call(1, m.QueueBind(0, "full", "once", "", False, EMPTY))
    wide.other.call(1, m.ConfirmSelect(False))
    wide.once(wide.client, b"one")
    wide.once(wide.other, b"two")
    wide.harness.settle()
    assert wide.answers() == [m.BasicNack(1, multiple=False, requeue=False)]
    assert [each.method for each in wide.other.take()] == [m.BasicNack(1, multiple=False, requeue=False)]
    assert wide.counts() == {0, 2} and wide.dropped() == 0
    wide.client.call(1, m.QueueDelete(0, "full", if_unused=False, if_empty=False, no_wait=False))
    wide.once(wide.other, b"three")
    wide.harness.settle()
    assert [each.method.delivery_tag for each in wide.other.take()] == [2] and wide.counts() == {3}


@DURABILITY
def test_another_key_does_not_wait_for_the_first(durable: bool) -> None:
    wide = Once(durable=durable)
    wide.once(wide.client, b"one")
    wide.other.connection.feed(publish_frames("once", "k", b"none"))
    wide.harness.settle()
    assert wide.counts() == {2} and wide.dropped() == 0


def test_the_numbers_of_a_producer_do_not_go_back() -> None:
    wide = Once(durable=True)
    wide.once(wide.client, b"five", **{"x-producer": "p", "x-seq": 5})
    wide.once(wide.other, b"six", **{"x-producer": "p", "x-seq": 6})
    wide.harness.settle()
    wide.once(wide.client, b"six again", **{"x-producer": "p", "x-seq": 6})
    wide.harness.settle()
    assert wide.counts() == {2} and wide.dropped() == 1


@DURABILITY
@pytest.mark.parametrize("count", [1, 3])
def test_a_commit_waits_for_what_it_may_repeat(durable: bool, count: int) -> None:
    wide = Once(durable=durable)
    wide.other.call(1, m.TxSelect())
    for number in range(count):
        wide.once(wide.other, b"again")
        wide.other.connection.feed(publish_frames("", f"q{number}", b"beside", properties=wide.properties))
    wide.once(wide.client, b"one")
    wide.other.connection.feed(method_frame(1, m.TxCommit()))
    wide.turns()
    assert wide.counts() == {0, 1}
    wide.harness.settle()
    assert [each.method for each in wide.other.take()] == [m.TxCommitOk()]
    assert wide.bodies("q0") == [b"one", b"beside"] and wide.dropped() == count
    assert not wide.harness.vhost.has_claims()


@DURABILITY
def test_a_staged_commit_waits_for_what_it_may_repeat_and_lets_the_batch_go(durable: bool) -> None:
    wide = Once(durable=durable)
    session = wide.harness.broker.open_direct(USER, "/")
    repeated = {**wide.properties, "headers": encode_table({"x-deduplication-header": "k1"})}
    staged = publish_frames("once", "k", b"again", properties=repeated)
    session.command(m.TxSelect())
    session.command(StagedPublishes(staged + publish_frames("", "q0", b"beside", properties=wide.properties)))
    wide.once(wide.client, b"one")
    noted: list[str] = []
    commit_checked(session, CommitCheck(mandatory=True), lambda: noted.append("note"))
    wide.turns()
    assert noted == [] and wide.counts() == {0, 1}
    wide.harness.settle()
    assert list(session.direct.answers) == [m.TxSelectOk(), m.TxCommitOk()] and noted == ["note"]
    assert not wide.harness.broker.log.batch.is_held
    assert wide.answers() == [m.BasicAck(1, False)]
    assert wide.bodies("q0") == [b"one", b"beside"] and wide.dropped() == 1


@DURABILITY
def test_a_repetition_waits_for_a_commit_that_publishes_it(durable: bool) -> None:
    wide = Once(durable=durable)
    wide.other.call(1, m.TxSelect())
    wide.once(wide.other, b"one")
    wide.other.connection.feed(method_frame(1, m.TxCommit()))
    wide.once(wide.client, b"again")
    wide.turns()
    assert wide.answers() == [] and wide.counts() == {0, 1}
    wide.harness.settle()
    assert wide.answers() == [m.BasicAck(1, False)] and wide.counts() == {1} and wide.dropped() == 1


@pytest.mark.parametrize("transacted", [False, True])
def test_the_batch_and_the_keys_are_free_when_a_defect_has_ended_it(transacted: bool) -> None:
    wide = Once(durable=True)
    if transacted:
        wide.other.call(1, m.TxSelect())
    wide.once(wide.other if transacted else wide.client, b"one")
    if transacted:
        wide.other.connection.feed(method_frame(1, m.TxCommit()))
    broker = wide.harness.broker
    assert wide.counts() == {0, 1} and broker.log.batch.is_held and wide.harness.vhost.has_claims()
    jobs = (wide.other if transacted else wide.client).connection._work
    assert jobs is not None
    jobs._jobs[0].failed()
    assert not broker.log.batch.is_held and not wide.harness.vhost.has_claims()


def test_a_publisher_that_waits_for_a_claim_keeps_nobody_from_the_batch() -> None:
    """One has the batch and waits for a claim, another has the claim and waits for the batch: a deadlock."""
    wide = Once(durable=True)
    long_one = wide.harness.channel()
    long_one.call(1, m.TxSelect())
    wide.once(long_one, b"one")
    for number in range(300):
        long_one.connection.feed(publish_frames("", f"q{number}", b"beside", properties=PERSISTENT))
    wide.once(wide.other, b"two", **{"x-deduplication-header": "k2"})
    wide.once(wide.client, b"again")
    long_one.connection.feed(method_frame(1, m.TxCommit()))
    wide.harness.settle()
    assert len(wide.harness.broker.work) == 0 and wide.dropped() == 1
    assert wide.counts() == {2, 3}


@DURABILITY
def test_a_publisher_that_is_lost_while_it_waits_for_a_claim_has_published(durable: bool) -> None:
    wide = Once(durable=durable)
    wide.once(wide.client, b"one")
    wide.once(wide.other, b"again")
    wide.other.hang_up()
    wide.client.hang_up()
    wide.harness.settle()
    assert wide.counts() == {1} and wide.dropped() == 1 and not wide.harness.vhost.has_claims()


def test_an_exchange_that_goes_while_a_publish_to_it_waits_closes_the_channel() -> None:
    wide = Once(durable=True)
    wide.once(wide.client, b"one")
    wide.once(wide.other, b"again")
    third = wide.harness.channel()
    third.connection.feed(method_frame(1, m.ExchangeDelete(0, "once", if_unused=False, no_wait=False)))
    wide.harness.settle()
    assert wide.counts() <= {1, 2} and not wide.harness.broker.work
    assert wide.answers() == [m.BasicAck(1, False)]


@pytest.mark.parametrize("transacted", [False, True])
def test_what_was_delayed_says_so_in_every_queue(transacted: bool) -> None:
    wide = Wide()
    if transacted:
        wide.client.call(1, m.TxSelect())
    wide.publish(b"one", properties={"headers": encode_table({"x-delay": 1000})})
    if transacted:
        wide.client.connection.feed(method_frame(1, m.TxCommit()))
    wide.harness.settle()
    client = wide.harness.channel()
    assert client.get("q0") is None
    for _ in range(2):
        wide.harness.pass_time(1.001)
    for name in ("q0", f"q{MANY - 1}"):
        got = client.get(name)
        assert got is not None and got.content is not None and got.content.properties.headers is not None
        assert decode_table(got.content.properties.headers)["x-delay"] == -1000


@pytest.mark.parametrize("durable", [False, True])
def test_an_exchange_with_a_history_remembers_it_before_any_queue_has_it(durable: bool) -> None:
    """(5)"""
    wide = Wide(durable=durable)
    wide.client.send(1, exchange_declare("h", "x-recent-history"), m.ExchangeBind(0, "x", "h", "", False, EMPTY))
    wide.client.send(1, m.ConfirmSelect(False))
    wide.client.take_bytes()
    wide.publish(b"one", exchange="h", properties=PERSISTENT)
    assert wide.counts() <= {0, 1} and 0 in wide.counts()
    late = wide.harness.channel()
    late.connection.feed(
        method_frame(1, queue_declare("late")) + method_frame(1, m.QueueBind(0, "late", "h", "", False, EMPTY))
    )
    wide.harness.settle()
    assert wide.answers() == [m.BasicAck(1, False)] and wide.counts() == {1}


@pytest.mark.parametrize("durable", [False, True])
def test_an_exchange_that_delays_holds_it_in_the_frame_of_its_queues(durable: bool) -> None:
    """(5)"""
    wide = Wide(durable=durable)
    delayed = exchange_declare("d", "x-delayed-message", durable=durable, arguments={"x-delayed-type": "fanout"})
    wide.client.send(1, delayed, m.ExchangeBind(0, "d", "x", "", False, EMPTY), m.ConfirmSelect(False))
    wide.client.send(1, queue_declare("late", durable=durable), m.QueueBind(0, "late", "d", "", False, EMPTY))
    wide.client.take_bytes()
    wide.publish(b"one", properties={"headers": encode_table({"x-delay": 1000}), **PERSISTENT})
    wide.harness.settle()
    assert wide.answers() == [m.BasicAck(1, False)]
    assert wide.harness.vhost.held["d"].count == 1
    for _ in range(2):
        wide.harness.pass_time(1.001)
    wide.harness.settle()
    assert wide.counts() == {1} and wide.harness.vhost.held["d"].count == 0
