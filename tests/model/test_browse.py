"""Random queues, browsed from random places in pieces of random sizes, against a plain list of waiting messages.

The queue is plain, has priorities or shares keys; messages are published, got, returned, acknowledged and purged, the
broker stops and starts again. In some runs memory is so short that it holds only the head of a long queue. A look shows
the messages in the list, in its order, from the requested place on, and changes nothing. In other looks clients
continue while messages are being read. A run is played again by its seed, which it prints:

    WARREN_TEST_BROWSE_SEED=7 WARREN_TEST_BROWSE_RUNS=1
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from random import Random, SystemRandom
from typing import Any, Final

from engine_harness import Client, body_of, publish_frames
from simulation.small_limits import small_limits
from simulation.small_store import Shape

from warren.amqp import methods as m
from warren.msgstore.log.queue_index import QueueIndex
from warren.queues.base_queue import BaseQueue
from warren.queues.browse import Cursor, Seen, look, still_waits

from .restarting_broker import RestartingBroker

RUNS: Final = int(os.environ.get("WARREN_TEST_BROWSE_RUNS", "40"))
SEED: Final = int(os.environ.get("WARREN_TEST_BROWSE_SEED", "0"))
COMMANDS: Final = 60
CLIENTS: Final = 2
KINDS: Final[tuple[dict[str, Any], ...]] = ({}, {}, {"x-max-priority": 3}, {"x-key-shared": True})
START_MS: Final = 1_700_000_000_000
LEVELS: Final = 4


class Waiting:
    """A message of the model. `place` orders what waits; `out`: the client that has it, and the delivery tag."""

    def __init__(self, body: bytes, place: tuple[int, int], persistent: bool) -> None:
        self.body = body
        self.place = place
        self.persistent = persistent
        self.delivered = False
        self.returns = 0
        self.out: tuple[int, int] | None = None


class Run:
    """A queue and its model under one seed."""

    def __init__(self, seed: int, *, is_small: bool) -> None:
        self.dice = Random(seed)
        self.trace: list[str] = []
        self.arguments: dict[str, Any] = self.dice.choice(KINDS)
        self.is_short = self.dice.random() < 0.7
        # With `small_limits` a gap in the head is no longer than two pages.
        shape = Shape(1 << 17, 4 if is_small else 16, self.dice.choice((1 << 12, 1 << 30)))
        self.broker = RestartingBroker(shape, START_MS, 0 if self.is_short else 128 << 20)
        self.messages: list[Waiting] = []  # neither acknowledged nor dropped
        self.known: dict[bytes, Waiting] = {}
        self.bodies = 0
        self.exact_flags = True
        self._connect()
        declared = self.clients[0].declare("q", durable=True, arguments=self.arguments)
        assert declared.message_count == 0
        self._note("queue", self.arguments, "short" if self.is_short else "", shape)

    def _connect(self) -> None:
        self.clients: list[Client] = [self.broker.channel() for _ in range(CLIENTS)]

    def _note(self, *what: object) -> None:
        self.trace.append(" ".join(str(each) for each in what))

    @property
    def queue(self) -> BaseQueue:
        return self.broker.queue("q")

    def waiting(self) -> list[Waiting]:
        """Return what waits, in order."""
        return sorted((each for each in self.messages if each.out is None), key=lambda each: each.place)

    # --- what clients do ----------------------------------------------------------------------------------------------

    def publish(self) -> None:
        frames = b""
        count = self.dice.choice((1, 3, 12, 30))
        for _ in range(count):
            self.bodies += 1
            body = b"%d" % self.bodies + b"x" * self.dice.choice((0, 10, 200))
            priority = self.dice.randrange(LEVELS)
            persistent = self.dice.random() < 0.85
            lane = LEVELS - 1 - priority if "x-max-priority" in self.arguments else 0
            message = Waiting(body, (lane, self.bodies), persistent)
            self.messages.append(message)
            self.known[body] = message
            key = "q"
            properties: dict[str, Any] = {"delivery_mode": 2 if persistent else 1, "priority": priority}
            frames += publish_frames("", key, body, properties=properties)
        self._note("publish", count)
        self.dice.choice(self.clients).feed(frames)
        if self.dice.random() < 0.5:
            self._close_batch()

    def _rest(self) -> None:
        """Read and write everything."""
        self.broker.settle()
        self.broker.rest()
        self.broker.settle()

    def _close_batch(self) -> None:
        self.broker.broker.log.close_if_due(lingered=True)
        self.broker.settle()

    def get(self) -> None:
        number = self.dice.randrange(CLIENTS)
        count = self.dice.choice((1, 4, 20))
        self._note("get", number, count)
        for _ in range(count):
            received = self._get(number)
            if received is None:
                break
            body, redelivered, tag = received
            message = self.known[body]
            assert message.out is None and message in self.messages
            if not (self._shares_keys and self._is_out()):
                first = self.waiting()[0]
                assert message is first, f"{message.body[:4]!r} came before {first.body[:4]!r}"
            if self.exact_flags:
                assert redelivered == message.delivered
            message.out = (number, tag)
            message.delivered = True

    @property
    def _shares_keys(self) -> bool:
        return "x-key-shared" in self.arguments

    def _is_out(self) -> bool:
        return any(each.out is not None for each in self.messages)

    def _get(self, number: int) -> tuple[bytes, bool, int] | None:
        client = self.clients[number]
        client.send(1, m.BasicGet(0, "q", False))
        received = client.take()
        if not received:
            # It is being read from disk, which somebody holds up, or comes with the next batch.
            self._hold(False)
            self._rest()
            received = client.take()
        (answer,) = received
        if isinstance(answer.method, m.BasicGetEmpty):
            return None
        return body_of(answer), answer.method.redelivered, answer.method.delivery_tag

    def answer(self) -> None:
        """Acknowledge or return some of what is out."""
        out = [each for each in self.messages if each.out is not None]
        if not out:
            return
        chosen = self.dice.sample(out, self.dice.randint(1, len(out)))
        returns = self.dice.random() < 0.6
        self._note("return" if returns else "ack", [each.body[:4] for each in chosen])
        for message in chosen:
            assert message.out is not None
            number, tag = message.out
            if returns:
                message.out = None
                message.returns += 1
                self.clients[number].send(1, m.BasicNack(tag, multiple=False, requeue=True))
            else:
                self.messages.remove(message)
                self.clients[number].send(1, m.BasicAck(tag, False))

    def purge(self) -> None:
        if self.dice.random() < 0.3:
            self._note("purge")
            self.messages = [each for each in self.messages if each.out is not None]
            self.clients[0].send(1, m.QueuePurge(0, "q", False))
            self.clients[0].expect(m.QueuePurgeOk)

    def page_out(self) -> None:
        """Memory is short for a moment: transient messages are stored as well."""
        self._note("page out")
        log = self.broker.broker.log
        memory_bytes, log.memory_bytes = log.memory_bytes, 0
        log.under_pressure = True
        self.queue.page_out()
        self.broker.rest()
        log.under_pressure = False
        self._close_batch()
        log.memory_bytes = memory_bytes

    def restart(self) -> None:
        clean = self.dice.random() < 0.5
        self._note("restart", "clean" if clean else "killed")
        if clean:
            for client in self.clients:
                client.hang_up()
            self.broker.stop()
        self.broker.rest()
        self.broker.start()
        if self._shares_keys:
            self.exact_flags = False
        self.messages = [each for each in self.messages if each.persistent]
        for message in self.messages:
            message.out = None
            message.delivered |= not clean
        self._connect()

    # --- looking --------------------------------------------------------------------------------------------------

    def look_around(self) -> None:
        """Look at everything from a place on: it is the rest of the list, and nothing has changed."""
        self._rest()
        expected = self.waiting()
        skip = self.dice.choice((0, 0, self.dice.randint(0, len(expected) + 3)))
        piece = self.dice.choice((1, 2, 7, 40, 1000))
        self._note("look from", skip, "by", piece, "of", len(expected))
        before = self._state()
        cursor = Cursor(skip)
        seen: list[Seen] = []
        while not cursor.ended:
            seen += self._piece(cursor, piece)
        assert [each.message.body() for each in seen] == [each.body for each in expected[skip:]]
        if self.exact_flags:
            assert [each.redelivered for each in seen] == [each.delivered for each in expected[skip:]]
        assert len({each.place for each in seen}) == len(seen)
        after = self._state()
        resident, resident_before = after.pop("pages"), before.pop("pages")
        assert resident <= resident_before, "pages that were loaded stay"
        assert after == before

    def _piece(self, cursor: Cursor, piece: int) -> list[Seen]:
        told: list[list[Seen]] = []
        look(self.queue, cursor, piece, told.append)
        self._rest()
        (seen,) = told
        assert len(seen) <= piece
        return seen

    def _state(self) -> dict[str, Any]:
        queue = self.queue
        log = self.broker.broker.log
        indexes = self._indexes()
        return {
            "ready": int(queue.ready_count),
            "bytes": int(queue.ready_bytes),
            "unacked": int(queue.unacked_count),
            "in memory": queue.ready.in_memory(),
            "resident": int(log.resident_bytes),
            "paged out": queue.ready.paged_out_count(),
            "written": int(log.next_lsn),
            "is idle": log.is_idle(),
            "damages": len(log.damage.reports),
            "live": [int(index.live_count) for index in indexes],
            "counts": [int(count) for count in (queue.delivered, queue.counts().get, queue.redelivered, queue.acked)],
            "pages": {
                (at, number)
                for at, index in enumerate(indexes)
                for number, page in enumerate(index.pages, int(index.first_page))
                if page is not None and page.resident
            },
        }

    def _indexes(self) -> list[QueueIndex]:
        found = [self.queue.ready.index_of(lane) for lane in range(self.queue.ready.lane_count)]
        return [index for index in found if index is not None]

    def look_while_others_work(self) -> None:
        """Make clients work between the pieces, and while the pieces are read.

        Only returned messages are seen twice. No message that stayed is missed, and no message is seen that was not
        there.
        """
        piece = self.dice.choice((1, 3, 10))
        self._note("look meanwhile by", piece)
        cursor = Cursor()
        there = {each.body for each in self.waiting()}
        moved: set[bytes] = set()
        returns = {each.body: each.returns for each in self.messages}
        seen: list[bytes] = []
        while not cursor.ended:
            told: list[list[Seen]] = []
            self._hold(self.dice.random() < 0.7)
            look(self.queue, cursor, piece, self._noting(told))
            if self.dice.random() < 0.4:
                self.dice.choice((self.publish, self.get, self.answer, self.purge, self.get))()
                moved |= there - {each.body for each in self.waiting()}
            self._hold(False)
            self._rest()
            (found,) = told
            bodies = [each.message.body() for each in found]
            seen += bodies
            # Messages that came back, or were set aside for their key, have another place now.
            moved |= {each.body for each in self.messages if each.returns > returns.get(each.body, 0)}
            if self._shares_keys:
                moved |= {message.body() for _, message in self.queue.ready.returned.between(0, 1 << 60, 1 << 30)}
        assert there - moved <= set(seen)
        assert len([each for each in seen if each not in moved]) == len(set(seen) - moved)
        stays = [self.known[each].place for each in seen if each in there - moved]
        assert stays == sorted(stays)

    def _noting(self, told: list[list[Seen]]) -> Callable[[list[Seen]], None]:
        """Return a function that records the seen messages, and checks that they are there at that moment."""
        queue = self.queue

        def note(seen: list[Seen]) -> None:
            told.append(seen)
            assert all(still_waits(queue, each) for each in seen), "told what is not there any more"

        return note

    def _hold(self, hold: bool) -> None:
        """Stop the disk, or make it continue."""
        self.broker.store.hold = hold

    # --- the run ------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        commands: list[tuple[Callable[[], None], float]] = [
            (self.publish, 6),
            (self.get, 4),
            (self.answer, 4),
            (self.purge, 0.5),
            (self.page_out, 2 if self.is_short else 0.3),
            (self.restart, 1),
            (self.look_around, 6),
            (self.look_while_others_work, 3),
        ]
        for _ in range(COMMANDS):
            (command,) = self.dice.choices([each for each, _ in commands], [weight for _, weight in commands])
            command()
            for client in self.clients:
                client.nothing()
            self.broker.check()
        self.look_around()
        left = [each.body for each in self.waiting()]
        self.clients = [self.broker.channel()]
        got: list[bytes] = []
        while (received := self._get(0)) is not None:
            got.append(received[0])
            self.clients[0].send(1, m.BasicAck(received[2], False))
        if not self._shares_keys:
            assert got == left


def test_what_comes_behind_a_purged_page_is_seen_after_a_restart() -> None:
    broker = RestartingBroker(Shape(1 << 17, 16), START_MS, 0)
    client = broker.channel()
    client.declare("q", durable=True)
    for number in range(40):
        client.publish("", "q", b"%d" % number, delivery_mode=2)
    broker.rest()
    assert client.get("q") is not None
    client.call(1, m.QueuePurge(0, "q", False))
    client.hang_up()
    broker.stop()
    broker.start()
    assert broker.queue("q").ready.backlog(0).on_disk() == (0, 40), "though the last 39 are gone"
    broker.channel().publish("", "q", b"new", delivery_mode=2)
    told: list[list[Seen]] = []
    cursor = Cursor()
    while not cursor.ended:
        look(broker.queue("q"), cursor, 10, told.append)
        broker.settle()
    assert [seen.message.body() for piece in told for seen in piece] == [b"0", b"new"]


def test_looking_tells_what_waits_in_its_order_and_changes_nothing() -> None:
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
                print(f"WARREN_TEST_BROWSE_SEED={seed + number} WARREN_TEST_BROWSE_RUNS=1")
                raise
