"""Compaction against the paper queues, while messages come and go and the broker dies: Hypothesis finds the order.

Every operation is one step, so that a publish, an acknowledgement, a purge or a crash can come between any two steps of
moving a message: read a piece, read the index pages, copy, commit, checkpoint, remove the file.
"""

from __future__ import annotations

import os
from typing import Final

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from simulation.crashes import Judge
from simulation.machine import Machine
from simulation.paper_queues import Messages
from simulation.simulated_file_system import SimulatedFileSystem
from simulation.small_store import Shape

STATES: Final = int(os.environ.get("WARREN_TEST_CRASH_STATES", "110000"))
NAMES: Final = ("a", "b")
LIMIT: Final = 4


class CompactingBroker(RuleBasedStateMachine):
    """A broker that does little but compact."""

    def __init__(self) -> None:
        super().__init__()
        shape = Shape(segment_bytes=1024, page_entries=4)
        self.judge = Judge(Messages(), shape)
        self.machine = Machine(SimulatedFileSystem(), self.judge.messages, shape)
        self._restart(self.machine.fs, 0)
        for name in NAMES:
            self.machine.declare(name)

    def _restart(self, fs: SimulatedFileSystem, promised: int) -> None:
        recovered = self.judge.judge(self.machine, self.judge.read(fs.kill9()), promised)
        self.machine.fs = fs
        self.machine.start(recovered)

    # --- clients ----------------------------------------------------------------------------------------------------

    @rule(
        names=st.sets(st.sampled_from(NAMES), min_size=1),
        size=st.sampled_from((10, 100, 400, 2000)),
        confirm=st.booleans(),
    )
    def publish(self, names: set[str], size: int, confirm: bool) -> None:
        self.machine.publish(sorted(names), size, confirm=confirm)

    @rule(name=st.sampled_from(NAMES), count=st.integers(1, 6))
    def get(self, name: str, count: int) -> None:
        while count > 0 and self.machine.get(name):
            count -= 1

    @rule(data=st.data(), multiple=st.booleans())
    def ack(self, data: st.DataObject, multiple: bool) -> None:
        tags = self.machine.outstanding_tags()
        if tags:
            self.machine.ack(data.draw(st.sampled_from(tags)), multiple=multiple)

    @rule(data=st.data())
    def requeue(self, data: st.DataObject) -> None:
        tags = self.machine.outstanding_tags()
        if tags:
            self.machine.requeue(data.draw(st.sampled_from(tags)))

    @rule(name=st.sampled_from(NAMES))
    def purge(self, name: str) -> None:
        self.machine.purge(name)

    # --- the store, a step at a time --------------------------------------------------------------------------------

    @rule(urgent=st.booleans())
    def compact(self, urgent: bool) -> None:
        self.machine.compaction.step(urgent=urgent)
        self.machine.turn()

    @precondition(lambda self: not (self.machine.reader or self.machine.finished or self.machine.log.read_jobs))
    @rule()
    def give_up_pages(self) -> None:
        """Index pages leave memory, those too that compaction has read. A queue keeps those that it reads by."""
        for index in self.machine.log.indexes.values():
            index.unload(0, 1 << 40)
        self.machine.turn()

    @rule()
    def want_checkpoint(self) -> None:
        self.machine.log.checkpoints.want()
        self.machine.turn()

    @rule(lingered=st.booleans())
    def commit(self, lingered: bool) -> None:
        self.machine.turn(lingered=lingered)
        self.machine.commit()

    @precondition(lambda self: self.machine.reader)
    @rule()
    def read(self) -> None:
        self.machine.read()

    @precondition(lambda self: self.machine.finished)
    @rule()
    def finish(self) -> None:
        self.machine.finish()
        self.machine.turn()

    @rule()
    def rest(self) -> None:
        self.machine.rest()

    # --- the end of the process -------------------------------------------------------------------------------------

    @rule(seed=st.integers(0, 99), chosen=st.integers(0, LIMIT - 1))
    def power_cut(self, seed: int, chosen: int) -> None:
        states = list(self.machine.fs.crash_states(seed, LIMIT))
        self._restart(states[chosen % len(states)], self.machine.durable)

    @rule()
    def kill(self) -> None:
        self._restart(self.machine.fs.kill9(), self.machine.written)

    # --- what must hold ---------------------------------------------------------------------------------------------

    @invariant()
    def queues_are_what_the_paper_says(self) -> None:
        self.machine.check()

    @invariant()
    def every_power_cut_leaves_what_was_promised(self) -> None:
        self.judge.power_cuts(self.machine, 0, LIMIT)

    def teardown(self) -> None:
        """No file is kept that is less than half live, and none at all when everything is acknowledged."""
        machine = self.machine
        self._compact_all()
        for segment in machine.log.segments.segments[:-1]:
            size = segment.end_lsn - segment.base_lsn
            assert segment.live_bytes * 2 >= size, f"{segment.live_bytes} bytes keep a file of {size}"
        for name in NAMES:
            for tag in machine.outstanding_tags():
                machine.ack(tag)
            while machine.paper.queues[name].ready:
                if not machine.get(name, no_ack=True):
                    machine.rest()
        self._compact_all()
        assert [path for path in machine.fs.contents() if path.startswith("log/00")][1:] == []

    def _compact_all(self) -> None:
        """Compact until nothing is left to do, as the broker does in quiet hours."""
        machine = self.machine
        machine.rest()
        for _ in range(3):
            machine.log.checkpoints.want()
            machine.rest()
            while machine.compaction.step():
                machine.rest()


CompactingBroker.TestCase.settings = settings(
    max_examples=max(10 if STATES < 10_000 else 20, STATES // 1000),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
test_compaction_under_fire = CompactingBroker.TestCase
