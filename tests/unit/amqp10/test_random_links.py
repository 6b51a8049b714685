"""Random clients against a model: after any answers, detaches and cuts, messages are neither lost nor doubled.

The model is a set of numbers: the published messages that are not done. A client has each of them at most once, and the
messages that no client has are in the queue, in order.
"""

from __future__ import annotations

import random

import pytest
from amqp10_harness import Amqp10Client, Frame, amqp10_client, message, sections
from engine_harness import Harness

from warren.amqp10.performatives import ACCEPTED, MODIFIED, REJECTED, RELEASED
from warren.amqp10.values import UInt


class Taker:
    """A client with a receiving link, and what it knows of it."""

    def __init__(self, harness: Harness, chance: random.Random) -> None:
        self._chance = chance
        self.client: Amqp10Client = amqp10_client(harness, max_frame=chance.choice((512, 4096)))
        self.settled = chance.random() < 0.2
        self.out: dict[int, int] = {}  # by delivery id: number of the message
        self.attach()

    def attach(self) -> None:
        self.count = 0  # deliveries of this link
        self.credit = 0
        (attached,) = self.client.receiver(0, "/queues/q", mode=1 if self.settled else 0)
        assert attached.name == "attach"

    def take(self, frames: list[Frame], gone: set[int]) -> None:
        """Note what has come; settled deliveries are done."""
        for each in frames:
            if each.name == "flow" and each.field(4) == 0:
                assert each.field(6) == 0 and each.field(5) == self.count + self.credit
                self.count += self.credit
                self.credit = 0
            elif each.name == "transfer":
                self.count += 1
                self.credit -= 1
                assert self.credit >= 0
                number = int(sections(each.payload)[0x75])
                assert number not in self.out.values()
                if self.settled:
                    gone.add(number)
                else:
                    self.out[each.field(1)] = number

    def ask(self, gone: set[int]) -> None:
        """Give credit, drained or not."""
        credit = self._chance.randrange(8)
        drain = self._chance.random() < 0.3
        self.credit = credit
        # It has seen everything that was sent: all is read at once.
        self.take(self.client.credit(0, credit, count=self.count, drain=drain or None, seen=self._seen()), gone)

    def _seen(self) -> int:
        return int(self.client.peer.channels[1].ledger.next_tag) - 1

    def answer(self, gone: set[int]) -> None:
        """Settle a range of what is out."""
        if not self.out:
            return
        ids = sorted(self.out)
        first = self._chance.choice(ids)
        last = self._chance.choice([each for each in ids if each >= first])
        state = self._chance.choice((ACCEPTED, ACCEPTED, REJECTED, RELEASED, MODIFIED, None))
        fields = [self._chance.random() < 0.5, self._chance.random() < 0.3] if state == MODIFIED else []
        answered = [self.out.pop(each) for each in ids if first <= each <= last]
        if state in (ACCEPTED, REJECTED) or (state == MODIFIED and fields[1]):
            gone.update(answered)
        settled = state is None or self._chance.random() < 0.7
        self.take(self.client.settle(first, last, state, settled=settled, fields=fields), gone)

    def detach(self) -> None:
        """End the link, and begin another one."""
        self.out.clear()
        self.client.send(0x16, [UInt(0), True])
        self.attach()


@pytest.mark.parametrize("seed", range(12))
def test_no_message_is_lost_or_doubled(seed: int) -> None:
    chance = random.Random(seed)
    harness = Harness()
    harness.channel().declare("q", durable=True)
    sender = amqp10_client(harness)
    sender.sender(0, "/queues/q")
    takers = [Taker(harness, chance) for _ in range(3)]
    published = 0
    gone: set[int] = set()
    for _ in range(250):
        step = chance.randrange(10)
        taker = chance.choice(takers)
        if step < 3:
            for _ in range(chance.randrange(4)):
                sender.transfer(0, message(b"%d" % published, durable=chance.random() < 0.5))
                published += 1
        elif step < 6:
            taker.ask(gone)
        elif step < 9:
            taker.answer(gone)
        elif chance.random() < 0.5:
            taker.detach()
        else:
            taker.client.hang_up()
            takers.remove(taker)
            takers.append(Taker(harness, chance))
        for each in takers:
            each.take(each.client.take(), gone)
        harness.check()
        held = [number for each in takers for number in each.out.values()]
        assert len(held) == len(set(held)) and not gone & set(held)
        queue = harness.queue("q")
        assert queue.unacked_count == len(held)
        assert queue.ready_count == published - len(gone) - len(held)
    for each in takers:
        each.client.hang_up()
    last = amqp10_client(harness)
    last.receiver(0, "/queues/q")
    rest = [int(sections(each.payload)[0x75]) for each in last.credit(0, published + 1)]
    assert rest == sorted(set(range(published)) - gone)
