"""How much of a change of policies one turn does, when there are many of them."""

from __future__ import annotations

from collections import Counter

from engine_harness import Harness, publish_frames, queue_declare

from warren.amqp.declarations import QueueDeclaration
from warren.queues.base_queue import BaseQueue
from warren.queues.long_work import TURN_STEPS, Steps
from warren.queues.message_deaths import LEAVE_MAX
from warren.vhosts.metadata import PolicyDelete, PolicyPut
from warren.vhosts.policy_run import PolicyRun
from warren.vhosts.topology_watcher import TopologyWatcher

POLICY = PolicyPut("/", "p", ".*", "queues", 0, '{"max-length":10}')


def test_a_turn_tries_fewer_queues_the_more_policies_there_are() -> None:
    harness = Harness()
    client = harness.channel()
    for at in range(1000):
        harness.vhost.policies.put(PolicyPut("/", f"p{at}", "^nosuch$", "all", 0, '{"max-length":10}'))
    client.send(1, *[queue_declare(f"q{at}") for at in range(100)])
    run = PolicyRun(harness.vhost)
    assert run.is_to_begin(POLICY, "guest")
    turns = 1
    while not run.run(Steps(TURN_STEPS)):
        turns += 1
    things = len(harness.vhost.queues) + len(harness.vhost.exchanges)
    assert turns >= things * 1000 // TURN_STEPS


def test_a_change_takes_no_more_steps_than_there_are_things() -> None:
    """Other work that begins in its turn has the other steps."""
    harness = Harness()
    steps = Steps(1 << 30)
    run = PolicyRun(harness.vhost)
    assert run.is_to_begin(POLICY, "guest")
    assert run.run(steps)
    assert steps.left > (1 << 30) - 1000


def long_queues(count: int, messages: int) -> Harness:
    """Return a broker with `count` queues of so many messages each."""
    harness = Harness()
    client = harness.channel()
    for at in range(count):
        client.declare(f"q{at}")
        client.feed(publish_frames("", f"q{at}", b"x") * messages)
    return harness


def left_in(harness: Harness) -> int:
    return sum(int(queue.ready_count) for queue in harness.vhost.queues.values())


def test_a_change_pays_for_the_messages_that_queues_drop() -> None:
    harness = long_queues(20, 300)
    harness.broker.work.turn_steps = 1000
    harness.broker.work.end_turn()
    harness.broker.administer(POLICY)
    assert left_in(harness) >= 16 * 300
    harness.settle()
    assert left_in(harness) == 20 * 10


def test_timers_count_the_messages_that_a_queue_drops() -> None:
    """Otherwise 512 queues would drop 1,024 messages each, in one call."""
    harness = long_queues(5, 3 * LEAVE_MAX)
    harness.broker.administer(POLICY)
    while any(queue.rules.max_length < 0 for queue in harness.vhost.queues.values()):
        harness.broker.end_turn()
    before = left_in(harness)
    assert before == 5 * 2 * LEAVE_MAX
    harness.broker.keep_time(int(harness.broker.log.now_ms))
    assert before - 2 * LEAVE_MAX <= left_in(harness) < before
    for _ in range(5):
        harness.broker.keep_time(int(harness.broker.log.now_ms))
    assert left_in(harness) < 5 * LEAVE_MAX


def test_a_queue_knows_the_policies_that_it_follows() -> None:
    """A view of many queues need not try all policies again for each queue."""
    harness = Harness()
    client = harness.channel()

    def followed() -> list[tuple[str | None, ...]]:
        queues = [harness.queue(name) for name in ("a", "b")]
        return [(queue.policies.policy_name(), queue.policies.operator_policy_name()) for queue in queues]

    def put(name: str, pattern: str, *, operator: bool = False, priority: int = 0) -> None:
        harness.broker.administer(PolicyPut("/", name, pattern, "all", priority, '{"max-length":10}', operator))
        harness.settle()

    client.declare("a")
    put("mine", "^[ab]$")
    client.declare("b")
    assert followed() == [("mine", None), ("mine", None)]
    put("operators", "^b$", operator=True)
    put("other", "^a$", priority=1)
    assert followed() == [("other", None), ("mine", "operators")]
    for name, operator in (("mine", False), ("operators", True), ("other", False)):
        harness.broker.administer(PolicyDelete("/", name, operator))
    harness.settle()
    assert followed() == [(None, None), (None, None)]


