"""The engine on a simulated disk, and restarted on it: the real store, log and recovery, in one thread.

1. The catalogue has the contents of the log at the last call of `settle`; it gets the rest at the next start, as with
   SQL.
2. Nothing reaches the log by itself: frames that no client waits for are written by `write`, or lost with the process.
3. A read that the disk does not allow is repeated with each run, or given up. If its file goes meanwhile, it finds
   nothing, as in ``server.message_store``.
"""

from __future__ import annotations

from typing import Any

from engine import START_MS
from engine_harness import Harness
from following_sql import take_durable_changes
from life_ids import new_life_id
from memory_store import MemoryStore, check_frame
from peer_frames import USER
from simulation.simulated_file_system import SimulatedFileSystem
from simulation.small_store import Shape, open_store

from warren.channels.broker import Broker
from warren.msgstore.files.readable_files import ReadableFiles
from warren.msgstore.files.store import Store
from warren.msgstore.files.store_errors import StoreUnreadableError
from warren.msgstore.log.checkpoint import seal
from warren.msgstore.log.jobs import CommitJob, Errand, Removal, SealedRead
from warren.testing.peek import waiting_messages
from warren.vhosts import metadata
from warren.vhosts.metadata import (
    BindingPut,
    ExchangePut,
    MetadataChange,
    PermissionPut,
    PolicyPut,
    QueuePut,
    UserPut,
    VhostPut,
)

# In the order in which a start restores them.
_APPLIED = ("applied",)  # up to which number of the log
_KINDS = (VhostPut, UserPut, PermissionPut, PolicyPut, ExchangePut, QueuePut, BindingPut)
SHAPE = Shape(segment_bytes=1 << 20, page_entries=16)


class DiskStore(MemoryStore):
    """The disk of the log of `broker`, with a real store on it."""

    def __init__(self, broker: Broker, store: Store) -> None:
        super().__init__(broker)
        self._gone: set[Errand] = set()  # those of them whose file was removed or replaced
        self.gives_up = False  # reads that the disk does not allow
        self._store = store
        self.continued_frames = 0
        self.jobs_left = -1  # 0: nothing is written, as by a process that has died; -1: everything is
        self.commits_left = -1  # 0: no commit is done, as without nodes in sync; -1: all are

    def run(self) -> bool:
        log = self.log
        if self.hold or self.jobs_left == 0:
            return False
        commits: list[CommitJob] = []
        if self.commits_left:
            commits, log.commit_jobs = log.commit_jobs, []
        reads, log.read_jobs = log.read_jobs, []
        seals, log.seal_jobs = log.seal_jobs, []
        checkpoints, log.checkpoint_jobs = log.checkpoint_jobs, []
        unlinks, log.unlink_jobs = log.unlink_jobs, []
        for commit in commits:
            if self.jobs_left == 0:
                return False
            self.jobs_left -= self.jobs_left > 0
            self.commits_left -= self.commits_left > 0
            check_frame(log, commit)
            self.commits += 1
            self.continued_frames += commit.is_continued
            self.written_bytes += int(commit.payload_bytes)
            self._store.commit(commit, 0)
            self.stored(commit)
        unread, self.unread = self.unread, []
        for read in unread + reads:
            try:
                if read not in self._gone:
                    read.carry_out(ReadableFiles(self._store) if self.gives_up else self._store)
            except StoreUnreadableError:
                self.unread.append(read)
                continue
            self._gone.discard(read)
            if isinstance(read, Removal):
                stream_id, segments = read.replaced()
                late = [each for each in self.unread if isinstance(each, SealedRead) and each.stream_id == stream_id]
                self._gone.update(each for each in late if each.segment in segments)
            self.loaded(read)
        for seal_job in seals:
            seal_job.carry_out(self._store)
            self.loaded(seal_job)
        for checkpoint in checkpoints:
            self._store.write_checkpoint(seal(checkpoint.content, log.checksum, int(checkpoint.last_crc)))
            log.checkpoints.written(checkpoint)
        for unlink in unlinks:
            self._store.release(unlink.segments)
            self._store.unlink(unlink.segments)
        reads = [read for read in unread + reads if read not in self.unread]
        return bool(commits or reads or seals or checkpoints or unlinks)

    def close(self) -> None:
        self._store.close()


