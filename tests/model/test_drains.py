"""Readers that drain a queue into a table, as Spark does, while they die, the broker dies, and others take over.

A reader notes where a batch ends before it writes the batch, and that it is written afterwards; what it notes and what
it has written survives it. A batch that is written twice replaces itself. In the end each message is in the table once,
or a client has got it; twice is what was in the table already when a lease ended before it was acknowledged. A run is
played again by its seed, which it prints:

    WARREN_TEST_DRAINS_SEED=7 WARREN_TEST_DRAINS_RUNS=1
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from math import inf
from random import Random, SystemRandom
from typing import Any, Final, TypeVar, cast

import pytest
import trio
from column_rows import rows_of
from engine_harness import body_of, publish_frames
from simulation.machine import Shape
from trio.testing import MockClock

from warren.amqp import methods as m
from warren.amqp.field_table import encode_table
from warren.channels.broker import Broker
from warren.queues.claim_names import claims_name
from warren.queues.claims import PIECE_MESSAGES, ClaimQueue
from warren.server import drains as drains_module
from warren.server.drains import Ahead, Busy, Drain, Drains, Fenced, NoDrain, NoQueue, Opened, StillClaimed, TooMany
from warren.server.management import Management
from warren.server.shares import Quota
from warren.vhosts.metadata import UserPut

from .restarting_broker import RestartingBroker
from .test_claims import read_columns, rest

RUNS: Final = int(os.environ.get("WARREN_TEST_DRAINS_RUNS", "40"))
SEED: Final = int(os.environ.get("WARREN_TEST_DRAINS_SEED", "0"))
COMMANDS: Final = 60
START_MS: Final = 1_700_000_000_000
Result = TypeVar("Result")


class Killed(Exception):
    """The broker dies in the middle of a call."""


class Desk:
    """What drains need of the broker's management. `between`: called where others would have their turn.

    `lives`: how many turns there are until the broker dies, negative: it does not.
    """

    def __init__(self, harness: RestartingBroker) -> None:
        self.harness = harness
        self.stopping = False
        self.lives = -1
        self.between: Callable[[], None] = lambda: None

    @property
    def broker(self) -> Broker:
        return self.harness.broker

    @property
    def messages(self) -> Desk:
        return self

    def settle(self) -> None:
        if self.lives == 0:
            raise Killed
        self.lives -= 1
        self.harness.settle()
        self.between()

    async def deleted(self) -> None:
        self.settle()
        rest(self.harness)
        self.settle()

    async def commit(self, ticket: int) -> None:
        self.settle()


class Place:
    """A broker with a queue, and its drains."""

    def __init__(self, memory_bytes: int = 128 << 20, **arguments: Any) -> None:
        self.broker = RestartingBroker(Shape(1 << 17, 4), START_MS, memory_bytes)
        self.client = self.broker.channel()
        self.client.declare("q", durable=True, arguments=arguments)
        self.published = 0
        self.clock_s = 1000.0
        self.silent_since_s = 0.0  # the reader of session c
        self._begin()

    def _begin(self) -> None:
        self.desk = Desk(self.broker)
        self.drains = Drains(cast(Management, self.desk), clock=lambda: self.clock_s)

    def start_again(self) -> None:
        """What was not synced is lost."""
        self.broker.start()
        self.client = self.broker.channel()
        self._begin()
        self.broker.settle()
        self.drains.begin_leases()
        self.silent_since_s = self.clock_s

    def publish(self, count: int, **properties: Any) -> list[bytes]:
        bodies = [b"%d" % number for number in range(self.published, self.published + count)]
        self.published += count
        given = {"delivery_mode": 2} | properties
        self.client.feed(b"".join(publish_frames("", "q", body, properties=given) for body in bodies))
        rest(self.broker)
        return bodies

    def drain(self, consumer: str = "c") -> Drain:
        return Drain(self.broker.vhost, "q", consumer)

    def call(self, work: Callable[[], Awaitable[Result]]) -> Result:
        async def run() -> Result:
            return await work()

        return trio.run(run)

    def open(self, consumer: str = "c", lease_s: int | None = None) -> Opened:
        self.silent_since_s = self.clock_s
        return self.call(lambda: self.drains.open(self.drain(consumer), "", "guest", lease_s))

    def claim(self, epoch: int, after: int, most: int, consumer: str = "c", **more: Any) -> tuple[int, int]:
        max_bytes, until = more.get("max_bytes"), more.get("until")
        found = self.call(lambda: self.drains.claim(self.drain(consumer), epoch, after, most, max_bytes, until))
        self.silent_since_s = self.clock_s
        return found

    def release(self, epoch: int | None, consumer: str = "c") -> int:
        return self.call(lambda: self.drains.release(self.drain(consumer), epoch))

    def delete(self, consumer: str = "c", *, discard: bool = False) -> None:
        self.call(lambda: self.drains.delete(self.drain(consumer), "guest", discard=discard))

    def pass_time(self, seconds: float) -> float:
        """Let time pass in which nobody calls, and leases end; return when the next one may."""
        self.clock_s += seconds
        return self.call(self.drains.end_leases)

    def lease_s(self) -> int | None:
        """Return the lease of session c, as it is listed."""
        return self.drains.find(self.drain()).note.lease_s

    def claims(self, consumer: str = "c") -> ClaimQueue:
        """Return the claims of a session, whose oldest number is known."""
        claims = self.broker.vhost.queues[claims_name("q", consumer)]
        assert isinstance(claims, ClaimQueue)
        claims.find_first(lambda number: None)
        rest(self.broker)
        return claims

    def claimed(self) -> list[bytes]:
        """Return the bodies of what is claimed and not acknowledged."""
        if claims_name("q", "c") not in self.broker.vhost.queues:
            return []
        claims = self.claims()
        return self.rows(claims.first_offset(), claims.synced_end())

    def rows(self, first: int, end: int, consumer: str = "c") -> list[bytes]:
        """Return the bodies of claims; all must be there."""
        claims = self.claims(consumer)
        assert claims.first_offset() <= first and end <= claims.synced_end()
        found: list[bytes] = []
        at = first
        while at < end:
            columns, following = read_columns(self.broker, claims, at, end)
            rows = rows_of(b"".join(columns.encode()))
            assert [row.offset for row in rows] == list(range(at, following))
            found += [row.body for row in rows]
            at = following
        return found

    def got(self) -> list[bytes]:
        """Take everything out of the queue."""
        found: list[bytes] = []
        while True:
            self.client.send(1, m.BasicGet(0, "q", True))
            received = self.client.take()
            if not received:
                rest(self.broker)
                received = self.client.take()
            (answer,) = received
            if isinstance(answer.method, m.BasicGetEmpty):
                return found
            found.append(body_of(answer))


class Reader:
    """A streaming query with its checkpoint: `planned` and `committed` are logs of offsets, by batch."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.planned: list[int] = []
        self.committed = 0  # how many batches
        self.table: dict[int, list[bytes]] = {}
        self.epoch = -1
        self.lease_s: int | None = None

    def end_of(self, batch: int) -> int:
        return self.planned[batch] if batch >= 0 else 0

    def start(self) -> None:
        """Begin with nothing but the checkpoint."""
        self.epoch = -1

    def step(self, dice: Random, most: int) -> None:
        """Do a batch, or a part of it: a reader may die anywhere."""
        if self.epoch < 0:
            self.epoch = self.place.open(lease_s=self.lease_s).epoch
        batch = self.committed
        if batch == len(self.planned):
            after = self.end_of(batch - 1)
            first, end = self.place.claim(self.epoch, after, most)
            assert first == max(after, self.place.claims().first_offset())
            if end == after or dice.random() < 0.2:
                return
            self.planned.append(end)
        if dice.random() < 0.2:
            return
        end = self.end_of(batch)
        first = max(self.end_of(batch - 1), self.place.claims().first_offset())  # before it is what a lease has ended
        self.table[batch] = self.place.rows(first, end) if first < end else []
        if dice.random() < 0.2:
            return
        self.committed += 1


