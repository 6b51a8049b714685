"""Random commands against a lane of held messages and a dict: what leaves when, in which order, and what comes back.

Seeds are printed. The disk is slow when it likes: commits and reads are carried out one at a time, in between come
other commands, the clock is set back and forth, and the process dies.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

import pytest
from held_store import HeldStore

from warren.queues.held_messages import DEAD_LETTERED, DROPPED, RELEASED

SEEDS = 60
COMMANDS = 400


class Held(NamedTuple):
    """A message that the model holds."""

    until_ms: int
    number: int
    body: bytes
    persistent: bool


class Run(HeldStore):
    """The lane, and what should be in it: `held` by body. Bodies say which message it is, and how large."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        super().__init__(segment_bytes=1 << 13, page_entries=self.random.choice((1, 2, 4, 8)))
        self.held: dict[bytes, Held] = {}
        self.dropping: list[set[bytes]] = []  # asked for; some may have gone
        self.uncounted = 0  # dropped, but not told
        self.taking: set[bytes] = set()  # somebody wants them before their time
        # The messages there when a batch is written, and those of them that may have been dropped.
        self.written: dict[int, tuple[dict[bytes, Held], set[bytes]]] = {0: ({}, set())}
        self.order: list[bytes] = []  # of what was released
        self.serial = 0
        self.done: list[str] = []
        self.latest_ms = self.now_ms
        # Delays that are sorted, in some runs.
        self.far = [
            self.random.randrange(1 << self.random.randrange(16, 39)) for _ in range(self.random.choice((0, 9)))
        ]
        self._configure()

    def _configure(self) -> None:
        self.given = [0]
        lane = self.lane
        lane.sorted_from = self.random.choice((0, 10, 1 << 30))
        lane.memory.kept_max = self.random.choice((0, 3, 20))
        lane.taken_max = self.random.choice((1, 3, 50))
        lane.taken_max_bytes = self.random.choice((1, 300, 100_000))
        lane.memory.paged_out_max = self.random.choice((2, 100))
        lane.memory.loaded_pages_max = self.random.choice((0, 2, 100))

    # --- the model ------------------------------------------------------------------------------------------------

    def follow(self) -> None:
        """Take what has left out of the model."""
        lane = self.lane
        self.order += lane.out
        for body in lane.out:
            held = self.held.pop(body)
            # It may have been due when it was asked for, and the clock have been set back since.
            assert held.until_ms <= self.latest_ms or body in self.taking, held
        for body in lane.dead:
            del self.held[body]
            assert body in self.taking
        lane.out.clear()
        lane.dead.clear()

    def close_batch(self) -> None:
        self.follow()
        if self.log.in_flight is None:
            persistent = {body: held for body, held in self.held.items() if held.persistent}
            self.written[int(self.log.batch.number)] = persistent, set().union(*self.dropping)
        super().close_batch()

    def compare(self) -> None:
        """Compare when all is written."""
        self.rest()
        self.follow()
        assert not self.dropping
        assert self.uncounted == 0
        self.check()
        assert int(self.lane.count) == len(self.held)
        assert int(self.lane.body_bytes) == sum(len(held.body) for held in self.held.values())
        listed = [(each.number, each.body_bytes) for each in self.listed()]
        assert listed == [(held.number, len(held.body)) for held in sorted(self.held.values())]
        assert self.log.resident_bytes == sum(int(m.memory_bytes) for m in self.lane.memory.messages.values())

    # --- commands -------------------------------------------------------------------------------------------------

    def hold_some(self) -> None:
        persistent = self.random.random() < 0.7
        for _ in range(self.random.choice((1, 1, 1, 2, 12))):
            self.serial += 1
            body = b"%d " % self.serial + b"x" * self.random.choice((0, 0, 30, 400))
            delay_ms = self.random.choice((1, 1, 50, 50, 300, 5000, self.random.randrange(1, 400), *self.far))
            number = self.hold(body, delay_ms, persistent=persistent)
            self.given.append(number)
            self.held[body] = Held(self.now_ms + delay_ms, number, body, persistent)

    def commit(self) -> None:
        self.close_batch()
        self.disk.commit_one()

    def read(self) -> None:
        self.disk.read_one()
        self.follow()

    def _move(self, ms: int) -> None:
        self.now_ms += ms
        self.log.now_ms = self.now_ms
        self.latest_ms = max(self.latest_ms, self.now_ms)

    def due(self) -> None:
        """Time passes; nobody waits for the disk."""
        self._move(self.random.choice((0, 1, 50, 300, -100, -2000, 3000, 1 << self.random.randrange(24))))
        if self.lane.first_ms() <= self.now_ms:
            self.lane.release_due(self.now_ms)
        self.follow()

    def due_in_order(self) -> None:
        """Time passes until everything due is out: in the order of the times, and of the numbers."""
        self.compare()
        self._move(self.random.choice((1, 60, 400)))
        due = [held for held in sorted(self.held.values()) if held.until_ms <= self.now_ms]
        self.order = []
        self.release()
        self.follow()
        assert self.order == [held.body for held in due]
        self.compare()

    def take_some(self) -> None:
        numbers = [held.number for held in self.held.values()]
        wanted = self.random.sample(numbers, min(len(numbers), self.random.choice((1, 2, 9))))
        bodies = {held.body for held in self.held.values() if held.number in wanted}
        purpose = self.random.choice((RELEASED, DROPPED, DEAD_LETTERED))
        if self.random.random() < 0.2:
            wanted += [10**9, self.random.choice(self.given)]
            bodies |= {held.body for held in self.held.values() if held.number in wanted}
        if purpose == DROPPED:
            self.dropping.append(bodies)
        self.taking |= bodies
        self.lane.take(wanted, purpose, self._dropped(bodies) if purpose == DROPPED else None)
        self.follow()

    def _dropped(self, bodies: set[bytes]) -> Callable[[int], None]:
        def told(count: int) -> None:
            self.follow()
            self.dropping.remove(bodies)
            # Two commands may share what they drop: only all together they are right.
            self.uncounted -= count
            for body in [body for body in bodies if body in self.held]:
                del self.held[body]
                self.uncounted += 1

        return told

    def take_everything(self) -> None:
        self.rest()
        self.follow()
        self.taking |= set(self.held)
        self.lane.take_all(self.random.choice((RELEASED, DEAD_LETTERED)))
        self.release()
        self.follow()
        assert not self.held

    def drop_everything(self) -> None:
        self.follow()
        before = int(self.lane.count)
        assert self.lane.clear() == before
        self.uncounted += len(self.held) - before  # messages that others have dropped and will report
        self.held.clear()

    def page_out(self) -> None:
        self.log.under_pressure = True
        if self.lane.needs_index():
            self.begin_storing()
        self.lane.page_out()
        self.log.under_pressure = self.random.random() < 0.5

    def give_up(self) -> None:
        if self.lane.index is not None:
            self.rest()
            self.give_up_pages()

    def compact_it(self) -> None:
        self.compact()

    def checkpoint_it(self) -> None:
        self.log.checkpoints.want()

    def die(self) -> None:
        """Kill the process: of what is not written nothing is left."""
        if self.random.random() < 0.5:
            self.checkpoint()
            if self.random.random() < 0.5:
                self.hold_some()
                self.commit()
        expected, unsure = self.written[int(self.log.done_batch)]
        self.restart(scan=self.random.random() < 0.5)
        self._configure()
        self.dropping.clear()
        self.uncounted = 0
        self.taking.clear()
        self.rest()
        there = {each.number for each in self.listed()}
        for body in unsure & set(expected):
            if expected[body].number not in there:
                del expected[body]
        self.held = expected
        self.written = {0: (dict(expected), set())}
        self.compare()

    def step(self) -> None:
        commands: list[tuple[Callable[[], None], float]] = [
            (self.hold_some, 8),
            (self.commit, 4),
            (self.read, 6),
            (self.due, 4),
            (self.due_in_order, 0.5),
            (self.take_some, 2),
            (self.take_everything, 0.1),
            (self.drop_everything, 0.1),
            (self.page_out, 1),
            (self.give_up, 0.7),
            (self.compact_it, 0.2),
            (self.checkpoint_it, 0.2),
            (self.compare, 0.7),
            (self.die, 0.3),
        ]
        ((command, _),) = self.random.choices(commands, [weight for _, weight in commands])
        self.done.append(command.__name__)
        command()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_is_held_leaves_once_in_time_and_comes_back_after_a_crash(seed: int) -> None:
    run = Run(seed)
    try:
        for _ in range(COMMANDS):
            run.step()
        run.compare()
        run.die()
        run.latest_ms += 1 << 40
        run.pass_time(run.latest_ms - run.now_ms)
        run.follow()
        assert not run.held
        run.check()
    except BaseException:
        print(f"seed {seed}, after", *run.done)
        raise