class DurableHarness(Harness):
    """A broker on `fs`. Begin with an empty one; continue with `restart`.

    `is_replicated`: other nodes copy the log. Nothing is committed then before ``store.commits_left`` is not 0.
    """

    def __init__(
        self,
        fs: SimulatedFileSystem | None = None,
        catalogue: dict[tuple[Any, ...], Any] | None = None,
        now_ms: int = START_MS,
        memory_bytes: int = 64 << 20,
        shape: Shape = SHAPE,
        *,
        is_replicated: bool = False,
    ) -> None:
        super().__init__()
        self._fs = fs or SimulatedFileSystem()
        self._memory_bytes = memory_bytes
        self._shape = shape
        self._catalogue = catalogue or _catalogue_of(VhostPut("/"), UserPut(USER, "", ""), _everything())
        store, log, found, self.sealed_problems = open_store(self._fs, shape._replace(memory_bytes=memory_bytes))
        self.found_clean = found.clean
        self.broker = Broker(self.broker.limits, self._entropy, seed=1, log=log)
        self.store: DiskStore = DiskStore(self.broker, store)
        log.is_replicated = is_replicated
        log.now_ms = now_ms
        self.broker.journal.lane.begin(self._catalogue.get(_APPLIED, 0))
        self._follow(take_durable_changes(self.broker, self.store))
        if self.broker.journal.lane.is_behind():
            raise StoreUnreadableError("log", "changes of the metadata")
        for kind in _KINDS:
            for change in self._catalogue.values():
                if isinstance(change, kind):
                    self.broker.restore(change)
        self._restore_messages()
        store.resume(log.last_crc, log.next_lsn, log.epoch, log.store_id, log.algorithm)
        log.begin_epoch(int(log.epoch), now_ms, new_life_id())
        if is_replicated:
            self.store.commits_left = 0
        self.settle()

    def waiting(self, name: str) -> list[bytes]:
        """Return the bodies of the messages that are ready in a queue, in order, wherever they are."""
        return [message.body for message in waiting_messages(self.queue(name), self._fs)]

    def _restore_messages(self) -> None:
        """Do as ``server.application`` does."""
        indexes = {queue_id: each for queue_id, each in self.broker.log.indexes.items() if not each.transient}
        for queue in self.vhost.queues.values():
            index = indexes.pop(queue.store_id, None)
            if index is not None:
                queue.restore(index, self.found_clean)
        for index in indexes.values():
            assert index.lane and self.broker.restore_lane(index, self.found_clean), (
                f"lane {index.lane} of {index.name}"
            )

    def _follow(self, changes: list[MetadataChange]) -> None:
        super()._follow(changes)
        for change in changes:
            self._remember(change)
        self._catalogue[_APPLIED] = int(self.broker.journal.lane.applied)

    def _remember(self, change: Any) -> None:
        name = type(change).__name__
        if name.endswith("Put"):
            self._catalogue[_identity(change)] = change
            return
        put = getattr(metadata, name.removesuffix("Delete") + "Put")
        del self._catalogue[(put, *_identity(change)[1:])]
        ends = {"ExchangeDelete": "exchange", "QueueDelete": "queue"}
        if name in ends:
            for key, other in list(self._catalogue.items()):
                if isinstance(other, BindingPut) and (
                    (other.destination_type, other.destination) == (ends[name], change.name)
                    or (name == "ExchangeDelete" and other.source == change.name)
                ):
                    del self._catalogue[key]

    def write(self) -> None:
        """Write everything, acknowledgements too."""
        self.broker.log.force()
        self.settle()

    def stop(self, *, clean: bool) -> None:
        """End the process. `clean`: stop in order, else as by kill -9."""
        if clean:
            for client in list(self.clients.values()):
                self.hang_up(client)
            self.write()
            self.broker.log.checkpoints.want(clean=True)
            self.settle()
        self.store.close()

    def restart(
        self, *, clean: bool, down_s: float = 0, memory_bytes: int | None = None, is_replicated: bool = False
    ) -> DurableHarness:
        """Return the next process on the same disk, `down_s` later. `clean`: stop in order, else as by kill -9."""
        self.stop(clean=clean)
        now_ms = int(self.broker.log.now_ms) + round(down_s * 1000)
        memory_bytes = self._memory_bytes if memory_bytes is None else memory_bytes
        return DurableHarness(self._fs, self._catalogue, now_ms, memory_bytes, self._shape, is_replicated=is_replicated)


def _everything() -> PermissionPut:
    return PermissionPut(USER, "/", ".*", ".*", ".*")


def _catalogue_of(*changes: Any) -> dict[tuple[Any, ...], Any]:
    return {_identity(change): change for change in changes}


def _identity(change: Any) -> tuple[Any, ...]:
    """Return the kind of a change and the fields that say what it is about."""
    if type(change).__name__.startswith("Binding"):
        return (type(change), *(getattr(change, field) for field in change.__slots__))
    named = [getattr(change, field) for field in ("vhost", "user", "name", "operator") if hasattr(change, field)]
    return (type(change), *named)
