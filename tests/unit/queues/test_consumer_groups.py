"""The consumers that a queue serves, while some go, use up their prefetch, or get other limits by a policy."""

from __future__ import annotations

import random

import pytest
from engine_harness import Harness, basic_consume, publish_frames

from warren.amqp import methods as m
from warren.amqp.errors import ACCESS_REFUSED
from warren.queues.consumer_groups import PASSED_OVER_PER_MESSAGE, TAKEN_OUT_MAX, ConsumerGroups
from warren.vhosts.metadata import PolicyDelete, PolicyPut


class Ring:
    """Consumers with their priority, prefetch and what they owe: the next with room after the last served of a kind."""

    def __init__(self) -> None:
        self.members: list[list[int]] = []  # number, priority, prefetch, owed
        self.last: dict[int, int] = {}

    def pick(self, most: int) -> list[int] | None:
        for priority in sorted({member[1] for member in self.members}, reverse=True):
            equals = [member for member in self.members if member[1] == priority]
            last = self.last.get(priority, -1)
            for member in [each for each in equals if each[0] > last] + [each for each in equals if each[0] <= last]:
                limit = member[2] if not most or 0 < member[2] < most else most
                if limit == 0 or member[3] < limit:
                    self.last[priority] = member[0]
                    member[3] += 1
                    return member
        return None


@pytest.mark.parametrize("seed", range(16))
def test_consumers_are_served_in_turn_whoever_had_no_room_meanwhile(seed: int) -> None:
    choices = random.Random(seed)
    harness = Harness()
    client = harness.channel()
    client.declare("q")
    ring = Ring()
    owed: dict[int, list[int]] = {}  # by tag
    waiting = most = tag = 0
    priorities = choices.choice([1, 1, 2, 40])
    for number in range(choices.choice([1, 2, 5, 80])):
        prefetch, priority = choices.choice([1, 1, 2, 3]), choices.randrange(priorities)
        client.send(1, m.BasicQos(0, prefetch, False))
        client.send(1, basic_consume("q", f"c{number}", arguments={"x-priority": priority}))
        ring.members.append([number, priority, prefetch, 0])
    client.take_bytes()
    for _ in range(400):
        command = choices.random()
        if command < 0.05 and len(ring.members) > 1:
            gone = ring.members.pop(choices.randrange(len(ring.members)))
            client.send(1, m.BasicCancel(f"c{gone[0]}", True))
        elif command < 0.1:
            most = choices.choice([0, 1, 2])
            policy = PolicyPut("/", "p", ".*", "queues", 0, f'{{"consumer-prefetch-max": {most}}}')
            harness.broker.administer(policy if most else PolicyDelete("/", "p"))
            harness.settle()
        elif command < 0.5 and owed:
            answered = choices.choice(list(owed))
            owed.pop(answered)[3] -= 1
            client.send(1, m.BasicAck(answered, False))
        else:
            waiting += 1
            client.feed(publish_frames("", "q", b"x"))
        expected: list[str] = []
        while waiting:
            member = ring.pick(most)
            if member is None:
                break
            waiting -= 1
            tag += 1
            owed[tag] = member
            expected.append(f"c{member[0]}")
        got = [each.method.consumer_tag for each in client.take() if isinstance(each.method, m.BasicDeliver)]
        assert got == expected
        harness.check()


@pytest.mark.parametrize("seed", range(8))
def test_the_next_single_active_consumer_is_the_first_of_those_with_the_highest_priority(seed: int) -> None:
    choices = random.Random(seed)
    harness = Harness()
    client = harness.channel()
    client.declare("q", arguments={"x-single-active-consumer": True})
    members: list[tuple[int, str]] = []  # priority and tag, in the order in which they came
    active: tuple[int, str] | None = None
    for number in range(200):
        if not members or choices.random() < 0.5:
            member = choices.randrange(6), f"c{number}"
            members.append(member)
            client.send(1, basic_consume("q", member[1], no_ack=True, arguments={"x-priority": member[0]}))
        else:
            member = active if active is not None and choices.random() < 0.7 else choices.choice(members)
            members.remove(member)
            client.send(1, m.BasicCancel(member[1], True))
        if active not in members:
            active = max(members, key=lambda each: each[0], default=None)
        client.take_bytes()
        if active is not None:
            client.feed(publish_frames("", "q", b"x"))
            assert [each.method.consumer_tag for each in client.deliveries()] == [active[1]]


def test_an_exclusive_consumer_stays_alone_until_it_goes() -> None:
    harness = Harness()
    client = harness.channel()
    client.declare("q")
    queue = harness.plain_queue("q")
    for tag in ("one", "two"):
        client.send(1, basic_consume("q", tag, exclusive=True))
        (consumer,) = queue.consumers
        assert queue.groups.exclusive is consumer and consumer.tag == tag
        assert harness.channel().refused(1, basic_consume("q", "other")).code == ACCESS_REFUSED
        client.send(1, m.BasicCancel(tag, True))
        assert queue.groups.exclusive is None
    client.send(1, basic_consume("q", "shared"))
    assert queue.groups.exclusive is None


def test_the_cost_of_a_search_is_taken_once() -> None:
    groups = ConsumerGroups()
    groups.passed_over = 3 * PASSED_OVER_PER_MESSAGE + 1
    assert [groups.take_search_cost(), groups.take_search_cost()] == [3, 0]


def test_very_many_priorities_whose_peer_takes_nothing_are_passed_over_in_order() -> None:
    """They stay in the heap: to take 40,000 out and put them back took most of 55 ms, whenever the queue was woken."""
    harness = Harness(outbox_soft_bytes=2000)
    many = harness.channel()
    many.declare("q")
    count = 3 * TAKEN_OUT_MAX
    many.send(1, *[basic_consume("q", f"c{number}", arguments={"x-priority": number}) for number in range(1, count)])
    many.take_bytes()
    other = harness.channel()
    other.consume("q")
    publisher = harness.channel()
    many.peer.stalled = True
    publisher.feed(publish_frames("", "q", bytes(100)) * 50)
    harness.check()
    left = len(other.deliveries())
    assert 0 < left < 50
    groups = harness.plain_queue("q").groups
    assert len(groups._awake.groups) == count and not groups._passed and not groups._passed_in_place
    harness.wake(many.peer)
    publisher.feed(publish_frames("", "q", bytes(100)))
    harness.check()
    assert {each.method.consumer_tag for each in many.deliveries()} == {f"c{count - 1}"}
    assert other.deliveries() == []
