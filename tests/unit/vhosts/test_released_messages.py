"""Messages that an exchange has held, and that go to very many queues: own_publishes (3)."""

from __future__ import annotations

import pytest
from durable_harness import DurableHarness
from engine_harness import Client, exchange_declare, publish_frames, queue_declare

from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.amqp.field_table import EMPTY_TABLE, Table, encode_table
from warren.vhosts.own_publishes import QUEUES_AT_ONCE

COUNT = QUEUES_AT_ONCE + 100
BODIES = [b"one", b"two", b"three"]


class Wide:
    """A delayed exchange with very many queues, whose messages are due; a turn has few steps."""

    def __init__(self, *, stored: bool, held: bool = False, page_out: bool = False) -> None:
        self.harness = DurableHarness()
        self.client: Client = self.harness.channel()
        delayed: Table = {"x-delayed-type": "fanout"}
        self.client.call(1, exchange_declare("x", "x-delayed-message", durable=True, arguments=delayed))
        self.client.send(1, *[queue_declare(f"q{at}", durable=True) for at in range(COUNT)])
        self.client.send(1, *[m.QueueBind(0, f"q{at}", "x", "", True, EMPTY_TABLE) for at in range(COUNT)])
        headers = encode_table({"x-delay": 1000})
        properties = {"headers": headers, "delivery_mode": 2 if stored else 1}
        for body in BODIES:
            self.client.feed(publish_frames("x", "k", body, properties=properties))
        self.client.take()
        self.harness.broker.log.force()
        self.harness.settle()
        self.harness.broker.work.turn_steps = 500
        self.harness.broker.work.end_turn()
        if page_out:
            log = self.harness.broker.log
            log.under_pressure = True
            self.harness.vhost.held["x"].page_out()
            log.under_pressure = False
        if held:
            assert self.harness.broker.log.hold_batch()
        self.harness.broker.keep_time(int(self.harness.broker.log.now_ms) + 2000)

    def counts(self) -> list[int]:
        """Return how many messages the queues have that are left."""
        queues = self.harness.vhost.queues
        return [int(queues[name].ready_count) for name in queues]


@pytest.mark.parametrize("stored", [False, True])
def test_they_come_one_after_the_other_over_several_turns(stored: bool) -> None:
    wide = Wide(stored=stored)
    longest = seen = sum(wide.counts())
    turns = 0
    while seen < COUNT * len(BODIES):
        wide.harness.broker.end_turn()
        wide.harness.store.run()
        now = sum(wide.counts())
        longest = max(longest, now - seen)
        turns += 1
        seen = now
        counts = wide.counts()
        assert counts == sorted(counts, reverse=True) and counts[0] - counts[-1] <= 1, "one overtakes another"
    assert longest <= 1000 and turns >= 6
    wide.harness.settle()
    assert not wide.harness.broker.log.batch.is_held
    for at in (0, 1, COUNT - 1):
        found = [wide.client.get(f"q{at}", no_ack=True) for _ in BODIES]
        assert [each and each.content and each.content.body for each in found] == BODIES


@pytest.mark.parametrize("page_out", [False, True])
def test_they_wait_while_others_hold_the_batch(page_out: bool) -> None:
    """All queues got the first one in one turn, however many they were."""
    wide = Wide(stored=True, held=True, page_out=page_out)
    log = wide.harness.broker.log
    for _ in range(3):
        wide.harness.broker.end_turn()
        wide.harness.store.run()
    assert sum(wide.counts()) == 0 and wide.harness.vhost.held["x"].count == len(BODIES)
    assert not wide.harness.broker.work.is_due()
    log.release_batch()
    most = seen = 0
    while seen < COUNT * len(BODIES):
        wide.harness.broker.end_turn()
        wide.harness.store.run()
        most = max(most, sum(wide.counts()) - seen)
        seen = sum(wide.counts())
    assert most <= 1000
    wide.harness.settle()
    for at in (0, COUNT - 1):
        found = [wide.client.get(f"q{at}", no_ack=True) for _ in BODIES]
        assert [each and each.content and each.content.body for each in found] == BODIES
    wide.harness.vhost.held["x"].check_invariants()


def test_after_a_crash_all_queues_have_it_or_the_exchange_holds_it() -> None:
    wide = Wide(stored=True)
    assert 0 < sum(wide.counts()) < COUNT
    for _ in range(3):
        wide.harness.broker.end_turn()
        wide.harness.store.run()
    assert 0 < sum(wide.counts()) < COUNT
    harness = wide.harness.restart(clean=False)
    assert sum(int(queue.ready_count) for queue in harness.vhost.queues.values()) == 0
    harness.settle()
    assert harness.vhost.held["x"].count == len(BODIES)


def test_the_exchange_and_queues_may_go_meanwhile() -> None:
    wide = Wide(stored=True)
    for call in (
        m.QueueDelete(0, f"q{COUNT - 1}", if_unused=False, if_empty=False, no_wait=True),
        m.ExchangeDelete(0, "x", if_unused=False, no_wait=True),
    ):
        wide.client.connection.feed(method_frame(1, call))
    assert 0 < sum(wide.counts()) < COUNT
    wide.harness.settle()
    assert wide.counts() == [1] * (COUNT - 1)
    assert not wide.harness.broker.log.batch.is_held
