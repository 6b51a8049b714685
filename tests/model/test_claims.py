"""Random queues, drained while clients use them and the broker stops or dies, against a record of all places.

Each message that was stored is in exactly one place: the queue, at a client, claimed, or acknowledged. A claimed
message keeps the number of its claim, whatever happens, until it is acknowledged or given back. A run is played again
by its seed, which it prints:

    WARREN_TEST_CLAIMS_SEED=7 WARREN_TEST_CLAIMS_RUNS=1

A power cut while messages are claimed, or given back, is tried at every point.
"""

from __future__ import annotations

import os
from collections import deque
from contextlib import nullcontext
from functools import partial
from random import Random, SystemRandom
from typing import Any, Final
from unittest import mock

import pytest
from column_rows import Row, rows_of
from engine_harness import Client, Harness, body_of, publish_frames
from simulation.small_limits import small_limits
from simulation.small_store import Shape

from warren.amqp import methods as m
from warren.amqp.declarations import QueueDeclaration
from warren.msgstore.log.columns import Columns
from warren.queues import claims as claims_module
from warren.queues.base_queue import BaseQueue
from warren.queues.basic_get import call_when_ready
from warren.queues.browse import Cursor, Seen, look
from warren.queues.claim_names import claims_name
from warren.queues.claims import DEAD_LETTER, REQUEUE, ClaimQueue, Verdict, claims_arguments, ends_of, mark_of
from warren.queues.offset_columns import read_columns as read_offset_columns
from warren.queues.queue import Queue

from .restarting_broker import RestartingBroker

RUNS: Final = int(os.environ.get("WARREN_TEST_CLAIMS_RUNS", "40"))
SEED: Final = int(os.environ.get("WARREN_TEST_CLAIMS_SEED", "0"))
COMMANDS: Final = 60
START_MS: Final = 1_700_000_000_000
CRASH_STATES: Final = 12
LEVELS: Final = 4
PLENTY: Final = 1 << 40
KINDS: Final[tuple[dict[str, Any], ...]] = (
    {},
    {},
    {"x-max-priority": 3},
    {"x-key-shared": True},
    {"x-queue-type": "quorum", "x-delivery-limit": -1},
    {"x-message-ttl": 1 << 30},
)

# Where a message is.
READY: Final = "ready"
OUT: Final = "out"
CLAIMED: Final = "claimed"
GONE: Final = "gone"


def declare_claims(harness: Harness, queue: str = "q", consumer: str = "c") -> ClaimQueue:
    """Declare a claim queue, as opening a drain does."""
    name = claims_name(queue, consumer)
    harness.vhost.declare_queue(QueueDeclaration(name, durable=True, arguments=claims_arguments(queue, consumer)))
    harness.settle()
    return the_claims(harness, name)


def the_claims(harness: Harness, name: str = claims_name("q", "c")) -> ClaimQueue:
    queue = harness.vhost.queues[name]
    assert isinstance(queue, ClaimQueue)
    return queue


def rest(harness: Harness) -> None:
    """Sync and read everything."""
    log = harness.broker.log
    harness.settle()
    while not log.is_idle() or log.durable_lsn < log.next_lsn:
        log.force()
        harness.settle()


def claim(
    harness: Harness,
    claims: ClaimQueue,
    queue: Queue,
    most: int,
    mark: int | None = None,
    room_bytes: int = PLENTY,
    piece: int | None = None,
) -> int:
    """Claim until there are `most`, or nothing is left; return how many that were."""
    done = taken_bytes = 0
    while done < most:
        ends = [] if mark is None else ends_of(queue, mark)
        room = most - done if piece is None else min(piece, most - done)
        claimed = claims.claim(queue, room, room_bytes - taken_bytes, done == 0, ends)
        assert claimed.count <= room
        done += claimed.count
        taken_bytes += claimed.body_bytes
        if claimed.waits:
            woken: deque[bool] = deque()
            call_when_ready(queue, partial(woken.append, True))
            rest(harness)
            assert woken
        elif not claimed.count:
            break
        else:
            harness.settle()
    return int(done)


def read_columns(harness: Harness, claims: ClaimQueue, first: int, end: int) -> tuple[Columns, int]:
    """Return a chunk, and where it ends."""
    told: list[tuple[Columns, int]] = []
    read_offset_columns(
        claims, first, end, bodies=True, properties=True, told=lambda made, following: told.append((made, following))
    )
    rest(harness)
    (found,) = told
    return found


def read(harness: Harness, claims: ClaimQueue, first: int, end: int) -> list[Row]:
    """Return the claims of a range."""
    rows: list[Row] = []
    while first < end:
        columns, following = read_columns(harness, claims, first, end)
        rows += rows_of(b"".join(columns.encode()))
        assert first < following <= end
        first = following
    return rows


