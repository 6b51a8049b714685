"""A follower's end of the link to its leader, once both have proved themselves.

    loop     reads while the thread is at the disk, answers beacons, and watches that something comes
    thread   reads entries, carries them out, one after the other, and acknowledges (`Worker`)

1. Nothing is said of the log, and no entry is accepted, before `begin`. It is called at once by a standby, and where
   nodes are elected when this node's member has had a beacon of the leader answered.
2. Beacons are answered while the disk is busy, with how far the log is synced by then.
3. After `fail` nothing more is said over the link. The leader is told why the thread has ended, if it can be.
4. `run` returns when the thread has ended: what was read is carried out, or the disk has failed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Final, Protocol

import trio

from warren.cluster.driver import passed_s
from warren.msgstore.files.store_errors import StoreError
from warren.replication.entries import (
    PREAMBLE,
    Ack,
    Beacon,
    HaveBytes,
    Objection,
    OfBoth,
    Stop,
    Truncate,
    encoded,
    sealed_lists,
)
from warren.replication.intake import Intake
from warren.replication.metadata_copy import MetadataCopy
from warren.replication.questions import Answering, Questions
from warren.replication.replica_store import EntryRefusedError, HistoryLostError, ReplicaStore
from warren.replication.wire import Wire
from warren.server.logs import get_logger
from warren.server.threads import REPLICATION, in_thread

SILENT_S: Final = 3.0  # a leader sends beacons much more often
RECEIVED_S: Final = 0.25  # how often received data is reported
LOOK_S: Final = 0.05  # how often the loop looks whether the thread is at the disk, and does not read

log = get_logger("replication")


class Following(Protocol):
    """The node that follows, as far as its link needs it."""

    metadata: MetadataCopy

    def received(self) -> None:
        """Note that something has come from the leader."""

    def heard(self, link: LinkToLeader, entry: Beacon) -> None:
        """Handle a beacon of the leader."""


class LinkToLeader:
    """One connection to the leader, once both have proved themselves."""

    def __init__(self, wire: Wire, replica: ReplicaStore, epoch: int, store_id: bytes, follower: Following) -> None:
        self.reason = ""
        self.heard_s = time.monotonic()  # the leader, unless this node is the one that does not read
        self.may_be_asked = False
        self.may_object = False
        self.epoch = epoch
        self._store_id = store_id
        self._has_begun = False
        self._wire = wire
        self._replica = replica
        self._follower = follower
        self._token = trio.lowlevel.current_trio_token()
        self._changed = trio.Event()  # nothing more comes
        self.questions = Questions(wire.put)
        self._wanted = Answering(replica.file_system, wire.put)
        self._intake = Intake(wire, self._on_beacon, self._on_end, self._on_question)
        self._worker = Worker(wire, replica, epoch, self._intake, self._object)

    @property
    def came_s(self) -> float:
        """When something came from the leader last (monotonic)."""
        return self._intake.came_s

    @property
    def has_begun(self) -> bool:
        """Whether the entries of the leader are accepted."""
        return self._worker.has_begun

    def begin(self) -> None:
        """Compare logs, and accept the entries of the leader then."""
        if not self._has_begun:
            self._has_begun = True
            self._follower.metadata.begin(self._store_id)
            self._worker.begin(self._store_id)

    def answer(self, beacon: int) -> None:
        """Answer a beacon: at once, since the worker may be waiting for its disk."""
        self._worker.beacon = beacon
        if self._worker.has_begun:
            self._worker.acknowledge()

    def refuse(self, epoch: int) -> None:
        """Notify the leader of an epoch that is greater than its own, and hang up."""
        self._wire.put(encoded(Ack(0, 0, 0, 0, epoch)))
        self.fail(f"it leads epoch {self.epoch}, and epoch {epoch} has begun")

    def _object(self, lost: HistoryLostError) -> None:
        """Report to the leader which committed frames it does not have. From the thread."""
        if self.may_object:
            self._wire.put(encoded(Objection(lost.epoch, lost.lsn)))

    def fail(self, reason: str) -> None:
        """Say nothing more over this link, and have it end."""
        self._wire.fail(reason)

    @property
    def disk_began_s(self) -> float | None:
        """Since when the thread has worked on one entry; None when it does not."""
        return self._worker.began_s

    async def run(self, data: bytes) -> None:
        """Carry out entries until the link ends.

        Raises:
            StoreError: the worker could not carry something out.
        """
        worker = self._worker
        self._wire.put([PREAMBLE])  # before the thread says anything
        self._intake.feed(data)
        worker.start()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._wire.send)
                nursery.start_soon(self._wanted.run)
                self.reason = await self._watch()
                nursery.cancel_scope.cancel()
        finally:
            self.questions.close()
            self._intake.end("the link has ended")
            with trio.CancelScope(shield=True):
                await in_thread(REPLICATION, worker.finish)
        if worker.error is not None:
            raise worker.error

    async def _watch(self) -> str:
        """Read input while the thread is at the disk, and watch that some comes; return why none does."""
        intake, told_s = self._intake, time.monotonic()
        while not intake.is_over:
            with trio.move_on_after(LOOK_S):
                if intake.maybe_read():
                    await self._wire.readable()
                else:
                    await self._changed.wait()
            if intake.came_s - told_s >= RECEIVED_S:
                told_s = intake.came_s
                self._follower.received()
            now_s = time.monotonic()
            self.heard_s = now_s if intake.is_full() else max(self.heard_s, intake.came_s)
            if now_s - self.heard_s >= SILENT_S:
                return "the leader is silent"
        if intake.is_left:
            self._worker.leave()
        elif intake.is_refused:
            self._wire.put(encoded(Stop(intake.reason)))
        return intake.reason

    def _on_beacon(self, entry: Beacon) -> None:
        self._soon(partial(self._follower.heard, self, entry))

    def _on_question(self, entry: OfBoth) -> None:
        if isinstance(entry, HaveBytes):
            self.questions.told(entry)  # at once: a thread waits for it
        else:
            self._soon(partial(self._wanted.take, entry, self.questions))

    def _on_end(self) -> None:
        self._soon(self._changed.set)

    def _soon(self, call: Callable[[], object]) -> None:
        """Schedule a call in the loop; from the thread, too."""
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(call)


class Worker:
    """The thread that reads entries and carries them out, and acknowledges when it has synced or has nothing to do.

    It reads its entries by itself: between the arrival of a frame and the write there is one wake-up.
    """

    def __init__(
        self,
        wire: Wire,
        replica: ReplicaStore,
        epoch: int,
        intake: Intake,
        told_lost: Callable[[HistoryLostError], None],
    ) -> None:
        self.error: StoreError | None = None
        self.beacon = 0
        self.has_begun = False  # and acknowledges from now on
        self.began_s: float | None = None  # when it began with the entry that it works on
        self._wire = wire
        self._replica = replica
        self._epoch = epoch
        self._intake = intake
        self._object = told_lost
        self._store_id: SimpleQueue[bytes | None] = SimpleQueue()  # with which it should begin; None: it is over
        self._has_left = False
        self._thread = Thread(target=self._run, name="replica", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def begin(self, store_id: bytes) -> None:
        """Report this follower's position to the leader, and accept its entries from then on."""
        self._store_id.put(store_id)

    def leave(self) -> None:
        """Note, after all work read so far, that the leader continues without this follower."""
        self._has_left = True

    def finish(self) -> None:
        """Carry out the entries that were read, and end; nothing more is read. Blocks."""
        self._store_id.put(None)
        self._thread.join()

    def tell_position(self) -> None:
        """Report this follower's position to the leader."""
        self._wire.put(encoded(self._replica.position()))
        for files in sealed_lists(self._replica.sealed_files()):
            self._wire.put(encoded(files))

    def acknowledge(self) -> None:
        """Report this follower's progress to the leader. Any thread."""
        self._wire.put(encoded(self._replica.ack(self.beacon)))

    def _run(self) -> None:
        replica, intake = self._replica, self._intake
        try:
            store_id = self._store_id.get()
            if store_id is None:
                return
            replica.follow(self._epoch, store_id)
            self.tell_position()
            self.has_begun = True
            self.acknowledge()
            while (taken := intake.next()) is not None:
                entry, size = taken
                synced_lsn, done = replica.synced_lsn, replica.done
                self.began_s = passed_s()
                replica.apply(entry, self._epoch)
                self.began_s = None
                intake.done(size)
                if isinstance(entry, Truncate):
                    self.tell_position()
                elif (intake.is_empty() or replica.synced_lsn > synced_lsn) and replica.done > done:
                    self.acknowledge()
            if self._has_left:
                replica.follow(self._epoch, replica.store_id)
        except StoreError as error:
            if isinstance(error, HistoryLostError):
                self._object(error)
            self._end(error)
        except Exception as error:
            log.error("internal error, the connection is closed", exception=error)
            self._end(EntryRefusedError(f"internal error: {error!r}"))

    def _end(self, error: StoreError) -> None:
        self.error = error
        self._wire.put(encoded(Stop(str(error))))
        self._wire.fail(str(error))
        self._intake.end(str(error))
