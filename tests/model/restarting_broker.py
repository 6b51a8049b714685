"""A broker that can be stopped and started again, or killed: the whole engine on a disk and a catalogue in memory."""

from __future__ import annotations

from collections.abc import Iterator

from engine_harness import USER, Harness
from following_sql import take_durable_changes
from life_ids import new_life_id
from simulation.simulated_file_system import SimulatedFileSystem
from simulation.small_store import Shape, open_store

from warren.channels.broker import Broker
from warren.msgstore.files.store import Store
from warren.msgstore.log.checkpoint import seal
from warren.msgstore.log.jobs import Errand
from warren.queues.long_work import TURN_STEPS
from warren.vhosts.metadata import (
    BindingPut,
    MetadataChange,
    PermissionPut,
    PolicyDelete,
    PolicyPut,
    QueueDelete,
    QueuePut,
    UserPut,
    VhostPut,
)


class Disk:
    """Carries out the jobs of the log with a real store, at once; `hold`: not before it is False again."""

    def __init__(self, broker: Broker, store: Store) -> None:
        self.broker = broker
        self.store = store
        self.hold = False
        self.told: list[tuple[int, list[bytes | None]]] | None = None  # for ``following_sql``
        self.unread: list[Errand] = []  # this disk allows all reads

    def run(self) -> bool:
        """Carry out what is asked for now; True when there was something."""
        log = self.broker.log
        if self.hold:
            return False
        commits, log.commit_jobs = log.commit_jobs, []
        reads, log.read_jobs = log.read_jobs, []
        seals, log.seal_jobs = log.seal_jobs, []
        checkpoints, log.checkpoint_jobs = log.checkpoint_jobs, []
        unlinks, log.unlink_jobs = log.unlink_jobs, []
        for commit in commits:
            self.store.commit(commit, 0)
            self.broker.stored(commit)
        for read in reads:
            read.carry_out(self.store)
            self.broker.loaded(read)
        for seal_job in seals:
            seal_job.carry_out(self.store)
            self.broker.loaded(seal_job)
        for checkpoint in checkpoints:
            self.store.write_checkpoint(seal(checkpoint.content, log.checksum, int(checkpoint.last_crc)))
            log.checkpoints.written(checkpoint)
        for unlink in unlinks:
            self.store.release(unlink.segments)
            self.store.unlink(unlink.segments)
        return bool(commits or reads or seals or checkpoints or unlinks)


class RestartingBroker(Harness):
    """The broker. `memory_bytes`: limit of memory for its stored messages; `turn_steps`: see ``long_work``."""

    def __init__(self, shape: Shape, now_ms: int, memory_bytes: int, turn_steps: int = TURN_STEPS) -> None:
        super().__init__()
        self._turn_steps = turn_steps
        self._shape = shape
        self._memory_bytes = memory_bytes
        self._fs = SimulatedFileSystem()
        self._policies: dict[str, PolicyPut] = {}
        self._queues: dict[str, QueuePut] = {}
        self._bindings: list[BindingPut] = []
        self._applied = 0
        self._begin(now_ms)

    @property
    def disk(self) -> SimulatedFileSystem:
        """Return the disk that the process is writing to."""
        return self._fs

    def found_on(self, disk: SimulatedFileSystem) -> RestartingBroker:
        """Return a broker with this one's catalogue, as it is now, that begins with another disk."""
        found = RestartingBroker(self._shape, self.broker.now_ms(), self._memory_bytes, self._turn_steps)
        found._fs = disk
        found._policies, found._queues = dict(self._policies), dict(self._queues)
        found._bindings = self._bindings[:]
        found._applied = self._applied
        found._begin(self.broker.now_ms())
        return found

    def _begin(self, now_ms: int) -> None:
        opened = open_store(self._fs, self._shape)
        log = opened.log
        log.now_ms = now_ms
        log.memory_bytes = self._memory_bytes
        self.broker = Broker(self.broker.limits, self._entropy, seed=1, log=log)
        self.broker.work.turn_steps = self._turn_steps
        self.broker.work.end_turn()
        self.store = Disk(self.broker, opened.store)  # type: ignore[assignment]
        self.clients = {}
        self.broker.journal.lane.begin(self._applied)
        self._follow(take_durable_changes(self.broker, self.store))
        for change in self._catalogue():
            self.broker.restore(change)
        indexes = dict(log.indexes)
        for queue in self.vhost.queues.values():
            index = indexes.pop(queue.store_id, None)
            if index is not None:
                queue.restore(index, opened.found.clean)
        for index in indexes.values():
            assert self.broker.restore_lane(index, opened.found.clean), f"lane {index.lane} of {index.name!r} is lost"
        opened.store.resume(log.last_crc, log.next_lsn, log.epoch, log.store_id, log.algorithm)
        log.begin_epoch(int(log.epoch), now_ms, new_life_id())
        self.settle()

    def _catalogue(self) -> Iterator[MetadataChange]:
        yield VhostPut("/")
        yield UserPut(USER, "", "rabbit_password_hashing_sha256")
        yield PermissionPut(USER, "/", ".*", ".*", ".*")
        yield from self._policies.values()
        yield from self._queues.values()
        yield from self._bindings

    def _follow(self, changes: list[MetadataChange]) -> None:
        self._applied = int(self.broker.journal.lane.applied)
        for change in changes:
            match change:
                case PolicyPut():
                    self._policies[change.name] = change
                case PolicyDelete():
                    del self._policies[change.name]
                case QueuePut():
                    self._queues[change.name] = change
                case QueueDelete():
                    del self._queues[change.name]
                    self._bindings = [each for each in self._bindings if each.destination != change.name]
                case BindingPut():
                    self._bindings.append(change)
                case _:
                    raise AssertionError(f"{change} is not kept")

    def rest(self) -> None:
        """Write everything."""
        log = self.broker.log
        while not log.is_idle():
            log.close_if_due(lingered=True)
            self.settle()

    def stop(self) -> None:
        """Write what a clean stop writes; the clients have gone."""
        self.rest()
        self.broker.log.checkpoints.want(clean=True)
        self.rest()

    def read_heads(self) -> None:
        """Read the first messages of all queues and levels now, not when somebody wants them."""
        for queue in self.vhost.queues.values():
            for lane in queue.ready.waiting_lanes():
                queue.ready.maybe_head(lane)
        self.settle()

    def start(self) -> None:
        """Forget everything but the disk and the catalogue, and restart."""
        now_ms = self.broker.now_ms()
        self._fs = self._fs.kill9()
        self._begin(now_ms)