def all_claims(harness: Harness, claims: ClaimQueue) -> list[Row]:
    return read(harness, claims, first_of(harness, claims), claims.synced_end())


def first_of(harness: Harness, claims: ClaimQueue) -> int:
    """Return the number of the oldest claim."""
    told: list[int] = []
    claims.find_first(told.append)
    rest(harness)
    (first,) = told
    assert first == claims.first_offset()
    return first


def settle_below(harness: Harness, claims: ClaimQueue, number: int) -> None:
    told: list[None] = []
    claims.settle_below(number, lambda: told.append(None))
    rest(harness)
    assert told == [None] and first_of(harness, claims) == max(number, claims.first_offset())


def give_back(harness: Harness, claims: ClaimQueue, queue: Queue) -> int:
    """Give everything back."""
    count = 0
    first_of(harness, claims)
    while claims.first_offset() < claims.synced_end():
        told: list[int] = []
        claims.give_back(queue, told.append)
        rest(harness)
        count += sum(told)
        assert len(told) == 1
    return count


def settle_oldest(harness: Harness, claims: ClaimQueue, queue: Queue, verdict: Verdict) -> None:
    """Make everything leave by a verdict."""
    first_of(harness, claims)
    while claims.first_offset() < claims.synced_end():
        told: list[int] = []
        claims.settle_oldest(queue, claims.synced_end(), verdict, told.append)
        rest(harness)
        assert len(told) == 1 and told[0]


def seen_in(harness: Harness, queue: BaseQueue) -> list[Seen]:
    """Return what waits in a queue."""
    cursor = Cursor()
    told: list[list[Seen]] = []
    while not cursor.ended:
        look(queue, cursor, 1000, told.append)
        rest(harness)
    return [each for piece in told for each in piece]


class Message:
    """A message of the model. `offset`: by which it is claimed; `out`: the delivery tag."""

    def __init__(self, body: bytes, persistent: bool) -> None:
        self.body = body
        self.persistent = persistent
        self.place = READY
        self.offset = -1
        self.redelivered = False  # as a claim says
        self.out = 0