class Run:
    """A place and two readers that share one checkpoint, under one seed."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.trace: list[str] = []
        kinds: tuple[dict[str, Any], ...] = ({}, {}, {"x-max-priority": 2}, {"x-queue-type": "quorum"})
        self.place = Place(self.dice.choice((0, 128 << 20)), **self.dice.choice(kinds))
        self.reader = Reader(self.place)
        self.reader.lease_s = self.dice.choice((None, 60, 600))
        self.again: list[bytes] = []  # what comes a second time
        self.bodies: list[bytes] = []
        self.got: list[bytes] = []

    def publish(self) -> None:
        self.bodies += self.place.publish(self.dice.choice((1, 5, 40)), priority=self.dice.randrange(3))

    def get(self) -> None:
        """A client works on the queue as well."""
        client = self.place.client
        for _ in range(self.dice.choice((1, 3))):
            client.send(1, m.BasicGet(0, "q", False))
            received = client.take()
            if not received:
                rest(self.place.broker)
                received = client.take()
            (answer,) = received
            if isinstance(answer.method, m.BasicGetEmpty):
                return
            if self.dice.random() < 0.3:
                client.send(1, m.BasicNack(answer.method.delivery_tag, False, True))
            else:
                client.send(1, m.BasicAck(answer.method.delivery_tag, False))
                rest(self.place.broker)
                self.got.append(body_of(answer))

    def step(self) -> None:
        self.reader.step(self.dice, self.dice.choice((1, 7, 30, 1000)))

    def reader_dies(self) -> None:
        self.reader.start()

    def broker_dies(self) -> None:
        """In the middle of what a reader does, or not."""
        self.place.desk.lives = self.dice.randrange(12)
        try:
            self.reader.step(self.dice, 30)
        except Killed:
            self.reader.start()
        self.place.start_again()

    def broker_stops(self) -> None:
        self.place.client.hang_up()
        self.place.broker.stop()
        self.place.start_again()

    def other_reader(self) -> None:
        """Somebody else opens the session for a moment: the reader is refused, and begins anew."""
        stale = self.reader.epoch
        self.place.open(lease_s=self.dice.choice((None, 60)))
        if stale >= 0:
            with pytest.raises(Fenced):
                self.place.claim(stale, self.reader.end_of(self.reader.committed - 1), 1)
            self.reader.start()

    def time_passes(self) -> None:
        """Nobody calls: claims go back when that takes as long as the lease, and not before."""
        place, reader = self.place, self.reader
        before = place.claimed()
        first = place.claims().first_offset() if before else 0
        seconds = self.dice.choice((1, 30, 59, 60, 600))
        if before:
            lease_s = inf if (given := place.lease_s()) is None else given
            ends = place.clock_s + seconds >= place.silent_since_s + lease_s
        else:
            ends = False
        dies = self.dice.random() < 0.3
        place.desk.lives = self.dice.randrange(8) if dies else -1
        try:
            place.pass_time(seconds)
        except Killed:
            assert ends
        if dies:
            place.start_again()
        after = place.claimed()
        assert after == before or (ends and after == before[len(before) - len(after) :])
        if not ends:
            assert after == before
            return
        assert dies or not after
        returned = min(len(before) - len(after), max(0, reader.end_of(reader.committed - 1) - first))
        self.again += before[:returned]
        if reader.epoch >= 0 and not dies:
            with pytest.raises(Fenced):
                place.claim(reader.epoch, reader.end_of(reader.committed - 1), 1)
        reader.start()

    def run(self) -> None:
        commands: list[tuple[Callable[[], None], float]] = [
            (self.publish, 5),
            (self.get, 2),
            (self.step, 8),
            (self.reader_dies, 1.5),
            (self.broker_dies, 1.5),
            (self.broker_stops, 0.5),
            (self.other_reader, 0.7),
            (self.time_passes, 2),
        ]
        for _ in range(COMMANDS):
            (command,) = self.dice.choices([each for each, _ in commands], [weight for _, weight in commands])
            self.trace.append(command.__name__)
            command()
            self.place.broker.check()
        self.finish()

    def finish(self) -> None:
        """Drain what is left, and compare."""
        calm = Random()
        calm.random = lambda: 1.0  # type: ignore[method-assign]
        idle = 0
        while idle < 2:
            before = (len(self.reader.planned), self.reader.committed)
            self.reader.step(calm, 1000)
            idle = idle + 1 if before == (len(self.reader.planned), self.reader.committed) else 0
        table = [body for batch in sorted(self.reader.table) for body in self.reader.table[batch]]
        assert sorted(table + self.got) == sorted(self.bodies + self.again)
        assert self.place.got() == []


def test_readers_that_die_anywhere_have_each_message_once_in_the_end() -> None:
    seed = SEED or SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    for number in range(RUNS):
        run = Run(seed + number)
        try:
            run.run()
        except BaseException:
            print(*run.trace[-40:], sep="\n")
            print(f"WARREN_TEST_DRAINS_SEED={seed + number} WARREN_TEST_DRAINS_RUNS=1")
            raise


# --- one by one -------------------------------------------------------------------------------------------------------


def test_a_claim_is_adopted_and_nothing_more_is_claimed_until_it_is_acknowledged() -> None:
    place = Place()
    bodies = place.publish(100)
    epoch = place.open().epoch
    assert place.claim(epoch, 0, 30) == (0, 30)
    assert place.claim(epoch, 0, 5) == (0, 30)
    assert place.claim(epoch, 10, 5) == (10, 30)
    assert place.rows(10, 30) == bodies[10:30]
    assert place.claim(epoch, 30, 25) == (30, 55)
    assert place.got() == bodies[55:]
    assert place.claim(epoch, 55, 25) == (55, 55)


def test_an_older_epoch_is_refused_everywhere() -> None:
    place = Place()
    place.publish(10)
    first = place.open()
    second = place.open()
    assert second.epoch > first.epoch and (second.first, second.end) == (0, 0)
    with pytest.raises(Fenced):
        place.claim(first.epoch, 0, 10)
    with pytest.raises(Fenced):
        place.drains.mark(place.drain(), first.epoch)
    with pytest.raises(Fenced):
        place.release(first.epoch)
    assert place.claim(second.epoch, 0, 10) == (0, 10)
    with pytest.raises(Fenced):
        place.claim(second.epoch + 1, 0, 10)


def test_an_epoch_is_never_given_again_not_even_to_another_session_of_the_name() -> None:
    place = Place()
    seen = [place.open().epoch, place.open("other").epoch]
    place.delete()
    seen.append(place.open().epoch)
    rest(place.broker)
    place.start_again()
    seen += [place.open().epoch, place.open("third").epoch]
    assert seen == sorted(set(seen))


def test_opening_ends_a_claim_that_is_under_way() -> None:
    place = Place()
    bodies = place.publish(3 * PIECE_MESSAGES)
    first = place.open()
    opened: list[Opened] = []

    async def both() -> None:
        async def second() -> None:
            opened.append(await place.drains.open(place.drain(), "", "guest"))

        async with trio.open_nursery() as nursery:

            def between() -> None:
                place.desk.between = lambda: None
                nursery.start_soon(second)

            place.desk.between = between
            with pytest.raises(Fenced):
                await place.drains.claim(place.drain(), first.epoch, 0, 1_000_000, None, None)

    trio.run(both)
    claimed = opened[0].end
    assert 0 < claimed < len(bodies)
    assert place.rows(0, claimed) == bodies[:claimed] and place.got() == bodies[claimed:]


def test_a_reader_that_knows_more_than_the_broker_is_told() -> None:
    place = Place()
    place.publish(10)
    epoch = place.open().epoch
    assert place.claim(epoch, 0, 5) == (0, 5)
    with pytest.raises(Ahead):
        place.claim(epoch, 6, 5)
    assert place.rows(0, 5) == [b"0", b"1", b"2", b"3", b"4"]


def test_claims_until_a_mark_take_nothing_that_came_later() -> None:
    place = Place()
    bodies = place.publish(20)
    epoch = place.open().epoch
    mark = place.drains.mark(place.drain(), epoch)
    place.publish(20)
    assert place.claim(epoch, 0, 15, until=mark) == (0, 15)
    assert place.claim(epoch, 15, 15, until=mark) == (15, 20)
    assert place.claim(epoch, 20, 15, until=mark) == (20, 20)
    assert place.claim(epoch, 20, 15) == (20, 35)
    assert place.rows(20, 35)[0] == b"20" and bodies[-1] == b"19"


def test_a_mark_of_a_queue_that_was_deleted_and_made_anew_claims_nothing() -> None:
    place = Place()
    place.publish(20)
    epoch = place.open().epoch
    mark = place.drains.mark(place.drain(), epoch)
    place.client.call(1, m.QueueDelete(0, "q", False, False, False))
    assert place.drains.mark(place.drain(), epoch) == 0
    assert place.claim(epoch, 0, 15, until=mark) == (0, 0), "the queue is gone"
    place.client.declare("q", durable=True)
    place.publish(5)
    assert place.claim(epoch, 0, 15, until=mark) == (0, 0)
    assert place.claim(epoch, 0, 15, until=0) == (0, 0)
    assert place.claim(epoch, 0, 15) == (0, 5)


@pytest.mark.parametrize(("max_bytes", "expected"), [(1, 1), (100, 1), (101, 1), (299, 2), (300, 3), (10_000, 10)])
def test_a_claim_has_no_more_bytes_than_asked_for_but_one_message(max_bytes: int, expected: int) -> None:
    place = Place()
    place.client.feed(b"".join(publish_frames("", "q", b"x" * 100, properties={"delivery_mode": 2}) for _ in range(10)))
    rest(place.broker)
    epoch = place.open().epoch
    assert place.claim(epoch, 0, 1000, max_bytes=max_bytes) == (0, expected)


def test_what_has_expired_is_not_claimed_and_what_is_claimed_does_not_expire() -> None:
    place = Place()
    place.publish(5, expiration="1000")
    place.publish(5, expiration="60000")
    place.publish(5)
    place.broker.broker.log.now_ms += 1500  # and nobody has looked yet
    epoch = place.open().epoch
    assert place.claim(epoch, 0, 1000) == (0, 10)
    rest(place.broker)
    place.start_again()
    place.broker.pass_time(3600)
    assert place.rows(0, 10) == [b"%d" % number for number in range(5, 15)]
    assert place.got() == []


def test_what_is_released_comes_back_behind_the_others_and_lives_anew() -> None:
    place = Place()
    bodies = place.publish(5, expiration="60000")
    epoch = place.open().epoch
    assert place.claim(epoch, 0, 3) == (0, 3)
    place.broker.pass_time(59)
    assert place.release(epoch) == 3
    place.broker.pass_time(59)
    assert place.got() == bodies[:3]
    assert place.claim(epoch, 0, 3) == (3, 3), "their numbers are not given again"
    place.publish(1)
    assert place.claim(epoch, 0, 3) == (3, 4)


def test_an_operator_who_releases_fences_whoever_has_the_session() -> None:
    place = Place()
    bodies = place.publish(5)
    epoch = place.open().epoch
    assert place.claim(epoch, 0, 3) == (0, 3)
    assert place.release(None) == 3
    with pytest.raises(Fenced):
        place.claim(epoch, 0, 3)
    assert place.got() == bodies[3:] + bodies[:3]


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-max-length": 3, "x-overflow": "reject-publish"},
        {"x-message-deduplication": True, "x-deduplication-header": "id"},
        {"x-max-priority": 3},
        {"x-queue-type": "quorum", "x-delivery-limit": 1},
        {"x-key-shared": True},
    ],
)
def test_no_rule_of_a_queue_keeps_out_what_is_released(arguments: dict[str, Any]) -> None:
    place = Place(**arguments)
    bodies: list[bytes] = []
    for number in range(3):
        bodies += place.publish(1, headers=encode_table({"id": number}))
    epoch = place.open().epoch
    for _ in range(3):
        first, end = place.claim(epoch, 0, 10)
        assert place.rows(first, end) == bodies
        waiting = place.publish(3)
        assert place.release(epoch) == 3
        assert place.claim(epoch, 0, 3) == (end, end + 3)
        assert place.rows(end, end + 3) == waiting
        assert place.claim(epoch, end + 3, 3) == (end + 3, end + 6)
        assert place.rows(end + 3, end + 6) == bodies
        assert place.release(epoch) == 3
    assert place.got() == bodies


def test_claims_outlive_their_queue_and_are_released_to_the_next_of_the_name() -> None:
    place = Place()
    bodies = place.publish(10)
    epoch = place.open().epoch
    assert place.claim(epoch, 0, 5) == (0, 5)
    place.client.call(1, m.QueueDelete(0, "q", False, False, False))
    rest(place.broker)
    place.start_again()
    opened = place.open()
    assert (opened.first, opened.end) == (0, 5) and place.rows(0, 5) == bodies[:5]
    assert place.claim(opened.epoch, 2, 5) == (2, 5)
    with pytest.raises(NoQueue):
        place.release(opened.epoch)
    place.client.declare("q", durable=True)
    assert place.release(opened.epoch) == 3
    assert place.got() == bodies[2:5]


def test_a_drain_with_claims_is_deleted_only_when_they_are_to_be_thrown_away() -> None:
    place = Place()
    place.publish(10)
    epoch = place.open().epoch
    place.claim(epoch, 0, 5)
    with pytest.raises(StillClaimed):
        place.delete()
    place.delete(discard=True)
    assert claims_name("q", "c") not in place.broker.vhost.queues
    with pytest.raises(NoDrain):
        place.claim(epoch, 5, 5)
    with pytest.raises(NoDrain):
        place.delete()
    assert len(place.got()) == 5


def test_calls_of_one_session_wait_for_each_other_but_not_for_ever() -> None:
    place = Place()
    place.publish(10)
    epoch = place.open().epoch

    drain = place.drain()

    async def hold(task_status: trio.TaskStatus[None]) -> None:
        async with place.drains._turn(drain, epoch):
            task_status.started()
            await trio.sleep_forever()

    async def claims() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(hold)
            with pytest.raises(Busy):
                await place.drains.claim(drain, epoch, 0, 10, None, None)
            nursery.cancel_scope.cancel()
        assert await place.drains.claim(drain, epoch, 0, 10, None, None) == (0, 10)

    trio.run(claims, clock=MockClock(autojump_threshold=0))


def test_a_paused_queue_gives_nothing_to_a_drain_either() -> None:
    place = Place()
    place.publish(10)
    epoch = place.open().epoch
    place.broker.queue("q").pause(paused=True)
    assert place.claim(epoch, 0, 5) == (0, 0)
    place.broker.queue("q").pause(paused=False)
    assert place.claim(epoch, 0, 5) == (0, 5)


def test_a_queue_has_so_many_drains_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place()
    monkeypatch.setattr(drains_module, "DRAINS_QUOTA", Quota(2, 2))
    for name in ("one", "two"):
        place.open(name)
    with pytest.raises(TooMany):
        place.open("three")
    place.open("one")
    place.delete("one")
    place.open("three")


def test_a_user_has_a_share_of_the_drains_of_a_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place()
    place.broker.broker.access.apply(UserPut("root", "", "", ("administrator",)))
    monkeypatch.setattr(drains_module, "DRAINS_QUOTA", Quota(3, 2))

    def open_by(user: str, name: str) -> Opened:
        return place.call(lambda: place.drains.open(place.drain(name), "", user))

    open_by("greedy", "one")
    open_by("greedy", "two")
    with pytest.raises(TooMany, match="user 'greedy' has 2 drains"):
        open_by("greedy", "three")
    open_by("other", "three")
    with pytest.raises(TooMany, match="there are 3 drains"):
        open_by("third", "four")
    open_by("root", "four")


def test_a_broker_that_stops_claims_no_more_and_what_is_claimed_is_there_when_it_starts() -> None:
    place = Place()
    bodies = place.publish(3 * PIECE_MESSAGES)
    epoch = place.open().epoch

    def stop() -> None:
        place.desk.stopping = True

    place.desk.between = stop
    with pytest.raises(Busy):
        place.claim(epoch, 0, 1_000_000)
    rest(place.broker)
    place.start_again()
    first, end = place.claim(epoch, 0, 1)
    assert (first, end) == (0, PIECE_MESSAGES) and place.rows(0, end) == bodies[:PIECE_MESSAGES]


def test_a_new_session_counts_as_a_queue_of_the_vhost() -> None:
    place = Place()
    place.open()
    place.broker.vhost.limits = {"max-queues": 2}
    with pytest.raises(TooMany):
        place.open("another")
    assert place.open().epoch


# --- leases -----------------------------------------------------------------------------------------------------------


def leased(lease_s: int | None = 60) -> tuple[Place, int]:
    """Return a place where somebody has claimed the first 3 of 5 messages, and his epoch."""
    place = Place()
    place.publish(5)
    epoch = place.open(lease_s=lease_s).epoch
    assert place.claim(epoch, 0, 3) == (0, 3)
    return place, epoch


FIRST_THREE: Final = [b"0", b"1", b"2"]


def test_claims_go_back_when_nobody_came_for_as_long_as_the_lease_and_not_a_moment_before() -> None:
    place, epoch = leased()
    assert place.pass_time(59.999) == pytest.approx(place.clock_s + 0.001)
    assert place.claimed() == FIRST_THREE
    place.pass_time(0.001)
    assert place.claimed() == []
    with pytest.raises(Fenced):
        place.claim(epoch, 3, 1)
    found = place.drains.find(place.drain())
    assert found.note.epoch > epoch and found.note.lease_s == 60
    place.client.send(1, m.BasicGet(0, "q", True))
    (ahead,) = place.client.take()
    assert isinstance(ahead.method, m.BasicGetOk) and not ahead.method.redelivered and body_of(ahead) == b"3"
    place.client.send(1, m.BasicGet(0, "q", True))
    place.client.take()
    place.client.send(1, m.BasicGet(0, "q", True))
    (back,) = place.client.take()
    assert isinstance(back.method, m.BasicGetOk) and back.method.redelivered and body_of(back) == b"0"
    again = place.open()
    assert place.claim(again.epoch, 0, 5) == (3, 5), "their numbers are not given again"


def test_claims_without_a_lease_are_kept_for_ever() -> None:
    place, epoch = leased(None)
    assert place.pass_time(1e9) == inf
    assert place.claim(epoch, 0, 1) == (0, 3)


@pytest.mark.parametrize("sign", ["claim", "mark", "read", "open"])
def test_every_call_of_the_session_begins_its_lease_anew(sign: str) -> None:
    place, epoch = leased()
    for _ in range(3):
        place.pass_time(59)
        match sign:
            case "claim":
                place.claim(epoch, 0, 1)
            case "mark":
                place.drains.mark(place.drain(), epoch)
            case "read":
                with place.drains.reading(place.claims()):
                    pass
            case "open":
                epoch = place.open(lease_s=60).epoch
    place.pass_time(59.9)
    assert place.claimed() == FIRST_THREE
    place.pass_time(0.1)
    assert place.claimed() == []


def test_what_others_do_with_the_session_is_no_sign_of_its_reader() -> None:
    place, epoch = leased()
    stale, epoch = epoch, place.open(lease_s=60).epoch
    place.pass_time(59)
    seen_ms = place.drains.find(place.drain()).last_seen_ms
    with pytest.raises(Fenced):
        place.claim(stale, 0, 1)
    with pytest.raises(Fenced):
        place.drains.mark(place.drain(), stale)
    with pytest.raises(StillClaimed):
        place.delete()
    assert place.drains.find(place.drain()).last_seen_ms == seen_ms
    place.pass_time(1)
    assert place.claimed() == []


def test_a_call_that_is_under_way_is_no_silence() -> None:
    place, epoch = leased()
    drain = place.drain()
    answers: list[tuple[int, int]] = []

    async def hold(*, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
        with trio.CancelScope() as scope:
            async with place.drains._turn(drain, None, by_reader=False):
                task_status.started(scope)
                await trio.sleep_forever()

    async def claim() -> None:
        answers.append(await place.drains.claim(drain, epoch, 0, 1, None, None))

    async def wait_for_a_turn() -> None:
        async with trio.open_nursery() as nursery:
            held: trio.CancelScope = await nursery.start(hold)
            nursery.start_soon(claim)
            await trio.testing.wait_all_tasks_blocked()
            place.clock_s += 1000
            assert await place.drains.end_leases() == place.clock_s + 60
            held.cancel()

    trio.run(wait_for_a_turn)
    assert answers == [(0, 3)]
    place.pass_time(59)
    with place.drains.reading(place.claims()):
        place.pass_time(1000)
        place.pass_time(1000)
    place.pass_time(59)
    assert place.claimed() == FIRST_THREE
    place.pass_time(1)
    assert place.claimed() == []


def test_a_lease_begins_anew_when_the_broker_does() -> None:
    place, epoch = leased()
    place.pass_time(59)
    place.start_again()
    assert place.lease_s() == 60
    place.pass_time(59)
    assert place.claimed() == FIRST_THREE
    place.pass_time(1)
    assert place.claimed() == []
    place.start_again()
    with pytest.raises(Fenced):
        place.claim(epoch, 0, 1)
    assert sorted(place.got()) == [b"%d" % number for number in range(5)]


@pytest.mark.parametrize("lease_s", [None, 30, 600])
def test_who_takes_a_session_over_brings_a_lease_of_his_own(lease_s: int | None) -> None:
    place, _ = leased()
    place.pass_time(59)
    opened = place.open(lease_s=lease_s)
    assert (opened.first, opened.end, place.lease_s()) == (0, 3, lease_s)
    place.pass_time(29 if lease_s == 30 else 599)
    assert place.claimed() == FIRST_THREE
    place.pass_time(1)
    assert place.claimed() == ([] if lease_s else FIRST_THREE)


def test_a_lease_does_not_end_while_somebody_opens_the_session() -> None:
    place, _ = leased()
    place.pass_time(59)

    async def commit(ticket: int) -> None:
        place.clock_s += 1000
        await place.drains.end_leases()

    place.desk.commit = commit  # type: ignore[method-assign]
    opened = place.open(lease_s=60)
    assert (opened.first, opened.end) == (0, 3) and place.claim(opened.epoch, 0, 1) == (0, 3)


def test_a_session_that_has_claimed_nothing_keeps_its_epoch_however_long_it_is_silent() -> None:
    place = Place()
    epoch = place.open(lease_s=60).epoch
    place.pass_time(1000)
    place.publish(3)
    assert place.claim(epoch, 0, 3) == (0, 3)


def test_claims_of_a_queue_that_is_gone_stay_until_there_is_one_to_take_them() -> None:
    place, epoch = leased()
    place.client.call(1, m.QueueDelete(0, "q", False, False, False))
    place.pass_time(60)
    assert place.claimed() == FIRST_THREE
    assert place.claim(epoch, 1, 3) == (1, 3), "nobody is shut out for nothing"
    place.pass_time(60)
    place.client.declare("q", durable=True)
    place.pass_time(60)
    assert place.got() == [b"1", b"2"]
    with pytest.raises(Fenced):
        place.claim(epoch, 1, 3)


def test_who_opens_the_session_while_its_lease_ends_has_what_has_not_gone_back() -> None:
    place = Place()
    bodies = place.publish(3 * PIECE_MESSAGES)
    epoch = place.open(lease_s=60).epoch
    assert place.claim(epoch, 0, len(bodies)) == (0, len(bodies))
    opened: list[Opened] = []

    async def both() -> None:
        async def take_over() -> None:
            opened.append(await place.drains.open(place.drain(), "", "guest", 60))

        async with trio.open_nursery() as nursery:

            def between() -> None:
                if place.claims().first_offset():
                    place.desk.between = lambda: None
                    nursery.start_soon(take_over)

            place.desk.between = between
            await place.drains.end_leases()

    place.clock_s += 60
    trio.run(both)
    first, end = opened[0].first, opened[0].end
    assert 0 < first < end == len(bodies)
    assert place.rows(first, end) == bodies[first:] and place.got() == bodies[:first]
    assert place.claim(opened[0].epoch, first, 1) == (first, end)


def test_leases_end_by_themselves_and_begin_anew_with_the_broker_and_when_it_could_hear_nobody() -> None:
    place = Place()
    place.publish(5)
    drain = place.drain()
    clock = MockClock(autojump_threshold=0)

    async def claimed(count: int, seconds: float) -> None:
        """Expect so many claims before and after so many seconds."""
        await trio.sleep(seconds)
        await trio.testing.wait_all_tasks_blocked()
        assert place.claims().ready_count == count

    async def live() -> None:
        drains = Drains(cast(Management, place.desk))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(drains.run)
            await trio.testing.wait_all_tasks_blocked()
            long = await drains.open(Drain(place.broker.vhost, "q", "long"), "", "guest", 1000)
            await drains.claim(Drain(place.broker.vhost, "q", "long"), long.epoch, 0, 1, None, None)
            await trio.sleep(100)
            opened = await drains.open(drain, "", "guest", 60)
            await drains.claim(drain, opened.epoch, 0, 3, None, None)
            await claimed(3, 30)
            clock.jump(100)  # and nothing ran meanwhile
            await claimed(3, 59.9)
            await claimed(0, 0.2)
            opened = await drains.open(drain, "", "guest", 60)
            await drains.claim(drain, opened.epoch, opened.first, 2, None, None)
            await trio.sleep(59)
            nursery.cancel_scope.cancel()
        started = Drains(cast(Management, place.desk))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(started.run)
            await claimed(2, 59.9)
            assert place.claims("long").ready_count == 1
            await claimed(0, 0.2)
            await trio.sleep(1000)
            assert place.claims("long").ready_count == 0
            nursery.cancel_scope.cancel()

    trio.run(live, clock=clock)
    assert sorted(place.got()) == [b"%d" % number for number in range(5)]


def test_leases_that_end_while_another_one_goes_back_end_then() -> None:
    place = Place()
    place.publish(5)
    clock = MockClock(autojump_threshold=0)

    async def live() -> None:
        drains = Drains(cast(Management, place.desk))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(drains.run)
            for name, lease_s in (("b", 65), ("c", 61), ("a", 60)):
                drain = place.drain(name)
                opened = await drains.open(drain, "", "guest", lease_s)
                await drains.claim(drain, opened.epoch, 0, 1, None, None)

            def between() -> None:
                place.desk.between = lambda: None
                clock.jump(10)

            place.desk.between = between
            await trio.sleep(60.1)
            await trio.testing.wait_all_tasks_blocked()
            assert [place.claims(name).ready_count for name in "abc"] == [0, 0, 0]
            nursery.cancel_scope.cancel()

    trio.run(live, clock=clock)
