"""Dead letters to very many queues: over several turns, whole in the log, one after the other."""

from __future__ import annotations

from typing import Any

import pytest
from engine_harness import Client, Harness, exchange_declare, publish_frames, queue_declare

from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.amqp.field_table import encode_table
from warren.queues.lanes import UNDELIVERED
from warren.vhosts.dead_lettering import TARGETS_AT_ONCE
from warren.vhosts.metadata import VhostDelete

MANY = TARGETS_AT_ONCE + 200
EMPTY = encode_table({})
DURABILITY = pytest.mark.parametrize("durable", [False, True])


class Dying:
    """A broker with little long work in a turn, and queue ``q`` whose letters go to a given number of queues."""

    def __init__(self, count: int, *, durable: bool = False, ttl_ms: int | None = None) -> None:
        self.harness = Harness()
        self.client: Client = self.harness.channel()
        calls: list[Any] = [exchange_declare("x", "fanout", durable=durable)]
        for number in range(count):
            calls += [queue_declare(f"d{number}", durable=durable), m.QueueBind(0, f"d{number}", "x", "", False, EMPTY)]
        self.client.send(1, *calls)
        self.client.take_bytes()
        arguments: dict[str, object] = {"x-dead-letter-exchange": "x"}
        if ttl_ms is not None:
            arguments["x-message-ttl"] = ttl_ms
        self.client.declare("q", durable=durable, arguments=arguments)
        self.count = count
        self.properties: dict[str, Any] = {"delivery_mode": 2} if durable else {}
        self.harness.broker.work.turn_steps = 200
        self.harness.broker.work.end_turn()

    def publish(self, *bodies: bytes) -> None:
        self.client.feed(b"".join(publish_frames("", "q", body, properties=self.properties) for body in bodies))
        self.harness.broker.log.force()
        self.harness.settle()

    def reject(self, count: int = 1) -> None:
        """Get `count` messages, and reject them in one read, without a turn after it."""
        for _ in range(count):
            self.client.get("q")
        self.client.connection.feed(method_frame(1, m.BasicNack(0, multiple=True, requeue=False)))

    def letters(self) -> list[int]:
        """Return how many letters each queue has."""
        return [int(self.harness.queue(f"d{number}").message_count) for number in range(self.count)]

    def waiting(self) -> int:
        return int(self.harness.broker.letters_in_line.waiting)


@DURABILITY
def test_a_letter_to_very_many_queues_takes_turns_and_comes_to_each_once(durable: bool) -> None:
    dying = Dying(MANY, durable=durable)
    dying.publish(b"one")
    dying.reject()
    assert sum(dying.letters()) < MANY and dying.waiting() == 1
    dying.harness.settle()
    assert set(dying.letters()) == {1} and dying.waiting() == 0
    assert dying.harness.queue("q").message_count == 0 and len(dying.harness.broker.work) == 0


def test_it_is_in_one_frame_with_the_end_of_its_message() -> None:
    dying = Dying(MANY, durable=True)
    dying.publish(b"one")
    log = dying.harness.broker.log
    written = int(log.next_lsn)
    dying.reject()
    for _ in range(3):
        dying.harness.broker.end_turn()
        log.close_if_due(lingered=True)
    assert 0 < sum(dying.letters()) < MANY and int(log.next_lsn) == written
    assert dying.harness.queue("q").persistent() == (1, 3), "it is in its place until all have it"
    frames = dying.harness.store.commits
    dying.harness.settle()
    log.close_if_due(lingered=True)
    dying.harness.settle()
    assert dying.harness.store.commits == frames + 1
    assert dying.harness.queue("q").persistent() == (0, 0)
    assert {dying.harness.queue(f"d{number}").persistent() for number in range(MANY)} == {(1, 3)}


def test_a_letter_that_waits_for_the_batch_asks_for_no_turns() -> None:
    """The broker went round without a pause until somebody else had let the batch go."""
    dying = Dying(MANY, durable=True)
    dying.publish(b"one")
    log = dying.harness.broker.log
    assert log.hold_batch()
    dying.reject()
    for _ in range(2):
        dying.harness.broker.end_turn()
    assert sum(dying.letters()) == 0 and dying.waiting() == 1
    assert not dying.harness.broker.work.is_due()
    log.release_batch()
    dying.harness.settle()
    assert set(dying.letters()) == {1} and dying.waiting() == 0