class Run:
    """A queue, its claims and the model of both, under one seed."""

    def __init__(self, seed: int, *, is_small: bool) -> None:
        self.dice = Random(seed)
        self.trace: list[str] = []
        self.arguments = self.dice.choice(KINDS)
        is_short = self.dice.random() < 0.7
        shape = Shape(1 << 17, 4 if is_small else 16, self.dice.choice((1 << 12, 1 << 30)))
        self.broker = RestartingBroker(shape, START_MS, 0 if is_short else 128 << 20)
        self.known: dict[bytes, Message] = {}
        self.next_offset = 0
        self.exact_flags = True
        self.client: Client = self.broker.channel()
        self.client.declare("q", durable=True, arguments=self.arguments)
        declare_claims(self.broker)
        self._note("queue", self.arguments, "short" if is_short else "", shape)

    def _note(self, *what: object) -> None:
        self.trace.append(" ".join(str(each) for each in what))

    @property
    def queue(self) -> Queue:
        return self.broker.plain_queue("q")

    @property
    def claims(self) -> ClaimQueue:
        return the_claims(self.broker)

    def in_place(self, place: str) -> list[Message]:
        return [each for each in self.known.values() if each.place == place]

    # --- clients ------------------------------------------------------------------------------------------------------

    def publish(self) -> None:
        frames = b""
        count = self.dice.choice((1, 3, 12, 40))
        for _ in range(count):
            body = b"%d" % len(self.known) + b"x" * self.dice.choice((0, 10, 200))
            persistent = self.dice.random() < 0.85 or "x-queue-type" in self.arguments
            self.known[body] = Message(body, persistent)
            properties = {"delivery_mode": 2 if persistent else 1, "priority": self.dice.randrange(LEVELS)}
            frames += publish_frames("", "q", body, properties=properties)
        self._note("publish", count)
        self.client.feed(frames)
        if self.dice.random() < 0.5:
            rest(self.broker)

    def get(self) -> None:
        count = self.dice.choice((1, 4, 20))
        self._note("get", count)
        for _ in range(count):
            self.client.send(1, m.BasicGet(0, "q", False))
            received = self.client.take()
            if not received:
                rest(self.broker)
                received = self.client.take()
            (answer,) = received
            if isinstance(answer.method, m.BasicGetEmpty):
                return
            message = self.known[body_of(answer)]
            assert message.place == READY, f"{message.body[:5]!r} is {message.place}"
            message.place, message.out = OUT, answer.method.delivery_tag

    def answer(self) -> None:
        out = self.in_place(OUT)
        returns = self.dice.random() < 0.6
        chosen = self.dice.sample(out, self.dice.randint(0, len(out)))
        self._note("return" if returns else "ack", [each.body[:4] for each in chosen])
        for message in chosen:
            message.place = READY if returns else GONE
            answer = (
                m.BasicNack(message.out, multiple=False, requeue=True) if returns else m.BasicAck(message.out, False)
            )
            self.client.send(1, answer)

    # --- the drain ----------------------------------------------------------------------------------------------------

    def claim(self) -> None:
        """Claim, perhaps with a mark before which something was published, and see what was next in the queue."""
        before = [each.message.body() for each in seen_in(self.broker, self.queue)]
        flags = {each.message.body(): each.redelivered for each in seen_in(self.broker, self.queue)}
        mark = None
        if self.dice.random() < 0.4:
            mark = mark_of(self.queue)
            self.publish()
        most = self.dice.choice((1, 7, 30, 1000))
        piece = self.dice.choice((None, 1, 5))
        self._note("claim", most, "" if mark is None else "until", piece)
        claims = self.claims
        count = claim(self.broker, claims, self.queue, most, mark, piece=piece)
        rest(self.broker)
        first = self.next_offset
        assert claims.next_offset() == claims.synced_end() == first + count
        if mark is not None or len(before) >= most:
            assert count == min(most, len(before))
        rows = read(self.broker, claims, first, first + count)
        assert [row.offset for row in rows] == list(range(first, first + count))
        if mark is not None or piece is None:
            assert [row.body for row in rows[: len(before)]] == before[:count]
        for row in rows:
            message = self.known[row.body]
            assert message.place == READY
            if self.exact_flags and row.body in flags:
                assert row.redelivered == flags[row.body]
            message.place, message.offset, message.redelivered = CLAIMED, row.offset, row.redelivered
        self.next_offset = first + count

    def ack(self) -> None:
        first = first_of(self.broker, self.claims)
        number = self.dice.randint(first, self.next_offset)
        self._note("ack below", number)
        settle_below(self.broker, self.claims, number)
        for message in self.in_place(CLAIMED):
            if message.offset < number:
                message.place = GONE

    def release(self) -> None:
        if self.dice.random() < 0.3:
            claimed = self.in_place(CLAIMED)
            self._note("release", len(claimed))
            assert give_back(self.broker, self.claims, self.queue) == len(claimed)
            back = {each.message.body(): each for each in seen_in(self.broker, self.queue)}
            for message in claimed:
                message.place = READY
                assert back[message.body].redelivered
                assert back[message.body].message.persistent == message.persistent

    def look(self) -> None:
        """Read all claims: they are what they were."""
        rows = all_claims(self.broker, self.claims)
        claimed = sorted(self.in_place(CLAIMED), key=lambda each: each.offset)
        assert [(row.offset, row.body) for row in rows] == [(each.offset, each.body) for each in claimed]
        assert [row.redelivered for row in rows] == [each.redelivered for each in claimed]
        ready = sorted(each.message.body() for each in seen_in(self.broker, self.queue))
        assert ready == sorted(each.body for each in self.in_place(READY))
        assert self.claims.ready_count == len(claimed)
        assert self.claims.ready_bytes == sum(len(each.body) for each in claimed)

    def restart(self) -> None:
        clean = self.dice.random() < 0.4
        self._note("restart", "clean" if clean else "killed")
        if clean:
            self.client.hang_up()
            self.broker.stop()
        rest(self.broker)
        self.broker.start()
        self.exact_flags = False
        for message in self.known.values():
            if message.place == OUT:
                message.place = READY
            if message.place == READY and not message.persistent:
                message.place = GONE
        self.client = self.broker.channel()
        assert self.claims.next_offset() == self.next_offset, "a number would be given twice"

    def run(self) -> None:
        commands = [
            (self.publish, 6),
            (self.get, 3),
            (self.answer, 3),
            (self.claim, 6),
            (self.ack, 3),
            (self.release, 1),
            (self.look, 2),
            (self.restart, 1.5),
        ]
        for _ in range(COMMANDS):
            (command,) = self.dice.choices([each for each, _ in commands], [weight for _, weight in commands])
            command()
            self.client.nothing()
            self.broker.check()
        self.look()


def test_each_message_is_in_one_place_and_claims_keep_their_numbers() -> None:
    seed = SEED or SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    for number in range(RUNS):
        is_small = (seed + number) % 3 > 0
        with small_limits() if is_small else nullcontext():
            run = Run(seed + number, is_small=is_small)
            try:
                run.run()
            except BaseException:
                print(*run.trace[:1], *run.trace[-40:], sep="\n")
                print(f"WARREN_TEST_CLAIMS_SEED={seed + number} WARREN_TEST_CLAIMS_RUNS=1")
                raise