def test_an_exchange_knows_the_policy_that_it_follows() -> None:
    harness = Harness()
    client = harness.channel()

    def followed() -> list[str | None]:
        return [harness.vhost.exchanges[name].policy for name in ("a", "b")]

    client.declare_exchange("a")
    harness.broker.administer(PolicyPut("/", "mine", "^[ab]$", "all", 0, '{"max-length":10}'))
    harness.settle()
    client.declare_exchange("b")
    assert followed() == ["mine", "mine"]
    harness.broker.administer(PolicyPut("/", "other", "^a$", "exchanges", 1, '{"alternate-exchange":"x"}'))
    harness.settle()
    assert followed() == ["other", "mine"]
    for name in ("mine", "other"):
        harness.broker.administer(PolicyDelete("/", name))
    harness.settle()
    assert followed() == [None, None]


def test_the_exchanges_that_every_vhost_has_follow_a_policy_again_after_a_restart() -> None:
    harness = Harness()
    definition = '{"alternate-exchange":"aside"}'
    harness.broker.restore(PolicyPut("/", "p", "^amq[.]topic$", "exchanges", 0, definition))
    harness.broker.restore(PolicyPut("/", "operators", ".*", "queues", 0, '{"max-length":10}', True))
    exchanges = harness.vhost.exchanges
    assert (exchanges["amq.topic"].alternate, exchanges["amq.direct"].alternate) == ("aside", "")


def with_queues(count: int) -> Harness:
    """Return a broker with `count` queues, whose turns do little of long work."""
    harness = Harness()
    client = harness.channel()
    client.send(1, *[queue_declare(f"q{at}") for at in range(count)])
    harness.broker.work.turn_steps = 100
    harness.settle()
    return harness


class Told(TopologyWatcher):
    """Counts how often it is told of the policy of each queue."""

    def __init__(self) -> None:
        self.of: Counter[str] = Counter()

    def queue_policy_changed(self, queue: BaseQueue, change: PolicyPut | PolicyDelete, by: str) -> None:
        self.of[queue.name] += 1


def names_followed(harness: Harness) -> set[str | None]:
    return {queue.policies.policy_name() for queue in harness.vhost.queues.values()}


def test_of_a_policy_that_changes_during_a_run_each_queue_is_told_once_for_what_it_has_followed() -> None:
    harness = with_queues(200)
    broker = harness.broker
    told = Told()
    broker.watchers.add(told)
    first, then = (PolicyPut("/", "p", ".*", "queues", 0, f'{{"max-length":{most}}}') for most in (10, 20))
    broker.administer(first)
    broker.end_turn()
    early = dict(told.of)
    assert 0 < len(early) < 200
    broker.administer(then)
    harness.settle()
    assert told.of == Counter(harness.vhost.queues.keys()) + Counter(early)


def test_changes_that_come_during_a_run_are_followed_by_all_and_make_no_run_of_their_own() -> None:
    harness = with_queues(200)
    broker = harness.broker
    for at in range(50):
        broker.administer(PolicyPut("/", f"p{at}", ".*", "queues", at, '{"max-length":10}'))
        assert len(broker.work) == 1
        broker.end_turn()
    harness.settle()
    assert names_followed(harness) == {"p49"}
    for at in range(50):
        broker.administer(PolicyDelete("/", f"p{at}"))
        assert len(broker.work) == 1
    harness.settle()
    assert names_followed(harness) == {None}
    assert len(broker.work) == 0


def test_a_queue_declared_during_a_run_follows_what_is_changed_after_it() -> None:
    harness = with_queues(200)
    harness.broker.administer(POLICY)
    harness.broker.end_turn()
    harness.vhost.declare_queue(QueueDeclaration("late", durable=False))
    harness.broker.administer(PolicyPut("/", "other", ".*", "queues", 1, '{"max-length":5}'))
    harness.settle()
    assert names_followed(harness) == {"other"}


def test_nobody_has_to_follow_a_policy_that_is_what_it_was() -> None:
    harness = with_queues(200)
    harness.broker.administer(POLICY)
    harness.settle()
    harness.broker.administer(POLICY)
    harness.broker.administer(PolicyDelete("/", "nix"))
    assert len(harness.broker.work) == 0


def test_the_run_ends_with_its_vhost() -> None:
    harness = with_queues(200)
    harness.vhost.follow_policies(POLICY, "guest")
    harness.vhost.follow_policies(POLICY, "guest")
    harness.vhost.abandon()
    harness.broker.end_turn()
    assert len(harness.broker.work) == 0