def test_what_comes_after_a_wide_letter_waits_for_space() -> None:
    """It was placed with the steps that the wide one had left of its turn, as if it held the batch."""
    dying = Dying(MANY, durable=True)
    narrow: dict[str, object] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "d0"}
    dying.client.declare("narrow", durable=True, arguments=narrow)
    dying.publish(b"one")
    dying.client.feed(publish_frames("", "narrow", b"two", properties=dying.properties))
    dying.harness.settle()
    for name in ("q", "narrow"):
        dying.client.get(name)
    dying.client.connection.feed(method_frame(1, m.BasicNack(0, multiple=True, requeue=False)))
    dying.harness.broker.log.own.disk_is_short = True
    dying.harness.settle()
    assert set(dying.letters()) == {1} and dying.waiting() == 1
    dying.harness.broker.log.own.disk_is_short = False
    dying.harness.settle()
    assert dying.letters() == [2] + [1] * (MANY - 1) and dying.waiting() == 0


def test_letters_come_in_the_order_of_the_deaths_also_behind_a_wide_one() -> None:
    dying = Dying(MANY)
    dying.publish(b"one", b"two")
    dying.reject(2)
    dying.harness.settle()
    for name in ("d0", f"d{MANY - 1}"):
        bodies = []
        while (got := dying.client.get(name, no_ack=True)) is not None:
            assert got.content is not None
            bodies.append(got.content.body)
        assert bodies == [b"one", b"two"]


@DURABILITY
def test_queues_that_go_meanwhile_get_nothing(durable: bool) -> None:
    dying = Dying(MANY, durable=durable)
    dying.publish(b"one")
    dying.reject()
    last = dying.harness.queue(f"d{MANY - 1}")
    for name in (last.name, "q"):
        dying.client.connection.feed(
            method_frame(1, m.QueueDelete(0, name, if_unused=False, if_empty=False, no_wait=False))
        )
    dying.harness.settle()
    dying.count -= 1
    assert last.message_count == 0 and set(dying.letters()) == {1} and dying.waiting() == 0


@DURABILITY
def test_a_vhost_that_goes_meanwhile_holds_nothing_up(durable: bool) -> None:
    dying = Dying(MANY, durable=durable)
    dying.publish(b"one")
    dying.reject()
    dying.harness.broker.end_turn()
    dying.harness.broker.administer(VhostDelete("/"))
    dying.harness.settle()
    assert dying.waiting() == 0 and len(dying.harness.broker.work) == 0
    assert not dying.harness.broker.log.batch.is_held


def test_what_one_of_very_many_refuses_at_least_once_is_sent_again_to_that_one_only() -> None:
    dying = Dying(MANY)
    full: dict[str, object] = {"x-max-length": 0, "x-overflow": "reject-publish"}
    dying.client.call(1, queue_declare("full", arguments=full))
    dying.client.call(1, m.QueueBind(0, "full", "x", "", False, EMPTY))
    arguments: dict[str, object] = {
        "x-queue-type": "quorum",
        "x-dead-letter-exchange": "x",
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    }
    dying.client.call(1, queue_declare("sure", durable=True, arguments=arguments))
    dying.client.feed(publish_frames("", "sure", b"one", properties={"delivery_mode": 2}))
    dying.harness.settle()
    dying.client.get("sure")
    dying.client.connection.feed(method_frame(1, m.BasicNack(0, multiple=True, requeue=False)))
    dying.harness.settle()
    assert set(dying.letters()) == {1}
    assert dying.harness.queue("sure").held(UNDELIVERED) is not None
    dying.client.call(1, m.QueueUnbind(0, "full", "x", "", EMPTY))
    dying.client.call(1, queue_declare("late"))
    dying.client.call(1, m.QueueBind(0, "late", "x", "", False, EMPTY))
    dying.harness.pass_time(1000)
    assert set(dying.letters()) == {1} and dying.harness.queue("late").message_count == 1


def test_letters_that_a_nack_leads_to_are_paid_for_by_its_steps() -> None:
    """Each was placed at once, with all its queues, however many messages a turn could reject."""
    dying = Dying(100)
    dying.publish(*[b"x"] * 50)
    dying.reject(50)
    for _ in range(3):
        assert sum(dying.letters()) <= 2 * dying.count, "a letter or two"
        before = sum(dying.letters())
        dying.harness.broker.end_turn()
        assert sum(dying.letters()) - before <= 2 * dying.count
    dying.harness.settle()
    assert set(dying.letters()) == {50}


def test_what_expires_together_is_placed_letter_by_letter() -> None:
    dying = Dying(100, ttl_ms=1000)
    dying.publish(*[b"x"] * 50)
    log = dying.harness.broker.log
    log.now_ms += 2000
    dying.harness.broker.keep_time(int(log.now_ms))
    assert dying.waiting() > 45 and sum(dying.letters()) <= dying.count
    dying.harness.settle()
    assert set(dying.letters()) == {50} and dying.waiting() == 0