@pytest.mark.parametrize("memory_bytes", [0, 128 << 20])
@pytest.mark.parametrize("way", ["claim", "acknowledge and claim", "give back"])
def test_after_any_power_cut_a_message_is_in_the_queue_or_claimed_or_acknowledged(memory_bytes: int, way: str) -> None:
    broker = RestartingBroker(Shape(1 << 14, 4, 1 << 11), START_MS, memory_bytes)
    client = broker.channel()
    client.declare("q", durable=True)
    claims = declare_claims(broker)
    bodies = [b"%d" % number for number in range(240)]
    for first in range(0, 240, 40):
        client.feed(
            b"".join(publish_frames("", "q", body, properties={"delivery_mode": 2}) for body in bodies[first:][:40])
        )
        rest(broker)
    queue = broker.plain_queue("q")
    if way != "claim":
        assert claim(broker, claims, queue, 120, piece=20) == 120
    rest(broker)
    points = 0
    splits: set[int] = set()

    def cut(operation: str) -> None:
        nonlocal points
        points += 1
        for state in broker.disk.crash_states(seed=points, limit=CRASH_STATES):
            left = broker.found_on(state)
            rows = all_claims(left, the_claims(left))
            waiting = [each.message.body() for each in seen_in(left, left.queue("q"))]
            claimed = [row.body for row in rows]
            acked = rows[0].offset if rows else the_claims(left).next_offset()
            assert [row.offset for row in rows] == list(range(acked, acked + len(rows)))
            if way == "give back":
                # Messages that are given back come after the waiting ones.
                assert sorted(claimed + waiting) == sorted(bodies)
                assert claimed == bodies[acked:120] and waiting == bodies[120:] + bodies[:acked], operation
            else:
                assert acked in (0, 100) if way == "acknowledge and claim" else acked == 0
                assert bodies[:acked] + claimed + waiting == bodies, operation
            splits.add(acked if way == "give back" else len(claimed) + acked)

    broker.disk.on_operation = cut
    if way == "give back":
        with mock.patch.object(claims_module, "PIECE_MESSAGES", 20):
            assert give_back(broker, claims, queue) == 120
    else:
        if way == "acknowledge and claim":
            settle_below(broker, claims, 100)
        while claim(broker, claims, queue, 20):
            broker.broker.log.close_if_due(lingered=True)
    rest(broker)
    broker.disk.on_operation = None
    assert points > 4
    assert len(splits) > (1 if way == "give back" else 3)


@pytest.mark.parametrize("kind", [REQUEUE, DEAD_LETTER])
@pytest.mark.parametrize("at_least_once", [False, True])
def test_after_any_power_cut_what_leaves_by_a_verdict_is_claimed_or_where_it_is_to_go(
    kind: int, at_least_once: bool
) -> None:
    broker = RestartingBroker(Shape(1 << 14, 4, 1 << 11), START_MS, 0)
    client = broker.channel()
    client.declare("dead", durable=True, arguments={"x-queue-type": "quorum"} if at_least_once else {})
    arguments: dict[str, Any] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    if at_least_once:
        arguments |= {"x-queue-type": "quorum", "x-dead-letter-strategy": "at-least-once"}
        arguments |= {"x-overflow": "reject-publish"}
    client.declare("q", durable=True, arguments=arguments)
    claims = declare_claims(broker)
    bodies = [b"%d" % number for number in range(60)]
    client.feed(b"".join(publish_frames("", "q", body, properties={"delivery_mode": 2}) for body in bodies))
    rest(broker)
    queue = broker.plain_queue("q")
    assert claim(broker, claims, queue, 60, piece=20) == 60
    rest(broker)
    points = 0
    splits: set[int] = set()

    def cut(operation: str) -> None:
        nonlocal points
        points += 1
        for state in broker.disk.crash_states(seed=points, limit=CRASH_STATES):
            left = broker.found_on(state)
            rest(left)
            claimed = [row.body for row in all_claims(left, the_claims(left))]
            waiting = [each.message.body() for each in seen_in(left, left.queue("q"))]
            dead = [each.message.body() for each in seen_in(left, left.queue("dead"))]
            assert claimed == bodies[len(bodies) - len(claimed) :]
            assert sorted(claimed + waiting + dead) == sorted(bodies), operation
            assert not (dead if kind == REQUEUE else waiting) or at_least_once
            splits.add(len(claimed))

    broker.disk.on_operation = cut
    with mock.patch.object(claims_module, "PIECE_MESSAGES", 20):
        settle_oldest(broker, claims, queue, Verdict(kind))
    rest(broker)
    broker.disk.on_operation = None
    assert points > 4 and len(splits) > 1
    assert int(broker.queue("dead" if kind == DEAD_LETTER else "q").ready_count) == 60
