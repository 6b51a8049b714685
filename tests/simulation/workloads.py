"""Random lives of a small broker under one seed, with crashes anywhere.

Each seed has its own mixture of operations, so that some do little but publish and compact, and others page, purge and
restart. A ruled life has queues that do more than first in, first out (`queue_kinds.KINDS`) beside plain ones. Crash
states are judged at every `explore_every`-th change of the disk.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from simulation.crashes import Judge
from simulation.machine import Machine
from simulation.paper_queues import Messages
from simulation.queue_kinds import KINDS, kind_of
from simulation.simulated_file_system import SimulatedFileSystem
from simulation.small_store import Shape
from warren.queues.backlog import SHORT_HEAD_MESSAGES
from warren.queues.held_messages import DEAD_LETTERED, RELEASED
from warren.queues.lanes import PARKED

_SHAPES = (
    Shape(1024, 4),
    Shape(4096, 4),
    Shape(4096, 8, 1 << 13),
    Shape(2048, 4, 1 << 12, 1 << 10),
    Shape(2048, 4, frame_bytes=200),
    Shape(1024, 4, 1 << 12, 1 << 10, frame_bytes=96),
)
_PLAIN_NAMES = ("a", "b", "c", "t")
_RULED_NAMES = (*KINDS, "l", "l", "a", "t")
TRANSIENT = "t"


class PowerCut(BaseException):
    """Passes through everything, as a power cut does."""


class Life:
    """A broker that lives through `seed`."""

    def __init__(
        self,
        seed: int,
        *,
        limit: int = 4,
        explore_every: int = 1,
        shape: Shape | None = None,
        ruled: bool = False,
    ) -> None:
        self.seed = seed
        self._is_ruled = ruled
        self._declared = _RULED_NAMES if ruled else _PLAIN_NAMES
        self.random = Random(seed)
        self.shape = shape or self.random.choice(_SHAPES)
        self.messages = Messages()
        self.judge = Judge(self.messages, self.shape)
        self.machine = self._new_machine(SimulatedFileSystem())
        self.limit = limit
        self.explore_every = explore_every
        self.changes = 0
        self.crashes = 0
        self.sudden = self.random.choice((0.0, 0.0, 0.005, 0.02))  # how likely a change of the disk is the last
        self.trace: list[str] = []
        self.machine.on_crash_point = self._change
        operations: list[tuple[Callable[[], object], float]] = [
            (self._publish, 6),
            (self._burst, 0.4),
            (self._get, 4),
            (self._ack, 4),
            (self._requeue, 1),
            (self._purge, 0.4),
            (self._delete, 0.3),
            (self._declare, 0.8),
            (self._transaction, 1),
            (self._plan, 1.5),
            (self._publish_planned, 2),
            (self._hold_batch, 0.5),
            (self._release_batch, 0.7),
            (self._consume, 0.5),
            (self._cancel, 0.3),
            (self._rest, 1),
            (self._checkpoint, 1),
            (self._compact, 2),
            (self._pressure, 0.5),
            (self._spare, 0.5),
            (self._fill, 0.5),
            (self._slow_catalogue, 0.3),
            (self._stop, 0.2),
            (self._kill, 0.2),
            (self._cut, 0.2),
        ]
        if ruled:
            operations += [
                (self._get, 4),
                (self._requeue, 2),
                (self._publish_expiring, 2),
                (self._burst_expiring, 0.4),
                (self._publish_urgent, 2),
                (self._hold, 2),
                (self._pass_time, 3),
                (self._keep_time, 3),
                (self._rest_in_time, 0.5),
                (self._take_held, 0.7),
                (self._drop_held, 0.1),
            ]
        # Some operations are frequent in this life, some rare, some do not come at all.
        self._operations = [operation for operation, _ in operations]
        self._weights = [weight * self.random.choice((0, 0.3, 1, 1, 1, 3)) for _, weight in operations]
        # How far the turns, the committer, the reader and the loop keep up with what clients do.
        self._paces = [
            (operation, self.random.choice((0.3, 0.7, 1.0)))
            for operation in (self._turn, self._commit, self._read, self._finish)
        ]

    def _new_machine(self, fs: SimulatedFileSystem) -> Machine:
        return Machine(fs, self.messages, self.shape)

    def run(self, steps: int) -> None:
        """Live for `steps` operations; the last of them is a full drain."""
        self._restart(self.machine.fs, 0)
        if self._is_ruled:
            for name in self.random.sample(sorted(KINDS), self.random.randint(1, 4)):
                self.machine.declare(name)
                if kind_of(name).letters_to and self.random.random() < 0.8:
                    self.machine.declare(kind_of(name).letters_to)
        for _ in range(steps):
            (operation,) = self.random.choices(self._operations, self._weights)
            self.trace.append(operation.__name__)
            self._surviving(operation)
            for progress, pace in self._paces:
                if self.random.random() < pace:
                    self._surviving(progress)
            if self.machine.failed:
                self._cut()
            self.machine.check()
            if self.random.random() < 0.1:
                self.machine.check_replay()
        self._surviving(self._drain_at_rest)

    def _surviving(self, operation: Callable[[], object]) -> None:
        try:
            operation()
        except PowerCut:
            self.trace.append("power cut")
            self._cut()

    # --- crashes ----------------------------------------------------------------------------------------------------

    def _change(self) -> None:
        self.changes += 1
        if self.changes % self.explore_every == 0:
            self.judge.power_cuts(self.machine, self.random.getrandbits(32), self.limit)
        if self.random.random() < self.sudden:
            raise PowerCut

    def _restart(self, fs: SimulatedFileSystem, promised: int) -> None:
        while True:
            found = self.judge.read(fs.kill9())
            recovered = self.judge.judge(self.machine, found, promised)
            self.machine.fs = fs
            fs.capacity = None
            try:
                self.machine.start(recovered)
                return
            except PowerCut:
                fs = self._any_crash_state()
                promised = self.machine.durable

    def _any_crash_state(self) -> SimulatedFileSystem:
        self.crashes += 1
        return self.random.choice(list(self.machine.fs.crash_states(self.random.getrandbits(32), self.limit)))

    def _cut(self) -> None:
        self._restart(self._any_crash_state(), self.machine.durable)

    def _kill(self) -> None:
        self._restart(self.machine.fs.kill9(), self.machine.written)

    def _stop(self) -> None:
        self.machine.stop()
        if not self.machine.failed:
            self._kill()

    # --- operations -------------------------------------------------------------------------------------------------

    def _names(self) -> list[str]:
        names = list(self.machine.queues)
        return self.random.sample(names, self.random.randint(1, len(names))) if names else []

    def _name(self) -> str | None:
        names = list(self.machine.queues)
        return self.random.choice(names) if names else None

    def _tag(self) -> int | None:
        tags = self.machine.outstanding_tags()
        return self.random.choice(tags[:1] + tags) if tags else None

    def _declare(self) -> None:
        name = self.random.choice(self._declared)
        self.machine.declare(name, durable=name != TRANSIENT)

    def _delete(self) -> None:
        name = self._name()
        if name is not None:
            self.machine.delete(name)

    def _publish(self) -> None:
        names = self._names()
        if not names:
            self._declare()
            names = self._names()
        body_bytes = self.random.choice((0, 20, 20, 40, 40, 40, 100, 300, 300, 9000))
        persistent = self.random.random() < 0.85
        self.machine.publish(names, body_bytes, persistent=persistent, confirm=self.random.random() < 0.4)

    def _burst(self) -> None:
        """Publish more than a queue keeps in memory when that is short."""
        name = self._name()
        persistent = self.random.random() < 0.7
        self.machine.log.memory_bytes = self.random.choice((0, self.shape.memory_bytes))
        if name is not None:
            for _ in range(SHORT_HEAD_MESSAGES + self.random.choice((3, 20))):
                self.machine.publish([name], 10, persistent=persistent)

    def _get(self) -> None:
        waiting = [name for name, queue in self.machine.paper.queues.items() if queue.ready]
        name = self.random.choice(waiting) if self._is_ruled and waiting else self._name()
        if name is not None and name not in self.machine.consumers:
            no_ack = self.random.random() < 0.15
            for _ in range(self.random.choice((1, 1, 2, 5, 40))):
                if not self.machine.get(name, no_ack=no_ack):
                    break

    def _ack(self) -> None:
        tag = self._tag()
        if tag is not None:
            if self.random.random() < (0.1 if not self._is_ruled else 0.4):
                self.machine.reject(tag)
            else:
                self.machine.ack(tag, multiple=self.random.random() < 0.3)
            if self.random.random() < 0.2:
                self.machine.confirm()

    def _requeue(self) -> None:
        tag = self._tag()
        if tag is not None:
            delay_ms = -1 if not self._is_ruled else self.random.choice((-1, -1, -1, 0, 700))
            self.machine.requeue(tag, failed=self.random.random() < 0.6, delay_ms=delay_ms)

    def _purge(self) -> None:
        name = self._name()
        if name is not None:
            self.machine.purge(name)

    def _transaction(self) -> None:
        for _ in range(self.random.randint(1, 3)):
            if self.machine.queues:
                self.machine.publish(self._names(), 60)
        for _ in range(self.random.randint(0, 2)):
            tag = self._tag()
            if tag is not None:
                self.random.choice((self.machine.ack, self.machine.ack, self.machine.reject, self.machine.requeue))(tag)
        self.machine.confirm()

    def _plan(self) -> None:
        bodies = [self.random.choice((0, 40, 8300, 9000, 9000, 17000)) for _ in range(self.random.randint(1, 5))]
        self.machine.plan(self.random.randint(1, 3), bodies)

    def _publish_planned(self) -> None:
        names = self._names()
        if names:
            self.machine.publish_planned(names)

    def _hold_batch(self) -> None:
        self.machine.hold_batch()

    def _release_batch(self) -> None:
        self.machine.release_batch()

    def _consume(self) -> None:
        name = self._name()
        if name is not None:
            self.machine.consume(name, self.random.choice((0, 1, 3)))

    def _cancel(self) -> None:
        if self.machine.consumers:
            self.machine.cancel(self.random.choice(list(self.machine.consumers)))

    # --- operations about what queues do beyond first in, first out -------------------------------------------------

    def _named(self, *names: str) -> str | None:
        found = [name for name in names if name in self.machine.queues]
        return self.random.choice(found) if found else None

    def _publish_expiring(self) -> None:
        name = self._named("e", "e", "m", "p", "q", "u")
        if name is None:
            return
        persistent = self.random.random() < 0.9
        for _ in range(self.random.choice((1, 1, 2, 5))):
            life_ms = self.random.choice((500, 1500, 4000, 9000))
            self.machine.publish([name], 20, persistent=persistent, expiration_ms=life_ms)
        if self.random.random() < 0.4:
            self.machine.confirm()

    def _burst_expiring(self) -> None:
        """Publish more than a queue keeps in memory, with deadlines in no order."""
        name = self._named("e", "e", "p", "u")
        self.machine.log.memory_bytes = self.random.choice((0, self.shape.memory_bytes))
        if name is not None:
            for _ in range(SHORT_HEAD_MESSAGES + self.random.choice((3, 20))):
                life_ms = self.random.choice((-1, -1, 500, 1500, 4000))
                self.machine.publish([name], 10, expiration_ms=life_ms)

    def _publish_urgent(self) -> None:
        if "p" in self.machine.queues:
            for _ in range(self.random.choice((1, 1, 3))):
                life_ms = self.random.choice((-1, -1, 1500))
                self.machine.publish(["p"], 20, priority=self.random.choice((0, 1, 2, 9)), expiration_ms=life_ms)

    def _hold(self) -> None:
        name = self._named("m", "q", "r", "r", "w")
        if name is not None:
            for _ in range(self.random.choice((1, 1, 4, 20))):
                delay_ms = self.random.choice((400, 1000, 1000, 3000, 20000))
                self.machine.hold(name, delay_ms, confirm=self.random.random() < 0.3)

    def _pass_time(self) -> None:
        self.machine.pass_time(self.random.choice((100, 700, 1500, 6000)))

    def _keep_time(self) -> None:
        self.machine.keep_time()

    def _rest_in_time(self) -> None:
        self.machine.rest_in_time()

    def _take_held(self) -> None:
        name = self._named("m", "q", "r", "w")
        if name is not None:
            parked = self.machine.paper.queues[name].held[PARKED]
            self.machine.take_held(name, DEAD_LETTERED if parked and self.random.random() < 0.5 else RELEASED)

    def _drop_held(self) -> None:
        name = self._named("m", "q", "r", "w")
        if name is not None:
            self.machine.drop_held(name)

    # --- the broker's turn and the threads --------------------------------------------------------------------------

    def _turn(self) -> None:
        self.machine.turn(lingered=self.random.random() < 0.5)

    def _commit(self) -> None:
        self.machine.commit()

    def _read(self) -> None:
        self.machine.read()

    def _finish(self) -> None:
        self.machine.finish()

    def _rest(self) -> None:
        self.machine.rest()

    def _checkpoint(self) -> None:
        self.machine.log.checkpoints.want()

    def _compact(self) -> None:
        urgent = self.random.random() < 0.7
        for _ in range(self.random.choice((1, 1, 4))):
            if not self.machine.compaction.step(urgent=urgent):
                self.machine.log.checkpoints.want()
            self._turn()
            self._commit()
            self._read()
            self._finish()

    def _pressure(self) -> None:
        log = self.machine.log
        log.under_pressure = not log.under_pressure
        log.memory_bytes = 1 << 10 if log.under_pressure else self.shape.memory_bytes
        name = self._name()
        if log.under_pressure and name is not None:
            self.machine.queues[name].page_out()

    def _spare(self) -> None:
        self.machine.spare()

    def _fill(self) -> None:
        """Leave the disk little or no room, or give it back."""
        fs = self.machine.fs
        used = sum(len(data) for data in fs.contents().values())
        fs.capacity = used + self.random.choice((0, 100, 2000, 5000)) if fs.capacity is None else None

    def _slow_catalogue(self) -> None:
        self.machine.catalogue_is_slow = not self.machine.catalogue_is_slow

    def _drain_at_rest(self) -> None:
        """I6: after everything is acknowledged the disk is as good as empty."""
        machine = self.machine
        machine.fs.capacity = None
        machine.on_crash_point = None
        for name in list(machine.consumers):
            machine.cancel(name)
        if not machine.rest():
            return
        for tag in machine.outstanding_tags():
            machine.requeue(tag)
        machine.keep_time()
        if not machine.rest_in_time():
            return
        machine.check()
        for name in machine.queues:
            machine.drop_held(name)
        for name in machine.queues:
            while machine.paper.queues[name].ready:
                if not machine.get(name, no_ack=True):
                    machine.rest()
        for name in [name for name, queue in machine.paper.queues.items() if queue.kind.at_least_once]:
            machine.delete(name)  # letters that nobody takes never leave
        machine.delete_orphans()
        machine.rest()
        machine.check()
        for _ in range(3):
            machine.log.checkpoints.want()
            machine.rest()
            while machine.compaction.step(urgent=True) and machine.rest():
                pass
        machine.log.checkpoints.want()
        machine.rest()
        machine.check()
        assert machine.stored() == {}
        files = [path for path in machine.fs.contents() if path.startswith("log/00")]
        assert len(files) <= 2, f"everything is acknowledged, and these are left: {files}"
        assert machine.log.resident_bytes == 0
